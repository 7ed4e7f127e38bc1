//! Calls cargo: knows the paths of the repository and the binaries, and how to run a step.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Whether this program is a release build. The programs it starts are built in the same profile: benchmarks run in a release build, and
/// CI, which builds everything once for its tests, does not build it again.
const RELEASE: bool = !cfg!(debug_assertions);

/// The root of the repository, derived from the path of this crate.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate is two levels below the root")
}

/// The directory where cargo builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Cargo's flags for a profile.
pub fn profile(release: bool) -> &'static [&'static str] {
    if release { &["--release"] } else { &[] }
}

/// The directory of a profile's programs.
pub fn built(release: bool) -> PathBuf {
    target_dir().join(if release { "release" } else { "debug" })
}

/// A cargo command in the repository, with the cargo that runs us.
pub fn cargo(args: &[&str]) -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args)
}

/// A command in the repository.
pub fn command(program: impl AsRef<OsStr>, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).args(args);
    command
}

/// Runs a command to its end; fails if the command fails.
pub fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start `{command:?}`"))?;
    ensure!(status.success(), "`{command:?}` failed: {status}");
    Ok(())
}

/// `cargo run` of an example, in the profile of this program.
pub fn run_example(package: &str, example: &str) -> Command {
    let mut command = cargo(&["run", "--quiet", "-p", package, "--example", example]);
    command.args(profile(RELEASE));
    command
}

/// The server to run: the given one, or the binary of this tree, built now in the profile of this program.
pub fn server_binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    check(cargo(&["build", "--quiet", "-p", "exec-server"]).args(profile(RELEASE)))?;
    Ok(built(RELEASE).join("exec-server"))
}

/// An example of a crate, built now in the profile of this program.
pub fn example(package: &str, example: &str) -> Result<PathBuf> {
    check(cargo(&["build", "--quiet", "-p", package, "--example", example]).args(profile(RELEASE)))?;
    Ok(built(RELEASE).join("examples").join(example))
}
