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

pub mod child;
pub mod client;
pub mod holders;
pub mod link;
pub mod rng;
pub mod server;
pub mod stage;
pub mod trace;
pub mod view;
pub mod wire;
pub mod world;

mod finale;
mod hearing;
mod ops;
mod plans;

pub use world::{Report, run};

use std::{fs, io, path::Path};

/// Runs a seed; where it fails, writes its trace under `dir` and says so.
pub fn run_and_keep(seed: u64, dir: &Path) -> io::Result<Report> {
    let report = run(seed)?;
    if report.failure.is_some() {
        fs::create_dir_all(dir)?;
        fs::write(dir.join(format!("{seed}.trace")), &report.trace)?;
    }
    Ok(report)
}
