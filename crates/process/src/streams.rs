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

use crate::spawn::{Size, SpawnError, Stdin, Stdio, User};

/// The parent's ends: nonblocking and close-on-exec.
#[derive(Debug, Default)]
pub(crate) struct Ours {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) pty: Option<OwnedFd>,
    /// The child's side of the terminal. Kept open so that the terminal survives when the child closes its last fd.
    pub(crate) slave: Option<OwnedFd>,
}

/// The parent's ends, together with the child's ends.
pub(crate) struct Streams {
    ours: Ours,
    theirs: Theirs,
}

enum Theirs {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Slave,
}

/// An fd to pass to the child. Its number is not the target number of any other fd.
pub(crate) enum Source<'a> {
    Borrowed(&'a OwnedFd),
    Raised(OwnedFd),
}

impl<'a> Source<'a> {
    pub(crate) fn borrow(fd: &'a OwnedFd, floor: RawFd) -> Result<Self, SpawnError> {
        if fd.as_raw_fd() >= floor {
            return Ok(Self::Borrowed(fd));
        }
        let raised = rustix::io::fcntl_dupfd_cloexec(fd, floor);
        Ok(Self::Raised(raised.map_err(|errno| resources("descriptor", errno))?))
    }

    pub(crate) fn as_raw(&self) -> RawFd {
        match self {
            Self::Borrowed(fd) => fd.as_raw_fd(),
            Self::Raised(fd) => fd.as_raw_fd(),
        }
    }
}

impl Streams {
    /// The sources of fds 0, 1 and 2. `None`: the child opens `/dev/null` itself.
    pub(crate) fn sources(&self) -> [Option<RawFd>; 3] {
        let raw = |fd: &Option<OwnedFd>| fd.as_ref().map(AsRawFd::as_raw_fd);
        match &self.theirs {
            Theirs::Pipes { stdin, stdout, stderr } => [raw(stdin), Some(stdout.as_raw_fd()), Some(stderr.as_raw_fd())],
            Theirs::Slave => [raw(&self.ours.slave); 3],
        }
    }

    /// Changes the owner of the child's ends to another user. Without it, that user could not open `/dev/stdout` or its
    /// own terminal again.
    pub(crate) fn hand_over(&self, user: &User) -> Result<(), SpawnError> {
        let fds = match &self.theirs {
            Theirs::Pipes { stdin, stdout, stderr } => [stdin.as_ref(), Some(stdout), Some(stderr)],
            Theirs::Slave => [self.ours.slave.as_ref(), None, None],
        };
        for fd in fds.into_iter().flatten() {
            let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
            rustix::fs::fchown(fd, Some(uid), Some(gid)).map_err(|errno| resources("owner of a stream", errno))?;
        }
        Ok(())
    }

    /// Drops the child's ends, which closes them in the parent.
    pub(crate) fn into_ours(self) -> Ours {
        self.ours
    }
}

pub(crate) fn open(stdio: Stdio, floor: RawFd) -> Result<Streams, SpawnError> {
    match stdio {
        Stdio::Pipe { stdin } => pipes(stdin, floor),
        Stdio::Pty(size) => terminal(size, floor),
    }
}

pub(crate) fn winsize(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 }
}

fn pipes(stdin: Stdin, floor: RawFd) -> Result<Streams, SpawnError> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| resources("pipe", errno));
    // The two ends of a pipe are separate open file descriptions, so `O_NONBLOCK` on our end does not affect the child.
    let ours = |fd: OwnedFd| match fcntl_setfl(&fd, OFlags::NONBLOCK) {
        Ok(()) => Ok(Some(fd)),
        Err(errno) => Err(resources("nonblocking pipe", errno)),
    };
    let (stdin, our_stdin) = match stdin {
        Stdin::Null => (None, None),
        Stdin::Open => {
            let (read, write) = pipe()?;
            (Some(raise(read, floor)?), ours(write)?)
        }
    };
    let (our_stdout, stdout) = pipe()?;
    let (our_stderr, stderr) = pipe()?;
    Ok(Streams {
        ours: Ours { stdin: our_stdin, stdout: ours(our_stdout)?, stderr: ours(our_stderr)?, ..Ours::default() },
        theirs: Theirs::Pipes { stdin, stdout: raise(stdout, floor)?, stderr: raise(stderr, floor)? },
    })
}

fn terminal(size: Size, floor: RawFd) -> Result<Streams, SpawnError> {
    let ours = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let nonblocking = OpenptFlags::from_bits_retain(OFlags::NONBLOCK.bits());
    let master = openpt(ours | nonblocking).map_err(|errno| resources("terminal", errno))?;
    unlockpt(&master).map_err(|errno| resources("terminal unlock", errno))?;
    // Use the ioctl instead of the path: the path could belong to another mount of devpts.
    let slave = ioctl_tiocgptpeer(&master, ours).map_err(|errno| resources("terminal peer", errno))?;
    tcsetwinsize(master.as_fd(), winsize(size)).map_err(|errno| resources("terminal size", errno))?;
    let ours = Ours { pty: Some(master), slave: Some(raise(slave, floor)?), ..Ours::default() };
    Ok(Streams { ours, theirs: Theirs::Slave })
}

/// Moves an fd to `floor` or above. Usually it is already there, which costs nothing.
fn raise(fd: OwnedFd, floor: RawFd) -> Result<OwnedFd, SpawnError> {
    let raised = match Source::borrow(&fd, floor)? {
        Source::Borrowed(_) => None,
        Source::Raised(raised) => Some(raised),
    };
    Ok(raised.unwrap_or(fd))
}

fn resources(what: &'static str, errno: rustix::io::Errno) -> SpawnError {
    SpawnError::Resources { what, source: io::Error::from(errno) }
}
