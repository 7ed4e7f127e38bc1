//! `cargo xtask ci`: runs every check in order, prints the time of each, and verifies that the tests leave nothing behind.
//!
//! While the tests run, this process is the subreaper and gives them a private temporary directory. A process that outlives the tests
//! becomes its child, and a forgotten state directory stays in that directory; both fail the run.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, time::Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::WaitOptions;

use exec_server_workspace::{cargo, processes::nothing_left};

use crate::{commands, dist, guard, tidy};

/// A step: its name and its function.
type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("fmt", || commands::fmt(true)),
    ("lint", commands::lint),
    ("tidy", tidy::run),
    ("build tests", || cargo::check(&mut cargo::cargo(&["test", "--workspace", "--no-run"]))),
    ("test", test),
    ("features", features),
    ("loom", loom),
    ("doc", doc),
    ("faults", || as_built("exec-server-faults", &["--ci"])),
    ("interop", || as_built("exec-server-interop", &["--ci"])),
    ("bench", || as_built("exec-server-benchmark", &["--quick"])),
    ("guard", || guard::run(&guard::GuardOptions::default())),
    // Last: it replaces the program that the other steps use by a static one.
    ("dist", || dist::run(&dist::DistOptions { as_built: true, ..dist::DistOptions::default() })),
];

/// Options of `cargo xtask ci`.
#[derive(clap::Args)]
pub(super) struct CiOptions {
    /// Run only these steps, by name.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

pub(super) fn run(options: &CiOptions) -> Result<()> {
    for name in &options.only {
        ensure!(STEPS.iter().any(|(step, _)| step == name), "no step `{name}`");
    }
    let mut times = Vec::new();
    for (name, step) in STEPS {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        println!("== {name}");
        let begun = Instant::now();
        let outcome = step();
        times.push((name, begun.elapsed().as_secs_f64()));
        if let Err(error) = outcome {
            print_times(&times);
            return Err(error.context(format!("step `{name}`")));
        }
    }
    print_times(&times);
    Ok(())
}

fn print_times(times: &[(&&str, f64)]) {
    println!("== seconds");
    for (name, seconds) in times {
        println!("{seconds:>8.1}  {name}");
    }
    println!("{:>8.1}  in all", times.iter().map(|(_, seconds)| seconds).sum::<f64>());
}

fn test() -> Result<()> {
    let temporary = tempfile::Builder::new().prefix("exec-server-ci-").tempdir()?;
    // It replaces the system's temporary directory, in which every user may create files.
    fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o1777))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut tests = in_folder(&["test", "--workspace"], temporary.path());
    // More threads than CPUs: most tests wait for a process or a socket most of the time.
    let tests = run_and_reap(tests.env("RUST_TEST_THREADS", "4"));
    let left = nothing_left(temporary.path());
    rustix::process::set_child_subreaper(None)?;
    tests.and(left)
}

/// Runs a command and reaps every orphan at once: tests that wait for a process to disappear must not find it as our zombie.
fn run_and_reap(command: &mut Command) -> Result<()> {
    let child = command.spawn().with_context(|| format!("start `{command:?}`"))?;
    loop {
        let ended = rustix::io::retry_on_intr(|| rustix::process::wait(WaitOptions::empty()))?;
        let Some((pid, status)) = ended else { continue };
        if pid.as_raw_nonzero().get().cast_unsigned() == child.id() {
            ensure!(status.exit_status() == Some(0), "the tests failed: {status:?}");
            return Ok(());
        }
    }
}

/// Checks code behind cargo features that no default build has.
fn features() -> Result<()> {
    let crates = ["-p", "exec-server-process", "--all-features"];
    cargo::check(cargo::cargo(&["clippy", "--all-targets"]).args(crates).args(["--", "-D", "warnings"]))?;
    cargo::check(cargo::cargo(&["test"]).args(crates))?;
    // A client without an embedded server and without TLS.
    let bare = ["-p", "exec-server-client", "--no-default-features", "--lib"];
    cargo::check(cargo::cargo(&["clippy"]).args(bare).args(["--", "-D", "warnings"]))
}

/// A cargo command whose temporary files and state are in one directory.
fn in_folder(args: &[&str], folder: &Path) -> Command {
    let mut command = cargo::cargo(args);
    for name in ["TMPDIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
        command.env(name, folder);
    }
    command
}

/// Tests the wake-up protocol of the log under every interleaving. Uses a separate target directory, because the flag rebuilds everything.
fn loom() -> Result<()> {
    let mut command = cargo::cargo(&["test", "-p", "exec-server-log", "--lib", "--release", "loom"]);
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", cargo::target_dir().join("loom"))
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    cargo::check(&mut command)
}

fn doc() -> Result<()> {
    cargo::check(cargo::cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs a tool with the programs that the tests have built: another build would take minutes and would not change what these steps check.
/// Benchmarks and releases are built by hand in the release profile.
fn as_built(package: &str, args: &[&str]) -> Result<()> {
    cargo::check(cargo::cargo(&["run", "--quiet", "-p", package, "--"]).args(args))
}
