//! Commands that are one call of cargo: format, lint, the simulation, and the tools that are programs of their own.

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Context, Result};
use exec_server_workspace::cargo::{Profile, built_tool, cargo, check};

pub(super) fn fmt(check_only: bool) -> Result<()> {
    let mut command = cargo(&["fmt", "--all"]);
    if check_only {
        command.arg("--check");
    }
    check(&mut command)
}

pub(super) fn lint() -> Result<()> {
    check(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub(super) struct SimOptions {
    /// Replay only this seed, with its trace.
    seed: Option<u64>,
    /// The number of seeds to run.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
}

/// Runs many simulated worlds, or one with its trace. Uses a release build, in which they run many times faster.
pub(super) fn simulate(options: &SimOptions) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "--release", "-p", "exec-server-sim", "--example", "sim", "--"]);
    if let Some(seed) = options.seed {
        command.arg(seed.to_string());
    } else {
        command.args(["--seeds", &options.seeds.to_string(), "--from", &options.from.to_string()]);
    }
    check(&mut command)
}

/// Builds and runs a program of the folder `tools`; returns its exit code. It runs in a release build, because the load generator and the
/// oracle must be faster than the server. With the hidden argument `--as-built`, it runs as `cargo xtask ci` has built it, and builds
/// nothing.
pub(super) fn start_tool(name: &str, arguments: &[OsString]) -> Result<ExitCode> {
    let has = |names: &[&str]| arguments.iter().any(|argument| names.iter().any(|name| argument == name));
    let mut command = if has(&["--as-built"]) {
        built_tool(name)
    } else {
        // To print a list or the help, a release build is not worth its time.
        let profile = if has(&["--list", "--help", "-h"]) { Profile::Dev } else { Profile::Release };
        let mut command = cargo(&["run", "--quiet", "-p", &format!("exec-server-{name}")]);
        command.args(profile.arguments()).arg("--");
        command
    };
    command.args(arguments.iter().filter(|argument| *argument != "--as-built"));
    let status = command.status().with_context(|| format!("start `{command:?}`"))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
