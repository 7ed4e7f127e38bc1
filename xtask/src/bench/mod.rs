//! `cargo xtask bench`: compares the server with the bare machine and with OpenSSH in the same run, as one table of ratios.
//!
//! Defines the options, the groups and their order. A target is met if the median of the interleaved ratios meets it. A miss is printed and
//! never fails a build, because other load on the machine is not our defect. Wrong bytes do fail it.

mod baselines;
mod boxes;
mod calls;
mod chain;
mod chart;
mod client;
mod copy;
mod echo;
mod files;
mod growth;
mod message;
mod program;
mod results;
mod roundtrip;
mod servers;
mod session;
mod spawn;
mod ssh;
mod table;
mod throughput;
mod weight;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::{
    cargo,
    interop::{self, Sshd},
};
pub(crate) use chain::{ChainEnd, hop};
use client::BenchConnection;
use message::MessageFormat;
use session::BenchSession;
use table::Report;

/// The shortest program, by its full path, so that no PATH search is measured.
pub(crate) const TRUE: &str = "/bin/true";

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct BenchOptions {
    /// Fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Only these groups: roundtrip, spawn, throughput, echo, files, memory, growth, startup, size, cp, sandbox, mcp.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Writes `bench/results.json` and `bench/chart.svg` too.
    #[arg(long)]
    json: bool,
    /// Writes the table of `docs/reference/benchmarks.md` too, beside `--json`; groups that were not measured keep their rows.
    #[arg(long)]
    readme: bool,
    /// Measures this server too, which speaks the reference wire: ws://… or unix://…
    #[arg(long, value_name = "URL")]
    peer: Option<String>,
    /// Another server than the release build of this tree.
    #[arg(long)]
    server: Option<PathBuf>,
    /// Runs in this build of xtask, also where it is not the release build; figures are then no figures.
    #[arg(long, hide = true)]
    as_built: bool,
}

/// The inputs of a group.
struct BenchSetting<'a> {
    binary: PathBuf,
    /// The WebSocket echo on the same engine.
    echo: PathBuf,
    quick: bool,
    peer: Option<String>,
    /// A real sshd, if one is available.
    ssh: Option<&'a Sshd<'a>>,
}

impl BenchSetting<'_> {
    fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// A session on the peer server, if there is one.
    fn peer(&self) -> Result<Option<BenchSession>> {
        let Some(url) = &self.peer else { return Ok(None) };
        let mut session = BenchSession::open(BenchConnection::connect(url)?, MessageFormat::Json)?
            .context("JSON is always offered")?;
        session.learn().context("the peer")?;
        Ok(Some(session))
    }
}

/// A group of rows that are measured together.
struct BenchGroup {
    name: &'static str,
    /// Whether it measures OpenSSH.
    beside_ssh: bool,
    measure: fn(&BenchSetting<'_>) -> Result<Report>,
}

const GROUPS: &[BenchGroup] = &[
    BenchGroup { name: "roundtrip", beside_ssh: false, measure: roundtrip::measure },
    BenchGroup { name: "spawn", beside_ssh: true, measure: spawn::measure },
    BenchGroup { name: "throughput", beside_ssh: true, measure: throughput::measure },
    BenchGroup { name: "echo", beside_ssh: true, measure: echo::measure },
    BenchGroup { name: "files", beside_ssh: true, measure: files::measure },
    BenchGroup { name: "memory", beside_ssh: false, measure: weight::measure },
    BenchGroup { name: "growth", beside_ssh: false, measure: growth::measure },
    BenchGroup { name: "startup", beside_ssh: false, measure: program::startup },
    BenchGroup { name: "size", beside_ssh: false, measure: program::size },
    BenchGroup { name: "cp", beside_ssh: true, measure: copy::measure },
    BenchGroup { name: "sandbox", beside_ssh: false, measure: boxes::measure },
    BenchGroup { name: "mcp", beside_ssh: false, measure: calls::measure },
];

pub(crate) fn run(options: &BenchOptions) -> Result<()> {
    for name in &options.only {
        ensure!(GROUPS.iter().any(|group| group.name == name), "no group `{name}`");
    }
    if !options.as_built && cargo::again_in_release()? {
        return Ok(());
    }
    let is_chosen = |group: &&BenchGroup| options.only.is_empty() || options.only.iter().any(|only| only == group.name);
    let chosen: Vec<&BenchGroup> = GROUPS.iter().filter(is_chosen).collect();
    let setting = BenchSetting {
        binary: cargo::server_binary(options.server.as_deref())?,
        echo: cargo::echo_example()?,
        quick: options.quick,
        peer: options.peer.clone(),
        ssh: None,
    };
    let wants_ssh = chosen.iter().any(|group| group.beside_ssh);
    let has_ssh =
        wants_ssh && interop::ensure_ssh().inspect_err(|error| eprintln!("bench: no OpenSSH: {error:#}")).is_ok();
    let report = if has_ssh {
        let binary = setting.binary.clone();
        interop::beside_sshd(&binary, |sshd| measure(&BenchSetting { ssh: Some(sshd), ..setting }, &chosen))?
    } else {
        measure(&setting, &chosen)?
    };
    table::print(&report.rows);
    if options.json || options.readme {
        results::write(cargo::root(), report, options.quick, options.readme)?;
    }
    Ok(())
}

fn measure(setting: &BenchSetting<'_>, groups: &[&BenchGroup]) -> Result<Report> {
    let mut report = Report::default();
    for group in groups {
        let begun = std::time::Instant::now();
        let mut part = (group.measure)(setting).with_context(|| format!("measure `{}`", group.name))?;
        eprintln!("bench: {} in {:.1} s", group.name, begun.elapsed().as_secs_f64());
        part.rows.iter_mut().for_each(|row| group.name.clone_into(&mut row.group));
        part.charts.iter_mut().for_each(|chart| group.name.clone_into(&mut chart.group));
        report.rows.extend(part.rows);
        report.charts.extend(part.charts);
    }
    Ok(report)
}
