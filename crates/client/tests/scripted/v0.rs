//! Servers of the first generation: `command/exec`, events without numbers, and no sessions, so that nothing can be resumed.

use crate::prelude::*;
use exec_server_client::{Generation, protocol::process::WriteStatus};

async fn delta(peer: &mut Peer, id: &str, stream: &str, text: &str) {
    let chunk = base64::encode(text.as_bytes());
    peer.notify("command/exec/outputDelta", json!({"processId": id, "stream": stream, "chunk": chunk})).await;
}

#[tokio::test(start_paused = true)]
async fn exec_server_client_streams_output_and_accepts_writes() {
    let (client, mut peer, _door) = connect(Kind::V0).await;
    assert_eq!((client.server().generation, client.session_id()), (Generation::V0, None));
    let shell = named("p").tty(None).arg0("sh").env("A", "1");
    let (process, params) = both(client.start(shell), peer.serve_start()).await;
    let process = process.unwrap();
    let expected =
        json!({"processId": "p", "argv": ["program"], "cwd": "/", "env": {"A": "1"}, "tty": true, "arg0": "sh"});
    assert_eq!(params, expected);
    assert_eq!((process.pid(), process.session_id(), process.is_tty()), (Some(77), None, true));
    let mut events = process.events();
    delta(&mut peer, "p", "stdout", "ready").await;
    assert_eq!(next(&mut events).await, "out 1 ready");
    let (written, params) =
        both(process.write("hello"), peer.serve("command/exec/write", json!({"accepted": true}))).await;
    assert_eq!(written.unwrap(), WriteStatus::Accepted);
    assert_eq!(params, json!({"processId": "p", "chunk": base64::encode(b"hello")}));
    delta(&mut peer, "p", "stdout", "echo:hello").await;
    delta(&mut peer, "p", "stderr", "and out").await;
    assert_eq!(take(&mut events, 2).await, ["out 2 echo:hello", "err 3 and out"]);
    let (ended, params) =
        both(process.terminate(None), peer.serve("command/exec/terminate", json!({"running": true}))).await;
    assert!(ended.unwrap());
    assert_eq!(params, json!({"processId": "p"}));
    // On V0 the exit is the last event, so the client also reports the close.
    peer.notify("command/exec/exited", json!({"processId": "p", "exitCode": 9})).await;
    delta(&mut peer, "p", "stdout", "too late").await;
    assert_eq!(collect(&mut events).await, ["exit 4=9", "close 5"]);
    assert_eq!(within(process.wait()).await.unwrap().code, 9);
    assert!(peer.is_silent().await, "nothing is acknowledged");
}

#[tokio::test(start_paused = true)]
async fn what_it_cannot_do_is_a_clear_error() {
    let (client, mut peer, _door, process) = running(Kind::V0).await;
    let read = within(process.read(0, None, Duration::ZERO)).await.unwrap_err();
    assert!(matches!(&read, Error::Protocol(text) if text.contains("exec-server.v0") && text.contains("cannot read")));
    let attached = within(client.attach(&"p".into(), Attach::default())).await;
    for kind in [
        error_kind(within(process.signal("INT")).await),
        error_kind(within(process.close_stdin()).await),
        error_kind(within(process.terminate(Some(Duration::from_secs(1)))).await),
        error_kind(attached),
    ] {
        assert_eq!(kind, ErrorKind::Protocol);
    }
    assert!(peer.is_silent().await);
    // V0 has no write status, so a refused write is an error of the server.
    let (written, ()) =
        both(process.write("x"), peer.refuse_next("command/exec/write", -32600, None, "stdin is closed")).await;
    assert_eq!(written.unwrap_err().to_string(), "stdin is closed");
}

#[tokio::test(start_paused = true)]
async fn a_cut_is_the_end_at_once_and_says_why() {
    let (client, mut peer, door, process) = running(Kind::V0).await;
    delta(&mut peer, "p", "stdout", "one").await;
    let (written, ()) = both(process.write("x"), async {
        peer.request("command/exec/write").await;
        peer.cut();
    })
    .await;
    assert!(matches!(written.unwrap_err(), Error::UnknownOutcome { .. }));
    let why = "exec-server transport disconnected: peer closed the stream";
    let story = collect(&mut process.events()).await;
    assert_eq!(story[0], "out 1 one");
    assert!(story[1].starts_with(&format!("failed Disconnected: {why}")), "{story:?}");
    let ConnectionState::Lost { error } = client.state() else { panic!("{:?}", client.state()) };
    assert!(error.to_string().starts_with(why), "{error}");
    assert_eq!(error_kind(within(process.write("y")).await), ErrorKind::Disconnected);
    assert_eq!(error_kind(within(client.start(named("q"))).await), ErrorKind::Disconnected);
    settle().await;
    assert_eq!(door.attempts(), 1, "there is no session to come back to");
}

#[tokio::test(start_paused = true)]
async fn a_late_reader_finds_a_gap_where_memory_ends() {
    let (_client, mut peer, _door, process) = running(Kind::V0).await;
    let mut first = process.events();
    let piece = "x".repeat(512 << 10);
    for _ in 0..4 {
        delta(&mut peer, "p", "stdout", &piece).await;
    }
    take(&mut first, 4).await;
    assert!(is_pending(first.next()).await);
    let mut late = process.events();
    assert_eq!(next(&mut late).await, "gap 1-2");
    assert_eq!(take(&mut late, 2).await, ["out 3 524288 bytes", "out 4 524288 bytes"]);
    assert!(peer.is_silent().await);
}
