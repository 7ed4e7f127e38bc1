//! A running child: its streams, its signals, its end.
//!
//! Owns the reap: a pid is signalled only while it is unreaped, so a recycled number is never hit. It does not know
//! whether anybody polls; whether a process or a [`Driver`](crate::Driver) is behind it shows nowhere.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Pid,
    termios::{LocalModes, SpecialCodeIndex, tcgetattr, tcsetwinsize},
};

use crate::{
    driver::{Driver, Script},
    launch::Started,
    spawn::{Size, Stdio},
    streams::{Ours, winsize},
    tree::{self, Killed, TreeScope},
};

/// `PIDFD_SIGNAL_PROCESS_GROUP`, Linux 6.9: the signal goes to the group that the process leads.
const SIGNAL_PROCESS_GROUP: usize = 1 << 2;

/// How long a dropped child is given to die of SIGKILL. One in uninterruptible sleep outlives it and is left to
/// whoever reaps for us; a longer time would stall the caller's loop.
const DROP_REAP_MAX: Duration = Duration::from_secs(1);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exited {
    /// The exit code; 128 + n for a death by signal n.
    pub code: i32,
    /// The signal it died of.
    pub signal: Option<u8>,
    /// Time in user mode, with that of the children it has waited for.
    pub user_ms: u64,
    /// Time in the kernel, with that of the children it has waited for.
    pub system_ms: u64,
    /// The largest resident size. The kernel counts our own size at the spawn as the child's first.
    pub max_rss_bytes: u64,
}

/// What became of a request to end a child's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseStdin {
    /// The pipe is closed.
    Closed,
    /// The terminal's end-of-file character was sent. In the middle of a line it only hands over the line, as at a
    /// keyboard; a second one then ends the input.
    EofSent,
    /// The terminal is not in canonical mode, so there is no character that means the end; nothing was sent.
    RawMode,
    /// There is no open input.
    NotOpen,
}

/// A child with our ends of its streams.
///
/// Dropping a child that was not reaped kills its process group and reaps it; dropping a reaped one signals nobody.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    backing: Backing,
    streams: Ours,
    /// Set by the reap; from then on the pid may belong to somebody else.
    exited: Option<Exited>,
}

#[derive(Debug)]
enum Backing {
    Process(Arc<OwnedFd>),
    Script(Arc<Script>),
}

impl Child {
    pub(crate) fn started(started: Started, streams: Ours) -> Self {
        let Started { pid, pidfd } = started;
        Self { pid, backing: Backing::Process(Arc::new(pidfd)), streams, exited: None }
    }

    /// Makes a child that is played by a [`Driver`]. Its pid is above every number that the kernel gives out.
    pub fn scripted(stdio: Stdio) -> io::Result<(Self, Driver)> {
        let (script, streams, driver) = Script::open(stdio)?;
        let child = Self { pid: script.pid(), backing: Backing::Script(script), streams, exited: None };
        Ok((child, driver))
    }

    /// The process id, which is also the id of the child's group and session.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Becomes readable when the leader has ended, and stays so.
    pub fn exit_fd(&self) -> BorrowedFd<'_> {
        match &self.backing {
            Backing::Process(pidfd) => pidfd.as_fd(),
            Backing::Script(script) => script.exit_fd(),
        }
    }

    /// The pidfd of the leader; a scripted child has none.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Process(pidfd) => Some(pidfd.as_fd()),
            Backing::Script(_) => None,
        }
    }

    /// The same to be kept until it can be handed to somebody: a copy of its own might not be had.
    pub fn shared_pidfd(&self) -> Option<Arc<OwnedFd>> {
        match &self.backing {
            Backing::Process(pidfd) => Some(Arc::clone(pidfd)),
            Backing::Script(_) => None,
        }
    }

    /// Where input is written: the open pipe or the terminal, nonblocking.
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

    /// The terminal, nonblocking, for reading and writing. After the last writer a read fails with `EIO`, which is
    /// the end, once [`Child::release_slave`] was called.
    pub fn pty(&self) -> Option<BorrowedFd<'_>> {
        self.streams.pty.as_ref().map(AsFd::as_fd)
    }

    /// Hands over the writing end of the stdin pipe.
    pub fn take_stdin(&mut self) -> Option<OwnedFd> {
        self.streams.stdin.take()
    }

    /// Hands over the stdout pipe; dropping the answer closes it.
    pub fn take_stdout(&mut self) -> Option<OwnedFd> {
        self.streams.stdout.take()
    }

    /// Hands over the stderr pipe; dropping the answer closes it.
    pub fn take_stderr(&mut self) -> Option<OwnedFd> {
        self.streams.stderr.take()
    }

    /// Hands over the terminal; resize and close-stdin end with it.
    pub fn take_pty(&mut self) -> Option<OwnedFd> {
        self.streams.pty.take()
    }

    /// Lets go of the child's side of the terminal, which is held so that no output is cut off while the leader
    /// lives. Call it after the reap: then reading ends with `EIO` as soon as nobody has the terminal open.
    pub fn release_slave(&mut self) {
        self.streams.slave = None;
    }

    /// Changes the size of the terminal; `ENOTTY` for a child with pipes.
    pub fn resize(&self, size: Size) -> io::Result<()> {
        let Some(master) = &self.streams.pty else {
            return Err(io::Error::from_raw_os_error(libc::ENOTTY));
        };
        match &self.backing {
            Backing::Process(_) => Ok(tcsetwinsize(master, winsize(size))?),
            Backing::Script(script) => {
                script.resize(size);
                Ok(())
            }
        }
    }

    /// Ends the child's input: closes the pipe, or sends the end-of-file character to a terminal in canonical mode.
    /// The terminal may be too full to take it; the error is then `WouldBlock` and the call is repeated later.
    pub fn close_stdin(&mut self) -> io::Result<CloseStdin> {
        if self.streams.stdin.take().is_some() {
            return Ok(CloseStdin::Closed);
        }
        let Some(master) = &self.streams.pty else {
            return Ok(CloseStdin::NotOpen);
        };
        let eof = match &self.backing {
            Backing::Process(_) => eof_character(master.as_fd())?,
            Backing::Script(script) => script.eof_character(),
        };
        let Some(eof) = eof else {
            return Ok(CloseStdin::RawMode);
        };
        rustix::io::write(master, &[eof])?;
        Ok(CloseStdin::EofSent)
    }

    /// Sends a signal to the child's process group. After the reap the answer is `ESRCH` and nobody is signalled;
    /// [`Child::kill_tree`] still reaches what is left.
    pub fn signal_group(&self, signal: i32) -> io::Result<()> {
        if self.exited.is_some() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        match &self.backing {
            Backing::Process(pidfd) => signal_process_group(pidfd.as_fd(), self.pid, signal),
            Backing::Script(script) => {
                script.signal(signal);
                Ok(())
            }
        }
    }

    /// Kills the leader, its group, its session and its descendants; after the reap what is left of group and session.
    pub fn kill_tree(&self) -> io::Result<Killed> {
        Self::kill_all([self])
    }

    /// The same for several children at the price of one: the walk over all processes is what a kill costs.
    pub fn kill_all<'a>(children: impl IntoIterator<Item = &'a Self>) -> io::Result<Killed> {
        let (mut leaders, mut living, mut scripted) = (Vec::new(), Vec::new(), 0);
        for child in children {
            match (&child.backing, child.exited.is_some()) {
                (Backing::Script(script), is_reaped) => {
                    script.signal(libc::SIGKILL);
                    scripted += usize::from(!is_reaped);
                }
                (Backing::Process(_), true) => leaders.push((child.pid, TreeScope::Remains)),
                (Backing::Process(_), false) => {
                    leaders.push((child.pid, TreeScope::Whole));
                    living.push(child);
                }
            }
        }
        // The walk comes first: a leader that dies before it takes the chain of parents with it.
        let killed = tree::kill_trees(&leaders);
        // Each group is killed in one step as well, so that it dies even where `/proc` cannot be read.
        let groups: io::Result<()> = living.iter().try_for_each(|child| child.signal_group(libc::SIGKILL));
        let killed = killed?;
        groups?;
        Ok(Killed { signalled: killed.signalled + scripted, ..killed })
    }

    /// Reaps the leader if it has ended; later calls give the same answer.
    pub fn try_wait(&mut self) -> io::Result<Option<Exited>> {
        if self.exited.is_none() {
            self.exited = match &self.backing {
                Backing::Process(_) => try_reap(self.pid)?,
                Backing::Script(script) => script.exited(),
            };
        }
        Ok(self.exited)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !matches!(self.try_wait(), Ok(None)) || matches!(self.backing, Backing::Script(_)) {
            return;
        }
        // Nobody is left to tell; what cannot be killed is left to whoever reaps for us.
        self.signal_group(libc::SIGKILL).ok();
        let limit = Timespec { tv_sec: DROP_REAP_MAX.as_secs().cast_signed(), tv_nsec: 0 };
        let exit_fd = self.exit_fd().try_clone_to_owned();
        if let Ok(exit_fd) = exit_fd {
            poll(&mut [PollFd::new(&exit_fd, PollFlags::IN)], Some(&limit)).ok();
        }
        self.try_wait().ok();
    }
}

/// The end-of-file character of a terminal in canonical mode.
fn eof_character(master: BorrowedFd<'_>) -> io::Result<Option<u8>> {
    let modes = tcgetattr(master)?;
    let eof = modes.special_codes[SpecialCodeIndex::VEOF];
    // Zero means that the character is switched off.
    Ok((modes.local_modes.contains(LocalModes::ICANON) && eof != 0).then_some(eof))
}

/// Only for an unreaped leader: the fallback goes by number.
fn signal_process_group(pidfd: BorrowedFd<'_>, leader: Pid, signal: i32) -> io::Result<()> {
    let fd = pidfd.as_raw_fd();
    // SAFETY: the call takes a descriptor, a number, no information and flags, and touches no memory of ours.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, 0_usize, SIGNAL_PROCESS_GROUP) };
    if sent == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) {
        return Err(error);
    }
    // An older kernel refuses the flag. The number is safe while its leader is unreaped.
    // SAFETY: `killpg` takes two numbers.
    if unsafe { libc::killpg(leader.as_raw_pid(), signal) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

fn try_reap(pid: Pid) -> io::Result<Option<Exited>> {
    let mut status: libc::c_int = 0;
    // SAFETY: all zero is a valid value of this structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for one write of their type; the pid is an unreaped child of ours.
    let waited = unsafe { libc::wait4(pid.as_raw_pid(), &mut status, libc::WNOHANG, &mut usage) };
    match waited {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Some(exited(status, &usage))),
    }
}

fn exited(status: libc::c_int, usage: &libc::rusage) -> Exited {
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    let millis = |time: libc::timeval| time.tv_sec.unsigned_abs() * 1000 + time.tv_usec.unsigned_abs() / 1000;
    Exited {
        code: signal.map_or_else(|| libc::WEXITSTATUS(status), |signal| 128 + signal),
        signal: signal.and_then(|signal| u8::try_from(signal).ok()),
        user_ms: millis(usage.ru_utime),
        system_ms: millis(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss.unsigned_abs() * 1024,
    }
}
