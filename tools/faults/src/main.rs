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
mod large_output;
mod link_cuts;
mod mcp_echo;
mod no_descriptors;
mod parallel_runs;
mod pid_wraparound;
mod producer_load;
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
use exec_server_workspace::cargo;

use children::ChildCommand;
use figures::{Figures, ensure_p99};

/// Inject faults into a real server under load and check every byte.
#[derive(clap::Parser)]
#[command(bin_name = "cargo xtask faults", args_conflicts_with_subcommands = true)]
struct FaultsCommand {
    #[command(flatten)]
    options: FaultOptions,
    #[command(subcommand)]
    hidden: Option<HiddenCommand>,
}

#[derive(clap::Subcommand)]
enum HiddenCommand {
    /// A program that a run starts as its child.
    #[command(subcommand, hide = true)]
    Child(ChildCommand),
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
    run: fn(&FaultSetting) -> Result<Vec<Figures>>,
}

const RUNS: &[FaultRun] = &[
    FaultRun {
        name: "D1",
        what: "much output, a fast reader",
        how: "64 MiB and 2 GiB, with and without acknowledgements",
        run: large_output::fast,
    },
    FaultRun { name: "D2", what: "much output, a slow reader", how: "20 MB/s", run: large_output::slow },
    FaultRun {
        name: "D3",
        what: "much output, a reader that polls",
        how: "`process/read` alone",
        run: large_output::polling,
    },
    FaultRun {
        name: "D4",
        what: "much output, the reader away",
        how: "detached for the first half",
        run: large_output::away,
    },
    FaultRun {
        name: "F1",
        what: "the link is cut under load",
        how: "proxy: FIN, RST, inside a frame",
        run: link_cuts::run,
    },
    FaultRun {
        name: "F2",
        what: "the server is killed under load",
        how: "SIGKILL, started again",
        run: server_kills::run,
    },
    FaultRun {
        name: "F3",
        what: "the client is killed while it writes",
        how: "SIGKILL",
        run: stdin_writes::killed_writer,
    },
    FaultRun {
        name: "F4",
        what: "the holder is killed under load",
        how: "SIGKILL; daemons, output on disk",
        run: holder_kills::run,
    },
    FaultRun {
        name: "F5",
        what: "the server is ended under load",
        how: "SIGTERM, started again",
        run: server_shutdown::run,
    },
    FaultRun { name: "F6", what: "the peer is half open", how: "proxy that swallows; link down", run: half_open::run },
    FaultRun { name: "F7", what: "a reader of 64 KiB/s, a flood", how: "proxy that throttles", run: slow_reader::run },
    FaultRun {
        name: "F8",
        what: "ten floods without a client",
        how: "`dropOldest`, quota 64 MiB",
        run: drop_oldest::run,
    },
    FaultRun {
        name: "F11",
        what: "no descriptors left",
        how: "64, 200 connects, 100 starts",
        run: no_descriptors::run,
    },
    FaultRun {
        name: "F9",
        what: "the disk is full, then freed",
        how: "a tmpfs of 16 MiB, floods without a client",
        run: full_disk::run,
    },
    FaultRun {
        name: "F10",
        what: "calls on disk and sockets fail",
        how: "strace: EIO, ENOSPC, EINTR on write, open, rename, send, receive",
        run: failing_calls::run,
    },
    FaultRun {
        name: "F12",
        what: "a fork bomb; a refused fork",
        how: "200 processes; a group around the holder",
        run: fork_bomb::run,
    },
    FaultRun {
        name: "F13",
        what: "descendants that hide",
        how: "forked twice, own sessions, signals ignored",
        run: hidden_descendants::run,
    },
    FaultRun {
        name: "F14",
        what: "process ids wrap around",
        how: "namespace with 420 numbers",
        run: pid_wraparound::run,
    },
    FaultRun {
        name: "F15",
        what: "a process is stopped for 10 s",
        how: "SIGSTOP: server, holder, client",
        run: stopped_processes::run,
    },
    FaultRun { name: "F16", what: "one write id twice at once", how: "two connections", run: stdin_writes::twice },
    FaultRun {
        name: "F17",
        what: "two clients race to resume",
        how: "two connections, same moment",
        run: resume_races::run,
    },
    FaultRun {
        name: "F18",
        what: "bytes are damaged",
        how: "proxy: flips, repeats, leaves out",
        run: damaged_bytes::run,
    },
    FaultRun {
        name: "F19",
        what: "the holder is killed at every step of its logs",
        how: "SIGKILL at step 1, 2, 3 … of append, commit, rotate, write, rename, unlink",
        run: holder_steps::run,
    },
    FaultRun {
        name: "F20",
        what: "two versions, mixed",
        how: "servers and holders of both; upgrades under load",
        run: version_skew::run,
    },
    FaultRun {
        name: "F24",
        what: "a crowd at the door",
        how: "500 sockets: slow, silent, wrong token",
        run: connection_crowd::run,
    },
    FaultRun {
        name: "C1",
        what: "links are cut during `exec-server run`",
        how: "proxy: at any byte",
        run: run_command::cuts,
    },
    FaultRun {
        name: "C2",
        what: "the server is killed during `exec-server run`",
        how: "SIGKILL",
        run: run_command::kills,
    },
    FaultRun {
        name: "C3",
        what: "`exec-server run` is killed",
        how: "SIGKILL; found, read and ended",
        run: killed_run::run,
    },
    FaultRun {
        name: "C4",
        what: "`exec-server cp -r` is killed",
        how: "SIGKILL, called again; up and down, 10,000 files and 2 GiB",
        run: copy_kills::run,
    },
    FaultRun {
        name: "M1",
        what: "links are cut and the server killed during MCP calls",
        how: "`mcp bridge`; proxy: at any byte; SIGKILL, started again",
        run: bridge_cuts::run,
    },
    FaultRun {
        name: "M2",
        what: "`mcp bridge` ends or vanishes",
        how: "end of input, SIGTERM; SIGKILL, cut and `--keep 3s`; servers with daemons",
        run: bridge_ends::run,
    },
    FaultRun {
        name: "F27",
        what: "names are swapped beneath file requests in a sandbox",
        how: "directories and files exchanged with links that lead out",
        run: sandbox_races::run,
    },
    FaultRun { name: "F26", what: "simulated worlds", how: "seeded faults", run: simulation },
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
    Ok(vec![Figures::default().survived(seeds).set("from", from)])
}

fn main() -> ExitCode {
    let command = FaultsCommand::parse();
    let outcome = match command.hidden {
        Some(HiddenCommand::Child(child)) => child.run().map(|()| true),
        None => run(&command.options),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("faults: {error:#}");
            ExitCode::FAILURE
        }
    }
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
