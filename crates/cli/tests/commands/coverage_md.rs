//! Checks COVERAGE.md against the sources: every test that it names exists.

use crate::prelude::*;

/// Names of reference tests that COVERAGE.md mentions with the reason why we have no test of that name.
const UPSTREAM: [&str; 4] = [
    "file_reads_reject_named_pipes",
    "file_system_read_file_returns_bytes",
    "file_system_read_file_text_returns_string",
    "path_uri_join_and_parent_preserve_lexical_paths",
];

#[test]
fn every_test_that_coverage_md_names_exists() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut known = BTreeSet::new();
    collect(root, &mut known);
    assert!(known.len() > 1000, "the sources were read: {}", known.len());
    let text = fs::read_to_string(root.join("cli/tests/COVERAGE.md")).expect("read COVERAGE.md");
    let mut missing = Vec::new();
    for line in text.lines() {
        let mut cells = line.trim_matches('|').split(" | ");
        let (Some(upstream), Some(here)) = (cells.next(), cells.next()) else { continue };
        missing.extend(names(here).filter(|name| !UPSTREAM.contains(name) && !is_known(&known, name)));
        if here.contains("same name") {
            missing.extend(names(upstream).filter(|name| !is_known(&known, name)));
        }
    }
    assert_eq!(missing, Vec::<&str>::new(), "COVERAGE.md names tests that are nowhere");
}

/// Whether a test with this name exists, either directly or in the suites of the client library, which drop the prefix.
fn is_known(known: &BTreeSet<String>, name: &str) -> bool {
    let cut = name.strip_prefix("file_system_").or(name.strip_prefix("remote_"));
    // COVERAGE.md gives some names only by their prefix.
    let begins = |name: &str| known.range(name.to_owned()..).next().is_some_and(|found| found.starts_with(name));
    begins(name) || cut.is_some_and(begins)
}

/// Words with at least two underscores, outside of backticks; backticks contain file names.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    let plain = cell.split('`').step_by(2);
    let words =
        plain.flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '*' && c != '.'));
    let is_name = |word: &&str| word.matches('_').count() >= 2 && !word.contains(['*', '.']) && !word.starts_with('_');
    words.map(|word| word.trim_end_matches(['_', '.'])).filter(is_name)
}

/// Collects every function of the sources and every word that is alone on its line, as in lists of tests.
fn collect(dir: &Path, known: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("list our own sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, known);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("read our own source");
            for line in text.lines() {
                let line = line.trim().trim_end_matches(',');
                let function =
                    line.split_once("fn ").map(|(_, rest)| rest.split(['(', '<']).next().unwrap_or_default());
                known.extend(function.map(str::to_owned));
                if line.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') && !line.is_empty() {
                    known.insert(line.to_owned());
                }
            }
        }
    }
}
