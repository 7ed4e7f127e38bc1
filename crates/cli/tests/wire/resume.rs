//! Sessions over several connections: detach, resume, takeover, expiry, end (spec 2.2; design section 4). Survival of a server
//! restart is tested here only once; the fault runs cover it.

use crate::prelude::*;

fn resume_params(session: &str) -> Value {
    json!({"clientName": "test", "resumeSessionId": session})
}

#[test]
fn exec_server_resumes_detached_session_without_killing_processes() {
    let (server, mut client, session) = TestServer::with_session();
    client.start(sh("p", "exec sleep 1000"));
    drop(client);
    let mut client = server.resume(&session, json!({}));
    let read = client.ok("process/read", process("p"));
    assert_eq!((&read["exited"], &read["closed"], &read["failure"]), (&json!(false), &json!(false), &Value::Null));
    assert_eq!(client.terminate("p")["running"], true);
    assert_eq!(client.collect("p").code(), 137);
}

#[test]
fn a_session_without_processes_is_resumed_too() {
    let (server, client, session) = TestServer::with_session();
    drop(client);
    let mut client = server.resume(&session, json!({}));
    assert_eq!(client.run("p", &["true"]).code(), 0);
}

#[test]
fn active_session_resume_is_rejected() {
    let (server, mut client, session) = TestServer::with_session();
    client.start(cat("p"));
    // The old client answers pings while it waits for output.
    let listener = thread::spawn(move || {
        client.wait_output("p", "done");
        client
    });
    let mut thief = server.connect();
    let error = thief.refuses("initialize", resume_params(&session), -32010, "sessionAttached");
    assert_eq!(error.message, format!("session {session} is already attached to another connection"));
    // The refused connection can be used for a new session.
    thief.initialize();
    thief.ok("process/write", json!({"processId": "p", "sessionId": session, "chunk": encode_base64(b"done")}));
    listener.join().expect("the old connection was not disturbed").assert_alive();
}

#[test]
fn an_unknown_session_cannot_be_resumed() {
    let (_server, mut client) = TestServer::with_connection();
    for id in ["unknown", "", "../x", "00000000-0000-4000-8000-000000000000", &"long".repeat(100_000)] {
        let error = client.refuses("initialize", resume_params(id), -32600, "unknownSession");
        assert!(error.message.starts_with("unknown session id "), "{}", error.message);
        assert!(error.message.len() < 2048);
    }
    client.initialize();
}

#[test]
fn long_poll_read_fails_after_session_resume() {
    let (server, mut old, session) = TestServer::with_session();
    old.start(sh("p", "exec sleep 1000"));
    let pending = old.send_request("process/read", json!({"processId": "p", "waitMs": 60_000}));
    let mut new = server.connect();
    new.initialize_with(with(resume_params(&session), json!({"takeover": true})));
    let error = old.answer(pending).expect_err("the session is another connection's now");
    assert_error(&error, -32600, "sessionResumedElsewhere");
    assert_eq!(error.message, "session has been resumed by another connection");
    let (code, reason) = old.wait_closed().expect("a close frame");
    assert_eq!((code, reason.as_str()), (1008, "session has been resumed by another connection"));
    assert_eq!(new.terminate("p")["running"], true);
}

#[test]
fn a_takeover_moves_pushes_and_leaves_no_byte_behind() {
    let (server, mut old, session) = TestServer::with_modern_client();
    old.start(cat("p"));
    old.write("p", b"one\n");
    old.wait_output("p", "one\n");
    let mut new = server.connect();
    new.initialize_with(with(with(modern(), resume_params(&session)), json!({"takeover": true})));
    // Nothing was acknowledged, so the output is sent again from the beginning.
    assert_eq!(new.wait_output("p", "one\n"), "one\n");
    new.write("p", b"two\n");
    assert_eq!(new.wait_output("p", "two\n"), "two\n");
    old.wait_closed();
}

#[test]
fn transport_disconnect_detaches_session_during_in_flight_read() {
    let (server, mut client, session) = TestServer::with_session();
    client.start(sh("p", "exec sleep 1000"));
    client.send_request("process/read", json!({"processId": "p", "waitMs": 600_000}));
    drop(client);
    let begun = Instant::now();
    server.resume(&session, json!({})).assert_alive();
    assert!(begun.elapsed() < Duration::from_secs(5), "the old long poll holds nothing up");
}

#[test]
fn a_resumed_reference_client_reads_first_and_is_pushed_what_follows() {
    let (server, mut client, session) = TestServer::with_session();
    let gate = fifo(server.dir(), "gate");
    client.start(piped("r", &format!("echo one; read x <{gate}; echo two; read x; echo three")));
    assert_eq!(client.expect("process/output")["seq"], 1);
    drop(client);
    release(&gate);
    let mut client = server.resume(&session, json!({}));
    let result = client.ok("process/read", json!({"processId": "r", "afterSeq": 1, "waitMs": 20_000}));
    assert_eq!(result["chunks"], json!([{"seq": 2, "stream": "stdout", "chunk": encode_base64(b"two\n")}]));
    client.write("r", b"\n");
    // Pushes start after the last number that was read, so 2 is not sent again.
    let ended = client.collect("r");
    assert_eq!((ended.stdout.as_slice(), ended.seqs), (b"three\n".as_slice(), vec![3, 4, 5]));
}

#[test]
fn a_resumed_reference_client_that_does_not_read_is_pushed_what_it_was_not_sent() {
    let (server, mut client, session) = TestServer::with_session();
    let gate = fifo(server.dir(), "gate");
    client.start(sh("r", &format!("echo one; read x <{gate}; echo two")));
    assert_eq!(client.expect("process/output")["seq"], 1);
    // Close the connection properly: output sent before the server notices a mere drop would count as sent.
    client.leave();
    release(&gate);
    let begun = Instant::now();
    let mut client = server.resume(&session, json!({}));
    let ended = client.collect("r");
    assert!(begun.elapsed() >= Duration::from_millis(900), "it had a second to read");
    assert_eq!((ended.stdout.as_slice(), ended.seqs), (b"two\n".as_slice(), vec![2, 3, 4]));
}

#[test]
fn a_resumed_reference_client_does_not_block_the_process_with_what_it_has_read() {
    // The log has room for 20 MiB. The 12 MiB from before the restart must make room for the rest.
    let script = "head -c 12582912 /dev/zero; read x; head -c 33554432 /dev/zero";
    for reads in [1, 2] {
        let mut server = TestServer::builder().keep_holders().start();
        let mut client = server.connect();
        let session = client.initialize();
        client.start(piped("r", script));
        let (mut bytes, mut seq) = (0, Value::Null);
        while bytes < 12 << 20 {
            let output = client.expect("process/output");
            bytes += decoded(&output["chunk"]).len();
            seq = output["seq"].clone();
        }
        server.restart();
        let mut client = server.resume(&session, json!({}));
        for _ in 0..reads {
            client.ok("process/read", json!({"processId": "r", "afterSeq": seq, "waitMs": 0}));
        }
        client.write("r", b"\n");
        assert_eq!(client.collect("r").stdout.len(), 32 << 20, "{reads}");
    }
}

#[test]
fn a_resumed_client_with_acknowledgements_gets_everything_after_the_last_one() {
    let (server, mut client, session) = TestServer::with_modern_client();
    client.start(cat("p"));
    for line in ["1\n", "2\n", "3\n", "4\n"] {
        client.write("p", line);
        client.wait_output("p", line);
    }
    client.ack("p", 2);
    client.assert_alive();
    drop(client);
    let mut client = server.resume(&session, modern());
    let output = client.expect("process/output");
    assert_eq!((&output["seq"], &output["offset"]), (&json!(3), &json!(4)));
    assert_eq!(client.expect("process/output")["seq"], 4);
}

#[test]
fn processes_that_start_and_end_while_nobody_listens_are_told_later() {
    let (server, mut client, session) = TestServer::with_modern_client();
    let pids: BTreeSet<u32> =
        (0..5).map(|i| pid_of(&client.start(sh(&format!("p{i}"), &format!("echo {i}; exit {i}"))))).collect();
    drop(client);
    wait_gone("the processes", &pids);
    let mut client = server.resume(&session, modern());
    for i in 0..5 {
        let ended = client.collect(&format!("p{i}"));
        assert_eq!((String::from_utf8_lossy(&ended.stdout).trim_end(), ended.code()), (i.to_string().as_str(), i));
        assert_eq!(ended.seqs, [1, 2, 3]);
    }
}

#[test]
fn an_expired_session_says_so_and_what_it_ended() {
    let (server, mut client) = TestServer::with_connection();
    let params = json!({"clientName": "test", "ttlMs": 100});
    let session = client.initialize_with(params)["sessionId"].as_str().expect("an id").to_owned();
    let pid = pid_of(&client.start(sh("gone-with-it", "exec sleep 1000")));
    drop(client);
    wait_pid_gone(pid);
    let mut client = server.connect();
    let mut said = None;
    wait_for("news of the expiry", || {
        let error = client.fails("initialize", resume_params(&session));
        let is_expired = error.kind() == "sessionExpired";
        said = Some(error);
        is_expired
    });
    let error = said.expect("an error");
    assert_eq!(error.code, -32600);
    assert!(error.message.contains("gone-with-it"), "{}", error.message);
}

#[test]
fn an_expired_session_without_processes_says_so_too() {
    let (server, mut client) = TestServer::with_connection();
    let session = client.initialize_with(json!({"clientName": "test", "ttlMs": 0}))["sessionId"].clone();
    drop(client);
    let mut client = server.connect();
    let mut kind = String::new();
    // Look from another session, so that looking does not attach.
    client.initialize();
    wait_for("expiry", || {
        let error = client.fails("process/read", json!({"processId": "p", "sessionId": session}));
        kind = error.kind().to_owned();
        kind != "unknownProcess"
    });
    assert_eq!(kind, "sessionExpired");
}

#[test]
fn no_session_outlives_the_bound_of_the_server() {
    let server = TestServer::builder().arg("--session-ttl").arg("1s").start();
    let mut client = server.connect();
    client.initialize_with(json!({"clientName": "test", "ttlMs": "none"}));
    let pid = pid_of(&client.start(sh("p", "exec sleep 1000")));
    drop(client);
    wait_pid_gone(pid);
}

#[test]
fn the_clock_of_a_session_stands_still_while_it_is_attached() {
    let (_server, mut client) = TestServer::with_connection();
    client.initialize_with(json!({"clientName": "test", "ttlMs": 50}));
    client.start(piped("p", "read x; echo still here"));
    // Longer than the time-to-live plus the interval of the sweep.
    let read = client.ok("process/read", json!({"processId": "p", "waitMs": 1300}));
    assert_eq!(read["exited"], false);
    client.write("p", b"\n");
    assert_eq!(client.collect("p").stdout, b"still here\n");
}

#[test]
fn every_form_of_time_to_live_is_taken() {
    let server = TestServer::start();
    for ttl in [json!("none"), json!(0), json!(1), json!(u64::MAX), json!(null)] {
        let mut client = server.connect();
        client.initialize_with(json!({"clientName": "test", "ttlMs": ttl}));
        assert_eq!(client.run("p", &["true"]).code(), 0);
        client.ok("session/end", json!({}));
    }
}

#[test]
fn the_end_of_a_session_ends_its_processes_and_its_name() {
    let (server, mut client, session) = TestServer::with_session();
    let mut pids = BTreeSet::new();
    for id in ["p", "q"] {
        pids.insert(pid_of(&client.start(sh(id, "trap '' TERM; while :; do sleep 0.01; done"))));
    }
    client.start(sh("daemon", "setsid sleep 1000 & echo $!.; exit 0"));
    let said = client.wait_output("daemon", ".");
    pids.insert(said.trim_end().trim_end_matches('.').parse().expect("a pid"));
    assert_eq!(client.ok("session/end", json!({})), json!({}));
    wait_gone("everything of the session", &pids);
    client.wait_closed();
    let mut client = server.connect();
    client.refuses("initialize", resume_params(&session), -32600, "unknownSession");
    client.initialize();
    assert_eq!(client.ok("process/list", json!({"scope": "all"}))["processes"], json!([]));
}

#[test]
fn a_session_survives_the_server() {
    let mut server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.session();
    let url = server.url().to_owned();
    let gate = fifo(server.dir(), "gate");
    let started = client.start(sh("p", &format!("echo one; read x <{gate}; echo two; exit 6")));
    client.wait_output("p", "one\n");
    server.restart();
    assert_eq!(server.url(), url, "the same token and port");
    release(&gate);
    let mut client = server.resume(&session, json!({}));
    let listed = client.processes()[0].clone();
    assert_eq!((&listed["pid"], &listed["processId"]), (&started["pid"], &json!("p")));
    let (bytes, last) = client.poll("p", None);
    assert_eq!((bytes.as_slice(), &last["exitCode"]), (b"one\ntwo\n".as_slice(), &json!(6)));
    assert_eq!(chunk_bytes(&client.ok("process/read", process("p"))).len(), 8);
    client.ok("session/end", json!({}));
}

// A new holder did not get the time-to-live: if the server was killed during the first attachment, it was 10 minutes instead of the
// requested time.
#[test]
fn a_short_time_to_live_of_the_first_attachment_survives_a_kill_of_the_server() {
    let mut server = TestServer::builder().keep_holders().start();
    let mut client = server.connect();
    client.initialize_with(json!({"clientName": "test", "ttlMs": 1500}));
    let pid = pid_of(&client.start(sh("p", "exec sleep 1000")));
    let all = BTreeSet::from([pid, server.holder()]);
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
    let session = client.open_session(json!({"clientName": "test", "ttlMs": "none"}));
    let pid = pid_of(&client.start(sh("p", "exec sleep 1000")));
    server.restart();
    // Look from another session, so that looking does not attach.
    let listed = server.client().ok("process/list", json!({"scope": "all"}))["processes"].clone();
    assert_eq!((&listed[0]["sessionId"], &listed[0]["pid"]), (&json!(session), &json!(pid)));
    let mut client = server.resume(&session, json!({}));
    client.ok("session/end", json!({}));
    wait_pid_gone(pid);
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
    let (mut silent, session) = server.session();
    only_winner(race(&server, &session)).assert_alive();
    assert_eq!(silent.wait_closed().map(|(code, _)| code), Some(1008));
}

// The same for a detached session.
#[test]
fn of_two_resumes_of_a_detached_session_one_wins() {
    let (server, mut client, session) = TestServer::with_session();
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
        let (mut client, _) = server.modern_client();
        client.start(sh("p", "exec sleep 1000"));
        let end = client.send_request("session/end", json!({}));
        let ack = json!({"method": "process/ack", "params": {"processId": "p", "seq": 1}}).to_string();
        for _ in 0..300 {
            client.send_message(Message::text(ack.as_str())).expect("the server still reads");
        }
        assert_eq!(client.answer(end), Ok(json!({})));
        assert_eq!(client.wait_closed().map(|(code, _)| code), Some(1000));
    }
    for _ in 0..5 {
        let (mut client, _) = server.modern_client();
        client.start(start_params("p", &["yes"]));
        let mut end = None;
        for turn in 0.. {
            let message = client.next();
            if end.is_some_and(|end| message["id"] == end) {
                assert_eq!(message["result"], json!({}));
                break;
            }
            client.ack("p", message["params"]["seq"].clone());
            if turn == 20 {
                end = Some(client.send_request("session/end", json!({})));
            }
        }
        assert_eq!(client.wait_closed().map(|(code, _)| code), Some(1000));
    }
}

/// Ending a session with processes reported their loss before the answer: exits that never happened, with a made-up code.
#[test]
fn the_end_of_a_session_is_answered_without_made_up_exits() {
    let server = TestServer::start();
    for _ in 0..10 {
        let (mut client, _) = server.modern_client();
        for name in ["a", "b", "c"] {
            client.start(sh(name, "exec sleep 1000"));
        }
        let id = client.send_request("session/end", json!({}));
        assert_eq!(client.next(), json!({"id": id, "result": {}}));
    }
}

// A forgotten process whose log a reader still held came back under its id after a restart, and hid the newer process with that id.
#[test]
fn a_name_is_that_of_the_later_process_after_a_restart() {
    let mut server = TestServer::builder().keep_holders().start();
    let (mut owner, session) = server.modern_client();
    let (mut reader, _) = server.modern_client();
    // The first slot becomes free for the later process with the same id.
    owner.run("first", &["true"]);
    owner.start(piped("p", "read x; head -c 9000000 /dev/zero; exit 4"));
    reader.ok("process/subscribe", json!({"processId": "p", "sessionId": session, "hold": true}));
    owner.write("p", b"\n");
    assert_eq!(owner.collect_acked("p").stdout.len(), 9_000_000);
    owner.ok("process/forget", process("p"));
    owner.ok("process/forget", process("first"));
    let pid = pid_of(&owner.start(piped("p", "read x; exit 5")));
    server.restart();
    let mut owner = server.resume(&session, modern());
    let listed = owner.processes().clone();
    assert_eq!((&listed[0]["pid"], listed.as_array().map(Vec::len)), (&json!(pid), Some(1)), "{listed}");
    owner.write("p", b"\n");
    assert_eq!(owner.expect("process/exited")["exitCode"], 5);
}

#[test]
fn d11_1_7_a_quick_resume_never_ends_up_without_notifications() {
    let (server, mut client, session) = TestServer::with_modern_client();
    client.start(cat("p"));
    for round in 0..30 {
        drop(client);
        client = server.resume(&session, modern());
        let line = format!("{round}\n");
        client.write("p", &line);
        client.wait_output("p", &line);
        let seq = client.ok("process/read", process("p"))["nextSeq"].as_u64().expect("a number") - 1;
        client.ack("p", seq);
    }
}

#[test]
fn d11_2_6_a_session_is_handed_over_when_its_peer_is_only_half_there() {
    let (server, mut dead, session) = TestServer::with_session();
    dead.start(cat("p"));
    // The old connection stays open and answers no ping, like a peer behind a dead link.
    let begun = Instant::now();
    let mut client = server.resume(&session, json!({}));
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(1900) && waited < Duration::from_secs(10), "{waited:?}");
    client.write("p", b"mine\n");
    client.ok("process/read", json!({"processId": "p", "waitMs": 20_000}));
    // The old connection gets a close frame when it reads again.
    let (code, _) = dead.wait_closed().expect("a close frame");
    assert_eq!(code, 1008);
}

#[test]
fn d11_2_9_a_start_whose_connection_went_away_leaves_no_name_behind() {
    let (server, mut client, session) = TestServer::with_session();
    for round in 0..20 {
        let id = format!("p{round}");
        client.send_request("process/start", sh(&id, "exec sleep 1000"));
        drop(client);
        client = server.resume(&session, json!({}));
        // The start has either not happened at all, or the process runs.
        match client.call("process/read", process(&id)) {
            Ok(read) => {
                assert_eq!(read["exited"], false);
                assert_eq!(client.terminate(&id)["running"], true);
            }
            Err(error) => {
                assert_error(&error, -32600, "unknownProcess");
                client.start(sh(&id, "exec sleep 1000"));
                client.terminate(&id);
            }
        }
    }
}
