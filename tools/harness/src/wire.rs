//! A wire client that shares no code with the server: tungstenite for the frames, serde_json for the messages.
//!
//! Has one connection and blocks its thread. It parses messages but does not deduplicate or check them; the oracle does.

use std::{
    borrow::Cow,
    collections::VecDeque,
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tungstenite::{Message, WebSocket, client::IntoClientRequest, protocol::WebSocketConfig};

use crate::records;

/// Longer than anything the server may take; a longer wait is a hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The link is lost; resume.
    #[error("link lost: {0}")]
    Lost(String),
    /// Nothing arrived for longer than anything may take.
    #[error("nothing heard for {} s", PATIENCE.as_secs())]
    Silence,
    /// The server answered with an error.
    #[error("refused: {code} {kind}: {message}")]
    Refused { code: i64, kind: String, message: String },
    /// The server broke the protocol.
    #[error("not of the protocol: {0}")]
    Protocol(String),
}

impl CallError {
    /// Whether a new connection may recover from it.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// One message of the server.
pub enum ServerMessage {
    Answer { id: i64, outcome: Result<Value, CallError> },
    Output(OutputChunk),
    Exited { process: String, seq: u64, code: i64 },
    Closed { process: String, seq: u64, params: Value },
    Other { method: String, params: Value },
}

/// A chunk of output.
pub struct OutputChunk {
    pub process: String,
    pub seq: u64,
    pub bytes: Vec<u8>,
    /// The params, if the chunk reports a gap.
    pub gap: Option<Value>,
}

/// The address of a server and the printed URL.
#[derive(Clone, Debug)]
pub struct ServerAddress {
    pub socket: SocketAddr,
    pub url: String,
}

impl ServerAddress {
    /// Parses the line that the server prints.
    pub fn parse(url: &str) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("ws://").ok_or_else(|| anyhow::anyhow!("not a ws URL: `{url}`"))?;
        let host = &rest[..rest.find('/').unwrap_or(rest.len())];
        Ok(Self { socket: host.parse()?, url: url.to_owned() })
    }

    /// The same server behind a proxy: the socket address changes, the URL (and so the Host header) stays.
    pub fn through(&self, proxy: SocketAddr) -> Self {
        Self { socket: proxy, url: self.url.clone() }
    }

    /// The URL for a program that connects through a proxy. It uses the proxy's port in `Host`, so the server must allow that.
    pub fn url_through(&self, proxy: SocketAddr) -> String {
        self.url.replacen(&self.socket.to_string(), &proxy.to_string(), 1)
    }
}

/// A connection after the upgrade.
pub struct WireClient {
    socket: WebSocket<TcpStream>,
    next_id: i64,
    /// Messages that arrived while an answer was awaited, in order.
    early: VecDeque<ServerMessage>,
}

impl WireClient {
    /// Connects and upgrades.
    pub fn connect(address: &ServerAddress) -> Result<Self, CallError> {
        let lost = |error: io::Error| CallError::Lost(error.to_string());
        let stream = TcpStream::connect_timeout(&address.socket, PATIENCE).map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(lost)?;
        let request =
            address.url.as_str().into_client_request().map_err(|error| CallError::Protocol(error.to_string()))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(100 << 20))
            .max_frame_size(Some(100 << 20))
            .read_buffer_size(256 << 10);
        tungstenite::client::client_with_config(request, stream, Some(config))
            .map(|(socket, _)| Self { socket, next_id: 1, early: VecDeque::new() })
            .map_err(|error| CallError::Lost(format!("upgrade: {error}")))
    }

    /// Connects and performs the handshake; also returns the answer of `initialize`.
    pub fn open(address: &ServerAddress, initialize: &Value) -> Result<(Self, Value), CallError> {
        let mut wire = Self::connect(address)?;
        let answer = wire.call("initialize", initialize)?;
        wire.notify("initialized", &json!({}))?;
        Ok((wire, answer))
    }

    /// A new session of a client with all our capabilities; also returns its id.
    pub fn session(address: &ServerAddress) -> Result<(Self, String), CallError> {
        let (wire, answer) = Self::open(address, &hello(None))?;
        let id = answer["sessionId"].as_str().unwrap_or_default().to_owned();
        Ok((wire, id))
    }

    /// Sends a request and returns its id.
    pub fn send(&mut self, method: &str, params: &Value) -> Result<i64, CallError> {
        let id = self.next_id;
        self.next_id += 1;
        self.write(json!({ "id": id, "method": method, "params": params }).to_string())?;
        Ok(id)
    }

    pub fn notify(&mut self, method: &str, params: &Value) -> Result<(), CallError> {
        self.write(json!({ "method": method, "params": params }).to_string())
    }

    fn write(&mut self, text: String) -> Result<(), CallError> {
        self.socket.send(Message::text(text)).map_err(lost)
    }

    /// Sends a request and waits for its answer; other messages are kept for `next_message`.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, CallError> {
        let id = self.send(method, params)?;
        self.answer(id)
    }

    /// Acknowledges the events of a process up to this number.
    pub fn acknowledge(&mut self, process: &str, seq: u64) -> Result<(), CallError> {
        self.notify("process/ack", &json!({ "processId": process, "seq": seq }))
    }

    /// Starts a process with the environment that a small program needs.
    pub fn start(&mut self, process: &str, argv: &[&str]) -> Result<Value, CallError> {
        self.call("process/start", &start(process, argv))
    }

    /// Starts the subcommand `producer` of this program.
    pub fn start_producer(&mut self, process: &str, id: u64, count: u64) -> anyhow::Result<()> {
        let argv = [&records::program()?, "producer", &id.to_string(), &count.to_string()];
        self.start(process, &argv)?;
        Ok(())
    }

    /// The list entries of the processes of all sessions.
    pub fn list_all(&mut self) -> anyhow::Result<Vec<Value>> {
        match self.call("process/list", &json!({ "scope": "all" }))?["processes"].take() {
            Value::Array(entries) => Ok(entries),
            other => anyhow::bail!("`process/list` gave no `processes`: {other}"),
        }
    }

    /// Ends the session.
    pub fn end_session(&mut self) -> anyhow::Result<()> {
        self.call("session/end", &json!({})).context("end the session")?;
        Ok(())
    }

    /// Drops messages until `count` processes have closed.
    pub fn wait_closed(&mut self, count: usize) -> anyhow::Result<()> {
        let mut closed = 0;
        while closed < count {
            closed += usize::from(matches!(self.next_message()?, ServerMessage::Closed { .. }));
        }
        Ok(())
    }

    /// Waits for the answer of an earlier request.
    pub fn answer(&mut self, id: i64) -> Result<Value, CallError> {
        let mut kept = std::mem::take(&mut self.early);
        // The answer may have been kept already: a refusal can come before answers to earlier requests.
        let is_it = |incoming: &ServerMessage| matches!(incoming, ServerMessage::Answer { id: answered, .. } if *answered == id);
        let mut early = kept.iter().position(is_it).and_then(|place| kept.remove(place));
        let outcome = loop {
            match early.take().map_or_else(|| self.receive(PATIENCE), Ok) {
                Ok(ServerMessage::Answer { id: answered, outcome }) if answered == id => break outcome,
                Ok(other) => kept.push_back(other),
                Err(fault) => break Err(fault),
            }
        };
        self.early = kept;
        outcome
    }

    /// The next message, in the order in which the server sent them.
    pub fn next_message(&mut self) -> Result<ServerMessage, CallError> {
        self.early.pop_front().map_or_else(|| self.receive(PATIENCE), Ok)
    }

    /// Reads for this long, so that pings are answered; messages are kept for `next_message`.
    pub fn attend(&mut self, long: Duration) -> Result<(), CallError> {
        let until = Instant::now() + long;
        let outcome = loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Ok(());
            }
            self.socket.get_ref().set_read_timeout(Some(left)).ok(); // If the socket is dead, the read reports it.
            match self.receive(left) {
                Ok(incoming) => self.early.push_back(incoming),
                Err(CallError::Silence) => {}
                Err(fault) => break Err(fault),
            }
        };
        self.socket.get_ref().set_read_timeout(Some(PATIENCE)).ok(); // If the socket is dead, the read reports it.
        outcome
    }

    /// The messages kept while waiting for an answer. A run that only counts answers drops them.
    pub fn take_early(&mut self) -> VecDeque<ServerMessage> {
        std::mem::take(&mut self.early)
    }

    fn receive(&mut self, patience: Duration) -> Result<ServerMessage, CallError> {
        let begun = Instant::now();
        loop {
            // Pings prove that the peer is alive, not that it still delivers.
            if begun.elapsed() > patience {
                return Err(CallError::Silence);
            }
            match self.socket.read().map_err(lost)? {
                Message::Text(text) => return decode(text.as_str()),
                Message::Binary(bytes) => {
                    let text = std::str::from_utf8(&bytes).map_err(|_| CallError::Protocol("binary frame".into()))?;
                    return decode(text);
                }
                Message::Close(frame) => return Err(CallError::Lost(format!("closed by the server: {frame:?}"))),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

/// Params of `initialize` for a client with every capability, new or resuming.
pub fn hello(resume: Option<&str>) -> Value {
    let mut params = json!({ "clientName": "xtask", "capabilities": { "ack": true, "gap": true, "concurrent": true } });
    if let Some(session) = resume {
        params["resumeSessionId"] = json!(session);
        params["takeover"] = json!(true);
    }
    params
}

/// Params of `process/start` with the environment that a small program needs.
pub fn start(process: &str, argv: &[&str]) -> Value {
    json!({ "processId": process, "argv": argv, "cwd": "/", "env": { "PATH": "/bin:/usr/bin" }, "tty": false })
}

fn lost(error: tungstenite::Error) -> CallError {
    match error {
        tungstenite::Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            CallError::Silence
        }
        other => CallError::Lost(other.to_string()),
    }
}

#[derive(Deserialize)]
struct MessageEnvelope<'a> {
    id: Option<i64>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    result: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventParams<'a> {
    #[serde(borrow)]
    process_id: Cow<'a, str>,
    seq: u64,
    #[serde(borrow)]
    chunk: Option<Cow<'a, str>>,
    gap: Option<Value>,
    exit_code: Option<i64>,
}

fn decode(text: &str) -> Result<ServerMessage, CallError> {
    let nonsense = |error: &dyn std::fmt::Display| CallError::Protocol(format!("{error} in `{}`", clip(text)));
    let envelope: MessageEnvelope<'_> = serde_json::from_str(text).map_err(|error| nonsense(&error))?;
    let Some(method) = envelope.method else {
        let id = envelope.id.ok_or_else(|| nonsense(&"neither method nor id"))?;
        return Ok(ServerMessage::Answer { id, outcome: outcome(envelope.result, envelope.error) });
    };
    let params = envelope.params.map_or("null", RawValue::get);
    let value = || serde_json::from_str::<Value>(params).map_err(|error| nonsense(&error));
    if !["process/output", "process/exited", "process/closed"].contains(&&*method) {
        return Ok(ServerMessage::Other { method: method.into_owned(), params: value()? });
    }
    let event: EventParams<'_> = serde_json::from_str(params).map_err(|error| nonsense(&error))?;
    let (process, seq) = (event.process_id.into_owned(), event.seq);
    match (&*method, event.chunk, event.exit_code) {
        ("process/output", Some(chunk), _) => {
            let bytes = STANDARD.decode(&*chunk).map_err(|error| nonsense(&error))?;
            Ok(ServerMessage::Output(OutputChunk { process, seq, bytes, gap: event.gap }))
        }
        ("process/exited", _, Some(code)) => Ok(ServerMessage::Exited { process, seq, code }),
        ("process/closed", ..) => Ok(ServerMessage::Closed { process, seq, params: value()? }),
        _ => Err(nonsense(&"a key is missing")),
    }
}

fn outcome(result: Option<Value>, error: Option<Value>) -> Result<Value, CallError> {
    let Some(error) = error else { return Ok(result.unwrap_or_default()) };
    Err(CallError::Refused {
        code: error["code"].as_i64().unwrap_or_default(),
        kind: error["data"]["kind"].as_str().unwrap_or_default().to_owned(),
        message: error["message"].as_str().unwrap_or_default().to_owned(),
    })
}

fn clip(text: &str) -> &str {
    let end = text.char_indices().nth(200).map_or(text.len(), |(at, _)| at);
    &text[..end]
}
