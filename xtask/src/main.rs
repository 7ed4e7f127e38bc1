//! The project's own commands: `cargo xtask fmt | lint | tidy | sim | fuzz | faults | interop | bench | guard | dist | ci`.
//!
//! Contains the checks around the product: house rules, fault injection, interoperation and the benchmark. It deliberately depends on no
//! product crate: the oracle of the fault runs uses JSON over a third-party WebSocket library and starts the release binary, so that it
//! cannot share a mistake with the server. The hidden modes at the end are the small programs that the runs start as children
//! (self-describing producer, writer that gets killed, bare fork and exec, echo).

#![expect(clippy::print_stdout, reason = "a command line tool: standard output is its result")]
#![expect(
    clippy::disallowed_methods,
    reason = "xtask starts cargo and the server as a user would, and measures wall time"
)]

mod bare;
mod bench;
mod cargo;
mod children;
mod ci;
mod dist;
mod faults;
mod fuzz;
mod guard;
mod interop;
mod mcp;
mod random;
mod server;
mod tidy;
mod tree;
mod wire;

use std::process::ExitCode;

use clap::Parser;

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Xtask {
    /// Format every file.
    Fmt {
        /// Only say what is not formatted.
        #[arg(long)]
        check: bool,
    },
    /// Run clippy over the workspace, warnings denied.
    Lint,
    /// Check the house rules that no compiler checks.
    Tidy,
    /// Run the simulation: many seeds, or one with its trace.
    Sim(cargo::SimOptions),
    /// Fuzz everything that reads bytes of others; needs a nightly toolchain.
    Fuzz(fuzz::FuzzOptions),
    /// Inject faults into a real server under load and check every byte.
    Faults(faults::FaultOptions),
    /// Run programs that others wrote against ours: Python, ssh, tmux, vim, top.
    Interop(interop::InteropOptions),
    /// Measure against bare system calls and print one table of ratios.
    Bench(bench::BenchOptions),
    /// Count instructions of the paths of a byte and of a request, and compare them with the committed table.
    Guard(guard::GuardOptions),
    /// Make the static program, its package, the checksums and the installer.
    Dist(dist::DistOptions),
    /// Everything `.ci/run` checks, with the time of each step.
    Ci(ci::CiOptions),
    /// A child mode of the fault runs and the benchmark.
    #[command(subcommand, hide = true)]
    Child(children::ChildCommand),
}

fn main() -> ExitCode {
    match run(Xtask::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Xtask) -> anyhow::Result<()> {
    match command {
        Xtask::Fmt { check } => cargo::fmt(check),
        Xtask::Lint => cargo::lint(),
        Xtask::Tidy => tidy::run(),
        Xtask::Sim(options) => cargo::simulate(&options),
        Xtask::Fuzz(options) => fuzz::run(&options),
        Xtask::Faults(options) => faults::run(&options),
        Xtask::Interop(options) => interop::run(&options),
        Xtask::Bench(options) => bench::run(&options),
        Xtask::Guard(options) => guard::run(&options),
        Xtask::Dist(options) => dist::run(&options),
        Xtask::Ci(options) => ci::run(&options),
        Xtask::Child(child) => child.run(),
    }
}
