//! Hostile servers at the level of messages and connections: the client reports a typed error, in bounded time and memory. Wrong numbers in
//! well-formed messages are tested in `hostile_numbers`.

use futures_util::{FutureExt as _, stream::FuturesUnordered};

use crate::prelude::*;

/// Lines that are not a message, or that are not a valid notification.
const GARBAGE: &[&[u8]] = &[
    b"garbage\n",
    b"\xff\xfe\n",
    b"[1,2]\n",
    b"{}\n",
    b"{\"id\":null,\"method\":\"x\"}\n",
    b"{\"method\":\"process/output\"}\n",
    b"{\"method\":\"process/output\",\"params\":[]}\n",
    b"{\"method\":\"process/output\",\"params\":{\"processId\":\"p\",\"seq\":-1,\"stream\":\"stdout\",\"chunk\":\"\"}}\n",
    b"{\"method\":\"process/output\",\"params\":{\"processId\":\"p\",\"seq\":1e99,\"stream\":\"stdout\",\"chunk\":\"\"}}\n",
    b"{\"method\":\"process/output\",\"params\":{\"processId\":\"p\",\"seq\":1,\"stream\":\"x\",\"chunk\":\"\"}}\n",
    b"{\"method\":\"process/output\",\"params\":{\"processId\":\"p\",\"seq\":1,\"stream\":\"stdout\",\"chunk\":\"?\"}}\n",
    b"{\"method\":\"process/exited\",\"params\":{\"processId\":\"p\",\"seq\":1,\"exitCode\":99999999999}}\n",
    b"{\"method\":\"process/closed\",\"params\":{\"processId\":\"p\"}}\n",
    b"{\"method\":\"process/gap\",\"params\":{\"processId\":\"p\",\"fromSeq\":1}}\n",
];

#[tokio::test(start_paused = true)]
async fn garbage_is_a_cut_and_the_process_goes_on() {
    for garbage in GARBAGE {
        let (client, mut peer, mut door, process) = running(CURRENT).await;
        let mut events = process.events();
        peer.raw(garbage).await;
        // The resume repeats the event that the invalid message may have contained.
        let (mut peer, params) = door.welcome(CURRENT).await;
        assert_eq!(params["resumeSessionId"], SESSION);
        is_connected(&client).await;
        peer.output("p", 1, "one").await;
        assert_eq!(next(&mut events).await, "out 1 one", "{}", String::from_utf8_lossy(garbage));
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_after_every_handshake_ends_in_a_protocol_error() {
    for kind in [CURRENT, Kind::H] {
        let (client, mut peer, mut door, process) = running(kind).await;
        let began = Instant::now();
        peer.raw("garbage\n").await;
        let serving = async {
            loop {
                let (mut peer, _) = door.welcome(kind).await;
                peer.raw("garbage\n").await;
            }
        };
        let error = during(serving, lost(&client)).await;
        assert!(matches!(&error, Error::Protocol(text) if text.contains("malformed")), "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        assert!(door.attempts() <= 10, "{}", door.attempts());
        assert_eq!(error_kind(within(process.wait()).await), ErrorKind::Protocol);
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_in_every_handshake_ends_in_a_protocol_error() {
    let (client, peer, mut door) = connect(CURRENT).await;
    let began = Instant::now();
    peer.cut();
    let serving = async {
        loop {
            let mut peer = door.accept().await;
            peer.request("initialize").await;
            peer.raw("HTTP/1.1 502 Bad Gateway\n").await;
        }
    };
    let error = during(serving, lost(&client)).await;
    assert!(matches!(&error, Error::Protocol(text) if text.contains("malformed")), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(door.attempts() <= 10, "{}", door.attempts());
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_answers_nonsense_for_a_while_is_outlived() {
    let (client, peer, mut door) = connect(CURRENT).await;
    peer.cut();
    for _ in 0..3 {
        let mut peer = door.accept().await;
        peer.request("initialize").await;
        peer.raw("upstream is restarting\n").await;
    }
    door.welcome(CURRENT).await;
    is_connected(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_above_the_limit_is_a_cut() {
    let (client, mut peer, mut door) = connect_by(crate::narrow(1 << 20, 64 << 10), Client::builder(), CURRENT).await;
    let process = start(&client, &mut peer, named("p")).await;
    let mut events = process.events();
    peer.output("p", 1, vec![b'x'; 40 << 10]).await;
    assert_eq!(next(&mut events).await, "out 1 40960 bytes");
    peer.output("p", 2, vec![b'x'; 60 << 10]).await;
    let state = until(&client, |state| matches!(state, ConnectionState::Recovering { .. })).await;
    let ConnectionState::Recovering { reason } = state else { panic!("{state:?}") };
    assert_eq!(reason, "message is larger than `65536` bytes");
    let (mut peer, _) = door.welcome(CURRENT).await;
    peer.output("p", 2, "smaller").await;
    assert_eq!(next(&mut events).await, "out 2 smaller");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_inside_of_a_frame_is_a_cut() {
    let whole = |text: &str| {
        let mut frame = vec![0x81, u8::try_from(text.len()).unwrap()];
        frame.extend_from_slice(text.as_bytes());
        frame
    };
    let frame = whole(r#"{"method":"process/closed","params":{"processId":"p","seq":1}}"#);
    for kept in [1, 2, 3, frame.len() - 1] {
        let (client, mut peer, mut door) = connect_by(crate::websocket(), Client::builder(), CURRENT).await;
        let process = start(&client, &mut peer, named("p")).await;
        peer.raw(&frame[..kept]).await;
        peer.cut();
        let (mut peer, _) = door.welcome(CURRENT).await;
        is_connected(&client).await;
        assert!(process.closed().is_none());
        peer.ends("p", 1, 0).await;
        assert_eq!(within(process.wait()).await.unwrap().code, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_changes_on_resume_is_lost() {
    for other in [json!({"sessionId": "another"}), json!({"protocolVersion": "exec-server.v0"}), json!({})] {
        let (client, peer, mut door, process) = running(CURRENT).await;
        peer.cut();
        let mut peer = door.accept().await;
        peer.serve("initialize", other).await;
        let error = lost(&client).await;
        assert!(matches!(&error, Error::Protocol(text) if text.contains(SESSION)), "{error:?}");
        assert_eq!(collect(&mut process.events()).await, [format!("failed Protocol: {error}")]);
        assert!(peer.is_left().await);
    }
}

#[tokio::test(start_paused = true)]
async fn nonsense_in_place_of_a_resume_is_lost_with_a_decode_error() {
    let (client, peer, mut door) = connect(CURRENT).await;
    peer.cut();
    let mut peer = door.accept().await;
    peer.serve("initialize", json!("welcome back")).await;
    assert!(matches!(lost(&client).await, Error::Decode { method, .. } if method == "initialize"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_reads_holds_writers_and_nobody_else() {
    let (way, mut door) = crate::narrow(4096, 1 << 20);
    let builder = Client::builder().call_timeout(Duration::from_secs(5));
    let (client, (mut peer, _)) = both(builder.open(way), door.welcome(CURRENT)).await;
    let client = client.unwrap();
    let process = start(&client, &mut peer, named("p")).await;
    let mut events = process.events();
    // 8 MiB or 256 writes can be queued. Later writes wait.
    let line = bytes::Bytes::from(vec![b'x'; 1 << 20]);
    let mut writes: FuturesUnordered<_> = (0..300).map(|_| process.write(line.clone())).collect();
    assert!(is_pending(futures_util::StreamExt::next(&mut writes)).await);
    // Messages of the server are still received.
    peer.output("p", 1, "one").await;
    assert_eq!(next(&mut events).await, "out 1 one");
    let began = Instant::now();
    assert_eq!(error_kind(within(process.read(0, None, Duration::ZERO)).await), ErrorKind::UnknownOutcome);
    assert_eq!(began.elapsed().as_secs(), 5);
    drop(writes);
    drop(peer);
    settle().await;
    assert!(matches!(client.state(), ConnectionState::Recovering { .. }));
}

#[tokio::test(start_paused = true)]
async fn writes_without_answers_do_not_hold_a_read() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    let writes = join_all((0..200).map(|_| process.write("x")));
    tokio::pin!(writes);
    assert!((&mut writes).now_or_never().is_none());
    for _ in 0..16 {
        peer.request("process/write").await;
    }
    let result = read_result(&[(1, "one")], 2, None, false);
    let (read, _) = both(process.read(0, None, Duration::ZERO), peer.serve("process/read", result)).await;
    assert_eq!(read.unwrap().chunks.len(), 1);
    assert!(is_pending(writes).await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_and_never_reads_hangs_no_call() {
    let (client, mut peer, mut door) =
        connect_by(crate::narrow(4096, 1 << 20), Client::builder(), Kind::Current { window: 1 << 16 }).await;
    let process = start(&client, &mut peer, named("p")).await;
    let mut events = process.events();
    let calls = join_all((0..500).map(|_| process.signal("INT")));
    tokio::pin!(calls);
    assert!(is_pending(&mut calls).await);
    // An acknowledgement is also due, and cannot be sent, either.
    peer.output("p", 1, vec![b'x'; 32 << 10]).await;
    assert_eq!(next(&mut events).await, "out 1 32768 bytes");
    assert!(is_pending(events.next()).await);
    // The server closes its sending direction and then stays silent. Unsent calls continue on the next connection.
    peer.half_close().await;
    let (results, sent) = both(calls, async {
        let (mut peer, _) = door.welcome(Kind::Current { window: 1 << 16 }).await;
        let mut sent = 0;
        while let Some(message) = next_message(&mut peer).await {
            if message["method"] == "process/signal" {
                peer.send(&json!({"id": message["id"], "result": {}})).await;
                sent += 1;
            }
        }
        sent
    })
    .await;
    let unknown = results.iter().filter(|result| matches!(result, Err(Error::UnknownOutcome { .. }))).count();
    let answered = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!((unknown + answered, answered), (500, sent));
    assert!(unknown > 0 && answered > 0, "{unknown} {answered}");
}

/// The next message, if it arrives at once.
async fn next_message(peer: &mut Peer) -> Option<Value> {
    tokio::time::timeout(Duration::from_millis(1), peer.recv()).await.ok().flatten()
}

#[tokio::test(start_paused = true)]
async fn requests_without_end_to_a_client_that_is_not_read_take_no_memory() {
    let (way, mut door) = crate::narrow(4096, 1 << 20);
    let (client, (mut peer, _)) = both(Client::builder().open(way), door.welcome(CURRENT)).await;
    let _client = client.unwrap();
    let mut sent = 0;
    let flooding = async {
        loop {
            peer.send(&json!({"id": sent, "method": "network/policyRequest"})).await;
            sent += 1;
        }
    };
    // The refusals fill their queue and the pipe. After that the client stops reading the flood.
    assert!(is_pending(flooding).await);
    assert!(sent < 1000, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_missed_past_without_end_is_bounded() {
    let (client, mut peer, mut door) = connect_with(Client::builder(), Kind::H).await;
    let process = start(&client, &mut peer, named("p")).await;
    let _unread = process.events();
    peer.cut();
    let (mut peer, _) = door.welcome(Kind::H).await;
    let piece = vec![b'x'; 4 << 20];
    let chunk = base64::encode(&piece);
    let mut told: usize = 0;
    let serving = async {
        loop {
            let request = peer.request("process/read").await;
            let next = request.params["afterSeq"].as_u64().unwrap() + 1;
            let end = format!(r#""nextSeq":{},"exited":false,"exitCode":null,"closed":false,"failure":null"#, next + 1);
            let chunks = format!(r#"[{{"seq":{next},"stream":"stdout","chunk":"{chunk}"}}]"#);
            peer.answer_text(&request, &format!(r#"{{"chunks":{chunks},{end}}}"#)).await;
            told += piece.len();
            assert!(told < 64 << 20, "the client keeps everything that it is told");
        }
    };
    // The client reads no more than a reader may lag behind, and then counts as connected.
    during(serving, is_connected(&client)).await;
    assert_eq!(next(&mut process.events()).await, "out 1 4194304 bytes");
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_no_server() {
    let (client, mut peer, _door) = connect_by(crate::narrow(4096, 1 << 20), Client::builder(), CURRENT).await;
    let process = start(&client, &mut peer, named("p")).await;
    let calls = join_all((0..500).map(|_| process.signal("INT")));
    tokio::pin!(calls);
    assert!(is_pending(&mut calls).await);
    peer.ends("p", 1, 0).await;
    drop(process.events_after(2));
    let began = Instant::now();
    within(client.close()).await;
    assert!(began.elapsed() <= Duration::from_secs(5), "{:?}", began.elapsed());
    for result in within(calls).await {
        assert!(matches!(result, Err(Error::UnknownOutcome { .. } | Error::Disconnected { .. })), "{result:?}");
    }
}
