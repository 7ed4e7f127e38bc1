//! Holders that are killed, stopped or cannot be made: requests are answered, and a session is lost, kept or found again as documented.

use std::{os::fd::OwnedFd, sync::mpsc};

use rustix::{
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::{Pid, Resource, Rlimit, prlimit},
};

use crate::prelude::*;

// A write after the holder's death locked the stdin of the process twice. Each such write blocked one runtime thread, until no request was
// answered.
#[test]
fn a_write_after_the_holder_was_killed_is_answered_and_freezes_nobody() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.start(cat("p"));
    kill(server.holder());
    assert_eq!(client.collect("p").exited["cause"], "lost");
    for _ in 0..16 {
        client.refuses("process/write", write_params("p", b"late"), -32603, "holderLost");
        client.refuses("process/closeStdin", process("p"), -32603, "holderLost");
    }
    client.refuses("process/start", sh("q", "exit 0"), -32603, "holderLost");
    client.assert_alive();
    assert_eq!(other.run("p", &["echo", "fine"]).stdout, b"fine\n");
    server.client().assert_alive();
}

// `process/read` returned `exited: true` with `exitCode: null`, while the pushed event had -1.
#[test]
fn a_read_of_a_lost_process_tells_the_same_exit_code_as_the_event() {
    let (server, mut client) = TestServer::with_client();
    client.start(sh("p", "echo up; exec sleep 1000"));
    client.wait_output("p", "up");
    kill(server.holder());
    assert_eq!(client.collect("p").code(), -1);
    let read = client.ok("process/read", process("p"));
    assert_eq!((&read["exited"], &read["exitCode"], &read["closed"]), (&json!(true), &json!(-1), &json!(true)));
    assert!(read["failure"].is_string(), "{read}");
}

// A server that found the holder dead answered `unknownSession`, as if the session had never existed.
#[test]
fn a_session_whose_holder_died_without_a_server_is_told_as_lost() {
    let mut server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.modern_client();
    client.start(sh("p", "exec sleep 1000"));
    server.kill();
    let holder = server.holder();
    kill(holder);
    wait_pid_gone(holder);
    server.restart();
    let mut client = server.connect();
    client.refuses("initialize", json!({"clientName": "test", "resumeSessionId": session}), -32603, "holderLost");
    client.initialize();
}

// If creating a holder failed, the next server took its leftover secret for a dead holder and removed the session. The failure itself was
// reported as `holderLost`.
#[test]
fn a_session_whose_holder_could_not_be_made_outlives_the_server() {
    let mut server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.modern_client();
    let spawners = server.named("exec-spawner");
    // A dead spawner would be replaced. A spawner without fds stays alive, but cannot create holders.
    let tight = Rlimit { current: Some(4), maximum: Some(4) };
    for pid in &spawners {
        prlimit(Pid::from_raw(pid.cast_signed()), Resource::Nofile, tight).expect("lower the limit");
    }
    client.refuses("process/start", sh("p", "exit 0"), -32603, "resourcesExhausted");
    client.assert_alive();
    server.restart();
    let mut client = server.resume(&session, json!({}));
    assert_eq!(client.run("p", &["echo", "here"]).stdout, b"here\n");
}

// The log of a forgotten process stayed in its holder's memory, up to 8 MiB per session.
#[test]
fn a_forgotten_log_leaves_the_memory_of_its_holder() {
    let (server, mut client) = TestServer::with_process(sh("stays", "exec sleep 1000"));
    let holder = server.holder();
    for round in 0..6 {
        let id = format!("p{round}");
        assert_eq!(client.run(&id, &["head", "-c", "2000000", "/dev/zero"]).stdout.len(), 2_000_000);
        client.ok("process/forget", process(&id));
    }
    wait_for("the memory to be given back", || resident(holder, "RssShmem") < 3 << 20);
}

// Starts that a stopped holder did not take were unbounded: 3000 of them cost 280 MiB, and none was refused.
#[test]
fn starts_that_a_stopped_holder_does_not_take_are_refused_in_the_end() {
    let (server, mut client) = TestServer::with_process(sh("first", "exec sleep 1000"));
    let stopped = Stopped::new(server.holder());
    let arg = "x".repeat(120_000);
    let ids: Vec<i64> = (0..700)
        .map(|i| client.send_request("process/start", start_params(&format!("p{i}"), &["/no/such", &arg])))
        .collect();
    client.assert_alive();
    drop(stopped);
    let mut refused = 0;
    for id in ids {
        let error = client.answer(id).expect_err("there is no such program");
        match error.kind() {
            "overloaded" => refused += 1,
            // On a busy machine the holder was stopped for more than 5 s.
            "holderSilent" => {}
            _ => assert_error(&error, -32603, "programNotFound"),
        }
    }
    // Some are in flight, and 64 MiB are waiting.
    assert!((50..200).contains(&refused), "{refused} of 700 were refused");
    assert_eq!(client.run("p0", &["echo", "fine"]).stdout, b"fine\n");
}

// A server waited for every holder it found: a stopped one kept it from ever printing its URL.
#[test]
fn a_stopped_holder_does_not_keep_a_server_from_starting() {
    let mut server = TestServer::builder().keep_holders().start();
    let mut client = server.client();
    client.start(sh("p", "exec sleep 1000"));
    let stopped = Stopped::new(server.holder());
    let (mut other, session) = server.session();
    other.start(cat("p"));
    // If the server does wait, this lets it continue, and the elapsed time shows it.
    let (over, is_over) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        is_over.recv_timeout(Duration::from_secs(15)).ok(); // In both cases the holder continues.
        drop(stopped);
    });
    let begun = Instant::now();
    server.restart();
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    let mut other = server.resume(&session, json!({}));
    other.write("p", b"still here\n");
    other.close_stdin("p");
    assert_eq!(other.poll("p", None).0, b"still here\n");
    assert_eq!(server.client().run("q", &["echo", "new"]).stdout, b"new\n");
    drop(over);
    watchdog.join().expect("the watchdog does not panic");
}

// The end of a session waited for its holder without a timeout: SIGTERM never ended the server.
#[test]
fn a_stopped_holder_does_not_keep_a_server_from_ending() {
    let mut server = TestServer::start();
    let mut client = server.client();
    let pid = pid_of(&client.start(sh("p", "exec sleep 1000")));
    let mut other = server.client();
    let stopped = Stopped::new(server.holder());
    let other_pid = pid_of(&other.start(sh("p", "exec sleep 1000")));
    let begun = Instant::now();
    server.signal(Signal::TERM);
    wait_pid_gone(other_pid);
    server.wait();
    assert!(begun.elapsed() < Duration::from_secs(16), "{:?}", begun.elapsed());
    let all = BTreeSet::from([pid, stopped.0]);
    drop(stopped);
    wait_gone("holder and process, now that it goes on", &all);
}

// The part of a write that a dead holder was processing kept the stdin queue busy forever: a later write was never answered.
#[test]
fn a_write_behind_one_that_was_lost_is_answered_too() {
    let (server, mut client) = TestServer::with_process(piped("p", "exec sleep 1000"));
    // More than its stdin buffers, so the holder still has it when it is killed.
    let waiting = client.send_write("p", [b'x'; 200_000]);
    client.assert_alive();
    kill(server.holder());
    assert_error(&client.answer(waiting).expect_err("the holder is gone"), -32603, "holderLost");
    assert_eq!(client.collect("p").exited["cause"], "lost");
    client.refuses("process/write", write_params("p", b"late"), -32603, "holderLost");
    client.refuses("process/closeStdin", process("p"), -32603, "holderLost");
}

// A holder that missed the deadline of the adoption was never contacted again: its client got `unknownSession` while its processes ran.
#[test]
fn a_holder_that_goes_on_after_the_adoption_is_found_again() {
    let mut server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.session();
    client.start(sh("p", "exec sleep 1000"));
    let stopped = Stopped::new(server.holder());
    server.restart();
    drop(stopped);
    let params = json!({"clientName": "test", "resumeSessionId": session});
    let mut client = server.connect();
    wait_for("the session to be known again", || client.call("initialize", params.clone()).is_ok());
}

/// Fills the backlog of the holder's socket with connections.
fn fill_backlog(server: &TestServer, session: &str) -> Vec<OwnedFd> {
    let dir = server.state_dir().join("sessions").join(session);
    // Use a short path through `/proc/self/fd`: a socket address has at most 107 bytes.
    let dir = std::fs::File::open(dir).expect("the session's directory");
    let address = format!("/proc/self/fd/{}/sock", std::os::fd::AsRawFd::as_raw_fd(&dir));
    let address = SocketAddrUnix::new(address).expect("an address");
    let connect = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        rustix::net::connect(&socket, &address).ok().map(|()| socket)
    };
    let waiting: Vec<_> = std::iter::from_fn(connect).take(1000).collect();
    assert!((1..1000).contains(&waiting.len()), "the door is full after {}", waiting.len());
    waiting
}

// A holder whose backlog was full during the adoption was taken for dead: it kept running and was never contacted again.
#[test]
fn a_holder_that_stands_still_behind_a_full_door_is_adopted_when_it_goes_on() {
    let mut server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.session();
    let pid = pid_of(&client.start(sh("p", "exec sleep 1000")));
    let stopped = Stopped::new(server.holder());
    let waiting = fill_backlog(&server, &session);
    server.restart();
    drop((stopped, waiting));
    let params = json!({"clientName": "test", "resumeSessionId": session});
    let mut client = server.connect();
    wait_for("the session to be known again", || client.call("initialize", params.clone()).is_ok());
    client.notify("initialized", json!({}));
    assert_eq!(client.processes()[0]["pid"], pid);
}
