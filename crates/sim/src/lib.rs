//! Test only. Runs the real server core and the real holder logic with simulated links and scripted children, on one thread with a paused
//! clock. Everything is drawn from a seed.
//!
//! A [`world`] draws all decisions from its seed. Model clients ([`client`]) use links that delay, slice, stall, cut and become half-open
//! ([`link`]). The server can crash and start again ([`server`]). The holders survive it ([`holders`]), and their children play scripts
//! ([`child`]). The file descriptors between server, holders and scripts are real; only the links and the clock are simulated. Time
//! advances only when nothing else can run, so a simulated minute costs milliseconds and a seed always produces the same trace. This
//! includes worlds with a disk ([`world::has_disk`]); `idle_gate` orders their disk I/O.
//!
//! The oracle ([`view`]) shares no code with the server. Children write text that encodes its own position, so the bytes themselves show
//! loss, duplication and reordering.

pub mod branch;
pub mod child;
pub mod client;
pub mod client_files;
pub mod client_requests;
pub mod context;
pub mod dialer;
pub mod holders;
pub mod idle_gate;
pub mod ledger;
pub mod legacy_client;
pub mod link;
pub mod rival;
pub mod rng;
pub mod server;
pub mod session_history;
pub mod stdin;
pub mod trace;
pub mod user;
pub mod user_process;
pub mod view;
pub mod wire;
pub mod world;

mod client_messages;
mod client_steps;
mod plans;
mod prelude;
mod user_steps;
mod world_end;
mod world_steps;

pub use world::{Report, run};

use std::{fs, io, ops::Range, path::Path, thread};

use parking_lot::Mutex;

/// Runs a seed. Writes its trace to `dir` if it fails, or in any case if `always` is set.
pub fn run_and_keep(seed: u64, dir: &Path, always: bool) -> io::Result<Report> {
    let report = run(seed)?;
    if always || report.failure.is_some() {
        fs::create_dir_all(dir)?;
        fs::write(dir.join(format!("{seed}.trace")), &report.trace)?;
    }
    Ok(report)
}

/// How many worlds run concurrently. Each has its own thread, runtime, clock and directory.
const THREADS: usize = 2;

/// Runs many seeds, a few at a time. Calls `on_report` when a world ends. Returns all reports in the order of their seeds, without the traces.
pub fn run_many(seeds: Range<u64>, dir: &Path, on_report: impl Fn(&Report) + Sync) -> io::Result<Vec<Report>> {
    let left = Mutex::new(seeds);
    let run_worlds = || {
        let mut reports = Vec::new();
        loop {
            let next = left.lock().next();
            let Some(seed) = next else { return io::Result::Ok(reports) };
            let mut report = run_and_keep(seed, dir, false)?;
            on_report(&report);
            report.trace = String::new();
            reports.push(report);
        }
    };
    let mut all = Vec::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run_worlds)).collect();
        for thread in threads {
            all.extend(thread.join().expect("a world does not panic")?);
        }
        io::Result::Ok(())
    })?;
    all.sort_by_key(|report| report.seed);
    Ok(all)
}
