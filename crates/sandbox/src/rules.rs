//! The result of evaluating a policy: paths without symbolic links, of which the longest match decides.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::paths;

/// The allowed access. The order is the precedence among entries for the same path: the greatest wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Read and execute.
    Read,
    /// Read, execute and write.
    Write,
    Deny,
}

impl Access {
    /// Whether this access allows the wanted one. `Deny` wants nothing, so it is always allowed.
    pub fn includes(self, wanted: Self) -> bool {
        matches!((self, wanted), (_, Self::Deny) | (Self::Write, _) | (Self::Read, Self::Read))
    }
}

/// A grant or a denial of a path and everything below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessRule {
    pub access: Access,
    pub is_dir: bool,
}

/// A policy as evaluated on this host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessRules {
    pub(crate) rules: BTreeMap<PathBuf, AccessRule>,
    /// Symbolic links that lead to granted paths, with their targets.
    pub(crate) links: BTreeMap<PathBuf, PathBuf>,
    /// Paths that do not exist and that a process must not create, because they would be denied or read-only.
    pub(crate) absent: Vec<PathBuf>,
    /// Protected directories inside a writable directory that may be placeholders for such paths.
    pub(crate) guarded: Vec<PathBuf>,
    /// Paths that are always denied, regardless of the policy.
    pub(crate) hidden: Vec<PathBuf>,
    /// The objects (device and inode) that the evaluation depended on, by path. `None` where nothing existed.
    stamps: BTreeMap<PathBuf, Option<(u64, u64)>>,
}

/// An access that the policy does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox does not allow {} `{}`", gerund(*wanted), path.display())]
pub struct AccessDenied {
    /// The path after all links.
    pub path: PathBuf,
    pub wanted: Access,
}

fn gerund(wanted: Access) -> &'static str {
    match wanted {
        Access::Read => "reading",
        Access::Write => "writing",
        // Never in an error: every access includes it.
        Access::Deny => "using",
    }
}

impl AccessRules {
    /// The rule for a path without links: the longest that covers it.
    pub fn covering(&self, path: &Path) -> Option<(&Path, AccessRule)> {
        path.ancestors().find_map(|above| self.rules.get_key_value(above)).map(|(path, rule)| (path.as_path(), *rule))
    }

    /// The access to a path without links.
    pub fn access(&self, path: &Path) -> Access {
        self.covering(path).map_or(Access::Deny, |(_, rule)| rule.access)
    }

    /// Checks the access to a path, following its links. Only for error texts and early refusals: the view is what
    /// enforces the rules.
    pub fn decide(&self, path: &Path, wanted: Access) -> Result<(), AccessDenied> {
        let real = paths::resolve_existing(path);
        let is_kept_absent = wanted == Access::Write && self.absent.iter().any(|path| real.starts_with(path));
        if self.access(&real).includes(wanted) && !is_kept_absent {
            Ok(())
        } else {
            Err(AccessDenied { path: real, wanted })
        }
    }

    /// Whether everything is writable except these paths and those that are always hidden.
    pub fn allows_everything_but(&self, hidden: &[PathBuf]) -> bool {
        let is_hidden = |path: &Path| {
            self.hidden.iter().any(|hidden| hidden == path)
                || hidden.iter().any(|hidden| paths::resolve_existing(hidden) == path)
        };
        self.rules.get(Path::new("/")).is_some_and(|rule| rule.access == Access::Write)
            && self.rules.iter().all(|(path, rule)| rule.access == Access::Write || is_hidden(path))
    }

    /// Paths that do not exist and must not be created, because they would be denied or read-only.
    pub fn absent(&self) -> &[PathBuf] {
        &self.absent
    }

    /// Protected directories inside a writable directory that may be placeholders for absent paths.
    pub fn guarded(&self) -> &[PathBuf] {
        &self.guarded
    }

    /// Whether the paths that the policy names are still the same objects as when it was evaluated.
    pub fn is_fresh(&self) -> bool {
        self.stamps.iter().all(|(path, then)| paths::identity(path) == *then)
    }

    /// The access to the parent directory of a path.
    pub(crate) fn around(&self, path: &Path) -> Access {
        path.parent().map_or(Access::Deny, |above| self.access(above))
    }

    /// Records which object is at a path now.
    pub(crate) fn stamp(&mut self, path: &Path) {
        self.stamps.entry(path.to_owned()).or_insert_with(|| paths::identity(path));
    }

    /// Collects the paths that may be placeholders; see `Self::guarded`.
    pub(crate) fn collect_guarded(&mut self) {
        let is_guarded = |(path, rule): &(&PathBuf, &AccessRule)| {
            rule.access != Access::Write
                && rule.is_dir
                && self.around(path) == Access::Write
                && (path.ends_with(".git") || paths::is_placeholder(path))
        };
        self.guarded = self.rules.iter().filter(is_guarded).map(|(path, _)| path.clone()).collect();
    }

    /// Adds a rule. Of several rules for the same path, the access with the highest precedence wins.
    pub(crate) fn add(&mut self, path: PathBuf, rule: AccessRule) {
        let kept = self.rules.entry(path).or_insert(rule);
        kept.access = kept.access.max(rule.access);
    }

    /// Denies a path, and removes all other rules at and below it.
    pub(crate) fn deny_below(&mut self, path: &Path, is_dir: bool) {
        self.rules.retain(|at, _| !at.starts_with(path));
        self.rules.insert(path.to_owned(), AccessRule { access: Access::Deny, is_dir });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(list: &[(&str, Access)]) -> AccessRules {
        let mut rules = AccessRules::default();
        for (path, access) in list {
            rules.add(PathBuf::from(path), AccessRule { access: *access, is_dir: true });
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
        assert_eq!(AccessRules::default().access(Path::new("/")), Access::Deny);
    }

    #[test]
    fn a_writable_root_without_exceptions_allows_everything() {
        assert!(rules(&[("/", Access::Write)]).allows_everything_but(&[]));
        assert!(!rules(&[("/", Access::Write), ("/x", Access::Deny)]).allows_everything_but(&[]));
        assert!(rules(&[("/", Access::Write), ("/x", Access::Deny)]).allows_everything_but(&["/x".into()]));
    }
}
