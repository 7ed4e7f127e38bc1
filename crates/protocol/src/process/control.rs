//! Steering and looking: `process/signal`, `resize`, `terminate`, `list`, `forget`. It must not know who obeys.

use serde::{Deserialize, Serialize};

use super::{Exit, ProcessParams};
use crate::{
    Empty, ProcessId, SessionId,
    tolerant::{is_false, null_default},
};

/// Params of `process/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SignalParams {
    /// The process.
    pub process_id: ProcessId,
    /// Another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// `interrupt`, or a POSIX name with or without `SIG`, in any case.
    pub signal: String,
}

/// Result of `process/signal`.
pub type SignalResult = Empty;

/// Params of `process/resize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResizeParams {
    /// The process.
    pub process_id: ProcessId,
    /// Another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// Result of `process/resize`.
pub type ResizeResult = Empty;

/// Params of `process/terminate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateParams {
    /// The process.
    pub process_id: ProcessId,
    /// Another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Milliseconds between SIGTERM and SIGKILL; absent kills at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// Result of `process/terminate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateResult {
    /// Whether the process ran when the request came.
    pub running: bool,
    /// The process had ended, but something held its streams open and was killed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub streams_held: bool,
}

/// Params of `process/list`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListParams {
    /// How far to look.
    #[serde(default, deserialize_with = "null_default")]
    pub scope: Scope,
    /// Goes on behind the page that had this as its `nextCursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Processes in the answer at most, 1 or more; without it as many as fit one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// How far `process/list` looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// The session of the connection.
    #[default]
    Session,
    /// Every session of the same principal.
    All,
}

/// Result of `process/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListResult {
    /// The processes, oldest first.
    pub processes: Vec<ProcessInfo>,
    /// There are more: ask again with this as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Sessions whose processes are not listed, because their holders have not answered since the server was restarted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adopting: Vec<AdoptingSession>,
}

/// A session whose holder has not answered since the server was restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AdoptingSession {
    /// The session.
    pub session_id: SessionId,
    /// How long the server has waited for its holder.
    pub waiting_ms: u64,
}

/// One process in a `process/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    /// Its name.
    pub process_id: ProcessId,
    /// Its session.
    pub session_id: SessionId,
    /// Its number at the operating system; null while it is being started.
    pub pid: Option<u32>,
    /// Program and arguments, or their beginning.
    pub argv: Vec<String>,
    /// Bytes of program and arguments, where `argv` has only their beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv_bytes: Option<u64>,
    /// Working directory, a native path.
    pub cwd: String,
    /// Whether it runs on a terminal.
    pub tty: bool,
    /// When it was started, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// Whether it ended.
    pub exited: bool,
    /// How it ended; null while it runs.
    pub exit: Option<Exit>,
    /// Whether it ended and all of its output is in the log.
    pub closed: bool,
    /// The next number its log will give.
    pub next_seq: u64,
    /// Output bytes written so far.
    pub output_bytes: u64,
    /// Output bytes that can still be read.
    pub retained_bytes: u64,
    /// Output bytes dropped by `dropOldest`.
    pub dropped_bytes: u64,
    /// Why the process waits for its output to be taken; null when it does not.
    pub blocked: Option<Blocked>,
}

/// Why a process waits for its output to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Blocked {
    /// Its log in memory is full.
    MemoryCap,
    /// Its log on disk is full.
    Quota,
    /// The disk is full or fails.
    DiskFull,
}

/// Params of `process/forget`.
pub type ForgetParams = ProcessParams;

/// Result of `process/forget`.
pub type ForgetResult = Empty;
