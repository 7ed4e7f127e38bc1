//! `cargo xtask bench`: the server beside bare system calls in the same run, as one table of ratios.
//!
//! Owns rows, rounds and the printed table. A target holds when the median of interleaved ratios holds; a miss is printed and
//! never fails a build, because other load on the machine is no defect of ours.

mod boxes;
mod calls;
mod copy;
mod flow;
mod spawn;
mod weight;

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::cargo;

/// The shortest program there is, by its full path, so that no search is measured.
pub(crate) const TRUE: &str = "/bin/true";

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Only these groups: spawn, memory, throughput, roundtrip, cp, sandbox, mcp.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Writes `bench/results.json` too.
    #[arg(long)]
    json: bool,
    /// Another server than the release build of this tree.
    #[arg(long)]
    server: Option<PathBuf>,
    /// Runs in this build of xtask, also where it is not the release build; figures are then no figures.
    #[arg(long, hide = true)]
    as_built: bool,
}

/// What a group needs to know.
struct Setting {
    binary: PathBuf,
    quick: bool,
}

impl Setting {
    fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// One line of the table.
struct Row {
    name: &'static str,
    value: f64,
    unit: &'static str,
    /// The most that keeps the promise; none where there is none yet.
    target: Option<f64>,
    /// The absolute figures behind the value.
    note: String,
}

impl Row {
    fn verdict(&self) -> &'static str {
        match self.target {
            None => "-",
            Some(target) if self.value <= target => "pass",
            Some(_) => "miss",
        }
    }
}

/// A group of rows that are measured together.
type Group = fn(&Setting) -> Result<Vec<Row>>;

const GROUPS: &[(&str, Group)] = &[
    ("spawn", spawn::measure),
    ("memory", weight::measure),
    ("throughput", flow::throughput),
    ("roundtrip", flow::roundtrip),
    ("cp", copy::measure),
    ("sandbox", boxes::measure),
    ("mcp", calls::measure),
];

pub(crate) fn run(options: &Options) -> Result<()> {
    for name in &options.only {
        ensure!(GROUPS.iter().any(|(group, _)| group == name), "no group `{name}`");
    }
    if !options.as_built && cargo::again_in_release()? {
        return Ok(());
    }
    let setting = Setting { binary: cargo::server_binary(options.server.as_deref())?, quick: options.quick };
    let mut rows = Vec::new();
    for (name, measure) in GROUPS {
        if options.only.is_empty() || options.only.iter().any(|only| only == name) {
            rows.extend(measure(&setting).with_context(|| format!("measure `{name}`"))?);
        }
    }
    print(&rows);
    if options.json {
        write_json(&rows)?;
    }
    Ok(())
}

fn print(rows: &[Row]) {
    println!("{:<50} {:>10} {:>10}  {:<5} figures", "what", "value", "target", "");
    for row in rows {
        let value = format!("{:.2} {}", row.value, row.unit);
        let target = row.target.map_or_else(|| "-".to_owned(), |target| format!("{target:.1} {}", row.unit));
        println!("{:<50} {value:>10} {target:>10}  {:<5} {}", row.name, row.verdict(), row.note);
    }
}

fn write_json(rows: &[Row]) -> Result<()> {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({ "name": row.name, "value": row.value, "unit": row.unit, "target": row.target, "verdict": row.verdict(), "note": row.note })
        })
        .collect();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let results = json!({ "kernel": kernel.trim_end(), "cores": cores, "rows": rows });
    let path = cargo::root().join("bench/results.json");
    fs::create_dir_all(cargo::root().join("bench"))?;
    fs::write(&path, format!("{results:#}\n")).context("write `bench/results.json`")?;
    println!("bench/results.json written");
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Median of ratios, and of both sides, over interleaved rounds.
#[derive(Default)]
struct Rounds {
    ours: Vec<f64>,
    bare: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, ours: f64, bare: f64) {
        self.ours.push(ours);
        self.bare.push(bare);
    }

    fn ratio(&self) -> f64 {
        median(self.ours.iter().zip(&self.bare).map(|(ours, bare)| ours / bare).collect())
    }

    fn figures(&self, unit: &str) -> String {
        format!("{:.0} against {:.0} {unit}", median(self.ours.clone()), median(self.bare.clone()))
    }
}
