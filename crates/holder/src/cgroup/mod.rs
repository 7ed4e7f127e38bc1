//! Control groups: what bounds the processes of a session as a whole, and ends them in one step.
//!
//! Owns where groups are made (`place`), the groups of one session as the server sees them (this file), and the groups of
//! its processes as the holder does (`group`). It knows no process and no session beyond a name. Where the host lets us
//! make none, everything works as if this module were not there.
//!
//! ```text
//! <our own group>/exec-server-NAME/        made by the server, gone when it is empty
//!                   └── SESSION/           made by the server before the holder; killed by it when the holder is dead
//!                         ├── 0/           made by the holder for a process, used again for the next one when it is empty
//!                         └── 1/
//! ```
//!
//! A group lies in up to two hierarchies: the unified one (`cgroup.kill`, and the controllers that were delegated to us),
//! and the older one of the controller `pids` where the unified one does not have it.

mod group;
mod place;

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

pub(crate) use group::{Group, Groups};
pub use place::{Root, find};

/// Above what the files have that are read here, each a few lines of a word and a number.
const SMALL_BYTES: usize = 1024;

/// Which hierarchy a directory lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// Version 2: one tree for all controllers.
    Unified,
    /// Version 1, the controller `pids`.
    Pids,
}

/// What groups in a place can enforce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforced {
    /// Everything in a group is killed in one step.
    pub kill: bool,
    /// The number of processes and threads.
    pub pids: bool,
    /// Memory.
    pub memory: bool,
}

/// The group of one session, in each hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionGroup {
    dirs: Vec<(Hierarchy, PathBuf)>,
}

impl SessionGroup {
    pub(crate) fn new(dirs: Vec<(Hierarchy, PathBuf)>) -> Self {
        Self { dirs }
    }

    pub(crate) fn dir(&self, wanted: Hierarchy) -> Option<&Path> {
        self.dirs.iter().find(|(hierarchy, _)| *hierarchy == wanted).map(|(_, dir)| dir.as_path())
    }

    /// As bytes: a line each, a letter for the hierarchy, then the directory.
    pub fn encode(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (hierarchy, dir) in &self.dirs {
            text.extend_from_slice(match hierarchy {
                Hierarchy::Unified => b"u ",
                Hierarchy::Pids => b"p ",
            });
            text.extend_from_slice(dir.as_os_str().as_bytes());
            text.push(b'\n');
        }
        text
    }

    /// Reads what [`encode`](Self::encode) wrote; lines that it does not write are left out.
    pub fn decode(text: &[u8]) -> Self {
        let line = |line: &[u8]| {
            let (hierarchy, dir) = match line {
                [b'u', b' ', dir @ ..] => (Hierarchy::Unified, dir),
                [b'p', b' ', dir @ ..] => (Hierarchy::Pids, dir),
                _ => return None,
            };
            dir.starts_with(b"/").then(|| (hierarchy, PathBuf::from(std::ffi::OsStr::from_bytes(dir))))
        };
        Self { dirs: text.split(|byte| *byte == b'\n').filter_map(line).collect() }
    }

    /// Kills all that is in it, in one step; the answer says whether that was possible.
    pub fn kill(&self) -> bool {
        self.dir(Hierarchy::Unified).is_some_and(|dir| fs::write(dir.join("cgroup.kill"), "1").is_ok())
    }

    /// Whether nobody is left in it; also where it does not exist any more.
    pub fn is_empty(&self) -> bool {
        self.dirs.iter().all(|(hierarchy, dir)| match hierarchy {
            Hierarchy::Unified => !is_populated(dir),
            Hierarchy::Pids => read_number(&dir.join("pids.current")).unwrap_or(0) == 0,
        })
    }

    /// Removes it with the groups of its processes, and the place that it lies in when it was the last. Groups with somebody in
    /// them stay.
    pub fn remove(&self) {
        for (_, dir) in &self.dirs {
            remove_below(dir);
            fs::remove_dir(dir).ok();
            if let Some(root) = dir.parent() {
                // Refused while another session has its group there.
                fs::remove_dir(root).ok();
            }
        }
    }
}

fn remove_below(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        // A child may have made groups of its own.
        remove_below(&entry.path());
        fs::remove_dir(entry.path()).ok();
    }
}

/// Whether somebody is in a group of the unified hierarchy or below it.
fn is_populated(dir: &Path) -> bool {
    read_small(&dir.join("cgroup.events"), |events| value_of(events, "populated") == Some(1)).unwrap_or(false)
}

fn read_number(file: &Path) -> Option<u64> {
    read_small(file, |text| text.trim().parse().ok())?
}

/// What stands in a file of the kernel's: a few lines, which come with one read.
fn read_small<T>(file: &Path, look: impl FnOnce(&str) -> T) -> Option<T> {
    let file = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; SMALL_BYTES];
    let len = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes)).ok()?;
    std::str::from_utf8(bytes.get(..len)?).ok().map(look)
}

/// The number behind a word in a file of `word number` lines.
fn value_of(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Makes a directory unless it is there.
fn make(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_group_survives_its_text() {
        let dirs = vec![(Hierarchy::Unified, "/a/b c".into()), (Hierarchy::Pids, "/d".into())];
        let group = SessionGroup::new(dirs);
        assert_eq!(SessionGroup::decode(&group.encode()), group);
        assert_eq!(SessionGroup::decode(b"u relative\nx /y\n\nnonsense"), SessionGroup::default());
    }

    #[test]
    fn values_are_found_by_their_whole_word() {
        let text = "oom 3\noom_kill 2\n";
        assert_eq!(
            (value_of(text, "oom"), value_of(text, "oom_kill"), value_of(text, "max")),
            (Some(3), Some(2), None)
        );
    }

    #[test]
    fn a_group_that_is_gone_is_empty_and_cannot_be_killed() {
        let gone = SessionGroup::new(vec![(Hierarchy::Unified, "/nonexistent/x".into())]);
        assert!(gone.is_empty() && !gone.kill());
        gone.remove();
    }
}
