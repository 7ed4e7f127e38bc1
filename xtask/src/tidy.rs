//! House rules that no compiler checks: module docs, file sizes, forbidden words, the dependencies between crates.
//!
//! Reads the tree and changes nothing. Runs as `cargo xtask tidy` and inside `cargo test`.

mod architecture;
mod document_paths;
mod idioms;
mod names;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use exec_server_workspace::cargo;

/// A longer file should be split.
const MAX_LINES: usize = 800;

/// Prints each broken rule and fails if there is one.
pub(super) fn run() -> Result<()> {
    let broken = broken_rules(cargo::root())?;
    for line in &broken {
        println!("{line}");
    }
    ensure!(broken.is_empty(), "{} broken house rules", broken.len());
    println!("tidy: ok");
    Ok(())
}

fn broken_rules(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let mut types = names::TypeNames::default();
    let mut facts = architecture::CodeFacts::default();
    let mut files = Vec::new();
    collect(root, &mut files)?;
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        // Skip files that are not text.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        machine_paths(&name, &text, &mut broken);
        idioms::check(&name, &text, &mut broken);
        if name.ends_with(".md") {
            document_paths::check(root, &name, &text, &mut broken);
        }
        if name.ends_with(".rs") {
            source(&name, &text, &mut broken);
            types.read(&name, &text);
            facts.read_source(&name, &text);
        }
        if name.ends_with("Cargo.toml") {
            facts.read_manifest(&name, &text);
        }
    }
    types.check(&mut broken);
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).context("read `ARCHITECTURE.md`")?;
    facts.check(&map, &mut broken);
    Ok(broken)
}

/// Every file of the repository, except the output of cargo, git and the interop run.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list `{}`", dir.display()))? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        // In a second worktree `.git` is a file, with a path of this machine.
        if name == ".git" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            if name != "target" && name != "node_modules" && name != "__pycache__" {
                collect(&path, files)?;
            }
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn source(name: &str, text: &str, broken: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MAX_LINES {
        broken.push(format!("{name}: {lines} lines, more than {MAX_LINES}"));
    }
    if !text.lines().take(3).any(|line| line.starts_with("//!")) {
        broken.push(format!("{name}: no module doc in the first lines"));
    }
    let product_test = name.starts_with("crates/") && name.contains("/tests/");
    // Written in two halves so that this file does not break its own rules.
    let mut forbidden = vec![concat!("#[", "path"), concat!("#[", "ignore"), concat!("tod", "o!(")];
    if product_test {
        forbidden.push("sleep(");
    }
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        if code.starts_with("//") {
            continue;
        }
        for word in &forbidden {
            if code.contains(word) {
                broken.push(format!("{name}:{}: `{word}` is not used here", number + 1));
            }
        }
    }
}

/// No file may contain a path of the machine on which it was written.
fn machine_paths(name: &str, text: &str, broken: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        for path in [concat!("/wo", "rk/"), concat!("/ro", "ot/")] {
            // Below a directory that a test created, it is an ordinary name.
            if line.match_indices(path).any(|(at, _)| !line[..at].ends_with('}')) {
                broken.push(format!("{name}:{}: a path of one machine: `{path}`", number + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_keeps_the_house_rules() {
        let broken = broken_rules(cargo::root()).unwrap();
        assert!(broken.is_empty(), "broken house rules:\n{}", broken.join("\n"));
    }

    #[test]
    fn each_rule_can_fail() {
        let mut broken = Vec::new();
        source("crates/x/tests/a.rs", "fn f() { sleep(1) }\n", &mut broken);
        source("crates/x/src/b.rs", &format!("//! Doc.\n{}", "\n".repeat(MAX_LINES)), &mut broken);
        source("crates/x/src/c.rs", &format!("//! Doc.\n{}]\n", concat!("#[", "ignore")), &mut broken);
        machine_paths("README.md", concat!("cd /ro", "ot/x"), &mut broken);
        assert_eq!(
            broken,
            [
                "crates/x/tests/a.rs: no module doc in the first lines",
                "crates/x/tests/a.rs:1: `sleep(` is not used here",
                "crates/x/src/b.rs: 801 lines, more than 800",
                concat!("crates/x/src/c.rs:2: `#[", "ignore` is not used here"),
                concat!("README.md:1: a path of one machine: `/ro", "ot/`"),
            ]
        );
    }
}
