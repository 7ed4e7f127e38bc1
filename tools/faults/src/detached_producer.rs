//! Producers that write while their client is disconnected, and the oracle that reads them back: every byte at its place, every gap
//! counted.
//!
//! Shared by F9 and F10. It computes what a producer writes at each offset, and relies on no number of the server except the size of a gap.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use exec_server_harness::{
    records::{self, RECORD},
    wire::{self, CallError, ServerAddress, ServerMessage, WireClient, hello},
};
use serde_json::{Value, json};

/// A producer is acknowledged after this many bytes.
const ACK_EVERY: u64 = 256 << 10;

/// The overflow policy of a full log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OverflowPolicy {
    Block,
    DropOldest,
}

/// One producer and how far it was read.
pub(super) struct Flood {
    id: u64,
    bytes: u64,
    policy: OverflowPolicy,
    /// Offset of the next byte.
    at: u64,
    seq: u64,
    missing: u64,
    unacknowledged: u64,
    closed: bool,
}

impl Flood {
    pub(super) fn new(id: u64, bytes: u64, policy: OverflowPolicy) -> Self {
        Self { id, bytes, policy, at: 0, seq: 0, missing: 0, unacknowledged: 0, closed: false }
    }

    pub(super) fn name(&self) -> String {
        format!("flood-{}", self.id)
    }

    pub(super) fn policy(&self) -> OverflowPolicy {
        self.policy
    }

    pub(super) fn start(&self, wire: &mut WireClient) -> Result<()> {
        let program = records::program()?;
        let count = (self.bytes / RECORD).to_string();
        let argv = [&program, "child", "producer", &self.id.to_string(), &count];
        let mut params = wire::start(&self.name(), &argv);
        if self.policy == OverflowPolicy::DropOldest {
            params["overflow"] = json!("dropOldest");
        }
        wire.call("process/start", &params).with_context(|| format!("start {}", self.name()))?;
        Ok(())
    }

    fn output(&mut self, bytes: &[u8]) -> Result<()> {
        let right = |at: u64| {
            let record = at / RECORD;
            let word = if at % RECORD < 8 { self.id } else { record };
            word.to_le_bytes()[usize::try_from(at % 8).unwrap_or_default()]
        };
        let wrong = (self.at..).zip(bytes).find(|(at, byte)| right(*at) != **byte);
        if let Some((at, byte)) = wrong {
            bail!("{}: {byte} at offset {at} instead of {}", self.name(), right(at));
        }
        self.at += bytes.len() as u64;
        self.unacknowledged += bytes.len() as u64;
        Ok(())
    }

    fn gap(&mut self, params: &Value) -> Result<()> {
        ensure!(
            self.policy == OverflowPolicy::DropOldest,
            "{}: a gap, and nothing may be dropped: {params}",
            self.name()
        );
        let bytes = params["bytes"].as_u64().with_context(|| format!("no count in {params}"))?;
        let next = params["toSeq"].as_u64().with_context(|| format!("no number in {params}"))?;
        (self.at, self.missing, self.seq) = (self.at + bytes, self.missing + bytes, next);
        Ok(())
    }

    fn close(&mut self, params: &Value) -> Result<()> {
        ensure!(self.at == self.bytes, "{} ended at {} of {} bytes", self.name(), self.at, self.bytes);
        ensure!(params["outputBytes"] == self.bytes, "{} wrote {}: {params}", self.name(), self.bytes);
        // Dropped output may have been on its way to us already, so the count can be larger than what we miss, but never smaller.
        let dropped = params["droppedBytes"].as_u64().with_context(|| format!("no count in {params}"))?;
        let is_reported = dropped >= self.missing && (dropped == 0 || self.policy == OverflowPolicy::DropOldest);
        ensure!(is_reported, "{} misses {} bytes: {params}", self.name(), self.missing);
        self.closed = true;
        Ok(())
    }
}

/// Reads the rest of all floods of a session, on as many connections as needed; returns the number of bytes checked.
pub(super) fn drain(address: &ServerAddress, session: &str, floods: &mut [Flood]) -> Result<u64> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match drain_once(address, session, floods) {
            Ok(()) => return Ok(floods.iter().map(|flood| flood.bytes - flood.missing).sum()),
            Err(error) if error.downcast_ref::<CallError>().is_some_and(CallError::is_lost) => {}
            Err(error) => return Err(error),
        }
        ensure!(Instant::now() < deadline, "not read whole after 120 s");
    }
}

fn drain_once(address: &ServerAddress, session: &str, floods: &mut [Flood]) -> Result<()> {
    let (mut wire, _) = WireClient::open(address, &hello(Some(session)))?;
    for flood in floods.iter().filter(|flood| flood.seq > 0) {
        wire.notify("process/ack", &json!({ "processId": flood.name(), "seq": flood.seq }))?;
    }
    while floods.iter().any(|flood| !flood.closed) {
        let incoming = wire.next_message()?;
        let (process, seq) = match &incoming {
            ServerMessage::Output(output) => (&output.process, output.seq),
            ServerMessage::Exited { process, seq, .. } | ServerMessage::Closed { process, seq, .. } => (process, *seq),
            ServerMessage::Other { method, params } if method == "process/gap" => {
                let name = params["processId"].as_str().unwrap_or_default();
                find(floods, name)?.gap(params)?;
                continue;
            }
            ServerMessage::Other { method, params } => bail!("unexpected `{method}`: {params}"),
            ServerMessage::Answer { id, .. } => bail!("an answer to {id}, which nobody asked"),
        };
        let flood = find(floods, process)?;
        if seq <= flood.seq {
            continue; // A repetition after a cut.
        }
        ensure!(seq == flood.seq + 1, "{}: number {seq} after {}", flood.name(), flood.seq);
        flood.seq = seq;
        match &incoming {
            ServerMessage::Output(output) => flood.output(&output.bytes)?,
            ServerMessage::Exited { code, .. } => {
                ensure!(*code == records::exit_code(flood.id), "{} exited with {code}", flood.name());
            }
            ServerMessage::Closed { params, .. } => flood.close(params)?,
            ServerMessage::Other { .. } | ServerMessage::Answer { .. } => {}
        }
        if flood.unacknowledged >= ACK_EVERY || flood.closed {
            flood.unacknowledged = 0;
            wire.notify("process/ack", &json!({ "processId": flood.name(), "seq": flood.seq }))?;
        }
    }
    wire.call("session/end", &json!({})).context("end the session")?;
    Ok(())
}

fn find<'a>(floods: &'a mut [Flood], name: &str) -> Result<&'a mut Flood> {
    floods.iter_mut().find(|flood| flood.name() == name).with_context(|| format!("an event of `{name}`"))
}

/// The list entry of every process, by id.
pub(super) fn listed(observer: &mut WireClient) -> Result<BTreeMap<String, Value>> {
    let list = observer.call("process/list", &json!({ "scope": "all" }))?;
    let entries = list["processes"].as_array().context("`process/list` gave no `processes`")?;
    let name = |entry: &Value| entry["processId"].as_str().unwrap_or_default().to_owned();
    Ok(entries.iter().map(|entry| (name(entry), entry.clone())).collect())
}

/// Polls until a condition holds; returns how long that took.
pub(super) fn wait(what: &str, within: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(begun.elapsed() < within, "not within {} s: {what}", within.as_secs());
        thread::sleep(Duration::from_millis(10));
    }
    Ok(begun.elapsed())
}

/// A neighbour at work: starts a process and waits for its output; returns the milliseconds.
pub(super) fn neighbour(wire: &mut WireClient, name: &str) -> Result<f64> {
    let begun = Instant::now();
    wire.call("process/start", &wire::start(name, &["echo", "fine"])).context("start a neighbour")?;
    let mut bytes = Vec::new();
    loop {
        match wire.next_message().context("wait for a neighbour")? {
            ServerMessage::Output(output) => bytes.extend(output.bytes),
            ServerMessage::Closed { seq, .. } => {
                ensure!(bytes == b"fine\n", "a neighbour said {bytes:?}");
                wire.notify("process/ack", &json!({ "processId": name, "seq": seq }))?;
                wire.call("process/forget", &json!({ "processId": name }))?;
                return Ok(begun.elapsed().as_secs_f64() * 1e3);
            }
            ServerMessage::Exited { .. } | ServerMessage::Answer { .. } | ServerMessage::Other { .. } => {}
        }
    }
}
