//! One connection on the scripted server's side: reads the client's messages, answers them, or misbehaves.

use std::{collections::VecDeque, ops::RangeInclusive, sync::Mutex};

use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use super::{SESSION, within};
use crate::prelude::*;
use exec_server_client::protocol::{capabilities::ServerCapabilities, message};
use exec_server_rpc::{ByteStream, Framing, InboundFrame, Outbox, Receiver, TcpProbe};

/// The kind of server that is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A current server, with this window.
    Current { window: u64 },
    /// The newest reference server: it has `environment/info` and remembers write ids.
    H,
    /// The older reference server: it has neither.
    S,
    /// The first generation.
    V0,
}

/// A current server with its default window.
pub(crate) const CURRENT: Kind = Kind::Current { window: 4 << 20 };

impl Kind {
    /// The result of `initialize`.
    pub(crate) fn greeting(self) -> Value {
        match self {
            Self::Current { window } => {
                let capabilities = ServerCapabilities { ack_window_bytes: window, ..ServerCapabilities::served() };
                json!({"sessionId": SESSION, "protocolVersion": "exec-server.v0", "capabilities": capabilities})
            }
            Self::H | Self::S => json!({"sessionId": SESSION}),
            Self::V0 => json!({"protocolVersion": "exec-server.v0"}),
        }
    }
}

/// A request of the client.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: i64,
    pub(crate) method: String,
    pub(crate) params: Value,
}

/// The server's end of a connection.
pub(crate) struct Peer {
    receiver: Receiver,
    outbox: Outbox,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    kind: Kind,
    /// Acknowledgements that were skipped while waiting for another message.
    acks: VecDeque<(String, u64)>,
    /// Since when the client receives nothing from this peer, not even TCP acknowledgements.
    dead_since: Arc<Mutex<Option<Instant>>>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Peer {
    pub(super) fn new(stream: ByteStream, framing: Framing) -> Self {
        let receiver = Receiver::new(framing, stream.reader, stream.leftover);
        let outbox = Outbox::new(framing);
        let (kind, acks, dead_since) = (super::peer::CURRENT, VecDeque::new(), Arc::default());
        Self { receiver, outbox, writer: stream.writer, kind, acks, dead_since }
    }

    /// The TCP probe of the client's end.
    pub(super) fn probe(&self) -> TcpProbe {
        let dead_since = Arc::clone(&self.dead_since);
        TcpProbe::from_fn(move || {
            let silent = dead_since.lock().unwrap().map_or(Duration::ZERO, |since| since.elapsed());
            u32::try_from(silent.as_millis()).ok()
        })
    }

    /// Makes the link dead from now on, without a close. Works only on a link with a probe.
    pub(crate) fn go_dead(&self) {
        *self.dead_since.lock().unwrap() = Some(Instant::now());
    }

    /// The next message, including acknowledgements; `None` when the client has closed the connection.
    pub(crate) async fn recv(&mut self) -> Option<Value> {
        loop {
            match within(self.receiver.recv()).await {
                Ok(InboundFrame::Message(bytes)) => {
                    return Some(serde_json::from_slice(message::detach(&bytes).0).unwrap());
                }
                Ok(InboundFrame::Ping(payload)) => {
                    self.outbox.pong(&payload);
                    within(self.outbox.flush_to(&mut self.writer)).await.ok();
                }
                Ok(InboundFrame::Pong(_)) => {}
                Err(_) => return None,
            }
        }
    }

    /// The next message as bytes.
    pub(crate) async fn recv_bytes(&mut self) -> Vec<u8> {
        match within(self.receiver.recv()).await {
            Ok(InboundFrame::Message(bytes)) => bytes.to_vec(),
            other => panic!("a message, not {other:?}"),
        }
    }

    /// Sends a frame of the dialect `binary`, valid or not.
    pub(crate) async fn frame(&mut self, frame: &[u8]) {
        self.outbox.binary(frame, &[]);
        within(self.outbox.flush_to(&mut self.writer)).await.unwrap();
    }

    /// The next message that is not an acknowledgement.
    async fn message(&mut self) -> Value {
        loop {
            let message = self.recv().await.expect("the client goes on");
            match self.as_ack(&message) {
                Some(ack) => self.acks.push_back(ack),
                None => return message,
            }
        }
    }

    fn as_ack(&self, message: &Value) -> Option<(String, u64)> {
        let params = &message["params"];
        let is_ack = message["method"] == "process/ack";
        is_ack.then(|| (params["processId"].as_str().unwrap().to_owned(), params["seq"].as_u64().unwrap()))
    }

    /// The next acknowledgement: its process and its sequence number.
    pub(crate) async fn ack(&mut self) -> (String, u64) {
        if let Some(ack) = self.acks.pop_front() {
            return ack;
        }
        let message = self.recv().await.expect("the client goes on");
        self.as_ack(&message).unwrap_or_else(|| panic!("not an acknowledgement: {message}"))
    }

    /// Whether the client sends nothing.
    pub(crate) async fn is_silent(&mut self) -> bool {
        self.acks.is_empty() && timeout(Duration::from_millis(1), self.receiver.recv()).await.is_err()
    }

    /// Whether the client has closed the connection.
    pub(crate) async fn is_left(&mut self) -> bool {
        self.recv().await.is_none()
    }

    /// The next request of any method.
    pub(crate) async fn any_request(&mut self) -> Request {
        let message = self.message().await;
        let id = message["id"].as_i64().unwrap_or_else(|| panic!("not a request: {message}"));
        Request { id, method: message["method"].as_str().unwrap().to_owned(), params: message["params"].clone() }
    }

    /// The next request, which must be of this method.
    pub(crate) async fn request(&mut self, method: &str) -> Request {
        let request = self.any_request().await;
        assert_eq!(request.method, method, "{request:?}");
        request
    }

    /// Answers the next request, which must be of this method. Returns its params.
    pub(crate) async fn serve(&mut self, method: &str, result: Value) -> Value {
        let request = self.request(method).await;
        self.answer(&request, result).await;
        request.params
    }

    /// Does the handshake of this kind of server. Returns the params of `initialize`.
    pub(crate) async fn initialize(&mut self, kind: Kind) -> Value {
        self.kind = kind;
        let params = self.serve("initialize", kind.greeting()).await;
        self.initialized().await;
        params
    }

    /// Expects the notification that completes the handshake.
    pub(crate) async fn initialized(&mut self) {
        let message = self.message().await;
        assert_eq!(message, json!({"method": "initialized", "params": {}}));
    }

    /// Serves a start. Returns its params.
    pub(crate) async fn serve_start(&mut self) -> Value {
        let mut request = self.any_request().await;
        if request.method == "environment/info" {
            self.answer_info(&request).await;
            request = self.any_request().await;
        }
        let id = request.params["processId"].clone();
        let result = match (request.method.as_str(), self.kind) {
            ("process/start", Kind::Current { .. }) => json!({"processId": id, "sandboxType": "none", "pid": 4321}),
            ("process/start", Kind::H) => json!({"processId": id, "sandboxType": "none"}),
            ("process/start", Kind::S) => json!({"processId": id}),
            ("command/exec", Kind::V0) => {
                json!({"processId": id, "pid": 77, "running": true, "exitCode": null, "stdout": null, "stderr": null})
            }
            other => panic!("not a start: {other:?}"),
        };
        self.answer(&request, result).await;
        request.params
    }

    /// Answers `environment/info` as this kind of server does.
    pub(crate) async fn answer_info(&mut self, request: &Request) {
        match self.kind {
            Kind::Current { .. } | Kind::H => {
                let shell = json!({"name": "sh", "path": "/bin/sh"});
                self.answer(request, json!({"shell": shell, "cwd": "file:///srv"})).await;
            }
            Kind::S | Kind::V0 => self.refuse(request, -32601, None, "unknown method environment/info").await,
        }
    }

    /// Answers a request.
    pub(crate) async fn answer(&mut self, request: &Request, result: Value) {
        self.send(&json!({"id": request.id, "result": result})).await;
    }

    /// Answers a request with text that is JSON already.
    pub(crate) async fn answer_text(&mut self, request: &Request, result: &str) {
        self.line(format!(r#"{{"id":{},"result":{result}}}"#, request.id)).await;
    }

    /// Answers a request with an error.
    pub(crate) async fn refuse(&mut self, request: &Request, code: i64, kind: Option<&str>, message: &str) {
        let mut error = json!({"code": code, "message": message});
        if let Some(kind) = kind {
            error["data"] = json!({"kind": kind});
        }
        self.send(&json!({"id": request.id, "error": error})).await;
    }

    /// Answers the next request, which must be of this method, with an error.
    pub(crate) async fn refuse_next(&mut self, method: &str, code: i64, kind: Option<&str>, message: &str) {
        let request = self.request(method).await;
        self.refuse(&request, code, kind, message).await;
    }

    /// Answers the next request, which must be `environment/info`.
    pub(crate) async fn serve_info(&mut self) {
        let request = self.request("environment/info").await;
        self.answer_info(&request).await;
    }

    /// Sends a notification.
    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"method": method, "params": params})).await;
    }

    /// Sends output of a process on stdout.
    pub(crate) async fn output(&mut self, id: &str, seq: u64, bytes: impl AsRef<[u8]>) {
        self.output_on(id, seq, "stdout", bytes).await;
    }

    /// Sends the same output of a process on stdout with each of these numbers.
    pub(crate) async fn outputs(&mut self, id: &str, seqs: RangeInclusive<u64>, bytes: impl AsRef<[u8]>) {
        for seq in seqs {
            self.output(id, seq, &bytes).await;
        }
    }

    /// Sends output of a process on one of its streams.
    pub(crate) async fn output_on(&mut self, id: &str, seq: u64, stream: &str, bytes: impl AsRef<[u8]>) {
        self.output_of(None, id, seq, stream, bytes).await;
    }

    /// Sends output of a process, with the session id if it is not the client's own.
    pub(crate) async fn output_of(
        &mut self,
        session: Option<&str>,
        id: &str,
        seq: u64,
        stream: &str,
        bytes: impl AsRef<[u8]>,
    ) {
        let mut head = json!({"processId": id, "seq": seq, "stream": stream});
        if let Some(session) = session {
            head["sessionId"] = json!(session);
        }
        let head = head.to_string();
        let (head, chunk) = (head.trim_end_matches('}'), base64::encode(bytes.as_ref()));
        // Formatted by hand: writing megabytes through a `Value` would take most of a test's time.
        self.line(format!(r#"{{"method":"process/output","params":{head},"chunk":"{chunk}"}}}}"#)).await;
    }

    /// Sends the exit of a process.
    pub(crate) async fn exited(&mut self, id: &str, seq: u64, code: i32) {
        self.notify("process/exited", json!({"processId": id, "seq": seq, "exitCode": code})).await;
    }

    /// Sends the close of a process.
    pub(crate) async fn closed(&mut self, id: &str, seq: u64) {
        self.notify("process/closed", json!({"processId": id, "seq": seq})).await;
    }

    /// Sends the exit of a process with this number, and its close with the next.
    pub(crate) async fn ends(&mut self, id: &str, seq: u64, code: i32) {
        self.exited(id, seq, code).await;
        self.closed(id, seq + 1).await;
    }

    /// Sends a message. The client may be gone.
    pub(crate) async fn send(&mut self, message: &Value) {
        self.line(message.to_string()).await;
    }

    async fn line(&mut self, message: String) {
        self.outbox.message(message.len(), |buf| buf.extend_from_slice(message.as_bytes()));
        within(self.outbox.flush_to(&mut self.writer)).await.ok();
    }

    /// Sends bytes unchanged. The client may be gone.
    pub(crate) async fn raw(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.writer.write_all(bytes.as_ref())).await.ok();
    }

    /// Closes the sending direction, and keeps receiving.
    pub(crate) async fn half_close(&mut self) {
        within(self.writer.shutdown()).await.unwrap();
    }

    /// Cuts the connection.
    pub(crate) fn cut(self) {
        drop(self);
    }
}

/// The result of a `process/read`: chunks with their sequence numbers, and the state of the process.
pub(crate) fn read_result(chunks: &[(u64, &str)], next_seq: u64, exit_code: Option<i32>, closed: bool) -> Value {
    let chunk =
        |(seq, text): &(u64, &str)| json!({"seq": seq, "stream": "stdout", "chunk": base64::encode(text.as_bytes())});
    json!({
        "chunks": chunks.iter().map(chunk).collect::<Vec<_>>(),
        "nextSeq": next_seq,
        "exited": exit_code.is_some(),
        "exitCode": exit_code,
        "closed": closed,
        "failure": null,
    })
}
