//! Malformed input of every kind: it gets an error answer, and the connection stays open (spec 1.1, 1.3, 1.4).

use crate::{prelude::*, wire::MALFORMED_PREFIX};

#[track_caller]
fn assert_malformed(client: &mut Client, text: &str) {
    client.send_text(text);
    let said = client.expect_orphan_error("malformed");
    assert!(said.starts_with(MALFORMED_PREFIX), "{said}");
    assert!(said.len() < 2048, "an error does not repeat its cause");
}

#[test]
fn exec_server_reports_malformed_websocket_json_and_keeps_running() {
    let (_server, mut client) = TestServer::with_connection();
    assert_malformed(&mut client, "not-json");
    client.initialize();
    client.assert_alive();
}

#[test]
fn what_is_no_message_is_answered_with_id_minus_one() {
    let (_server, mut client) = TestServer::with_client();
    for text in [
        "",
        " ",
        "\n",
        "[]",
        "42",
        "\"s\"",
        "null",
        "true",
        "{",
        "}",
        "{}",
        "[{}]",
        r#"{"id":1}"#,
        r#"{"id":1,"method":"environment/status""#,
        r#"{"id":1,"method":"environment/status"} x"#,
        r#"{"id":1,"method":"environment/status"}{"id":2,"method":"environment/status"}"#,
        r#"{"id":null,"method":"environment/status"}"#,
        r#"{"id":1.5,"method":"environment/status"}"#,
        r#"{"id":1e2,"method":"environment/status"}"#,
        r#"{"id":true,"method":"environment/status"}"#,
        r#"{"id":[1],"method":"environment/status"}"#,
        r#"{"id":{},"method":"environment/status"}"#,
        r#"{"id":9223372036854775808,"method":"environment/status"}"#,
        r#"{"id":1,"method":7}"#,
        r#"{"id":1,"method":null}"#,
        r#"{"method":["initialized"]}"#,
        r#"{"result":1}"#,
        r#"{"id":1,"error":5}"#,
        r#"{"id":1,"error":{"code":"x","message":"y"}}"#,
        r#"{"id":1,"error":{"code":1}}"#,
        r#"{"id":1,"method":"environment/status","params":{'a':1}}"#,
        r#"{"id":1,"method":"environment/status","params":{"a":01}}"#,
        r#"{"id":1,"method":"environment/status","params":{"a":NaN}}"#,
        r#"{"id":1,"method":"environment/status","params":{"a":+1}}"#,
        r#"{"id":1,"method":"environment/status","params":{"a":1,}}"#,
        r#"{"id":1,"method":"environment/status","params":{"a":"\x"}}"#,
        "{\"id\":1,\"method\":\"environment/status\",\"params\":{\"a\":\"\u{1}\"}}",
        r#"{"id":1,,"method":"environment/status"}"#,
        r#"// comment
           {"id":1,"method":"environment/status"}"#,
    ] {
        assert_malformed(&mut client, text);
    }
    client.assert_alive();
}

#[test]
fn every_prefix_of_a_message_is_refused_and_the_whole_is_served() {
    let (_server, mut client) = TestServer::with_client();
    let whole = r#"{"id":7,"method":"process/read","params":{"processId":"\u00e9","afterSeq":0}}"#;
    for end in 0..whole.len() {
        assert_malformed(&mut client, &whole[..end]);
    }
    client.send_text(whole);
    assert_eq!(client.next()["error"]["data"]["kind"], "unknownProcess");
}

#[test]
fn duplicate_keys_are_refused_at_every_level() {
    let (_server, mut client) = TestServer::with_client();
    for text in [
        r#"{"id":1,"id":2,"method":"environment/status"}"#,
        r#"{"id":1,"method":"environment/status","method":"environment/info"}"#,
        r#"{"id":1,"method":"environment/status","params":{"a":1,"a":1}}"#,
        r#"{"id":1,"method":"environment/status","params":{"x":[{"b":{"a":1,"a":2}}]}}"#,
        r#"{"id":1,"method":"environment/status","params":{"a":1,"\u0061":2}}"#,
    ] {
        assert_malformed(&mut client, text);
    }
    client.assert_alive();
}

#[test]
fn three_million_values_cost_an_error_only() {
    let (_server, mut client) = TestServer::with_client();
    let bomb = format!(r#"{{"id":1,"method":"environment/status","params":[{}0]}}"#, "0,".repeat(3_000_000));
    assert_malformed(&mut client, &bomb);
    client.assert_alive();
}

#[test]
fn the_bound_of_values_is_that_of_the_reference() {
    let (_server, mut client) = TestServer::with_client();
    // The object, its id, its method and the params array count as four values.
    let message = |items: usize| format!(r#"{{"id":1,"method":"no/such","params":[{}0]}}"#, "0,".repeat(items - 1));
    client.send_text(&message(262_144 - 4));
    assert_eq!(client.next()["error"]["code"], -32601);
    assert_malformed(&mut client, &message(262_144 - 3));
}

#[test]
fn two_hundred_thousand_nested_arrays_cost_an_error_only() {
    let (_server, mut client) = TestServer::with_client();
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let (open, close) = (open.repeat(200_000), close.repeat(200_000));
        let bomb = format!(r#"{{"id":1,"method":"environment/status","params":{open}1{close}}}"#);
        assert_malformed(&mut client, &bomb);
    }
    // The arrays need not be closed either.
    assert_malformed(&mut client, &"[".repeat(200_000));
    assert_malformed(&mut client, &format!(r#"{{"id":1,"method":"x","params":{}"#, "[".repeat(200_000)));
    client.assert_alive();
}

#[test]
fn a_huge_string_is_only_one_value() {
    let (_server, mut client) = TestServer::with_client();
    let huge = "x".repeat(8 << 20);
    client.send_text(&format!(r#"{{"id":1,"method":"no/such","params":"{huge}"}}"#));
    assert_eq!(client.next()["error"]["code"], -32601);
    // A name of that size is cut in the answer, or does not appear at all.
    let error = client.refuses(&huge, json!({}), -32601, "unknownMethod");
    assert!(error.message.len() < 2048, "an error does not repeat its cause");
    let error = client.fails("process/start", json!({"processId": {"x": huge}}));
    assert!(error.message.len() < 2048, "an error does not repeat its cause");
    assert_error(&error, -32602, "invalidParams");
    client.refuses("process/read", json!({"processId": huge}), -32600, "unknownProcess");
    let error = client.refuses("process/signal", json!({"processId": "p", "signal": huge}), -32602, "unknownSignal");
    assert!(error.message.len() < 2048, "an error does not repeat its cause");
    client.notify(&huge, json!({}));
    let said = client.expect_orphan_error("unknownNotification");
    assert!(said.len() < 2048, "an error does not repeat its cause");
    client.assert_alive();
}

#[test]
fn params_of_a_wrong_shape_are_refused_by_every_method() {
    let (_server, mut client) = TestServer::with_client();
    let methods = "process/start process/read process/write process/signal process/terminate process/closeStdin process/resize \
                   process/subscribe process/unsubscribe process/forget command/exec command/exec/write command/exec/terminate";
    for method in methods.split(' ') {
        for params in [
            json!(null),
            json!([]),
            json!({}),
            json!(7),
            json!("x"),
            json!(true),
            json!([1, "x"]),
            json!({"processId": 1}),
            json!({"processId": null}),
            json!({"processId": ["p"]}),
        ] {
            client.refuses(method, params.clone(), -32602, "invalidParams");
        }
    }
    for params in [json!([]), json!(7), json!({"scope": "everything"}), json!({"scope": 1})] {
        let error = client.fails("process/list", params.clone());
        assert_eq!(error.code, -32602, "{params}");
    }
    client.assert_alive();
}

#[test]
fn members_of_a_wrong_type_or_missing_are_refused_by_start() {
    let (_server, mut client) = TestServer::with_client();
    let good = start_params("p", &["true"]);
    for name in ["processId", "argv"] {
        let mut bad = good.clone();
        bad.as_object_mut().expect("an object").remove(name);
        client.refuses("process/start", bad, -32602, "invalidParams");
    }
    for bad in [
        json!({"argv": "true"}),
        json!({"argv": [1]}),
        json!({"argv": [null]}),
        json!({"argv": {"0": "true"}}),
        json!({"cwd": 1}),
        json!({"env": []}),
        json!({"env": {"A": 1}}),
        json!({"tty": 0}),
        json!({"tty": "no"}),
        json!({"pipeStdin": 1}),
        json!({"arg0": 1}),
        json!({"envPolicy": {}}),
        json!({"envPolicy": {"inherit": "all"}}),
        json!({"envPolicy": 1}),
        json!({"size": {}}),
        json!({"size": {"rows": 70_000, "cols": 1}}),
        json!({"size": {"rows": -1, "cols": 1}}),
        json!({"timeoutMs": "1"}),
        json!({"timeoutMs": -1}),
        json!({"timeoutMs": 1.5}),
        json!({"idleTimeoutMs": []}),
        json!({"overflow": "drop"}),
        json!({"overflow": 1}),
        json!({"autoForget": "yes"}),
        json!({"term": 1}),
    ] {
        client.refuses("process/start", with(good.clone(), bad), -32602, "invalidParams");
    }
    // For an optional key, null is the same as missing, and unknown keys are ignored.
    let ended = client.run_params(with(
        good,
        json!({
            "cwd": null, "env": null, "tty": null, "pipeStdin": null, "arg0": null, "envPolicy": null, "size": null, "term": null, "timeoutMs": null,
            "idleTimeoutMs": null, "overflow": null, "sandbox": null, "enforceManagedNetwork": null,
            "managedNetwork": null, "networkProxy": null, "shellSnapshot": null, "unknown": {"a": [1]},
        }),
    ));
    assert_eq!(ended.code(), 0);
}

#[test]
fn members_of_a_wrong_type_are_refused_by_the_other_methods() {
    let (_server, mut client) = TestServer::with_client();
    for (method, bad) in [
        ("process/read", json!({"afterSeq": -1})),
        ("process/read", json!({"afterSeq": "1"})),
        ("process/read", json!({"afterSeq": 1.5})),
        ("process/read", json!({"maxBytes": -1})),
        ("process/read", json!({"waitMs": "x"})),
        ("process/read", json!({"waitMs": 1e30})),
        ("process/read", json!({"sessionId": 1})),
        ("process/write", json!({"chunk": 1})),
        ("process/write", json!({"chunk": null})),
        ("process/write", json!({"chunk": "", "writeId": 5})),
        ("process/signal", json!({"signal": 15})),
        ("process/terminate", json!({"graceMs": -5})),
        ("process/terminate", json!({"graceMs": "5"})),
        ("process/resize", json!({"rows": 1})),
        ("process/resize", json!({"rows": 1, "cols": 65_536})),
        ("process/subscribe", json!({"hold": "yes"})),
        ("process/subscribe", json!({"afterSeq": -1})),
    ] {
        client.refuses(method, with(json!({"processId": "p"}), bad), -32602, "invalidParams");
    }
    client.assert_alive();
}

#[test]
fn a_bad_acknowledgement_is_ignored() {
    let (_server, mut client) = TestServer::with_connection();
    client.ack("p", 1);
    client.initialize_with(testkit::modern());
    for params in [
        json!(null),
        json!([]),
        json!({}),
        json!({"processId": 1, "seq": 1}),
        json!({"processId": "none", "seq": 1}),
        json!({"processId": "p", "seq": -1}),
        json!({"processId": "p", "seq": u64::MAX}),
        json!({"processId": "p", "sessionId": "none", "seq": 1}),
    ] {
        client.notify("process/ack", params);
    }
    assert_eq!(client.run("p", &["true"]).code(), 0);
    client.ack("p", u64::MAX);
    client.assert_alive();
}

#[test]
fn exec_server_accepts_binary_websocket_json() {
    let (_server, mut client) = TestServer::with_client();
    let text = json!({"id": 77, "method": "environment/status"}).to_string();
    client.send_message(Message::binary(text.into_bytes())).expect("send");
    assert_eq!(client.next(), json!({"id": 77, "result": {"status": "ready"}}));
}

#[test]
fn bytes_that_are_not_utf8_cost_an_error_only() {
    let (_server, mut client) = TestServer::with_client();
    let bad: [&[u8]; 4] = [
        b"\xff\xfe",
        b"{\"id\":1,\"method\":\"\xff\"}",
        b"\x80\x01binary",
        b"{\"id\":1,\"method\":\"x\",\"params\":\"\xed\xa0\x80\"}",
    ];
    for bytes in bad {
        client.send_message(Message::binary(bytes.to_vec())).expect("send");
        client.expect_orphan_error("malformed");
    }
    client.assert_alive();
}

#[test]
fn lone_surrogates_and_nul_are_answered() {
    let (_server, mut client) = TestServer::with_client();
    client.send_text(r#"{"id":1,"method":"process/read","params":{"processId":"\ud800"}}"#);
    let message = client.next();
    assert!(matches!(message["error"]["code"].as_i64(), Some(-32600 | -32602)), "{message}");
    for bad in [
        json!({"argv": ["true\u{0}x"]}),
        json!({"cwd": "/\u{0}"}),
        json!({"env": {"A": "\u{0}"}}),
        json!({"env": {"A\u{0}": "1"}}),
        json!({"env": {"A=B": "1"}}),
        json!({"env": {"": "1"}}),
        json!({"arg0": "\u{0}"}),
    ] {
        let error = client.fails("process/start", with(start_params("p", &["true"]), bad.clone()));
        assert_eq!(error.code, -32602, "{bad}: {error:?}");
    }
    client.assert_alive();
}

#[test]
fn a_message_in_fragments_and_between_pings_is_one_message() {
    use tungstenite::protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    };
    let (_server, mut client) = TestServer::with_client();
    let text = json!({"id": 5, "method": "environment/status"}).to_string();
    let (head, tail) = text.split_at(9);
    let first = Frame::message(head.as_bytes().to_vec(), OpCode::Data(Data::Text), false);
    let last = Frame::message(tail.as_bytes().to_vec(), OpCode::Data(Data::Continue), true);
    client.send_message(Message::Frame(first)).expect("send");
    client.send_message(Message::Ping(b"in between".to_vec().into())).expect("send");
    client.send_message(Message::Frame(last)).expect("send");
    assert_eq!(client.next()["result"]["status"], "ready");
}
