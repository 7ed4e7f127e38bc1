//! ARCHITECTURE.md is true: its table of crates has the dependencies of every manifest, and its list of unsafe code is complete.

use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = "ARCHITECTURE.md";

/// The beginning of the sentence that lists the crates and files with unsafe code.
const UNSAFE_SENTENCE: &str = "`unsafe` code is allowed only in ";

/// What the manifests and sources say.
#[derive(Default)]
pub(super) struct CodeFacts {
    /// Each crate with those of our crates that it depends on, without dev-dependencies.
    dependencies: BTreeMap<String, BTreeSet<String>>,
    /// Crates whose root allows unsafe code, and single files that do.
    unsafe_places: BTreeSet<String>,
}

impl CodeFacts {
    pub(super) fn read_manifest(&mut self, name: &str, text: &str) {
        let parts: Vec<&str> = name.split('/').collect();
        if let ["crates" | "tools", folder, "Cargo.toml"] | [folder, "Cargo.toml"] = parts.as_slice()
            && *folder != "fuzz"
        {
            self.dependencies.insert((*folder).to_owned(), dependencies(text));
        }
    }

    pub(super) fn read_source(&mut self, name: &str, text: &str) {
        // Written in two halves so that this file is not counted. Tests may use unsafe code.
        if name.contains("/tests/") || !text.contains(concat!("expect(unsafe", "_code")) {
            return;
        }
        let place = name.strip_suffix("/src/lib.rs").map(last_component);
        self.unsafe_places.insert(place.unwrap_or(name).to_owned());
    }

    /// Adds a line for each difference between the page and the code.
    pub(super) fn check(&self, page: &str, broken: &mut Vec<String>) {
        let documented = self.documented_dependencies(page);
        for (name, found) in &self.dependencies {
            match documented.get(name) {
                None => broken.push(format!("{PAGE}: the table of crates has no row for `{name}`")),
                Some(documented) if documented != found => {
                    broken.push(format!("{PAGE}: `{name}` depends on {found:?}, and the table says {documented:?}"));
                }
                Some(_) => {}
            }
        }
        for name in documented.keys().filter(|name| !self.dependencies.contains_key(*name)) {
            broken.push(format!("{PAGE}: there is no crate `{name}`"));
        }
        let sentence = page.split_once(UNSAFE_SENTENCE).map_or("", |(_, rest)| rest);
        let sentence = sentence.split(".\n").next().unwrap_or_default();
        let documented: BTreeSet<String> = in_backticks(sentence).map(str::to_owned).collect();
        if documented != self.unsafe_places {
            let found = &self.unsafe_places;
            broken.push(format!("{PAGE}: unsafe code is in {found:?}, and the page says {documented:?}"));
        }
    }

    /// The rows of the table of crates: `name`, contents, dependencies.
    fn documented_dependencies(&self, page: &str) -> BTreeMap<String, BTreeSet<String>> {
        let table = page.split_once("\n## Crates\n").map_or("", |(_, rest)| rest);
        let table = table.split("\n## ").next().unwrap_or_default();
        let rows = table.lines().filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let &["", name, _, dependencies, ""] = cells.as_slice() else { return None };
            Some((last_component(in_backticks(name).next()?).to_owned(), dependencies))
        });
        // A cell may also name a feature.
        let is_crate = |word: &&str| self.dependencies.contains_key(*word);
        rows.map(|(name, cell)| (name, in_backticks(cell).filter(is_crate).map(str::to_owned).collect())).collect()
    }
}

/// The name of a crate without the folder that contains it.
fn last_component(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Our own crates in the dependency tables of a manifest, without dev-dependencies.
fn dependencies(text: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with('[') {
            inside = line.contains("dependencies]") && !line.contains("dev-dependencies");
        } else if inside && let Some(rest) = line.strip_prefix("exec-server-") {
            let end = rest.find(['.', ' ', '=']).unwrap_or(rest.len());
            found.insert(rest[..end].to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str =
        "[dependencies]\nexec-server-log.workspace = true\n[dev-dependencies]\nexec-server-sim.workspace = true\n";

    fn facts() -> CodeFacts {
        let mut facts = CodeFacts::default();
        facts.read_manifest("crates/log/Cargo.toml", "[dependencies]\n");
        facts.read_manifest("crates/server/Cargo.toml", MANIFEST);
        let text = concat!("#![expect(unsafe", "_code)]\n");
        for name in ["crates/log/src/lib.rs", "crates/server/src/sys.rs", "crates/server/tests/a.rs"] {
            facts.read_source(name, text);
        }
        facts
    }

    #[test]
    fn a_page_that_agrees_with_the_code_is_accepted() {
        let page = "\n## Crates\n\n| crate | contents | depends on |\n|---|---|---|\n| `log` | x | – |\n\
                    | `server` | `a` and b | `log`, with `local` |\n\n`unsafe` code is allowed only in `log` and\n\
                    `crates/server/src/sys.rs`.\n\n## Next\n";
        let mut broken = Vec::new();
        facts().check(page, &mut broken);
        assert_eq!(broken, Vec::<String>::new());
    }

    #[test]
    fn each_difference_is_named() {
        let page = "\n## Crates\n| `server` | x | – |\n| `gone` | x | – |\n`unsafe` code is allowed only in `log`.\n";
        let mut broken = Vec::new();
        facts().check(page, &mut broken);
        assert_eq!(
            broken,
            [
                "ARCHITECTURE.md: the table of crates has no row for `log`",
                "ARCHITECTURE.md: `server` depends on {\"log\"}, and the table says {}",
                "ARCHITECTURE.md: there is no crate `gone`",
                "ARCHITECTURE.md: unsafe code is in {\"crates/server/src/sys.rs\", \"log\"}, and the page says {\"log\"}",
            ]
        );
    }
}
