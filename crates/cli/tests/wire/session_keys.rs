//! Sessions that a client names by its own key, with requests sent together with the handshake (PROTOCOL.md, `initialize`).

use crate::prelude::*;

const KEY: &str = "a-key_of-this-test-1";

fn keyed(key: &str, attempt: u64) -> Value {
    let capabilities = json!({"ack": true, "gap": true});
    json!({
        "clientName": "test", "sessionKey": key, "attempt": attempt, "resumeSessionId": key,
        "takeover": attempt > 1, "capabilities": capabilities,
    })
}

/// Sends the handshake and a start at once. Returns the answers to `initialize` and to the start.
fn start_at_once(
    client: &mut Client,
    initialize: Value,
    start: Value,
) -> (Result<Value, RpcError>, Result<Value, RpcError>) {
    let initializing = client.send_request("initialize", initialize);
    client.notify("initialized", json!({}));
    let starting = client.send_request("process/start", start);
    (client.answer(initializing), client.answer(starting))
}

#[test]
fn a_start_behind_the_handshake_runs_once_however_often_it_is_sent() {
    let server = TestServer::start();
    let dir = server.dir().join("starts");
    let start = || sh("p", &format!("echo $$ >> {}; exec sleep 1000", dir.display()));
    let mut first = server.connect();
    let (session, started) = start_at_once(&mut first, keyed(KEY, 1), start());
    let session = session.expect("a new session")["sessionId"].clone();
    started.expect("a start");
    // The client did not see the answers, and its link is broken as far as it knows.
    let mut second = server.connect();
    let (resumed, started) = start_at_once(&mut second, keyed(KEY, 2), start());
    assert_eq!(resumed.expect("the same session")["sessionId"], session);
    assert_error(&started.expect_err("it runs already"), -32600, "duplicateProcess");
    let (code, _) = first.wait_closed().expect("the first connection loses the session");
    assert_eq!(code, 1008);
    // Requests with the session's id work as usual.
    drop(second);
    let mut third = server.resume(session.as_str().expect("a text"), json!({}));
    wait_for("the process to write its pid", || std::fs::read_to_string(&dir).is_ok_and(|text| text.ends_with('\n')));
    assert_eq!(third.terminate("p")["running"], true);
    assert_eq!(third.collect("p").code(), 137);
    let starts = std::fs::read_to_string(&dir).expect("the process wrote its pid");
    assert_eq!(starts.lines().count(), 1, "{starts}");
}

#[test]
fn an_attempt_that_arrives_late_takes_nothing_and_starts_nothing() {
    let server = TestServer::start();
    let mut latest = server.connect();
    let (session, started) = start_at_once(&mut latest, keyed(KEY, 2), sh("p", "exec sleep 1000"));
    let session = session.expect("a session")["sessionId"].clone();
    started.expect("a start");
    for attempt in [1, 2] {
        let mut ghost = server.connect();
        let params = with(keyed(KEY, attempt), json!({"takeover": true}));
        let (refused, start) = start_at_once(&mut ghost, params, sh("q", "exec sleep 1000"));
        assert_error(&refused.expect_err("a later attempt was seen"), -32010, "sessionAttached");
        assert_error(&start.expect_err("the handshake failed"), -32600, "notInitialized");
    }
    assert_eq!(latest.processes()[0]["processId"], "p");
    // After the end of the session, an attempt of any number is refused.
    latest.ok("session/end", json!({}));
    for attempt in [1, 3] {
        let mut ghost = server.connect();
        let (refused, start) = start_at_once(&mut ghost, keyed(KEY, attempt), sh("p", "exec sleep 1000"));
        assert_error(&refused.expect_err("the session has ended"), -32600, "unknownSession");
        assert_error(&start.expect_err("the handshake failed"), -32600, "notInitialized");
    }
    let _ = session;
    let mut other = server.client();
    assert_eq!(other.list_all().len(), 0);
}

#[test]
fn the_same_key_resumes_the_session_after_a_restart_of_the_server() {
    let mut server = TestServer::start();
    let mut first = server.connect();
    let (session, started) = start_at_once(&mut first, keyed(KEY, 1), cat("p"));
    let session = session.expect("a session")["sessionId"].clone();
    let pid = started.expect("a start")["pid"].clone();
    server.kill();
    server.restart();
    let mut second = server.connect();
    let (resumed, started) = start_at_once(&mut second, keyed(KEY, 2), cat("p"));
    assert_eq!(resumed.expect("it was adopted")["sessionId"], session);
    assert_error(&started.expect_err("it runs already"), -32600, "duplicateProcess");
    assert_eq!(second.list_all()[0]["pid"], pid);
}

#[test]
fn a_key_used_twice_at_once_makes_one_session() {
    let server = TestServer::start();
    let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    let asked: Vec<i64> = (1..)
        .zip(&mut clients)
        .map(|(attempt, client)| client.send_request("initialize", keyed(KEY, attempt)))
        .collect();
    let answers: Vec<_> = clients.iter_mut().zip(asked).map(|(client, id)| client.answer(id)).collect();
    let sessions: BTreeSet<String> = answers.iter().flatten().map(|result| result["sessionId"].to_string()).collect();
    assert_eq!(sessions.len(), 1, "{answers:?}");
    // The connection with the highest number always gets it.
    assert!(answers.last().expect("eight answers").is_ok());
    for refused in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert_error(refused, -32010, "sessionAttached");
    }
}

#[test]
fn a_key_of_another_principal_names_another_session() {
    let server = TestServer::start();
    let mut owner = server.connect();
    let own = owner.initialize_with(keyed(KEY, 1))["sessionId"].clone();
    owner.start(cat("p"));
    let mut other =
        Client::connect(&server.url_of("other", &["--scope", "exec", "--scope", "stdin"])).expect("connect");
    let (others, started) = start_at_once(&mut other, keyed(KEY, 2), cat("p"));
    assert_ne!(others.expect("a session of its own")["sessionId"], own);
    started.expect("the name is free there");
    assert_eq!(owner.write("p", b"x")["status"], "accepted", "the owner keeps its session");
}

#[test]
fn unusable_keys_are_refused_and_the_connection_stays() {
    let (_server, mut client) = TestServer::with_connection();
    let million = "k".repeat(1 << 20);
    for key in ["", "short", "../../../etc/passwd", "with a space in it", &million] {
        let error = client.refuses("initialize", keyed(key, 1), -32602, "invalidParams");
        assert!(error.message.len() < 200, "{}", error.message.len());
    }
    let error = client.refuses("initialize", keyed(KEY, 0), -32602, "invalidParams");
    assert!(error.message.contains("attempt"), "{}", error.message);
    client.refuses("initialize", with(keyed(KEY, 1), json!({"sessionKey": 7})), -32602, "invalidParams");
    client.initialize();
}
