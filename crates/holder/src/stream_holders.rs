//! Finds and kills descendants that hold a stream of a process open.
//!
//! A daemon that left its session and lost its parent cannot be found by process group, session or parent. It can still
//! be found in `/proc/PID/fd` by the pipe or terminal that it writes to, so that `terminate` reaches it.
//!
//! Use this only in an exclusive holder process. Elsewhere, another thread may be spawning a child of its own, which
//! has copies of these fds until its exec.
//!
//! Failure path: a process whose fds cannot be read (another user's) is not killed. It ends with the session or not at
//! all.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::PathBuf,
};

use exec_server_process::{TreeMember, descendants_of};
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// Kills every descendant that has one of these streams open. Returns how many it killed.
pub(crate) fn kill_processes_holding<'a>(streams: impl Iterator<Item = BorrowedFd<'a>>) -> usize {
    let link_targets: Vec<PathBuf> = streams.filter_map(link_target).collect();
    if link_targets.is_empty() {
        return 0;
    }
    let descendants = descendants_of(getpid()).unwrap_or_default();
    descendants.iter().filter(|member| !member.is_zombie && kill_if_holding(member, &link_targets)).count()
}

/// The link target that the other end of a stream has under `/proc/PID/fd`.
fn link_target(stream: BorrowedFd<'_>) -> Option<PathBuf> {
    match rustix::pty::ptsname(stream, Vec::new()) {
        Ok(slave) => Some(PathBuf::from(slave.into_string().ok()?)),
        // Both ends of a pipe have the same inode number, and so the same link target.
        Err(_) => fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).ok(),
    }
}

fn kill_if_holding(member: &TreeMember, link_targets: &[PathBuf]) -> bool {
    // Open the pidfd before reading the fds. If the pid is reused after that, the signal fails with ESRCH and does not
    // hit an unrelated process.
    let Ok(process) = pidfd_open(member.pid, PidfdFlags::empty()) else { return false };
    let Ok(fds) = fs::read_dir(format!("/proc/{}/fd", member.pid.as_raw_nonzero())) else { return false };
    let is_target = |fd: fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|path| link_targets.contains(&path));
    fds.flatten().any(is_target) && pidfd_send_signal(process.as_fd(), Signal::KILL).is_ok()
}
