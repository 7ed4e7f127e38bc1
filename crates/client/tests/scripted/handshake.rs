//! Creating a session: timeouts of the first connection, wrong answers to `initialize`, and what is sent and understood. Lost sessions are
//! tested elsewhere.

use crate::{prelude::*, scripted};
use exec_server_client::{Backoff, Builder, Generation, protocol::initialize::Ttl};

/// Opens a client whose server answers `initialize` with this result.
async fn answered(builder: Builder, result: Value) -> Result<Client, Error> {
    let (way, mut door) = scripted();
    let (client, _peer) = both(builder.open(way), async {
        let mut peer = door.accept().await;
        peer.serve("initialize", result).await;
        peer
    })
    .await;
    client
}

#[tokio::test(start_paused = true)]
async fn initialize_says_who_comes_and_what_it_can_take() {
    let (way, mut door) = scripted();
    let builder = Client::builder().name("tester").ttl(Ttl::Ms(5000));
    let (client, (_peer, params)) = both(builder.open(way), door.welcome(CURRENT)).await;
    let capabilities = json!({"ack": true, "gap": true, "concurrent": true, "dialects": ["binary", "attached"]});
    assert_eq!(params, json!({"clientName": "tester", "capabilities": capabilities, "ttlMs": 5000}));
    let client = client.unwrap();
    assert_eq!(client.session_id().unwrap().as_str(), SESSION);
    assert_eq!(client.address(), "scripted");
}

#[tokio::test(start_paused = true)]
async fn generations_are_told_apart_by_the_answer() {
    let reference_with_flags = json!({"sessionId": "s", "capabilities": {"ack": false, "list": true}});
    for (answer, generation) in [
        (CURRENT.greeting(), Generation::Current),
        (Kind::H.greeting(), Generation::Reference),
        (reference_with_flags, Generation::Reference),
        (Kind::V0.greeting(), Generation::V0),
    ] {
        let client = answered(Client::builder(), answer).await.unwrap();
        assert_eq!(client.server().generation, generation);
        assert_eq!(client.session_id().is_some(), generation != Generation::V0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_never_reached_is_a_connect_timeout() {
    let (way, door) = scripted();
    door.hang();
    let began = Instant::now();
    let error = within(Client::builder().connect_timeout(Duration::from_secs(3)).open(way)).await.unwrap_err();
    let three = Duration::from_secs(3);
    assert!(matches!(&error, Error::ConnectTimeout { address, within } if address == "scripted" && *within == three));
    assert_eq!(began.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_an_initialize_timeout() {
    let (way, mut door) = scripted();
    let began = Instant::now();
    let (client, mut peer) = both(Client::builder().open(way), async {
        let mut peer = door.accept().await;
        peer.request("initialize").await;
        peer
    })
    .await;
    let error = client.unwrap_err();
    assert!(matches!(&error, Error::InitializeTimeout { address, .. } if address == "scripted"), "{error:?}");
    assert!(error.to_string().contains("is it an exec-server?"));
    assert_eq!(began.elapsed().as_secs(), 10);
    assert!(peer.is_left().await);
    assert_eq!(door.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_is_tried_once_unless_asked_otherwise() {
    let (way, door) = scripted();
    door.refuse();
    assert_eq!(error_kind(within(Client::builder().open(way)).await), ErrorKind::Connect);
    assert_eq!(door.attempts(), 1);

    let (way, mut door) = scripted();
    door.refuse();
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(100));
    let builder = Client::builder().connect_retry_for(Duration::from_secs(10)).backoff(backoff);
    let opening = builder.clone().open(way);
    tokio::pin!(opening);
    assert!(tokio::time::timeout(Duration::from_secs(5), &mut opening).await.is_err());
    door.reopen();
    let (client, _) = both(opening, door.welcome(CURRENT)).await;
    client.unwrap();
    assert!(door.attempts() > 10, "{}", door.attempts());

    let (way, door) = scripted();
    door.refuse();
    let began = Instant::now();
    assert_eq!(error_kind(within(builder.open(way)).await), ErrorKind::Connect);
    assert!((9..=10).contains(&began.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn a_retry_without_end_is_no_overflow() {
    let (way, mut door) = scripted();
    let builder = Client::builder().connect_retry_for(Duration::MAX).recover_for(Duration::MAX);
    let (client, (peer, _)) = both(builder.open(way), door.welcome(CURRENT)).await;
    let client = client.unwrap();
    door.refuse();
    peer.cut();
    let six_hours = Duration::from_secs(6 * 60 * 60);
    assert!(tokio::time::timeout(six_hours, lost(&client)).await.is_err());
    door.reopen();
    let (_peer, _) = door.welcome(CURRENT).await;
    is_connected(&client).await;
}

#[tokio::test(start_paused = true)]
async fn wrong_answers_to_initialize_are_decode_errors() {
    for wrong in [json!(null), json!("hello"), json!(7), json!([SESSION]), json!({}), json!({"sessionId": 5})] {
        let error = answered(Client::builder(), wrong.clone()).await.unwrap_err();
        assert!(matches!(&error, Error::Decode { method, .. } if method == "initialize"), "{wrong}: {error:?}");
    }
    let error = answered(Client::builder(), json!({"server": {"name": "x", "version": "1"}})).await.unwrap_err();
    assert_eq!(error.to_string(), "initialize: the answer cannot be read: neither a session nor a protocol version");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_speaks_something_else_is_a_protocol_error() {
    let long_line = vec![b'x'; 100_000];
    let greetings: [&[u8]; 5] = [b"HTTP/1.1 400 Bad Request\n", b"[]\n", b"{\"id\":\n", b"\xff\xfe\n", &long_line];
    for greeting in greetings {
        let (way, mut door) = crate::narrow(1 << 20, 64 << 10);
        let (client, ()) = both(Client::builder().open(way), async {
            let mut peer = door.accept().await;
            peer.request("initialize").await;
            peer.raw(greeting).await;
            peer.cut();
        })
        .await;
        let error = client.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error:?}");
        assert!(error.to_string().contains("is it an exec-server?"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_up_is_a_disconnect() {
    let (way, mut door) = scripted();
    let (client, ()) = both(Client::builder().open(way), async {
        let mut peer = door.accept().await;
        peer.request("initialize").await;
        peer.cut();
    })
    .await;
    let error = client.unwrap_err();
    assert_eq!(error.to_string(), "exec-server transport disconnected: peer closed the stream");
}

#[tokio::test(start_paused = true)]
async fn another_session_than_the_one_to_resume_is_refused() {
    for wrong in [json!({"sessionId": "another"}), Kind::V0.greeting()] {
        let error = answered(Client::builder().resume(SESSION.into()), wrong).await.unwrap_err();
        assert!(matches!(&error, Error::Protocol(text) if text.contains(SESSION)), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_unknown_is_lost_and_an_attached_one_is_the_servers_error() {
    for (code, word, message, kind) in [
        (-32600, Some("unknownSession"), "unknown session id session-1", ErrorKind::SessionLost),
        (-32600, None, "unknown session id session-1", ErrorKind::SessionLost),
        (-32010, None, "session session-1 is already attached to another connection", ErrorKind::Server),
        (-32600, None, "session session-1 is already attached to another connection", ErrorKind::Server),
    ] {
        let (way, mut door) = scripted();
        let builder = Client::builder().resume(SESSION.into()).takeover(true);
        let (client, params) = both(builder.open(way), async {
            let mut peer = door.accept().await;
            let request = peer.request("initialize").await;
            peer.refuse(&request, code, word, message).await;
            request.params
        })
        .await;
        assert_eq!((&params["resumeSessionId"], &params["takeover"]), (&json!(SESSION), &json!(true)));
        let error = client.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains(message));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_keeps_code_and_kind() {
    let (way, mut door) = scripted();
    let (client, ()) = both(Client::builder().open(way), async {
        let mut peer = door.accept().await;
        peer.refuse_next("initialize", -32603, Some("resourcesExhausted"), "no room").await;
    })
    .await;
    let error = client.unwrap_err();
    assert!(matches!(error, Error::Server { code: -32603, kind: Some(Word::ResourcesExhausted), .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn explicit_resume_drains_notifications_before_initialize_response() {
    let (way, mut door) = scripted();
    let (client, _peer) = both(Client::builder().resume(SESSION.into()).open(way), async {
        let mut peer = door.accept().await;
        let request = peer.request("initialize").await;
        // More than any queue holds: a client that kept them until it read the answer would never reach the answer.
        for seq in 1..=5000 {
            peer.output("of an earlier life", seq, "x").await;
        }
        peer.answer(&request, Kind::H.greeting()).await;
        peer.initialized().await;
        peer
    })
    .await;
    assert_eq!(client.unwrap().session_id().unwrap().as_str(), SESSION);
}
