//! Producers that write while their client is disconnected, and the oracle that reads them back: every byte at its place, every gap
//! counted.
//!
//! Shared by F8, F9 and F10. It computes what a producer writes at each offset, and relies on no number of the server except the size of a
//! gap.

use crate::prelude::*;

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
    /// Bytes that it writes; `None` if it writes until it is terminated.
    bytes: Option<u64>,
    pub(super) policy: OverflowPolicy,
    /// Offset of the next byte.
    at: u64,
    seq: u64,
    /// Bytes whose loss was reported.
    pub(super) missing: u64,
    unacknowledged: u64,
    closed: bool,
}

impl Flood {
    pub(super) fn new(id: u64, bytes: u64, policy: OverflowPolicy) -> Self {
        let bytes = Some(bytes);
        Self { id, bytes, policy, at: 0, seq: 0, missing: 0, unacknowledged: 0, closed: false }
    }

    /// A flood with `dropOldest` that writes until it is terminated.
    pub(super) fn endless(id: u64) -> Self {
        Self { bytes: None, ..Self::new(id, 0, OverflowPolicy::DropOldest) }
    }

    pub(super) fn name(&self) -> String {
        format!("flood-{}", self.id)
    }

    pub(super) fn start(&self, wire: &mut WireClient) -> Result<()> {
        let program = records::program()?;
        let count = (self.bytes.unwrap_or(u64::MAX) / RECORD).to_string();
        let argv = [&program, "producer", &self.id.to_string(), &count];
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
        let may_drop = self.policy == OverflowPolicy::DropOldest;
        ensure!(may_drop, "{}: a gap, and nothing may be dropped: {params}", self.name());
        let number = |key: &str| params[key].as_u64().with_context(|| format!("no `{key}` in {params}"));
        let bytes = number("bytes")?;
        // An endless flood was terminated before it is read, so nothing more is dropped between the last event and the gap.
        if self.bytes.is_none() {
            let from = number("fromSeq")?;
            ensure!(from == self.seq + 1, "{}: a gap that does not begin after {}: {params}", self.name(), self.seq);
        }
        self.at += bytes;
        self.missing += bytes;
        self.seq = number("toSeq")?;
        Ok(())
    }

    fn exit(&self, code: i64) -> Result<()> {
        let is_promised = self.bytes.is_none() || code == records::exit_code(self.id);
        ensure!(is_promised, "{} exited with {code}", self.name());
        Ok(())
    }

    fn close(&mut self, params: &Value) -> Result<()> {
        let written = self.bytes.unwrap_or(self.at);
        ensure!(self.at == written, "{} ended at {} of {written} bytes", self.name(), self.at);
        ensure!(params["outputBytes"] == written, "{} wrote {written}: {params}", self.name());
        // Dropped output may have been on its way to us already, so the count can be larger than what we miss, but never smaller.
        let dropped = params["droppedBytes"].as_u64().with_context(|| format!("no count in {params}"))?;
        let is_reported = match self.bytes {
            None => dropped == self.missing,
            Some(_) => dropped >= self.missing && (dropped == 0 || self.policy == OverflowPolicy::DropOldest),
        };
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
            Ok(()) => return Ok(floods.iter().map(|flood| flood.at - flood.missing).sum()),
            Err(error) if is_lost(&error) => {}
            Err(error) => return Err(error),
        }
        ensure!(Instant::now() < deadline, "not read whole after 120 s");
    }
}

fn drain_once(address: &ServerAddress, session: &str, floods: &mut [Flood]) -> Result<()> {
    let (mut wire, _) = WireClient::open(address, &hello(Some(session)))?;
    for flood in floods.iter().filter(|flood| flood.seq > 0) {
        wire.acknowledge(&flood.name(), flood.seq)?;
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
            ServerMessage::Answer { id, .. } => bail!("an unexpected answer to request {id}"),
        };
        let flood = find(floods, process)?;
        if seq <= flood.seq {
            continue; // A repetition after a cut.
        }
        ensure!(seq == flood.seq + 1, "{}: number {seq} after {}", flood.name(), flood.seq);
        flood.seq = seq;
        match &incoming {
            ServerMessage::Output(output) => flood.output(&output.bytes)?,
            ServerMessage::Exited { code, .. } => flood.exit(*code)?,
            ServerMessage::Closed { params, .. } => flood.close(params)?,
            ServerMessage::Other { .. } | ServerMessage::Answer { .. } => {}
        }
        if flood.unacknowledged >= ACK_EVERY || flood.closed {
            flood.unacknowledged = 0;
            wire.acknowledge(&flood.name(), flood.seq)?;
        }
    }
    wire.end_session()
}

fn find<'a>(floods: &'a mut [Flood], name: &str) -> Result<&'a mut Flood> {
    floods.iter_mut().find(|flood| flood.name() == name).with_context(|| format!("an event of `{name}`"))
}

/// The list entry of every process, by id.
pub(super) fn listed(observer: &mut WireClient) -> Result<BTreeMap<String, Value>> {
    let name = |entry: &Value| entry["processId"].as_str().unwrap_or_default().to_owned();
    Ok(observer.list_all()?.into_iter().map(|entry| (name(&entry), entry)).collect())
}

/// A neighbour at work: starts a process and waits for its output; returns the milliseconds.
pub(super) fn neighbour(wire: &mut WireClient, name: &str) -> Result<f64> {
    let begun = Instant::now();
    wire.start(name, &["echo", "fine"]).context("start a neighbour")?;
    let mut bytes = Vec::new();
    loop {
        match wire.next_message().context("wait for a neighbour")? {
            ServerMessage::Output(output) => bytes.extend(output.bytes),
            ServerMessage::Closed { seq, .. } => {
                ensure!(bytes == b"fine\n", "a neighbour said {bytes:?}");
                wire.acknowledge(name, seq)?;
                wire.call("process/forget", &json!({ "processId": name }))?;
                return Ok(begun.elapsed().as_secs_f64() * 1e3);
            }
            ServerMessage::Exited { .. } | ServerMessage::Answer { .. } | ServerMessage::Other { .. } => {}
        }
    }
}
