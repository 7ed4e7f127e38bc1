//! What can go wrong, and the few kinds of it that callers tell apart. Must not know codes of any wire.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

/// What an operation returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An operation that failed: what was tried, on what, and why it did not work.
#[derive(Debug)]
pub struct Error {
    /// What was tried, for example `read`.
    pub action: &'static str,
    /// On what.
    pub path: PathBuf,
    /// What went wrong.
    pub trouble: Trouble,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The operating system refused.
    #[error("{0}")]
    Os(io::Error),
    /// The path leads out of the view.
    #[error("it is not beneath one of the permitted directories")]
    OutsideView,
    /// A file of the program that serves the request.
    #[error("it belongs to the server, and only the owner of the server may use it")]
    Protected,
    /// A link where none is followed.
    #[error("the path contains a symbolic link, and none is followed")]
    Symlink,
    /// Something that has no bytes of its own.
    #[error("it is {0}, not a regular file")]
    NotRegular(&'static str),
    /// More bytes than one call takes.
    #[error("it has more than {most} bytes; {advice}")]
    TooLarge {
        /// The bound.
        most: u64,
        /// What to do instead.
        advice: &'static str,
    },
    /// More entries than one call takes.
    #[error("it has more than {most} entries; {advice}")]
    TooMany {
        /// The bound.
        most: usize,
        /// What to do instead.
        advice: &'static str,
    },
    /// The file is not in the state that the caller expects.
    #[error("it is not in the expected state: {0}")]
    EtagMismatch(&'static str),
    /// Somebody else is at it.
    #[error("{0}")]
    Busy(&'static str),
    /// The caller asked for something that makes no sense.
    #[error("{0}")]
    InvalidInput(&'static str),
    /// The same, in words that callers compare: nothing is put before them.
    #[error("{0}")]
    Literal(&'static str),
    /// Neither the system nor this crate can do it.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The caller has called it off.
    #[error("it was called off")]
    Cancelled,
}

/// The kinds of failure that callers tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// There is no such file.
    NotFound,
    /// The system does not permit it.
    PermissionDenied,
    /// The request makes no sense for this file.
    InvalidInput,
    /// The path leads out of the view, or to what its guard protects.
    OutsideView,
    /// A link where none is followed.
    Symlink,
    /// A FIFO, a socket, a device or a file of `/proc`.
    NotRegular,
    /// More bytes than one call takes.
    TooLarge,
    /// More entries than one call takes.
    TooMany,
    /// Not in the expected state.
    EtagMismatch,
    /// Somebody else is at it.
    Busy,
    /// Something of this name is there.
    AlreadyExists,
    /// A directory where a file is needed.
    IsADirectory,
    /// A file where a directory is needed.
    NotADirectory,
    /// The directory has entries.
    DirectoryNotEmpty,
    /// No room on the disk, or a quota is used up.
    StorageFull,
    /// It cannot be done here.
    Unsupported,
    /// It was called off.
    Cancelled,
    /// Anything else; the text says what.
    Other,
}

impl Error {
    /// Which kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.trouble.kind()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.trouble {
            Trouble::Literal(text) => f.write_str(text),
            trouble => write!(f, "{} `{}`: {trouble}", self.action, self.path.display()),
        }
    }
}

impl std::error::Error for Error {}

impl Trouble {
    /// Which kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Os(error) => os_kind(error),
            Self::OutsideView | Self::Protected => Kind::OutsideView,
            Self::Symlink => Kind::Symlink,
            Self::NotRegular(_) => Kind::NotRegular,
            Self::TooLarge { .. } => Kind::TooLarge,
            Self::TooMany { .. } => Kind::TooMany,
            Self::EtagMismatch(_) => Kind::EtagMismatch,
            Self::Busy(_) => Kind::Busy,
            Self::InvalidInput(_) | Self::Literal(_) => Kind::InvalidInput,
            Self::Unsupported(_) => Kind::Unsupported,
            Self::Cancelled => Kind::Cancelled,
        }
    }

    /// The same with what was tried and on what.
    pub(crate) fn on(self, action: &'static str, path: &Path) -> Error {
        Error { action, path: path.to_owned(), trouble: self }
    }

    /// Whether the system's answer was this.
    pub(crate) fn is(&self, errno: Errno) -> bool {
        matches!(self, Self::Os(error) if error.raw_os_error() == Some(errno.raw_os_error()))
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self::Os(errno.into())
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Os(error)
    }
}

fn os_kind(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::NotFound => Kind::NotFound,
        io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
        io::ErrorKind::AlreadyExists => Kind::AlreadyExists,
        io::ErrorKind::IsADirectory => Kind::IsADirectory,
        io::ErrorKind::NotADirectory => Kind::NotADirectory,
        io::ErrorKind::DirectoryNotEmpty => Kind::DirectoryNotEmpty,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::StorageFull,
        io::ErrorKind::InvalidInput => Kind::InvalidInput,
        io::ErrorKind::Unsupported => Kind::Unsupported,
        _ => Kind::Other,
    }
}

/// Adds to a bare trouble what was tried and on what.
pub(crate) trait On<T> {
    /// Names the operation.
    fn on(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<Trouble>> On<T> for Result<T, E> {
    fn on(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|error| error.into().on(action, path))
    }
}
