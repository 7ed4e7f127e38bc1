//! What a policy means on this host: paths without links, the longest of which decides. It must not know how it is enforced.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::paths;

/// What may be done with a file. The order is that of precedence among entries for one path: the last wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Reading and executing.
    Read,
    /// Reading, executing and writing.
    Write,
    /// Nothing.
    Deny,
}

impl Access {
    /// Whether one who has this may do that.
    pub fn includes(self, wanted: Self) -> bool {
        match (self, wanted) {
            (_, Self::Deny) | (Self::Write, _) | (Self::Read, Self::Read) => true,
            (Self::Deny, _) | (Self::Read, Self::Write) => false,
        }
    }
}

/// One grant or denial, with everything below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// What is allowed.
    pub access: Access,
    /// Whether it is about a directory.
    pub is_dir: bool,
}

/// A policy as it stands on this host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    pub(crate) rules: BTreeMap<PathBuf, Rule>,
    /// Links that lead to what is granted, and their texts.
    pub(crate) links: BTreeMap<PathBuf, PathBuf>,
    /// What must not come into being: it would be denied or read-only if it were there.
    pub(crate) absent: Vec<PathBuf>,
    /// What is there and may be a mere placeholder of such.
    pub(crate) guarded: Vec<PathBuf>,
    /// What is denied to everybody, whatever the policy says.
    pub(crate) hidden: Vec<PathBuf>,
    /// What decided how the policy was read: places, and what was there.
    stamps: BTreeMap<PathBuf, Option<(u64, u64)>>,
}

/// What a policy does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox does not allow to {} `{}`", verb(*wanted), path.display())]
pub struct Denied {
    /// Where the request leads.
    pub path: PathBuf,
    /// What it wanted there.
    pub wanted: Access,
}

fn verb(wanted: Access) -> &'static str {
    match wanted {
        Access::Read => "read",
        Access::Write => "write",
        Access::Deny => "touch",
    }
}

impl Rules {
    /// The rule that decides about a path without links: the longest that covers it.
    pub fn covering(&self, path: &Path) -> Option<(&Path, Rule)> {
        path.ancestors().find_map(|above| self.rules.get_key_value(above)).map(|(path, rule)| (path.as_path(), *rule))
    }

    /// What is allowed at a path without links.
    pub fn access(&self, path: &Path) -> Access {
        self.covering(path).map_or(Access::Deny, |(_, rule)| rule.access)
    }

    /// Whether a path, wherever its links lead now, may be used like this. For texts and early answers: what enforces is a view.
    pub fn decide(&self, path: &Path, wanted: Access) -> Result<(), Denied> {
        let real = paths::reach(path);
        let is_kept_absent = wanted == Access::Write && self.absent.iter().any(|path| real.starts_with(path));
        if self.access(&real).includes(wanted) && !is_kept_absent { Ok(()) } else { Err(Denied { path: real, wanted }) }
    }

    /// Whether all of it may be written, and nothing is excepted but what is hidden from everybody.
    pub fn allows_everything_but(&self, hidden: &[PathBuf]) -> bool {
        let is_hidden = |path: &Path| {
            self.hidden.iter().any(|hidden| hidden == path) || hidden.iter().any(|hidden| paths::reach(hidden) == path)
        };
        self.rules.get(Path::new("/")).is_some_and(|rule| rule.access == Access::Write)
            && self.rules.iter().all(|(path, rule)| rule.access == Access::Write || is_hidden(path))
    }

    /// Paths that must not come into being: they would be denied or read-only if they were there.
    pub fn absent(&self) -> &[PathBuf] {
        &self.absent
    }

    /// Paths that nobody may write in what may be written, and that may be mere placeholders.
    pub fn guarded(&self) -> &[PathBuf] {
        &self.guarded
    }

    /// Whether the places that the policy speaks of are what they were when it was read.
    pub fn is_fresh(&self) -> bool {
        self.stamps.iter().all(|(path, then)| paths::identity(path) == *then)
    }

    /// What is allowed around a path that has a rule of its own.
    pub(crate) fn around(&self, path: &Path) -> Access {
        path.parent().map_or(Access::Deny, |above| self.access(above))
    }

    /// Notes what is at a place now.
    pub(crate) fn stamp(&mut self, path: &Path) {
        self.stamps.entry(path.to_owned()).or_insert_with(|| paths::identity(path));
    }

    /// Notes what may be a placeholder.
    pub(crate) fn guard(&mut self) {
        let is_kept = |(path, rule): &(&PathBuf, &Rule)| {
            rule.access != Access::Write
                && rule.is_dir
                && self.around(path) == Access::Write
                && (path.ends_with(".git") || paths::is_placeholder(path))
        };
        self.guarded = self.rules.iter().filter(is_kept).map(|(path, _)| path.clone()).collect();
    }

    /// Adds a rule; of several for one path that with the highest precedence stays.
    pub(crate) fn add(&mut self, path: PathBuf, rule: Rule) {
        let kept = self.rules.entry(path).or_insert(rule);
        kept.access = kept.access.max(rule.access);
    }

    /// Takes every rule at and below a path away and denies it.
    pub(crate) fn cut(&mut self, path: &Path, is_dir: bool) {
        self.rules.retain(|at, _| !at.starts_with(path));
        self.rules.insert(path.to_owned(), Rule { access: Access::Deny, is_dir });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(list: &[(&str, Access)]) -> Rules {
        let mut rules = Rules::default();
        for (path, access) in list {
            rules.add(PathBuf::from(path), Rule { access: *access, is_dir: true });
        }
        rules
    }

    #[test]
    fn the_longest_rule_decides_and_denial_wins_a_tie() {
        let rules = rules(&[
            ("/", Access::Read),
            ("/w", Access::Write),
            ("/w/.git", Access::Read),
            ("/w/secret", Access::Deny),
            ("/w/secret/open", Access::Read),
            ("/tie", Access::Write),
            ("/tie", Access::Deny),
            ("/tie", Access::Read),
        ]);
        for (path, access) in [
            ("/etc/passwd", Access::Read),
            ("/w/a", Access::Write),
            ("/w/.gitignore", Access::Write),
            ("/w/.git/config", Access::Read),
            ("/w/secret/x", Access::Deny),
            ("/w/secret/open/y", Access::Read),
            ("/tie/x", Access::Deny),
        ] {
            assert_eq!(rules.access(Path::new(path)), access, "{path}");
        }
        assert_eq!(Rules::default().access(Path::new("/")), Access::Deny);
    }

    #[test]
    fn a_writable_root_without_exceptions_allows_everything() {
        assert!(rules(&[("/", Access::Write)]).allows_everything_but(&[]));
        assert!(!rules(&[("/", Access::Write), ("/x", Access::Deny)]).allows_everything_but(&[]));
        assert!(rules(&[("/", Access::Write), ("/x", Access::Deny)]).allows_everything_but(&["/x".into()]));
    }
}
