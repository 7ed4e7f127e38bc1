//! Errors of file operations, and the kinds that callers distinguish. Error codes of the wire protocol are mapped elsewhere.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation: the action, the path and the reason.
#[derive(Debug)]
pub struct Error {
    /// The action that failed, for example `read`.
    pub action: &'static str,
    pub path: PathBuf,
    pub trouble: Trouble,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A system call failed.
    #[error("{0}")]
    Os(io::Error),
    /// The path leads out of the view.
    #[error("it is not beneath one of the permitted directories")]
    OutsideView,
    /// The object belongs to the server itself: the view's guard protects it.
    #[error("it belongs to the server, and only the owner of the server may use it")]
    Protected,
    /// The path contains a symbolic link, and the request does not follow links.
    #[error("the path contains a symbolic link, and none is followed")]
    Symlink,
    /// The object is not a regular file.
    #[error("it is {0}, not a regular file")]
    NotRegular(&'static str),
    /// The file has more bytes than one call returns.
    #[error("it has more than {most} bytes; {advice}")]
    TooLarge {
        most: u64,
        /// Advice for the caller.
        advice: &'static str,
    },
    /// The directory or tree has more entries than one call handles.
    #[error("it has more than {most} entries; {advice}")]
    TooMany {
        most: usize,
        /// Advice for the caller.
        advice: &'static str,
    },
    /// The file does not have the etag that the caller expects.
    #[error("it is not in the expected state: {0}")]
    EtagMismatch(&'static str),
    /// Another process or thread is using the file.
    #[error("{0}")]
    Busy(&'static str),
    /// The request is not valid for this file.
    #[error("{0}")]
    InvalidInput(&'static str),
    /// Like `InvalidInput`, but clients compare the exact text, so it is printed without action and path.
    #[error("{0}")]
    Literal(&'static str),
    /// The operating system or this crate does not support it.
    #[error("{0}")]
    Unsupported(&'static str),
    #[error("it was called off")]
    Cancelled,
}

/// Kinds of errors that callers distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    NotFound,
    PermissionDenied,
    /// The request is not valid for this file.
    InvalidInput,
    /// The path leads out of the view, or to an object that its guard protects.
    OutsideView,
    /// The path contains a symbolic link, and the request does not follow links.
    Symlink,
    /// Not a regular file, or a file of `/proc`.
    NotRegular,
    /// The file has more bytes than one call returns.
    TooLarge,
    /// The directory or tree has more entries than one call handles.
    TooMany,
    EtagMismatch,
    /// Another process or thread is using the file.
    Busy,
    AlreadyExists,
    IsADirectory,
    NotADirectory,
    DirectoryNotEmpty,
    /// The disk is full, or a quota is exceeded.
    StorageFull,
    Unsupported,
    Cancelled,
    /// Any other error. Its text has the reason.
    Other,
}

impl Error {
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

    /// Adds the action and the path.
    pub(crate) fn on(self, action: &'static str, path: &Path) -> Error {
        Error { action, path: path.to_owned(), trouble: self }
    }

    /// Whether the system call failed with this errno.
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

/// Adds the action and the path to a `Trouble`.
pub(crate) trait On<T> {
    fn on(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<Trouble>> On<T> for Result<T, E> {
    fn on(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|error| error.into().on(action, path))
    }
}
