//! F9: the disk for spilled output becomes full and is freed again.
//!
//! The state directory is a tmpfs of 16 MiB in the server's own mount namespace. Floods without a client fill it until they are blocked and
//! reported as such. A neighbour works all the time. When space is freed, spilling continues by itself, and then every byte is read back.
//! One flood in four drops its oldest output, and the missing bytes are counted exactly.

use super::detached_producer::{self, Flood, OverflowPolicy};
use crate::prelude::*;

/// Size of the disk.
const DISK_BYTES: u64 = 16 << 20;

/// Bytes of each flood: four of them have 12 MiB in memory, and the rest is more than the disk holds.
const FLOOD_BYTES: u64 = 12 << 20;
const FLOODS: u64 = 4;

/// A timer of one second notices freed space; after this time the retry counts as missing.
const NOTICED_WITHIN: Duration = Duration::from_secs(4);

/// How long a neighbour's start may take on a busy machine, even while the disk is full.
const NEIGHBOUR_MS: f64 = 2000.0;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let rounds = setting.pick(1, 20, 200);
    let setup = Setup::new(&setting.binary)?.arg("--memory-per-process").arg("3MiB").tmpfs(DISK_BYTES)?;
    let server = setup.start().context("a tmpfs in a private mount namespace needs the right to mount (root)")?;
    let disk = PathBuf::from(format!("/proc/{}/root{}", server.pid(), setup.state_dir().display()));
    let (mut observer, _) = WireClient::session(&server.address)?;
    detached_producer::neighbour(&mut observer, "first")?;
    let level = ResourceLevel::of(server.pid());
    let family = setup.family();
    let mut random = setting.random("F9");
    let address = &server.address;
    let mut full =
        FullDisk { setup: &setup, disk, address, observer, bytes: 0, noticed: Vec::new(), neighbour_ms: 0.0 };
    for round in 0..rounds {
        full.round(round, random.between(4 << 20, 8 << 20))
            .with_context(|| format!("round {round}; the server says: {}", setup.log_tail()))?;
        for pid in &family {
            ensure!(Path::new(&format!("/proc/{pid}")).exists(), "process {pid} of the server is gone");
        }
    }
    level.wait_back().with_context(|| format!("after the last round; the server says: {}", setup.log_tail()))?;
    let FullDisk { observer, bytes, mut noticed, neighbour_ms, .. } = full;
    drop(observer);
    server.stop()?;
    Figures::survived(rounds)
        .set("bytes", bytes)
        .times(&mut noticed)
        .set("neighbour_worst_ms", format!("{neighbour_ms:.1}"))
        .only_line()
}

/// The server with its disk, and the results so far.
struct FullDisk<'a> {
    setup: &'a Setup,
    disk: PathBuf,
    address: &'a ServerAddress,
    observer: WireClient,
    bytes: u64,
    noticed: Vec<f64>,
    /// The longest start of a neighbour.
    neighbour_ms: f64,
}

impl FullDisk<'_> {
    fn round(&mut self, round: u64, filler: u64) -> Result<()> {
        let Self { setup, disk, address, observer, .. } = self;
        let (mut wire, session) = WireClient::session(address)?;
        let policy = |number| if number == 0 { OverflowPolicy::DropOldest } else { OverflowPolicy::Block };
        let mut floods: Vec<Flood> =
            (0..FLOODS).map(|number| Flood::new(round * FLOODS + number, FLOOD_BYTES, policy(number))).collect();
        fs::write(disk.join("filler"), vec![7; usize::try_from(filler)?]).context("fill a part of the disk")?;
        for flood in &floods {
            flood.start(&mut wire)?;
        }
        drop(wire);
        let names: Vec<String> =
            floods.iter().filter(|flood| flood.policy == OverflowPolicy::Block).map(Flood::name).collect();
        try_until("a flood is blocked by the full disk", Duration::from_secs(30), || {
            let list = detached_producer::listed(observer)?;
            Ok(names.iter().any(|name| list.get(name).is_some_and(|entry| entry["blocked"] == "diskFull")))
        })?;
        for number in 0..5 {
            let took = detached_producer::neighbour(observer, &format!("neighbour-{round}-{number}"))?;
            ensure!(took < NEIGHBOUR_MS, "a neighbour took {took:.0} ms beside a full disk");
            self.neighbour_ms = self.neighbour_ms.max(took);
        }
        let written = |observer: &mut WireClient| -> Result<u64> {
            let list = detached_producer::listed(observer)?;
            Ok(names.iter().filter_map(|name| list.get(name)?["outputBytes"].as_u64()).sum())
        };
        let before = written(observer)?;
        fs::remove_file(disk.join("filler")).context("free the disk")?;
        let all = FLOOD_BYTES * names.len() as u64;
        let noticed = try_until("spilling goes on where the disk was freed", NOTICED_WITHIN, || {
            Ok(written(observer)? >= (before + (2 << 20)).min(all))
        })?;
        self.noticed.push(noticed.as_secs_f64() * 1e3);
        self.bytes += detached_producer::drain(address, &session, &mut floods)?;
        try_until("nothing is left on the disk", Duration::from_secs(5), || Ok(segments(disk)? == 0))?;
        ensure!(!setup.family().is_empty(), "the server is gone");
        Ok(())
    }
}

/// The number of segment files in a state directory.
fn segments(disk: &Path) -> Result<usize> {
    let mut count = 0;
    for session in fs::read_dir(disk.join("sessions"))? {
        // A session that ends during the scan has no files left.
        let Ok(files) = fs::read_dir(session?.path()) else { continue };
        count += files.flatten().filter(|file| file.path().extension().is_some_and(|kind| kind == "seg")).count();
    }
    Ok(count)
}
