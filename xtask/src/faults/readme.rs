//! The table of the last full run in the README, between two markers.
//!
//! Owns the block: one row a run, in the order of the list. Rows of runs that were not carried out this time stay as they are; a
//! run that never was says so.

use std::{collections::HashMap, fs, path::Path};

use anyhow::{Context, Result, ensure};

use super::{Figures, RUNS};

const BEGIN: &str = "<!-- faults: made by `cargo xtask faults --readme` -->\n";
const END: &str = "<!-- end of faults -->\n";
const HEAD: &str =
    "| | fault | how | injected | survived | checked | worst recovery |\n|---|---|---|---|---|---|---|\n";

/// Figures that tell the lines of one run apart.
const VARIANTS: [&str; 4] = ["client", "groups", "part", "way"];

/// The rows of a run that passed, one for each of its lines.
pub(super) fn rows(name: &str, lines: &[Figures]) -> Vec<String> {
    let run = RUNS.iter().find(|run| run.name == name);
    let (what, how) = run.map_or(("", ""), |run| (run.what, run.how));
    let row = |line: &Figures| {
        let (injected, survived, bytes) = (line.get("injected"), line.get("survived"), megabytes(line.get("bytes")));
        let worst = Some(line.get("worst_ms")).filter(|worst| *worst != "-").map(|worst| format!("{worst} ms"));
        let variant = VARIANTS.iter().map(|variant| (variant, line.get(variant))).find(|(_, value)| *value != "-");
        let variant = variant.map(|(variant, value)| format!("; {variant}: {value}")).unwrap_or_default();
        format!(
            "| {name} | {what} | {how}{variant} | {injected} | {survived} | {bytes} | {} |\n",
            worst.unwrap_or_default()
        )
    };
    lines.iter().map(row).collect()
}

fn megabytes(bytes: &str) -> String {
    bytes.parse::<f64>().map_or(String::new(), |bytes| format!("{:.1} MB", bytes / 1e6))
}

/// Replaces the rows of these runs.
pub(super) fn write(root: &Path, new: &HashMap<&str, Vec<String>>) -> Result<()> {
    let path = root.join("README.md");
    let text = fs::read_to_string(&path)?;
    let (before, old, after) = parts(&text)?;
    let mut block = HEAD.to_owned();
    for run in RUNS {
        match new.get(run.name) {
            Some(rows) => block.extend(rows.iter().map(String::as_str)),
            None if old.lines().any(|line| of(line, run.name)) => {
                block.extend(old.lines().filter(|line| of(line, run.name)).flat_map(|line| [line, "\n"]));
            }
            None => block += &format!("| {} | {} | {} | not carried out yet | | | |\n", run.name, run.what, run.how),
        }
    }
    fs::write(&path, format!("{before}{BEGIN}{block}{END}{after}")).context("write the README")
}

/// The runs that have no row in this README.
pub(crate) fn missing(text: &str) -> Result<Vec<&'static str>> {
    let (_, block, _) = parts(text)?;
    Ok(RUNS.iter().map(|run| run.name).filter(|name| !block.lines().any(|line| of(line, name))).collect())
}

fn of(line: &str, name: &str) -> bool {
    line.starts_with(&format!("| {name} |"))
}

/// What is before the block, in it, and after it.
fn parts(text: &str) -> Result<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN).context("the README has no table of faults")?;
    let (block, after) = rest.split_once(END).context("the README's table of faults has no end")?;
    ensure!(!after.contains(BEGIN), "the README has two tables of faults");
    Ok((before, block, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_missing_is_named() {
        let rows: String = RUNS.iter().skip(1).flat_map(|run| rows(run.name, &[Figures::default()])).collect();
        let text = format!("# x\n{BEGIN}{HEAD}{rows}{END}rest\n");
        assert_eq!(missing(&text).unwrap(), [RUNS[0].name]);
        assert!(missing("no table").is_err());
    }
}
