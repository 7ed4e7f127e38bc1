//! The suite of seeds: every world keeps its promises, the rare branches are reached, and a seed repeats itself.

use std::{collections::BTreeMap, path::Path, thread};

use exec_server_sim::{Report, run, run_and_keep, trace::Branch, world::has_disk};

/// Where traces of failed worlds go.
const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/sim");

/// Seeds that every change lives through. More by hand: `cargo xtask sim`.
const SEEDS: u64 = 50;

/// Worlds at once: each has its own thread, runtime, clock and directory.
const THREADS: u64 = 2;

/// Seeds that fail where a fix is taken back, and what they found. A change of what worlds are made of gives these seeds other worlds: look for new
/// ones then, with the fix taken back.
const REGRESSIONS: &[(u64, &str)] = &[
    (7, "holder: a segment was begun and another dropped after the close"),
    (20, "holder: the same, where nothing had been dropped before"),
    (111, "server: a gap after a resume was counted from an offset that was not exact"),
    (203, "server: the same, from the very beginning"),
    (306, "server: the same, in a reader that was far behind"),
    (310, "server: a cut while the holder was being made left a start undecided for ever"),
    (379, "server: the same, and a read that waited for it"),
];

fn live(seed: u64) -> Report {
    let report = run_and_keep(seed, Path::new(TRACES)).expect("the machine can hold a world");
    if let Some(failure) = &report.failure {
        eprintln!("seed {seed}: {failure}\ntrace: target/sim/{seed}.trace\nreplay: cargo xtask sim {seed}");
    }
    report
}

#[test]
fn every_seed_keeps_its_promises_and_every_rare_branch_is_reached() {
    let reports: Vec<Report> = thread::scope(|scope| {
        let share = |part| move || (0..SEEDS).filter(|seed| seed % THREADS == part).map(live).collect::<Vec<_>>();
        let parts: Vec<_> = (0..THREADS).map(|part| scope.spawn(share(part))).collect();
        parts.into_iter().flat_map(|part| part.join().expect("a world does not panic")).collect()
    });
    let failed: Vec<_> = reports.iter().filter_map(|report| Some((report.seed, report.failure.clone()?))).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let mut counters: BTreeMap<Branch, u64> = BTreeMap::new();
    for (branch, times) in reports.iter().flat_map(|report| &report.counters) {
        *counters.entry(*branch).or_default() += times;
    }
    let never: Vec<_> = Branch::ALL.into_iter().filter(|branch| !counters.contains_key(branch)).collect();
    assert!(never.is_empty(), "never reached: {never:?}, of {counters:#?}");
}

#[test]
fn seeds_that_once_failed_pass() {
    for (seed, what) in REGRESSIONS {
        let failure = live(*seed).failure;
        assert_eq!(failure, None, "seed {seed}: {what}");
    }
}

#[test]
fn a_seed_repeats_its_trace_to_the_letter() {
    for seed in (0..6).filter(|seed| !has_disk(*seed)) {
        let (first, second) = (run(seed).expect("a world"), run(seed).expect("a world"));
        let differs = first.trace.lines().zip(second.trace.lines()).position(|(left, right)| left != right);
        let context = |report: &Report| {
            let from = differs.unwrap_or(0).saturating_sub(5);
            report.trace.lines().skip(from).take(8).collect::<Vec<_>>().join("\n")
        };
        assert!(first.trace == second.trace, "seed {seed}:\n{}\n---\n{}", context(&first), context(&second));
    }
}
