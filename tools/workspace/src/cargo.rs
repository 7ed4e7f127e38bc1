//! Calls cargo: knows the paths of the repository and the binaries, and how to run a step.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Whether this program is a release build. The programs that it starts are then optimised, too. CI, which builds everything once for its
/// tests, runs debug builds and does not build again.
const RELEASE: bool = !cfg!(debug_assertions);

/// An environment variable: use server and examples as the tests have built them. `cargo build -p` would select other features of the
/// dependencies than `cargo test --workspace`, and compile a hundred crates again.
const AS_BUILT: &str = "XTASK_AS_BUILT";

/// The root of the repository, derived from the path of this crate.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate is two levels below the root")
}

/// The directory where cargo builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A profile of the workspace's `Cargo.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Dev,
    /// Quick to build; for the tools and for a first try.
    Release,
    /// The program that users install, and that is measured.
    Production,
}

impl Profile {
    /// Cargo's flags for this profile.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Dev => &[],
            Self::Release => &["--release"],
            Self::Production => &["--profile", "production"],
        }
    }

    /// The directory of the programs of this profile.
    pub fn directory(self) -> PathBuf {
        target_dir().join(match self {
            Self::Dev => "debug",
            Self::Release => "release",
            Self::Production => "production",
        })
    }
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

/// A tool that the tests have built, told to use the other programs as built, too.
pub fn built_tool(name: &str) -> Command {
    let mut command = command(Profile::Dev.directory().join(name), &[]);
    command.env(AS_BUILT, "1");
    command
}

/// The server to run: the given one, or the binary of this tree, as users install it or, if this program is a debug build, as a debug build.
pub fn server_binary(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(given) => Ok(given.to_owned()),
        None => {
            let profile = if RELEASE { Profile::Production } else { Profile::Dev };
            build(profile, &["-p", "exec-server"], "exec-server")
        }
    }
}

/// The profile of this program.
fn own_profile() -> Profile {
    if RELEASE { Profile::Release } else { Profile::Dev }
}

/// An example of a crate, in the profile of this program.
pub fn example(package: &str, example: &str) -> Result<PathBuf> {
    build(own_profile(), &["-p", package, "--example", example], &format!("examples/{example}"))
}

/// The program at this path below the profile's directory, built now with these arguments of cargo unless it is used as built.
fn build(profile: Profile, args: &[&str], path: &str) -> Result<PathBuf> {
    if std::env::var_os(AS_BUILT).is_none() {
        check(cargo(&["build", "--quiet"]).args(args).args(profile.arguments()))?;
    }
    Ok(profile.directory().join(path))
}

/// The example `crash` of the holder, always built now, because no other build has the feature that it needs. With `--workspace` it uses
/// the dependencies that the tests have built; `-p` would select other features of them.
pub fn crash_example() -> Result<PathBuf> {
    let args = ["--workspace", "--example", "crash", "--features", "exec-server-holder/failpoints"];
    check(cargo(&["build", "--quiet"]).args(args).args(own_profile().arguments()))?;
    Ok(own_profile().directory().join("examples/crash"))
}
