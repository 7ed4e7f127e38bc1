//! The table of the last full run in [`PAGE`], between two markers.
//!
//! The block has one row per run, in the order of the list. Below them, one line per set of runs names their seed and commit. Rows of runs
//! that were not executed this time are kept; a run that was never executed says so.

use super::RUNS;
use crate::prelude::*;
use exec_server_workspace::cargo;

/// The page with the table, below the root of the repository.
const PAGE: &str = "docs/reference/faults.md";

const BEGIN: &str = "<!-- faults: made by `cargo xtask faults --readme` -->\n";
const END: &str = "<!-- end of faults -->\n";
const HEAD: &str =
    "| | fault | how | injected | survived | checked | worst recovery |\n|---|---|---|---|---|---|---|\n";

/// The beginning of a line about seed and commit.
const NOTE: &str = "Made with ";

/// Figures that distinguish the lines of one run.
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

/// Replaces the rows of these runs, and notes their seed and commit.
pub(super) fn write(root: &Path, new: &HashMap<&str, Vec<String>>, seed: u64) -> Result<()> {
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path).with_context(|| format!("read `{PAGE}`"))?;
    let (before, old, after) = parts(&text)?;
    let block = block(old, new, &format!("seed {seed}, commit {}", commit()?));
    fs::write(&path, format!("{before}{BEGIN}{block}{END}{after}")).with_context(|| format!("write `{PAGE}`"))
}

/// The commit from which the program was built, as far as git knows.
fn commit() -> Result<String> {
    let git = |words: &[&str]| -> Result<String> {
        let output = cargo::command("git", words).output().context("start `git`")?;
        ensure!(output.status.success(), "`git {}` failed", words.join(" "));
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // The page may have changed, because it is what is being written.
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", &format!(":!{PAGE}")])?;
    Ok(if changed.is_empty() { commit } else { format!("{commit} with changes") })
}

/// The block with these new rows, noted as made `by` this seed and commit.
fn block(old: &str, new: &HashMap<&str, Vec<String>>, by: &str) -> String {
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
    block + &notes(old, new, by)
}

/// The notes below the rows: seed and commit of each run, one line for all that share them.
fn notes(old: &str, new: &HashMap<&str, Vec<String>>, by: &str) -> String {
    let earlier = old.lines().filter_map(|line| line.strip_prefix(NOTE)?.split_once(": "));
    let mut all: Vec<(&str, Vec<&str>)> =
        earlier.map(|(by, names)| (by, names.split(", ").filter(|name| !new.contains_key(name)).collect())).collect();
    let fresh = RUNS.iter().map(|run| run.name).filter(|name| new.contains_key(name)).collect();
    match all.iter_mut().find(|(other, _)| *other == by) {
        Some((_, names)) => names.extend::<Vec<&str>>(fresh),
        None => all.push((by, fresh)),
    }
    let lines = all.iter().filter(|(_, names)| !names.is_empty());
    lines.map(|(by, names)| format!("\n{NOTE}{by}: {}\n", names.join(", "))).collect()
}

/// The runs that have no row in this page.
#[cfg(test)]
fn missing(text: &str) -> Result<Vec<&'static str>> {
    let (_, block, _) = parts(text)?;
    Ok(RUNS.iter().map(|run| run.name).filter(|name| !block.lines().any(|line| of(line, name))).collect())
}

fn of(line: &str, name: &str) -> bool {
    line.starts_with(&format!("| {name} |"))
}

/// The text before the block, the block, and the text after it.
fn parts(text: &str) -> Result<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("`{PAGE}` has no table of faults"))?;
    let (block, after) = rest.split_once(END).with_context(|| format!("the table of faults in `{PAGE}` has no end"))?;
    ensure!(!after.contains(BEGIN), "`{PAGE}` has two tables of faults");
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

    #[test]
    fn the_page_has_a_row_for_every_run() {
        let text = fs::read_to_string(cargo::root().join(PAGE)).unwrap();
        let missing = missing(&text).unwrap();
        assert!(missing.is_empty(), "{PAGE} has no row for {missing:?}; run `cargo xtask faults --list --readme`");
    }

    #[test]
    fn rows_name_their_variant_and_the_block_its_seeds_and_commits() {
        let line = |variant, value| Figures::survived(3).set(variant, value);
        let variants = rows("F13", &[line("groups", "true"), line("groups", "false")]);
        assert!(variants[0].contains("; groups: true | 3 | 3 |") && variants[1].contains("; groups: false | 3 |"));
        let row = |name| (name, rows(name, &[Figures::default()]));
        let all: HashMap<_, _> = RUNS.iter().map(|run| row(run.name)).collect();
        let first = block("", &all, "seed 1, commit a");
        assert_eq!(first.matches("\nMade with seed 1, commit a: D1, D2, ").count(), 1, "{first}");
        let second = block(&first, &HashMap::from([row("F1"), row("D2")]), "seed 2, commit b");
        assert!(second.contains("\nMade with seed 1, commit a: D1, D3, D4, F2, "), "{second}");
        assert!(second.ends_with("\nMade with seed 2, commit b: D2, F1\n"), "{second}");
        // If nothing was executed, nothing changes.
        assert_eq!(block(&second, &HashMap::new(), "seed 3, commit c"), second);
    }
}
