//! What operators set and see: limits and what happens at them. Against the real program.
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

mod common;

use common::{TestServer, start_params, wait_for};
use serde_json::json;

#[test]
fn a_session_beyond_the_bound_is_refused_and_those_that_are_there_are_resumed() {
    let server = TestServer::builder().arg("--max-sessions").arg("2").start();
    let mut first = server.client();
    let mut second = server.connect();
    let id = second.initialize();
    let mut third = server.connect();
    let refused = third.call("initialize", json!({"clientName": "test"})).expect_err("beyond the bound");
    assert_eq!((refused.code, refused.kind()), (-32603, "resourcesExhausted"), "{}", refused.message);
    assert!(refused.message.contains("2 sessions of this server"), "{}", refused.message);
    // A place that is taken already costs none, also on a connection that was refused a new one.
    drop(second);
    third.initialize_with(json!({"clientName": "test", "resumeSessionId": id, "takeover": true}));
    first.ok("session/end", json!({}));
    wait_for("a free place", || server.connect().call("initialize", json!({"clientName": "test"})).is_ok());
}

#[test]
fn a_process_beyond_the_bound_is_refused_until_one_has_ended() {
    let server = TestServer::builder().arg("--max-processes").arg("2").start();
    let mut client = server.client();
    for id in ["a", "b"] {
        client.ok("process/start", start_params(id, &["sleep", "1000"]));
    }
    let refused = client.call("process/start", start_params("c", &["true"])).expect_err("beyond the bound");
    assert_eq!((refused.code, refused.kind()), (-32603, "resourcesExhausted"), "{}", refused.message);
    client.ok("process/terminate", json!({"processId": "a"}));
    // One that has ended is kept to be read, and does not count.
    wait_for("a free place", || client.call("process/start", start_params("c", &["sleep", "1000"])).is_ok());
}

#[test]
fn the_default_of_overflow_is_the_servers_and_memory_is_what_was_given() {
    let server = TestServer::builder()
        .arg("--overflow")
        .arg("drop-oldest")
        .arg("--memory-per-process")
        .arg("3MiB")
        .arg("--disk-per-process")
        .arg("0")
        .start();
    let mut client = server.connect();
    client.initialize_with(json!({"clientName": "test", "capabilities": {"ack": true, "gap": true}}));
    client.ok("process/start", start_params("flood", &["head", "-c", "40000000", "/dev/zero"]));
    // Nothing is acknowledged: a process that had to wait for that would never end.
    let mut listed = json!(null);
    wait_for("the end of the flood", || {
        listed = client.ok("process/list", json!({}))["processes"][0].clone();
        listed["exited"] == json!(true)
    });
    assert_eq!(listed["outputBytes"], json!(40_000_000));
    let retained = listed["retainedBytes"].as_u64().expect("a number");
    assert!(retained <= 4 << 20, "{retained} bytes are kept");
    assert!(listed["droppedBytes"].as_u64().expect("a number") >= 40_000_000 - (4 << 20), "{listed}");
}
