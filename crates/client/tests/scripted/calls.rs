//! Calls on one connection: matched by id, limited in number, without an implicit timeout, and ended by typed errors. The next connection
//! is tested in `recovery`.

use crate::prelude::*;
use exec_server_client::{
    error::DISCONNECTED,
    protocol::{environment::Status, process::Scope},
};

const READY: &str = "ready";

fn ready() -> Value {
    json!({"status": READY})
}

#[tokio::test(start_paused = true)]
async fn rpc_client_matches_out_of_order_responses_by_request_id() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let calls = async { tokio::join!(client.environment_status(), client.environment_info()) };
    let ((status, info), ()) = both(calls, async {
        let (first, second) = (peer.request("environment/status").await, peer.request("environment/info").await);
        peer.answer(&second, json!({"cwd": "file:///second"})).await;
        peer.answer(&first, ready()).await;
    })
    .await;
    assert_eq!(status.unwrap().status, Status::Ready);
    assert_eq!(info.unwrap().cwd.as_deref(), Some("file:///second"));
}

#[tokio::test(start_paused = true)]
async fn answers_that_nobody_asked_for_are_ignored() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let (status, ()) = both(client.environment_status(), async {
        let request = peer.request("environment/status").await;
        peer.send(&json!({"id": 999, "result": ready()})).await;
        peer.send(&json!({"id": -1, "error": {"code": -32600, "message": "stray"}})).await;
        peer.send(&json!({"id": request.id.to_string(), "result": {"status": "as text"}})).await;
        peer.send(&json!({"id": i64::MAX, "result": null})).await;
        peer.answer(&request, ready()).await;
        // The same id again: no call has it any longer.
        peer.answer(&request, json!({"status": "changed"})).await;
    })
    .await;
    assert_eq!(status.unwrap().status, Status::Ready);
    let (again, _) = both(client.environment_status(), peer.serve("environment/status", ready())).await;
    assert_eq!(again.unwrap().status, Status::Ready);
    assert!(matches!(client.state(), ConnectionState::Connected));
}

#[tokio::test(start_paused = true)]
async fn rpc_client_call_has_no_implicit_deadline() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let calling = client.environment_status();
    tokio::pin!(calling);
    let day = Duration::from_secs(24 * 60 * 60);
    assert!(tokio::time::timeout(day, &mut calling).await.is_err());
    let (status, _) = both(calling, peer.serve("environment/status", ready())).await;
    assert_eq!(status.unwrap().status, Status::Ready);
}

#[tokio::test(start_paused = true)]
async fn rpc_client_timeout_removes_pending_request() {
    let builder = Client::builder().call_timeout(Duration::from_secs(5));
    let (client, mut peer, _door) = connect_with(builder, CURRENT).await;
    // Twice as many as the limit allows: the second half succeeds only if the first half has freed its slots.
    for _ in 0..2 {
        let calls = join_all((0..1024).map(|_| client.environment_status()));
        let (results, ids) = both(calls, async {
            let mut ids = Vec::new();
            for _ in 0..1024 {
                ids.push(peer.request("environment/status").await);
            }
            ids
        })
        .await;
        for result in results {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::UnknownOutcome { method: "environment/status", .. }), "{error:?}");
        }
        // A late answer has no call.
        peer.answer(&ids[0], ready()).await;
    }
    let (status, _) = both(client.environment_status(), peer.serve("environment/status", ready())).await;
    assert_eq!(status.unwrap().status, Status::Ready);
}

#[tokio::test(start_paused = true)]
async fn rpc_client_bounds_in_flight_calls_and_preserves_cleanup() {
    let (client, mut peer, _door, process) = running(CURRENT).await;
    let waiting = join_all((0..1024).map(|_| process.read(0, None, Duration::from_secs(60))));
    tokio::pin!(waiting);
    let mut reads = Vec::new();
    let receiving = async {
        for _ in 0..1024 {
            reads.push(peer.request("process/read").await);
        }
    };
    tokio::select! {
        _ = &mut waiting => panic!("nothing was answered"),
        () = within(receiving) => {}
    }
    let refused = within(client.environment_status()).await.unwrap_err();
    assert!(matches!(&refused, Error::Protocol(text) if text.contains("1024 calls")), "{refused:?}");
    let (terminated, ()) = both(process.terminate(None), async {
        let first = peer.request("process/terminate").await;
        // The reserved slot is in use: a second terminate is refused, not queued.
        assert_eq!(error_kind(process.terminate(None).await), ErrorKind::Protocol);
        peer.answer(&first, json!({"running": true})).await;
    })
    .await;
    assert!(terminated.unwrap());
    let (results, ()) = both(waiting, async {
        for read in &reads {
            peer.answer(read, crate::peer::read_result(&[], 1, None, false)).await;
        }
    })
    .await;
    assert!(results.iter().all(|read| read.as_ref().unwrap().next_seq == 1));
}

#[tokio::test(start_paused = true)]
async fn answers_received_before_the_end_win_over_it() {
    let (_client, mut peer, door, process) = running(CURRENT).await;
    door.refuse();
    // A signal may not be sent twice, so without an answer its outcome would be unknown.
    let calls = async { tokio::join!(process.signal("INT"), process.signal("TERM")) };
    let ((first, second), ()) = both(calls, async {
        let (first, second) = (peer.request("process/signal").await, peer.request("process/signal").await);
        assert_eq!((&first.params["signal"], &second.params["signal"]), (&json!("INT"), &json!("TERM")));
        peer.answer(&second, json!({})).await;
        peer.cut();
    })
    .await;
    assert!(matches!(first.unwrap_err(), Error::UnknownOutcome { method: "process/signal", .. }));
    second.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_of_the_server_are_refused_and_the_connection_goes_on() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    for id in [json!(7), json!("seven")] {
        peer.send(&json!({"id": id, "method": "network/policyRequest", "params": {"host": "example.org"}})).await;
        let answer = peer.recv().await.unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(-32601)));
    }
    let (status, _) = both(client.environment_status(), peer.serve("environment/status", ready())).await;
    assert_eq!(status.unwrap().status, Status::Ready);
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_server_keep_code_kind_and_text() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let cases = [
        (-32600, Some("unknownProcess"), Some(Word::UnknownProcess)),
        (-32600, Some("a word of a later release"), None),
        (-32603, None, None),
        (-32000, None, None),
        (i64::MIN, Some("overloaded"), Some(Word::Overloaded)),
    ];
    for (code, word, kind) in cases {
        let (listed, ()) =
            both(client.list(Scope::Session), peer.refuse_next("process/list", code, word, "what went wrong")).await;
        let error = listed.unwrap_err();
        assert!(matches!(&error, Error::Server { code: given, kind: word, .. } if (*given, *word) == (code, kind)));
        assert_eq!(error.to_string(), "what went wrong");
        assert_eq!(error.server_kind(), kind);
    }
    // `data` of another shape must not cause another error.
    let (listed, ()) = both(client.list(Scope::Session), async {
        let request = peer.request("process/list").await;
        peer.send(&json!({"id": request.id, "error": {"code": 1, "message": "m", "data": [1, 2]}})).await;
    })
    .await;
    assert!(matches!(listed.unwrap_err(), Error::Server { code: 1, kind: None, .. }));
}

#[tokio::test(start_paused = true)]
async fn the_closed_marker_of_older_peers_is_a_disconnect() {
    let builder = Client::builder().fail_fast(true);
    let (client, mut peer, mut door) = connect_with(builder, Kind::H).await;
    let closing = peer.refuse_next("environment/status", -32000, None, "JSON-RPC transport closed");
    let (status, ()) = both(client.environment_status(), closing).await;
    let error = status.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    assert!(error.to_string().starts_with(DISCONNECTED));
    // The client leaves such a server, even if the server does not close the connection itself.
    assert!(peer.is_left().await);
    let (mut peer, params) = door.welcome(Kind::H).await;
    assert_eq!(params["resumeSessionId"], SESSION);
    settle().await;
    let (status, _) = both(client.environment_status(), peer.serve("environment/status", ready())).await;
    assert_eq!(status.unwrap().status, Status::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_met_the_closed_marker_is_repeated_on_the_next_connection() {
    let (client, mut peer, mut door) = connect(Kind::H).await;
    let (status, ()) = both(client.environment_status(), async {
        peer.refuse_next("environment/status", -32000, None, "JSON-RPC transport closed").await;
        let (mut peer, _) = door.welcome(Kind::H).await;
        peer.serve("environment/status", ready()).await;
    })
    .await;
    assert_eq!(status.unwrap().status, Status::Ready);
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_another_shape_is_a_decode_error_of_its_method() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    for wrong in [json!(null), json!([]), json!({"running": "yes"}), json!({})] {
        let (terminated, _) = both(process.terminate(None), peer.serve("process/terminate", wrong)).await;
        let error = terminated.unwrap_err();
        assert!(matches!(&error, Error::Decode { method, .. } if method == "process/terminate"), "{error:?}");
    }
    let (terminated, _) =
        both(process.terminate(None), peer.serve("process/terminate", json!({"running": false}))).await;
    assert!(!terminated.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_second_handle_of_one_name_is_refused_before_anything_is_sent() {
    let (client, mut peer, _door, _process) = running(CURRENT).await;
    let error = within(client.start(named("p"))).await.unwrap_err();
    assert_eq!(error.server_kind(), Some(Word::DuplicateProcess));
    assert_eq!(error.to_string(), "process p already exists");
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_the_server_refuses_leaves_the_name_free() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let (refused, ()) = both(client.start(named("p")), async {
        peer.refuse_next("process/start", -32603, Some("programNotFound"), "no such program").await;
    })
    .await;
    assert_eq!(refused.unwrap_err().server_kind(), Some(Word::ProgramNotFound));
    // No terminate is sent for the refused start.
    let process = start(&client, &mut peer, named("p")).await;
    assert_eq!((process.id().as_str(), process.pid()), ("p", Some(4321)));
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_would_ignore_is_refused_here() {
    let (client, mut peer, _door, process) = running(Kind::H).await;
    let limited = named("q").timeout(Duration::from_secs(1));
    for error in [
        within(client.start(limited)).await.unwrap_err(),
        within(process.close_stdin()).await.unwrap_err(),
        within(process.terminate(Some(Duration::from_secs(1)))).await.unwrap_err(),
        within(process.forget()).await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Protocol(text) if text.contains("scripted cannot")), "{error:?}");
    }
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn closing_acknowledges_what_was_taken_and_ends_every_handle() {
    let (client, mut peer, door, process) = running(CURRENT).await;
    let mut events = process.events();
    peer.output("p", 1, "one").await;
    peer.ends("p", 2, 0).await;
    assert_eq!(crate::take(&mut events, 3).await, ["out 1 one", "exit 2=0", "close 3"]);
    drop(events);
    within(client.clone().close()).await;
    assert_eq!(peer.ack().await, ("p".to_owned(), 3));
    assert!(peer.is_left().await);
    let error = within(client.environment_status()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{DISCONNECTED}: the client was closed"));
    assert!(is_pending(std::future::pending::<()>()).await);
    assert_eq!(door.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn ending_the_session_ends_every_handle_of_it() {
    let (client, mut peer, door, process) = running(CURRENT).await;
    let mut events = process.events();
    let (ended, _) = both(client.end_session(), peer.serve("session/end", json!({}))).await;
    ended.unwrap();
    let why = format!("failed Disconnected: {DISCONNECTED}: the session was ended");
    assert_eq!(crate::collect(&mut events).await, [why]);
    assert!(matches!(client.state(), ConnectionState::Lost { error: Error::Disconnected { .. } }));
    peer.cut();
    settle().await;
    assert_eq!(door.attempts(), 1);
}
