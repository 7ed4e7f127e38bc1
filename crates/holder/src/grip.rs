//! Who holds a stream: descendants found by what they have open, not by group, session or parents.
//!
//! Owns the walk over `/proc/PID/fd`. A daemon that left its session and lost its parent is still found by the pipe or the
//! terminal that it writes to, so that `terminate` can reach it. Only for a process that is nothing but a holder: while
//! another thread spawns, its child has copies of descriptors that are not its own.
//!
//! Failure paths: a process that may not be looked at (another user's) is left; it ends with the session or not at all.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use exec_server_process::{Member, descendants_of};
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// Kills every descendant that has one of these streams open; gives how many there were.
pub(crate) fn kill_holders<'a>(streams: impl Iterator<Item = BorrowedFd<'a>>) -> usize {
    let targets: Vec<PathBuf> = streams.filter_map(target).collect();
    if targets.is_empty() {
        return 0;
    }
    let descendants = descendants_of(getpid()).unwrap_or_default();
    descendants.iter().filter(|member| !member.is_zombie && kill_if_holder(member, &targets)).count()
}

/// What the other end of a stream looks like under `/proc/PID/fd`.
fn target(stream: BorrowedFd<'_>) -> Option<PathBuf> {
    match rustix::pty::ptsname(stream, Vec::new()) {
        Ok(slave) => Some(PathBuf::from(slave.into_string().ok()?)),
        // Both ends of a pipe bear its number.
        Err(_) => fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).ok(),
    }
}

fn kill_if_holder(member: &Member, targets: &[PathBuf]) -> bool {
    // The descriptor first: what is found afterwards is found in this process or in none.
    let Ok(process) = pidfd_open(member.pid, PidfdFlags::empty()) else { return false };
    let Ok(fds) = fs::read_dir(format!("/proc/{}/fd", member.pid.as_raw_nonzero())) else { return false };
    let is_target = |fd: fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|path| targets.contains(&path));
    fds.flatten().any(is_target) && pidfd_send_signal(process.as_fd(), Signal::KILL).is_ok()
}
