//! What can go wrong with a file, the same here and on a server.
//!
//! One error with a kind to branch on; the text says what was tried, on what, and why it failed. It must not know the wire
//! beyond the words of its failures.

use std::{
    io,
    path::{Path, PathBuf},
};

use exec_server_protocol::failure;

/// Why something with a file failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} `{}`: {reason}", path.display())]
pub struct Error {
    /// What was tried, such as `read`.
    pub operation: &'static str,
    /// On what.
    pub path: PathBuf,
    /// What to branch on.
    pub kind: ErrorKind,
    /// What the system, or the server, said.
    pub reason: String,
}

/// The kind of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such file.
    NotFound,
    /// The system does not permit it.
    PermissionDenied,
    /// A sandbox does not permit it.
    SandboxDenied,
    /// It makes no sense for this file: not a regular file, a relative path, a bound exceeded.
    InvalidInput,
    /// A regular expression or a glob cannot be read.
    InvalidPattern,
    /// There is a link in the path, and none was to be followed.
    Symlink,
    /// Something of that name is there already.
    AlreadyExists,
    /// It is a directory.
    IsADirectory,
    /// It, or a part of the path, is no directory.
    NotADirectory,
    /// The directory is not empty.
    NotEmpty,
    /// The file is not in the state that was asked for.
    Changed,
    /// Somebody else is at it.
    Busy,
    /// It is no longer open: its server was started anew. Opened again, it goes on.
    Closed,
    /// It is too large for one message.
    TooLarge,
    /// There is no room on the disk.
    Full,
    /// The place cannot do it.
    Unsupported,
    /// The server cannot be reached any more; for what the session says, see [`crate::Error`].
    Disconnected,
    /// What the server answered makes no sense.
    InvalidData,
    /// Anything else.
    Other,
}

impl Error {
    pub(crate) fn new(operation: &'static str, path: &Path, kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self { operation, path: path.to_owned(), kind, reason: reason.into() }
    }

    /// What a call to a server came to.
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

/// A server's text without the path and what was tried on it, where it begins with them: the error says both itself.
fn once<'a>(text: &'a str, path: &Path) -> &'a str {
    match text.split_once(&format!("`{}`: ", path.display())) {
        Some((tried, reason)) if tried.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b' ') => reason,
        _ => text,
    }
}

/// What the server's word means for a caller.
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
        let told = |message: &str| {
            let error = crate::Error::Server { code: failure::NOT_FOUND, kind: None, message: message.to_owned() };
            Error::of_call("open", Path::new("/a b"), &error).to_string()
        };
        assert_eq!(told("open `/a b`: no such file"), "open `/a b`: no such file");
        assert_eq!(told("look at `/a b`: no such file"), "open `/a b`: no such file");
        assert_eq!(told("`/a b`: a path of another kind of host"), "open `/a b`: a path of another kind of host");
        // What says something else first is left as it is, and so is another path.
        assert_eq!(told("open `/a`: no such file"), "open `/a b`: open `/a`: no such file");
        assert_eq!(told("`x` may not read `/a b`: no"), "open `/a b`: `x` may not read `/a b`: no");
    }
}
