//! Further regression tests: lost holders, forgotten processes and late adoptions. Each comment describes the former behaviour.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::wire::mischief::{Stopped, collect_acked, holder, initialize, send_signal, write};
use testkit::{TestServer, assert_error, decode_base64, modern, piped, process, sh, wait_for};

// The part of a write that a dead holder was processing kept the stdin queue busy forever: a later write was never answered.
#[test]
fn a_write_behind_one_that_was_lost_is_answered_too() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", piped("p", "exec sleep 1000"));
    // More than its stdin buffers, so the holder still has it when it is killed.
    let waiting = client.send_request("process/write", write("p", &[b'x'; 200_000]));
    client.assert_alive();
    send_signal(holder(&server), Signal::KILL);
    assert_error(&client.answer(waiting).expect_err("the holder is gone"), -32603, "holderLost");
    assert_eq!(client.collect("p").exited["cause"], "lost");
    assert_error(&client.fails("process/write", write("p", b"late")), -32603, "holderLost");
    assert_error(&client.fails("process/closeStdin", process("p")), -32603, "holderLost");
}

// Acknowledgements were looked up by id: after `process/forget` they were ignored, and a holding subscriber got stuck at its window.
#[test]
fn a_subscriber_that_holds_gets_more_than_its_window_after_the_owner_forgot() {
    let server = TestServer::start();
    let (mut owner, mut reader) = (server.connect(), server.connect());
    let session = initialize(&mut owner, modern());
    reader.initialize_with(modern());
    owner.ok("process/start", piped("p", "read x; head -c 9000000 /dev/zero; exit 4"));
    reader.ok("process/subscribe", json!({"processId": "p", "sessionId": session, "hold": true}));
    owner.ok("process/write", write("p", b"\n"));
    assert_eq!(collect_acked(&mut owner, "p").stdout.len(), 9_000_000);
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
    let server = TestServer::start();
    let (mut owner, mut reader) = (server.connect(), server.connect());
    let session = initialize(&mut owner, modern());
    reader.initialize_with(modern());
    owner.ok("process/start", piped("p", "read x; head -c 9000000 /dev/zero; exit 4"));
    reader.ok("process/subscribe", json!({"processId": "p", "sessionId": session}));
    owner.ok("process/write", write("p", b"\n"));
    collect_acked(&mut owner, "p");
    owner.ok("process/forget", process("p"));
    let ended = reader.collect("p");
    assert_eq!((ended.code(), &ended.closed["outputBytes"]), (4, &json!(9_000_000)));
}

// A holder that missed the deadline of the adoption was never contacted again: its client got `unknownSession` while its processes ran.
#[test]
fn a_holder_that_goes_on_after_the_adoption_is_found_again() {
    let mut server = TestServer::builder().keep_holders().start();
    let mut client = server.connect();
    let session = client.initialize();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let stopped = Stopped::new(holder(&server));
    server.restart();
    drop(stopped);
    let params = json!({"clientName": "test", "resumeSessionId": session});
    let mut client = server.connect();
    wait_for("the session to be known again", || client.call("initialize", params.clone()).is_ok());
}

/// A server that was stopped could not read in that time. It must not take its own pause for silence of its clients.
#[test]
fn a_server_that_was_stopped_does_not_take_quiet_clients_for_dead() {
    let server = TestServer::builder().arg("--ping-every=200ms").arg("--dead-after=400ms").start();
    let mut client = server.client();
    client.run("before", &["/bin/true"]);
    server.signal(Signal::STOP);
    assert_eq!(client.next_notification_within(Duration::from_secs(1)), None);
    server.signal(Signal::CONT);
    // The server checks its peers twice in this time.
    assert_eq!(client.next_notification_within(Duration::from_millis(300)), None);
    client.run("after", &["/bin/true"]);
}

/// Ending a session with processes reported their loss before the answer: exits that never happened, with a made-up code.
#[test]
fn the_end_of_a_session_is_answered_without_made_up_exits() {
    let server = TestServer::start();
    for _ in 0..10 {
        let mut client = server.connect();
        client.initialize_with(modern());
        for name in ["a", "b", "c"] {
            client.ok("process/start", sh(name, "exec sleep 1000"));
        }
        let id = client.send_request("session/end", json!({}));
        assert_eq!(client.next(), json!({"id": id, "result": {}}));
    }
}
