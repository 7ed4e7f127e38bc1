//! D1 to D4: large output arrives complete and in order, however the client reads, while the server's memory stays flat.

use super::producer_reader::ProducerReader;
use crate::prelude::*;

/// How much server, spawner and holders together may grow.
const GROWTH_KIB: u64 = 32 << 10;

const PRODUCER: u64 = 1;

/// A way to read: gets the server's address and the number of bytes that the producer writes.
type ReadFn = fn(&ServerAddress, u64) -> Result<()>;

pub(super) fn fast(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let mut lines = deliver(setting, "ack", |address, total| pushed(address, total, &hello(None), None))?;
    lines.extend(deliver(setting, "plain", |address, total| pushed(address, total, &plain(), None))?);
    Ok(lines)
}

pub(super) fn slow(setting: &FaultSetting) -> Result<Vec<Figures>> {
    deliver(setting, "ack", |address, total| pushed(address, total, &hello(None), Some(20e6)))
}

pub(super) fn polling(setting: &FaultSetting) -> Result<Vec<Figures>> {
    deliver(setting, "plain", polled)
}

pub(super) fn away(setting: &FaultSetting) -> Result<Vec<Figures>> {
    deliver(setting, "ack", away_for_half)
}

/// `initialize` of a reference client, which announces no capabilities.
fn plain() -> serde_json::Value {
    json!({ "clientName": "xtask-plain" })
}

/// One line per size: 64 MiB, and 2 GiB unless this is CI.
fn deliver(setting: &FaultSetting, client: &'static str, read: ReadFn) -> Result<Vec<Figures>> {
    let sizes: &[u64] = if setting.pick(0, 1, 1) == 0 { &[64 << 20] } else { &[64 << 20, 2 << 30] };
    sizes.iter().map(|size| one(setting, client, *size, read)).collect()
}

fn one(setting: &FaultSetting, client: &'static str, total: u64, read: ReadFn) -> Result<Figures> {
    let (setup, server) = Setup::started(&setting.binary)?;
    let before = setup.memory_kib();
    let (over, peak) = (AtomicBool::new(false), AtomicU64::new(before));
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(setup.memory_kib(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(50));
            }
        });
        let outcome = read(&server.address, total);
        over.store(true, Ordering::Relaxed);
        outcome
    })
    .with_context(|| format!("{total} bytes; the server says: {}", setup.log_tail()))?;
    let seconds = begun.elapsed().as_secs_f64();
    setup.finish(server)?;
    let growth = peak.into_inner().saturating_sub(before);
    ensure!(growth < GROWTH_KIB, "memory grew by {growth} KiB with {total} bytes of output, at most {GROWTH_KIB}");
    Ok(Figures::survived(1)
        .set("bytes", total)
        .set("client", client)
        .set("before_kib", before)
        .set("growth_kib", growth)
        .set("mb_per_s", format!("{:.0}", total as f64 / 1e6 / seconds)))
}

/// Reads pushed output, at full speed or at a given number of bytes per second.
fn pushed(address: &ServerAddress, total: u64, initialize: &serde_json::Value, rate: Option<f64>) -> Result<()> {
    let (wire, _) = WireClient::open(address, initialize)?;
    let mut reader = ProducerReader::start(wire, PRODUCER, total / RECORD)?;
    reader.acknowledges = initialize.get("capabilities").is_some();
    let begun = Instant::now();
    while let Some(rate) = rate
        && reader.take()?
    {
        let due = Duration::from_secs_f64(reader.bytes as f64 / rate);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    reader.finish()
}

/// Starts a process, disconnects until half of the output is written (or the quota stops it), and reconnects.
fn away_for_half(address: &ServerAddress, total: u64) -> Result<()> {
    let (mut wire, session) = WireClient::session(address)?;
    wire.start_producer("p", PRODUCER, total / RECORD)?;
    drop(wire);
    let (mut observer, _) = WireClient::session(address)?;
    wait_written(&mut observer, total / 2)?;
    observer.end_session()?;
    let (wire, _) = WireClient::open(address, &hello(Some(&session)))?;
    ProducerReader::new(wire, PRODUCER, total / RECORD).finish()
}

/// Polls the list of another session. The wait also ends when the holder cannot store more (quota, free-space floor).
fn wait_written(observer: &mut WireClient, wanted: u64) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let entries = observer.list_all()?;
        let entry = entries.iter().find(|entry| entry["processId"] == "p").context("the process is not listed")?;
        let written = entry["outputBytes"].as_u64().with_context(|| format!("no `outputBytes` in {entry}"))?;
        if written >= wanted {
            return Ok(());
        }
        if written > last {
            (last, since) = (written, Instant::now());
        }
        // Most of the half must have been stored: a holder that stops reading at once fails.
        if since.elapsed() > Duration::from_secs(3) {
            ensure!(written > wanted * 9 / 10, "only {written} of {wanted} bytes were taken while the client was away");
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{written} of {wanted} bytes after 120 s");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Reads with `process/read` only, as a reference client does; pushed output is ignored.
fn polled(address: &ServerAddress, total: u64) -> Result<()> {
    let (mut wire, _) = WireClient::open(address, &plain())?;
    wire.start_producer("p", PRODUCER, total / RECORD)?;
    let mut records = Records::new(PRODUCER);
    let mut after = 0;
    loop {
        let params = json!({ "processId": "p", "afterSeq": after, "waitMs": 1000, "maxBytes": 1 << 20 });
        let answer = wire.call("process/read", &params).with_context(|| format!("read after {after}"))?;
        wire.take_early();
        ensure!(answer["gap"].is_null(), "a gap: {}", answer["gap"]);
        let chunks = answer["chunks"].as_array().context("`process/read` gave no `chunks`")?;
        for chunk in chunks {
            records.push(&STANDARD.decode(chunk["chunk"].as_str().context("a chunk is text")?)?);
        }
        after = answer["nextSeq"].as_u64().context("no `nextSeq`")? - 1;
        // `closed` describes the process, not this answer, which `maxBytes` may have cut.
        if answer["closed"] == true && chunks.is_empty() {
            ensure!(answer["exitCode"] == records::exit_code(PRODUCER), "exit code {}", answer["exitCode"]);
            break;
        }
    }
    records.finish(total / RECORD)?;
    wire.end_session()
}
