//! A wire client for measurements: JSON and the binary dialect, for our server and any other that speaks the reference protocol.
//!
//! Tracks the processes it started. In every measurement it checks each event's number, each output's offset and the total at the end.
//! Acknowledges a quarter of the window at a time.

use super::{
    lean_connection::MessageKind,
    message::{self, ATTACHED, BorrowedEnvelope, INPUT, OUTPUT, OUTPUT_HEAD},
};
use crate::prelude::*;

/// An incoming message.
#[derive(Clone, Copy, Debug)]
pub(super) enum SessionMessage {
    /// An answer; its message is `BenchSession::text`.
    Answer {
        id: i64,
        refused: bool,
    },
    /// Output of a process; the bytes are `BenchSession::bytes`.
    Output {
        process: u64,
    },
    /// The close of a process, with the total number of output bytes.
    Closed {
        process: u64,
        bytes: u64,
    },
    Other,
}

/// A process that was started and is not closed.
struct OutputFlow {
    process: u64,
    channel: Option<u32>,
    next_seq: u64,
    bytes: u64,
    unacknowledged: u64,
}

/// Where the bytes of the last output are.
enum PayloadLocation {
    /// In the message, after a head of this many bytes.
    InMessage(usize),
    /// In the decode buffer: the first bytes, of this number.
    Decoded(usize),
}

/// A connection with its own session.
pub(super) struct BenchSession {
    link: BenchConnection,
    next_id: i64,
    next_process: u64,
    flows: Vec<OutputFlow>,
    /// The buffer for decoded base64 output.
    decoded: Vec<u8>,
    payload: PayloadLocation,
    /// Acknowledge after this many bytes; `None` if the server does not support it, or acknowledgements are withheld.
    ack_every: Option<u64>,
    /// Whether events must come in order and without holes, as our server promises.
    is_ordered: bool,
    capabilities: Value,
    format: MessageFormat,
    /// The form of a directory that the server accepts.
    cwd: &'static str,
}

impl BenchSession {
    /// Performs the handshake; `None` if the server does not offer the dialect.
    pub(super) fn open(link: BenchConnection, format: MessageFormat) -> Result<Option<Self>> {
        let mut session = Self {
            link,
            next_id: 0,
            next_process: 0,
            flows: Vec::new(),
            decoded: Vec::new(),
            payload: PayloadLocation::Decoded(0),
            ack_every: None,
            is_ordered: false,
            capabilities: Value::Null,
            format,
            cwd: "/",
        };
        let mut capabilities = json!({ "ack": true, "gap": true, "concurrent": true });
        if format == MessageFormat::Binary {
            capabilities["dialects"] = json!(["binary", "attached"]);
        }
        let hello = json!({ "clientName": "bench", "capabilities": capabilities });
        let mut answer = session.call("initialize", &hello).context("initialize")?;
        session.capabilities = answer["capabilities"].take();
        let window = session.capabilities["ackWindowBytes"].as_u64().filter(|_| session.can("ack"));
        session.ack_every = window.map(|window| window / 4);
        session.is_ordered = session.ack_every.is_some();
        session.notify("initialized", &json!({}))?;
        let is_offered = format == MessageFormat::Json || session.speaks("binary") || session.speaks("attached");
        Ok(is_offered.then_some(session))
    }

    /// Stops acknowledging, so that output stays on the server.
    pub(super) fn withhold(&mut self) {
        self.ack_every = None;
    }

    /// Whether the server announced this capability.
    pub(super) fn can(&self, what: &str) -> bool {
        self.capabilities[what] == true
    }

    /// Whether this dialect is in use.
    pub(super) fn speaks(&self, format: &str) -> bool {
        let offered = self.capabilities["dialects"].as_array();
        self.format == MessageFormat::Binary && offered.is_some_and(|offered| offered.iter().any(|name| name == format))
    }

    /// Queues a request and returns its id. It is sent before the next wait.
    pub(super) fn send(&mut self, method: &str, params: &Value) -> Result<i64> {
        self.next_id += 1;
        let text = format!("{{\"id\":{},\"method\":\"{method}\",\"params\":{params}}}", self.next_id);
        self.link.queue(MessageKind::Text, &[text.as_bytes()])?;
        Ok(self.next_id)
    }

    /// The same with attached bytes.
    pub(super) fn send_attached(&mut self, method: &str, params: &Value, bytes: &[u8]) -> Result<i64> {
        self.next_id += 1;
        let text = format!("{{\"id\":{},\"method\":\"{method}\",\"params\":{params}}}", self.next_id);
        let length = u32::try_from(text.len())?.to_le_bytes();
        self.link.queue(MessageKind::Bytes, &[&[ATTACHED], &length, text.as_bytes(), bytes])?;
        Ok(self.next_id)
    }

    /// The same with base64 bytes as the last member.
    pub(super) fn send_base64(&mut self, method: &str, params: &Value, member: &str, bytes: &[u8]) -> Result<i64> {
        self.next_id += 1;
        let params = params.to_string();
        let open = params.strip_suffix('}').context("params are an object")?;
        let head = format!("{{\"id\":{},\"method\":\"{method}\",\"params\":{open},\"{member}\":\"", self.next_id);
        let base64 = base64_simd::STANDARD.encode_to_string(bytes);
        self.link.queue(MessageKind::Text, &[head.as_bytes(), base64.as_bytes(), b"\"}}"])?;
        Ok(self.next_id)
    }

    fn notify(&mut self, method: &str, params: &Value) -> Result<()> {
        let text = json!({ "method": method, "params": params }).to_string();
        self.link.queue(MessageKind::Text, &[text.as_bytes()])
    }

    /// The connection itself, for messages without a session.
    pub(super) fn link(&mut self) -> &mut BenchConnection {
        &mut self.link
    }

    /// Sends a request and waits for its answer; other messages are checked and dropped.
    pub(super) fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        let id = self.send(method, params)?;
        self.answer(id).with_context(|| format!("`{method}`"))
    }

    /// Waits for an answer.
    pub(super) fn answer(&mut self, id: i64) -> Result<Value> {
        while self.next_answer()? != id {}
        let mut message: Value = serde_json::from_str(self.text())?;
        Ok(message["result"].take())
    }

    /// Waits for the next answer, which must not be a refusal; returns its id.
    pub(super) fn next_answer(&mut self) -> Result<i64> {
        loop {
            if let SessionMessage::Answer { id, refused } = self.next()? {
                ensure!(!refused, "refused: {}", self.text());
                return Ok(id);
            }
        }
    }

    /// Queues the start of a process; returns the number that is its id.
    pub(super) fn start(&mut self, start: StartRequest<'_>) -> Result<u64> {
        self.next_process += 1;
        let mut params = json!({
            "processId": self.next_process.to_string(), "argv": start.argv, "cwd": self.cwd,
            "env": { "PATH": "/bin:/usr/bin", "TERM": "dumb" }, "tty": start.tty, "pipeStdin": start.stdin
        });
        for (name, value) in start.more.and_then(Value::as_object).into_iter().flatten() {
            params[name] = value.clone();
        }
        self.send("process/start", &params)?;
        let flow = OutputFlow { process: self.next_process, channel: None, next_seq: 1, bytes: 0, unacknowledged: 0 };
        self.flows.push(flow);
        Ok(self.next_process)
    }

    /// Finds out which form of a directory a foreign server accepts.
    pub(super) fn learn(&mut self) -> Result<()> {
        for cwd in ["/", "file:///"] {
            self.cwd = cwd;
            let process = self.start(StartRequest::new(&["/bin/true"]))?;
            if self.until_closed(process).is_ok() {
                return Ok(());
            }
            self.flows.clear();
        }
        bail!("the server starts no process")
    }

    /// Waits for the close of a process; returns how many bytes it wrote.
    pub(super) fn until_closed(&mut self, process: u64) -> Result<u64> {
        loop {
            match self.next()? {
                SessionMessage::Closed { process: closed, bytes } if closed == process => return Ok(bytes),
                SessionMessage::Answer { refused: true, .. } => bail!("refused: {}", self.text()),
                _ => {}
            }
        }
    }

    /// Makes the server forget closed processes, if it supports that.
    pub(super) fn forget(&mut self, processes: &[u64]) -> Result<()> {
        if !self.can("forget") {
            return Ok(());
        }
        // Few enough that their answers always fit into the socket buffer.
        for some in processes.chunks(64) {
            for process in some {
                self.send("process/forget", &json!({ "processId": process.to_string() }))?;
            }
            for _ in some {
                self.next_answer()?;
            }
        }
        Ok(())
    }

    /// Queues bytes for the stdin of a process; returns the id of the request.
    pub(super) fn write(&mut self, process: u64, bytes: &[u8]) -> Result<i64> {
        let channel = self.flows.iter().find(|flow| flow.process == process).and_then(|flow| flow.channel);
        self.next_id += 1;
        let (id, write_id) = (self.next_id, format!("w{}", self.next_id));
        if let Some(channel) = channel.filter(|_| self.speaks("binary")) {
            let length = u16::try_from(write_id.len())?.to_le_bytes();
            let head = [&[INPUT, 0][..], &length, &channel.to_le_bytes(), &id.to_le_bytes()].concat();
            self.link.queue(MessageKind::Bytes, &[&head, write_id.as_bytes(), bytes])?;
            return Ok(id);
        }
        let chunk = base64_simd::STANDARD.encode_to_string(bytes);
        let text = format!(
            "{{\"id\":{id},\"method\":\"process/write\",\"params\":{{\"processId\":\"{process}\",\"chunk\":\"{chunk}\",\"writeId\":\"{write_id}\"}}}}"
        );
        self.link.queue(MessageKind::Text, &[text.as_bytes()])?;
        Ok(id)
    }

    /// The whole text of the last message.
    pub(super) fn text(&self) -> &str {
        let message = self.link.message();
        let text = match message {
            [ATTACHED, rest @ ..] => message::attached(rest).map_or(&[][..], |(json, _)| json),
            text => text,
        };
        std::str::from_utf8(text).unwrap_or("not UTF-8")
    }

    /// The bytes of the last output, or those attached to the last message.
    pub(super) fn bytes(&self) -> &[u8] {
        match self.payload {
            PayloadLocation::InMessage(head) => &self.link.message()[head..],
            PayloadLocation::Decoded(size) => &self.decoded[..size],
        }
    }

    /// Waits for the next message and checks it.
    pub(super) fn next(&mut self) -> Result<SessionMessage> {
        let kind = self.link.next()?;
        match (kind, self.link.message()) {
            (MessageKind::Bytes, [OUTPUT, rest @ ..]) => {
                ensure!(rest.len() + 1 >= OUTPUT_HEAD, "a message of output without a head");
                let word = |at: usize| u64::from_le_bytes(rest[at - 1..at + 7].try_into().expect("eight bytes"));
                let (channel, seq, offset) = ((word(4) & 0xffff_ffff) as u32, word(8), word(16));
                self.payload = PayloadLocation::InMessage(OUTPUT_HEAD);
                let at = self.flows.iter().position(|flow| flow.channel == Some(channel));
                let at = at.with_context(|| format!("output on the unknown channel {channel}"))?;
                self.output(at, Some(seq), Some(offset))
            }
            (MessageKind::Bytes, [ATTACHED, rest @ ..]) => {
                let (json, bytes) = message::attached(rest).context("attached bytes without a head")?;
                self.payload = PayloadLocation::InMessage(self.link.message().len() - bytes.len());
                let envelope: BorrowedEnvelope<'_> = serde_json::from_slice(json)?;
                let id = envelope.id.context("attached bytes without an id")?;
                Ok(SessionMessage::Answer { id, refused: envelope.error.is_some() })
            }
            (_, message) => match message::chunk(message) {
                Some((before, chunk, after)) => {
                    // Everything except the chunk is small, in any order of the keys.
                    let rest = [before, after].concat();
                    let size = base64_simd::STANDARD.decoded_length(chunk)?;
                    if self.decoded.len() < size {
                        self.decoded.resize(size, 0);
                    }
                    let whole = base64_simd::Out::from_slice(&mut self.decoded);
                    let bytes = base64_simd::STANDARD.decode(chunk, whole)?;
                    ensure!(bytes.len() == size, "base64 of another length");
                    self.payload = PayloadLocation::Decoded(size);
                    let envelope: BorrowedEnvelope<'_> = serde_json::from_slice(&rest)?;
                    if envelope.method != Some("process/output") {
                        return Ok(message::answer(&envelope));
                    }
                    let params = envelope.params.unwrap_or_default();
                    let (process, seq, offset) = (message::process(&params)?, params.seq, params.offset);
                    let at = self.flows.iter().position(|flow| flow.process == process);
                    self.output(at.context("output of no process")?, seq, offset)
                }
                None => self.small(),
            },
        }
    }

    /// Handles a message without bytes.
    fn small(&mut self) -> Result<SessionMessage> {
        let message = self.link.message();
        let wrong = || format!("message `{}`", String::from_utf8_lossy(message));
        let envelope: BorrowedEnvelope<'_> = serde_json::from_slice(message).with_context(wrong)?;
        let Some(method) = envelope.method else { return Ok(message::answer(&envelope)) };
        let params = envelope.params.unwrap_or_default();
        match method {
            "process/exited" | "process/closed" | "process/channel" => {}
            "process/gap" => bail!("output is gone: {}", wrong()),
            _ => return Ok(SessionMessage::Other),
        }
        let process = message::process(&params)?;
        let at = self.flows.iter().position(|flow| flow.process == process).context("news of no process")?;
        let bytes = self.flows[at].bytes;
        let is_closed = method == "process/closed";
        if method == "process/channel" {
            self.flows[at].channel = Some(params.channel.context("no `channel`")?);
            return Ok(SessionMessage::Other);
        } else if is_closed {
            let written = params.output_bytes.map(|written| written - params.dropped_bytes.unwrap_or_default());
            ensure!(written.is_none_or(|written| written == bytes), "{bytes} bytes of {written:?} came");
        } else {
            ensure!(params.exit_code == Some(0), "a process failed: {}", wrong());
        }
        let seq = params.seq;
        self.count(at, seq)?;
        if is_closed {
            self.flows.swap_remove(at);
        }
        Ok(if is_closed { SessionMessage::Closed { process, bytes } } else { SessionMessage::Other })
    }

    fn output(&mut self, at: usize, seq: Option<u64>, offset: Option<u64>) -> Result<SessionMessage> {
        let count = self.bytes().len() as u64;
        self.count(at, seq)?;
        let flow = &mut self.flows[at];
        ensure!(offset.is_none_or(|offset| offset == flow.bytes), "output of {offset:?} where {} came", flow.bytes);
        flow.bytes += count;
        flow.unacknowledged += count;
        let process = flow.process;
        if let (Some(every), Some(seq)) = (self.ack_every, seq)
            && flow.unacknowledged >= every
        {
            flow.unacknowledged = 0;
            let ack =
                format!("{{\"method\":\"process/ack\",\"params\":{{\"processId\":\"{process}\",\"seq\":{seq}}}}}");
            self.link.queue(MessageKind::Text, &[ack.as_bytes()])?;
            // Flush at once: more output is in the buffer, and the window must not run out in the meantime.
            self.link.flush()?;
        }
        Ok(SessionMessage::Output { process })
    }

    fn count(&mut self, at: usize, seq: Option<u64>) -> Result<()> {
        let expected = self.flows[at].next_seq;
        ensure!(!self.is_ordered || seq == Some(expected), "event {seq:?} where {expected} was due");
        self.flows[at].next_seq += 1;
        Ok(())
    }

    /// Ends the session with its processes, and the connection.
    pub(super) fn end(mut self) -> Result<()> {
        if !self.can("sessionEnd") {
            for flow in std::mem::take(&mut self.flows) {
                self.send("process/terminate", &json!({ "processId": flow.process.to_string() }))?;
            }
            return self.link.flush();
        }
        self.flows.clear();
        let id = self.send("session/end", &json!({}))?;
        // Running processes are killed by this, which is not a failure.
        while !matches!(self.link.next()?, MessageKind::Text) || !message::is_answer(self.link.message(), id) {}
        Ok(())
    }
}

#[cfg(test)]
mod tests;
