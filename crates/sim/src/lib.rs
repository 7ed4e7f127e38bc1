//! Test only: seeded worlds of faulty links, the real server core, real holder logic and scripted children, on one thread and a paused clock.
//!
//! Theory of operation. A [`world`] draws everything from its seed. Clients ([`client`]) speak over links that delay, slice, stall, cut
//! and fall half-open ([`link`]) with a server that can crash and begin again ([`server`]) on holders that live on ([`holders`]), whose
//! children play scripts ([`child`]). Descriptors between server, holders and scripts are real; only the link and the clock are not.
//! Time moves when nothing else can, so a minute costs milliseconds and a seed repeats its trace to the letter (worlds with a disk
//! excepted, see [`world::has_disk`]).
//!
//! The oracle ([`view`]) shares no code with the server: children write text that tells its place, so that loss, repetition and disorder
//! are seen in the bytes themselves.

pub mod asks;
pub mod branch;
pub mod child;
pub mod client;
pub mod desk;
pub mod dialer;
pub mod fate;
pub mod gate;
pub mod held;
pub mod holders;
pub mod ledger;
pub mod link;
pub mod relic;
pub mod rival;
pub mod rng;
pub mod server;
pub mod stage;
pub mod stdin;
pub mod trace;
pub mod user;
pub mod view;
pub mod wire;
pub mod world;

mod disasters;
mod finale;
mod hearing;
mod moves;
mod ops;
mod plans;

pub use world::{Report, run};

use std::{fs, io, ops::Range, path::Path, sync::Mutex, thread};

/// Runs a seed; writes its trace under `dir` where it fails, or always.
pub fn run_and_keep(seed: u64, dir: &Path, always: bool) -> io::Result<Report> {
    let report = run(seed)?;
    if always || report.failure.is_some() {
        fs::create_dir_all(dir)?;
        fs::write(dir.join(format!("{seed}.trace")), &report.trace)?;
    }
    Ok(report)
}

/// Worlds at once: each has its own thread, runtime, clock and directory.
const THREADS: usize = 2;

/// Runs many seeds, a few at a time; tells each world's end as it comes, and returns all in the order of their seeds, without the traces.
pub fn run_many(seeds: Range<u64>, dir: &Path, told: impl Fn(&Report) + Sync) -> io::Result<Vec<Report>> {
    let left = Mutex::new(seeds);
    let live = || {
        let mut reports = Vec::new();
        loop {
            let next = left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some(seed) = next else { return io::Result::Ok(reports) };
            let mut report = run_and_keep(seed, dir, false)?;
            told(&report);
            report.trace = String::new();
            reports.push(report);
        }
    };
    let mut all = Vec::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(live)).collect();
        for thread in threads {
            all.extend(thread.join().expect("a world does not panic")?);
        }
        io::Result::Ok(())
    })?;
    all.sort_by_key(|report| report.seed);
    Ok(all)
}
