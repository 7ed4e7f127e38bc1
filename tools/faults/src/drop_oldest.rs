//! F8: ten processes write as fast as they can without a client, with a small quota and `dropOldest`.
//!
//! The disk must stay within the quota and memory within its limit. A client that reconnects must find every remaining byte at its place:
//! the output is a function of the offset, so a gap that is wrong by one byte is detected.

use super::detached_producer::{self, Flood};
use crate::prelude::*;
use exec_server_harness::server;

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
    let mut tally = FloodTally::default();
    for _ in 0..rounds {
        let setup = Setup::new(&setting.binary)?
            .arg(&format!("--disk-per-process={}MiB", bounds.disk_mib))
            .arg(&format!("--memory-per-process={}MiB", bounds.memory_mib));
        tally
            .add_round(&setup, &bounds, Duration::from_secs(seconds))
            .with_context(|| format!("the server says: {}", setup.log_tail()))?;
        setup.ensure_no_panic()?;
    }
    ensure!(tally.gaps > 0, "nothing was dropped: the floods were no floods");
    Figures::survived(rounds * FLOODS)
        .set("bytes", tally.received)
        .set("gap_bytes", tally.gaps)
        .set("disk_bytes", tally.disk)
        .set("growth_kib", tally.growth_kib)
        .only_line()
}

/// The limits of one process.
struct FloodBounds {
    disk_mib: u64,
    memory_mib: u64,
}

/// Sums of all rounds, and the most that a round had on disk and in memory.
#[derive(Default)]
struct FloodTally {
    received: u64,
    gaps: u64,
    disk: u64,
    growth_kib: u64,
}

impl FloodTally {
    fn add_round(&mut self, setup: &Setup, bounds: &FloodBounds, long: Duration) -> Result<()> {
        let server = setup.start()?;
        let level = ResourceLevel::after_first_session(server.pid(), &server.address)?.keeping(ARENAS_KIB);
        let before = setup.memory_kib();
        let (mut wire, session) = WireClient::session(&server.address)?;
        let mut floods: Vec<Flood> = (0..FLOODS).map(Flood::endless).collect();
        floods.iter().try_for_each(|flood| flood.start(&mut wire))?;
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
        self.received += read_all(&server.address, &session, &mut floods)?;
        level.wait_back().context("after the floods")?;
        self.gaps += floods.iter().map(|flood| flood.missing).sum::<u64>();
        self.disk = self.disk.max(disk);
        self.growth_kib = self.growth_kib.max(growth_kib);
        setup.finish(server)
    }
}

/// Ends the floods, so that no unread output is dropped any longer, then resumes and reads the rest of each to its end.
fn read_all(address: &ServerAddress, session: &str, floods: &mut [Flood]) -> Result<u64> {
    let (mut other, _) = WireClient::session(address)?;
    for flood in &*floods {
        other.call("process/terminate", &json!({ "processId": flood.name(), "sessionId": session }))?;
    }
    try_until("all floods have ended", Duration::from_secs(10), || {
        Ok(other.list_all()?.iter().all(|entry| entry["exited"] == true))
    })?;
    other.end_session()?;
    detached_producer::drain(address, session, floods)
}
