//! Handles strays, that is, descendants that are not the leader of a process: reaps them when they die, and kills them
//! at the end of the session.
//!
//! Use this only in a process that serves solely as a holder (or spawner): elsewhere it would reap and kill children of
//! other code.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{FromRawFd, OwnedFd},
};

use rustix::{
    io::Errno,
    process::{Pid, WaitId, WaitIdOptions, WaitOptions, getpid},
};

/// Blocks SIGCHLD and returns a signalfd that is readable while SIGCHLD is pending.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set before it is used. The other calls only read it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// The kind of a dead child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadChild {
    /// A leader that will be reaped within a few turns.
    Leader,
    /// A leader whose tail cannot be read now. It stays unreaped for an unknown time.
    BlockedLeader,
    /// Not a leader.
    Stray,
}

/// Reaps dead children that are not leaders, in the order in which the kernel reports them. Returns true if it stopped
/// at a leader that will be reaped soon. The caller must then call again later: to find the dead children behind that
/// leader now, this function would have to walk over all processes of the host.
pub(crate) fn reap_strays(classify: impl Fn(i32) -> DeadChild) -> bool {
    loop {
        let Some(pid) = peek_dead() else { return false };
        match classify(pid.as_raw_pid()) {
            DeadChild::Stray => reap(pid),
            DeadChild::Leader => return true,
            DeadChild::BlockedLeader => {
                reap_by_walk(|pid| classify(pid) != DeadChild::Stray);
                return false;
            }
        }
    }
}

/// Kills all descendants and reaps all dead children, including leaders. Returns true when no child is left.
pub(crate) fn kill_all() -> bool {
    // A walk over all processes of the host takes milliseconds, so look first whether there is anything to kill.
    reap_all() || {
        exec_server_process::kill_descendants(getpid()).ok();
        reap_all()
    }
}

/// Reaps all dead children, including leaders. Returns true when no child is left: then this process, a subreaper, has
/// no descendant either.
pub(crate) fn reap_all() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(errno) => return errno == Errno::CHILD,
        }
    }
}

/// Whether this process has a child, alive or unreaped. That covers all descendants: each descendant of a subreaper has
/// an ancestor among the subreaper's children.
pub(crate) fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(rustix::process::waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// Returns a dead child without reaping it. (rustix's `waitid` does not report the pid.)
fn peek_dead() -> Option<Pid> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is valid for one write. All-zero bytes are a valid value. If no child is dead, `waitid`
    // leaves the value as it is, and `si_pid` is 0.
    let pid = unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) != 0 {
            return None;
        }
        info.assume_init().si_pid()
    };
    Pid::from_raw(pid)
}

/// Finds the dead children by a walk over all processes of the host, and reaps those that are not leaders.
fn reap_by_walk(is_leader: impl Fn(i32) -> bool) {
    let me = getpid();
    let Ok(descendants) = exec_server_process::descendants_of(me) else { return };
    for descendant in descendants {
        let is_our_zombie = descendant.parent == me.as_raw_pid() && descendant.is_zombie;
        if is_our_zombie && !is_leader(descendant.pid.as_raw_pid()) {
            reap(descendant.pid);
        }
    }
}

fn reap(stray: Pid) {
    // ECHILD is fine: the stray has been reaped already.
    rustix::process::waitpid(Some(stray), WaitOptions::NOHANG).ok();
}
