//! Cut connections: the client notices, reconnects, and handles interrupted calls; or it cannot reconnect, and everything fails. Stdin is
//! tested in `input`, reference servers in `reference`, and processes of other sessions in `other_sessions`.

use crate::prelude::*;
use exec_server_client::{error::DISCONNECTED, protocol::environment::Status};

const EOF: &str = "peer closed the stream";

fn ready() -> Value {
    json!({"status": "ready"})
}

/// The connection after a cut. Returns once the client is connected again.
async fn mended(client: &Client, door: &mut Door, kind: Kind) -> Peer {
    let (peer, params) = door.welcome(kind).await;
    assert_eq!(params["resumeSessionId"], SESSION);
    is_connected(client).await;
    peer
}

#[tokio::test(start_paused = true)]
async fn a_cut_link_is_seen_and_mended() {
    let (client, peer, mut door) = connect(CURRENT).await;
    let mut state = client.watch_state();
    assert!(matches!(*state.borrow_and_update(), ConnectionState::Connected));
    door.refuse();
    peer.cut();
    within(state.changed()).await.unwrap();
    assert!(matches!(&*state.borrow_and_update(), ConnectionState::Recovering { reason } if reason == EOF));
    settle().await;
    assert!(!state.has_changed().unwrap());
    door.reopen();
    let (mut peer, params) = door.welcome(CURRENT).await;
    // The server may still consider the previous connection alive.
    assert_eq!((&params["resumeSessionId"], &params["takeover"]), (&json!(SESSION), &json!(true)));
    within(state.changed()).await.unwrap();
    assert!(matches!(*state.borrow_and_update(), ConnectionState::Connected));
    let (status, _) = both(client.environment_status(), peer.serve("environment/status", ready())).await;
    assert_eq!(status.unwrap().status, Status::Ready);
    assert_eq!(client.session_id().unwrap().as_str(), SESSION);
}

#[tokio::test(start_paused = true)]
async fn remote_websocket_client_resumes_session() {
    let (client, mut peer, mut door) = connect_by(crate::websocket(), Client::builder(), Kind::H).await;
    let (status, _) = both(client.environment_status(), peer.serve("environment/status", ready())).await;
    status.unwrap();
    peer.cut();
    let (mut peer, params) = door.welcome(Kind::H).await;
    // Reference servers do not support takeover, so it is not requested.
    assert_eq!((&params["resumeSessionId"], params.get("takeover")), (&json!(SESSION), None));
    let (status, _) = both(client.environment_status(), peer.serve("environment/status", ready())).await;
    assert_eq!(status.unwrap().status, Status::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_call_made_while_the_link_is_down_waits_for_it() {
    let (client, peer, mut door) = connect(CURRENT).await;
    door.refuse();
    peer.cut();
    until(&client, |state| matches!(state, ConnectionState::Recovering { .. })).await;
    let calling = client.environment_status();
    tokio::pin!(calling);
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut calling).await.is_err());
    door.reopen();
    let (status, ()) = both(calling, async {
        let (mut peer, _) = door.welcome(CURRENT).await;
        peer.serve("environment/status", ready()).await;
    })
    .await;
    assert_eq!(status.unwrap().status, Status::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_within_its_deadline() {
    let builder = Client::builder().call_timeout(Duration::from_secs(5));
    let (client, peer, door) = connect_with(builder, CURRENT).await;
    door.refuse();
    peer.cut();
    let began = Instant::now();
    let error = within(client.environment_status()).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed().as_secs()), (ErrorKind::UnknownOutcome, 5));
}

#[tokio::test(start_paused = true)]
async fn what_is_harmless_is_repeated_and_the_rest_has_an_unknown_outcome() {
    let (_client, mut peer, mut door, process) = running(CURRENT).await;
    let calls = async {
        tokio::join!(
            process.read(0, Some(10), Duration::from_secs(9)),
            process.terminate(Some(Duration::from_secs(1))),
            process.signal("HUP")
        )
    };
    let ((read, terminated, signalled), ()) = both(calls, async {
        let mut sent = Vec::new();
        for method in ["process/read", "process/terminate", "process/signal"] {
            sent.push(peer.request(method).await.params);
        }
        peer.cut();
        let (mut peer, _) = door.welcome(CURRENT).await;
        let read = peer.request("process/read").await;
        let terminate = peer.request("process/terminate").await;
        assert_eq!((&read.params, &terminate.params), (&sent[0], &sent[1]));
        assert!(peer.is_silent().await);
        peer.answer(&terminate, json!({"running": true})).await;
        peer.answer(&read, read_result(&[(1, "one")], 2, None, false)).await;
    })
    .await;
    assert_eq!(read.unwrap().chunks[0].bytes, "one");
    assert!(terminated.unwrap());
    let error = signalled.unwrap_err();
    assert!(matches!(&error, Error::UnknownOutcome { method: "process/signal", reason: Some(why) } if why == EOF));
}

#[tokio::test(start_paused = true)]
async fn fail_fast_errors_at_once_with_the_canonical_text() {
    let (client, mut peer, mut door) = connect_with(Client::builder().fail_fast(true), CURRENT).await;
    let process = start(&client, &mut peer, named("p")).await;
    let mut events = process.events();
    door.refuse();
    let (in_flight, ()) = both(process.read(0, None, Duration::from_secs(60)), async {
        peer.request("process/read").await;
        peer.cut();
    })
    .await;
    let began = Instant::now();
    let errors = [
        in_flight.unwrap_err(),
        within(process.read(0, None, Duration::ZERO)).await.unwrap_err(),
        within(process.write("x")).await.unwrap_err(),
        within(process.terminate(None)).await.unwrap_err(),
        within(process.signal("INT")).await.unwrap_err(),
        within(client.environment_info()).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.to_string(), format!("{DISCONNECTED}: {EOF}"));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    // The session is resumed nevertheless, and no event of the process is lost.
    door.reopen();
    let mut peer = mended(&client, &mut door, CURRENT).await;
    peer.output("p", 1, "one").await;
    assert_eq!(next(&mut events).await, "out 1 one");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_still_attached_is_asked_for_again() {
    let text = "session session-1 is already attached to another connection";
    // H has an error code for this, S only the message text, and a current server the kind.
    for (code, word) in [(-32010, None), (-32600, None), (-32600, Some("sessionAttached")), (-32600, Some("draining"))]
    {
        let (client, peer, mut door) = connect(Kind::H).await;
        peer.cut();
        for _ in 0..10 {
            let mut peer = door.accept().await;
            peer.refuse_next("initialize", code, word, text).await;
            assert!(peer.is_left().await);
        }
        mended(&client, &mut door, Kind::H).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_unknown_is_lost_with_everything() {
    let (client, mut peer, mut door) = connect(CURRENT).await;
    let (first, second) = (start(&client, &mut peer, named("p")).await, start(&client, &mut peer, named("q")).await);
    let mut events = first.events();
    peer.output("p", 1, "one").await;
    peer.output("p", 2, "two").await;
    let (in_flight, ()) = both(first.read(2, None, Duration::from_secs(60)), async {
        peer.request("process/read").await;
        peer.cut();
        let mut peer = door.accept().await;
        peer.refuse_next("initialize", -32600, Some("unknownSession"), "unknown session id session-1").await;
    })
    .await;
    let text = "session session-1 is lost: unknown session id session-1";
    let error = lost(&client).await;
    assert!(matches!(&error, Error::SessionLost { session_id, .. } if session_id.as_str() == SESSION));
    assert_eq!(error.to_string(), text);
    // One failure per process, after all events that had arrived before.
    assert_eq!(collect(&mut events).await, ["out 1 one", "out 2 two", &format!("failed SessionLost: {text}")]);
    assert_eq!(collect(&mut second.events()).await, [format!("failed SessionLost: {text}")]);
    assert_eq!((*first.wake().borrow(), *second.wake().borrow()), (3, 1));
    for read in [in_flight.unwrap(), within(first.read(0, None, Duration::from_secs(9))).await.unwrap()] {
        assert_eq!((read.chunks.len(), read.exited, read.exit_code, read.closed), (0, true, None, true));
        assert_eq!((read.next_seq, read.failure.as_deref()), (4, Some(text)));
    }
    for error in [
        within(first.write("x")).await.unwrap_err(),
        within(first.terminate(None)).await.unwrap_err(),
        within(first.wait()).await.unwrap_err(),
        within(client.start(named("r"))).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::SessionLost);
    }
    settle().await;
    assert_eq!(door.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn transport_disconnect_fails_sessions_and_rejects_new_sessions() {
    let builder = Client::builder().recover_for(Duration::from_secs(7));
    let (client, mut peer, door) = connect_with(builder, CURRENT).await;
    let process = start(&client, &mut peer, named("p")).await;
    let reading = process.read(0, None, Duration::from_secs(60));
    tokio::pin!(reading);
    assert!(is_pending(&mut reading).await);
    door.refuse();
    let began = Instant::now();
    peer.cut();
    let error = lost(&client).await;
    // The client gives up when the next pause would end too late. The longest pause is 5 s.
    assert!((2..=7).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    let text = error.to_string();
    assert!(text.starts_with(&format!("{DISCONNECTED}: {EOF}; not restored within 7s: connect to scripted")), "{text}");
    let read = within(reading).await.unwrap();
    assert_eq!((read.closed, read.failure), (true, Some(text.clone())));
    assert_eq!(collect(&mut process.events()).await, [format!("failed Disconnected: {text}")]);
    assert_eq!(within(client.start(named("q"))).await.unwrap_err().to_string(), text);
    assert_eq!(within(process.write("x")).await.unwrap_err().to_string(), text);
    let attempts = door.attempts();
    settle().await;
    assert_eq!(door.attempts(), attempts);
}

#[tokio::test(start_paused = true)]
async fn a_cut_lasts_as_long_as_the_session_lives() {
    for (kind, seconds) in [(CURRENT, 24 * 60 * 60), (Kind::H, 25)] {
        let (client, peer, door) = connect(kind).await;
        door.refuse();
        let began = Instant::now();
        peer.cut();
        lost(&client).await;
        let lasted = began.elapsed().as_secs();
        assert!((seconds - 5..=seconds).contains(&lasted), "{lasted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_while_the_link_is_mended_is_given_up_in_time() {
    let (client, peer, mut door, _process) = running(Kind::H).await;
    let began = Instant::now();
    peer.cut();
    // This peer answers `initialize`, and nothing after it.
    let mut peer = door.accept().await;
    peer.initialize(Kind::H).await;
    peer.request("process/read").await;
    lost(&client).await;
    assert_eq!(began.elapsed().as_secs(), 25);
}

#[tokio::test(start_paused = true)]
async fn links_that_break_during_the_handshake_are_tried_again() {
    let (client, peer, mut door, process) = running(CURRENT).await;
    let mut events = process.events();
    peer.cut();
    door.accept().await.cut();
    let mut peer = door.accept().await;
    peer.request("initialize").await;
    peer.cut();
    let mut peer = door.accept().await;
    peer.serve("initialize", CURRENT.greeting()).await;
    peer.cut();
    let mut peer = mended(&client, &mut door, CURRENT).await;
    peer.output("p", 1, "one").await;
    assert_eq!(next(&mut events).await, "out 1 one");
}

#[tokio::test(start_paused = true)]
async fn what_is_pushed_again_is_told_once_and_acknowledged_again() {
    let (_client, mut peer, mut door, process) = running(Kind::Current { window: 64 << 10 }).await;
    let mut events = process.events();
    let piece = vec![b'x'; 16 << 10];
    peer.outputs("p", 1..=3, &piece).await;
    take(&mut events, 3).await;
    assert_eq!(peer.ack().await, ("p".to_owned(), 2));
    peer.cut();
    // Events arrive before the answer to `initialize`, from the last acknowledgement that the server received.
    let mut peer = door.accept().await;
    let request = peer.request("initialize").await;
    peer.outputs("p", 2..=4, &piece).await;
    assert_eq!(next(&mut events).await, "out 4 16384 bytes");
    peer.answer(&request, CURRENT.greeting()).await;
    peer.initialized().await;
    // The acknowledgement may have been lost with the link, so it is sent again.
    assert_eq!(peer.ack().await, ("p".to_owned(), 3));
    peer.ends("p", 5, 0).await;
    assert_eq!(next(&mut events).await, "exit 5=0");
    assert_eq!(peer.ack().await, ("p".to_owned(), 4));
    assert_eq!(collect(&mut events).await, ["close 6"]);
    assert_eq!(peer.ack().await, ("p".to_owned(), 6));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_another_connection_took_is_not_taken_back() {
    for is_let_go in [true, false] {
        let (client, mut peer, mut door) = connect_by(crate::websocket(), Client::builder(), CURRENT).await;
        let began = Instant::now();
        // A close frame with the code for a session that was taken over.
        peer.raw([0x88, 0x02, 0x03, 0xf0]).await;
        let serving = async {
            loop {
                let mut peer = door.accept().await;
                let request = peer.request("initialize").await;
                let resumed = (&request.params["resumeSessionId"], request.params.get("takeover"));
                assert_eq!(resumed, (&json!(SESSION), None));
                if is_let_go && began.elapsed() > Duration::from_secs(1) {
                    peer.answer(&request, CURRENT.greeting()).await;
                    return peer;
                }
                peer.refuse(&request, -32010, Some("sessionAttached"), "session session-1 is attached").await;
            }
        };
        if is_let_go {
            let (_peer, ()) = both(serving, is_connected(&client)).await;
            continue;
        }
        let error = during(async { drop(serving.await) }, lost(&client)).await;
        assert_eq!(error.to_string(), "session session-1 is lost: another connection has taken it over");
        assert!(began.elapsed() <= Duration::from_secs(4));
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_goes_on_through_many_cuts() {
    let (client, mut peer, mut door, process) = running(CURRENT).await;
    let mut events = process.events();
    for seq in 1..=50 {
        peer.output("p", seq, seq.to_string()).await;
        assert_eq!(next(&mut events).await, format!("out {seq} {seq}"));
        peer.cut();
        peer = mended(&client, &mut door, CURRENT).await;
    }
    assert_eq!(door.attempts(), 51);
    peer.ends("p", 51, 0).await;
    assert_eq!(within(process.wait()).await.unwrap().code, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_each_resumed_link_is_called_with_pauses() {
    let (client, peer, mut door) = connect_with(Client::builder(), CURRENT).await;
    peer.cut();
    let began = Instant::now();
    // A single short link is replaced at once.
    mended(&client, &mut door, CURRENT).await.cut();
    assert!(began.elapsed() < Duration::from_millis(10));
    for _ in 0..20 {
        mended(&client, &mut door, CURRENT).await.cut();
    }
    assert!(began.elapsed() > Duration::from_millis(1900), "{:?}", began.elapsed());
    // After a link that lasted, the next one follows at once again.
    let peer = mended(&client, &mut door, CURRENT).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    let began = Instant::now();
    peer.cut();
    mended(&client, &mut door, CURRENT).await;
    assert!(began.elapsed() < Duration::from_millis(10));
}
