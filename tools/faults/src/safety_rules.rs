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

/// The test files of a rule (`s`) or promise (`r`), sorted by name.
fn files(root: &Path, kind: char, number: u32) -> Result<Vec<String>> {
    let entries = fs::read_dir(root.join(FOLDER)).with_context(|| format!("list `{FOLDER}`"))?;
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(&format!("{kind}{number:02}_")));
    names.sort();
    Ok(names)
}

/// Prints both tables.
pub(super) fn list(root: &Path) -> Result<()> {
    let paths = |kind, number| -> Result<Vec<String>> {
        Ok(files(root, kind, number)?.iter().map(|file| format!("{FOLDER}/{file}")).collect())
    };
    println!();
    for (number, what) in RULES {
        let paths = paths('s', *number)?;
        let paths = if paths.is_empty() { "no file".to_owned() } else { paths.join(", ") };
        println!("{:<4} {what}: {paths}", format!("S{number}"));
    }
    println!();
    for (number, what, runs) in PROMISES {
        let proofs: Vec<String> = runs.iter().map(|run| (*run).to_owned()).chain(paths('r', *number)?).collect();
        println!("{:<4} {what}: {}", format!("R{number}"), proofs.join(", "));
    }
    Ok(())
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
        let files = |number| files(dir.path(), 's', number).expect("the files");
        assert_eq!(files(1), ["s01_a.rs"]);
        assert_eq!(files(10), ["s10_b.rs", "s10_m.rs", "s10_z.rs"]);
        assert_eq!(files(2), Vec::<String>::new());
    }

    #[test]
    fn every_rule_has_a_test() {
        for (number, what) in RULES {
            let files = files(exec_server_workspace::cargo::root(), 's', *number).expect("the files");
            assert!(!files.is_empty(), "S{number} ({what}) has no test in {FOLDER}");
        }
    }

    #[test]
    fn promises_are_proven_by_runs_that_exist() {
        for name in PROMISES.iter().flat_map(|(.., runs)| *runs) {
            assert!(RUNS.iter().any(|run| run.name == *name), "there is no run {name}");
        }
    }
}
