//! More than one reader: `process/list`, other sessions of the same principal, subscriptions, `process/forget`.

use crate::prelude::*;

/// A server, the owner of a session with the session's id, and another client.
fn owner_and_other() -> (TestServer, Client, String, Client) {
    let (server, owner, session) = TestServer::with_modern_client();
    let (other, _) = server.modern_client();
    (server, owner, session, other)
}

fn of(session: &str, id: &str) -> Value {
    json!({"processId": id, "sessionId": session})
}

#[test]
fn a_list_tells_everything_about_a_process() {
    let (_server, mut client, session) = TestServer::with_modern_client();
    assert_eq!(client.ok("process/list", json!({})), json!({"processes": []}));
    let pid = pid_of(&client.start(with(tty("a", "printf 12345; exec sleep 1000"), json!({"cwd": "file:///tmp"}))));
    client.wait_output("a", "12345");
    let info = client.ok("process/list", json!({"scope": "session"}))["processes"][0].clone();
    assert!(info["startedAtMs"].as_u64().is_some_and(|ms| ms > 1_600_000_000_000), "{info}");
    let started = info["startedAtMs"].clone();
    assert_eq!(
        info,
        json!({
            "processId": "a", "sessionId": session, "pid": pid, "argv": ["/bin/sh", "-c", "printf 12345; exec sleep 1000"],
            "cwd": "/tmp", "tty": true, "startedAtMs": started, "exited": false, "exit": null, "closed": false,
            "nextSeq": 2, "outputBytes": 5, "retainedBytes": 5, "droppedBytes": 0, "blocked": null,
        })
    );
    client.terminate("a");
    client.collect("a");
    let info = client.processes()[0].clone();
    assert_eq!((&info["exited"], &info["closed"], &info["nextSeq"]), (&json!(true), &json!(true), &json!(4)));
    assert_eq!((&info["exit"]["exitCode"], &info["exit"]["cause"]), (&json!(137), &json!("terminated")));
    assert!(info["exit"]["usage"]["userMs"].is_u64());
}

#[test]
fn a_list_reaches_one_session_or_all_of_them() {
    let server = TestServer::start();
    let ((mut one, a), (mut two, b)) = (server.modern_client(), server.modern_client());
    one.start(sh("p", "exec sleep 1000"));
    two.start(sh("p", "exec sleep 1000"));
    two.start(sh("q", "exec sleep 1000"));
    let mut names = |scope: Value| -> Vec<Value> {
        let list = one.ok("process/list", json!({"scope": scope}));
        let pair = |info: &Value| json!([info["sessionId"], info["processId"]]);
        list["processes"].as_array().expect("a list").iter().map(pair).collect()
    };
    assert_eq!(names(Value::Null), [json!([a, "p"])]);
    assert_eq!(names(json!("all")), [json!([a, "p"]), json!([b, "p"]), json!([b, "q"])], "the oldest first");
}

#[test]
fn a_process_of_another_session_can_be_read_written_and_steered() {
    let (_server, mut owner, session, mut other) = owner_and_other();
    let traps = "trap 'stty size' WINCH; trap 'exit 9' USR1";
    owner.start(tty("p", &format!("read x; echo got $x; {traps}; echo up; while :; do sleep 0.01; done")));
    other.ok("process/write", with(of(&session, "p"), json!({"chunk": encode_base64(b"it\n")})));
    owner.wait_output("p", "up");
    let read = other.ok("process/read", of(&session, "p"));
    assert!(String::from_utf8_lossy(&chunk_bytes(&read)).contains("got it"));
    other.ok("process/resize", with(of(&session, "p"), json!({"rows": 7, "cols": 8})));
    owner.wait_output("p", "7 8");
    assert_eq!(other.ok("process/closeStdin", of(&session, "p"))["status"], "accepted");
    other.ok("process/signal", with(of(&session, "p"), json!({"signal": "usr1"})));
    assert_eq!(owner.collect("p").code(), 9);
    owner.start(cat("q"));
    assert_eq!(other.ok("process/terminate", of(&session, "q"))["running"], true);
    assert_eq!(owner.collect("q").code(), 137);
    // Without a session id the process id refers to the client's own session. An unknown session has no process.
    other.refuses("process/read", process("p"), -32600, "unknownProcess");
    for (method, more) in [
        ("process/read", json!({})),
        ("process/write", json!({"chunk": ""})),
        ("process/signal", json!({"signal": "TERM"})),
        ("process/terminate", json!({})),
        ("process/closeStdin", json!({})),
        ("process/resize", json!({"rows": 1, "cols": 1})),
        ("process/subscribe", json!({})),
        ("process/forget", json!({})),
    ] {
        other.refuses(method, with(of("unknown", "p"), more), -32600, "unknownSession");
    }
    // Naming one's own session is allowed.
    let own = owner.ok("process/read", of(&session, "q"));
    assert_eq!(own["exitCode"], 137);
}

#[test]
fn a_subscription_pushes_another_session_s_process_from_a_number_on() {
    let (_server, mut owner, session, mut other) = owner_and_other();
    owner.start(cat("p"));
    for line in ["1\n", "2\n", "3\n"] {
        owner.write("p", line);
        owner.wait_output("p", line);
    }
    let result = other.ok("process/subscribe", with(of(&session, "p"), json!({"afterSeq": 1})));
    assert_eq!(result, json!({"firstSeq": 1, "nextSeq": 4}));
    for seq in [2, 3] {
        let output = other.expect("process/output");
        assert_eq!((&output["seq"], &output["sessionId"]), (&json!(seq), &json!(session)));
    }
    owner.write("p", b"4\n");
    assert_eq!(other.expect("process/output")["seq"], 4);
    owner.close_stdin("p");
    let exited = other.expect("process/exited");
    assert_eq!((&exited["sessionId"], &exited["seq"]), (&json!(session), &json!(5)));
    let closed = other.expect("process/closed");
    assert_eq!((&closed["sessionId"], &closed["seq"], &closed["outputBytes"]), (&json!(session), &json!(6), &json!(8)));
    // The owner received the same events, without `sessionId`.
    let ended = owner.collect("p");
    assert_eq!((ended.exited["sessionId"].clone(), ended.seqs), (Value::Null, vec![4, 5, 6]));
    other.refuses("process/subscribe", of(&session, "none"), -32600, "unknownProcess");
    owner.refuses("process/subscribe", of(&session, "p"), -32602, "invalidParams");
}

#[test]
fn an_ended_subscription_pushes_nothing_more() {
    let (_server, mut owner, session, mut other) = owner_and_other();
    owner.start(cat("p"));
    other.ok("process/subscribe", of(&session, "p"));
    owner.write("p", b"1\n");
    assert_eq!(other.expect("process/output")["seq"], 1);
    assert_eq!(other.ok("process/unsubscribe", of(&session, "p")), json!({}));
    assert_eq!(other.ok("process/unsubscribe", of(&session, "p")), json!({}), "twice is once");
    owner.write("p", b"2\n");
    owner.wait_output("p", "2\n");
    assert_eq!(other.next_notification_within(Duration::from_millis(100)), None);
    // The owner's own pushes are not a subscription, so `unsubscribe` does not stop them.
    owner.ok("process/unsubscribe", process("p"));
    owner.write("p", b"3\n");
    owner.wait_output("p", "3\n");
}

#[test]
fn a_closed_process_can_still_be_subscribed_to() {
    let (_server, mut owner, session, mut other) = owner_and_other();
    owner.run_params(sh("p", "echo whole; exit 3"));
    other.ok("process/subscribe", of(&session, "p"));
    let ended = other.collect("p");
    assert_eq!((ended.stdout.as_slice(), ended.code(), ended.seqs), (b"whole\n".as_slice(), 3, vec![1, 2, 3]));
}

#[test]
fn an_observer_holds_nobody_back_and_hears_of_what_it_missed() {
    let (_server, mut owner, session, mut other) = owner_and_other();
    owner.start(sh("p", "read x; head -c 24000000 /dev/zero"));
    owner.start(with(sh("q", "head -c 24000000 /dev/zero"), json!({})));
    // The owner takes everything; the observer subscribes when most of it is gone.
    let taken = drain(&mut owner, "q");
    assert_eq!(taken, 24_000_000);
    let result = other.ok("process/subscribe", of(&session, "q"));
    let first = result["firstSeq"].as_u64().expect("a number");
    assert!(first > 1, "{result}");
    let gap = other.expect("process/gap");
    assert_members(&gap, json!({"fromSeq": 1, "sessionId": session, "toSeq": first - 1}));
    let ended = other.collect("q");
    assert_eq!(ended.stdout.len() as u64 + gap["bytes"].as_u64().expect("bytes"), 24_000_000);
}

/// Receives and acknowledges a process to its end; returns the number of bytes.
fn drain(client: &mut Client, id: &str) -> u64 {
    let mut bytes = 0;
    loop {
        let message = client.next_notification();
        let params = &message["params"];
        if params["processId"] != id {
            continue;
        }
        client.ack(id, params["seq"].clone());
        match message["method"].as_str() {
            Some("process/output") => bytes += decode_base64(params["chunk"].as_str().expect("a chunk")).len() as u64,
            Some("process/closed") => return bytes,
            _ => {}
        }
    }
}

#[test]
fn a_holding_subscriber_keeps_output_until_it_took_it_or_left() {
    let (_server, mut owner, session, mut other) = owner_and_other();
    owner.start(cat("gate"));
    owner.start(with(sh("p", "read x; exec head -c 30000000 /dev/zero"), json!({"pipeStdin": true})));
    other.ok("process/subscribe", with(of(&session, "p"), json!({"hold": true})));
    owner.write("p", b"\n");
    // The owner takes everything it is sent, and the child still blocks, because of the subscriber.
    let mut bytes = 0;
    let mut is_held = false;
    while !is_held {
        while let Some(message) = owner.next_notification_within(Duration::from_millis(20)) {
            let params = &message["params"];
            bytes += decode_base64(params["chunk"].as_str().expect("only output comes")).len();
            owner.ack("p", params["seq"].clone());
        }
        let list = owner.processes().clone();
        let info = list.as_array().expect("a list").iter().find(|info| info["processId"] == "p").cloned();
        is_held = info.is_some_and(|info| info["blocked"] == "memoryCap");
    }
    assert!(bytes < 30_000_000);
    drop(other);
    assert_eq!(bytes as u64 + drain(&mut owner, "p"), 30_000_000);
}

#[test]
fn a_closed_process_can_be_forgotten_and_no_other() {
    let (server, mut client, session) = TestServer::with_modern_client();
    client.start(cat("p"));
    client.refuses("process/forget", process("p"), -32600, "processNotClosed");
    client.refuses("process/forget", process("none"), -32600, "unknownProcess");
    client.close_stdin("p");
    client.collect("p");
    assert_eq!(client.ok("process/forget", process("p")), json!({}));
    client.refuses("process/forget", process("p"), -32600, "unknownProcess");
    client.refuses("process/read", process("p"), -32600, "unknownProcess");
    assert_eq!(client.processes(), json!([]));
    // The id is free again, and its numbers start at 1. A client of another session may also forget a process.
    assert_eq!(client.run("p", &["true"]).seqs, [1, 2]);
    let (mut other, _) = server.modern_client();
    assert_eq!(other.ok("process/forget", of(&session, "p")), json!({}));
    assert_eq!(client.processes(), json!([]));
}

#[test]
fn a_process_is_forgotten_by_itself_once_its_owner_has_taken_everything() {
    let (_server, mut client, _) = TestServer::with_modern_client();
    client.start(with(sh("p", "echo out; exit 3"), json!({"autoForget": true})));
    let ended = client.collect("p");
    assert_eq!((ended.stdout.as_slice(), &ended.exited["exitCode"]), (b"out\n".as_slice(), &json!(3)));
    // Not acknowledged yet, so the process still exists and its id is taken.
    client.refuses("process/start", sh("p", "true"), -32600, "duplicateProcess");
    client.run("stays", &["true"]);
    client.ack("p", ended.seqs.last().copied());
    let names = |list: &Value| -> Vec<String> {
        let all = list["processes"].as_array().expect("a list");
        all.iter().filter_map(|process| process["processId"].as_str().map(str::to_owned)).collect()
    };
    wait_for("it to be forgotten", || names(&client.ok("process/list", json!({}))) == ["stays"]);
}

#[test]
fn a_detached_process_is_forgotten_by_itself_when_its_last_reader_has_left() {
    let (server, mut owner, session, mut reader) = owner_and_other();
    let (mut other, _) = server.modern_client();
    owner.start(with(sh("p", "read x; echo end"), json!({"autoForget": true, "pipeStdin": true})));
    reader.ok("process/subscribe", of(&session, "p"));
    owner.leave();
    other.ok("process/write", with(of(&session, "p"), json!({"chunk": encode_base64(b"\n")})));
    for event in ["process/output", "process/exited", "process/closed"] {
        reader.expect(event);
    }
    let listed = |client: &mut Client| {
        let list = client.ok("process/list", json!({"scope": "all"}));
        list["processes"].as_array().expect("a list").len()
    };
    assert_eq!(listed(&mut other), 1, "it has a reader");
    reader.leave();
    wait_for("it to be forgotten", || listed(&mut other) == 0);
}

#[test]
fn acknowledgements_of_an_observer_free_nothing() {
    let (_server, mut owner, session, mut other) = owner_and_other();
    owner.start(sh("p", "head -c 24000000 /dev/zero"));
    other.ok("process/subscribe", of(&session, "p"));
    wait_for("the child to be held", || owner.processes()[0]["blocked"] == "memoryCap");
    other.notify("process/ack", json!({"processId": "p", "sessionId": session, "seq": 1_000_000}));
    other.assert_alive();
    // Nothing that the owner has not taken is gone.
    assert_eq!(owner.ok("process/read", json!({"processId": "p", "maxBytes": 1}))["firstSeq"], 1);
    assert_eq!(drain(&mut owner, "p"), 24_000_000);
}

/// A session with a short time-to-live, and one process in it.
fn short_lived(server: &TestServer, script: &str) -> (Client, String) {
    let mut owner = server.connect();
    let answer = owner.initialize_with(with(modern(), json!({"ttlMs": 700})));
    owner.start(sh("p", script));
    (owner, answer["sessionId"].as_str().expect("an id").to_owned())
}

#[test]
fn reading_a_process_keeps_its_session_alive() {
    let server = TestServer::start();
    // The output comes long after the time-to-live of the session.
    let script = "sleep 2.5; echo late; exec sleep 1000";
    let ((one, subscribed), (two, polled)) = (short_lived(&server, script), short_lived(&server, script));
    let (mut reader, _) = server.modern_client();
    reader.ok("process/subscribe", with(of(&subscribed, "p"), json!({"hold": true})));
    let id = reader.send_request("process/read", with(of(&polled, "p"), json!({"waitMs": 15_000})));
    // This answer comes after the server has received the read, which waits.
    reader.ok("environment/status", json!({}));
    drop((one, two));
    let answer = reader.answer(id).expect("the session lives");
    assert_eq!(chunk_bytes(&answer), b"late\n");
    let pushed = reader.next_notification();
    assert_eq!((&pushed["method"], &pushed["params"]["sessionId"]), (&json!("process/output"), &json!(subscribed)));
    // Without a reader both sessions expire; listing them is not a use.
    reader.ok("process/unsubscribe", of(&subscribed, "p"));
    wait_for("both to expire", || reader.ok("process/list", json!({"scope": "all"}))["processes"] == json!([]));
}

// `process/forget` dropped the log while a holding subscriber still needed it: the subscriber got a gap of 8 MB, and then neither exit nor
// close.
#[test]
fn a_subscriber_that_holds_gets_everything_after_the_owner_forgot() {
    let (_server, mut owner, session, mut reader) = owner_and_other();
    // Each is within the acknowledgement window; together they are more than the sockets buffer.
    let ids = ["a", "b", "c", "d", "e"];
    let mut seqs = Vec::new();
    for id in ids {
        owner.start(piped(id, "read x; head -c 4000000 /dev/zero; exit 4"));
        reader.ok("process/subscribe", json!({"processId": id, "sessionId": session, "hold": true}));
        owner.write(id, b"\n");
        let whole = owner.collect_acked(id);
        assert_eq!(whole.stdout.len(), 4_000_000);
        seqs.push(whole.seqs);
    }
    for id in ids {
        owner.ok("process/forget", process(id));
        owner.refuses("process/read", process(id), -32600, "unknownProcess");
    }
    for (id, seqs) in ids.into_iter().zip(seqs) {
        let held = reader.collect(id);
        assert_eq!((held.stdout.len(), held.code(), held.seqs), (4_000_000, 4, seqs), "{id}");
    }
    // The ids are free.
    owner.start(start_params("a", &["echo", "again"]));
    assert_eq!(owner.collect_acked("a").stdout, b"again\n");
}

// Acknowledgements were looked up by id: after `process/forget` they were ignored, and a holding subscriber got stuck at its window.
#[test]
fn a_subscriber_that_holds_gets_more_than_its_window_after_the_owner_forgot() {
    let (_server, mut owner, session, mut reader) = owner_and_other();
    owner.start(piped("p", "read x; head -c 9000000 /dev/zero; exit 4"));
    reader.ok("process/subscribe", json!({"processId": "p", "sessionId": session, "hold": true}));
    owner.write("p", b"\n");
    assert_eq!(owner.collect_acked("p").stdout.len(), 9_000_000);
    owner.ok("process/forget", process("p"));
    let mut bytes = 0;
    loop {
        let message = reader.next_notification();
        let params = &message["params"];
        match params["chunk"].as_str() {
            Some(chunk) => bytes += decode_base64(chunk).len(),
            None if message["method"] == "process/closed" => break,
            None => assert_eq!(message["method"], "process/exited"),
        }
        reader.notify("process/ack", json!({"processId": "p", "sessionId": session, "seq": params["seq"]}));
    }
    assert_eq!(bytes, 9_000_000);
}

// A subscriber without `hold` got a gap up to the close of a forgotten process, but neither its exit nor its close.
#[test]
fn a_subscriber_that_does_not_hold_is_told_the_end_of_a_forgotten_process() {
    let (_server, mut owner, session, mut reader) = owner_and_other();
    owner.start(piped("p", "read x; head -c 9000000 /dev/zero; exit 4"));
    reader.ok("process/subscribe", json!({"processId": "p", "sessionId": session}));
    owner.write("p", b"\n");
    owner.collect_acked("p");
    owner.ok("process/forget", process("p"));
    let ended = reader.collect("p");
    assert_eq!((ended.code(), &ended.closed["outputBytes"]), (4, &json!(9_000_000)));
}
