//! The error of file operations, the same for local and remote files.
//!
//! One error type with a kind to branch on. Its text says what was attempted, on which path, and why it failed.

use std::{
    io,
    path::{Path, PathBuf},
};

use exec_server_protocol::failure::{self, Kind};

use crate::Error;

/// Why a file operation failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} `{}`: {reason}", path.display())]
pub struct FileError {
    /// The operation, such as `read`.
    pub operation: &'static str,
    /// The path on which the operation was attempted.
    pub path: PathBuf,
    /// The kind of the error, to branch on.
    pub kind: FileErrorKind,
    /// The message of the system or of the server.
    pub reason: String,
}

/// The kind of a [`FileError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileErrorKind {
    /// The file does not exist.
    NotFound,
    /// The system denies the operation.
    PermissionDenied,
    /// A sandbox denies the operation.
    SandboxDenied,
    /// The operation does not apply: not a regular file, a relative path, or a limit exceeded.
    InvalidInput,
    /// A regular expression or a glob is not valid.
    InvalidPattern,
    /// The path contains a symbolic link, and links must not be followed.
    Symlink,
    /// A file with this name exists already.
    AlreadyExists,
    /// The path is a directory.
    IsADirectory,
    /// The path, or a part of it, is not a directory.
    NotADirectory,
    /// The directory is not empty.
    NotEmpty,
    /// The file does not have the requested etag.
    Changed,
    /// Another writer has the file open.
    Busy,
    /// The server does not know the handle of the open file, normally because it was restarted. Open the file again to continue.
    Closed,
    /// The file is larger than the operation allows.
    TooLarge,
    /// The disk is full.
    Full,
    /// The server, or this machine, does not support the operation.
    Unsupported,
    /// The call failed because the connection or the session was lost. `reason` contains the text of the [`crate::Error`].
    Disconnected,
    /// The server's answer is not valid.
    InvalidData,
    /// Any other error.
    Other,
}

impl FileError {
    pub(crate) fn new(operation: &'static str, path: &Path, kind: FileErrorKind, reason: impl Into<String>) -> Self {
        Self { operation, path: path.to_owned(), kind, reason: reason.into() }
    }

    /// The error for an answer that is not valid.
    pub(crate) fn invalid_data(operation: &'static str, path: &Path, reason: impl Into<String>) -> Self {
        Self::new(operation, path, FileErrorKind::InvalidData, reason)
    }

    /// Converts the error of a call to a server.
    pub(crate) fn of_call(operation: &'static str, path: &Path, error: &Error) -> Self {
        let kind = match error {
            Error::Server { kind: Some(kind), .. } => of_server_kind(*kind),
            Error::Server { code: failure::NOT_FOUND, .. } => FileErrorKind::NotFound,
            Error::Server { code: failure::INVALID_REQUEST | failure::INVALID_PARAMS, .. } => {
                FileErrorKind::InvalidInput
            }
            Error::Server { code: failure::METHOD_NOT_FOUND, .. } => FileErrorKind::Unsupported,
            Error::Server { .. } => FileErrorKind::Other,
            Error::Decode { .. } | Error::Protocol(_) => FileErrorKind::InvalidData,
            // All other errors are about the connection or the session.
            _ => FileErrorKind::Disconnected,
        };
        let reason = match error {
            Error::Server { message, .. } => without_prefix(message, path).to_owned(),
            _ => error.to_string(),
        };
        Self::new(operation, path, kind, reason)
    }
}

/// Removes the operation and the path from the start of a server's message, because the error displays both itself.
fn without_prefix<'a>(text: &'a str, path: &Path) -> &'a str {
    match text.split_once(&format!("`{}`: ", path.display())) {
        Some((tried, reason)) if tried.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b' ') => reason,
        _ => text,
    }
}

/// Converts the server's failure kind.
fn of_server_kind(kind: Kind) -> FileErrorKind {
    match kind {
        Kind::NotFound => FileErrorKind::NotFound,
        Kind::UnknownHandle => FileErrorKind::Closed,
        Kind::PermissionDenied | Kind::Forbidden => FileErrorKind::PermissionDenied,
        Kind::InvalidInput | Kind::NotRegularFile | Kind::RelativePath | Kind::InvalidUri => {
            FileErrorKind::InvalidInput
        }
        Kind::InvalidPattern => FileErrorKind::InvalidPattern,
        Kind::SymlinkRefused => FileErrorKind::Symlink,
        Kind::FileTooLarge => FileErrorKind::TooLarge,
        Kind::EtagMismatch => FileErrorKind::Changed,
        Kind::DraftBusy => FileErrorKind::Busy,
        Kind::AlreadyExists => FileErrorKind::AlreadyExists,
        Kind::IsADirectory => FileErrorKind::IsADirectory,
        Kind::NotADirectory => FileErrorKind::NotADirectory,
        Kind::DirectoryNotEmpty => FileErrorKind::NotEmpty,
        Kind::StorageFull => FileErrorKind::Full,
        Kind::Unsupported => FileErrorKind::Unsupported,
        Kind::SandboxDenied => FileErrorKind::SandboxDenied,
        _ => FileErrorKind::Other,
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        let kind = match error.kind {
            FileErrorKind::NotFound => io::ErrorKind::NotFound,
            FileErrorKind::PermissionDenied | FileErrorKind::SandboxDenied => io::ErrorKind::PermissionDenied,
            FileErrorKind::InvalidInput | FileErrorKind::InvalidPattern | FileErrorKind::Symlink => {
                io::ErrorKind::InvalidInput
            }
            FileErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            FileErrorKind::IsADirectory => io::ErrorKind::IsADirectory,
            FileErrorKind::NotADirectory => io::ErrorKind::NotADirectory,
            FileErrorKind::NotEmpty => io::ErrorKind::DirectoryNotEmpty,
            FileErrorKind::TooLarge => io::ErrorKind::FileTooLarge,
            FileErrorKind::Busy => io::ErrorKind::ResourceBusy,
            FileErrorKind::Full => io::ErrorKind::StorageFull,
            FileErrorKind::Unsupported => io::ErrorKind::Unsupported,
            FileErrorKind::Disconnected => io::ErrorKind::BrokenPipe,
            FileErrorKind::InvalidData => io::ErrorKind::InvalidData,
            FileErrorKind::Changed | FileErrorKind::Closed | FileErrorKind::Other => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_errors_map_to_broken_pipe() {
        let gone = [
            crate::Error::Disconnected { reason: Some("the link is cut".to_owned()) },
            crate::Error::Connect {
                address: "ws://127.0.0.1:1".to_owned(),
                failure: crate::ConnectFailure::NotListening,
                reason: "refused".to_owned(),
            },
        ];
        for error in gone {
            let error = FileError::of_call("read", Path::new("/x"), &error);
            assert_eq!(error.kind, FileErrorKind::Disconnected);
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[test]
    fn operation_and_path_appear_once() {
        let shown = |message: &str| {
            let error = crate::Error::Server { code: failure::NOT_FOUND, kind: None, message: message.to_owned() };
            FileError::of_call("open", Path::new("/a b"), &error).to_string()
        };
        assert_eq!(shown("open `/a b`: no such file"), "open `/a b`: no such file");
        assert_eq!(shown("look at `/a b`: no such file"), "open `/a b`: no such file");
        assert_eq!(
            shown("`/a b`: not a path of this host, because it names another host or a drive"),
            "open `/a b`: not a path of this host, because it names another host or a drive"
        );
        // A message that begins with other text, or names another path, is left unchanged.
        assert_eq!(shown("open `/a`: no such file"), "open `/a b`: open `/a`: no such file");
        assert_eq!(shown("`x` may not read `/a b`: no"), "open `/a b`: `x` may not read `/a b`: no");
    }
}
