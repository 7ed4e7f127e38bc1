//! Runs simulated worlds: `sim SEED` prints the trace of one, `sim --seeds N [--from SEED]` runs many and prints what failed.

use std::{collections::BTreeMap, io::Write as _, path::Path, process::ExitCode};

use exec_server_sim::{Report, run_and_keep, trace::Branch};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<u64>().ok();
    let option = |name: &str| words.iter().position(|word| word == name).and_then(|at| number(words.get(at + 1)?));
    let outcome = match (words.first().and_then(number), option("--seeds")) {
        (Some(seed), _) => one(seed),
        (None, Some(count)) => many(option("--from").unwrap_or(0), count),
        (None, None) => many(0, 200),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("sim: {error}");
        ExitCode::FAILURE
    })
}

/// One seed, with its whole trace on standard output.
fn one(seed: u64) -> std::io::Result<ExitCode> {
    let report = run_and_keep(seed, Path::new("target/sim"))?;
    std::io::stdout().write_all(report.trace.as_bytes())?;
    Ok(verdict(&report))
}

fn many(from: u64, count: u64) -> std::io::Result<ExitCode> {
    let mut failed = 0;
    let mut counters: BTreeMap<Branch, u64> = BTreeMap::new();
    for seed in from..from + count {
        let report = run_and_keep(seed, Path::new("target/sim"))?;
        failed += u64::from(report.failure.is_some());
        verdict(&report);
        for (branch, times) in report.counters {
            *counters.entry(branch).or_default() += times;
        }
    }
    let mut out = std::io::stdout();
    for branch in Branch::ALL {
        writeln!(out, "{branch:?}: {}", counters.get(&branch).copied().unwrap_or(0))?;
    }
    writeln!(out, "seeds {from}..{}: {} passed, {failed} failed", from + count, count - failed)?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verdict(report: &Report) -> ExitCode {
    match &report.failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            eprintln!("seed {}: {failure}", report.seed);
            eprintln!("trace: target/sim/{}.trace", report.seed);
            ExitCode::FAILURE
        }
    }
}
