//! Ignore rules: `.ignore` and `.gitignore` of each directory, and `.git/info/exclude` of a repository. The user's own git configuration is
//! not read.
//!
//! Directories are checked from the deepest upwards. The first one with a rule that matches the path decides. Within one file, the last
//! rule that matches decides.

use std::{
    ffi::OsStr,
    fs::File,
    io::Read as _,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{AtFlags, CWD, OFlags, statat};

use crate::{scan::open_below, view::open_at};

/// Maximum bytes read from one rule file; the rest of the file is ignored. Real rule files are far smaller.
const RULE_FILE_BYTES: u64 = 256 << 10;

/// How many directories, from the root of a scan upwards, are searched for the top of a git repository.
const PARENTS: usize = 64;

/// The rules of one directory, highest precedence first.
#[derive(Debug, Default)]
pub(crate) struct IgnoreRules {
    sets: Vec<Gitignore>,
}

impl IgnoreRules {
    /// Reads the rules of the directory `dir`, whose path is `path`. A rule file that cannot be read is ignored.
    pub(crate) fn of(dir: BorrowedFd<'_>, path: &Path) -> Self {
        let names = [".ignore", ".gitignore", ".git/info/exclude"];
        Self { sets: names.iter().filter_map(|name| read(dir, name, path)).collect() }
    }

    /// The rules of the directories above `root`, beginning with the top of its git repository. Empty if `root` is not in a repository.
    pub(crate) fn above(root: &Path) -> Vec<Self> {
        let mut rules = Vec::new();
        for parent in root.ancestors().take(PARENTS) {
            let Ok(dir) = open_at(CWD, parent, OFlags::RDONLY | OFlags::DIRECTORY) else { return Vec::new() };
            if parent != root {
                rules.push(Self::of(dir.as_fd(), parent));
            }
            if statat(&dir, ".git", AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                rules.reverse();
                return rules;
            }
        }
        Vec::new()
    }

    /// Whether these rules ignore a path. `None` if no rule matches.
    pub(crate) fn decide(&self, path: &Path, is_directory: bool) -> Option<bool> {
        let mut found = self.sets.iter().map(|set| set.matched(path, is_directory));
        found.find(|found| !found.is_none()).map(|found| found.is_ignore())
    }
}

fn read(dir: BorrowedFd<'_>, name: &str, root: &Path) -> Option<Gitignore> {
    let file = File::from(open_below(dir, OsStr::new(name), OFlags::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(RULE_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    let mut builder = GitignoreBuilder::new(root);
    for line in bytes.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()) {
        // A line that is not a valid rule is ignored, as git does.
        builder.add_line(None, line.trim_end_matches('\r')).ok();
    }
    builder.build().ok().filter(|rules| !rules.is_empty())
}
