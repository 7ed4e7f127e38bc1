//! `cargo xtask ci`: runs every check in order, prints the time of each, and verifies that the tests leave nothing behind.
//!
//! While the tests run, their process is the subreaper and gives them a private temporary directory. A process that outlives the tests
//! becomes its child, and a forgotten state directory stays in that directory; both fail the run.

use std::{
    fs,
    io::{self, Seek as _, SeekFrom},
    os::unix::fs::PermissionsExt as _,
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use exec_server_workspace::{cargo, packages, processes::nothing_left};
use rustix::process::WaitOptions;

use crate::{commands, dist, guard, tidy};

/// A step: its name and its function.
type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("fmt", || commands::fmt(true)),
    ("lint", commands::lint),
    ("tidy", tidy::run),
    ("build", build),
    ("test", test),
    ("features", features),
    ("loom", loom),
    ("doc", doc),
    ("prepare", prepare),
    ("dist", package),
    ("faults", || cargo::check(cargo::built_tool("faults").arg("--ci"))),
    ("interop", || cargo::check(cargo::built_tool("interop").arg("--ci"))),
    ("bench", || cargo::check(cargo::built_tool("benchmark").arg("--quick"))),
    ("guard", || guard::run(&guard::GuardOptions::default())),
];

/// Steps that run beside the tests, which mostly wait. They measure nothing, and no test uses what they build.
const BESIDE_TESTS: &[&str] = &["features", "loom", "doc", "prepare"];

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
    let begun = Instant::now();
    let all = options.only.is_empty();
    let is_chosen = |name: &str| match all {
        true => !BESIDE_TESTS.contains(&name),
        false => options.only.iter().any(|only| only == name),
    };
    let mut times = Vec::new();
    let outcome = STEPS.iter().filter(|(name, _)| is_chosen(name)).try_for_each(|(name, step)| {
        println!("== {name}");
        let step_begun = Instant::now();
        let outcome = if all && *name == "test" { test_beside_others() } else { step() };
        times.push((name, step_begun.elapsed().as_secs_f64()));
        outcome.with_context(|| format!("step `{name}`"))
    });
    println!("== seconds");
    for (name, seconds) in times {
        println!("{seconds:>8.1}  {name}");
    }
    println!("{:>8.1}  in all", begun.elapsed().as_secs_f64());
    outcome
}

/// Runs the tests, and beside them, at the lowest priority, the steps that can wait for a free core. Both are processes of their own: the
/// tests', because it is the subreaper and every orphan in it is an error. The output of the others follows that of the tests.
fn test_beside_others() -> Result<()> {
    let program = std::env::current_exe()?;
    let mut log = tempfile::tempfile()?;
    let mut others = cargo::command("nice", &["-n", "19"]);
    others.arg(&program).args(["ci", "--only", &BESIDE_TESTS.join(",")]);
    let mut others = others.stdout(log.try_clone()?).stderr(log.try_clone()?).spawn().context("start `nice`")?;
    let tests = cargo::check(&mut cargo::command(&program, &["ci", "--only", "test"]));
    let status = others.wait()?;
    log.seek(SeekFrom::Start(0))?;
    io::copy(&mut log, &mut io::stdout())?;
    tests?;
    ensure!(status.success(), "a step beside the tests failed: {status}");
    Ok(())
}

/// Builds everything that the following steps run. Tests, programs and examples in one go use the same features of the dependencies;
/// `cargo build -p` of each would compile most dependencies several times.
fn build() -> Result<()> {
    cargo::check(&mut cargo::cargo(&["test", "--workspace", "--no-run"]))?;
    build_programs()
}

fn build_programs() -> Result<()> {
    cargo::check(&mut cargo::cargo(&["build", "--quiet", "--workspace", "--bins", "--examples"]))
}

/// Builds and installs from the network what later steps need.
fn prepare() -> Result<()> {
    cargo::check(cargo::built_tool("interop").arg("--prepare"))?;
    cargo::check(cargo::built_tool("faults").arg("--prepare"))?;
    // Without rsync the benchmark says so in its rows, and passes.
    packages::ensure(packages::RSYNC).unwrap_or_else(|error| eprintln!("ci: no rsync: {error:#}"));
    guard::runner().map(drop)
}

/// Packs the debug build: a release build would take minutes, and the checks of the package would be the same.
fn package() -> Result<()> {
    dist::run(&dist::DistOptions { as_built: true, ..dist::DistOptions::default() })?;
    // The static program has taken the place of the one that the other steps use.
    build_programs()
}

fn test() -> Result<()> {
    let temporary = tempfile::Builder::new().prefix("exec-server-ci-").tempdir()?;
    // It replaces the system's temporary directory, in which every user may create files.
    fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o1777))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut tests = cargo::cargo(&["test", "--workspace"]);
    tests.envs(["TMPDIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"].map(|name| (name, temporary.path())));
    let tests = run_and_reap(&mut tests);
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

/// Checks the client without an embedded server and without TLS, which no default build has.
fn features() -> Result<()> {
    let bare = ["-p", "exec-server-client", "--no-default-features", "--lib"];
    cargo::check(cargo::cargo(&["clippy"]).args(bare).args(["--", "-D", "warnings"]))
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
