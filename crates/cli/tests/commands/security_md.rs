//! Checks `SECURITY.md` against the tests: every rule that it names has a test file, and every such file is named by it.

use crate::prelude::*;

/// The rules that a text names, such as `S4` or `R5`, converted to file name prefixes: `s04_`.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let rule = |word: &str| {
        let (kind, number) = word.split_at_checked(1)?;
        let number: u8 = number.parse().ok()?;
        matches!(kind, "S" | "R").then(|| format!("{}{number:02}_", kind.to_lowercase()))
    };
    words.filter_map(rule).collect()
}

/// The rules that have a file.
fn proven() -> BTreeSet<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/promises");
    let names = fs::read_dir(dir).expect("list the tests").map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("a name in ASCII"));
    names.filter(|name| name.as_bytes().get(3) == Some(&b'_')).map(|name| name[..4].to_owned()).collect()
}

#[test]
fn the_rules_it_names_are_those_that_are_tested() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SECURITY.md");
    let named = named(&fs::read_to_string(page).expect("read the page"));
    let proven = proven();
    assert!(proven.len() > 20, "{proven:?}");
    assert_eq!(named, proven, "left: named by SECURITY.md; right: files in crates/cli/tests/promises");
}

#[test]
fn a_rule_is_found_in_a_text() {
    let found: Vec<String> = named("`promises`, S2, S12 and R5. Not SHA, S, S1x, RS4 or s3_x.").into_iter().collect();
    assert_eq!(found, ["r05_", "s02_", "s12_"]);
}
