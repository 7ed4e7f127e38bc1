//! The end of a session: kills all processes until none is left, then removes the session's files.
//!
//! A session ends by command or by expiry. By command, nothing is left on disk; expiry leaves a tombstone. A holder
//! that was abandoned right after its creation ends in the same way, but its session does not: all files stay.
//!
//! Failure paths: a process that does not die (uninterruptible sleep) keeps the holder alive, which repeats the kill at
//! growing intervals. A file that cannot be removed stays, and the server removes the directory later.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use exec_server_process::Child;
use rustix::{fs::AtFlags, time::ClockId};

use crate::{
    archive_file::ARCHIVE_NAME,
    manifest::MANIFEST_NAME,
    process::{Process, ProcessPhase},
    reap,
    spawner::SOCKET_NAME,
    tombstone::{ExpiredProcess, Tombstone},
};

/// The pause between two checks whether all processes are dead begins at twice this value, and doubles with each check.
const PAUSE_BASE_NS: u64 = 1_000_000;

/// Longest pause between two checks.
const PAUSE_MAX_NS: u64 = 100_000_000;

/// Why the holder ends, and in most cases the session with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The controller sent `End`. The answer is sent at the end, with this `req`.
    Command { req: u32 },
    /// The time to live has passed, or the time that the session may outlive its server (`SetOrphanTtl`).
    Expiry,
    /// The server could not use the holder that it had just created. The session continues without this holder, and may
    /// have another one by now.
    Abandoned,
}

pub(crate) struct SessionEnd {
    pub(crate) reason: EndReason,
    tombstone: Tombstone,
    pause_ns: u64,
    again_at: u64,
}

impl SessionEnd {
    /// Kills every process of the session, and records its processes for the tombstone.
    pub(crate) fn begin(reason: EndReason, processes: &BTreeMap<u32, Process>, now_ns: u64) -> Self {
        // Errors are ignored: `kill_and_reap` finds the processes that this call missed.
        Child::kill_all(processes.values().filter_map(|process| process.child.as_ref())).ok();
        let describe = |process: &Process| ExpiredProcess {
            pid: process.pid,
            was_running: process.phase != ProcessPhase::Closed,
            meta: process.meta().to_vec(),
        };
        let now = rustix::time::clock_gettime(ClockId::Realtime);
        let tombstone = Tombstone {
            unix_seconds: u64::try_from(now.tv_sec).unwrap_or(0),
            processes: processes.values().map(describe).collect(),
        };
        Self { reason, tombstone, pause_ns: PAUSE_BASE_NS, again_at: now_ns }
    }

    pub(crate) fn deadline_ns(&self) -> u64 {
        self.again_at
    }

    /// Reaps dead processes, and in an exclusive process kills again. Returns true when no process is left alive.
    pub(crate) fn kill_and_reap(
        &mut self,
        processes: &mut BTreeMap<u32, Process>,
        is_exclusive: bool,
        now_ns: u64,
    ) -> bool {
        if now_ns < self.again_at {
            // SIGCHLD may have started this turn: the last process may be dead.
            return is_exclusive && reap::reap_all();
        }
        self.pause_ns = self.pause_ns.saturating_mul(2).min(PAUSE_MAX_NS);
        self.again_at = now_ns.saturating_add(self.pause_ns);
        if is_exclusive {
            return reap::kill_all();
        }
        let mut children = processes.values_mut().filter_map(|process| process.child.as_mut());
        // An error means that other code has reaped the leader.
        children.all(|child| matches!(child.try_wait(), Ok(Some(_)) | Err(_)))
    }

    /// Removes the session's files, depending on the reason.
    pub(crate) fn remove_session_files(&self, dir: &OwnedFd) {
        match self.reason {
            EndReason::Command { .. } => {
                remove_files(dir, |_| true);
                // Fails if the directory contains other entries. The server cleans up its state directory.
                remove_directory(dir).ok();
            }
            EndReason::Abandoned => {}
            EndReason::Expiry => {
                // Without the tombstone, the server can only report that the session is gone.
                self.tombstone.write(dir).ok();
                remove_files(dir, |name| {
                    let others = [SOCKET_NAME, MANIFEST_NAME, ARCHIVE_NAME];
                    name.ends_with(b".seg") || others.iter().any(|other| name == other.as_bytes())
                });
            }
        }
    }
}

fn remove_files(dir: &OwnedFd, is_chosen: impl Fn(&[u8]) -> bool) {
    let Ok(entries) = rustix::fs::Dir::read_from(dir) else { return };
    for entry in entries.flatten() {
        if is_chosen(entry.file_name().to_bytes()) {
            // The kernel refuses to unlink directories, including `.` and `..`; they stay.
            rustix::fs::unlinkat(dir, entry.file_name(), AtFlags::empty()).ok();
        }
    }
}

/// Removes the directory itself, by the path that `/proc` reports for its fd.
fn remove_directory(dir: &OwnedFd) -> io::Result<()> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))?;
    let ours = rustix::fs::fstat(dir.as_fd())?;
    let named = rustix::fs::lstat(&path)?;
    // The directory may have been moved and replaced by another.
    if (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino) {
        return Err(rustix::io::Errno::STALE.into());
    }
    std::fs::remove_dir(path)
}
