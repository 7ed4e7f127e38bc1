//! `THIRD-PARTY.md`: the crates that are linked into the program, and the notices that their licences require.
//!
//! Asks cargo for the dependencies. The texts come from the compiled sources; each text is printed once, with all crates that have it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{cargo, stdout_of};

/// The used part of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for crates of this repository.
    source: Option<String>,
    manifest_path: String,
}

/// The whole document.
pub(super) fn notices(target: &str) -> Result<String> {
    let mut command = cargo::cargo(&["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
    let metadata: Metadata = serde_json::from_slice(&stdout_of(&mut command)?).context("read `cargo metadata`")?;
    let linked = linked(target)?;
    let mut packages: Vec<_> = metadata.packages.iter().filter(|package| package.source.is_some()).collect();
    packages.retain(|package| linked.contains(&format!("{} v{}", package.name, package.version)));
    packages.sort_by_key(|package| (&package.name, &package.version));
    ensure!(!packages.is_empty(), "`cargo tree` and `cargo metadata` have no crate in common");

    let mut text = String::from("# What is linked into exec-server\n\nThe Rust standard library (MIT OR Apache-2.0)");
    text.push_str(c_library(target));
    text.push_str(", and these crates:\n\n");
    let mut licences: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
        let title = format!("{} {}", package.name, package.version);
        writeln!(text, "- {title}: {}", package.license.as_deref().unwrap_or("see below"))?;
        let folder = Path::new(&package.manifest_path).parent().context("a manifest lies in a folder")?;
        for licence in texts(folder).with_context(|| format!("read the licences of `{title}`"))? {
            licences.entry(licence).or_default().push(title.clone());
        }
    }
    // Sorted by crates, not by texts.
    let mut licences: Vec<_> = licences.into_iter().collect();
    licences.sort_by(|(_, left), (_, right)| left.cmp(right));
    for (licence, titles) in licences {
        write!(text, "\n## {}\n\n~~~\n{licence}\n~~~\n", titles.join(", "))?;
    }
    Ok(text)
}

/// The licence of glibc requires that users can link the program with another version of it.
fn c_library(target: &str) -> &'static str {
    if target.ends_with("-musl") {
        ", musl libc (MIT)"
    } else {
        ", the GNU C library (LGPL-2.1-or-later; `cargo xtask dist` in the source of this version links with yours)"
    }
}

/// The crates of the program as `name vVERSION`. Uses `cargo tree`, which counts only the features that this program uses; `metadata` would
/// add what the tests of the workspace need.
fn linked(target: &str) -> Result<BTreeSet<String>> {
    let mut command = cargo::cargo(&["tree", "--locked", "-p", "exec-server", "--target", target]);
    let lines = stdout_of(command.args(["--edges", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe"]))?;
    let name_and_version = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    Ok(String::from_utf8(lines)?.lines().map(name_and_version).collect())
}

/// The licence files beside a manifest.
fn texts(folder: &Path) -> Result<BTreeSet<String>> {
    let mut texts = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_ascii_uppercase();
        let is_licence =
            ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"].iter().any(|word| name.contains(word));
        if is_licence && entry.file_type()?.is_file() {
            let text = String::from_utf8_lossy(&fs::read(entry.path())?).replace("\r\n", "\n");
            texts.insert(text.trim_end().to_owned());
        }
    }
    Ok(texts)
}
