//! Runs the suite of seeds: every world keeps its invariants, every method is sent, the rare branches are reached, and a seed always
//! produces the same trace.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use exec_server_protocol::method::{METHODS, NOTIFICATIONS, Sender};
use exec_server_sim::{Report, branch::Branch, client_requests, run, run_and_keep, run_many, world::has_disk};

/// Directory for the traces of failed worlds.
const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/sim");

/// Seeds that failed in the past.
const REGRESSIONS: &str = include_str!("../regressions/seeds.txt");

/// The number of seeds that every change must pass. Unoptimized code runs fewer in the same time. For more, use `cargo xtask sim`.
const SEEDS: u64 = if cfg!(debug_assertions) { 60 } else { 200 };

fn print_failure(report: &Report) {
    if let Some(failure) = &report.failure {
        let seed = report.seed;
        eprintln!("seed {seed}: {failure}\ntrace: target/sim/{seed}.trace\nreplay: cargo xtask sim {seed}");
    }
}

#[test]
fn every_seed_keeps_its_promises_and_every_rare_branch_and_method_is_reached() {
    let reports = run_many(0..SEEDS, Path::new(TRACES), print_failure).expect("the machine can hold a world");
    let failed: Vec<_> = reports.iter().filter_map(|report| Some((report.seed, report.failure.clone()?))).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let sent: BTreeSet<&str> = reports.iter().flat_map(|report| report.sent.keys().map(String::as_str)).collect();
    let notes = NOTIFICATIONS.iter().filter(|note| note.sender == Sender::Client).map(|note| note.name);
    let missing: Vec<&str> =
        METHODS.iter().map(|method| method.name).chain(notes).filter(|name| !sent.contains(name)).collect();
    // Fewer seeds do not reach everything. The run F26 of `cargo xtask faults --ci` requires it of 200 seeds.
    assert!(missing.is_empty() || cfg!(debug_assertions), "methods that no move sends: {missing:?}, of {sent:?}");
    let mut counters: BTreeMap<Branch, u64> = BTreeMap::new();
    for (branch, times) in reports.iter().flat_map(|report| &report.counters) {
        *counters.entry(*branch).or_default() += times;
    }
    let never: Vec<_> = Branch::ALL.iter().filter(|branch| !counters.contains_key(branch)).collect();
    assert!(never.is_empty() || cfg!(debug_assertions), "never reached: {never:?}, of {counters:#?}");
}

#[test]
fn every_method_of_the_table_is_sent_by_a_model_client() {
    let mut served: Vec<&str> = METHODS.iter().map(|method| method.name).collect();
    let mut moved = client_requests::METHODS.to_vec();
    served.sort_unstable();
    moved.sort_unstable();
    assert_eq!(moved, served, "a new method becomes a move of a model client, with its promise checked");
}

#[test]
fn seeds_that_once_failed_pass() {
    for line in REGRESSIONS.lines().filter(|line| !line.starts_with('#')) {
        let (seed, what) = line.split_once(' ').expect("a seed and a note");
        let seed = seed.parse().expect("a seed is a number");
        let report = run_and_keep(seed, Path::new(TRACES), false).expect("the machine can hold a world");
        assert_eq!(report.failure, None, "seed {seed}: {what}; replay: cargo xtask sim {seed}");
    }
}

#[test]
fn a_seed_repeats_its_trace_to_the_letter() {
    let seeds = 0..if cfg!(debug_assertions) { 10 } else { 30 };
    assert!(seeds.clone().any(has_disk), "a world with a disk is among them");
    for seed in seeds {
        let (first, second) = (run(seed).expect("a world"), run(seed).expect("a world"));
        let differs = first.trace.lines().zip(second.trace.lines()).position(|(left, right)| left != right);
        let context = |report: &Report| {
            let from = differs.unwrap_or(0).saturating_sub(5);
            report.trace.lines().skip(from).take(8).collect::<Vec<_>>().join("\n")
        };
        assert!(first.trace == second.trace, "seed {seed}:\n{}\n---\n{}", context(&first), context(&second));
        assert_eq!((first.counters, first.sent), (second.counters, second.sent), "seed {seed}");
    }
}
