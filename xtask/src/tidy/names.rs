//! Every type name is unique within its crate, so that a reader who meets it knows which type it is.

use std::collections::BTreeMap;

/// Names that a crate may declare more than once, each with the reason. Entries may only be removed.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("crates/protocol", "AckParams", "one per method family, as on the wire: `http::AckParams`"),
    ("crates/protocol", "ExitedParams", "one per generation: `command` is V0"),
    ("crates/protocol", "Scope", "of a token, and of `process/list`, as on the wire"),
    ("crates/protocol", "Stream", "one per generation: `command` is V0"),
    ("crates/protocol", "TerminateParams", "one per generation: `command` is V0"),
    ("crates/protocol", "TerminateResult", "one per generation: `command` is V0"),
    ("crates/protocol", "WriteParams", "one per generation: `command` is V0"),
    ("crates/protocol", "WriteResult", "one per generation: `command` is V0"),
];

/// The types of one crate: where each name is declared.
#[derive(Default)]
pub(super) struct TypeNames(BTreeMap<String, BTreeMap<String, Vec<String>>>);

impl TypeNames {
    /// Takes the declarations of a source file.
    pub(super) fn read(&mut self, file: &str, text: &str) {
        let Some((folder, _)) = file.split_once("/src/") else { return };
        let types = self.0.entry(folder.to_owned()).or_default();
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = declared(line) {
                types.entry(name.to_owned()).or_default().push(format!("{file}:{}", number + 1));
            }
        }
    }

    /// Adds a line for each name that is declared twice, and for each exception that is not needed.
    pub(super) fn check(&self, broken: &mut Vec<String>) {
        for (folder, types) in &self.0 {
            for (name, places) in types.iter().filter(|(_, places)| places.len() > 1) {
                let is_allowed =
                    ALLOWED.iter().any(|(crate_folder, allowed, _)| crate_folder == folder && allowed == name);
                if !is_allowed {
                    broken.push(format!("{folder}: `{name}` names {} types: {}", places.len(), places.join(", ")));
                }
            }
        }
        for (folder, name, _) in ALLOWED {
            let count = self.0.get(*folder).and_then(|types| types.get(*name)).map_or(0, Vec::len);
            if count < 2 {
                broken.push(format!("{folder}: `{name}` needs no exception among the type names"));
            }
        }
    }
}

/// The name of the type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1,
            None => after,
        };
        rest = rest.strip_prefix(' ')?;
    }
    let rest = ["struct ", "enum ", "trait ", "union "].iter().find_map(|keyword| rest.strip_prefix(keyword))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| name.starts_with(char::is_uppercase))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_declared_twice_in_a_crate_is_named() {
        let mut names = TypeNames::default();
        names.read("crates/x/src/a.rs", "pub(crate) struct State {\n}\nenum Other<T> {}\n");
        names.read("crates/x/src/b/c.rs", "//! Doc.\nstruct State;\n");
        names.read("crates/y/src/a.rs", "pub struct State;\n// struct State;\n");
        names.read("crates/y/tests/a.rs", "struct State;\n");
        let mut broken = Vec::new();
        names.check(&mut broken);
        broken.retain(|line| !line.contains("needs no exception"));
        assert_eq!(broken, ["crates/x: `State` names 2 types: crates/x/src/a.rs:1, crates/x/src/b/c.rs:2"]);
    }
}
