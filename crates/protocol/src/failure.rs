//! Error codes, and error kinds: the stable strings in `error.data.kind` that clients branch on. The server decides in one table which of
//! its errors has which kind.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Invalid request: the state does not allow it, a name is unknown or already in use, or the message is malformed.
pub const INVALID_REQUEST: i64 = -32600;
/// The server does not implement the method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The params cannot be decoded or are not valid.
pub const INVALID_PARAMS: i64 = -32602;
/// The request failed on the server.
pub const INTERNAL: i64 = -32603;
/// The file, or the `handleId`, does not exist.
pub const NOT_FOUND: i64 = -32004;
/// The session cannot be attached now: another connection is attached, or the session is being adopted. Clients of generation H retry on
/// this code.
pub const SESSION_ATTACHED: i64 = -32010;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $word:literal $code:ident $description:literal;)*) => {
        /// The kind of an error. Its string on the wire never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Kind {
            $(
                #[doc = $description]
                #[serde(rename = $word)]
                $name,
            )*
        }

        impl Kind {
            /// All kinds, in the order of PROTOCOL.md.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The string on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Kind::$name => $word,)* }
            }

            /// The error code of this kind. The server sends another code only where an older generation requires it.
            #[must_use]
            pub const fn code(self) -> i64 {
                match self { $(Kind::$name => $code,)* }
            }

            /// The meaning of this kind, in one sentence.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self { $(Kind::$name => $description,)* }
            }

            /// Looks up a kind by its string on the wire.
            #[must_use]
            pub fn find(word: &str) -> Option<Kind> {
                match word { $($word => Some(Kind::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    Malformed "malformed" INVALID_REQUEST "The message is not a JSON object of a known shape, or exceeds a decoding limit.";
    UnknownMethod "unknownMethod" METHOD_NOT_FOUND "The server does not have this method (-32600 under `command/`).";
    UnknownNotification "unknownNotification" INVALID_REQUEST "The server does not have this notification.";
    InvalidParams "invalidParams" INVALID_PARAMS "The params cannot be decoded.";
    EmptyArgv "emptyArgv" INVALID_PARAMS "`argv` is empty.";
    RelativePath "relativePath" INVALID_PARAMS "A path is neither absolute nor a `file:` URI.";
    InvalidUri "invalidUri" INVALID_PARAMS "A `file:` URI is not valid or does not name a path on this host.";
    NotInitialized "notInitialized" INVALID_REQUEST "The method needs `initialize` first.";
    NotConfirmed "notConfirmed" INVALID_REQUEST "The method needs the notification `initialized` first.";
    AlreadyInitialized "alreadyInitialized" INVALID_REQUEST "The connection already has a session.";
    UnknownSession "unknownSession" INVALID_REQUEST "This principal has no such session.";
    SessionExpired "sessionExpired" INVALID_REQUEST "The session was not resumed within its time to live and was ended.";
    SessionAttached "sessionAttached" SESSION_ATTACHED "Another connection is attached to the session, and `takeover` was not requested.";
    SessionAdopting "sessionAdopting" SESSION_ATTACHED "The server was restarted, and the session's holder process has not answered yet; retry.";
    SessionResumedElsewhere "sessionResumedElsewhere" INVALID_REQUEST "Another connection has taken the session.";
    UnknownProcess "unknownProcess" INVALID_REQUEST "The session has no such process.";
    DuplicateProcess "duplicateProcess" INVALID_REQUEST "The session already has a process with this name.";
    ProcessStarting "processStarting" INVALID_REQUEST "The process is being started.";
    SpawnFailed "spawnFailed" INTERNAL "The operating system could not start the process.";
    ProgramNotFound "programNotFound" INTERNAL "The program does not exist.";
    CwdNotFound "cwdNotFound" INTERNAL "The working directory does not exist or is not a directory.";
    PermissionDenied "permissionDenied" INTERNAL "The operating system denied the access (-32600 under `fs/`).";
    InvalidBase64 "invalidBase64" INVALID_PARAMS "The bytes are not base64 with the standard alphabet and padding.";
    EmptyWriteId "emptyWriteId" INVALID_PARAMS "A `writeId` is present and empty.";
    WriteIdReused "writeIdReused" INVALID_REQUEST "The `writeId` was already used with other bytes.";
    NotATerminal "notATerminal" INVALID_REQUEST "The process does not run on a terminal.";
    UnknownSignal "unknownSignal" INVALID_PARAMS "The signal name is unknown.";
    NotEnforceable "notEnforceable" INVALID_PARAMS "The requested confinement cannot be enforced on this host.";
    SandboxDenied "sandboxDenied" INVALID_REQUEST "The sandbox of the request does not allow the access.";
    SandboxNeedsCwd "sandboxNeedsCwd" INVALID_REQUEST "An entry of the sandbox needs a `cwd`, and the sandbox has none.";
    StdinClosed "stdinClosed" INVALID_REQUEST "The process has no writable stdin.";
    Overloaded "overloaded" INVALID_REQUEST "Too many requests are waiting; retry when some are answered.";
    HolderLost "holderLost" INTERNAL "The session's holder process died, and its processes are lost.";
    HolderSilent "holderSilent" INTERNAL "The session's holder process does not answer, so the process was not started; retry.";
    ResourcesExhausted "resourcesExhausted" INTERNAL "The host is out of file descriptors, processes, memory or disk, or a limit of the server is reached.";
    Draining "draining" INVALID_REQUEST "The server is shutting down and starts nothing new.";
    Forbidden "forbidden" INVALID_REQUEST "The principal lacks the permission that the request needs.";
    AuditUnavailable "auditUnavailable" INTERNAL "The audit log cannot be written, and the server is configured to refuse starts and HTTP requests that it cannot record.";
    ProcessNotClosed "processNotClosed" INVALID_REQUEST "Only a closed process can be forgotten.";
    NotFound "notFound" NOT_FOUND "The file or directory does not exist.";
    UnknownHandle "unknownHandle" NOT_FOUND "No open file, draft, search or watch has this name.";
    DuplicateHandle "duplicateHandle" INVALID_REQUEST "An open file, draft, search or watch already has this name.";
    TooManyHandles "tooManyHandles" INVALID_REQUEST "The limit of open files, drafts, searches or watches is reached.";
    InvalidPattern "invalidPattern" INVALID_PARAMS "A regular expression or a glob is not valid.";
    InvalidInput "invalidInput" INVALID_REQUEST "The request is not valid for this file, or exceeds a limit of its method.";
    SymlinkRefused "symlinkRefused" INTERNAL "The path contains a symbolic link, and the request does not follow links.";
    NotRegularFile "notRegularFile" INVALID_REQUEST "The path is not a regular file: it is a directory, a FIFO, a socket, a device or a kernel file.";
    FileTooLarge "fileTooLarge" INVALID_REQUEST "The file is too large for one message; use `fs/open` or `fs/create` to transfer it in blocks.";
    EtagMismatch "etagMismatch" INVALID_REQUEST "The state of the file does not match `ifMatch`.";
    DraftBusy "draftBusy" INVALID_REQUEST "Another client is writing the draft with this `keep`.";
    AlreadyExists "alreadyExists" INTERNAL "The path already exists.";
    IsADirectory "isADirectory" INTERNAL "The path is a directory.";
    NotADirectory "notADirectory" INTERNAL "The path, or a part of it, is not a directory.";
    DirectoryNotEmpty "directoryNotEmpty" INTERNAL "The directory is not empty.";
    StorageFull "storageFull" INTERNAL "The disk is full, or a quota is used up.";
    Unsupported "unsupported" INTERNAL "The file system or this server does not support the operation.";
    IoFailed "ioFailed" INTERNAL "The operating system reported an error; the message has the reason.";
    HttpFailed "httpFailed" INTERNAL "The HTTP request failed, or its response is incomplete: name resolution, connection, TLS or a broken response; the message has the reason.";
    HttpTimeout "httpTimeout" INTERNAL "The HTTP request took longer than its `timeoutMs`.";
    HttpTooLarge "httpTooLarge" INTERNAL "The response to the HTTP request is too large; use `streamResponse` for a body of any size.";
    HttpCancelled "httpCancelled" INVALID_REQUEST "The HTTP request was cancelled by `http/cancel`.";
    DuplicateRequest "duplicateRequest" INVALID_PARAMS "A streamed HTTP request with this name is in progress.";
    Internal "internal" INTERNAL "An internal error; see the server's log.";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The `data` member of every error that this server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorData {
    /// The kind to branch on.
    pub kind: Kind,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Kind;

    #[test]
    fn every_kind_has_a_unique_name_that_find_returns() {
        let words: HashSet<_> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(words.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            assert_eq!(Kind::find(kind.as_str()), Some(*kind));
        }
    }

    #[test]
    fn every_description_is_one_sentence() {
        for kind in Kind::ALL {
            let text = kind.description();
            assert!(text.ends_with('.') && !text.contains('\n'), "{kind}: {text}");
        }
    }
}
