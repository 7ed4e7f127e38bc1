//! A running child: its streams, signals and exit status.
//!
//! This module reaps the child. The pid is signalled only until then, so a signal never hits a process that reuses the
//! pid. After the reap, `tree` kills the rest of the process tree through pidfds. A
//! [`ScriptDriver`](crate::ScriptDriver) can stand in for the process, and the caller sees no difference.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Pid,
    termios::{LocalModes, SpecialCodeIndex, tcgetattr, tcsetwinsize},
};

use crate::{
    driver::{ChildScript, ScriptDriver},
    launch::StartedChild,
    spawn::{StdioMode, TerminalSize},
    streams::{ParentStreams, winsize},
    tree::{self, KillOutcome, TreeScope},
};

/// `PIDFD_SIGNAL_PROCESS_GROUP` (Linux 6.9) sends the signal to the group that the process leads.
const SIGNAL_PROCESS_GROUP: usize = 1 << 2;

/// How long `drop` waits for a child to die of SIGKILL. A child in uninterruptible sleep can take longer. `drop` leaves
/// it unreaped: a caller that reaps stray children, or init, reaps it later. A longer wait would stall the caller's
/// event loop.
const DROP_REAP_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildExit {
    /// The exit code, or 128 + n if signal n killed the child.
    pub code: i32,
    /// The signal that killed the child.
    pub signal: Option<u8>,
    /// CPU time in user mode, including that of the children it has waited for.
    pub user_ms: u64,
    /// CPU time in kernel mode, including that of the children it has waited for.
    pub system_ms: u64,
    /// Largest resident set size of the child and of the children it has waited for. Never less than our own peak at
    /// the time of the spawn: until exec the child uses our memory (`CLONE_VM`), and the kernel counts that.
    pub max_rss_bytes: u64,
}

/// The result of closing a child's stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseStdinOutcome {
    Closed,
    /// The terminal's EOF character was sent. In the middle of a line it only submits the line, as on a keyboard. A
    /// second one then ends the input.
    EofSent,
    /// The terminal is not in canonical mode, or its EOF character is disabled. Nothing was sent.
    RawMode,
    /// Stdin is not open.
    NotOpen,
}

/// A child with the parent's ends of its streams.
///
/// Dropping a running child kills its process group, waits up to one second for its death and reaps it. Dropping a
/// child that has ended reaps it if necessary and sends no signal. Dropping a scripted child does nothing.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    backing: ChildBacking,
    streams: ParentStreams,
    /// Set when the child is reaped. From then on the pid may belong to another process.
    exited: Option<ChildExit>,
}

#[derive(Debug)]
enum ChildBacking {
    Process(Arc<OwnedFd>),
    Script(Arc<ChildScript>),
}

impl Child {
    pub(crate) fn started(started: StartedChild, streams: ParentStreams) -> Self {
        let StartedChild { pid, pidfd } = started;
        Self { pid, backing: ChildBacking::Process(Arc::new(pidfd)), streams, exited: None }
    }

    /// Creates a child that a [`ScriptDriver`] simulates. Its pid is above every pid that the kernel assigns.
    pub fn scripted(stdio: StdioMode) -> io::Result<(Self, ScriptDriver)> {
        let (script, streams, driver) = ChildScript::open(stdio)?;
        let child = Self { pid: script.pid(), backing: ChildBacking::Script(script), streams, exited: None };
        Ok((child, driver))
    }

    /// The pid, which is also the id of the child's process group and session.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// An fd that becomes readable when the leader has ended, and stays readable.
    pub fn exit_fd(&self) -> BorrowedFd<'_> {
        match &self.backing {
            ChildBacking::Process(pidfd) => pidfd.as_fd(),
            ChildBacking::Script(script) => script.exit_fd(),
        }
    }

    /// The pidfd of the leader. `None` for a scripted child.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            ChildBacking::Process(pidfd) => Some(pidfd.as_fd()),
            ChildBacking::Script(_) => None,
        }
    }

    /// The pidfd as a shared handle, for a message that is sent later. Unlike a `dup`, this cannot fail when fds are
    /// exhausted.
    pub fn shared_pidfd(&self) -> Option<Arc<OwnedFd>> {
        match &self.backing {
            ChildBacking::Process(pidfd) => Some(Arc::clone(pidfd)),
            ChildBacking::Script(_) => None,
        }
    }

    /// The fd to write input to: the open pipe or the terminal. Nonblocking.
    pub fn stdin(&self) -> Option<BorrowedFd<'_>> {
        self.streams.stdin.as_ref().or(self.streams.pty.as_ref()).map(AsFd::as_fd)
    }

    /// The reading end of the stdout pipe, nonblocking.
    pub fn stdout(&self) -> Option<BorrowedFd<'_>> {
        self.streams.stdout.as_ref().map(AsFd::as_fd)
    }

    /// The reading end of the stderr pipe, nonblocking.
    pub fn stderr(&self) -> Option<BorrowedFd<'_>> {
        self.streams.stderr.as_ref().map(AsFd::as_fd)
    }

    /// The terminal, for reading and writing. Nonblocking. A read fails with `EIO` at the end of the output: when the
    /// child's side is closed in all processes and [`Child::release_slave`] was called.
    pub fn pty(&self) -> Option<BorrowedFd<'_>> {
        self.streams.pty.as_ref().map(AsFd::as_fd)
    }

    /// Takes the writing end of the stdin pipe.
    pub fn take_stdin(&mut self) -> Option<OwnedFd> {
        self.streams.stdin.take()
    }

    /// Takes the stdout pipe. Dropping it closes the pipe.
    pub fn take_stdout(&mut self) -> Option<OwnedFd> {
        self.streams.stdout.take()
    }

    /// Takes the stderr pipe. Dropping it closes the pipe.
    pub fn take_stderr(&mut self) -> Option<OwnedFd> {
        self.streams.stderr.take()
    }

    /// Takes the terminal. After this, `resize` and `close_stdin` do not work.
    pub fn take_pty(&mut self) -> Option<OwnedFd> {
        self.streams.pty.take()
    }

    /// Closes the parent's copy of the child's side of the terminal. From then on, reading ends with `EIO` as soon as no
    /// process has the terminal open. A call before the reap could cut off output: the leader may close all its fds of
    /// the terminal and later open `/dev/tty`.
    pub fn release_slave(&mut self) {
        self.streams.slave = None;
    }

    /// Changes the size of the terminal. `ENOTTY` for a child with pipes.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let Some(master) = &self.streams.pty else {
            return Err(io::Error::from_raw_os_error(libc::ENOTTY));
        };
        match &self.backing {
            ChildBacking::Process(_) => Ok(tcsetwinsize(master, winsize(size))?),
            ChildBacking::Script(script) => {
                script.resize(size);
                Ok(())
            }
        }
    }

    /// Ends the child's input: closes the pipe, or sends the EOF character to a terminal in canonical mode. If the
    /// terminal's buffer is full, the error is `WouldBlock` and the caller must retry later.
    pub fn close_stdin(&mut self) -> io::Result<CloseStdinOutcome> {
        if self.streams.stdin.take().is_some() {
            return Ok(CloseStdinOutcome::Closed);
        }
        let Some(master) = &self.streams.pty else {
            return Ok(CloseStdinOutcome::NotOpen);
        };
        let eof = match &self.backing {
            ChildBacking::Process(_) => eof_character(master.as_fd())?,
            ChildBacking::Script(script) => script.eof_character(),
        };
        let Some(eof) = eof else {
            return Ok(CloseStdinOutcome::RawMode);
        };
        rustix::io::write(master, &[eof])?;
        Ok(CloseStdinOutcome::EofSent)
    }

    /// Sends a signal to the child's process group. After the reap, this returns `ESRCH` and sends nothing.
    /// [`Child::kill_tree`] can still kill the processes that are left.
    pub fn signal_group(&self, signal: i32) -> io::Result<()> {
        if self.exited.is_some() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        match &self.backing {
            ChildBacking::Process(pidfd) => signal_process_group(pidfd.as_fd(), self.pid, signal),
            ChildBacking::Script(script) => {
                script.signal(signal);
                Ok(())
            }
        }
    }

    /// Kills the leader, its group, its session and its descendants. After the reap, kills the rest of the group and
    /// session.
    pub fn kill_tree(&self) -> io::Result<KillOutcome> {
        Self::kill_all([self])
    }

    /// Like [`Child::kill_tree`], for several children at the cost of one: walking `/proc` is the expensive part.
    pub fn kill_all<'a>(children: impl IntoIterator<Item = &'a Self>) -> io::Result<KillOutcome> {
        let mut leaders = Vec::new();
        let mut unreaped = Vec::new();
        let mut scripted_kills = 0;
        for child in children {
            let is_reaped = child.exited.is_some();
            if let ChildBacking::Script(script) = &child.backing {
                // After the reap, SIGKILL still closes the streams of the script, as if it killed a grandchild that
                // held them. Only an unreaped script counts as a process.
                script.signal(libc::SIGKILL);
                scripted_kills += usize::from(!is_reaped);
            } else if is_reaped {
                leaders.push((child.pid, TreeScope::Remains));
            } else {
                leaders.push((child.pid, TreeScope::Whole));
                unreaped.push(child);
            }
        }
        // Walk before killing the groups: when a leader dies, its descendants lose the chain of parents by which they
        // are found.
        let killed = tree::kill_trees(&leaders);
        // Also kill each group with one system call, so that it dies even if `/proc` cannot be read. A group that
        // cannot be signalled must not spare the groups after it, so the first error is returned only at the end.
        let mut groups = Ok(());
        for child in unreaped {
            groups = groups.and(child.signal_group(libc::SIGKILL));
        }
        let killed = killed?;
        groups?;
        Ok(KillOutcome { signalled: killed.signalled + scripted_kills, ..killed })
    }

    /// Reaps the leader if it has ended. Later calls return the same status.
    pub fn try_wait(&mut self) -> io::Result<Option<ChildExit>> {
        if self.exited.is_none() {
            self.exited = match &self.backing {
                ChildBacking::Process(_) => try_reap(self.pid)?,
                ChildBacking::Script(script) => script.exited(),
            };
        }
        Ok(self.exited)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // An error means that the pid is not our unreaped child, so it must not be signalled.
        let is_running = matches!(self.try_wait(), Ok(None));
        if !is_running || matches!(self.backing, ChildBacking::Script(_)) {
            return;
        }
        // Errors are ignored because `drop` cannot report them. A child that survives is left unreaped, see
        // `DROP_REAP_MAX`.
        self.signal_group(libc::SIGKILL).ok();
        poll(&mut [PollFd::new(&self.exit_fd(), PollFlags::IN)], Some(&DROP_REAP_MAX)).ok();
        self.try_wait().ok();
    }
}

/// The EOF character of a terminal in canonical mode.
fn eof_character(master: BorrowedFd<'_>) -> io::Result<Option<u8>> {
    let modes = tcgetattr(master)?;
    let eof = modes.special_codes[SpecialCodeIndex::VEOF];
    // Zero means that the EOF character is disabled.
    Ok((modes.local_modes.contains(LocalModes::ICANON) && eof != 0).then_some(eof))
}

/// Signals the group of a leader. Call it only for an unreaped leader: the fallback uses the pid.
fn signal_process_group(pidfd: BorrowedFd<'_>, leader: Pid, signal: i32) -> io::Result<()> {
    let fd = pidfd.as_raw_fd();
    // SAFETY: the call takes an fd, a signal number, a null siginfo and flags. It does not access our memory.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, 0_usize, SIGNAL_PROCESS_GROUP) };
    if sent == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) {
        return Err(error);
    }
    // Kernels before 6.9 reject the flag.
    // SAFETY: the call takes two integers. The pid cannot belong to another group while its leader is unreaped.
    if unsafe { libc::killpg(leader.as_raw_pid(), signal) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

fn try_reap(pid: Pid) -> io::Result<Option<ChildExit>> {
    let mut status: libc::c_int = 0;
    // SAFETY: `rusage` consists of numbers, so all zeros is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for one write of their type. The pid is an unreaped child of this process.
    let waited = unsafe { libc::wait4(pid.as_raw_pid(), &mut status, libc::WNOHANG, &mut usage) };
    match waited {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Some(child_exit(status, &usage))),
    }
}

fn child_exit(status: libc::c_int, usage: &libc::rusage) -> ChildExit {
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    let millis = |time: libc::timeval| time.tv_sec.unsigned_abs() * 1000 + time.tv_usec.unsigned_abs() / 1000;
    ChildExit {
        code: signal.map_or_else(|| libc::WEXITSTATUS(status), |signal| 128 + signal),
        signal: signal.and_then(|signal| u8::try_from(signal).ok()),
        user_ms: millis(usage.ru_utime),
        system_ms: millis(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss.unsigned_abs() * 1024,
    }
}
