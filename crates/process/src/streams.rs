//! Opens the pipes or the terminal between parent and child, before the spawn.
//!
//! It decides which end is nonblocking. The child duplicates each of its fds to a target number, such as 0 for stdin.
//! This module first moves the sources to numbers of at least `floor`, which is above every target number. So no
//! duplication overwrites a source that is still needed. A child that shares our fd table gets low numbers instead
//! ([`low_fds`](crate::low_fds)).

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    pipe::{PipeFlags, pipe_with},
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::{
    low_fds::ChildNumbers,
    spawn::{ChildUser, SpawnError, StdinMode, StdioMode, TerminalSize},
};

/// The parent's ends: nonblocking and close-on-exec.
#[derive(Debug, Default)]
pub(crate) struct ParentStreams {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) pty: Option<OwnedFd>,
    /// The child's side of the terminal. Kept open so that reading does not end with `EIO` when the child closes its
    /// last fd of the terminal.
    pub(crate) slave: Option<OwnedFd>,
}

/// The parent's ends, together with the child's ends.
pub(crate) struct StreamEnds {
    ours: ParentStreams,
    /// The child's ends of the pipes to fds 0, 1 and 2. A child with a terminal uses `ours.slave` instead.
    pipes: [Option<OwnedFd>; 3],
}

/// Which numbers the fds have that are passed to a child.
pub(crate) enum SourceNumbers<'a> {
    /// Any from this one up.
    From(RawFd),
    /// Those that are reserved for this child.
    Low(ChildNumbers<'a>),
}

impl SourceNumbers<'_> {
    /// A number above all low ones. `None` if the numbers are not low.
    pub(crate) fn end(&self) -> Option<RawFd> {
        match self {
            Self::From(_) => None,
            Self::Low(numbers) => Some(numbers.end()),
        }
    }
}

/// An fd to pass to the child. Its number is not the target number of any other fd.
pub(crate) struct PassedFd<'a> {
    number: RawFd,
    /// Holds the number open, if it is not `fd`.
    _raised: Option<OwnedFd>,
    _fd: &'a OwnedFd,
}

impl<'a> PassedFd<'a> {
    pub(crate) fn borrow(fd: &'a OwnedFd, numbers: &mut SourceNumbers<'_>) -> Result<Self, SpawnError> {
        let (number, raised) = match numbers {
            SourceNumbers::Low(numbers) => (place(fd, numbers)?, None),
            SourceNumbers::From(floor) => {
                let raised = raised(fd, *floor)?;
                (raised.as_ref().unwrap_or(fd).as_raw_fd(), raised)
            }
        };
        Ok(Self { number, _raised: raised, _fd: fd })
    }

    pub(crate) fn as_raw(&self) -> RawFd {
        self.number
    }
}

impl StreamEnds {
    /// The number of fds that the child gets.
    pub(crate) fn count(&self) -> usize {
        self.child_ends().count()
    }

    fn child_ends(&self) -> impl Iterator<Item = &OwnedFd> {
        self.ours.slave.iter().chain(self.pipes.iter().flatten())
    }

    /// The sources of fds 0, 1 and 2. `None`: the child opens `/dev/null` itself.
    pub(crate) fn sources(&self, numbers: &mut SourceNumbers<'_>) -> Result<[Option<RawFd>; 3], SpawnError> {
        let mut source = |end: &OwnedFd| match numbers {
            SourceNumbers::Low(numbers) => place(end, numbers),
            // `open` has moved the ends already.
            SourceNumbers::From(_) => Ok(end.as_raw_fd()),
        };
        if let Some(slave) = &self.ours.slave {
            return Ok([Some(source(slave)?); 3]);
        }
        let [stdin, stdout, stderr] = self.pipes.each_ref().map(|end| end.as_ref().map(&mut source).transpose());
        Ok([stdin?, stdout?, stderr?])
    }

    /// Changes the owner of the child's ends to another user. Without it, that user could not open `/dev/stdout` or its
    /// own terminal again.
    pub(crate) fn change_owner(&self, user: &ChildUser) -> Result<(), SpawnError> {
        let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
        for end in self.child_ends() {
            rustix::fs::fchown(end, Some(uid), Some(gid))
                .map_err(|errno| resources("stream owned by the child's user", errno))?;
        }
        Ok(())
    }

    /// Drops the child's ends, which closes them in the parent.
    pub(crate) fn into_parent(self) -> ParentStreams {
        self.ours
    }
}

pub(crate) fn open(stdio: StdioMode, floor: RawFd) -> Result<StreamEnds, SpawnError> {
    match stdio {
        StdioMode::Pipe { stdin } => pipes(stdin, floor),
        StdioMode::Pty(size) => terminal(size, floor),
    }
}

pub(crate) fn winsize(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 }
}

fn pipes(stdin: StdinMode, floor: RawFd) -> Result<StreamEnds, SpawnError> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| resources("pipe", errno));
    // The two ends of a pipe are separate open file descriptions, so `O_NONBLOCK` on our end does not affect the child.
    let set_nonblocking = |fd: OwnedFd| match fcntl_setfl(&fd, OFlags::NONBLOCK) {
        Ok(()) => Ok(Some(fd)),
        Err(errno) => Err(resources("nonblocking pipe", errno)),
    };
    let (stdin, our_stdin) = match stdin {
        StdinMode::Null => (None, None),
        StdinMode::Open => {
            let (read, write) = pipe()?;
            (Some(raise(read, floor)?), set_nonblocking(write)?)
        }
    };
    let (our_stdout, stdout) = pipe()?;
    let (our_stderr, stderr) = pipe()?;
    Ok(StreamEnds {
        ours: ParentStreams {
            stdin: our_stdin,
            stdout: set_nonblocking(our_stdout)?,
            stderr: set_nonblocking(our_stderr)?,
            ..ParentStreams::default()
        },
        pipes: [stdin, Some(raise(stdout, floor)?), Some(raise(stderr, floor)?)],
    })
}

fn terminal(size: TerminalSize, floor: RawFd) -> Result<StreamEnds, SpawnError> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let nonblocking = OpenptFlags::from_bits_retain(OFlags::NONBLOCK.bits());
    let master = openpt(flags | nonblocking).map_err(|errno| resources("terminal", errno))?;
    unlockpt(&master).map_err(|errno| resources("terminal unlock", errno))?;
    // Use the ioctl instead of the path: the path could belong to another mount of devpts.
    let slave = ioctl_tiocgptpeer(&master, flags).map_err(|errno| resources("terminal peer", errno))?;
    tcsetwinsize(master.as_fd(), winsize(size)).map_err(|errno| resources("terminal size", errno))?;
    let ours = ParentStreams { pty: Some(master), slave: Some(raise(slave, floor)?), ..ParentStreams::default() };
    Ok(StreamEnds { ours, pipes: [None, None, None] })
}

fn place(fd: &OwnedFd, numbers: &mut ChildNumbers<'_>) -> Result<RawFd, SpawnError> {
    numbers.place(fd.as_fd()).map_err(|source| SpawnError::Resources { what: "descriptor", source })
}

/// Moves an fd to `floor` or above. Usually it is already there, which costs nothing.
fn raise(fd: OwnedFd, floor: RawFd) -> Result<OwnedFd, SpawnError> {
    Ok(raised(&fd, floor)?.unwrap_or(fd))
}

/// A duplicate of the fd at `floor` or above. `None` if the fd is already there.
fn raised(fd: &OwnedFd, floor: RawFd) -> Result<Option<OwnedFd>, SpawnError> {
    if fd.as_raw_fd() >= floor {
        return Ok(None);
    }
    let duplicate = rustix::io::fcntl_dupfd_cloexec(fd, floor);
    duplicate.map(Some).map_err(|errno| resources("descriptor", errno))
}

fn resources(what: &'static str, errno: rustix::io::Errno) -> SpawnError {
    SpawnError::Resources { what, source: io::Error::from(errno) }
}
