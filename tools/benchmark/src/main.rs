//! `cargo xtask bench`: compares the server with the bare machine and with OpenSSH in the same run, as one table of ratios.
//!
//! Defines the options, the groups and their order. A target is met if the median of the interleaved ratios meets it. A miss is printed and
//! never fails a build, because other load on the machine is not our defect. Wrong bytes do fail it.

#![expect(clippy::print_stdout, reason = "a command line tool: standard output is its result")]
#![expect(clippy::disallowed_methods, reason = "starts the server as a user would, and measures wall time")]

mod bare_spawn;
mod baselines;
mod chart;
mod command_line;
mod copy;
mod delay_proxy;
mod distance;
mod echo;
mod echo_calls;
mod far_link;
mod files;
mod growth;
mod hop_chain;
mod lean_client;
mod lean_connection;
mod mcp_calls;
mod memory;
mod message;
mod plain_tcp;
mod prelude;
mod program;
mod results;
mod roundtrip;
mod sandbox;
mod servers;
mod spawn;
mod ssh;
mod table;
mod throughput;
mod user_commands;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser as _;
use exec_server_harness::{environment::Environment, remote_host::RemoteHost};
use exec_server_workspace::{cargo, exit_code, packages};

use hop_chain::ChainEnd;
use lean_client::BenchSession;
use lean_connection::BenchConnection;
use message::MessageFormat;
use table::Report;

/// The shortest program, by its full path, so that no PATH search is measured.
const TRUE: &str = "/bin/true";

/// Measure a real server against bare system calls and OpenSSH, and print one table of ratios.
#[derive(clap::Parser)]
#[command(bin_name = "cargo xtask bench", args_conflicts_with_subcommands = true)]
struct BenchCommand {
    #[command(flatten)]
    options: BenchOptions,
    #[command(subcommand)]
    child: Option<ChildCommand>,
}

#[derive(clap::Subcommand)]
enum ChildCommand {
    /// Measures fork, exec and wait on request, one batch a line of standard input.
    Bare,
    /// Forwards bytes between standard input, a socket, and `cat` at its END, through this many MORE of its kind.
    Hop { more: u32, end: ChainEnd },
}

#[derive(clap::Args)]
struct BenchOptions {
    /// Measure fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Measure only these groups: roundtrip, spawn, throughput, echo, files, memory, growth, startup, size, cp, sandbox,
    /// mcp, commandline, distance.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Write `bench/results.json` and `bench/chart.svg`.
    #[arg(long)]
    json: bool,
    /// Write the same and the table of `docs/reference/benchmarks.md`; groups that were not measured keep their rows.
    #[arg(long)]
    readme: bool,
    /// Measure this server too, which speaks the reference protocol: ws://… or unix://…
    #[arg(long, value_name = "URL")]
    peer: Option<String>,
    /// Measure this server instead of the build of this tree.
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
}

/// The inputs of a group.
struct BenchSetting<'a> {
    binary: PathBuf,
    /// For commands of a user: they neither use nor change what our own user has.
    environment: &'a Environment,
    /// The WebSocket echo on the same engine.
    echo: PathBuf,
    quick: bool,
    peer: Option<String>,
    /// A real sshd, if one is available.
    ssh: Option<&'a RemoteHost<'a>>,
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
    BenchGroup { name: "memory", beside_ssh: false, measure: memory::measure },
    BenchGroup { name: "growth", beside_ssh: false, measure: growth::measure },
    BenchGroup { name: "startup", beside_ssh: false, measure: program::startup },
    BenchGroup { name: "size", beside_ssh: false, measure: program::size },
    BenchGroup { name: "cp", beside_ssh: true, measure: copy::measure },
    BenchGroup { name: "sandbox", beside_ssh: false, measure: sandbox::measure },
    BenchGroup { name: "mcp", beside_ssh: false, measure: mcp_calls::measure },
    BenchGroup { name: "commandline", beside_ssh: false, measure: command_line::measure },
    BenchGroup { name: "distance", beside_ssh: true, measure: distance::measure },
];

fn main() -> ExitCode {
    let command = BenchCommand::parse();
    let outcome = match command.child {
        Some(ChildCommand::Bare) => bare_spawn::serve(),
        Some(ChildCommand::Hop { more, end }) => hop_chain::hop(more, end),
        None => run(&command.options),
    };
    exit_code("bench", outcome.map(|()| ExitCode::SUCCESS))
}

fn run(options: &BenchOptions) -> Result<()> {
    for name in &options.only {
        ensure!(GROUPS.iter().any(|group| group.name == name), "no group `{name}`");
    }
    let is_chosen = |group: &&BenchGroup| options.only.is_empty() || options.only.iter().any(|only| only == group.name);
    let chosen: Vec<&BenchGroup> = GROUPS.iter().filter(is_chosen).collect();
    let wants_ssh = chosen.iter().any(|group| group.beside_ssh);
    let has_ssh = wants_ssh
        && packages::ensure(packages::SSH).inspect_err(|error| eprintln!("bench: no OpenSSH: {error:#}")).is_ok();
    // Commands run in a directory of their own.
    let binary = std::path::absolute(cargo::server_binary(options.server.as_deref())?)?;
    let environment = Environment::new(binary, true)?;
    let sshd = has_ssh.then(|| RemoteHost::start(&environment, "far")).transpose()?;
    let setting = BenchSetting {
        binary: environment.binary.clone(),
        environment: &environment,
        echo: cargo::example("exec-server-rpc", "echo")?,
        quick: options.quick,
        peer: options.peer.clone(),
        ssh: sshd.as_ref(),
    };
    let report = measure(&setting, &chosen)?;
    sshd.map_or(Ok(()), RemoteHost::stop)?;
    environment.end()?;
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
