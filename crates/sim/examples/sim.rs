//! Runs simulated worlds: `sim SEED` prints the trace of one, `sim --seeds N [--from SEED]` runs many and prints failures and coverage.

use std::{collections::BTreeMap, io::Write as _, path::Path, process::ExitCode};

use exec_server_protocol::method::METHODS;
use exec_server_sim::{Report, branch::Branch, run_and_keep, run_many};

/// Directory for the traces.
const TRACES: &str = "target/sim";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<u64>().ok();
    let option = |name: &str| words.iter().position(|word| word == name).and_then(|at| number(words.get(at + 1)?));
    let outcome = match (words.first().and_then(number), option("--seeds")) {
        (Some(seed), _) => one(seed),
        (None, count) => many(option("--from").unwrap_or(0), count.unwrap_or(200)),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("sim: {error}");
        ExitCode::FAILURE
    })
}

/// Runs one seed. Prints the whole trace to stdout and writes it to its file.
fn one(seed: u64) -> std::io::Result<ExitCode> {
    let report = run_and_keep(seed, Path::new(TRACES), true)?;
    std::io::stdout().write_all(report.trace.as_bytes())?;
    eprintln!("trace: {TRACES}/{seed}.trace");
    Ok(verdict(&report))
}

fn many(from: u64, count: u64) -> std::io::Result<ExitCode> {
    let reports = run_many(from..from + count, Path::new(TRACES), |report| {
        verdict(report);
    })?;
    let failed = reports.iter().filter(|report| report.failure.is_some()).count() as u64;
    let mut counters: BTreeMap<Branch, u64> = BTreeMap::new();
    let mut sent: BTreeMap<&str, u64> = BTreeMap::new();
    for report in &reports {
        report.counters.iter().for_each(|(branch, times)| *counters.entry(*branch).or_default() += times);
        report.sent.iter().for_each(|(method, times)| *sent.entry(method).or_default() += times);
    }
    let mut out = std::io::stdout();
    for branch in Branch::ALL {
        writeln!(out, "{branch:?}: {}", counters.get(branch).copied().unwrap_or(0))?;
    }
    let sent: Vec<String> = sent.iter().map(|(method, times)| format!("{method} {times}")).collect();
    writeln!(out, "sent: {}", sent.join(", "))?;
    writeln!(out, "seeds {from}..{}: {} passed, {failed} failed", from + count, count - failed)?;
    let methods = METHODS.iter().map(|method| method.name);
    let unsent: Vec<_> = methods.filter(|name| !reports.iter().any(|report| report.sent.contains_key(*name))).collect();
    let never: Vec<_> = Branch::ALL.iter().filter(|branch| !counters.contains_key(branch)).collect();
    // A few seeds cannot reach everything.
    if count >= 200 && !(never.is_empty() && unsent.is_empty()) {
        writeln!(out, "never reached: {never:?}, never sent: {unsent:?}")?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verdict(report: &Report) -> ExitCode {
    match &report.failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            eprintln!("seed {}: {failure}", report.seed);
            eprintln!("trace: {TRACES}/{}.trace; replay: cargo xtask sim {}", report.seed, report.seed);
            ExitCode::FAILURE
        }
    }
}
