//! A JSON client for tests, on a third-party WebSocket library, over TCP or a Unix socket. It uses no types of the server: messages are
//! plain JSON values.

use std::{
    collections::VecDeque,
    io,
    net::TcpStream,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tungstenite::{
    Error, Message, WebSocket, client::IntoClientRequest, handshake::HandshakeError, http::HeaderValue,
    protocol::WebSocketConfig,
};

use crate::{
    DEADLINE, address_of,
    params::{process, sh, start_params, with, write_params},
};

#[derive(Debug, Clone, PartialEq)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    /// `data`, or null when absent.
    pub data: Value,
}

impl RpcError {
    /// The stable error kind to branch on.
    pub fn kind(&self) -> &str {
        self.data["kind"].as_str().unwrap_or_default()
    }
}

/// Everything a process wrote, and its end.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ended {
    /// Bytes of stdout, or of the terminal.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Params of `process/exited`.
    pub exited: Value,
    /// Params of `process/closed`.
    pub closed: Value,
    /// The sequence numbers in order of arrival.
    pub seqs: Vec<u64>,
}

impl Ended {
    pub fn code(&self) -> i64 {
        self.exited["exitCode"].as_i64().expect("exited has an exit code")
    }
}

/// A connection with a deadline on every operation.
pub struct Client {
    socket: WebSocket<TcpStream>,
    next_id: i64,
    notifications: VecDeque<Value>,
    answers: Vec<Value>,
}

/// A message to a client with the `binary` capability.
pub enum Heard {
    /// A JSON message.
    Json(Value),
    /// A binary frame with output.
    Frame(Vec<u8>),
}

impl Client {
    /// Connects to a printed URL: `ws://…` or `unix:///path`.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(url, &[])
    }

    /// Connects with extra headers.
    pub fn connect_with(url: &str, headers: &[(&'static str, &str)]) -> Result<Self, Error> {
        let (socket, request_url) = if let Some(path) = url.strip_prefix("unix://") {
            // The type reads, writes and times out in the same way on a socket of any family.
            (TcpStream::from(OwnedFd::from(UnixStream::connect(path)?)), "ws://localhost/")
        } else {
            let stream = TcpStream::connect(address_of(url))?;
            stream.set_nodelay(true)?;
            (stream, url)
        };
        socket.set_read_timeout(Some(DEADLINE))?;
        let mut request = request_url.into_client_request()?;
        for (name, value) in headers {
            request.headers_mut().append(*name, HeaderValue::from_str(value).expect("a valid header value"));
        }
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        match tungstenite::client::client_with_config(request, socket, Some(config)) {
            Ok((socket, _response)) => {
                Ok(Self { socket, next_id: 1, notifications: VecDeque::new(), answers: Vec::new() })
            }
            Err(HandshakeError::Failure(error)) => Err(error),
            Err(HandshakeError::Interrupted(_)) => Err(Error::Io(io::Error::from(io::ErrorKind::TimedOut))),
        }
    }

    /// Creates a session without announcing capabilities, and returns its id.
    pub fn initialize(&mut self) -> String {
        self.open_session(json!({"clientName": "test"}))
    }

    /// Creates or resumes a session with these params, and returns its id.
    pub fn open_session(&mut self, params: Value) -> String {
        self.initialize_with(params)["sessionId"].as_str().expect("initialize answers a session id").to_owned()
    }

    /// Sends `initialize` with `params`, then `initialized`; returns the result.
    pub fn initialize_with(&mut self, params: Value) -> Value {
        let result = self.ok("initialize", params);
        self.notify("initialized", json!({}));
        result
    }

    /// Calls a method and waits for its answer; notifications before the answer are kept.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        let id = self.send_request(method, params);
        self.answer(id)
    }

    /// Calls a method that must succeed.
    pub fn ok(&mut self, method: &str, params: Value) -> Value {
        self.call(method, params).unwrap_or_else(|error| panic!("{method} failed: {error:?}"))
    }

    /// Sends a request without waiting and returns its id.
    pub fn send_request(&mut self, method: &str, params: Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send_text(&json!({"id": id, "method": method, "params": params}).to_string());
        id
    }

    /// Waits for the answer to an earlier request.
    pub fn answer(&mut self, id: i64) -> Result<Value, RpcError> {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = self.answers.iter().position(|answer| answer["id"] == id) {
                return into_result(self.answers.swap_remove(at));
            }
            let message =
                self.next_until(end).unwrap_or_else(|| panic!("timed out waiting for the answer to request {id}"));
            self.sort(message);
        }
    }

    /// Waits for the answers to earlier requests, which must succeed.
    #[track_caller]
    pub fn answers(&mut self, ids: impl IntoIterator<Item = i64>) -> Vec<Value> {
        let answer = |id| self.answer(id).unwrap_or_else(|error| panic!("request {id} failed: {error:?}"));
        ids.into_iter().map(answer).collect()
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.send_text(&json!({"method": method, "params": params}).to_string());
    }

    /// Sends any text as one message.
    pub fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).expect("send a message");
    }

    /// Sends any WebSocket message.
    pub fn send_message(&mut self, message: Message) -> Result<(), Error> {
        self.socket.send(message)
    }

    /// The next notification.
    pub fn next_notification(&mut self) -> Value {
        self.next_notification_within(DEADLINE).expect("a notification within the deadline")
    }

    /// The next notification, or `None` if none arrives within `wait`.
    pub fn next_notification_within(&mut self, wait: Duration) -> Option<Value> {
        let end = Instant::now() + wait;
        loop {
            if let Some(notification) = self.notifications.pop_front() {
                return Some(notification);
            }
            let message = self.next_until(end)?;
            self.sort(message);
        }
    }

    /// The next message of any kind, in wire order; messages kept earlier are ignored.
    #[allow(clippy::should_implement_trait, reason = "it panics at the end and is no iterator")]
    pub fn next(&mut self) -> Value {
        self.next_until(Instant::now() + DEADLINE).expect("a message within the deadline")
    }

    /// The next message with attached bytes: its JSON and the bytes.
    pub fn next_attached(&mut self) -> (Value, Vec<u8>) {
        let end = Instant::now() + DEADLINE;
        loop {
            match self.read_until(end).expect("a message within the deadline") {
                Message::Binary(message) => {
                    let (head, rest) = message.split_first_chunk::<5>().expect("a head");
                    let [0x80, length @ ..] = *head else { panic!("it begins with {head:?}") };
                    let (json, attached) = rest.split_at(u32::from_le_bytes(length) as usize);
                    return (serde_json::from_slice(json).expect("JSON"), attached.to_vec());
                }
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("a message without bytes: {other:?}"),
            }
        }
    }

    /// The next message of any kind: first the notifications kept earlier, then in wire order.
    pub fn hear(&mut self) -> Heard {
        if let Some(kept) = self.notifications.pop_front() {
            return Heard::Json(kept);
        }
        let end = Instant::now() + DEADLINE;
        loop {
            match self.read_until(end).expect("a message within the deadline") {
                Message::Binary(message) if message.first().is_some_and(|byte| *byte > 0x80) => {
                    return Heard::Frame(message.to_vec());
                }
                Message::Text(text) => return Heard::Json(serde_json::from_str(&text).expect("the server sends JSON")),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("neither JSON nor a frame: {other:?}"),
            }
        }
    }

    /// How many answers have arrived that were not yet collected.
    pub fn answers_so_far(&self) -> usize {
        self.answers.len()
    }

    /// Waits for the error or the close frame that ends the connection.
    pub fn wait_closed(&mut self) -> Option<(u16, String)> {
        let end = Instant::now() + DEADLINE;
        loop {
            match self.read_until(end) {
                Ok(Message::Close(frame)) => {
                    return frame.map(|frame| (frame.code.into(), frame.reason.to_string()));
                }
                Ok(_) => {}
                Err(Error::Io(error)) if is_timeout(&error) => {
                    panic!("the connection was not closed")
                }
                Err(_) => return None,
            }
        }
    }

    /// Closes the connection and waits until the server has closed its side: the session is detached then.
    pub fn leave(mut self) {
        self.send_message(Message::Close(None)).expect("send the close frame");
        self.wait_closed();
    }

    /// Collects everything of one process until `process/closed`, without acknowledging; other notifications are kept.
    pub fn collect(&mut self, process_id: &str) -> Ended {
        let mut kept = VecDeque::new();
        let ended = self.collect_with(process_id, |_, _| {}, |other| kept.push_back(other));
        kept.append(&mut self.notifications);
        self.notifications = kept;
        ended
    }

    /// Collects a process of the client's own session to its end and acknowledges every chunk. There must be no gap.
    pub fn collect_acked(&mut self, id: &str) -> Ended {
        let acknowledge = |client: &mut Self, seq: &Value| client.ack(id, seq.clone());
        self.collect_with(id, acknowledge, |other| panic!("only output and the end of `{id}` are expected: {other}"))
    }

    /// Collects one process to its end; hands on the number of each chunk, and what is neither its output nor its end.
    fn collect_with(&mut self, id: &str, on_chunk: impl Fn(&mut Self, &Value), mut other: impl FnMut(Value)) -> Ended {
        let mut ended = Ended::default();
        loop {
            let message = self.next_notification();
            let params = &message["params"];
            if params["processId"] != id {
                other(message);
                continue;
            }
            ended.seqs.extend(params["seq"].as_u64());
            match message["method"].as_str() {
                Some("process/output") => {
                    let stream = if params["stream"] == "stderr" { &mut ended.stderr } else { &mut ended.stdout };
                    stream.extend(decoded(&params["chunk"]));
                    on_chunk(self, &params["seq"]);
                }
                Some("process/exited") => ended.exited = params.clone(),
                Some("process/closed") => {
                    ended.closed = params.clone();
                    return ended;
                }
                _ => other(message),
            }
        }
    }

    /// Runs a shell script to its end and returns its stdout without trailing newlines.
    pub fn script(&mut self, id: &str, script: &str) -> String {
        String::from_utf8_lossy(&self.run_params(sh(id, script)).stdout).trim_end().to_owned()
    }

    /// The pid of a process, from `process/list`.
    pub fn pid_of(&mut self, id: &str) -> u32 {
        let list = self.ok("process/list", json!({}));
        let entries = list["processes"].as_array().expect("a list");
        pid_of(entries.iter().find(|entry| entry["processId"] == id).unwrap_or_else(|| panic!("`{id}` in {list}")))
    }

    /// Runs a program with pipes and only PATH in its environment, and collects it to its end.
    pub fn run(&mut self, process_id: &str, argv: &[&str]) -> Ended {
        self.ok("process/start", start_params(process_id, argv));
        self.collect(process_id)
    }

    /// Calls a method that must fail.
    #[track_caller]
    pub fn fails(&mut self, method: &str, params: Value) -> RpcError {
        match self.call(method, params) {
            Ok(result) => panic!("{method} should fail and answered {result}"),
            Err(error) => error,
        }
    }

    /// Calls a method that must fail with this code and kind.
    #[track_caller]
    pub fn refuses(&mut self, method: &str, params: Value, code: i64, kind: &str) -> RpcError {
        // Without members that are as large as a file.
        let members = params.as_object().into_iter().flatten();
        let asked: Vec<_> = members
            .filter(|(_, value)| value.as_str().is_none_or(|text| text.len() < 300))
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        let error = self.fails(method, params);
        assert_eq!((error.code, error.kind()), (code, kind), "{method} {asked:?}: {}", error.message);
        error
    }

    /// Starts a process, which must succeed.
    #[track_caller]
    pub fn start(&mut self, params: Value) -> Value {
        self.ok("process/start", params)
    }

    /// Writes to a process, without a write id.
    #[track_caller]
    pub fn write(&mut self, id: &str, bytes: impl AsRef<[u8]>) -> Value {
        self.ok("process/write", write_params(id, bytes.as_ref()))
    }

    /// Sends such a write without waiting and returns the id of the request.
    pub fn send_write(&mut self, id: &str, bytes: impl AsRef<[u8]>) -> i64 {
        self.send_request("process/write", write_params(id, bytes.as_ref()))
    }

    #[track_caller]
    pub fn close_stdin(&mut self, id: &str) -> Value {
        self.ok("process/closeStdin", process(id))
    }

    #[track_caller]
    pub fn terminate(&mut self, id: &str) -> Value {
        self.ok("process/terminate", process(id))
    }

    /// The processes of the own session.
    #[track_caller]
    pub fn processes(&mut self) -> Value {
        self.ok("process/list", json!({}))["processes"].take()
    }

    /// Acknowledges the events of a process up to this number.
    pub fn ack(&mut self, id: &str, seq: impl Into<Value>) {
        self.notify("process/ack", json!({"processId": id, "seq": seq.into()}));
    }

    /// Waits until the output of a process contains `needle`; returns the output and drops other notifications.
    #[track_caller]
    pub fn wait_output(&mut self, id: &str, needle: &str) -> String {
        let mut bytes = Vec::new();
        loop {
            let message = self.next_notification();
            let params = &message["params"];
            if params["processId"] != id {
                continue;
            }
            assert_eq!(message["method"], "process/output", "the process ended before `{needle}`: {message}");
            bytes.extend(decoded(&params["chunk"]));
            let text = String::from_utf8_lossy(&bytes);
            if text.contains(needle) {
                return text.into_owned();
            }
        }
    }

    /// The params of the next notification, which must have this method.
    #[track_caller]
    pub fn expect(&mut self, method: &str) -> Value {
        let message = self.next_notification();
        assert_eq!(message["method"], method, "{message}");
        message["params"].clone()
    }

    /// The text of the next message, which must be an error with id -1.
    #[track_caller]
    pub fn expect_orphan_error(&mut self, kind: &str) -> String {
        let message = self.next();
        assert_eq!(message["id"], -1, "{message}");
        assert_eq!(message["error"]["code"], -32600, "{message}");
        assert_eq!(message["error"]["data"]["kind"], kind, "{message}");
        message["error"]["message"].as_str().expect("an error has a text").to_owned()
    }

    /// Asserts that the connection still answers.
    #[track_caller]
    pub fn assert_alive(&mut self) {
        assert_eq!(self.ok("environment/status", json!({})), json!({"status": "ready"}));
    }

    /// Starts a process, which must succeed, and collects it to its end.
    pub fn run_params(&mut self, params: Value) -> Ended {
        let id = params["processId"].as_str().expect("an id").to_owned();
        self.ok("process/start", params);
        self.collect(&id)
    }

    /// Reads a process to its end with polls only; returns the bytes and the last answer.
    pub fn poll(&mut self, id: &str, max_bytes: Option<u64>) -> (Vec<u8>, Value) {
        let (mut bytes, mut after) = (Vec::new(), 0);
        loop {
            let mut params = json!({"processId": id, "afterSeq": after, "waitMs": 20_000});
            if let Some(max) = max_bytes {
                params = with(params, json!({"maxBytes": max}));
            }
            let result = self.ok("process/read", params);
            assert_eq!(result["gap"], Value::Null, "a poller that keeps up sees no gap");
            bytes.extend(chunk_bytes(&result));
            let next = result["nextSeq"].as_u64().expect("nextSeq");
            let is_done = result["closed"] == true && (max_bytes.is_none() || next == after + 1);
            after = next - 1;
            if is_done {
                return (bytes, result);
            }
        }
    }

    fn sort(&mut self, message: Value) {
        if message.get("method").is_some() {
            self.notifications.push_back(message);
        } else {
            self.answers.push(message);
        }
    }

    fn next_until(&mut self, end: Instant) -> Option<Value> {
        loop {
            match self.read_until(end) {
                Ok(message @ (Message::Text(_) | Message::Binary(_))) => {
                    return Some(serde_json::from_slice(&message.into_data()).expect("the server sends JSON"));
                }
                Ok(Message::Close(frame)) => panic!("the server closed: {frame:?}"),
                Ok(_) => {}
                Err(Error::Io(error)) if is_timeout(&error) => return None,
                Err(error) => panic!("the connection failed: {error}"),
            }
        }
    }

    fn read_until(&mut self, end: Instant) -> Result<Message, Error> {
        let left = end.saturating_duration_since(Instant::now());
        self.socket.get_ref().set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        self.socket.read()
    }
}

/// The bytes of the chunks in the result of a `process/read`.
pub fn chunk_bytes(result: &Value) -> Vec<u8> {
    let chunks = result["chunks"].as_array().expect("a read has chunks");
    chunks.iter().flat_map(|chunk| decoded(&chunk["chunk"])).collect()
}

/// Asserts that an object has these members with these values; null stands for a missing one, too.
#[track_caller]
pub fn assert_members(actual: &Value, expected: Value) {
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(actual[name], *value, "`{name}` of {actual}");
    }
}

/// The bytes of base64 in a JSON string.
#[track_caller]
pub fn decoded(text: &Value) -> Vec<u8> {
    decode_base64(text.as_str().expect("base64 is text"))
}

/// Asserts code and kind of an error.
#[track_caller]
pub fn assert_error(error: &RpcError, code: i64, kind: &str) {
    assert_eq!((error.code, error.kind()), (code, kind), "{}", error.message);
}

/// The pid in the result of a start.
pub fn pid_of(started: &Value) -> u32 {
    u32::try_from(started["pid"].as_u64().expect("a start answers a pid")).expect("a pid is small")
}

/// Strict padded base64.
pub fn decode_base64(text: &str) -> Vec<u8> {
    STANDARD.decode(text).expect("valid base64")
}

/// Padded base64.
pub fn encode_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn into_result(mut message: Value) -> Result<Value, RpcError> {
    match message.get_mut("error") {
        Some(error) => Err(RpcError {
            code: error["code"].as_i64().expect("an error has a code"),
            message: error["message"].as_str().unwrap_or_default().to_owned(),
            data: error["data"].take(),
        }),
        None => Ok(message["result"].take()),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
