//! Opens the pipes or the terminal between parent and child, before the spawn.
//!
//! It decides which end is nonblocking and moves fds to numbers that are safe to pass to the child.

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

use crate::spawn::{ChildUser, SpawnError, StdinMode, StdioMode, TerminalSize};

/// The parent's ends: nonblocking and close-on-exec.
#[derive(Debug, Default)]
pub(crate) struct ParentStreams {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) pty: Option<OwnedFd>,
    /// The child's side of the terminal. Kept open so that the terminal survives when the child closes its last fd.
    pub(crate) slave: Option<OwnedFd>,
}

/// The parent's ends, together with the child's ends.
pub(crate) struct StreamEnds {
    ours: ParentStreams,
    theirs: ChildStreams,
}

enum ChildStreams {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Slave,
}

/// An fd to pass to the child. Its number is not the target number of any other fd.
pub(crate) enum PassedFd<'a> {
    Borrowed(&'a OwnedFd),
    Duplicated(OwnedFd),
}

impl<'a> PassedFd<'a> {
    pub(crate) fn borrow(fd: &'a OwnedFd, floor: RawFd) -> Result<Self, SpawnError> {
        if fd.as_raw_fd() >= floor {
            return Ok(Self::Borrowed(fd));
        }
        let raised = rustix::io::fcntl_dupfd_cloexec(fd, floor);
        Ok(Self::Duplicated(raised.map_err(|errno| resources("descriptor", errno))?))
    }

    pub(crate) fn as_raw(&self) -> RawFd {
        match self {
            Self::Borrowed(fd) => fd.as_raw_fd(),
            Self::Duplicated(fd) => fd.as_raw_fd(),
        }
    }
}

impl StreamEnds {
    /// The sources of fds 0, 1 and 2. `None`: the child opens `/dev/null` itself.
    pub(crate) fn sources(&self) -> [Option<RawFd>; 3] {
        let raw = |fd: &Option<OwnedFd>| fd.as_ref().map(AsRawFd::as_raw_fd);
        match &self.theirs {
            ChildStreams::Pipes { stdin, stdout, stderr } => {
                [raw(stdin), Some(stdout.as_raw_fd()), Some(stderr.as_raw_fd())]
            }
            ChildStreams::Slave => [raw(&self.ours.slave); 3],
        }
    }

    /// Changes the owner of the child's ends to another user. Without it, that user could not open `/dev/stdout` or its
    /// own terminal again.
    pub(crate) fn change_owner(&self, user: &ChildUser) -> Result<(), SpawnError> {
        let fds = match &self.theirs {
            ChildStreams::Pipes { stdin, stdout, stderr } => [stdin.as_ref(), Some(stdout), Some(stderr)],
            ChildStreams::Slave => [self.ours.slave.as_ref(), None, None],
        };
        for fd in fds.into_iter().flatten() {
            let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
            rustix::fs::fchown(fd, Some(uid), Some(gid)).map_err(|errno| resources("owner of a stream", errno))?;
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
    let ours = |fd: OwnedFd| match fcntl_setfl(&fd, OFlags::NONBLOCK) {
        Ok(()) => Ok(Some(fd)),
        Err(errno) => Err(resources("nonblocking pipe", errno)),
    };
    let (stdin, our_stdin) = match stdin {
        StdinMode::Null => (None, None),
        StdinMode::Open => {
            let (read, write) = pipe()?;
            (Some(raise(read, floor)?), ours(write)?)
        }
    };
    let (our_stdout, stdout) = pipe()?;
    let (our_stderr, stderr) = pipe()?;
    Ok(StreamEnds {
        ours: ParentStreams {
            stdin: our_stdin,
            stdout: ours(our_stdout)?,
            stderr: ours(our_stderr)?,
            ..ParentStreams::default()
        },
        theirs: ChildStreams::Pipes { stdin, stdout: raise(stdout, floor)?, stderr: raise(stderr, floor)? },
    })
}

fn terminal(size: TerminalSize, floor: RawFd) -> Result<StreamEnds, SpawnError> {
    let ours = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let nonblocking = OpenptFlags::from_bits_retain(OFlags::NONBLOCK.bits());
    let master = openpt(ours | nonblocking).map_err(|errno| resources("terminal", errno))?;
    unlockpt(&master).map_err(|errno| resources("terminal unlock", errno))?;
    // Use the ioctl instead of the path: the path could belong to another mount of devpts.
    let slave = ioctl_tiocgptpeer(&master, ours).map_err(|errno| resources("terminal peer", errno))?;
    tcsetwinsize(master.as_fd(), winsize(size)).map_err(|errno| resources("terminal size", errno))?;
    let ours = ParentStreams { pty: Some(master), slave: Some(raise(slave, floor)?), ..ParentStreams::default() };
    Ok(StreamEnds { ours, theirs: ChildStreams::Slave })
}

/// Moves an fd to `floor` or above. Usually it is already there, which costs nothing.
fn raise(fd: OwnedFd, floor: RawFd) -> Result<OwnedFd, SpawnError> {
    let raised = match PassedFd::borrow(&fd, floor)? {
        PassedFd::Borrowed(_) => None,
        PassedFd::Duplicated(raised) => Some(raised),
    };
    Ok(raised.unwrap_or(fd))
}

fn resources(what: &'static str, errno: rustix::io::Errno) -> SpawnError {
    SpawnError::Resources { what, source: io::Error::from(errno) }
}
