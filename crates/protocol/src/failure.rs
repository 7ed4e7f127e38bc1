//! Error codes, and error kinds: the stable strings in `error.data.kind` that clients branch on. The server decides in one table which of
//! its errors has which kind.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Invalid request: the state does not allow it, a name is unknown or already in use, or the message is malformed.
pub const INVALID_REQUEST: i64 = -32600;
/// The server does not implement the method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The params cannot be decoded or are not valid.
pub const INVALID_PARAMS: i64 = -32602;
/// The request failed on the server.
pub const INTERNAL: i64 = -32603;
/// The file, or the open file handle, does not exist.
pub const NOT_FOUND: i64 = -32004;
/// The session cannot be attached now: another connection is attached, or the session is being adopted. Clients of generation H retry on
/// this code.
pub const SESSION_ATTACHED: i64 = -32010;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $word:literal $code:ident $description:literal;)*) => {
        /// The kind of an error. Its string on the wire never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $(#[doc = $description] $name,)*
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
    Malformed "malformed" INVALID_REQUEST "The message is not one JSON object of a known shape, or exceeds the bounds of decoding.";
    UnknownMethod "unknownMethod" METHOD_NOT_FOUND "The server does not serve this method (-32600 under `command/`).";
    UnknownNotification "unknownNotification" INVALID_REQUEST "The server does not know this notification.";
    InvalidParams "invalidParams" INVALID_PARAMS "The params cannot be decoded.";
    EmptyArgv "emptyArgv" INVALID_PARAMS "There is no program to run.";
    RelativePath "relativePath" INVALID_PARAMS "A path is neither absolute nor a `file:` URI.";
    InvalidUri "invalidUri" INVALID_PARAMS "A `file:` URI is not well formed or names nothing on this host.";
    NotInitialized "notInitialized" INVALID_REQUEST "The method needs `initialize` first.";
    NotConfirmed "notConfirmed" INVALID_REQUEST "The method needs the notification `initialized` first.";
    AlreadyInitialized "alreadyInitialized" INVALID_REQUEST "The connection already has its session.";
    UnknownSession "unknownSession" INVALID_REQUEST "There is no such session for this principal.";
    SessionExpired "sessionExpired" INVALID_REQUEST "The session waited too long for its client and was ended.";
    SessionAttached "sessionAttached" SESSION_ATTACHED "The session has a live connection and `takeover` was not asked for.";
    SessionAdopting "sessionAdopting" SESSION_ATTACHED "The server was restarted and waits for the session's holder process to answer; try again.";
    SessionResumedElsewhere "sessionResumedElsewhere" INVALID_REQUEST "Another connection has taken the session.";
    UnknownProcess "unknownProcess" INVALID_REQUEST "There is no such process in the session.";
    DuplicateProcess "duplicateProcess" INVALID_REQUEST "The session already has a process of this name.";
    ProcessStarting "processStarting" INVALID_REQUEST "The process is being started.";
    SpawnFailed "spawnFailed" INTERNAL "The operating system could not start the process.";
    ProgramNotFound "programNotFound" INTERNAL "The program does not exist.";
    CwdNotFound "cwdNotFound" INTERNAL "The working directory does not exist or is not a directory.";
    PermissionDenied "permissionDenied" INTERNAL "The operating system does not permit it (-32600 under `fs/`).";
    InvalidBase64 "invalidBase64" INVALID_PARAMS "A chunk is not padded base64 of the standard alphabet.";
    EmptyWriteId "emptyWriteId" INVALID_PARAMS "A `writeId` is present and empty.";
    WriteIdReused "writeIdReused" INVALID_REQUEST "The `writeId` was used before with other bytes.";
    NotATerminal "notATerminal" INVALID_REQUEST "The process does not run on a terminal.";
    UnknownSignal "unknownSignal" INVALID_PARAMS "The signal's name is not known.";
    NotEnforceable "notEnforceable" INVALID_PARAMS "The asked confinement cannot be enforced here.";
    SandboxDenied "sandboxDenied" INVALID_REQUEST "The sandbox of the request does not allow it.";
    SandboxNeedsCwd "sandboxNeedsCwd" INVALID_REQUEST "An entry of the sandbox needs a `cwd`, and there is none.";
    StdinClosed "stdinClosed" INVALID_REQUEST "The process has no stdin that can be written.";
    Overloaded "overloaded" INVALID_REQUEST "The connection has too many requests waiting.";
    HolderLost "holderLost" INTERNAL "The session's processes were lost with the program that held them.";
    HolderSilent "holderSilent" INTERNAL "The session's holder process does not answer, so the process was not started; try again.";
    ResourcesExhausted "resourcesExhausted" INTERNAL "The host is out of descriptors, processes, memory or disk, or the server is at a bound that it was given.";
    Draining "draining" INVALID_REQUEST "The server is shutting down and starts nothing new.";
    Forbidden "forbidden" INVALID_REQUEST "The principal was not granted what the request needs.";
    AuditUnavailable "auditUnavailable" INTERNAL "The audit log cannot be written, and by the operator's choice nothing starts, and no HTTP request is made, unrecorded.";
    ProcessNotClosed "processNotClosed" INVALID_REQUEST "Only a closed process can be forgotten.";
    NotFound "notFound" NOT_FOUND "There is no such file or directory.";
    UnknownHandle "unknownHandle" NOT_FOUND "There is no open file, search or watch of this name.";
    DuplicateHandle "duplicateHandle" INVALID_REQUEST "There is an open file, search or watch of this name already.";
    TooManyHandles "tooManyHandles" INVALID_REQUEST "There are as many open files, searches or watches as there may be.";
    InvalidPattern "invalidPattern" INVALID_PARAMS "A regular expression or a glob cannot be read.";
    InvalidInput "invalidInput" INVALID_REQUEST "The request makes no sense for this file, or exceeds a bound of its method.";
    SymlinkRefused "symlinkRefused" INTERNAL "The path contains a symbolic link, and the request follows none.";
    NotRegularFile "notRegularFile" INVALID_REQUEST "It is a directory, a FIFO, a socket, a device or a file of the kernel, and has no bytes to give or take.";
    FileTooLarge "fileTooLarge" INVALID_REQUEST "The file is too large for one message; `fs/open` and `fs/create` take it in blocks.";
    EtagMismatch "etagMismatch" INVALID_REQUEST "The file is not in the state that `ifMatch` names.";
    DraftBusy "draftBusy" INVALID_REQUEST "Somebody else writes the draft that is kept under this word.";
    AlreadyExists "alreadyExists" INTERNAL "Something of this name exists already.";
    IsADirectory "isADirectory" INTERNAL "It is a directory.";
    NotADirectory "notADirectory" INTERNAL "It, or a part of the path, is not a directory.";
    DirectoryNotEmpty "directoryNotEmpty" INTERNAL "The directory is not empty.";
    StorageFull "storageFull" INTERNAL "There is no room on the disk, or a quota is used up.";
    Unsupported "unsupported" INTERNAL "The file system, or this server, cannot do it.";
    IoFailed "ioFailed" INTERNAL "The operating system could not do it; the text has its reason.";
    HttpFailed "httpFailed" INTERNAL "The HTTP request got no answer, or not all of it: name, connection, TLS or a broken answer; the text has the reason.";
    HttpTimeout "httpTimeout" INTERNAL "The HTTP request took longer than its `timeoutMs`.";
    HttpTooLarge "httpTooLarge" INTERNAL "The answer to the HTTP request is too large; `streamResponse` takes a body of any size.";
    HttpCancelled "httpCancelled" INVALID_REQUEST "The HTTP request was called off by `http/cancel`.";
    DuplicateRequest "duplicateRequest" INVALID_PARAMS "A streamed HTTP request of this name is under way.";
    Internal "internal" INTERNAL "Something failed that should not; the server's log has the details.";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Kind::find(&word).ok_or_else(|| de::Error::custom(format_args!("unknown failure kind `{word}`")))
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
    fn every_word_is_unique_and_found_again() {
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
