//! The stored results: `bench/results.json`, the chart, and the table in [`PAGE`] between two markers.
//!
//! Groups that were not measured in this run keep their old results, so that one group can be measured again alone.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{GROUPS, chart};
use crate::prelude::*;

/// The page with the table, below the root of the repository.
const PAGE: &str = "docs/reference/benchmarks.md";

const BEGIN: &str = "<!-- bench: made by `cargo xtask bench --readme` -->\n";
const END: &str = "<!-- end of bench -->\n";
const HEAD: &str = "| what | value | p10..p90 | target | | figures |\n|---|---|---|---|---|---|\n";

/// The paths of the charts in the repository: of a distant server, and of all other groups.
const DISTANCE_CHART: &str = "bench/distance.svg";
const CHART: &str = "bench/chart.svg";

/// The contents of `results.json`.
#[derive(Serialize, Deserialize)]
struct Results {
    kernel: String,
    cores: usize,
    /// Whether any result comes from a short run.
    quick: bool,
    rows: Vec<Row>,
    charts: Vec<Bars>,
}

/// Writes the results and the chart, and with `readme` the table.
pub(super) fn write(root: &Path, report: Report, quick: bool, readme: bool) -> Result<()> {
    let path = root.join("bench/results.json");
    let old = fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
    let results = merge(old, report, quick);
    fs::create_dir_all(root.join("bench")).context("make `bench`")?;
    let mut text = serde_json::to_value(&results)?;
    for (entry, row) in text["rows"].as_array_mut().into_iter().flatten().zip(&results.rows) {
        entry["verdict"] = json!(row.verdict());
    }
    fs::write(&path, format!("{text:#}\n")).context("write `bench/results.json`")?;
    let (distant, near): (Vec<Bars>, Vec<Bars>) = results.charts.iter().cloned().partition(is_distant);
    fs::write(root.join(CHART), chart::draw(&near)).context("write the chart")?;
    println!("bench/results.json and {CHART} written");
    if !distant.is_empty() {
        fs::write(root.join(DISTANCE_CHART), chart::draw(&distant)).context("write the chart of a distant server")?;
        println!("{DISTANCE_CHART} written");
    }
    if readme {
        let path = root.join(PAGE);
        let text = fs::read_to_string(&path).with_context(|| format!("read `{PAGE}`"))?;
        fs::write(&path, into(&text, &results)?).with_context(|| format!("write `{PAGE}`"))?;
        println!("{PAGE} written");
    }
    Ok(())
}

fn is_distant(chart: &Bars) -> bool {
    chart.group == "distance"
}

/// Replaces old results by new ones, group by group, in the order of the groups.
fn merge(old: Option<Results>, new: Report, quick: bool) -> Results {
    let (old_quick, old_rows, old_charts) = old.map_or_else(Default::default, |old| (old.quick, old.rows, old.charts));
    let is_new = |name: &str| new.rows.iter().any(|row| row.group == name);
    let (mut rows, mut charts) = (Vec::new(), Vec::new());
    let mut keeps_old = false;
    for group in GROUPS {
        let (from, from_charts) = if is_new(group.name) { (&new.rows, &new.charts) } else { (&old_rows, &old_charts) };
        let before = rows.len();
        rows.extend(from.iter().filter(|row| row.group == group.name).cloned());
        charts.extend(from_charts.iter().filter(|chart| chart.group == group.name).cloned());
        keeps_old |= !is_new(group.name) && rows.len() > before;
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The rest of the version is specific to the machine.
    let kernel = kernel.split(|sign: char| !sign.is_ascii_digit() && sign != '.').next().unwrap_or_default().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    Results { kernel, cores, quick: quick || (keeps_old && old_quick), rows, charts }
}

/// The page with the table of these results.
fn into(text: &str, results: &Results) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("`{PAGE}` has no table of the benchmark"))?;
    let (_, after) =
        rest.split_once(END).with_context(|| format!("the table of the benchmark in `{PAGE}` has no end"))?;
    ensure!(!after.contains(BEGIN), "`{PAGE}` has two tables of the benchmark");
    Ok(format!("{before}{BEGIN}{}{END}{after}", block(results)))
}

fn block(results: &Results) -> String {
    let (promised, told): (Vec<&Row>, Vec<&Row>) = results.rows.iter().partition(|row| row.target.is_some());
    let count = |verdict: &str| promised.iter().filter(|row| row.verdict() == verdict).count();
    let (cores, kernel) = (results.cores, &results.kernel);
    let short = if results.quick { " A short run: its figures are rough." } else { "" };
    let distance = match results.charts.iter().any(is_distant) {
        true => format!("![Output, copies and short commands on a distant server](../../{DISTANCE_CHART})\n\n"),
        false => String::new(),
    };
    let table = |rows: &[&Row]| HEAD.to_owned() + &rows.iter().map(|row| line(row)).collect::<String>();
    format!(
        "![Start, round trip, echo, output and files beside the machine itself and OpenSSH](../../{CHART})\n\n{distance}\
         Measured on {cores} cores with Linux {kernel}, both sides of a ratio in the same run, alternating; a value is the median of the ratios of all rounds.{short}\n\
         Of {} targets {} are met and {} are missed.\n\n{}\n\
         <details><summary>Further figures, without a target</summary>\n\n{}\n</details>\n",
        promised.len(),
        count("pass"),
        count("miss"),
        table(&promised),
        table(&told),
    )
}

fn line(row: &Row) -> String {
    let [value, spread, target] = row.texts();
    // A bar would end the table cell.
    let cells = [&row.name, &value, &spread, &target, row.verdict(), &row.note].map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, value: f64) -> Report {
        let mut row = Row::new(format!("a | b of {name}"), "x").values(vec![value]).at_most(2.0);
        name.clone_into(&mut row.group);
        vec![row].into()
    }

    #[test]
    fn a_group_that_was_not_measured_keeps_its_rows() {
        let first = merge(None, report("size", 3.0), true);
        let second = merge(Some(first), report("spawn", 1.0), false);
        let names: Vec<_> = second.rows.iter().map(|row| (&*row.group, row.verdict())).collect();
        assert_eq!(names, [("spawn", "pass"), ("size", "miss")]);
        assert!(second.quick);
        let third = merge(Some(second), report("size", 1.0), false);
        assert_eq!(third.rows[1].verdict(), "pass");
    }

    #[test]
    fn the_table_goes_between_its_markers() {
        let results = merge(None, report("size", 1.0), false);
        let text = into(&format!("a\n{BEGIN}old\n{END}b\n"), &results).unwrap();
        assert!(text.starts_with("a\n<!-- bench") && text.ends_with("<!-- end of bench -->\nb\n"));
        assert!(text.contains("| a \\| b of size | 1.00 x |  | ≤ 2 x | pass |  |\n") && !text.contains("old"));
        assert!(into("none", &results).is_err());
        assert!(!text.contains(DISTANCE_CHART));
        let mut distant = report("distance", 1.0);
        distant.charts.push(Bars { group: "distance".to_owned(), ..Bars::new("far", "ms") });
        let text = into(&text, &merge(Some(results), distant, false)).unwrap();
        assert!(text.contains(&format!("(../../{CHART})\n\n![Output, copies and short")) && text.contains("of size"));
    }
}
