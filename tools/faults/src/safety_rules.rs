//! The safety rules with the test files that prove them, and the promises about data with the runs that prove them.
//!
//! Provides what `--list` prints beyond the runs. The test file of a rule is among the tests of the command line and begins with its
//! number.

use crate::prelude::*;

/// The directory of the test files.
const FOLDER: &str = "crates/cli/tests/promises";

const RULES: &[(u32, &str)] = &[
    (1, "nothing beyond loopback without authentication and TLS"),
    (2, "authentication on the upgrade request, before any state"),
    (3, "tokens by header or URL, in no log"),
    (4, "tokens are hashed, named, scoped, expiring, revocable"),
    (5, "tokens come by file, never by argument, and reach no child"),
    (6, "any origin is refused"),
    (7, "the name in Host must be ours, with any port"),
    (8, "a socket on disk is its owner's alone"),
    (9, "client certificates, reloaded without restart"),
    (10, "scopes come from the server's record"),
    (11, "a session's id alone resumes nothing; guesses are slowed"),
    (12, "limits before and after the door"),
    (13, "no compression"),
    (14, "children get three descriptors and clean signals"),
    (15, "children get the environment that was asked for and none of our names"),
    (16, "file requests stay beneath roots and in their sandbox, whatever is swapped"),
    (17, "a child's terminal is its own"),
    (18, "a sandbox is enforced or refused"),
    (19, "our memory and state are closed to children that are confined"),
    (20, "limits of processes and memory; all descendants end"),
    (21, "memory is bounded; a slow client blocks only its own"),
    (22, "a client believes no server"),
    (24, "an audit that shows what was removed"),
    (26, "the server's own files are out of reach of everyone but its owner"),
    (27, "a sandbox floor refuses a policy that restricts nothing"),
    (28, "file methods act as the user of `--run-as`"),
    (29, "kernel files are read-only and IPC of others is out of reach for confined processes"),
    (30, "no text of another machine steers a terminal, errors included"),
    (31, "the audit log's beginning and end are anchored, and no link is followed"),
    (32, "no secret of the environment goes into an HTTP header"),
];

/// Promises about data, and the runs that prove them.
const PROMISES: &[(u32, &str, &[&str])] = &[
    (
        1,
        "every byte once, in order, or told as lost",
        &["F1", "F2", "F5", "F6", "F8", "F9", "F10", "F15", "C1", "C2", "D4"],
    ),
    (2, "an accepted write enters once", &["F3", "F16", "F17", "C1"]),
    (3, "an exit status once, also after a restart", &["F1", "F2", "F5", "F20"]),
    (4, "processes survive the server, not their holder", &["F2", "F4", "F5", "F20", "C2"]),
    (5, "what was spilled is readable, up to a torn last record", &["D4", "F4", "F8", "F19"]),
    (
        6,
        "memory, disk and descriptors stay in their bounds",
        &["D1", "D2", "D3", "D4", "F7", "F8", "F9", "F11", "F12", "F13"],
    ),
    (7, "trouble of one session costs others little", &["F7", "F9", "F10", "F11", "F12", "F18", "F24"]),
    (8, "an end is always reported, and a session being adopted is known", &["D4", "F9", "F15"]),
    (9, "nothing kept per process or session is unbounded, nor is any message", &["F13"]),
    (10, "a permanent error is reported within half a second, a wait announced after one", &[]),
];

/// A rule or promise and its files, sorted by name.
type RuleFiles = (String, &'static str, Vec<String>);

/// The files of each rule.
fn rules(root: &Path) -> Result<Vec<RuleFiles>> {
    let rules = RULES.iter().map(|(number, what)| ('s', *number, *what));
    filed(root, rules)
}

fn filed(root: &Path, rules: impl Iterator<Item = (char, u32, &'static str)>) -> Result<Vec<RuleFiles>> {
    let folder = root.join(FOLDER);
    let mut names: Vec<String> = fs::read_dir(&folder)
        .with_context(|| format!("list `{}`", folder.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    let files = |prefix: String| names.iter().filter(|name| name.starts_with(&prefix)).cloned().collect();
    let filed = |(kind, number, what): (char, u32, &'static str)| {
        (format!("{}{number}", kind.to_ascii_uppercase()), what, files(format!("{kind}{number:02}_")))
    };
    Ok(rules.map(filed).collect())
}

/// Prints both tables.
pub(super) fn list(root: &Path) -> Result<()> {
    println!();
    for (name, what, files) in rules(root)? {
        let files = if files.is_empty() { "no file".to_owned() } else { paths(&files) };
        println!("{name:<4} {what}: {files}");
    }
    println!();
    let promises = filed(root, PROMISES.iter().map(|(number, what, _)| ('r', *number, *what)))?;
    for ((name, what, files), (.., runs)) in promises.into_iter().zip(PROMISES) {
        let files = if files.is_empty() { String::new() } else { format!(", {}", paths(&files)) };
        let files = if runs.is_empty() { files.trim_start_matches(", ") } else { &files };
        println!("{name:<4} {what}: {}{files}", runs.join(", "));
    }
    Ok(())
}

fn paths(files: &[String]) -> String {
    files.iter().map(|file| format!("{FOLDER}/{file}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{super::RUNS, *};

    #[test]
    fn a_rule_has_all_its_files_in_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let folder = dir.path().join(FOLDER);
        fs::create_dir_all(&folder).expect("make the folder");
        for name in ["s10_z.rs", "s01_a.rs", "s10_b.rs", "s10_m.rs", "host.rs"] {
            fs::write(folder.join(name), "").expect("write a file");
        }
        let rules = rules(dir.path()).expect("the rules");
        let files = |rule: &str| rules.iter().find(|(name, ..)| name == rule).map(|(.., files)| files.clone());
        assert_eq!(files("S1"), Some(vec!["s01_a.rs".to_owned()]));
        assert_eq!(files("S10"), Some(["s10_b.rs", "s10_m.rs", "s10_z.rs"].map(str::to_owned).to_vec()));
        assert_eq!(files("S2"), Some(Vec::new()));
    }

    #[test]
    fn every_rule_has_a_test() {
        for (rule, what, files) in rules(exec_server_workspace::cargo::root()).expect("the rules") {
            assert!(!files.is_empty(), "{rule} ({what}) has no test in {FOLDER}");
        }
    }

    #[test]
    fn promises_are_proven_by_runs_that_exist() {
        for name in PROMISES.iter().flat_map(|(.., runs)| *runs) {
            assert!(RUNS.iter().any(|run| run.name == *name), "there is no run {name}");
        }
    }
}
