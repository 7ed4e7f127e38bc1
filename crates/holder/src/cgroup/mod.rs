//! Control groups: limit the processes of a session as a whole, and kill them in one step.
//!
//! `root` finds where groups can be created. This file has the group of one session, as the server uses it.
//! `process_cgroups` has the groups of the session's processes, as the holder uses them. If the host does not let us
//! create groups, everything works without them.
//!
//! ```text
//! <our own group>/exec-server-NAME/        created by the server, removed when empty
//!                   └── SESSION/           created by the server before the holder; the server kills it if the holder is dead
//!                         ├── 0/           created by the holder for a process, reused for another one when empty
//!                         └── 1/
//! ```
//!
//! A group exists in up to two hierarchies: the unified one (`cgroup.kill`, and the controllers that were delegated to
//! us), and the version 1 hierarchy of the `pids` controller if the unified one lacks that controller.

mod process_cgroups;
mod root;

use std::{
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

pub(crate) use process_cgroups::{ProcessCgroup, ProcessCgroups};
pub use root::{CgroupRoot, find_root};

/// Larger than any file that is read here. Each has a few short lines.
const SMALL_BYTES: usize = 1024;

/// The hierarchy that a directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupHierarchy {
    /// Version 2: one tree for all controllers.
    Unified,
    /// Version 1, controller `pids`.
    Pids,
}

/// What the groups below a [`CgroupRoot`] can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnforcedLimits {
    /// All processes in a group can be killed in one step.
    pub kill: bool,
    /// The number of processes and threads can be limited.
    pub pids: bool,
    /// Memory can be limited.
    pub memory: bool,
}

/// The group of one session, in each hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionCgroup {
    dirs: Vec<(CgroupHierarchy, PathBuf)>,
}

impl SessionCgroup {
    pub(crate) fn new(dirs: Vec<(CgroupHierarchy, PathBuf)>) -> Self {
        Self { dirs }
    }

    /// Encodes the directories, one per line: a letter for the hierarchy, then the path.
    pub fn encode(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (hierarchy, dir) in &self.dirs {
            text.extend_from_slice(match hierarchy {
                CgroupHierarchy::Unified => b"u ",
                CgroupHierarchy::Pids => b"p ",
            });
            text.extend_from_slice(dir.as_os_str().as_bytes());
            text.push(b'\n');
        }
        text
    }

    /// Decodes the output of [`encode`](Self::encode). Ignores malformed lines.
    pub fn decode(text: &[u8]) -> Self {
        let line = |line: &[u8]| {
            let (hierarchy, dir) = match line {
                [b'u', b' ', dir @ ..] => (CgroupHierarchy::Unified, dir),
                [b'p', b' ', dir @ ..] => (CgroupHierarchy::Pids, dir),
                _ => return None,
            };
            dir.starts_with(b"/").then(|| (hierarchy, PathBuf::from(std::ffi::OsStr::from_bytes(dir))))
        };
        Self { dirs: text.split(|byte| *byte == b'\n').filter_map(line).collect() }
    }

    /// Kills all processes in the group in one step. Returns whether that was possible.
    pub fn kill(&self) -> bool {
        kill(&self.dirs)
    }

    /// Whether the group has no processes or does not exist.
    pub fn is_empty(&self) -> bool {
        self.dirs.iter().all(|(hierarchy, dir)| match hierarchy {
            CgroupHierarchy::Unified => !is_populated(dir),
            CgroupHierarchy::Pids => read_number(&dir.join("pids.current")).unwrap_or(0) == 0,
        })
    }

    /// Removes the group with the groups of its processes, and the parent directory if this was its last session.
    /// Groups that still have processes stay.
    pub fn remove(&self) {
        for (_, dir) in &self.dirs {
            remove_below(dir);
            fs::remove_dir(dir).ok();
            if let Some(root) = dir.parent() {
                // Fails while another session has its group there.
                fs::remove_dir(root).ok();
            }
        }
    }
}

/// The directory in the unified hierarchy.
fn unified(dirs: &[(CgroupHierarchy, PathBuf)]) -> Option<&Path> {
    dirs.iter().find(|(hierarchy, _)| *hierarchy == CgroupHierarchy::Unified).map(|(_, dir)| dir.as_path())
}

fn kill(dirs: &[(CgroupHierarchy, PathBuf)]) -> bool {
    unified(dirs).is_some_and(|dir| fs::write(dir.join("cgroup.kill"), "1").is_ok())
}

fn remove_below(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        // A child may have created groups inside its group.
        remove_below(&entry.path());
        fs::remove_dir(entry.path()).ok();
    }
}

/// Whether a group of the unified hierarchy, or a group below it, has a process.
fn is_populated(dir: &Path) -> bool {
    read_small(&dir.join("cgroup.events"), |events| value_of(events, "populated") == Some(1)).unwrap_or(false)
}

fn read_number(file: &Path) -> Option<u64> {
    read_small(file, |text| text.trim().parse().ok())?
}

/// Reads a small kernel file with one `read` and passes its text to `parse`.
fn read_small<T>(file: &Path, parse: impl FnOnce(&str) -> T) -> Option<T> {
    let file = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; SMALL_BYTES];
    let len = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes)).ok()?;
    std::str::from_utf8(bytes.get(..len)?).ok().map(parse)
}

/// The number after `word` in a text of `word number` lines.
fn value_of(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Creates a directory if it does not exist.
fn create_if_missing(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_returns_the_session_group_that_was_encoded() {
        let dirs = vec![(CgroupHierarchy::Unified, "/a/b c".into()), (CgroupHierarchy::Pids, "/d".into())];
        let group = SessionCgroup::new(dirs);
        assert_eq!(SessionCgroup::decode(&group.encode()), group);
        assert_eq!(SessionCgroup::decode(b"u relative\nx /y\n\nnonsense"), SessionCgroup::default());
    }

    #[test]
    fn a_value_is_found_only_by_its_whole_word() {
        let text = "oom 3\noom_kill 2\n";
        assert_eq!(
            (value_of(text, "oom"), value_of(text, "oom_kill"), value_of(text, "max")),
            (Some(3), Some(2), None)
        );
    }

    #[test]
    fn a_group_that_is_gone_is_empty_and_cannot_be_killed() {
        let gone = SessionCgroup::new(vec![(CgroupHierarchy::Unified, "/nonexistent/x".into())]);
        assert!(gone.is_empty() && !gone.kill());
        gone.remove();
    }
}
