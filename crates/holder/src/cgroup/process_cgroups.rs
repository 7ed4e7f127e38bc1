//! The control groups of a session's processes, as the holder creates, uses and removes them.
//!
//! Assigns a directory to each process. When a process and all its descendants have ended, its group is reused, so that
//! a start need not create a directory. The kernel's counters of a reused group are not reset; the group remembers
//! their last values instead.

use std::{
    cell::Cell,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use exec_server_log::LimitsHit;
use exec_server_process::Spawn;
use rustix::fs::{Mode, OFlags};

use super::{
    CgroupHierarchy, SessionCgroup, create_if_missing, is_populated, kill, read_number, read_small, unified, value_of,
};
use crate::HolderLimits;

/// Maximum number of empty groups kept for later processes: as many as are often started at a time. Creating and
/// removing a group costs half as much as a start. A spare group costs the kernel a few kilobytes.
const SPARE_MAX: usize = 32;

/// All groups of a session. Creates none if the session has no control group.
#[derive(Debug, Default)]
pub(crate) struct ProcessCgroups {
    session: SessionCgroup,
    limits: HolderLimits,
    /// Name of the next directory.
    next: u64,
    spare: Vec<ProcessCgroup>,
    /// Groups of ended processes whose descendants still run.
    lingering: Vec<ProcessCgroup>,
}

/// The control group of one process.
#[derive(Debug)]
pub(crate) struct ProcessCgroup {
    dirs: Vec<(CgroupHierarchy, PathBuf)>,
    has_memory_limit: bool,
    /// The event files that count refused forks (`pids.events`) and OOM kills (`memory.events`), if they exist.
    pids_events: Option<PathBuf>,
    memory_events: Option<PathBuf>,
    /// The group was killed once. Some kernels (seen on 6.18) also kill processes that start in such a group later.
    was_killed: Cell<bool>,
    /// Counter values from before the current process.
    earlier_counts: LimitCounts,
}

/// The kernel's counters of limit violations in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LimitCounts {
    pids: u64,
    oom_kills: u64,
}

impl ProcessCgroups {
    pub(crate) fn new(session: SessionCgroup, limits: HolderLimits) -> Self {
        Self { session, limits, next: 0, spare: Vec::new(), lingering: Vec::new() }
    }

    /// Returns an empty group with its limits set. `None` if this session has no groups.
    pub(crate) fn take(&mut self) -> io::Result<Option<ProcessCgroup>> {
        if self.session.dirs.is_empty() {
            return Ok(None);
        }
        if self.spare.is_empty() {
            self.recheck_lingering();
        }
        if let Some(group) = self.spare.pop() {
            return Ok(Some(group));
        }
        let name = self.next.to_string();
        self.next += 1;
        let dirs = self.session.dirs.iter().map(|(hierarchy, dir)| (*hierarchy, dir.join(&name))).collect();
        ProcessCgroup::create(dirs, self.limits).map(Some)
    }

    /// Takes back the group of a process that has ended or failed to start.
    pub(crate) fn release(&mut self, group: ProcessCgroup) {
        if group.is_empty() { self.keep(group) } else { self.lingering.push(group) }
    }

    /// Kills all processes of the session. Returns whether that was possible.
    pub(crate) fn kill_all(&self) -> bool {
        self.session.kill()
    }

    /// Removes every group. Call it when no process is left.
    pub(crate) fn remove(&self) {
        self.session.remove();
    }

    /// Keeps an empty group for a later process, or removes it.
    fn keep(&mut self, mut group: ProcessCgroup) {
        if self.spare.len() < SPARE_MAX && !group.was_killed.get() {
            group.earlier_counts = group.counts();
            self.spare.push(group);
        } else {
            group.remove();
        }
    }

    /// Makes the lingering groups that have become empty available again.
    fn recheck_lingering(&mut self) {
        for group in std::mem::take(&mut self.lingering) {
            self.release(group);
        }
    }
}

impl ProcessCgroup {
    /// Makes the child start in this group.
    pub(crate) fn apply_to(&self, spawn: &mut Spawn) -> io::Result<()> {
        // Until its exec, a child shares memory with the holder and with other children on their way to exec. If the
        // OOM killer selected the child at the memory limit, it would kill all of them. It does not select a child that
        // starts alone, because the child's parent is stopped (`CLONE_VFORK`).
        spawn.alone = self.has_memory_limit;
        for (hierarchy, dir) in &self.dirs {
            match hierarchy {
                CgroupHierarchy::Unified => {
                    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                    spawn.cgroup_dir = Some(rustix::fs::open(dir, flags, Mode::empty())?);
                }
                // `tasks` and not `cgroup.procs`: the child moves only itself, a single thread, so the kernel does not
                // need its global cgroup lock. Creating the child in the group (the branch above) avoids the same lock.
                CgroupHierarchy::Pids => {
                    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                    spawn.cgroups.push(rustix::fs::open(dir.join("tasks"), flags, Mode::empty())?);
                }
            }
        }
        Ok(())
    }

    /// Kills all processes in the group in one step. Returns whether that was possible.
    pub(crate) fn kill(&self) -> bool {
        self.was_killed.set(true);
        kill(&self.dirs)
    }

    /// Whether the group has no processes.
    pub(crate) fn is_empty(&self) -> bool {
        // A group has one directory per hierarchy, and each process is in all of them. It enters the unified one first,
        // so if that exists, checking it is enough.
        match unified(&self.dirs) {
            Some(dir) => !is_populated(dir),
            None => self.dirs.iter().all(|(_, dir)| read_number(&dir.join("pids.current")).unwrap_or(0) == 0),
        }
    }

    /// The limits that the current process or its descendants have hit.
    pub(crate) fn limits_hit(&self) -> LimitsHit {
        let now = self.counts();
        LimitsHit { pids: now.pids > self.earlier_counts.pids, memory: now.oom_kills > self.earlier_counts.oom_kills }
    }

    fn create(dirs: Vec<(CgroupHierarchy, PathBuf)>, limits: HolderLimits) -> io::Result<Self> {
        let mut group = Self {
            dirs,
            has_memory_limit: limits.memory_max.is_some(),
            pids_events: None,
            memory_events: None,
            was_killed: Cell::default(),
            earlier_counts: LimitCounts::default(),
        };
        if let Err(error) = group.set_up(limits) {
            group.remove();
            return Err(error);
        }
        group.pids_events = group.file("pids.events");
        group.memory_events = group.file("memory.events");
        Ok(group)
    }

    fn set_up(&self, limits: HolderLimits) -> io::Result<()> {
        for (_, dir) in &self.dirs {
            create_if_missing(dir)?;
            set_limit(dir, "pids.max", limits.pids_max)?;
            set_limit(dir, "memory.max", limits.memory_max)?;
            // Without this, a process over its memory limit would be swapped out, not killed.
            set_limit(dir, "memory.swap.max", limits.memory_max.map(|_| 0))?;
        }
        Ok(())
    }

    /// The path of the file with this name, if one of the directories has it.
    fn file(&self, name: &str) -> Option<PathBuf> {
        self.dirs.iter().map(|(_, dir)| dir.join(name)).find(|file| file.exists())
    }

    fn remove(&self) {
        for (_, dir) in &self.dirs {
            fs::remove_dir(dir).ok();
        }
    }

    fn counts(&self) -> LimitCounts {
        let read = |file: &Option<PathBuf>, word: &str| {
            let value = |text: &str| value_of(text, word);
            file.as_ref().and_then(|file| read_small(file, value)?).unwrap_or(0)
        };
        LimitCounts { pids: read(&self.pids_events, "max"), oom_kills: read(&self.memory_events, "oom_kill") }
    }
}

/// Sets a limit if the group has a file of that name.
fn set_limit(dir: &Path, name: &str, value: Option<u64>) -> io::Result<()> {
    let Some(value) = value else { return Ok(()) };
    match File::options().write(true).open(dir.join(name)) {
        Ok(mut file) => io::Write::write_all(&mut file, value.to_string().as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain directory in place of a cgroup hierarchy. Plain files contain what the kernel would report.
    fn session(dir: &Path) -> SessionCgroup {
        SessionCgroup::new(vec![(CgroupHierarchy::Unified, dir.to_owned())])
    }

    #[test]
    fn an_empty_group_is_reused_and_earlier_counts_do_not_apply() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut groups = ProcessCgroups::new(session(dir.path()), HolderLimits::default());
        fs::create_dir(dir.path().join("0")).expect("a directory");
        for name in ["0/pids.events", "0/memory.events"] {
            fs::write(dir.path().join(name), "").expect("write");
        }
        let group = groups.take().expect("made").expect("there is a place");
        let (first, events) = (group.dirs.clone(), dir.path().join("0/cgroup.events"));
        fs::write(&events, "populated 1\n").expect("write");
        fs::write(dir.path().join("0/pids.events"), "max 3\n").expect("write");
        assert_eq!(group.limits_hit(), LimitsHit { pids: true, memory: false });
        groups.release(group);
        let second = groups.take().expect("made").expect("there is a place");
        assert_ne!(second.dirs, first, "the first group still has a process");
        fs::write(&events, "populated 0\n").expect("write");
        let again = groups.take().expect("made").expect("there is a place");
        assert_eq!(again.dirs, first);
        assert_eq!(again.limits_hit(), LimitsHit::default(), "counts from before the reuse do not apply");
        fs::write(dir.path().join("0/memory.events"), "oom 1\noom_kill 1\n").expect("write");
        assert_eq!(again.limits_hit(), LimitsHit { pids: false, memory: true });
    }

    #[test]
    fn a_group_that_was_killed_is_not_reused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut groups = ProcessCgroups::new(session(dir.path()), HolderLimits::default());
        let group = groups.take().expect("made").expect("there is a place");
        let first = group.dirs.clone();
        group.kill();
        groups.release(group);
        assert_ne!(groups.take().expect("made").expect("there is a place").dirs, first);
    }

    #[test]
    fn without_a_session_group_no_process_group_is_created() {
        let mut groups = ProcessCgroups::new(SessionCgroup::default(), HolderLimits::default());
        assert!(groups.take().expect("nothing to fail").is_none());
        assert!(!groups.kill_all());
    }

    #[test]
    fn limits_are_set_only_where_the_controller_is_enabled() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("pids.max"), "max").expect("write");
        let dirs = vec![(CgroupHierarchy::Unified, dir.path().to_owned())];
        let limits = HolderLimits { pids_max: Some(7), memory_max: Some(9), ..HolderLimits::default() };
        let group = ProcessCgroup::create(dirs, limits).expect("set");
        let mut spawn = Spawn::new(Vec::new());
        group.apply_to(&mut spawn).expect("the directory opens");
        assert!(spawn.alone, "with a memory limit, no other child may share our memory");
        assert!(fs::read_to_string(dir.path().join("pids.max")).expect("read").starts_with('7'));
        assert!(!dir.path().join("memory.max").exists());
    }
}
