//! `cargo xtask faults`: faults injected into a real server under load, every byte checked.
//!
//! Owns the list of runs, their sizes for CI, a full and a long run, the seed, and the printed lines. Each run stands in a
//! file of its own and shares no code with the server.

mod client;
mod cuts;
mod delivery;
mod kills;
mod lanes;
pub(crate) mod left;
mod load;
mod proxy;
pub(crate) mod relay;
mod stdin;

use std::{fmt::Display, path::PathBuf, time::Instant};

use anyhow::{Result, bail, ensure};

use crate::{cargo, random::Random};

/// Options of `cargo xtask faults`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The short run of CI: five minutes in all.
    #[arg(long, conflicts_with = "long")]
    ci: bool,
    /// The long run: twenty times the full one.
    #[arg(long)]
    long: bool,
    /// Only these runs, by name.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Repeats a run: the seed it printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Says which runs there are.
    #[arg(long)]
    list: bool,
    /// Another server than the release build of this tree.
    #[arg(long)]
    server: Option<PathBuf>,
}

/// How much of each fault.
#[derive(Clone, Copy)]
enum Scale {
    Ci,
    Full,
    Long,
}

/// What a run needs to know.
struct Setting {
    binary: PathBuf,
    scale: Scale,
    seed: u64,
}

impl Setting {
    /// The count for this scale.
    fn pick(&self, ci: u64, full: u64, long: u64) -> u64 {
        match self.scale {
            Scale::Ci => ci,
            Scale::Full => full,
            Scale::Long => long,
        }
    }

    /// The numbers of a run; the same for the same seed, whichever other runs there are.
    fn random(&self, run: &str) -> Random {
        let name = run.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
        Random::new(self.seed ^ name)
    }
}

/// The figures of a finished run, in the order they are printed.
#[derive(Default)]
struct Figures(Vec<(&'static str, String)>);

impl Figures {
    fn set(mut self, name: &'static str, value: impl Display) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    /// Worst and 99th percentile of times.
    fn times(self, times: &mut [f64]) -> Self {
        times.sort_by(f64::total_cmp);
        let worst = times.last().copied().unwrap_or_default();
        self.set("worst_ms", format!("{worst:.1}")).set("p99_ms", format!("{:.1}", percentile(times, 99)))
    }
}

/// A percentile of sorted values.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// One run: its name, what it does, and how.
struct Run {
    name: &'static str,
    what: &'static str,
    run: fn(&Setting) -> Result<Vec<Figures>>,
}

const RUNS: &[Run] = &[
    Run { name: "D1", what: "output arrives whole at a fast reader, memory flat", run: delivery::fast },
    Run { name: "D2", what: "output arrives whole at a reader of 20 MB/s, memory flat", run: delivery::slow },
    Run { name: "D3", what: "output arrives whole at a reader that only polls, memory flat", run: delivery::polling },
    Run {
        name: "D4",
        what: "output arrives whole at a reader away for the first half, memory flat",
        run: delivery::away,
    },
    Run { name: "F1", what: "the link is cut under load (FIN, RST, inside a frame)", run: cuts::run },
    Run { name: "F2", what: "the server is killed under load and started again", run: kills::run },
    Run { name: "F3", what: "the client is killed while it writes to stdin", run: stdin::killed_writer },
    Run { name: "F16", what: "one write id from two connections at once", run: stdin::twice },
    Run { name: "C1", what: "links are cut while `exec-server run` runs many times over", run: client::cuts },
    Run { name: "C2", what: "the server is killed and started again during `exec-server run`", run: client::kills },
    Run { name: "C3", what: "`exec-server run` is killed; its program is found, read whole and ended", run: left::run },
    Run { name: "F26", what: "simulated worlds, each with seeded faults", run: simulation },
];

/// F26: worlds of the simulation, which is a program of its own and prints what failed.
fn simulation(setting: &Setting) -> Result<Vec<Figures>> {
    let seeds = setting.pick(200, 2000, 100_000);
    // CI lives through the same worlds every time; a full run draws new ones.
    let from = setting.pick(0, setting.seed, setting.seed);
    cargo::sim(&cargo::Sim { seed: None, seeds, from })?;
    Ok(vec![Figures::default().set("injected", seeds).set("survived", seeds).set("from", from)])
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.list {
        for run in RUNS {
            println!("{:<4} {}", run.name, run.what);
        }
        return Ok(());
    }
    if cargo::again_in_release()? {
        return Ok(());
    }
    let chosen = choose(&options.only)?;
    let setting = Setting {
        binary: cargo::server_binary(options.server.as_deref())?,
        scale: match (options.ci, options.long) {
            (true, _) => Scale::Ci,
            (_, true) => Scale::Long,
            _ => Scale::Full,
        },
        seed: options.seed.unwrap_or_else(new_seed),
    };
    println!("seed {}", setting.seed);
    let failed = chosen.iter().filter(|run| !carry_out(run, &setting)).count();
    println!("{} passed, {failed} failed", chosen.len() - failed);
    if failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn choose(only: &[String]) -> Result<Vec<&'static Run>> {
    for name in only {
        ensure!(RUNS.iter().any(|run| run.name.eq_ignore_ascii_case(name)), "no run `{name}`; see `--list`");
    }
    let wanted = |run: &&Run| only.is_empty() || only.iter().any(|name| run.name.eq_ignore_ascii_case(name));
    Ok(RUNS.iter().filter(wanted).collect())
}

/// Runs one and prints its lines; whether it passed.
fn carry_out(run: &Run, setting: &Setting) -> bool {
    let begun = Instant::now();
    match (run.run)(setting) {
        Ok(mut lines) => {
            if let [line] = &mut lines[..] {
                line.0.push(("seconds", format!("{:.1}", begun.elapsed().as_secs_f64())));
            }
            for Figures(figures) in lines {
                let figures: Vec<_> = figures.iter().map(|(name, value)| format!("{name}={value}")).collect();
                println!("{} {} ok", run.name, figures.join(" "));
            }
            true
        }
        Err(error) => {
            println!("{} FAILED after {:.1} s: {error:#}", run.name, begun.elapsed().as_secs_f64());
            println!("   again: cargo xtask faults --only {} --seed {}", run.name, setting.seed);
            false
        }
    }
}

fn new_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007)
}

/// Fails a run whose times break a promise.
fn ensure_p99(times: &[f64], limit_ms: f64, what: &str) -> Result<()> {
    let p99 = percentile(times, 99);
    if p99 > limit_ms {
        bail!("{what}: p99 is {p99:.1} ms, promised {limit_ms} ms");
    }
    Ok(())
}
