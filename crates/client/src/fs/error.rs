//! The error of file operations, the same for local and remote files.
//!
//! One error type with a kind to branch on. Its text says what was attempted, on which path, and why it failed.

use std::{
    io,
    path::{Path, PathBuf},
};

use exec_server_protocol::failure;

/// Why a file operation failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} `{}`: {reason}", path.display())]
pub struct Error {
    /// The operation, such as `read`.
    pub operation: &'static str,
    /// The path on which the operation was attempted.
    pub path: PathBuf,
    /// The kind of the error, to branch on.
    pub kind: ErrorKind,
    /// The message of the system or of the server.
    pub reason: String,
}

/// The kind of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
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
    /// Another writer has the file.
    Busy,
    /// The file is no longer open, because its server was restarted. Open it again to continue.
    Closed,
    /// The file is too large for one message.
    TooLarge,
    /// The disk is full.
    Full,
    /// The server, or this machine, does not support the operation.
    Unsupported,
    /// The server can no longer be reached. For the state of the session, see [`crate::Error`].
    Disconnected,
    /// The server's answer is not valid.
    InvalidData,
    /// Any other error.
    Other,
}

impl Error {
    pub(crate) fn new(operation: &'static str, path: &Path, kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self { operation, path: path.to_owned(), kind, reason: reason.into() }
    }

    /// Converts the error of a call to a server.
    pub(crate) fn of_call(operation: &'static str, path: &Path, error: &crate::Error) -> Self {
        let kind = match error {
            crate::Error::Server { kind: Some(kind), .. } => of_word(*kind),
            crate::Error::Server { code: failure::NOT_FOUND, .. } => ErrorKind::NotFound,
            crate::Error::Server { code: failure::INVALID_REQUEST | failure::INVALID_PARAMS, .. } => {
                ErrorKind::InvalidInput
            }
            crate::Error::Server { code: failure::METHOD_NOT_FOUND, .. } => ErrorKind::Unsupported,
            crate::Error::Server { .. } => ErrorKind::Other,
            crate::Error::Decode { .. } | crate::Error::Protocol(_) => ErrorKind::InvalidData,
            _ => ErrorKind::Disconnected,
        };
        let reason = match error {
            crate::Error::Server { message, .. } => once(message, path).to_owned(),
            _ => error.to_string(),
        };
        Self::new(operation, path, kind, reason)
    }
}

/// Removes the operation and the path from the start of a server's message, because the error displays both itself.
fn once<'a>(text: &'a str, path: &Path) -> &'a str {
    match text.split_once(&format!("`{}`: ", path.display())) {
        Some((tried, reason)) if tried.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b' ') => reason,
        _ => text,
    }
}

/// Converts the server's failure kind.
fn of_word(word: failure::Kind) -> ErrorKind {
    use failure::Kind;
    match word {
        Kind::NotFound => ErrorKind::NotFound,
        Kind::UnknownHandle => ErrorKind::Closed,
        Kind::PermissionDenied | Kind::Forbidden => ErrorKind::PermissionDenied,
        Kind::InvalidInput | Kind::NotRegularFile | Kind::RelativePath | Kind::InvalidUri => ErrorKind::InvalidInput,
        Kind::InvalidPattern => ErrorKind::InvalidPattern,
        Kind::SymlinkRefused => ErrorKind::Symlink,
        Kind::FileTooLarge => ErrorKind::TooLarge,
        Kind::EtagMismatch => ErrorKind::Changed,
        Kind::DraftBusy => ErrorKind::Busy,
        Kind::AlreadyExists => ErrorKind::AlreadyExists,
        Kind::IsADirectory => ErrorKind::IsADirectory,
        Kind::NotADirectory => ErrorKind::NotADirectory,
        Kind::DirectoryNotEmpty => ErrorKind::NotEmpty,
        Kind::StorageFull => ErrorKind::Full,
        Kind::Unsupported => ErrorKind::Unsupported,
        _ if word.as_str() == "sandboxDenied" => ErrorKind::SandboxDenied,
        _ => ErrorKind::Other,
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::PermissionDenied | ErrorKind::SandboxDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::InvalidInput | ErrorKind::InvalidPattern | ErrorKind::Symlink => io::ErrorKind::InvalidInput,
            ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            ErrorKind::IsADirectory => io::ErrorKind::IsADirectory,
            ErrorKind::NotADirectory => io::ErrorKind::NotADirectory,
            ErrorKind::NotEmpty => io::ErrorKind::DirectoryNotEmpty,
            ErrorKind::TooLarge => io::ErrorKind::FileTooLarge,
            ErrorKind::Busy => io::ErrorKind::ResourceBusy,
            ErrorKind::Full => io::ErrorKind::StorageFull,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Disconnected => io::ErrorKind::BrokenPipe,
            ErrorKind::InvalidData => io::ErrorKind::InvalidData,
            ErrorKind::Changed | ErrorKind::Closed | ErrorKind::Other => io::ErrorKind::Other,
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
            let error = Error::of_call("read", Path::new("/x"), &error);
            assert_eq!(error.kind, ErrorKind::Disconnected);
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[test]
    fn operation_and_path_are_said_once() {
        let shown = |message: &str| {
            let error = crate::Error::Server { code: failure::NOT_FOUND, kind: None, message: message.to_owned() };
            Error::of_call("open", Path::new("/a b"), &error).to_string()
        };
        assert_eq!(shown("open `/a b`: no such file"), "open `/a b`: no such file");
        assert_eq!(shown("look at `/a b`: no such file"), "open `/a b`: no such file");
        assert_eq!(shown("`/a b`: a path of another kind of host"), "open `/a b`: a path of another kind of host");
        // A message that begins with other text, or names another path, is left unchanged.
        assert_eq!(shown("open `/a`: no such file"), "open `/a b`: open `/a`: no such file");
        assert_eq!(shown("`x` may not read `/a b`: no"), "open `/a b`: `x` may not read `/a b`: no");
    }
}
