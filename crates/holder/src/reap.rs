//! Strays: descendants that are nobody's leader. They are reaped as they die and killed at the end of the session.
//!
//! Owns the walk over what belongs to this process; does not know sessions or logs. Only for a process that is nothing
//! but a holder: it would reap and kill the children of others.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, getpid};

/// Blocks SIGCHLD and makes a descriptor that is readable when one is pending.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by `sigemptyset` before it is used; the calls only read it.
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

/// Whose death it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dead {
    /// A leader's, and it is reaped within a turn or two.
    Leader,
    /// A leader's whose tail cannot be read now: it stays, for nobody knows how long.
    Kept,
    Stray,
}

/// Reaps dead children that are not leaders. True: the kernel shows a leader first that is about to be reaped; look again then, for
/// a walk over all processes of the host is what it costs to look behind it.
pub(crate) fn reap_strays(whose: impl Fn(i32) -> Dead) -> bool {
    loop {
        let Some(pid) = peek_dead() else { return false };
        match whose(pid.as_raw_pid()) {
            Dead::Stray => reap(pid),
            Dead::Leader => return true,
            Dead::Kept => {
                reap_by_walk(|pid| whose(pid) != Dead::Stray);
                return false;
            }
        }
    }
}

/// Kills all descendants and reaps what is dead, leaders too. True when nobody is left.
pub(crate) fn kill_all() -> bool {
    exec_server_process::kill_descendants(getpid()).ok();
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
    matches!(rustix::process::wait(WaitOptions::NOHANG), Err(Errno::CHILD))
}

/// Whether this process has a child, alive or unreaped. A descendant of a subreaper always has an ancestor among its children.
pub(crate) fn has_children() -> bool {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is valid for one write; nothing of it is read.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(Errno::CHILD.raw_os_error())
}

/// A dead child, left unreaped.
fn peek_dead() -> Option<Pid> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is valid for one write; all-zero bytes are a valid value, which `waitid` leaves as it is where
    // nobody is dead, and `si_pid` is then 0.
    let pid = unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) != 0 {
            return None;
        }
        info.assume_init().si_pid()
    };
    Pid::from_raw(pid)
}

fn reap_by_walk(is_leader: impl Fn(i32) -> bool) {
    let me = getpid();
    let Ok(descendants) = exec_server_process::descendants_of(me) else { return };
    let ours = |parent: i32| parent == me.as_raw_pid();
    for stray in descendants {
        if ours(stray.parent) && stray.is_zombie && !is_leader(stray.pid.as_raw_pid()) {
            reap(stray.pid);
        }
    }
}

fn reap(stray: Pid) {
    // Gone already is as good as reaped.
    rustix::process::waitpid(Some(stray), WaitOptions::NOHANG).ok();
}
