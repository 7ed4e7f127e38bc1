//! Calls cargo: knows the paths of the repository and the binaries, and how to run a step.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// The root of the repository, derived from the path of this crate.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in a folder of the repository")
}

/// The directory where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The flags of the profile in which this program was built. Programs it starts are built in the same profile: benchmarks run in a release
/// build, and CI, which builds everything once for its tests, does not have to build it again.
pub(crate) const PROFILE: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };

/// The output directory of that profile.
pub(crate) fn built() -> PathBuf {
    target_dir().join(if cfg!(debug_assertions) { "debug" } else { "release" })
}

/// A cargo command in the repository, with the cargo that runs us.
pub(crate) fn cargo(args: &[&str]) -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args)
}

/// A command in the repository.
pub(crate) fn command(program: impl AsRef<OsStr>, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).args(args);
    command
}

/// Runs a command to its end; fails if the command fails.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start `{command:?}`"))?;
    ensure!(status.success(), "`{command:?}` failed: {status}");
    Ok(())
}

pub(crate) fn fmt(check_only: bool) -> Result<()> {
    let mut command = cargo(&["fmt", "--all"]);
    if check_only {
        command.arg("--check");
    }
    check(&mut command)
}

pub(crate) fn lint() -> Result<()> {
    check(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

/// Runs many simulated worlds, or one with its trace. Uses a release build, in which they run many times faster.
pub(crate) fn simulate(options: &SimOptions) -> Result<()> {
    if again_in_release()? { Ok(()) } else { sim(options) }
}

/// The simulation is an example program of its crate.
pub(crate) fn sim(options: &SimOptions) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "-p", "exec-server-sim", "--example", "sim"]);
    command.args(PROFILE).arg("--");
    if let Some(seed) = options.seed {
        command.arg(seed.to_string());
    } else {
        command.args(["--seeds", &options.seeds.to_string(), "--from", &options.from.to_string()]);
    }
    check(&mut command)
}

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub(crate) struct SimOptions {
    /// The one seed to replay with its trace.
    pub(crate) seed: Option<u64>,
    /// How many seeds to run.
    #[arg(long, default_value_t = 200)]
    pub(crate) seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
}

/// The server to run: the given one, or the binary of this tree, built now.
pub(crate) fn server_binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    check(cargo(&["build", "--quiet", "-p", "exec-server"]).args(PROFILE))?;
    Ok(built().join("exec-server"))
}

/// The WebSocket echo on the engine of the server, built now.
pub(crate) fn echo_example() -> Result<PathBuf> {
    check(cargo(&["build", "--quiet", "-p", "exec-server-rpc", "--example", "echo"]).args(PROFILE))?;
    Ok(built().join("examples/echo"))
}

/// Runs the same subcommand in a release build of xtask: the load generator and the oracle must be faster than the server. Returns `false`
/// if this is already a release build.
pub(crate) fn again_in_release() -> Result<bool> {
    if !cfg!(debug_assertions) {
        return Ok(false);
    }
    let mut command = cargo(&["run", "--release", "--quiet", "-p", "xtask", "--"]);
    command.args(std::env::args_os().skip(1));
    let status = command.status().context("start the release build of xtask")?;
    if !status.success() {
        std::process::exit(status.code().unwrap_or(1));
    }
    Ok(true)
}
