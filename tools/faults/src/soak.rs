//! F25: mixed load for many minutes with faults at a low rate, and the growth of memory and fds.
//!
//! There are two servers. The first is never ended: its link is cut (F1), and its clients are killed while they write (F3) and go silent
//! (F6). The second is killed (F2) and drained (F5); its holders, which outlive it, are measured. Under load, memory goes up and down by
//! tens of megabytes, while a leak stays. So the load pauses regularly until every producer has ended and is forgotten, and memory is
//! measured then. A line fitted to these samples shows the growth; the first fifth is dropped as warm-up.

use std::sync::Mutex;

use super::{server_shutdown, stdin_writes};
use crate::prelude::*;
use exec_server_chaos::Way;
use exec_server_harness::server;

/// Producers of each server.
const LANES: usize = 4;

/// How much the fitted line may rise over the whole run, which a few minutes cannot distinguish from noise.
const RISE_KIB: f64 = 4096.0;
const RISE_DESCRIPTORS: f64 = 2.0;

/// How long the load runs before it pauses.
const PAUSE_EVERY: Duration = Duration::from_secs(15);

/// How long it pauses: longer than the time after which a holder releases free memory.
const SETTLED: Duration = Duration::from_secs(3);

/// Runs for this many minutes.
pub(super) fn run(setting: &FaultSetting, minutes: u64) -> Result<Vec<Figures>> {
    let until = Instant::now() + Duration::from_secs(minutes * 60);
    let (steady, ended) = (Setup::new(&setting.binary)?, Setup::new(&setting.binary)?);
    let tally = SoakTally::default();
    thread::scope(|scope| {
        let links = scope.spawn(|| links(setting, &steady, until, &tally));
        let ends = scope.spawn(|| ends(setting, &ended, until, &tally));
        links.join().expect("no panic").context("links").and(ends.join().expect("no panic").context("ends"))
    })
    .with_context(|| format!("the servers say: {} / {}", steady.log_tail(), ended.log_tail()))?;
    steady.ensure_no_panic()?;
    ended.ensure_no_panic()?;
    let samples = tally.samples.into_inner().expect("no panic under the lock");
    let figures = Figures::survived(tally.faults.into_inner()).set("bytes", tally.bytes.into_inner());
    for (name, series) in &samples {
        // A server that is ended repeatedly starts from scratch: only what outlives it can grow.
        if name.starts_with("ended") && !name.ends_with("holder") {
            continue;
        }
        ensure!(series.len() > 1, "{name}: weighed once, which tells no growth; soak for longer");
        let (memory, descriptors) = (LinearFit::fit(series, |s| s.kib), LinearFit::fit(series, |s| s.descriptors));
        println!(
            "F25 {name}: memory {:.0} KiB {:+.2} MiB/h, descriptors {:.1} {:+.2}/h, {} samples",
            memory.mean,
            memory.per_hour / 1024.0,
            descriptors.mean,
            descriptors.per_hour,
            series.len()
        );
        ensure!(memory.rise <= RISE_KIB, "{name}: memory rose by {:.0} KiB", memory.rise);
        ensure!(descriptors.rise <= RISE_DESCRIPTORS, "{name}: descriptors rose by {:.1}", descriptors.rise);
    }
    figures.set("minutes", minutes).only_line()
}

/// One measurement of one kind of process.
struct MemorySample {
    at: Instant,
    kib: f64,
    descriptors: f64,
}

/// By server and kind of process.
type MemorySamples = BTreeMap<String, Vec<MemorySample>>;

/// Measures server, spawner and holders separately; processes of one kind are added up.
fn weigh(setup_name: &str, setup: &Setup, samples: &Mutex<MemorySamples>) {
    let at = Instant::now();
    let mut kinds: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for pid in setup.family() {
        let kind = processes::comm(pid).unwrap_or_default().trim_start_matches("exec-").to_owned();
        let entry = kinds.entry(kind).or_default();
        entry.0 += server::own_memory_kib(pid) as f64;
        entry.1 += server::descriptors(pid) as f64;
    }
    let mut samples = samples.lock().expect("no panic under the lock");
    for (kind, (kib, descriptors)) in kinds {
        samples.entry(format!("{setup_name} {kind}")).or_default().push(MemorySample { at, kib, descriptors });
    }
}

/// A straight line through samples, without their first fifth.
struct LinearFit {
    mean: f64,
    per_hour: f64,
    /// The rise from the first counted sample to the last.
    rise: f64,
}

impl LinearFit {
    fn fit(samples: &[MemorySample], value: impl Fn(&MemorySample) -> f64) -> Self {
        let samples = &samples[samples.len() / 5..];
        let count = samples.len().max(1) as f64;
        let at = |sample: &MemorySample| sample.at.duration_since(samples[0].at).as_secs_f64();
        let mean_at = samples.iter().map(at).sum::<f64>() / count;
        let mean = samples.iter().map(&value).sum::<f64>() / count;
        let square = samples.iter().map(|sample| (at(sample) - mean_at).powi(2)).sum::<f64>();
        let product = samples.iter().map(|sample| (at(sample) - mean_at) * (value(sample) - mean)).sum::<f64>();
        let slope = if square > 0.0 { product / square } else { 0.0 };
        Self { mean, per_hour: slope * 3600.0, rise: slope * samples.last().map_or(0.0, at) }
    }
}

/// The counters and samples of both servers.
#[derive(Default)]
struct SoakTally {
    bytes: AtomicU64,
    faults: AtomicU64,
    samples: Mutex<MemorySamples>,
}

/// Cuts, silences and killed writers at a server that keeps running.
fn links(setting: &FaultSetting, setup: &Setup, until: Instant, tally: &SoakTally) -> Result<()> {
    let mut random = setting.random("F25 links");
    let server = setup.start()?;
    let proxy = Proxy::start(server.address.socket, random.next(), |random| {
        Plan::default().down(random.between(16 << 20, 512 << 20), Event::any_cut(random))
    })?;
    let address = server.address.through(proxy.address());
    let mut load = ProducerLoad::new(random.fork(), LANES)?;
    load.attach(&address)?;
    let mut silent = 0;
    let mut next = Instant::now() + Duration::from_secs(5);
    let mut pauses = LoadPauses { name: "steady", setup, samples: &tally.samples, next: Instant::now() + PAUSE_EVERY };
    while Instant::now() < until {
        pauses.weigh_if_due(&mut load, &address)?;
        run_load_for(&mut load, &address, Duration::from_millis(500))?;
        if Instant::now() >= next {
            next = Instant::now() + Duration::from_secs(random.between(5, 20));
            if random.one_in(2) {
                proxy.blackhole(&[Way::Up, Way::Down]);
                silent += 1;
                load.resume(&address, Instant::now())?;
            } else {
                const KILLS: u64 = 2;
                let file = setup.scratch().join(format!("sink-{silent}-{}", random.next()));
                stdin_writes::write_and_kill(random.fork(), &server.address, &file, KILLS)?;
                tally.faults.fetch_add(KILLS, Ordering::Relaxed);
                std::fs::remove_file(&file)?;
            }
        }
    }
    load.drain(&address)?;
    load.end_session()?;
    tally.bytes.fetch_add(load.bytes, Ordering::Relaxed);
    tally.faults.fetch_add(proxy.count() + silent, Ordering::Relaxed);
    setup.finish(server)
}

/// Kills and drains of a server that is restarted.
fn ends(setting: &FaultSetting, setup: &Setup, until: Instant, tally: &SoakTally) -> Result<()> {
    let mut random = setting.random("F25 ends");
    let mut server = setup.start()?;
    let mut load = ProducerLoad::new(random.fork(), LANES)?;
    load.attach(&server.address)?;
    let mut pauses = LoadPauses { name: "ended", setup, samples: &tally.samples, next: Instant::now() + PAUSE_EVERY };
    while Instant::now() < until {
        pauses.weigh_if_due(&mut load, &server.address)?;
        run_load_for(&mut load, &server.address, Duration::from_secs(random.between(5, 15)))?;
        if random.one_in(2) {
            server.kill()?;
        } else {
            server_shutdown::drain(server, Some(&mut load))?;
        }
        tally.faults.fetch_add(1, Ordering::Relaxed);
        server = setup.start()?;
        load.resume(&server.address, Instant::now())?;
    }
    load.drain(&server.address)?;
    load.end_session()?;
    tally.bytes.fetch_add(load.bytes, Ordering::Relaxed);
    setup.finish(server)
}

/// Load without a fault for this long; a lost link is resumed.
fn run_load_for(load: &mut ProducerLoad, address: &ServerAddress, long: Duration) -> Result<()> {
    let until = Instant::now() + long;
    while Instant::now() < until {
        load.step_or_resume(address)?;
    }
    Ok(())
}

/// The pauses of one server's load.
struct LoadPauses<'a> {
    name: &'static str,
    setup: &'a Setup,
    samples: &'a Mutex<MemorySamples>,
    next: Instant,
}

impl LoadPauses<'_> {
    fn weigh_if_due(&mut self, load: &mut ProducerLoad, address: &ServerAddress) -> Result<()> {
        if Instant::now() < self.next {
            return Ok(());
        }
        load.drain(address)?;
        thread::sleep(SETTLED);
        weigh(self.name, self.setup, self.samples);
        self.next = Instant::now() + PAUSE_EVERY;
        load.restart_lanes(LANES, address)
    }
}
