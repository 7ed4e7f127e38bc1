//! The project's own commands: `cargo xtask fmt | lint | tidy | guard | dist | record | ci`, and `sim | fuzz | faults | interop | bench`, which it
//! builds and starts as separate programs.
//!
//! Kept small, because every use of `cargo xtask` compiles it first.

#![expect(clippy::print_stdout, reason = "a command line tool: standard output is its result")]
#![expect(clippy::disallowed_methods, reason = "xtask starts cargo and the tools as a user would")]

mod ci;
mod commands;
mod dist;
mod fuzz;
mod guard;
mod record;
mod tidy;

use std::{ffi::OsString, process::ExitCode};

use clap::Parser;
use exec_server_workspace::exit_code;

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Xtask {
    /// Format the code.
    Fmt {
        /// Only report files that are not formatted.
        #[arg(long)]
        check: bool,
    },
    /// Run clippy on the workspace; warnings are errors.
    Lint,
    /// Check rules that the compiler does not check: module docs, file sizes, dependencies between crates.
    Tidy,
    /// Run the simulation: many seeds, or one with its trace.
    Sim(commands::SimOptions),
    /// Run the fuzz targets; needs a nightly toolchain.
    Fuzz(fuzz::FuzzOptions),
    /// Inject faults into a real server under load and check every byte.
    #[command(disable_help_flag = true)]
    Faults(ToolArguments),
    /// Run programs that others wrote against ours: Python, Node, ssh, tmux, vim, top.
    #[command(disable_help_flag = true)]
    Interop(ToolArguments),
    /// Measure a real server against bare system calls and OpenSSH.
    #[command(disable_help_flag = true)]
    Bench(ToolArguments),
    /// Count instructions and compare them with `bench/instructions.json`.
    Guard(guard::GuardOptions),
    /// Build the static program, its package, the checksums and the installer, and test them.
    Dist(dist::DistOptions),
    /// Record a survived cut as the animation of the README.
    Record(record::RecordOptions),
    /// Run all checks in their short form, and print the time of each.
    Ci(ci::CiOptions),
}

/// The arguments of a tool, which parses them itself.
#[derive(clap::Args)]
struct ToolArguments {
    /// Passed on to the tool; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

fn main() -> ExitCode {
    exit_code("xtask", run(Xtask::parse()))
}

fn run(command: Xtask) -> anyhow::Result<ExitCode> {
    match command {
        Xtask::Fmt { check } => commands::fmt(check),
        Xtask::Lint => commands::lint(),
        Xtask::Tidy => tidy::run(),
        Xtask::Sim(options) => commands::simulate(&options),
        Xtask::Fuzz(options) => fuzz::run(&options),
        Xtask::Faults(options) => return commands::start_tool("faults", &options.arguments),
        Xtask::Interop(options) => return commands::start_tool("interop", &options.arguments),
        Xtask::Bench(options) => return commands::start_tool("benchmark", &options.arguments),
        Xtask::Guard(options) => guard::run(&options),
        Xtask::Dist(options) => dist::run(&options),
        Xtask::Record(options) => record::run(&options),
        Xtask::Ci(options) => ci::run(&options),
    }?;
    Ok(ExitCode::SUCCESS)
}
