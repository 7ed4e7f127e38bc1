//! Controlling and listing processes: `process/signal`, `process/resize`, `process/terminate`, `process/list` and `process/forget`.

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
    /// Name of the process.
    pub process_id: ProcessId,
    /// The session of the process, if it is another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Signal to send: `interrupt`, or a POSIX name with or without `SIG`, in upper or lower case. `RTMIN+n` and `RTMAX-n` are accepted
    /// too.
    pub signal: String,
}

/// Result of `process/signal`.
pub type SignalResult = Empty;

/// Params of `process/resize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResizeParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// The session of the process, if it is another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub cols: u16,
}

/// Result of `process/resize`.
pub type ResizeResult = Empty;

/// Params of `process/terminate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// The session of the process, if it is another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Milliseconds between SIGTERM and SIGKILL. Absent: SIGKILL is sent at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// Result of `process/terminate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateResult {
    /// Whether the process was running when the request arrived.
    pub running: bool,
    /// The process had already exited, but other processes held its output streams open. They were killed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub streams_held: bool,
}

/// Params of `process/list`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListParams {
    /// Which sessions to list. Default: `session`.
    #[serde(default, deserialize_with = "null_default")]
    pub scope: Scope,
    /// The `nextCursor` of the previous page. The result then continues after that page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Maximum number of processes in the result, at least 1. Absent: as many as fit into one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Which sessions `process/list` includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// Only the session of this connection.
    #[default]
    Session,
    /// All sessions of the same principal.
    All,
}

/// Result of `process/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListResult {
    /// The processes, oldest first.
    pub processes: Vec<ProcessInfo>,
    /// Present if there are more processes. Pass it as `cursor` to get the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Sessions whose processes are missing from the list: since the server restarted, their holder process has not answered. Omitted if
    /// there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adopting: Vec<AdoptingSession>,
}

/// A session that the server is still adopting: its holder process has not answered since the server restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AdoptingSession {
    /// Name of the session.
    pub session_id: SessionId,
    /// Milliseconds for which the server has been waiting for the holder process.
    pub waiting_ms: u64,
}

/// One process in the result of `process/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    /// Name of the process.
    pub process_id: ProcessId,
    /// Session of the process.
    pub session_id: SessionId,
    /// PID that the operating system assigned. Null while the process is being started.
    pub pid: Option<u32>,
    /// Program and arguments. A long list is cut; see `argvBytes`.
    pub argv: Vec<String>,
    /// Present if `argv` was cut: the number of bytes of the complete program and arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv_bytes: Option<u64>,
    /// Working directory, as a native path.
    pub cwd: String,
    /// Whether the process runs on a terminal.
    pub tty: bool,
    /// Start time, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// Whether the process has exited.
    pub exited: bool,
    /// How the process ended. Null while it runs.
    pub exit: Option<Exit>,
    /// Whether the process has exited and all of its output is in the log.
    pub closed: bool,
    /// The sequence number that the next event will get.
    pub next_seq: u64,
    /// Output bytes that the process has written so far.
    pub output_bytes: u64,
    /// Output bytes that can still be read.
    pub retained_bytes: u64,
    /// Output bytes that were freed although the session's own client had not taken them: because of `dropOldest`, because all followers
    /// (readers of other sessions) had taken them, or to make room for the output left at the exit.
    pub dropped_bytes: u64,
    /// Why the process is blocked until its output is taken. Null if it is not blocked.
    pub blocked: Option<Blocked>,
}

/// Why a process is blocked until its output is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Blocked {
    /// The log in memory is full.
    MemoryCap,
    /// The log on disk has reached its quota.
    Quota,
    /// The disk is full, or writing to it fails.
    DiskFull,
}

/// Params of `process/forget`.
pub type ForgetParams = ProcessParams;

/// Result of `process/forget`.
pub type ForgetResult = Empty;
