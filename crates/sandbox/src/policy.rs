//! Policies, and their evaluation on this host: named places become paths, patterns become their matches, symbolic
//! links are followed, and paths that are always protected are added.

use std::{
    fs, io,
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Component, Path, PathBuf},
};

use crate::{
    aliases::MountTable,
    glob,
    paths::{self, MissingPath},
    rules::{Access, AccessRule, AccessRules},
};

/// The directories that system programs need to run.
const MINIMAL: [&str; 11] = [
    "/bin",
    "/sbin",
    "/usr",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/run/current-system/sw",
];

/// The maximum number of rules of one policy. Each may become a mount, and every new mount namespace copies all mounts.
const RULES_MAX: usize = 2000;

/// The maximum number of bytes that are read from a `.git` file. It contains one path.
const GIT_FILE_MAX: u64 = 8192;

/// The subject of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PolicyPath {
    /// A file or directory, by absolute path.
    Path(PathBuf),
    /// Everything that a glob pattern matches. Relative to the working directory unless it starts with a slash.
    Pattern(String),
    Root,
    /// The directories that system programs need to run.
    Minimal,
    /// The project roots, or a path below each of them.
    ProjectRoots(Option<PathBuf>),
    /// The server's directory for temporary files.
    Tmpdir,
    SlashTmp,
    /// A named place that this release does not know, by its name.
    Unknown(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PolicyEntry {
    pub path: PolicyPath,
    pub access: Access,
    /// Ignore the entry if its path does not exist. If false, a process is kept from creating a missing path that the
    /// entry denies or makes read-only. This holds for a path (`Path`, or one below the project roots), not for a
    /// pattern or a named place.
    pub skips_missing: bool,
}

/// The access to files: grants and denials. Everything that no entry covers is denied.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Policy {
    pub entries: Vec<PolicyEntry>,
    /// How deep patterns are searched. `None`: without limit.
    pub scan_depth: Option<usize>,
}

/// The context in which a policy is evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PolicyScope {
    /// Where relative patterns start.
    pub cwd: Option<PathBuf>,
    /// The project roots. `None` if the request does not define them.
    pub roots: Option<Vec<PathBuf>>,
    /// The server's directory for temporary files.
    pub tmpdir: Option<PathBuf>,
    /// Paths that no policy can grant.
    pub hidden: Vec<PathBuf>,
}

/// Why a policy cannot be evaluated or enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// An entry is relative, and the scope lacks the working directory or the project roots.
    #[error("`{what}` needs a working directory, and the sandbox has none")]
    NeedsCwd { what: String },
    #[error("{what}")]
    NotEnforceable {
        /// Says what cannot be enforced, and why.
        what: String,
    },
}

impl Policy {
    /// Whether the policy has patterns, which must be searched again at each evaluation.
    pub fn has_patterns(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry.path, PolicyPath::Pattern(_)))
    }

    /// Evaluates the policy on this host, as it is now.
    pub fn resolve(&self, scope: &PolicyScope) -> Result<AccessRules, PolicyError> {
        let mut resolver = PolicyResolver::default();
        // Paths of entries that grant writing or that skip missing paths, whether the paths exist or not. If one of
        // them is a `.git`, it does not get the default protection.
        let mut named = Vec::new();
        let mut budget = glob::NAMES_MAX;
        for entry in &self.entries {
            for path in self.paths(entry, scope, &mut budget)? {
                let path = paths::normalized(&path);
                resolver.add_path(&path, entry)?;
                if entry.access == Access::Write || entry.skips_missing {
                    named.push(path);
                }
            }
        }
        let mut rules = resolver.finish()?;
        protect_git(&mut rules, &named)?;
        hide(&mut rules, &scope.hidden);
        rules.collect_guarded();
        Ok(rules)
    }

    fn paths(&self, entry: &PolicyEntry, scope: &PolicyScope, budget: &mut usize) -> Result<Vec<PathBuf>, PolicyError> {
        Ok(match &entry.path {
            PolicyPath::Path(path) => vec![path.clone()],
            PolicyPath::Root => vec![PathBuf::from("/")],
            PolicyPath::SlashTmp => vec![PathBuf::from("/tmp")],
            PolicyPath::Minimal => MINIMAL.iter().map(PathBuf::from).collect(),
            PolicyPath::Tmpdir => scope.tmpdir.iter().cloned().collect(),
            PolicyPath::Pattern(pattern) => self.matching(pattern, scope, budget)?,
            PolicyPath::ProjectRoots(below) => {
                let Some(roots) = &scope.roots else {
                    return Err(PolicyError::NeedsCwd { what: "project_roots".to_owned() });
                };
                let below = below.as_deref().unwrap_or(Path::new(""));
                if below.is_absolute() || below.components().any(|part| part == Component::ParentDir) {
                    let what = format!("the subpath `{}` must be relative and without `..`", below.display());
                    return Err(PolicyError::NotEnforceable { what });
                }
                roots.iter().map(|root| root.join(below)).collect()
            }
            PolicyPath::Unknown(name) if entry.access == Access::Deny => {
                let what = format!("this release does not know the path `{name}`, so it cannot deny it");
                return Err(PolicyError::NotEnforceable { what });
            }
            PolicyPath::Unknown(_) => Vec::new(),
        })
    }

    fn matching(&self, pattern: &str, scope: &PolicyScope, budget: &mut usize) -> Result<Vec<PathBuf>, PolicyError> {
        let absolute = if pattern.starts_with('/') {
            pattern.to_owned()
        } else {
            let cwd = scope.cwd.as_ref().ok_or_else(|| PolicyError::NeedsCwd { what: pattern.to_owned() })?;
            let Some(cwd) = cwd.to_str() else {
                let what =
                    format!("a relative pattern needs a working directory in UTF-8, and `{}` is not", cwd.display());
                return Err(PolicyError::NotEnforceable { what });
            };
            // Escape the characters in the directory's own path that have a meaning in patterns.
            let escaped = |c| if "*?[{}\\".contains(c) { vec!['\\', c] } else { vec![c] };
            let cwd: String = cwd.chars().flat_map(escaped).collect();
            format!("{cwd}/{pattern}")
        };
        if absolute.split('/').any(|part| part == "..") {
            let what = format!("the pattern `{pattern}` contains `..`");
            return Err(PolicyError::NotEnforceable { what });
        }
        glob::find(&absolute, self.scan_depth, budget).map_err(|error| PolicyError::NotEnforceable {
            what: match error {
                glob::GlobError::TooMuch => format!(
                    "the pattern `{pattern}` covers too many files; use a smaller directory, or set `glob_scan_max_depth`"
                ),
                glob::GlobError::Closed(dir) => format!(
                    "the pattern `{pattern}` covers `{}`, which cannot be listed now, but the process could change its mode",
                    dir.display()
                ),
                glob::GlobError::Malformed(reason) => format!("invalid pattern `{pattern}`: {reason}"),
            },
        })
    }
}

/// The state of an evaluation. Missing paths and links can be judged only when the rules of all entries are known.
#[derive(Default)]
struct PolicyResolver {
    rules: AccessRules,
    /// Symbolic links on the way to an entry's path. Each has the real path of the entry or, if that is missing, the real
    /// path up to the first missing component.
    links: Vec<(PathBuf, PathBuf)>,
    /// Missing paths, each up to its first missing component.
    missing: Vec<PathBuf>,
}

impl PolicyResolver {
    /// Adds the path of an entry, as it is now.
    fn add_path(&mut self, path: &Path, entry: &PolicyEntry) -> Result<(), PolicyError> {
        self.rules.stamp(path);
        let is_explicit = matches!(entry.path, PolicyPath::Path(_) | PolicyPath::ProjectRoots(Some(_)));
        let links = match paths::trace(path) {
            Ok(traced) => {
                if entry.access != Access::Deny {
                    self.rules.links.extend(traced.links.iter().cloned());
                }
                let links = traced.links.into_iter().map(|(link, _)| (link, traced.real.clone())).collect();
                self.rules.add(traced.real, AccessRule { access: entry.access, is_dir: traced.is_dir });
                links
            }
            // Nothing exists to grant. Only an explicit path is kept from being created, not a pattern or a named
            // place.
            Err(_) if entry.access == Access::Write || entry.skips_missing || !is_explicit => Vec::new(),
            Err(missing) => self.note_missing(path, missing)?,
        };
        self.links.extend(links);
        if self.rules.rules.len() > RULES_MAX {
            let what = format!("the policy covers more than {RULES_MAX} files and directories");
            return Err(PolicyError::NotEnforceable { what });
        }
        Ok(())
    }

    /// Records a missing path. Returns the links on the way to it.
    fn note_missing(&mut self, path: &Path, missing: MissingPath) -> Result<Vec<(PathBuf, PathBuf)>, PolicyError> {
        let MissingPath { first, links, error } = missing;
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {}
            // The sandboxed process has no permission there either, so nothing needs protection. If we own the
            // directory, this does not hold: the process runs as the same user and could change the mode.
            io::ErrorKind::PermissionDenied if !first.parent().is_some_and(paths::is_ours) => return Ok(Vec::new()),
            _ => {
                let what = format!("cannot look up `{}`: {error}", path.display());
                return Err(PolicyError::NotEnforceable { what });
            }
        }
        let links = links.into_iter().map(|(link, _)| (link, first.clone())).collect();
        self.missing.push(first);
        Ok(links)
    }

    /// Judges the missing paths and the links, now that all rules are known.
    fn finish(mut self) -> Result<AccessRules, PolicyError> {
        for first in std::mem::take(&mut self.missing) {
            // If the directory is not writable, the process cannot create the path.
            if self.rules.around(&first) != Access::Write {
                continue;
            }
            // An empty placeholder of an earlier sandbox counts as missing if the entry's path leads below it. It exists,
            // so it stays as it is.
            if fs::symlink_metadata(&first).is_ok() {
                self.rules.add(first, AccessRule { access: Access::Read, is_dir: true });
            } else {
                self.rules.absent.push(first);
            }
        }
        for (link, real) in &self.links {
            // A rule that grants the same as its parent directory changes nothing, so its link cannot do harm.
            let changes_access = self.rules.rules.get(real).is_none_or(|rule| rule.access != self.rules.around(real));
            if changes_access && self.rules.around(link) == Access::Write {
                let what = format!(
                    "`{}` is a symbolic link in a writable directory, so the process could replace it; name its target `{}` instead",
                    link.display(),
                    real.display()
                );
                return Err(PolicyError::NotEnforceable { what });
            }
        }
        Ok(self.rules)
    }
}

/// Denies the paths that no policy can grant, also under all other paths that lead to them through bind mounts.
fn hide(rules: &mut AccessRules, hidden: &[PathBuf]) {
    let mounts = if hidden.is_empty() { MountTable::default() } else { MountTable::read() };
    for path in hidden {
        // The stamp of a missing path makes the rules outdated when the path appears.
        rules.stamp(path);
        let Ok(traced) = paths::trace(path) else { continue };
        let aliases = mounts.present_aliases(&traced.real);
        for path in aliases.into_iter().chain([traced.real]) {
            let is_dir = fs::symlink_metadata(&path).map_or(traced.is_dir, |meta| meta.is_dir());
            rules.deny_below(&path, is_dir);
            rules.hidden.push(path);
        }
    }
}

/// Makes the `.git` directly in each granted writable directory read-only. Git runs programs that a repository's
/// configuration names. The user may run git there later, outside of the sandbox, so the sandboxed process must not
/// change it.
fn protect_git(rules: &mut AccessRules, named: &[PathBuf]) -> Result<(), PolicyError> {
    let writable = rules.rules.iter().filter(|(_, rule)| rule.access == Access::Write && rule.is_dir);
    let roots: Vec<PathBuf> = writable.map(|(path, _)| path.clone()).collect();
    for root in roots {
        let git = root.join(".git");
        let is_named = rules.rules.contains_key(&git) || named.iter().any(|path| paths::resolve_existing(path) == git);
        if is_named || rules.absent.contains(&git) {
            continue;
        }
        rules.stamp(&git);
        let Ok(meta) = fs::symlink_metadata(&git) else {
            rules.absent.push(git);
            continue;
        };
        if meta.is_symlink() {
            let what =
                format!("`{}` is a symbolic link, which the process could replace; name it in an entry", git.display());
            return Err(PolicyError::NotEnforceable { what });
        }
        rules.add(git.clone(), AccessRule { access: Access::Read, is_dir: meta.is_dir() });
        if meta.is_file() {
            protect_git_dir(rules, &git);
        }
    }
    Ok(())
}

/// Protects the directories that a `.git` file refers to (in a worktree), if they would be writable otherwise.
fn protect_git_dir(rules: &mut AccessRules, git: &Path) {
    let base = git.parent().unwrap_or(Path::new("/"));
    let Some(dir) = read_line(git).and_then(|line| line.strip_prefix("gitdir:").map(|path| base.join(path.trim())))
    else {
        return;
    };
    let common = read_line(&dir.join("commondir")).map(|path| dir.join(path.trim()));
    for dir in [Some(dir), common].into_iter().flatten() {
        rules.stamp(&dir);
        if let Ok(traced) = paths::trace(&dir)
            && rules.access(&traced.real) == Access::Write
            && !rules.rules.contains_key(&traced.real)
        {
            rules.add(traced.real, AccessRule { access: Access::Read, is_dir: traced.is_dir });
        }
    }
}

/// The first line of a regular file.
fn read_line(path: &Path) -> Option<String> {
    let mut text = String::new();
    // O_NONBLOCK: a sandboxed process may have put a FIFO there, and opening one waits for a writer.
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.take(GIT_FILE_MAX).read_to_string(&mut text).ok()?;
    // A symbolic link does not count as a file here.
    let is_file = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
    is_file.then(|| text.lines().next().map(str::to_owned)).flatten()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn policy(entries: &[(PolicyPath, Access)]) -> Policy {
        let entries = entries
            .iter()
            .map(|(path, access)| PolicyEntry { path: path.clone(), access: *access, skips_missing: false })
            .collect();
        Policy { entries, scan_depth: None }
    }

    fn base() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().canonicalize().expect("real path");
        (dir, path)
    }

    #[test]
    fn git_below_a_writable_root_is_read_only_unless_named() {
        let (_dir, base) = base();
        for path in ["w/.git", "w/sub/.git", "v/.git", "store/worktrees/x"] {
            fs::create_dir_all(base.join(path)).expect("directory");
        }
        fs::create_dir(base.join("tree")).expect("directory");
        fs::write(base.join("tree/.git"), "gitdir: ../store/worktrees/x\n").expect("file");
        fs::write(base.join("store/worktrees/x/commondir"), "../..\n").expect("file");
        let path = |name: &str| PolicyPath::Path(base.join(name));
        let asked = policy(&[
            (path("w"), Access::Write),
            (path("v"), Access::Write),
            (path("v/.git"), Access::Write),
            (path("tree"), Access::Write),
            (path("store"), Access::Write),
        ]);
        let rules = asked.resolve(&PolicyScope::default()).expect("rules");
        let access = |name: &str| rules.access(&base.join(name));
        assert_eq!(access("w/.git/config"), Access::Read);
        assert_eq!(access("w/.github"), Access::Write);
        assert_eq!(access("w/sub/.git/config"), Access::Write);
        assert_eq!(access("v/.git/config"), Access::Write);
        assert_eq!(access("tree/.git"), Access::Read);
        assert_eq!(access("store/worktrees/x/HEAD"), Access::Read);
        assert!(rules.is_fresh());
        fs::remove_dir(base.join("w/.git")).expect("removed");
        assert!(!rules.is_fresh());
    }

    #[test]
    fn a_fifo_named_commondir_does_not_block_the_evaluation() {
        let (_dir, base) = base();
        fs::create_dir_all(base.join("w")).expect("directory");
        fs::create_dir_all(base.join("store")).expect("directory");
        fs::write(base.join("w/.git"), "gitdir: ../store\n").expect("file");
        let fifo = base.join("store/commondir");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("FIFO");
        let asked = policy(&[(PolicyPath::Path(base.join("w")), Access::Write)]);
        let rules = asked.resolve(&PolicyScope::default()).expect("rules");
        assert_eq!(rules.access(&base.join("w/.git")), Access::Read);
    }

    #[test]
    fn a_symlink_named_git_in_a_writable_directory_is_refused() {
        let (_dir, base) = base();
        symlink("/", base.join(".git")).expect("link");
        let asked = policy(&[(PolicyPath::Path(base.clone()), Access::Write)]);
        assert!(matches!(asked.resolve(&PolicyScope::default()), Err(PolicyError::NotEnforceable { .. })));
    }

    #[test]
    fn a_granted_symlink_leads_to_its_target_and_is_recorded() {
        let (_dir, base) = base();
        fs::create_dir(base.join("real")).expect("directory");
        symlink("real", base.join("alias")).expect("link");
        let asked = policy(&[(PolicyPath::Path(base.join("alias")), Access::Write)]);
        let rules = asked.resolve(&PolicyScope::default()).expect("rules");
        assert_eq!(rules.decide(&base.join("alias/x"), Access::Write), Ok(()));
        assert_eq!(rules.decide(&base.join("real/x"), Access::Write), Ok(()));
        let denied = crate::AccessDenied { path: base.join("x"), wanted: Access::Read };
        assert_eq!(rules.decide(&base.join("alias/../x"), Access::Read), Err(denied));
        assert_eq!(rules.links.get(&base.join("alias")).map(PathBuf::as_path), Some(Path::new("real")));
    }

    #[test]
    fn project_roots_and_relative_patterns_need_a_base() {
        let roots = policy(&[(PolicyPath::ProjectRoots(None), Access::Write)]);
        let pattern = policy(&[(PolicyPath::Pattern("**/*.env".into()), Access::Deny)]);
        for asked in [&roots, &pattern] {
            assert!(matches!(asked.resolve(&PolicyScope::default()), Err(PolicyError::NeedsCwd { .. })));
        }
        let (_dir, base) = base();
        fs::write(base.join("a.env"), "").expect("file");
        let none = PolicyScope { cwd: Some(base.clone()), roots: Some(Vec::new()), ..PolicyScope::default() };
        assert_eq!(roots.resolve(&none).expect("rules").access(&base), Access::Deny);
        let rules = pattern.resolve(&none).expect("rules");
        assert_eq!(rules.rules.keys().collect::<Vec<_>>(), [&base.join("a.env")]);
        let out = policy(&[(PolicyPath::ProjectRoots(Some("../x".into())), Access::Read)]);
        assert!(matches!(out.resolve(&none), Err(PolicyError::NotEnforceable { .. })));
    }

    #[test]
    fn hidden_paths_cannot_be_granted_and_unknown_places_cannot_be_denied() {
        let (_dir, base) = base();
        fs::create_dir_all(base.join("state/sub")).expect("directories");
        let asked = policy(&[
            (PolicyPath::Root, Access::Read),
            (PolicyPath::Path(base.join("state/sub")), Access::Write),
            (PolicyPath::Unknown("later".into()), Access::Write),
        ]);
        let scope = PolicyScope { hidden: vec![base.join("state")], ..PolicyScope::default() };
        let rules = asked.resolve(&scope).expect("rules");
        assert_eq!(rules.access(&base.join("state/sub/x")), Access::Deny);
        let unknown = policy(&[(PolicyPath::Unknown("later".into()), Access::Deny)]);
        assert!(matches!(unknown.resolve(&scope), Err(PolicyError::NotEnforceable { .. })));
    }
}
