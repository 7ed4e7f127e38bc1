//! F7: a client reads 64 KiB per second while its process writes as fast as it can.
//!
//! The server's memory must not grow by more than 32 MiB, and a neighbour's round trips must stay as fast as before. Their 99th percentile
//! may be at most twice as long as before, or as on a second server without a slow reader that is measured in the same seconds (other load
//! on the machine slows both), or below the usual variation of two shared cores.

use crate::prelude::*;
use exec_server_harness::server;

/// The bytes per second of the slow reader.
const RATE: u64 = 64 << 10;

/// How much the server may grow.
const GROWTH_KIB: u64 = 32 << 10;

/// A round trip below this never counts as slow.
const FLOOR_MS: f64 = 10.0;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let seconds = setting.pick(6, 30, 30);
    let rounds = setting.pick(1, 3, 20);
    let lines = (0..rounds).map(|_| one(setting, Duration::from_secs(seconds))).collect::<Result<Vec<_>>>()?;
    let worst = |figure: fn(&SlowReaderOutcome) -> f64| lines.iter().map(figure).fold(0.0, f64::max);
    Figures::survived(rounds)
        .set("bytes", lines.iter().map(|line| line.bytes).sum::<u64>())
        .set("worst_ms", format!("{:.1}", worst(|line| line.p99)))
        .set("growth_kib", worst(|line| line.growth_kib as f64))
        .set("baseline_p99_ms", format!("{:.2}", worst(|line| line.before)))
        .set("neighbour_p99_ms", format!("{:.2}", worst(|line| line.p99)))
        .only_line()
}

struct SlowReaderOutcome {
    growth_kib: u64,
    before: f64,
    p99: f64,
    bytes: u64,
}

fn one(setting: &FaultSetting, long: Duration) -> Result<SlowReaderOutcome> {
    let (setup, server) = Setup::started(&setting.binary)?;
    let quiet_setup = Setup::new(&setting.binary)?;
    let quiet_server = quiet_setup.start()?;
    let mut quiet = Neighbour::new(&quiet_server.address)?;
    let mut neighbour = Neighbour::new(&server.address)?;
    let before = neighbour.p99(long / 4)?;
    let at_first = server::memory_kib(server.pid());
    let (over, peak, bytes) = (AtomicBool::new(false), AtomicU64::new(at_first), AtomicU64::new(0));
    let proxy = Proxy::start(server.address.socket, setting.seed, |_| {
        let mut plan = Plan::default();
        plan.down_shape.throttle = RATE;
        plan
    })?;
    let address = server.address.through(proxy.address());
    let (p99, beside) = thread::scope(|scope| {
        let beside = scope.spawn(|| quiet.p99(long));
        let reading = scope.spawn(|| read_slowly(&address, long, &bytes));
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(server::memory_kib(server.pid()), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(50));
            }
        });
        let p99 = neighbour.p99(long);
        let read = reading.join().expect("the reader does not panic");
        over.store(true, Ordering::Relaxed);
        read?;
        anyhow::Ok((p99?, beside.join().expect("the other neighbour does not panic")?))
    })
    .with_context(|| format!("the server says: {}", setup.log_tail()))?;
    let growth_kib = peak.into_inner().saturating_sub(at_first);
    neighbour.end()?;
    quiet.end()?;
    quiet_server.stop()?;
    drop(proxy);
    server.stop()?;
    for holder in setup.holders() {
        processes::kill(holder, rustix::process::Signal::KILL); // The holder of the slow client's session, which would otherwise wait for a day.
    }
    setup.wait_gone(Duration::from_secs(5))?;
    setup.ensure_no_panic()?;
    ensure!(growth_kib <= GROWTH_KIB, "the server grew by {growth_kib} KiB, at most {GROWTH_KIB}");
    ensure!(
        p99 <= (2.0 * before.max(beside)).max(FLOOR_MS),
        "a neighbour's p99 was {before:.2} ms, is {p99:.2} ms beside a slow reader, and {beside:.2} ms at another server"
    );
    Ok(SlowReaderOutcome { growth_kib, before: before.max(beside), p99, bytes: bytes.into_inner() })
}

/// Receives what comes through the throttle, checks the numbers and acknowledges, like a live client.
fn read_slowly(address: &ServerAddress, long: Duration, bytes: &AtomicU64) -> Result<()> {
    let (mut wire, _) = WireClient::open(address, &hello(None))?;
    wire.start("flood", &[&records::program()?, "flood", &u64::MAX.to_string()])?;
    let (begun, mut seq) = (Instant::now(), 0);
    while begun.elapsed() < long {
        if let ServerMessage::Output(output) = wire.next_message()? {
            ensure!(output.seq == seq + 1 && output.gap.is_none(), "number {} after {seq}", output.seq);
            ensure!(output.bytes.iter().all(|byte| *byte == 0), "a byte that was never written");
            seq = output.seq;
            bytes.fetch_add(output.bytes.len() as u64, Ordering::Relaxed);
            wire.acknowledge("flood", seq)?;
        }
    }
    ensure!(seq > 0, "nothing came through");
    Ok(())
}

/// A client with `cat`, whose round trips are measured.
pub(super) struct Neighbour {
    wire: WireClient,
    writes: u64,
}

impl Neighbour {
    pub(super) fn new(address: &ServerAddress) -> Result<Self> {
        let (mut wire, _) = WireClient::session(address)?;
        let mut params = wire::start("cat", &["/bin/cat"]);
        params["pipeStdin"] = json!(true);
        wire.call("process/start", &params)?;
        Ok(Self { wire, writes: 0 })
    }

    /// Measures round trips for this long; returns their 99th percentile in milliseconds.
    pub(super) fn p99(&mut self, long: Duration) -> Result<f64> {
        let (begun, mut times) = (Instant::now(), Vec::new());
        while begun.elapsed() < long {
            times.push(self.round_trip()?);
            thread::sleep(Duration::from_millis(2));
        }
        times.sort_by(f64::total_cmp);
        Ok(percentile(&times, 99))
    }

    /// The time from a write to its echo.
    pub(super) fn round_trip(&mut self) -> Result<f64> {
        let text = format!("{:08}", self.writes);
        self.writes += 1;
        let params = json!({ "processId": "cat", "writeId": text, "chunk": STANDARD.encode(&text) });
        let begun = Instant::now();
        self.wire.send("process/write", &params)?;
        loop {
            match self.wire.next_message()? {
                ServerMessage::Output(output) => {
                    ensure!(output.bytes == text.as_bytes(), "the echo of `{text}` is {:?}", output.bytes);
                    let took = begun.elapsed().as_secs_f64() * 1e3;
                    self.wire.acknowledge("cat", output.seq)?;
                    return Ok(took);
                }
                ServerMessage::Answer { outcome, .. } => {
                    ensure!(outcome?["status"] == "accepted", "a write was refused")
                }
                _ => {}
            }
        }
    }

    pub(super) fn end(mut self) -> Result<()> {
        self.wire.end_session()
    }
}
