//! The raw client against a scripted server over an in-memory stream.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_server_rpc::{
    ByteStream, CloseReason, Framing, InboundFrame, Outbox, Receiver,
    calls::PendingError,
    client::{CallError, NotificationListener, RawClient},
    memory,
};
use futures_util::{FutureExt as _, future};
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};

const LINES: Framing = Framing::Lines { max: 1 << 20 };

/// The server's end.
struct ServerEnd {
    receiver: Receiver,
    outbox: Outbox,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
}

impl ServerEnd {
    async fn recv(&mut self) -> Value {
        match self.receiver.recv().await.unwrap() {
            InboundFrame::Message(bytes) => serde_json::from_slice(&bytes).unwrap(),
            InboundFrame::Ping(_) | InboundFrame::Pong(_) => panic!("lines have no control frames"),
        }
    }

    async fn send(&mut self, message: &Value) {
        self.outbox.message(0, |buf| serde_json::to_writer(buf, message).unwrap());
        self.outbox.flush_to(&mut self.writer).await.unwrap();
    }
}

/// The method and params of a notification.
type Received = (String, Option<Box<RawValue>>);

/// Puts notifications into a queue, and discards them once its receiver is dropped.
pub(crate) struct QueueListener(mpsc::Sender<Received>);

impl NotificationListener for QueueListener {
    async fn notification(&mut self, method: &str, params: Option<&RawValue>) -> Result<(), CloseReason> {
        self.0.send((method.to_owned(), params.map(RawValue::to_owned))).await.ok();
        Ok(())
    }

    async fn frame(&mut self, _: Bytes) -> Result<(), CloseReason> {
        Err(CloseReason::Protocol("a frame of a dialect that was not announced"))
    }
}

/// A listener, and the queue of up to 1024 notifications that it fills.
pub(crate) fn listener() -> (QueueListener, mpsc::Receiver<Received>) {
    let (notifications_tx, notifications_rx) = mpsc::channel(1024);
    (QueueListener(notifications_tx), notifications_rx)
}

fn pair() -> (RawClient, ServerEnd) {
    pair_with(listener().0)
}

fn pair_with(listener: QueueListener) -> (RawClient, ServerEnd) {
    let (near, far) = memory(64 * 1024);
    let receiver = Receiver::new(LINES, far.reader, far.leftover);
    (RawClient::new(near, LINES, listener), ServerEnd { receiver, outbox: Outbox::new(LINES), writer: far.writer })
}

async fn call(client: &RawClient, method: &str, params: &impl serde::Serialize) -> Result<Box<RawValue>, CallError> {
    client.send(method, params).await?.answer().await
}

fn disconnected(error: CallError) -> Arc<CloseReason> {
    match error {
        CallError::Pending(PendingError::Disconnected(closed)) => closed,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn stdio_connection_reads_and_writes_jsonrpc_messages() {
    let (client, mut server) = pair();
    let serve = async {
        let request = server.recv().await;
        assert_eq!(request, json!({"id": 1, "method": "echo", "params": {"text": "a\nb"}}));
        server.send(&json!({"id": 1, "result": request["params"]})).await;
    };
    let params = json!({"text": "a\nb"});
    let (result, ()) = tokio::join!(call(&client, "echo", &params), serve);
    assert_eq!(result.unwrap().get(), r#"{"text":"a\nb"}"#);
}

#[tokio::test]
async fn rpc_client_matches_out_of_order_responses_by_request_id() {
    let (client, mut server) = pair();
    let serve = async {
        let (first, second) = (server.recv().await, server.recv().await);
        server.send(&json!({"id": 99, "result": "unasked"})).await;
        server.send(&json!({"id": -1, "error": {"code": -32600, "message": "stray"}})).await;
        server.send(&json!({"id": second["id"], "result": second["method"]})).await;
        let error = json!({"code": -32004, "message": "no", "data": {"kind": "notFound"}});
        server.send(&json!({"id": first["id"], "error": error})).await;
    };
    let (first, second, ()) = tokio::join!(call(&client, "first", &()), call(&client, "second", &()), serve);
    assert_eq!(second.unwrap().get(), r#""second""#);
    let CallError::Rpc { code: -32004, message, data: Some(data) } = first.unwrap_err() else { panic!("an error") };
    assert_eq!((message.as_str(), data.get()), ("no", r#"{"kind":"notFound"}"#));
}

#[tokio::test]
async fn stdio_connection_reports_parse_errors() {
    for bad in ["not json\n", "[]\n", "{\"id\":1}\n"] {
        let (client, mut server) = pair();
        server.writer.write_all(bad.as_bytes()).await.unwrap();
        let closed = disconnected(call(&client, "any", &()).await.unwrap_err());
        assert!(matches!(*closed, CloseReason::Protocol("malformed message")), "{closed:?}");
    }
}

#[tokio::test]
async fn an_answer_before_the_end_wins_and_every_other_call_fails() {
    let (listener, mut notifications) = listener();
    let (client, mut server) = pair_with(listener);
    let serve = async {
        let first = server.recv().await;
        server.recv().await;
        server.send(&json!({"method": "last", "params": 1})).await;
        server.send(&json!({"id": first["id"], "result": null})).await;
        drop(server);
    };
    let (first, second, ()) = tokio::join!(call(&client, "first", &()), call(&client, "second", &()), serve);
    assert_eq!(first.unwrap().get(), "null");
    assert!(matches!(*disconnected(second.unwrap_err()), CloseReason::Eof));
    assert!(matches!(*disconnected(call(&client, "third", &()).await.unwrap_err()), CloseReason::Eof));
    assert!(matches!(*client.closed().await, CloseReason::Eof));
    assert_eq!(notifications.recv().await.unwrap().0, "last");
    assert!(notifications.recv().await.is_none());
}

#[tokio::test]
async fn requests_of_the_server_are_refused() {
    let (_client, mut server) = pair();
    server.send(&json!({"id": "x-1", "method": "ask"})).await;
    let answer = server.recv().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("x-1"), &json!(-32601)));
}

#[tokio::test(start_paused = true)]
async fn rpc_client_call_has_no_implicit_deadline() {
    let (client, mut server) = pair();
    let serve = async {
        let request = server.recv().await;
        tokio::time::advance(Duration::from_secs(30 * 24 * 3600)).await;
        server.send(&json!({"id": request["id"], "result": 1})).await;
    };
    let (result, ()) = tokio::join!(call(&client, "slow", &()), serve);
    assert_eq!(result.unwrap().get(), "1");
}

#[tokio::test(start_paused = true)]
async fn rpc_client_timeout_removes_pending_request() {
    let (client, mut server) = pair();
    let calling = tokio::time::timeout(Duration::from_secs(1), call(&client, "slow", &()));
    let (result, request) = tokio::join!(calling, server.recv());
    assert!(result.is_err());
    assert_eq!(client.in_flight(), 0);
    // The late answer is ignored.
    let serve = async {
        server.send(&json!({"id": request["id"], "result": "late"})).await;
        let next = server.recv().await;
        server.send(&json!({"id": next["id"], "result": "next"})).await;
    };
    let (result, ()) = tokio::join!(call(&client, "next", &()), serve);
    assert_eq!(result.unwrap().get(), r#""next""#);
}

#[tokio::test]
async fn rpc_client_bounds_in_flight_calls() {
    let (client, mut server) = pair();
    let calls: Vec<_> = (0..1024).map(|_| Box::pin(call(&client, "wait", &()))).collect();
    let mut calls = future::join_all(calls);
    let serve = async {
        let mut requests = Vec::new();
        while requests.len() < 1024 {
            requests.push(server.recv().await);
        }
        requests
    };
    let requests = tokio::select! {
        requests = serve => requests,
        _ = &mut calls => panic!("no answer was sent"),
    };
    let error = call(&client, "one more", &()).now_or_never().expect("refused at once").unwrap_err();
    assert!(matches!(error, CallError::Pending(PendingError::Full { limit: 1024 })));
    let answer = async {
        for request in requests.iter().rev() {
            server.send(&json!({"id": request["id"], "result": request["id"]})).await;
        }
    };
    let (results, ()) = tokio::join!(calls, answer);
    for (id, result) in (1..).zip(results) {
        assert_eq!(result.unwrap().get(), id.to_string());
    }
}

#[tokio::test]
async fn notifications_wait_for_a_slow_user_and_keep_their_order() {
    const COUNT: u64 = 5000;
    let (listener, mut notifications) = listener();
    let (client, mut server) = pair_with(listener);
    let serve = async {
        for number in 0..COUNT {
            server.send(&json!({"method": "n", "params": number})).await;
        }
        server
    };
    let consume = async {
        // Wait until the queue is full and the sender is blocked.
        while notifications.len() < 1024 {
            tokio::task::yield_now().await;
        }
        for number in 0..COUNT {
            let params = notifications.recv().await.unwrap().1.unwrap();
            assert_eq!(params.get(), number.to_string());
        }
    };
    let (mut server, ()) = tokio::join!(serve, consume);
    // A listener that discards notifications does not block the reader.
    drop(notifications);
    let serve = async {
        for number in 0..COUNT {
            server.send(&json!({"method": "n", "params": number})).await;
        }
        let request = server.recv().await;
        server.send(&json!({"id": request["id"], "result": true})).await;
    };
    let (result, ()) = tokio::join!(call(&client, "after", &()), serve);
    assert_eq!(result.unwrap().get(), "true");
}

#[tokio::test]
async fn no_call_hangs_on_a_half_open_link() {
    // Reads never complete while `far` lives. Writes fail, because the other end of their stream is dropped.
    let (near, far) = memory(64);
    let (broken, _) = tokio::io::duplex(64);
    let client = RawClient::new(ByteStream::new(near.reader, broken), LINES, listener().0);
    for _ in 0..2 {
        let closed = disconnected(call(&client, "any", &()).await.unwrap_err());
        assert!(matches!(&*closed, CloseReason::Io(error) if error.kind() == io::ErrorKind::BrokenPipe), "{closed:?}");
    }
    drop(far);
}

#[tokio::test]
async fn dropping_the_client_ends_the_connection() {
    let (client, mut server) = pair();
    drop(client);
    assert!(matches!(server.receiver.recv().await, Err(CloseReason::Eof)));
}
