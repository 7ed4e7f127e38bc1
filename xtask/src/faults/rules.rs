//! The rules of safety with the file that proves each, and the promises about data with the runs that prove each.
//!
//! Owns what `--list` says beyond the runs. A rule's file lies in the tests of the command line and begins with its number.

use std::{fs, path::Path};

use anyhow::{Context, Result};

/// Where the files are.
const FOLDER: &str = "crates/cli/tests/promises";

/// Rules by number, in a few words.
pub(crate) const RULES: &[(u32, &str)] = &[
    (1, "nothing beyond loopback without authentication and TLS"),
    (2, "authentication on the upgrade request, before any state"),
    (3, "tokens by header or URL, in no log"),
    (4, "tokens are hashed, named, scoped, expiring, revocable"),
    (5, "tokens come by file, never by argument, and reach no child"),
    (6, "any origin is refused"),
    (7, "the host must be ours"),
    (8, "a socket on disk is its owner's alone"),
    (9, "client certificates, reloaded without restart"),
    (10, "scopes come from the server's record"),
    (11, "a session's id alone resumes nothing; guesses are slowed"),
    (12, "limits before and after the door"),
    (13, "no compression"),
    (14, "children get three descriptors and clean signals"),
    (15, "children get the environment that was asked for and none of our names"),
    (17, "a child's terminal is its own"),
    (19, "our memory and state are closed to children that are confined"),
    (20, "limits of processes and memory; all descendants end"),
    (21, "memory is bounded; a slow client blocks only its own"),
    (22, "a client believes no server"),
    (24, "an audit that shows what was removed"),
];

/// Promises about data, and the runs that prove them.
pub(crate) const PROMISES: &[(&str, &str, &[&str])] = &[
    ("R1", "every byte once, in order, or told as lost", &["F1", "F2", "F5", "F6", "F8", "C1", "C2", "D4"]),
    ("R2", "an accepted write enters once", &["F3", "F16", "F17", "C1"]),
    ("R3", "an exit status once, also after a restart", &["F1", "F2", "F5"]),
    ("R4", "processes survive the server, not their holder", &["F2", "F4", "F5", "C2"]),
    ("R5", "what was spilled is readable, up to a torn last record", &["D4", "F8"]),
    ("R6", "memory, disk and descriptors stay in their bounds", &["D1", "D2", "D3", "D4", "F7", "F8", "F11", "F25"]),
    ("R7", "trouble of one session costs others little", &["F7", "F18", "F24"]),
];

/// The file of each rule; `None` where there is none.
pub(crate) fn files(root: &Path) -> Result<Vec<(u32, &'static str, Option<String>)>> {
    let folder = root.join(FOLDER);
    let names: Vec<String> = fs::read_dir(&folder)
        .with_context(|| format!("list `{}`", folder.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let file = |number: u32| names.iter().find(|name| name.starts_with(&format!("s{number:02}_"))).cloned();
    Ok(RULES.iter().map(|(number, what)| (*number, *what, file(*number))).collect())
}

/// Prints both tables.
pub(super) fn list(root: &Path) -> Result<()> {
    println!();
    for (number, what, file) in files(root)? {
        let file = file.map_or("no file".to_owned(), |file| format!("{FOLDER}/{file}"));
        println!("{:<4} {what}: {file}", format!("S{number}"));
    }
    println!();
    for (name, what, runs) in PROMISES {
        println!("{name:<4} {what}: {}", runs.join(", "));
    }
    Ok(())
}
