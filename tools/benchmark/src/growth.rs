//! Growth with the number of processes and sessions: memory per item, and the time of a request and a start with that many.
//!
//! Each round uses a new server, which is filled step by step: 1, 10, 100, 1000.

use super::{TRUE, memory, roundtrip, spawn, table::short};
use crate::prelude::*;

/// Number of requests and starts whose median is taken at each step.
const REQUESTS: u32 = 200;
const STARTS: u32 = 20;

/// The items that are added in each step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GrowthKind {
    Processes,
    Sessions,
    /// Sessions with one process each, and so with a holder.
    Holders,
}

impl GrowthKind {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Processes => ("process", "processes"),
            Self::Sessions => ("session", "sessions"),
            Self::Holders => ("session with a process", "sessions with a process"),
        }
    }
}

/// The results of one step.
struct GrowthStep {
    /// KiB per added item.
    each: f64,
    request: f64,
    start: f64,
}

/// Memory comes in pages, so less than one page per item cannot be measured.
const PAGE_KIB: f64 = 4.0;

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let mut rows = Vec::new();
    for more in [GrowthKind::Processes, GrowthKind::Sessions, GrowthKind::Holders] {
        // Fewer in the short run, and where each item is several OS processes.
        let steps: &[usize] = match (setting.quick, more) {
            (false, GrowthKind::Processes | GrowthKind::Sessions) => &[1, 10, 100, 1000],
            (true, GrowthKind::Processes | GrowthKind::Sessions) | (false, GrowthKind::Holders) => &[1, 10, 100],
            (true, GrowthKind::Holders) => &[1, 10, 20],
        };
        let rounds = setting.pick(1, if more == GrowthKind::Holders { 3 } else { 9 });
        rows.extend(grow(setting, more, steps, rounds)?);
    }
    Ok(rows.into())
}

fn grow(setting: &BenchSetting<'_>, more: GrowthKind, steps: &[usize], rounds: usize) -> Result<Vec<Row>> {
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(fill(setting, more, steps)?);
    }
    let column =
        |at: usize, value: fn(&GrowthStep) -> f64| measured.iter().map(|steps| value(&steps[at])).collect::<Vec<_>>();
    let last = steps.len() - 1;
    let (one, many) = more.names();
    let most = steps[last];
    let row = |name: String, low: usize, value: fn(&GrowthStep) -> f64, unit: &str| {
        let least = if unit == "KiB" { PAGE_KIB } else { f64::MIN_POSITIVE };
        let ratio = |(high, low): (f64, f64)| high.max(least) / low.max(least);
        let ratios = column(last, value).into_iter().zip(column(low, value)).map(ratio).collect();
        let figures: Vec<_> = (0..steps.len()).map(|at| short(median(column(at, value)))).collect();
        let counts: Vec<_> = steps.iter().map(ToString::to_string).collect();
        Row::new(name, "x").values(ratios).note(format!("{} {unit} at {}", figures.join(", "), counts.join(", ")))
    };
    let ten = steps.iter().position(|count| *count == 10).context("ten is a step")?;
    let memory = row(format!("memory of a {one} at {most} / at 10"), ten, |step| step.each, "KiB");
    let start = row(format!("start of `true` among {most} {many} / with 1"), 0, |step| step.start, "µs");
    Ok(vec![
        if more == GrowthKind::Holders { memory } else { memory.at_most(1.2) },
        row(format!("request round trip among {most} {many} / with 1"), 0, |step| step.request, "µs"),
        if more == GrowthKind::Processes { start.at_most(1.2) } else { start },
    ])
}

fn fill(setting: &BenchSetting<'_>, more: GrowthKind, steps: &[usize]) -> Result<Vec<GrowthStep>> {
    let mut servers = BenchServers::start(setting)?;
    let mut session = servers.json()?;
    memory::first(&mut session)?;
    let before = memory::settled(&servers.setup);
    let mut others = Vec::new();
    let mut measured = Vec::new();
    let mut there = 0;
    for count in steps {
        match more {
            GrowthKind::Processes => memory::sleepers(&mut session, false, count - there)?,
            GrowthKind::Sessions | GrowthKind::Holders => {
                for _ in there..*count {
                    let mut other = servers.json()?;
                    if more == GrowthKind::Holders {
                        memory::sleepers(&mut other, false, 1)?;
                    }
                    others.push(other);
                }
            }
        }
        there = *count;
        let each = (memory::settled(&servers.setup) - before) / there as f64;
        measured.push(GrowthStep {
            each: each.max(0.0),
            request: request(&mut session)?,
            start: median(spawn::starts(&mut session, StartRequest::new(&[TRUE]), STARTS)?),
        });
    }
    for session in others.into_iter().chain([session]) {
        session.end()?;
    }
    servers.stop()?;
    Ok(measured)
}

/// The median of some requests in microseconds.
fn request(session: &mut BenchSession) -> Result<f64> {
    let mut id = 0;
    let times = micros(REQUESTS, || {
        id += 1;
        roundtrip::exchange(session.link(), roundtrip::CHEAP, id)
    })?;
    Ok(median(times))
}
