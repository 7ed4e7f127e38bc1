//! Regression tests for defects that were found by reading the code: only many requests, much output or two simultaneous faults trigger
//! them. Each comment describes the former behaviour.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::json;

use crate::wire::mischief::{Stopped, collect_acked, holder, initialize};
use testkit::{
    Client, TestServer, assert_error, encode_base64, modern, pid_of, piped, process, sh, start_params, wait_for, with,
};

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
    let mut client = server.connect();
    let session = client.initialize();
    let pid = pid_of(&client.ok("process/start", sh("p", "exec sleep 1000")));
    let stopped = Stopped::new(holder(&server));
    let waiting = fill_backlog(&server, &session);
    server.restart();
    drop((stopped, waiting));
    let params = json!({"clientName": "test", "resumeSessionId": session});
    let mut client = server.connect();
    wait_for("the session to be known again", || client.call("initialize", params.clone()).is_ok());
    client.notify("initialized", json!({}));
    assert_eq!(client.ok("process/list", json!({}))["processes"][0]["pid"], pid);
}

// Output before a read did not count as read: after 16 MiB of output a client that polled without a break got no more pushes.
#[test]
fn a_poller_is_pushed_to_behind_much_output() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", piped("p", "head -c 20000000 /dev/zero; while read x; do echo $x; done; exit 3"));
    let mut bytes = 0;
    let mut last = 0;
    let output = |client: &mut Client| {
        let params = client.expect("process/output");
        (params["seq"].as_u64().expect("a number"), params["chunk"].as_str().map(str::len).unwrap_or_default())
    };
    while bytes < 20_000_000 / 3 * 4 {
        let (seq, len) = output(&mut client);
        (last, bytes) = (seq, bytes + len);
    }
    let poll = |client: &mut Client, after: u64| {
        client.send_request("process/read", json!({"processId": "p", "afterSeq": after, "waitMs": 600_000}))
    };
    // There is always a read in flight, so that the server keeps treating the client as a poller.
    let mut read = poll(&mut client, last);
    for line in 0..5 {
        client.ok("process/write", json!({"processId": "p", "chunk": encode_base64(format!("{line}\n").as_bytes())}));
        let answer = client.answer(read).expect("there is something new");
        last = answer["nextSeq"].as_u64().expect("a number") - 1;
        read = poll(&mut client, last);
        assert_eq!(output(&mut client).0, last, "it is pushed, too");
    }
    client.ok("process/closeStdin", process("p"));
    client.answer(read).expect("the end");
    assert_eq!(client.expect("process/exited")["exitCode"], 3);
}

// A start that waited for a slot had no id yet: other requests for that process got `unknownProcess`.
#[test]
fn a_start_that_waits_for_others_is_waited_for_by_what_names_it() {
    let server = TestServer::builder().arg("--concurrent-requests").arg("1").start();
    let mut client = server.client();
    let starts: Vec<i64> =
        (0..20).map(|i| client.send_request("process/start", sh(&format!("s{i}"), "exit 0"))).collect();
    let cat = client.send_request("process/start", with(start_params("cat", &["cat"]), json!({"pipeStdin": true})));
    let write = client.send_request("process/write", json!({"processId": "cat", "chunk": encode_base64(b"in order")}));
    let close = client.send_request("process/closeStdin", process("cat"));
    let sleep = client.send_request("process/start", sh("sleep", "exec sleep 1000"));
    let terminate = client.send_request("process/terminate", process("sleep"));
    let again = client.send_request("process/start", sh("cat", "exit 0"));
    for id in starts.into_iter().chain([cat, sleep]) {
        client.answer(id).expect("it starts");
    }
    assert_eq!(client.answer(write).expect("written")["status"], "accepted");
    assert_eq!(client.answer(close).expect("closed")["status"], "accepted");
    assert_eq!(client.answer(terminate).expect("terminated")["running"], true);
    assert_error(&client.answer(again).expect_err("its name is taken"), -32600, "duplicateProcess");
    assert_eq!(client.collect("cat").stdout, b"in order");
    assert_eq!(client.collect("sleep").code(), 137);
}

// A waiting start has no effect yet: it counts towards no limit, and it is cancelled when its connection ends.
#[test]
fn a_start_that_waits_for_others_takes_nothing_and_goes_with_its_connection() {
    let server = TestServer::builder().arg("--concurrent-requests").arg("1").arg("--max-processes").arg("3").start();
    let mut client = server.connect();
    let session = initialize(&mut client, modern());
    client.ok("process/start", sh("runs", "exec sleep 1000"));
    let stopped = Stopped::new(holder(&server));
    for name in ["begins", "waits", "waits-too", "waits-longer"] {
        client.send_request("process/start", sh(name, "exec sleep 1000"));
    }
    let status = client.send_request("environment/status", json!({}));
    assert_eq!(client.next()["id"], status, "nothing is refused");
    client.leave();
    drop(stopped);
    let mut client = server.connect();
    client.initialize_with(with(modern(), json!({"resumeSessionId": session})));
    let names = |client: &mut Client| {
        let listed = client.ok("process/list", json!({}))["processes"].clone();
        let names = listed.as_array().into_iter().flatten().map(|process| process["processId"].clone());
        names.collect::<Vec<_>>()
    };
    wait_for("the start that had begun", || names(&mut client).contains(&json!("begins")));
    // Its id is free, and there is room for it.
    client.ok("process/start", sh("waits", "exec sleep 1000"));
    assert_eq!(names(&mut client), ["runs", "begins", "waits"]);
    assert_error(&client.fails("process/start", sh("one-more", "exit 0")), -32603, "resourcesExhausted");
}

// A forgotten process whose log a reader still held came back under its id after a restart, and hid the newer process with that id.
#[test]
fn a_name_is_that_of_the_later_process_after_a_restart() {
    let mut server = TestServer::builder().keep_holders().start();
    let (mut owner, mut reader) = (server.connect(), server.connect());
    let session = initialize(&mut owner, modern());
    reader.initialize_with(modern());
    // The first slot becomes free for the later process with the same id.
    owner.run("first", &["true"]);
    owner.ok("process/start", piped("p", "read x; head -c 9000000 /dev/zero; exit 4"));
    reader.ok("process/subscribe", json!({"processId": "p", "sessionId": session, "hold": true}));
    owner.ok("process/write", json!({"processId": "p", "chunk": "Cg=="}));
    assert_eq!(collect_acked(&mut owner, "p").stdout.len(), 9_000_000);
    owner.ok("process/forget", process("p"));
    owner.ok("process/forget", process("first"));
    let pid = pid_of(&owner.ok("process/start", piped("p", "read x; exit 5")));
    server.restart();
    let mut owner = server.connect();
    owner.initialize_with(with(modern(), json!({"resumeSessionId": session})));
    let listed = owner.ok("process/list", json!({}))["processes"].clone();
    assert_eq!((&listed[0]["pid"], listed.as_array().map(Vec::len)), (&json!(pid), Some(1)), "{listed}");
    owner.ok("process/write", json!({"processId": "p", "chunk": "Cg=="}));
    assert_eq!(owner.expect("process/exited")["exitCode"], 5);
}
