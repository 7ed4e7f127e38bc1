//! Every way in which a request can fail, and its wire form. The only place that maps a failure to a code, a stable
//! kind and a text.
//!
//! Some clients compare texts. `compat` lists those texts, which must not change. The server itself never decides by
//! text.

use std::{io, time::Duration};

use exec_server_holder::control::StartStage;
use exec_server_protocol::{failure::Kind, limits, path::PathError};
use rustix::io::Errno;

use crate::{compat, fetch::FetchError, files::HandleUse, handlers::sizes, process::ProcessMeta, session::short_id};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("client must call initialize before using {family} methods")]
    NotInitialized { family: &'static str },
    #[error("client must send initialized before using {family} methods")]
    NotConfirmed { family: &'static str },
    #[error("initialize may only be sent once per connection")]
    AlreadyInitialized,
    #[error("unknown method `{method}`")]
    UnknownMethod { method: String },
    #[error("unknown notification `{method}`")]
    UnknownNotification { method: String },
    #[error("failed to parse {}JSON-RPC message from {label}: {reason}", if *is_websocket { "websocket " } else { "" })]
    Malformed { is_websocket: bool, label: String, reason: String },
    #[error("{reason}")]
    InvalidParams { reason: String },
    #[error("`{path}`: {source}")]
    Path { path: String, source: PathError },
    #[error("argv must not be empty")]
    EmptyArgv,
    #[error("chunk is not base64 with padding: {reason}")]
    InvalidBase64 { reason: String },
    #[error("writeId must not be empty")]
    EmptyWriteId,
    #[error("writeId was used before for other bytes")]
    WriteIdReused,
    #[error("unknown session id {id}")]
    UnknownSession { id: String },
    #[error("session {id} expired {when}; its processes were: {what}")]
    SessionExpired { id: String, when: String, what: String },
    #[error("session {id} is already attached to another connection")]
    SessionAttached { id: String },
    #[error("session {id} is being adopted: its holder process has not answered for {} s; try again", waited.as_secs())]
    SessionAdopting { id: String, waited: Duration },
    #[error("session has been resumed by another connection")]
    Superseded,
    #[error("unknown process id {id}")]
    UnknownProcess { id: String },
    #[error("process {id} already exists")]
    DuplicateProcess { id: String },
    #[error("process {id} has not closed yet; terminate it first")]
    NotClosed { id: String },
    #[error("start `{program}`: {source}")]
    Program { program: String, source: io::Error },
    #[error("start `{program}`: not found in PATH ({search_path}): {source}")]
    NotInPath { program: String, search_path: String, source: io::Error },
    #[error("start `{program}` in `{cwd}`: {source}")]
    Cwd { program: String, cwd: String, source: io::Error },
    #[error("start `{program}`: the host is out of resources: {source}")]
    Resources { program: String, source: io::Error },
    #[error("process {id} has no terminal")]
    NotATerminal { id: String },
    #[error("unknown signal `{name}`")]
    UnknownSignal { name: String },
    #[error("cannot enforce the requested policy, so the request is refused: {what}")]
    NotEnforceable { what: String },
    /// Clients compare the end of the text.
    #[error("{what}: Operation not permitted")]
    SandboxDenied { what: String },
    #[error("{what}")]
    SandboxNeedsCwd { what: String },
    #[error("process {id} takes no input: it has neither a terminal nor an open stdin")]
    NoStdin { id: String },
    #[error("too many {what}")]
    Overloaded { what: &'static str },
    #[error("limit reached: {most} {what}; end some and try again")]
    TooMany { what: &'static str, most: usize },
    #[error("the holder of session {session} died, and its processes were killed; open a new session")]
    HolderLost { session: String },
    #[error(
        "start `{program}`: the holder process of session {} has not answered for {} s; the start was withdrawn, try again",
        short_id(session), waited.as_secs()
    )]
    HolderSilent { program: String, session: String, waited: Duration },
    #[error(
        "start `{program}`: an earlier start with this process id was withdrawn, and the holder process has not confirmed the withdrawal yet; try again"
    )]
    WithdrawnPending { program: String },
    #[error(
        "the holder process of session {session} could not be created: {source}; try again, or restart the server if this persists"
    )]
    HolderFailed { session: String, source: io::Error },
    #[error("the server is shutting down; connect again")]
    Draining,
    #[error("`{principal}` may not call `{method}`: it lacks the scope `{scope}`")]
    LacksScope { principal: String, method: &'static str, scope: &'static str },
    #[error("`{principal}` may not start a process in `{cwd}`: it is not beneath one of its roots")]
    OutsideRoots { principal: String, cwd: String },
    #[error("`{principal}` may not set the variable `{name}`")]
    ForbiddenVariable { principal: String, name: String },
    #[error("`{principal}` may do this only in {needed}")]
    BelowFloor { principal: String, needed: &'static str },
    #[error("`{path}`: not a path of this host, because it names another host or a drive")]
    ForeignPath { path: String },
    #[error("{0}")]
    File(Box<exec_server_fs::Error>),
    #[error("dataBase64 is not base64 with padding")]
    FileBase64,
    #[error("{what}")]
    FileInput { what: &'static str },
    #[error(
        "more than {} bytes do not fit in one message; write them in blocks with `fs/create`, `fs/writeBlock` and `fs/commit`",
        limits::FILE_BYTES
    )]
    FileTooLarge,
    #[error("handleId is empty or has more than {} bytes", limits::HANDLE_ID_BYTES)]
    HandleName,
    #[error("`{id}` is already open; close it first")]
    DuplicateHandle { id: String },
    #[error("{}", too_many_handles(*used))]
    TooManyHandles { used: HandleUse },
    #[error(transparent)]
    Pattern(#[from] exec_server_fs::PatternError),
    #[error("limit reached: {most} {what} per {scope}; close some and try again")]
    TooManyFileTasks { what: &'static str, most: usize, scope: &'static str },
    #[error("{what}: the host is out of resources: {source}")]
    Host { what: &'static str, source: io::Error },
    #[error("nothing is open as `{id}`")]
    UnknownHandle { id: String },
    #[error("`{id}` is not open for {}", match used { HandleUse::Read => "reading", HandleUse::Write => "writing" })]
    WrongHandle { id: String, used: HandleUse },
    /// Clients compare the beginning of the texts of `Http` and `HttpTimeout`.
    #[error("http/request failed: request to `{host}`: {source}")]
    Http { host: String, source: Box<FetchError> },
    #[error(
        "`{principal}` may make HTTP requests only to the public internet, because it lacks the scope `exec`: {source}"
    )]
    HttpTarget { principal: String, source: Box<FetchError> },
    #[error("only the owner of this server may make HTTP requests to it, not `{principal}`: {source}")]
    HttpOwnListener { principal: String, source: Box<FetchError> },
    #[error("http/request failed: request to `{host}`: not done within {ms} ms")]
    HttpTimeout { host: String, ms: u64 },
    #[error(
        "HTTP request to `{host}`: the body has more than {} bytes, too many for one answer; request it with `streamResponse`",
        limits::HTTP_BODY_BYTES
    )]
    HttpTooLarge { host: String },
    #[error("the HTTP request was cancelled")]
    HttpCancelled,
    #[error("a streamed HTTP request `{id}` is already in progress")]
    DuplicateRequest { id: String },
    #[error("`{principal}` may not use the variable `{name}` of the server: it lacks the scope `exec`")]
    HttpVariable { principal: String, name: String },
    #[error("internal error in {what}; see the server's log")]
    Internal { what: &'static str },
    #[error(
        "the audit log cannot be written, so no process is started and no HTTP request is made; try again when the disk has room"
    )]
    AuditUnavailable,
}

impl Failure {
    /// Converts a holder's report of a failed start.
    ///
    /// `search_path` is the path in which a program without a slash was searched.
    pub(crate) fn start(
        meta: &ProcessMeta,
        search_path: Option<String>,
        stage: StartStage,
        errno: i32,
        detail: &[u8],
    ) -> Self {
        let program = meta.program();
        let source = io::Error::from_raw_os_error(errno);
        match stage {
            StartStage::Input => {
                Self::InvalidParams { reason: format!("start `{program}`: {}", String::from_utf8_lossy(detail)) }
            }
            StartStage::Resources => Self::Resources { program, source },
            StartStage::Cwd => Self::Cwd { program, cwd: meta.cwd.clone(), source },
            StartStage::Exec if errno == Errno::TOOBIG.raw_os_error() => {
                let most = sizes::total_bytes();
                let reason = format!(
                    "start `{program}`: argv and environment are too large; the kernel's limit is {most} bytes"
                );
                Self::InvalidParams { reason }
            }
            StartStage::Exec => match search_path {
                Some(search_path) if source.kind() == io::ErrorKind::NotFound => {
                    Self::NotInPath { program, search_path, source }
                }
                Some(_) | None => Self::Program { program, source },
            },
            StartStage::Sandbox => {
                Self::NotEnforceable { what: format!("the child could not confine itself: {source}") }
            }
        }
    }

    /// The stable kind.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::NotInitialized { .. } => Kind::NotInitialized,
            Self::NotConfirmed { .. } => Kind::NotConfirmed,
            Self::AlreadyInitialized => Kind::AlreadyInitialized,
            Self::UnknownMethod { .. } => Kind::UnknownMethod,
            Self::UnknownNotification { .. } => Kind::UnknownNotification,
            Self::Malformed { .. } => Kind::Malformed,
            Self::InvalidParams { .. } => Kind::InvalidParams,
            Self::Path { source, .. } => source.kind(),
            Self::EmptyArgv => Kind::EmptyArgv,
            Self::InvalidBase64 { .. } => Kind::InvalidBase64,
            Self::EmptyWriteId => Kind::EmptyWriteId,
            Self::WriteIdReused => Kind::WriteIdReused,
            Self::UnknownSession { .. } => Kind::UnknownSession,
            Self::SessionExpired { .. } => Kind::SessionExpired,
            Self::SessionAttached { .. } => Kind::SessionAttached,
            Self::SessionAdopting { .. } => Kind::SessionAdopting,
            Self::Superseded => Kind::SessionResumedElsewhere,
            Self::UnknownProcess { .. } => Kind::UnknownProcess,
            Self::DuplicateProcess { .. } => Kind::DuplicateProcess,
            Self::NotClosed { .. } => Kind::ProcessNotClosed,
            Self::Program { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => Kind::ProgramNotFound,
                io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
                _ => Kind::SpawnFailed,
            },
            Self::NotInPath { .. } => Kind::ProgramNotFound,
            Self::Cwd { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
                _ => Kind::CwdNotFound,
            },
            Self::Resources { .. } | Self::TooMany { .. } => Kind::ResourcesExhausted,
            Self::NotATerminal { .. } => Kind::NotATerminal,
            Self::UnknownSignal { .. } => Kind::UnknownSignal,
            Self::NotEnforceable { .. } => Kind::NotEnforceable,
            Self::SandboxDenied { .. } => Kind::SandboxDenied,
            Self::SandboxNeedsCwd { .. } => Kind::SandboxNeedsCwd,
            Self::NoStdin { .. } => Kind::StdinClosed,
            Self::Overloaded { .. } => Kind::Overloaded,
            Self::HolderLost { .. } => Kind::HolderLost,
            Self::HolderSilent { .. } | Self::WithdrawnPending { .. } => Kind::HolderSilent,
            // Nothing is lost: the session has no running process.
            Self::HolderFailed { .. } => Kind::ResourcesExhausted,
            Self::Draining => Kind::Draining,
            Self::LacksScope { .. } | Self::OutsideRoots { .. } => Kind::Forbidden,
            Self::ForbiddenVariable { .. } | Self::BelowFloor { .. } => Kind::Forbidden,
            Self::HttpTarget { .. } | Self::HttpOwnListener { .. } | Self::HttpVariable { .. } => Kind::Forbidden,
            Self::HttpTooLarge { .. } => Kind::HttpTooLarge,
            Self::Http { source, .. } if matches!(**source, FetchError::Headers) => Kind::HttpTooLarge,
            Self::Http { .. } => Kind::HttpFailed,
            Self::HttpTimeout { .. } => Kind::HttpTimeout,
            Self::HttpCancelled => Kind::HttpCancelled,
            Self::DuplicateRequest { .. } => Kind::DuplicateRequest,
            Self::AuditUnavailable => Kind::AuditUnavailable,
            Self::File(error) => file_kind(error.category()),
            Self::ForeignPath { .. } | Self::FileBase64 | Self::FileInput { .. } => Kind::InvalidInput,
            Self::HandleName | Self::WrongHandle { .. } => Kind::InvalidInput,
            Self::FileTooLarge => Kind::FileTooLarge,
            Self::DuplicateHandle { .. } => Kind::DuplicateHandle,
            Self::TooManyHandles { .. } | Self::TooManyFileTasks { .. } => Kind::TooManyHandles,
            Self::Pattern(_) => Kind::InvalidPattern,
            Self::Host { .. } => Kind::ResourcesExhausted,
            Self::UnknownHandle { .. } => Kind::UnknownHandle,
            Self::Internal { .. } => Kind::Internal,
        }
    }

    /// The JSON-RPC error code.
    pub(crate) fn code(&self) -> i64 {
        compat::error_code(self).unwrap_or_else(|| self.kind().code())
    }
}

impl From<exec_server_fs::Error> for Failure {
    fn from(error: exec_server_fs::Error) -> Self {
        Self::File(Box::new(error))
    }
}

/// Clients compare the first text, so it keeps the word `connection`, although the limit is per session.
fn too_many_handles(used: HandleUse) -> String {
    match used {
        HandleUse::Read => format!("at most {} file reads may be open per connection", limits::OPEN_FILES),
        HandleUse::Write => format!("at most {} drafts may be open per session", limits::OPEN_FILES),
    }
}

fn file_kind(category: exec_server_fs::ErrorCategory) -> Kind {
    use exec_server_fs::ErrorCategory as File;
    match category {
        File::NotFound => Kind::NotFound,
        File::PermissionDenied => Kind::PermissionDenied,
        File::InvalidInput => Kind::InvalidInput,
        File::OutsideView => Kind::Forbidden,
        File::Symlink => Kind::SymlinkRefused,
        File::NotRegular => Kind::NotRegularFile,
        File::TooLarge => Kind::FileTooLarge,
        File::TooMany => Kind::ResourcesExhausted,
        File::EtagMismatch => Kind::EtagMismatch,
        File::Busy => Kind::DraftBusy,
        File::AlreadyExists => Kind::AlreadyExists,
        File::IsADirectory => Kind::IsADirectory,
        File::NotADirectory => Kind::NotADirectory,
        File::DirectoryNotEmpty => Kind::DirectoryNotEmpty,
        File::StorageFull => Kind::StorageFull,
        File::Unsupported => Kind::Unsupported,
        File::Cancelled | File::Other => Kind::IoFailed,
    }
}
