//! F8: ten processes write as fast as they can without a client, with a small quota and `dropOldest`.
//!
//! The disk must stay within the quota and memory within its limit. A client that reconnects must find every remaining byte at its place:
//! the output is a function of the offset, so a gap that is wrong by one byte is detected.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use exec_server_harness::{
    records::{self, RECORD},
    server::{self, Setup},
    wire::{self, ServerAddress, ServerMessage, WireClient, hello},
};
use serde_json::json;

use super::{FaultSetting, Figures, resource_level::ResourceLevel};

const FLOODS: u64 = 10;

/// Memory that the log of a process may use beyond its cap: a segment on its way to disk, and tables.
const BESIDE_KIB: u64 = 4 << 10;

/// Memory that the C library keeps for the threads that read 1 MiB segments back from disk: it has up to eight arenas per core, and each
/// keeps a few segments. Measured: 38 MiB on two cores, independent of the amount of output, and none of it mapped from a log.
pub(super) const ARENAS_KIB: u64 = 64 << 10;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let (rounds, seconds) = (setting.pick(1, 2, 20), setting.pick(3, 30, 30));
    // In three seconds a larger quota is not always reached.
    let bounds = FloodBounds { disk_mib: setting.pick(8, 64, 64), memory_mib: setting.pick(4, 16, 16) };
    let (mut bytes, mut gaps, mut disk, mut growth) = (0, 0, 0, 0);
    for _ in 0..rounds {
        let setup = Setup::new(&setting.binary)?
            .arg(&format!("--disk-per-process={}MiB", bounds.disk_mib))
            .arg(&format!("--memory-per-process={}MiB", bounds.memory_mib));
        let round = one(&setup, &bounds, Duration::from_secs(seconds))
            .with_context(|| format!("the server says: {}", setup.log_tail()))?;
        bytes += round.received;
        gaps += round.gaps;
        disk = disk.max(round.disk);
        growth = growth.max(round.growth_kib);
        setup.ensure_no_panic()?;
    }
    ensure!(gaps > 0, "nothing was dropped: the floods were no floods");
    Ok(vec![
        Figures::default()
            .survived(rounds * FLOODS)
            .set("bytes", bytes)
            .set("gap_bytes", gaps)
            .set("disk_bytes", disk)
            .set("growth_kib", growth),
    ])
}

/// The limits of one process.
struct FloodBounds {
    disk_mib: u64,
    memory_mib: u64,
}

struct FloodRound {
    received: u64,
    gaps: u64,
    disk: u64,
    growth_kib: u64,
}

fn one(setup: &Setup, bounds: &FloodBounds, long: Duration) -> Result<FloodRound> {
    let server = setup.start()?;
    let level = ResourceLevel::after_first_session(server.pid(), &server.address)?.keeping(ARENAS_KIB);
    let before = setup.memory_kib();
    let (mut wire, session) = WireClient::session(&server.address)?;
    for id in 0..FLOODS {
        let argv = [&records::program()?, "child", "producer", &id.to_string(), &(u64::MAX / RECORD).to_string()];
        let mut params = wire::start(&format!("flood-{id}"), &argv);
        params["overflow"] = json!("dropOldest");
        wire.call("process/start", &params)?;
    }
    drop(wire);
    let (mut disk, mut memory) = (0, before);
    let begun = Instant::now();
    while begun.elapsed() < long {
        thread::sleep(Duration::from_millis(50));
        disk = disk.max(server::disk_bytes(&setup.state_dir()));
        memory = memory.max(setup.memory_kib());
    }
    let growth_kib = memory.saturating_sub(before);
    // A segment that is being written exists in addition to those that count.
    let quota = (FLOODS * bounds.disk_mib) << 20;
    ensure!(disk <= quota + (FLOODS + 1) * (1 << 20), "{disk} bytes on disk, the quota is {quota}");
    let bound = FLOODS * ((bounds.memory_mib << 10) + BESIDE_KIB) + (32 << 10);
    ensure!(growth_kib <= bound, "memory grew by {growth_kib} KiB, at most {bound}");
    let (received, gaps) = read_all(&server.address, &session)?;
    level.wait_back().context("after the floods")?;
    setup.finish(server)?;
    Ok(FloodRound { received, gaps, disk, growth_kib })
}

/// Ends the floods, so that no unread output is dropped any longer, then resumes and reads the rest of each to its end.
fn read_all(address: &ServerAddress, session: &str) -> Result<(u64, u64)> {
    let mut floods: Vec<FloodReader> = (0..FLOODS).map(FloodReader::new).collect();
    let (mut other, _) = WireClient::session(address)?;
    for flood in &floods {
        other.call("process/terminate", &json!({ "processId": flood.name, "sessionId": session }))?;
    }
    wait_ended(&mut other)?;
    other.call("session/end", &json!({}))?;
    let (mut wire, _) = WireClient::open(address, &hello(Some(session)))?;
    while floods.iter().any(|flood| !flood.closed) {
        let (name, event) = match wire.next_message()? {
            ServerMessage::Output(output) => (output.process.clone(), FloodEvent::Output(output)),
            ServerMessage::Closed { process, params, .. } => (process, FloodEvent::Closed(params)),
            ServerMessage::Other { method, params } if method == "process/gap" => {
                (params["processId"].as_str().unwrap_or_default().to_owned(), FloodEvent::Gap(params))
            }
            ServerMessage::Other { method, params } => bail!("unexpected `{method}`: {params}"),
            ServerMessage::Exited { .. } | ServerMessage::Answer { .. } => continue,
        };
        let flood = floods.iter_mut().find(|flood| flood.name == name).context("an event of an unknown process")?;
        if let Some(seq) = flood.take(event).with_context(|| name.clone())? {
            wire.notify("process/ack", &json!({ "processId": name, "seq": seq }))?;
        }
    }
    wire.call("session/end", &json!({})).context("end the session")?;
    Ok(floods.iter().fold((0, 0), |(received, gaps), flood| (received + flood.received, gaps + flood.gaps)))
}

fn wait_ended(wire: &mut WireClient) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let list = wire.call("process/list", &json!({ "scope": "all" }))?;
        let entries = list["processes"].as_array().context("`process/list` gave no `processes`")?;
        let running = entries.iter().filter(|entry| entry["exited"] != true).count();
        if running == 0 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{running} floods run 10 s after they were ended");
        thread::sleep(Duration::from_millis(10));
    }
}

enum FloodEvent {
    Output(wire::OutputChunk),
    Gap(serde_json::Value),
    Closed(serde_json::Value),
}

/// The data received from one process, and the offset of the next byte.
struct FloodReader {
    id: u64,
    name: String,
    at: u64,
    seq: u64,
    received: u64,
    gaps: u64,
    closed: bool,
}

impl FloodReader {
    fn new(id: u64) -> Self {
        Self { id, name: format!("flood-{id}"), at: 0, seq: 0, received: 0, gaps: 0, closed: false }
    }

    /// Returns the number to acknowledge.
    fn take(&mut self, event: FloodEvent) -> Result<Option<u64>> {
        match event {
            FloodEvent::Output(output) => {
                ensure!(output.seq == self.seq + 1, "number {} after {}", output.seq, self.seq);
                self.check(&output.bytes)?;
                self.seq = output.seq;
                self.received += output.bytes.len() as u64;
                Ok(Some(self.seq))
            }
            FloodEvent::Gap(gap) => {
                let number = |key: &str| gap[key].as_u64().with_context(|| format!("no `{key}` in {gap}"));
                ensure!(number("fromSeq")? == self.seq + 1, "a gap that does not begin after {}: {gap}", self.seq);
                self.seq = number("toSeq")?;
                self.at += number("bytes")?;
                self.gaps += number("bytes")?;
                Ok(Some(self.seq))
            }
            FloodEvent::Closed(params) => {
                ensure!(params["outputBytes"] == self.at, "{} bytes by our count, it says {params}", self.at);
                ensure!(params["droppedBytes"] == self.gaps, "{} bytes in gaps, it says {params}", self.gaps);
                self.closed = true;
                Ok(None)
            }
        }
    }

    /// Checks that every byte is the one that the process wrote at this offset.
    fn check(&mut self, bytes: &[u8]) -> Result<()> {
        for byte in bytes {
            let (record, within) = (self.at / RECORD, usize::try_from(self.at % RECORD)?);
            let expected = if within < 8 { self.id.to_le_bytes()[within] } else { record.to_le_bytes()[within - 8] };
            ensure!(*byte == expected, "byte {} is {byte}, not {expected}: a gap was told wrong", self.at);
            self.at += 1;
        }
        Ok(())
    }
}
