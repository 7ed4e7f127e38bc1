//! Regression tests for defects that reviews and attacks found: one test per finding, with a comment that describes the former behaviour.

use std::{
    collections::BTreeSet,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::{Value, json};
use tungstenite::Message;

use crate::wire::mischief::{Stopped, collect_acked, holder, initialize, named, resident, send_signal, write};
use testkit::{
    Client, RpcError, TestServer, assert_error, decode_base64, modern, pid_of, piped, process, sh, start_params,
    wait_for, wait_gone, with,
};

// A write after the holder's death locked the stdin of the process twice. Each such write blocked one runtime thread, until no request was
// answered.
#[test]
fn a_write_after_the_holder_was_killed_is_answered_and_freezes_nobody() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.start_cat("p");
    send_signal(holder(&server), Signal::KILL);
    assert_eq!(client.collect("p").exited["cause"], "lost");
    for _ in 0..16 {
        assert_error(&client.fails("process/write", write("p", b"late")), -32603, "holderLost");
        assert_error(&client.fails("process/closeStdin", process("p")), -32603, "holderLost");
    }
    assert_error(&client.fails("process/start", sh("q", "exit 0")), -32603, "holderLost");
    client.assert_alive();
    assert_eq!(other.run("p", &["echo", "fine"]).stdout, b"fine\n");
    server.client().assert_alive();
}

// `process/read` returned `exited: true` with `exitCode: null`, while the pushed event had -1.
#[test]
fn a_read_of_a_lost_process_tells_the_same_exit_code_as_the_event() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "echo up; exec sleep 1000"));
    client.wait_output("p", "up");
    send_signal(holder(&server), Signal::KILL);
    assert_eq!(client.collect("p").code(), -1);
    let read = client.ok("process/read", process("p"));
    assert_eq!((&read["exited"], &read["exitCode"], &read["closed"]), (&json!(true), &json!(-1), &json!(true)));
    assert!(read["failure"].is_string(), "{read}");
}

// A server that found the holder dead answered `unknownSession`, as if the session had never existed.
#[test]
fn a_session_whose_holder_died_without_a_server_is_told_as_lost() {
    let mut server = TestServer::builder().keep_holders().start();
    let mut client = server.connect();
    let session = initialize(&mut client, modern());
    client.ok("process/start", sh("p", "exec sleep 1000"));
    server.kill();
    let holder = holder(&server);
    send_signal(holder, Signal::KILL);
    wait_gone("the holder", &BTreeSet::from([holder]));
    server.restart();
    let mut client = server.connect();
    let error = client.fails("initialize", json!({"clientName": "test", "resumeSessionId": session}));
    assert_error(&error, -32603, "holderLost");
    client.initialize();
}

// If creating a holder failed, the next server took its leftover secret for a dead holder and removed the session. The failure itself was
// reported as `holderLost`.
#[test]
fn a_session_whose_holder_could_not_be_made_outlives_the_server() {
    let mut server = TestServer::builder().keep_holders().start();
    let mut client = server.connect();
    let session = initialize(&mut client, modern());
    let spawners = named(&server, "exec-spawner");
    // A dead spawner would be replaced. A spawner without fds stays alive, but cannot create holders.
    let tight = Rlimit { current: Some(4), maximum: Some(4) };
    for pid in &spawners {
        prlimit(Pid::from_raw(pid.cast_signed()), Resource::Nofile, tight).expect("lower the limit");
    }
    assert_error(&client.fails("process/start", sh("p", "exit 0")), -32603, "resourcesExhausted");
    client.assert_alive();
    server.restart();
    let mut client = server.resume(&session, json!({}));
    assert_eq!(client.run("p", &["echo", "here"]).stdout, b"here\n");
}

// The log of a forgotten process stayed in its holder's memory, up to 8 MiB per session.
#[test]
fn a_forgotten_log_leaves_the_memory_of_its_holder() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("stays", "exec sleep 1000"));
    let holder = holder(&server);
    for round in 0..6 {
        let id = format!("p{round}");
        assert_eq!(client.run(&id, &["head", "-c", "2000000", "/dev/zero"]).stdout.len(), 2_000_000);
        client.ok("process/forget", process(&id));
    }
    wait_for("the memory to be given back", || resident(holder, "RssShmem") < 3 << 20);
}

// Input was sent to the holder by slot even after `Forget`: bytes written to one process reached the next process in that slot.
#[test]
fn what_was_written_to_a_forgotten_process_never_enters_its_successor() {
    let server = TestServer::start();
    let mut client = server.client();
    for round in 0..20 {
        let is_closed = round % 2 == 0;
        let mut writes = Vec::new();
        if is_closed {
            client.ok("process/start", piped("old", "read x"));
            client.ok("process/write", write("old", b"\n"));
        } else {
            // More than its stdin buffers: the last three writes are waiting when it ends.
            client.ok("process/start", piped("old", "exec sleep 1000"));
            writes.extend((0..4).map(|_| client.send_request("process/write", write("old", &[b'x'; 100_000]))));
            client.ok("process/terminate", process("old"));
        }
        client.collect("old");
        writes.extend((0..4).map(|_| client.send_request("process/write", write("old", b"for the old one\n"))));
        let forget = client.send_request("process/forget", process("old"));
        let start =
            client.send_request("process/start", with(start_params("new", &["cat"]), json!({"pipeStdin": true})));
        for id in writes {
            let status = client.answer(id).expect("a status")["status"].clone();
            assert!(status == "stdinClosed" || status == "unknownProcess", "{status}");
        }
        client.answer(forget).expect("a closed process can be forgotten");
        client.answer(start).expect("the new one starts");
        client.ok("process/closeStdin", process("new"));
        assert_eq!(String::from_utf8_lossy(&client.collect("new").stdout), "", "round {round}");
        client.ok("process/forget", process("new"));
    }
}

// A new holder did not get the time-to-live: if the server was killed during the first attachment, it was 10 minutes instead of the
// requested time.
#[test]
fn a_short_time_to_live_of_the_first_attachment_survives_a_kill_of_the_server() {
    let mut server = TestServer::builder().keep_holders().start();
    let mut client = server.connect();
    client.initialize_with(json!({"clientName": "test", "ttlMs": 1500}));
    let pid = pid_of(&client.ok("process/start", sh("p", "exec sleep 1000")));
    let all = BTreeSet::from([pid, holder(&server)]);
    server.kill();
    let killed = Instant::now();
    wait_gone("holder and process", &all);
    let took = killed.elapsed();
    assert!((Duration::from_millis(1200)..Duration::from_secs(8)).contains(&took), "{took:?}");
}

// The same for a session that never expires.
#[test]
fn a_session_without_a_time_to_live_is_there_after_a_kill_of_the_server() {
    let mut server = TestServer::builder().keep_holders().start();
    let mut client = server.connect();
    let session = initialize(&mut client, json!({"clientName": "test", "ttlMs": "none"}));
    let pid = pid_of(&client.ok("process/start", sh("p", "exec sleep 1000")));
    server.restart();
    // Look from another session, so that looking does not attach.
    let listed = server.client().ok("process/list", json!({"scope": "all"}))["processes"].clone();
    assert_eq!((&listed[0]["sessionId"], &listed[0]["pid"]), (&json!(session), &json!(pid)));
    let mut client = server.resume(&session, json!({}));
    client.ok("session/end", json!({}));
    wait_gone("the process", &BTreeSet::from([pid]));
}

// If a request completed at its first poll, no waiting request was admitted after it: most were never answered, and later ones overtook
// them.
#[test]
fn requests_that_wait_for_the_only_slot_are_all_answered_in_order() {
    let server = TestServer::builder().arg("--concurrent-requests").arg("1").start();
    let mut client = server.client();
    let (mut starts, mut others, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..50 {
        let id = format!("p{i}");
        starts.push(client.send_request("process/start", start_params(&id, &["true"])));
        // This request waits for the start and needs no slot.
        others.push(client.send_request("process/forget", process(&id)));
        lists.push(client.send_request("process/list", json!({})));
        lists.push(client.send_request("process/list", json!({})));
    }
    let (mut started, mut answered, mut listed) = (Vec::new(), Vec::new(), Vec::new());
    while started.len() + answered.len() + listed.len() < 200 {
        let message = client.next();
        if let Some(id) = message["id"].as_i64() {
            let kind = if starts.contains(&id) {
                &mut started
            } else if lists.contains(&id) {
                &mut listed
            } else {
                &mut answered
            };
            kind.push(id);
        }
    }
    assert_eq!((started, answered, listed), (starts, others, lists));
}

// A message too large for the holder's socket was silently dropped: the request got no answer, and the id stayed taken forever.
#[test]
fn a_start_that_is_too_large_for_the_holder_is_refused_and_frees_its_name() {
    let server = TestServer::start();
    let mut client = server.client();
    let arg = "x".repeat(1 << 20);
    let argv: Vec<&str> = std::iter::once("true").chain(std::iter::repeat_n(arg.as_str(), 17)).collect();
    assert_error(&client.fails("process/start", start_params("p", &argv)), -32602, "invalidParams");
    let env: serde_json::Map<String, Value> = (0..17).map(|i| (format!("V{i}"), json!(arg))).collect();
    let params = with(start_params("p", &["true"]), json!({"env": env}));
    assert_error(&client.fails("process/start", params), -32602, "invalidParams");
    assert_eq!(client.ok("process/list", json!({}))["processes"], json!([]));
    assert_eq!(client.run("p", &["echo", "free"]).stdout, b"free\n");
}

// All answers were built at once, whether the client read them or not: 120 reads cost 1.28 GiB.
#[test]
fn many_large_reads_are_answered_one_after_the_other() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "head -c 8388608 /dev/zero"));
    assert_eq!(client.collect("p").stdout.len(), 8 << 20);
    let before = resident(server.pid(), "RssAnon");
    for _ in 0..60 {
        client.send_request("process/read", process("p"));
    }
    for _ in 0..5 {
        let answer = client.next();
        assert!(answer["result"]["chunks"].as_array().is_some_and(|chunks| chunks.len() > 100));
        let grown = resident(server.pid(), "RssAnon").saturating_sub(before);
        assert!(grown < 64 << 20, "the server grew by {} MiB", grown >> 20);
    }
}

// `command/exec/terminate` released the id, and the next sweep discarded output that the client had not read, including the exit.
#[test]
fn a_terminated_v0_process_still_delivers_all_it_wrote() {
    let server = TestServer::start();
    let (mut client, mut clock) = (server.connect(), server.client());
    let done = server.dir().join("done");
    let script = format!("head -c 15000000 /dev/zero; : >{}; exec sleep 1000", done.display());
    let pid = pid_of(&client.ok("command/exec", sh("v", &script)));
    wait_for("the output to be written", || done.exists());
    let terminate = client.send_request("command/exec/terminate", process("v"));
    wait_gone("the process", &BTreeSet::from([pid]));
    // Two sweeps happen while nothing is read.
    clock.ok("process/start", sh("quiet", "exec sleep 1000"));
    clock.ok("process/read", json!({"processId": "quiet", "waitMs": 2300}));
    assert_eq!(client.answer(terminate), Ok(json!({"running": true})));
    let mut bytes = 0;
    loop {
        let message = client.next_notification();
        if message["method"] == "command/exec/exited" {
            assert_eq!(message["params"], json!({"processId": "v", "exitCode": 137}));
            break;
        }
        assert_eq!(message["method"], "command/exec/outputDelta");
        bytes += decode_base64(message["params"]["chunk"].as_str().expect("a chunk")).len();
    }
    assert_eq!(bytes, 15_000_000);
}

// `process/forget` dropped the log while a holding subscriber still needed it: the subscriber got a gap of 8 MB, and then neither exit nor
// close.
#[test]
fn a_subscriber_that_holds_gets_everything_after_the_owner_forgot() {
    let server = TestServer::start();
    let (mut owner, mut reader) = (server.connect(), server.connect());
    let session = initialize(&mut owner, modern());
    reader.initialize_with(modern());
    // Each is within the acknowledgement window; together they are more than the sockets buffer.
    let ids = ["a", "b", "c", "d", "e"];
    let mut seqs = Vec::new();
    for id in ids {
        owner.ok("process/start", piped(id, "read x; head -c 4000000 /dev/zero; exit 4"));
        reader.ok("process/subscribe", json!({"processId": id, "sessionId": session, "hold": true}));
        owner.ok("process/write", write(id, b"\n"));
        let whole = collect_acked(&mut owner, id);
        assert_eq!(whole.stdout.len(), 4_000_000);
        seqs.push(whole.seqs);
    }
    for id in ids {
        owner.ok("process/forget", process(id));
        assert_error(&owner.fails("process/read", process(id)), -32600, "unknownProcess");
    }
    for (id, seqs) in ids.into_iter().zip(seqs) {
        let held = reader.collect(id);
        assert_eq!((held.stdout.len(), held.code(), held.seqs), (4_000_000, 4, seqs), "{id}");
    }
    // The ids are free.
    owner.ok("process/start", start_params("a", &["echo", "again"]));
    assert_eq!(collect_acked(&mut owner, "a").stdout, b"again\n");
}

/// Two concurrent resumes of one session without `takeover`. The winner stays attached until both are answered.
fn race(server: &TestServer, session: &str) -> Vec<Result<Client, RpcError>> {
    let answered = AtomicUsize::new(0);
    let resume = || {
        let mut client = server.connect();
        let result = client.call("initialize", json!({"clientName": "test", "resumeSessionId": session}));
        answered.fetch_add(1, Ordering::SeqCst);
        result?;
        client.notify("initialized", json!({}));
        // The winner sends requests, which shows that its connection is alive.
        while answered.load(Ordering::SeqCst) < 2 {
            client.assert_alive();
        }
        client.assert_alive();
        Ok(client)
    };
    thread::scope(|scope| {
        let racers = [scope.spawn(resume), scope.spawn(resume)];
        racers.into_iter().map(|racer| racer.join().expect("nobody who was let in is thrown out")).collect()
    })
}

#[track_caller]
fn only_winner(mut results: Vec<Result<Client, RpcError>>) -> Client {
    let at = results.iter().position(Result::is_ok).expect("one wins");
    let winner = results.swap_remove(at);
    match results.pop().expect("there were two") {
        Ok(_) => panic!("both won"),
        Err(error) => assert_error(&error, -32010, "sessionAttached"),
    }
    winner.unwrap_or_else(|error| panic!("it won: {error:?}"))
}

// Both resumes saw the same silent owner and both got the session; the second one disconnected the first.
#[test]
fn of_two_resumes_of_a_silent_session_one_wins() {
    let server = TestServer::start();
    // This client never reads again, so it answers no ping.
    let mut silent = server.connect();
    let session = silent.initialize();
    only_winner(race(&server, &session)).assert_alive();
    assert_eq!(silent.wait_closed().map(|(code, _)| code), Some(1008));
}

// The same for a detached session.
#[test]
fn of_two_resumes_of_a_detached_session_one_wins() {
    let server = TestServer::start();
    let mut client = server.connect();
    let session = client.initialize();
    for _ in 0..10 {
        client.leave();
        client = only_winner(race(&server, &session));
    }
}

// The socket was closed with unread input, which resets it: a client that was sending lost the answer and the close frame.
#[test]
fn the_end_of_a_session_is_answered_while_acknowledgements_still_come() {
    let server = TestServer::start();
    for _ in 0..10 {
        let mut client = server.connect();
        client.initialize_with(modern());
        client.ok("process/start", sh("p", "exec sleep 1000"));
        let end = client.send_request("session/end", json!({}));
        let ack = json!({"method": "process/ack", "params": {"processId": "p", "seq": 1}}).to_string();
        for _ in 0..300 {
            client.send_message(Message::text(ack.as_str())).expect("the server still reads");
        }
        assert_eq!(client.answer(end), Ok(json!({})));
        assert_eq!(client.wait_closed().map(|(code, _)| code), Some(1000));
    }
    for _ in 0..5 {
        let mut client = server.connect();
        client.initialize_with(modern());
        client.ok("process/start", start_params("p", &["yes"]));
        let mut end = None;
        for turn in 0.. {
            let message = client.next();
            if end.is_some_and(|end| message["id"] == end) {
                assert_eq!(message["result"], json!({}));
                break;
            }
            client.notify("process/ack", json!({"processId": "p", "seq": message["params"]["seq"]}));
            if turn == 20 {
                end = Some(client.send_request("session/end", json!({})));
            }
        }
        assert_eq!(client.wait_closed().map(|(code, _)| code), Some(1000));
    }
}

// A message of more than 64 MiB was always refused as `overloaded`, even if nothing else was waiting.
#[test]
fn one_large_write_alone_is_no_overload() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", piped("p", "exec cat >/dev/null"));
    let chunk = "AAAA".repeat(20 << 20);
    client.send_text(&format!(
        r#"{{"id":"large","method":"process/write","params":{{"processId":"p","chunk":"{chunk}"}}}}"#
    ));
    let answer = client.next();
    assert_eq!((&answer["id"], &answer["result"]), (&json!("large"), &json!({"status": "accepted"})), "{answer}");
    client.ok("process/closeStdin", process("p"));
    assert_eq!(client.collect("p").code(), 0);
}

// Starts that a stopped holder did not take were unbounded: 3000 of them cost 280 MiB, and none was refused.
#[test]
fn starts_that_a_stopped_holder_does_not_take_are_refused_in_the_end() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("first", "exec sleep 1000"));
    let stopped = Stopped::new(holder(&server));
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
            _ => assert_error(&error, -32603, "programNotFound"),
        }
    }
    // Some are in flight, and 64 MiB are waiting.
    assert!((50..200).contains(&refused), "{refused} of 700 were refused");
    assert_eq!(client.run("p0", &["echo", "fine"]).stdout, b"fine\n");
}

// Requests to close a full stdin were unbounded: 60,000 cost 128 MiB, and none was refused.
#[test]
fn requests_that_wait_for_a_full_stdin_are_refused_in_the_end_and_control_is_not() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", piped("p", "exec sleep 1000"));
    let write = client.send_request("process/write", write("p", &[b'x'; 200_000]));
    for _ in 0..9000 {
        client.send_request("process/closeStdin", process("p"));
    }
    let terminate = client.send_request("process/terminate", process("p"));
    let (mut answered, mut refused) = (0, 0);
    while answered + refused < 9002 {
        let message = client.next();
        match message["id"].as_i64() {
            Some(id) if id == write => assert_eq!(message["result"]["status"], "stdinClosed"),
            Some(id) if id == terminate => assert_eq!(message["result"]["running"], true, "{message}"),
            Some(_) if message["error"]["data"]["kind"] == "overloaded" => {
                refused += 1;
                continue;
            }
            Some(_) => assert!(message["result"]["status"].is_string(), "{message}"),
            None => continue,
        }
        answered += 1;
    }
    assert!(answered > 8000 && refused > 700, "{answered} answered, {refused} refused");
    client.assert_alive();
}

// Each terminate scanned all processes of the host twice, in the only thread of the session: an echo took seconds.
#[test]
fn a_burst_of_terminates_holds_up_no_other_process() {
    let server = TestServer::start();
    let mut client = server.client();
    client.start_cat("cat");
    let ids: Vec<String> = (0..300).map(|i| format!("s{i}")).collect();
    let starts: Vec<i64> =
        ids.iter().map(|id| client.send_request("process/start", start_params(id, &["sleep", "1000"]))).collect();
    for start in starts {
        client.answer(start).expect("it starts");
    }
    let begun = Instant::now();
    let terminates: Vec<i64> = ids.iter().map(|id| client.send_request("process/terminate", process(id))).collect();
    client.send_request("process/write", write("cat", b"echo\n"));
    client.wait_output("cat", "echo\n");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    for terminate in terminates {
        assert_eq!(client.answer(terminate), Ok(json!({"running": true})));
    }
}

// A server waited for every holder it found: a stopped one kept it from ever printing its URL.
#[test]
fn a_stopped_holder_does_not_keep_a_server_from_starting() {
    let mut server = TestServer::builder().keep_holders().start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let stopped = Stopped::new(holder(&server));
    let mut other = server.connect();
    let session = other.initialize();
    other.start_cat("p");
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
    other.ok("process/write", write("p", b"still here\n"));
    other.ok("process/closeStdin", process("p"));
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
    let pid = pid_of(&client.ok("process/start", sh("p", "exec sleep 1000")));
    let mut other = server.client();
    let stopped = Stopped::new(holder(&server));
    let other_pid = pid_of(&other.ok("process/start", sh("p", "exec sleep 1000")));
    let begun = Instant::now();
    server.signal(Signal::TERM);
    wait_gone("the process of the session that answers", &BTreeSet::from([other_pid]));
    server.wait();
    assert!(begun.elapsed() < Duration::from_secs(16), "{:?}", begun.elapsed());
    let all = BTreeSet::from([pid, stopped.0]);
    drop(stopped);
    wait_gone("holder and process, now that it goes on", &all);
}
