//! Errors of file operations, and the categories that callers distinguish. The server maps the categories to error
//! codes of the wire protocol.

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
    pub kind: ErrorKind,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ErrorKind {
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] io::Error),
    /// The path leads out of the view.
    #[error("it is not beneath one of the permitted directories")]
    OutsideView,
    /// The object belongs to the server itself: the view's guard protects it.
    #[error("it belongs to the server; only the owner of the server may use it")]
    Protected,
    /// The path contains a symbolic link, and the request does not follow links.
    #[error("the path contains a symbolic link, which is not followed")]
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
    /// The operating system or this crate does not support the operation.
    #[error("{0}")]
    Unsupported(&'static str),
    #[error("it was cancelled")]
    Cancelled,
}

/// Categories of errors that callers distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCategory {
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
    pub fn category(&self) -> ErrorCategory {
        match &self.kind {
            ErrorKind::Os(error) => os_category(error),
            ErrorKind::OutsideView | ErrorKind::Protected => ErrorCategory::OutsideView,
            ErrorKind::Symlink => ErrorCategory::Symlink,
            ErrorKind::NotRegular(_) => ErrorCategory::NotRegular,
            ErrorKind::TooLarge { .. } => ErrorCategory::TooLarge,
            ErrorKind::TooMany { .. } => ErrorCategory::TooMany,
            ErrorKind::EtagMismatch(_) => ErrorCategory::EtagMismatch,
            ErrorKind::Busy(_) => ErrorCategory::Busy,
            ErrorKind::InvalidInput(_) | ErrorKind::Literal(_) => ErrorCategory::InvalidInput,
            ErrorKind::Unsupported(_) => ErrorCategory::Unsupported,
            ErrorKind::Cancelled => ErrorCategory::Cancelled,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ErrorKind::Literal(text) => f.write_str(text),
            kind => write!(f, "{} `{}`: {kind}", self.action, self.path.display()),
        }
    }
}

impl std::error::Error for Error {}

impl ErrorKind {
    /// Whether the system call failed with this errno.
    pub(crate) fn is(&self, errno: Errno) -> bool {
        matches!(self, Self::Os(error) if error.raw_os_error() == Some(errno.raw_os_error()))
    }
}

impl From<Errno> for ErrorKind {
    fn from(errno: Errno) -> Self {
        Self::Os(errno.into())
    }
}

fn os_category(error: &io::Error) -> ErrorCategory {
    match error.kind() {
        io::ErrorKind::NotFound => ErrorCategory::NotFound,
        io::ErrorKind::PermissionDenied => ErrorCategory::PermissionDenied,
        io::ErrorKind::AlreadyExists => ErrorCategory::AlreadyExists,
        io::ErrorKind::IsADirectory => ErrorCategory::IsADirectory,
        io::ErrorKind::NotADirectory => ErrorCategory::NotADirectory,
        io::ErrorKind::DirectoryNotEmpty => ErrorCategory::DirectoryNotEmpty,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCategory::StorageFull,
        io::ErrorKind::InvalidInput => ErrorCategory::InvalidInput,
        io::ErrorKind::Unsupported => ErrorCategory::Unsupported,
        _ => ErrorCategory::Other,
    }
}

/// Runs an operation, and adds its action and path to an error.
pub(crate) fn attempt<T>(action: &'static str, path: &Path, run: impl FnOnce() -> Result<T, ErrorKind>) -> Result<T> {
    run().context(action, path)
}

/// Adds the action and the path to an `ErrorKind`.
pub(crate) trait ErrorContext<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<ErrorKind>> ErrorContext<T> for Result<T, E> {
    fn context(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|error| Error { action, path: path.to_owned(), kind: error.into() })
    }
}
