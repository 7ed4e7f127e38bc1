//! `cargo xtask faults`: injects faults into a real server under load and checks every byte.
//!
//! Defines the list of runs, their sizes for CI, a full and a long run, the seed, and the printed lines. Each run has its own file. Nothing
//! here shares code with the product: the oracle uses JSON over a third-party WebSocket library and starts the built program.

#![expect(clippy::print_stdout, reason = "a command line tool: standard output is its result")]
#![expect(clippy::disallowed_methods, reason = "starts the server as a user would, and measures wall time")]

mod bridge_cuts;
mod bridge_ends;
mod children;
mod connection_crowd;
mod copy_kills;
mod damaged_bytes;
mod descendants;
mod detached_producer;
mod drop_oldest;
mod failing_calls;
mod figures;
mod fork_bomb;
mod full_disk;
mod half_open;
mod hidden_descendants;
mod holder_kills;
mod holder_steps;
mod killed_run;
mod lanes;
mod large_output;
mod link_cuts;
mod mcp_echo;
mod no_descriptors;
mod parallel_runs;
mod pid_wraparound;
mod prelude;
mod producer_load;
mod producer_reader;
mod resource_level;
mod results_page;
mod resume_races;
mod run_command;
mod safety_rules;
mod sandbox_races;
mod server_kills;
mod server_shutdown;
mod slow_reader;
mod soak;
mod stdin_writes;
mod stopped_processes;
mod version_skew;

use std::{collections::HashMap, path::PathBuf, process::ExitCode, thread, time::Instant};

use anyhow::{Result, ensure};
use clap::Parser as _;
use exec_server_harness::Random;
use exec_server_workspace::{cargo, exit_code};

use children::ChildCommand;
use figures::{Figures, ensure_p99};

/// Inject faults into a real server under load and check every byte.
#[derive(clap::Parser)]
#[command(bin_name = "cargo xtask faults", args_conflicts_with_subcommands = true)]
struct FaultsCommand {
    #[command(flatten)]
    options: FaultOptions,
    #[command(subcommand)]
    child: Option<ChildCommand>,
}

#[derive(clap::Args)]
struct FaultOptions {
    /// Run with the small counts of CI: about five minutes in all.
    #[arg(long, conflicts_with = "long")]
    ci: bool,
    /// Run with twenty times the full counts.
    #[arg(long)]
    long: bool,
    /// Execute only these runs, by name.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Repeat a run with the seed that it printed.
    #[arg(long)]
    seed: Option<u64>,
    /// List the runs, the safety rules with their tests, and the promises with their runs.
    #[arg(long)]
    list: bool,
    /// Write the results into the table of `docs/reference/faults.md`; with --list only add missing rows.
    #[arg(long, conflicts_with = "ci")]
    readme: bool,
    /// Execute only the soak (F25) for this many minutes: mixed load, few faults, growth of memory and fds.
    #[arg(long, value_name = "MINUTES", conflicts_with_all = ["ci", "long", "only", "readme"])]
    soak: Option<u64>,
    /// Only build what the runs need: the previous version, and the program of F19.
    #[arg(long, hide = true)]
    prepare: bool,
    /// Test this server instead of the build of this tree.
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
}

/// How many faults are injected.
#[derive(Clone, Copy)]
enum FaultScale {
    Ci,
    Full,
    Long,
}

/// The inputs of a run.
struct FaultSetting {
    binary: PathBuf,
    scale: FaultScale,
    seed: u64,
}

impl FaultSetting {
    /// The count for this scale.
    fn pick(&self, ci: u64, full: u64, long: u64) -> u64 {
        match self.scale {
            FaultScale::Ci => ci,
            FaultScale::Full => full,
            FaultScale::Long => long,
        }
    }

    /// The random numbers of a run. They depend only on the seed and the run, not on which other runs are executed.
    fn random(&self, run: &str) -> Random {
        let name = run.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
        Random::new(self.seed ^ name)
    }
}

/// One run: its name, the fault, how it is injected, and the function.
struct FaultRun {
    name: &'static str,
    what: &'static str,
    how: &'static str,
    run: RunFn,
}

type RunFn = fn(&FaultSetting) -> Result<Vec<Figures>>;

impl FaultRun {
    const fn new(name: &'static str, what: &'static str, how: &'static str, run: RunFn) -> Self {
        Self { name, what, how, run }
    }
}

const RUNS: &[FaultRun] = &[
    FaultRun::new(
        "D1",
        "much output, a fast reader",
        "64 MiB and 2 GiB, with and without acknowledgements",
        large_output::fast,
    ),
    FaultRun::new("D2", "much output, a slow reader", "20 MB/s", large_output::slow),
    FaultRun::new("D3", "much output, a reader that polls", "`process/read` alone", large_output::polling),
    FaultRun::new("D4", "much output, the reader away", "detached for the first half", large_output::away),
    FaultRun::new("F1", "the link is cut under load", "proxy: FIN, RST, inside a frame", link_cuts::run),
    FaultRun::new("F2", "the server is killed under load", "SIGKILL, started again", server_kills::run),
    FaultRun::new("F3", "the client is killed while it writes", "SIGKILL", stdin_writes::killed_writer),
    FaultRun::new("F4", "the holder is killed under load", "SIGKILL; daemons, output on disk", holder_kills::run),
    FaultRun::new("F5", "the server is ended under load", "SIGTERM, started again", server_shutdown::run),
    FaultRun::new("F6", "the peer is half open", "proxy that swallows; link down", half_open::run),
    FaultRun::new("F7", "a reader of 64 KiB/s, a flood", "proxy that throttles", slow_reader::run),
    FaultRun::new("F8", "ten floods without a client", "`dropOldest`, quota 64 MiB", drop_oldest::run),
    FaultRun::new("F11", "no descriptors left", "64, 200 connects, 100 starts", no_descriptors::run),
    FaultRun::new("F9", "the disk is full, then freed", "a tmpfs of 16 MiB, floods without a client", full_disk::run),
    FaultRun::new(
        "F10",
        "calls on disk and sockets fail",
        "strace: EIO, ENOSPC, EINTR on write, open, rename, send, receive",
        failing_calls::run,
    ),
    FaultRun::new("F12", "a fork bomb; a refused fork", "200 processes; a group around the holder", fork_bomb::run),
    FaultRun::new(
        "F13",
        "descendants that hide",
        "forked twice, own sessions, signals ignored",
        hidden_descendants::run,
    ),
    FaultRun::new("F14", "process ids wrap around", "namespace with 420 numbers", pid_wraparound::run),
    FaultRun::new("F15", "a process is stopped for 10 s", "SIGSTOP: server, holder, client", stopped_processes::run),
    FaultRun::new("F16", "one write id twice at once", "two connections", stdin_writes::twice),
    FaultRun::new("F17", "two clients race to resume", "two connections, same moment", resume_races::run),
    FaultRun::new("F18", "bytes are damaged", "proxy: flips, repeats, leaves out", damaged_bytes::run),
    FaultRun::new(
        "F19",
        "the holder is killed at every step of its logs",
        "SIGKILL at step 1, 2, 3 … of append, commit, rotate, write, rename, unlink",
        holder_steps::run,
    ),
    FaultRun::new("F20", "two versions, mixed", "servers and holders of both; upgrades under load", version_skew::run),
    FaultRun::new("F24", "a crowd at the door", "500 sockets: slow, silent, wrong token", connection_crowd::run),
    FaultRun::new("C1", "links are cut during `exec-server run`", "proxy: at any byte", run_command::cuts),
    FaultRun::new("C2", "the server is killed during `exec-server run`", "SIGKILL", run_command::kills),
    FaultRun::new("C3", "`exec-server run` is killed", "SIGKILL; found, read and ended", killed_run::run),
    FaultRun::new(
        "C4",
        "`exec-server cp -r` is killed",
        "SIGKILL, called again; up and down, 10,000 files and 2 GiB",
        copy_kills::run,
    ),
    FaultRun::new(
        "M1",
        "links are cut and the server killed during MCP calls",
        "`mcp bridge`; proxy: at any byte; SIGKILL, started again",
        bridge_cuts::run,
    ),
    FaultRun::new(
        "M2",
        "`mcp bridge` ends or vanishes",
        "end of input, SIGTERM; SIGKILL, cut and `--keep 3s`; servers with daemons",
        bridge_ends::run,
    ),
    FaultRun::new(
        "F27",
        "names are swapped beneath file requests in a sandbox",
        "directories and files exchanged with links that lead out",
        sandbox_races::run,
    ),
    FaultRun::new("F26", "simulated worlds", "seeded faults", simulation),
];

/// Runs that mostly wait. A full run executes them in parallel with the others, which saves a third of its time.
const WAITING: &[&str] = &["D2", "F5", "F10", "F15", "F16", "F17", "F19"];

/// The same for CI, whose runs are too short to share the machine: this one waits for half a minute.
const WAITING_IN_CI: &[&str] = &["C3"];

/// F26: runs worlds of the simulation, which is a separate program and prints what failed.
fn simulation(setting: &FaultSetting) -> Result<Vec<Figures>> {
    // With 200 or more seeds, a branch that is never reached or a method that is never sent fails the run.
    let seeds = setting.pick(200, 2000, 100_000);
    // CI uses the same worlds every time; a full run draws new ones.
    let from = setting.pick(0, setting.seed, setting.seed);
    let mut command = cargo::command(cargo::example("exec-server-sim", "sim")?, &[]);
    cargo::check(command.args(["--seeds", &seeds.to_string(), "--from", &from.to_string()]))?;
    Figures::survived(seeds).set("from", from).only_line()
}

fn main() -> ExitCode {
    let command = FaultsCommand::parse();
    let outcome = match command.child {
        Some(child) => child.run().map(|()| true),
        None => run(&command.options),
    };
    exit_code("faults", outcome.map(|passed| if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// Executes the chosen runs; returns whether all passed.
fn run(options: &FaultOptions) -> Result<bool> {
    if options.list {
        for run in RUNS {
            println!("{:<4} {} ({})", run.name, run.what, run.how);
        }
        if options.readme {
            results_page::write(cargo::root(), &HashMap::new(), 0)?;
        }
        println!("F25  a soak of mixed load with faults at a low rate (`--soak MINUTES`, alone)");
        safety_rules::list(cargo::root())?;
        return Ok(true);
    }
    if options.prepare {
        cargo::crash_example()?;
        version_skew::build_before()?;
        return Ok(true);
    }
    let chosen = choose(&options.only)?;
    let setting = FaultSetting {
        binary: cargo::server_binary(options.server.as_deref())?,
        scale: match (options.ci, options.long) {
            (true, _) => FaultScale::Ci,
            (_, true) => FaultScale::Long,
            _ => FaultScale::Full,
        },
        seed: options.seed.unwrap_or_else(new_seed),
    };
    println!("seed {}", setting.seed);
    if let Some(minutes) = options.soak {
        for line in soak::run(&setting, minutes)? {
            println!("F25 {line} ok");
        }
        return Ok(true);
    }
    let carry_out_all = |runs: &[&'static FaultRun]| -> Vec<(&'static str, Vec<String>)> {
        let rows = |run: &&'static FaultRun| Some((run.name, results_page::rows(run.name, &execute(run, &setting)?)));
        runs.iter().filter_map(rows).collect()
    };
    let waiting = if matches!(setting.scale, FaultScale::Ci) { WAITING_IN_CI } else { WAITING };
    let is_beside = |run: &&FaultRun| waiting.contains(&run.name);
    let (beside, alone): (Vec<&'static FaultRun>, Vec<&'static FaultRun>) =
        chosen.iter().partition(|run| is_beside(run));
    let passed: HashMap<&str, Vec<String>> = thread::scope(|scope| {
        let beside = scope.spawn(|| carry_out_all(&beside));
        let alone = carry_out_all(&alone);
        alone.into_iter().chain(beside.join().expect("a run does not panic")).collect()
    });
    let failed = chosen.len() - passed.len();
    println!("{} passed, {failed} failed", passed.len());
    if options.readme {
        results_page::write(cargo::root(), &passed, setting.seed)?;
    }
    Ok(failed == 0)
}

fn choose(only: &[String]) -> Result<Vec<&'static FaultRun>> {
    for name in only {
        ensure!(RUNS.iter().any(|run| run.name.eq_ignore_ascii_case(name)), "no run `{name}`; see `--list`");
    }
    let wanted = |run: &&FaultRun| only.is_empty() || only.iter().any(|name| run.name.eq_ignore_ascii_case(name));
    Ok(RUNS.iter().filter(wanted).collect())
}

/// Executes one run and prints its lines; returns them if it passed.
fn execute(run: &FaultRun, setting: &FaultSetting) -> Option<Vec<Figures>> {
    let begun = Instant::now();
    match (run.run)(setting) {
        Ok(lines) => {
            for line in &lines {
                println!("{} {line} seconds={:.1} ok", run.name, begun.elapsed().as_secs_f64());
            }
            Some(lines)
        }
        Err(error) => {
            println!("{} FAILED after {:.1} s: {error:#}", run.name, begun.elapsed().as_secs_f64());
            println!("   again: cargo xtask faults --only {} --seed {}", run.name, setting.seed);
            None
        }
    }
}

fn new_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007)
}
