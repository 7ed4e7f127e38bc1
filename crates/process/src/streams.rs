//! The pipes or the terminal between us and a child, before there is a child.
//!
//! Owns which end is nonblocking and which descriptor number is safe to pass on; it does not know the child.

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

/// Our ends, nonblocking and close-on-exec.
#[derive(Debug, Default)]
pub(crate) struct Ours {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) pty: Option<OwnedFd>,
    /// The child's side of the terminal, kept so that the terminal outlives the child's last descriptor.
    pub(crate) slave: Option<OwnedFd>,
}

/// Our ends together with the ends that the child gets.
pub(crate) struct Streams {
    ours: Ours,
    theirs: Theirs,
}

enum Theirs {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Slave,
}

/// A descriptor to pass on whose number no target of another one can be.
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
    /// What becomes 0, 1 and 2; `None` is the null device, which the child opens itself.
    pub(crate) fn sources(&self) -> [Option<RawFd>; 3] {
        let raw = |fd: &Option<OwnedFd>| fd.as_ref().map(AsRawFd::as_raw_fd);
        match &self.theirs {
            Theirs::Pipes { stdin, stdout, stderr } => [raw(stdin), Some(stdout.as_raw_fd()), Some(stderr.as_raw_fd())],
            Theirs::Slave => [raw(&self.ours.slave); 3],
        }
    }

    /// Makes another user the owner of the child's ends: without it that user could not open `/dev/stdout` or its own
    /// terminal again.
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

    /// Closes the child's ends in the parent.
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
    // The two ends of a pipe are separate descriptions: a flag set on ours does not surprise the child.
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
    // By descriptor, not by name: the path could belong to another mount of devpts.
    let slave = ioctl_tiocgptpeer(&master, ours).map_err(|errno| resources("terminal peer", errno))?;
    tcsetwinsize(master.as_fd(), winsize(size)).map_err(|errno| resources("terminal size", errno))?;
    let ours = Ours { pty: Some(master), slave: Some(raise(slave, floor)?), ..Ours::default() };
    Ok(Streams { ours, theirs: Theirs::Slave })
}

/// Moves a descriptor to `floor` or above; free when it is there already, which is the rule.
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
