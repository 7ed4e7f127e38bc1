//! `cargo xtask fuzz`: runs every target under libFuzzer with the address sanitizer, for some minutes each, from the committed corpus.
//!
//! Builds and runs the programs of `fuzz/`. It drives libFuzzer itself, so only a nightly toolchain must be installed. Findings are in
//! `target/fuzz`; with `--keep` new inputs go into the corpus. The bodies of the targets are in `crates/fuzzed`, and a stable `cargo test`
//! replays the corpus through them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use exec_server_workspace::cargo;

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(super) struct FuzzOptions {
    /// Run only this target; without it, all targets one after the other.
    target: Option<String>,
    /// How many minutes each target runs.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Add inputs that reached new code to the committed corpus, minimised.
    #[arg(long)]
    keep: bool,
}

/// The coverage instrumentation that libFuzzer needs, as `cargo fuzz` sets it, and the address sanitizer.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address -Ccodegen-units=1";

/// The largest input: larger than every seed, and small enough to be committed.
const INPUT_MAX: &str = "-max_len=4096";

pub(super) fn run(options: &FuzzOptions) -> Result<()> {
    let targets = targets()?;
    if let Some(name) = &options.target {
        ensure!(targets.contains(name), "no target `{name}`; there are: {}", targets.join(", "));
    }
    let host = host()?;
    let mut build = nightly(&["cargo", "build", "--release", "--target", &host]);
    build.arg("--manifest-path").arg(cargo::root().join("fuzz/Cargo.toml"));
    build.arg("--target-dir").arg(target_dir()).env("RUSTFLAGS", FLAGS);
    cargo::check(&mut build)?;
    for name in targets.iter().filter(|name| options.target.as_ref().is_none_or(|only| only == *name)) {
        let program = target_dir().join(&host).join("release").join(name);
        fuzz(&program, name, options)?;
    }
    Ok(())
}

fn fuzz(program: &Path, name: &str, options: &FuzzOptions) -> Result<()> {
    let committed = cargo::root().join("fuzz/corpus").join(name);
    let (found, broken) = (target_dir().join("corpus").join(name), target_dir().join("artifacts").join(name));
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&broken)?;
    println!("== {name}, {} min", options.minutes);
    let mut command = Command::new(program);
    command.arg(&found).arg(&committed).arg(INPUT_MAX).arg("-print_final_stats=1").arg("-verbosity=0");
    command.arg(format!("-max_total_time={}", options.minutes * 60)).args(["-timeout=10", "-rss_limit_mb=2048"]);
    command.arg(format!("-artifact_prefix={}/", broken.display()));
    cargo::check(&mut command).with_context(|| {
        format!("target `{name}`; put the file in `fuzz/corpus/{name}` and mend what `cargo test -p exec-server-fuzzed` shows")
    })?;
    if options.keep {
        cargo::check(Command::new(program).args(["-merge=1", INPUT_MAX]).arg(&committed).arg(&found))?;
    }
    Ok(())
}

fn target_dir() -> PathBuf {
    cargo::target_dir().join("fuzz")
}

/// The programs of `fuzz/`.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(cargo::root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// A command of the nightly toolchain. The cargo that runs us sets variables for its own toolchain; `rustup run` replaces them.
fn nightly(command: &[&str]) -> Command {
    let mut rustup = Command::new("rustup");
    rustup.args(["run", "nightly"]).args(command).current_dir(cargo::root()).env_remove("CARGO").env_remove("RUSTC");
    rustup
}

/// The target triple of the nightly toolchain; without one, an error that says how to install it.
fn host() -> Result<String> {
    let output = nightly(&["rustc", "-vV"]).output().ok().filter(|output| output.status.success());
    let output =
        output.context("fuzzing needs a nightly toolchain, and none is installed: rustup toolchain install nightly")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}
