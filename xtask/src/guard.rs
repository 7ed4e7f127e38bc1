//! `cargo xtask guard`: compares the cost of a message, a record and a request, in instructions, with the committed table.
//!
//! Has the table and the tolerance; the benchmarks are in `bench/benches`. Callgrind counts instructions instead of measuring time, so a
//! busy machine changes nothing. It emulates a CPU, which has AVX2 if the real one has it. Without AVX2, and on other architectures, counts
//! are printed but not compared.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use exec_server_workspace::{
    cargo,
    packages::{self, RequiredPackage},
};

/// How much a count may rise, in percent. Counts of one build repeat almost exactly; another C library or memory layout changes them by one
/// or two percent, and an additional copy or allocation by tens.
const TOLERANCE: f64 = 5.0;

/// Counting needs Valgrind.
const NEEDS: &[RequiredPackage] = &[("valgrind", "valgrind")];

/// Options of `cargo xtask guard`.
#[derive(clap::Args, Default)]
pub(super) struct GuardOptions {
    /// Write the counts into the table instead of comparing them; give the reason in the commit.
    #[arg(long)]
    update: bool,
}

/// The contents of `bench/instructions.json`.
#[derive(Debug, Default, Deserialize, Serialize)]
struct InstructionTable {
    /// The versions of other software that the counts depend on; printed if they differ.
    made_with: BTreeMap<String, String>,
    /// Counts by name: bench, function, case.
    instructions: BTreeMap<String, u64>,
}

pub(super) fn run(options: &GuardOptions) -> Result<()> {
    packages::ensure(NEEDS)?;
    let counted = count(&runner()?)?;
    ensure!(!counted.is_empty(), "nothing was counted");
    let path = cargo::root().join("bench/instructions.json");
    let made_with = made_with()?;
    if !is_comparable() {
        print(&counted, &BTreeMap::new());
        println!("guard: compared with nothing; the table is of x86_64 with AVX2");
        ensure!(!options.update, "the table is not written on this machine");
        return Ok(());
    }
    let table: InstructionTable = match fs::read(&path) {
        Ok(json) => serde_json::from_slice(&json).context("read `bench/instructions.json`")?,
        Err(_) if options.update => InstructionTable::default(),
        Err(error) => return Err(error).context("read `bench/instructions.json`"),
    };
    print(&counted, &table.instructions);
    if options.update {
        let json = serde_json::to_string_pretty(&InstructionTable { made_with, instructions: counted })?;
        return fs::write(&path, json + "\n").context("write `bench/instructions.json`");
    }
    judge(&table, &counted, &made_with)
}

/// Fails if a count is too high, new or gone.
fn judge(
    table: &InstructionTable,
    counted: &BTreeMap<String, u64>,
    made_with: &BTreeMap<String, String>,
) -> Result<()> {
    let mut wrong = differences(&table.instructions, counted);
    if wrong.is_empty() {
        println!("guard: {} counts, none more than {TOLERANCE} % above the table", counted.len());
        return Ok(());
    }
    if *made_with != table.made_with {
        wrong.push(format!("the table was made with {:?}, this with {made_with:?}", table.made_with));
    }
    wrong.push(format!(
        "look where the instructions go with `callgrind_annotate` on the files in `{}`; if they are worth it, \
         `cargo xtask guard --update`, and the reason in the commit",
        home().display()
    ));
    bail!(wrong.join("\n"));
}

/// The names of the counts that are too high, new or gone, one line each.
fn differences(table: &BTreeMap<String, u64>, counted: &BTreeMap<String, u64>) -> Vec<String> {
    let is_above = |name: &String| table.get(name).is_some_and(|known| change(*known, counted[name]) > TOLERANCE);
    let names = |counts: &BTreeMap<String, u64>, is_wrong: &dyn Fn(&String) -> bool| {
        let names = counts.keys().filter(|name| is_wrong(name)).map(|name| format!("`{name}`"));
        names.collect::<Vec<_>>().join(", ")
    };
    let all = [
        (format!("more than {TOLERANCE} % above the table"), names(counted, &is_above)),
        ("not in the table".to_owned(), names(counted, &|name| !table.contains_key(name))),
        ("in the table and not counted".to_owned(), names(table, &|name| !counted.contains_key(name))),
    ];
    all.into_iter().filter(|(_, names)| !names.is_empty()).map(|(what, names)| format!("{what}: {names}")).collect()
}

/// In percent.
fn change(known: u64, count: u64) -> f64 {
    100.0 * (count as f64 - known as f64) / known as f64
}

/// One line each: name, instructions, limit, change.
fn print(counted: &BTreeMap<String, u64>, table: &BTreeMap<String, u64>) {
    let width = counted.keys().map(String::len).max().unwrap_or_default();
    println!("{:<width$} {:>12} {:>12} {:>8}", "", "instructions", "limit", "change");
    for (name, count) in counted {
        match table.get(name) {
            Some(known) => {
                let limit = (*known as f64 * (1.0 + TOLERANCE / 100.0)) as u64;
                println!("{name:<width$} {count:>12} {limit:>12} {:>+7.2}%", change(*known, *count));
            }
            None => println!("{name:<width$} {count:>12} {:>12} {:>8}", "-", "-"),
        }
    }
}

/// Builds the benchmarks and counts.
fn count(runner: &Path) -> Result<BTreeMap<String, u64>> {
    // For the whole workspace, with the features that the tests use; no other crate has such targets.
    let mut command = cargo::cargo(&["bench", "--quiet", "--workspace", "--bench", "*", "--profile", "dev"]);
    command.args(["--config", "bench/profile.toml", "--", "--output-format=json"]);
    // Count instructions only. Run two in parallel; they do not affect each other.
    command.args(["--callgrind-args=--cache-sim=no", "--parallel=2"]);
    // Incremental builds divide crates differently.
    command.env("CARGO_INCREMENTAL", "0").env("GUNGRAUN_RUNNER", runner).env("GUNGRAUN_HOME", home());
    let output = command.stderr(Stdio::inherit()).output().context("start `cargo bench`")?;
    let text = String::from_utf8(output.stdout).context("read what was counted")?;
    ensure!(output.status.success(), "`cargo bench` failed: {}\n{text}", output.status);
    let mut counted = BTreeMap::new();
    for summary in serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>() {
        let (name, count) = read(&summary.context("read what was counted")?)?;
        ensure!(counted.insert(name.clone(), count).is_none(), "two counts have the name `{name}`");
    }
    Ok(counted)
}

/// The name and the count in a summary of gungraun.
fn read(summary: &serde_json::Value) -> Result<(String, u64)> {
    let text = |member: &str| summary[member].as_str().with_context(|| format!("a summary without `{member}`"));
    let bench = text("module_path")?.split("::").next().unwrap_or_default();
    let name = format!("{bench}::{}::{}", text("function_name")?, text("id")?);
    let count = summary["profiles"][0]["data"]["total"]["metrics"]["Ir"]["values"]["new"].as_u64();
    let count = count.filter(|count| *count > 0).with_context(|| format!("`{name}` has no count"))?;
    Ok((name, count))
}

/// The directory for callgrind's files.
fn home() -> PathBuf {
    cargo::target_dir().join("gungraun")
}

/// The program that runs the benchmarks under valgrind: the same release as the library, installed once below the target directory.
pub(super) fn runner() -> Result<PathBuf> {
    let lock = fs::read_to_string(cargo::root().join("Cargo.lock")).context("read `Cargo.lock`")?;
    let version = locked(&lock, "gungraun").context("`Cargo.lock` has no `gungraun`")?;
    let tools = cargo::target_dir().join("tools");
    let root = tools.join(format!("gungraun-runner-{version}"));
    let program = root.join("bin/gungraun-runner");
    if program.is_file() {
        return Ok(program);
    }
    println!("guard: installing gungraun-runner {version}");
    let build = tools.join("build");
    let mut install = cargo::cargo(&["install", "--quiet", "--locked", "--debug", "gungraun-runner"]);
    install.args(["--version", &format!("={version}"), "--root"]).arg(&root).arg("--target-dir").arg(&build);
    // It only starts programs and parses their output, so optimize for build time.
    cargo::check(install.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0"))?;
    fs::remove_dir_all(&build).context("remove what the runner was built from")?;
    Ok(program)
}

/// The version of a package in a lock file.
fn locked<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    after.split('"').next()
}

/// The versions of other software that the counts depend on.
fn made_with() -> Result<BTreeMap<String, String>> {
    let commands = [
        ("rustc", "rustc", "--version"),
        ("valgrind", "valgrind", "--version"),
        ("libc", "getconf", "GNU_LIBC_VERSION"),
    ];
    let say = |(name, program, arg): (&str, &str, &str)| {
        let output = cargo::command(program, &[arg]).output().with_context(|| format!("start `{program}`"))?;
        Ok((name.to_owned(), String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    };
    commands.into_iter().map(say).collect()
}

#[cfg(target_arch = "x86_64")]
fn is_comparable() -> bool {
    std::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn is_comparable() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn only_what_rose_by_more_than_the_tolerance_is_above() {
        let table = counts(&[("fell", 1000), ("gone", 1000), ("rose", 1000), ("same", 1000), ("up", 1000)]);
        let counted = counts(&[("fell", 10), ("new", 1), ("rose", 1051), ("same", 1000), ("up", 1050)]);
        let expected = [
            "more than 5 % above the table: `rose`",
            "not in the table: `new`",
            "in the table and not counted: `gone`",
        ];
        assert_eq!(differences(&table, &counted), expected);
    }

    #[test]
    fn a_failure_names_what_rose_and_says_what_to_do() {
        let table = InstructionTable { instructions: counts(&[("log::append", 1000)]), ..InstructionTable::default() };
        let made_with = BTreeMap::from([("valgrind".to_owned(), "4".to_owned())]);
        let error = judge(&table, &counts(&[("log::append", 2000)]), &made_with).unwrap_err().to_string();
        for part in ["above the table: `log::append`", "valgrind", "callgrind_annotate", "guard --update"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_committed_table_names_what_the_benches_define() {
        let table = fs::read(cargo::root().join("bench/instructions.json")).unwrap();
        let table: InstructionTable = serde_json::from_slice(&table).unwrap();
        assert!(table.instructions.values().all(|count| *count > 0));
        for name in table.instructions.keys() {
            let parts: Vec<_> = name.split("::").collect();
            let source = cargo::root().join(format!("bench/benches/{}.rs", parts[0]));
            let source = fs::read_to_string(&source).unwrap();
            assert!(source.contains(&format!("fn {}(", parts[1])), "`{name}` is not counted any more");
            assert!(source.contains(&format!("#[bench::{}(", parts[2])), "`{name}` is not counted any more");
        }
    }

    #[test]
    fn the_runner_is_of_the_locked_release() {
        let lock = "[[package]]\nname = \"gungraun-macros\"\nversion = \"1\"\n[[package]]\nname = \"gungraun\"\nversion = \"2.3\"\n";
        assert_eq!(locked(lock, "gungraun"), Some("2.3"));
    }
}
