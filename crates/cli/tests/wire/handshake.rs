//! The handshake on the wire: gates, ids, envelopes, unknown methods and notifications (spec 1.1, 1.2, 1.4, 2.1, 5.1, 5.2).

use crate::prelude::*;

/// The name of a family in the error texts that peers compare, and its methods.
const GATED: [(&str, &str); 5] = [
    ("exec", "process/start process/read process/write process/signal process/terminate process/closeStdin"),
    ("exec", "process/resize process/list process/subscribe process/unsubscribe process/forget"),
    ("http", "http/request http/cancel"),
    ("environment info", "environment/info"),
    ("environment status", "environment/status"),
];

/// Methods of the reference that this release does not serve.
const UNSERVED: &str = "http/noSuch environmentConfig/read capabilityRoots/discoverV1 network/policyRequest process/ack \
                        initialized no/such";

/// Calls each gated method, which must be refused with this kind and text.
fn refuses_gated(client: &mut Client, params: &Value, kind: &str, text: &str) {
    for (family, methods) in GATED {
        for method in methods.split(' ') {
            let error = client.refuses(method, params.clone(), -32600, kind);
            assert_eq!(error.message, format!("client must {text} before using {family} methods"));
        }
    }
}

#[test]
fn exec_server_accepts_initialize() {
    let (_server, mut client) = TestServer::with_connection();
    let result = client.ok("initialize", json!({"clientName": "test"}));
    let id = result["sessionId"].as_str().expect("a session id");
    let parts: Vec<usize> = id.split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12], "{id} has the shape of a UUID");
    assert!(id.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()));
    assert_eq!(id.as_bytes()[14], b'4', "{id} is a random UUID");
    assert_eq!(result["protocolVersion"], "exec-server.v0");
    assert_eq!(result["server"]["name"], "exec-server");
    assert!(result["server"]["version"].is_string());
    client.notify("initialized", json!({}));
    client.assert_alive();
}

#[test]
fn initialize_announces_what_the_server_adds_and_what_it_does_not_serve() {
    let server = TestServer::start();
    let result = server.connect().ok("initialize", json!({"clientName": "test"}));
    let capabilities = &result["capabilities"];
    let served = "ack gap concurrent closeStdin resize signals grace timeouts overflow list subscribe follow ttl takeover \
                  sessionEnd forget autoForget owners limitsHit sandbox sandboxedFileStreaming http httpCancel \
                  httpWindow httpHeaderEnvVars";
    for name in served.split(' ') {
        assert_eq!(capabilities[name], true, "{name}");
    }
    for name in ["networkProxyLaunch", "capabilityDiscoverySandbox", "environmentConfigRead", "shellSnapshotV2"] {
        assert_eq!(capabilities[name], false, "{name}");
    }
    assert_eq!(capabilities["dialects"], json!(["binary", "attached"]));
    assert!(capabilities["ackWindowBytes"].as_u64().is_some_and(|bytes| bytes >= 1 << 20));
}

#[test]
fn every_method_but_the_handshake_waits_for_initialize() {
    let (_server, mut client) = TestServer::with_connection();
    // The gate is checked before the params.
    refuses_gated(&mut client, &json!({"nonsense": [1]}), "notInitialized", "call initialize");
    client.refuses("session/end", json!({}), -32600, "notInitialized");
    client.initialize();
    client.assert_alive();
}

#[test]
fn every_method_but_the_handshake_waits_for_initialized() {
    let (_server, mut client) = TestServer::with_connection();
    client.ok("initialize", json!({"clientName": "test"}));
    refuses_gated(&mut client, &json!({}), "notConfirmed", "send initialized");
    client.notify("initialized", json!({}));
    client.assert_alive();
}

#[test]
fn exec_server_rejects_pipelined_requests_before_initialized() {
    let (_server, mut client) = TestServer::with_connection();
    let early = client.send_request("process/start", sh("a", "exit 0"));
    let init = client.send_request("initialize", json!({"clientName": "test"}));
    let start = client.send_request("process/start", sh("a", "exit 0"));
    let read = client.send_request("process/read", process("a"));
    client.notify("initialized", json!({}));
    let served = client.send_request("environment/status", json!({}));
    // The answers come in the order of the requests.
    for (id, expected) in [
        (early, Some("notInitialized")),
        (init, None),
        (start, Some("notConfirmed")),
        (read, Some("notConfirmed")),
        (served, None),
    ] {
        let message = client.next();
        assert_eq!(message["id"], id);
        assert_eq!(message["error"]["data"]["kind"].as_str(), expected);
    }
    // The refused requests have started nothing.
    assert_eq!(client.processes(), json!([]));
}

#[test]
fn a_second_initialize_is_refused_and_changes_nothing() {
    let (_server, mut client) = TestServer::with_connection();
    client.ok("initialize", json!({"clientName": "test"}));
    client.refuses("initialize", json!({"clientName": "again"}), -32600, "alreadyInitialized");
    client.notify("initialized", json!({}));
    client.refuses("initialize", json!({"clientName": "again"}), -32600, "alreadyInitialized");
    client.assert_alive();
}

#[test]
fn a_failed_initialize_may_be_repeated_on_the_same_connection() {
    let (_server, mut client) = TestServer::with_connection();
    for bad in [
        json!({}),
        json!(null),
        json!([]),
        json!({"clientName": 7}),
        json!({"clientName": "x", "ttlMs": "soon"}),
        json!({"clientName": "x", "ttlMs": -1}),
        json!({"clientName": "x", "capabilities": 5}),
        json!({"clientName": "x", "resumeSessionId": 5}),
    ] {
        client.refuses("initialize", bad, -32602, "invalidParams");
    }
    let error = client.fails("initialize", json!({"clientName": "x", "resumeSessionId": "gone"}));
    assert_error(&error, -32600, "unknownSession");
    assert_eq!(error.message, "unknown session id gone");
    client.refuses("environment/status", json!({}), -32600, "notInitialized");
    client.initialize();
    client.assert_alive();
}

#[test]
fn unknown_and_null_members_of_initialize_are_harmless() {
    let (_server, mut client) = TestServer::with_connection();
    client.initialize_with(json!({
        "clientName": "x", "resumeSessionId": null, "capabilities": null, "ttlMs": null, "takeover": null,
        "future": {"deep": [1, 2, {"x": null}]},
    }));
    client.assert_alive();
}

#[test]
fn initialized_is_idempotent_and_takes_any_params() {
    let (_server, mut client) = TestServer::with_connection();
    client.ok("initialize", json!({"clientName": "test"}));
    for params in ["null", "{}", "[1,2]", "\"x\"", "7"] {
        client.send_text(&format!(r#"{{"method":"initialized","params":{params}}}"#));
    }
    client.send_text(r#"{"method":"initialized"}"#);
    client.assert_alive();
    assert_eq!(client.run("p", &["true"]).seqs, [1, 2], "no event is pushed twice");
}

// The reference closes the connection here; ours answers every unexpected notification with an error with id -1 (design section 4).
#[test]
fn initialized_before_initialize_costs_an_error_and_not_the_connection() {
    let (_server, mut client) = TestServer::with_connection();
    client.notify("initialized", json!({}));
    client.expect_orphan_error("notInitialized");
    client.initialize();
    client.assert_alive();
}

#[test]
fn an_unknown_notification_is_answered_with_an_error_and_the_connection_goes_on() {
    let (_server, mut client) = TestServer::with_connection();
    client.notify("unknown/early", json!({}));
    client.expect_orphan_error("unknownNotification");
    client.initialize();
    for method in ["unknown/note", "process/output", "process/start", ""] {
        client.notify(method, json!({"x": 1}));
        client.expect_orphan_error("unknownNotification");
    }
    client.assert_alive();
}

#[test]
fn responses_and_errors_of_a_client_are_ignored() {
    let (_server, mut client) = TestServer::with_connection();
    client.send_text(r#"{"id":1,"result":null}"#);
    client.initialize();
    client.send_text(r#"{"id":99,"result":{"x":1}}"#);
    client.send_text(r#"{"id":"never","error":{"code":-1,"message":"no","data":[1]}}"#);
    client.assert_alive();
}

#[test]
fn ids_are_echoed_unchanged() {
    let (_server, mut client) = TestServer::with_client();
    for id in [
        json!(0),
        json!(-1),
        json!(7),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("a"),
        json!("ß\u{1F980}\"\\"),
        json!("x".repeat(10_000)),
    ] {
        client.send_text(&json!({"id": id, "method": "environment/status"}).to_string());
        assert_eq!(client.next(), json!({"id": id, "result": {"status": "ready"}}));
    }
}

#[test]
fn a_repeated_id_is_answered_twice() {
    let (_server, mut client) = TestServer::with_client();
    for _ in 0..2 {
        client.send_text(r#"{"id":5,"method":"environment/status"}"#);
    }
    for _ in 0..2 {
        assert_eq!(client.next()["id"], 5);
    }
}

#[test]
fn foreign_members_of_the_envelope_are_ignored() {
    let (_server, mut client) = TestServer::with_client();
    for text in [
        r#"{"jsonrpc":"2.0","id":9,"method":"environment/status"}"#,
        r#"{"id":9,"method":"environment/status","trace":{"traceparent":"garbage","tracestate":"also"}}"#,
        r#"{"id":9,"method":"environment/status","trace":null}"#,
        r#"{"id":9,"method":"environment/status","extra":[{"a":1}],"params":{"unknown":1e400}}"#,
        " \r\n\t{ \"id\" : 9 , \"method\" : \"environment\\/status\" } \n",
    ] {
        client.send_text(text);
        assert_eq!(client.next(), json!({"id": 9, "result": {"status": "ready"}}), "{text}");
    }
}

#[test]
fn methods_without_params_take_missing_null_and_empty_ones() {
    let (_server, mut client) = TestServer::with_client();
    for method in ["environment/status", "environment/info", "process/list"] {
        for params in ["", r#","params":null"#, r#","params":{}"#] {
            client.send_text(&format!(r#"{{"id":3,"method":"{method}"{params}}}"#));
            assert!(client.next()["result"].is_object(), "{method} {params}");
        }
    }
}

#[test]
fn exec_server_reports_environment_status_over_websocket() {
    let server = TestServer::start();
    assert_eq!(server.client().ok("environment/status", json!({})), json!({"status": "ready"}));
}

#[test]
fn environment_info_names_shell_and_directories_as_uris_and_claims_nothing_it_cannot_do() {
    let server = TestServer::builder().env("SHELL", "/bin/bash").env("PATH", "/opt/tools:/usr/bin:/bin").start();
    let info = server.client().ok("environment/info", json!({}));
    assert_eq!(info["shell"], json!({"name": "bash", "path": "/bin/bash"}));
    assert!(info["cwd"].as_str().is_some_and(|cwd| cwd.starts_with("file:///")), "{info}");
    assert!(info["tempDir"].as_str().is_some_and(|dir| dir.starts_with("file:///")), "{info}");
    let home = info["homeDir"].as_str().expect("a directory");
    assert!(home.starts_with("file:///") && home.ends_with("/home"), "{info}");
    assert_eq!(info["searchPath"], "/opt/tools:/usr/bin:/bin");
    assert!(info["temporaryDirectories"].is_array());
    let capabilities = info["capabilities"].as_object().expect("capabilities");
    assert_eq!(capabilities.len(), 6);
    let claimed: Vec<&String> =
        capabilities.iter().filter(|(_, value)| **value != json!(false)).map(|(name, _)| name).collect();
    assert_eq!(claimed, ["httpHeaderEnvVars", "sandboxedFileStreaming"]);
}

#[test]
fn an_unknown_method_is_named_in_its_error() {
    let (_server, mut client) = TestServer::with_client();
    for method in UNSERVED.split(' ') {
        let error = client.refuses(method, json!({}), -32601, "unknownMethod");
        assert!(error.message.contains(method), "{}", error.message);
    }
    // V0 answers an unknown method of its own family with another code.
    client.refuses("command/none", json!({}), -32600, "unknownMethod");
    client.assert_alive();
}

#[test]
fn an_answer_tells_how_long_the_session_waits() {
    let server = TestServer::builder().arg("--session-ttl").arg("2h").start();
    let granted = |more: Value| {
        let mut client = server.connect();
        client.initialize_with(with(json!({"clientName": "test"}), more))["ttlMs"].clone()
    };
    let modern = json!({"ack": true, "gap": true});
    assert_eq!(granted(json!({"capabilities": modern, "ttlMs": 5000})), 5000);
    assert_eq!(granted(json!({"ttlMs": 5000})), 5000);
    for asked in [json!("none"), json!(86_400_000), Value::Null] {
        assert_eq!(granted(json!({"capabilities": modern, "ttlMs": asked})), 7_200_000, "{asked}");
    }
    assert_eq!(granted(json!({})), Value::Null, "a client of the reference is told nothing new");
    let endless = TestServer::builder().arg("--session-ttl").arg("none").start();
    let mut client = endless.connect();
    assert_eq!(client.initialize_with(json!({"clientName": "test", "ttlMs": "none"}))["ttlMs"], "none");
}

#[test]
fn d11_3_9_every_generation_is_served_on_one_connection() {
    let (_server, mut client) = TestServer::with_client();
    assert_eq!(client.run_params(crate::wire::Generation::S.start("s", &["true"])).code(), 0);
    assert_eq!(client.run_params(crate::wire::Generation::H.start("h", &["true"])).code(), 0);
    client.ok("command/exec", sh("v0", "exit 4"));
    assert_eq!(client.expect("command/exec/exited"), json!({"processId": "v0", "exitCode": 4}));
    let pid = pid_of(&client.start(sh("again", "exec sleep 1000")));
    assert!(pid > 1);
}
