//! Output and input of processes by request: `process/read`, `write`, `closeStdin`, `subscribe`, `unsubscribe`. It
//! must not know logs or pipes.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Blocked, Gap, ProcessParams, Stream};
use crate::{
    Empty, ProcessId, SessionId,
    tolerant::{is_false, null_default},
};

/// Params of `process/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadParams {
    /// The process.
    pub process_id: ProcessId,
    /// Another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Only what comes after this number, default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<u64>,
    /// Stops at so many raw bytes, but returns one chunk at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Waits so long for something to return, default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Where a reader that follows began: it has taken everything after this number up to `afterSeq`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<u64>,
}

/// Result of `process/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadResult {
    /// The output, in order.
    pub chunks: Vec<ReadChunk>,
    /// What follows the output.
    #[serde(flatten)]
    pub end: ReadEnd,
}

/// One piece of output in a `process/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadChunk {
    /// Its number.
    pub seq: u64,
    /// Where the bytes came from.
    pub stream: Stream,
    /// Base64 of the bytes.
    pub chunk: String,
}

/// Everything in the result of `process/read` but the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadEnd {
    /// `afterSeq` of the next read, plus one.
    pub next_seq: u64,
    /// Whether the process ended.
    pub exited: bool,
    /// The exit status, or 128 + n after signal n.
    pub exit_code: Option<i32>,
    /// Whether the process ended and all of its output is in the log.
    pub closed: bool,
    /// Always null from a server.
    pub failure: Option<String>,
    /// Always false from this server.
    #[serde(default)]
    pub sandbox_denied: bool,
    /// The lowest number that can still be read; 0 from a peer that did not say.
    #[serde(default)]
    pub first_seq: u64,
    /// What was asked for and is gone.
    pub gap: Option<Gap>,
    /// Why the process waits for its output to be taken; absent while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
}

/// Params of `process/write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteParams<'a> {
    /// The process.
    pub process_id: ProcessId,
    /// Another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Base64 of the bytes, decoded by the one who writes them.
    #[serde(borrow)]
    pub chunk: Cow<'a, str>,
    /// With it the write happens exactly once, however often it is sent; not empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_id: Option<String>,
}

/// Result of `process/write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteResult {
    /// What became of the bytes.
    pub status: WriteStatus,
    /// The terminal dropped some of them: it keeps 4095 bytes of a line in canonical mode.
    #[serde(default, skip_serializing_if = "is_false")]
    pub line_cut: bool,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WriteStatus {
    /// All bytes are in the process's stdin.
    Accepted,
    /// No such process.
    UnknownProcess,
    /// The process has no stdin, or closed it.
    StdinClosed,
    /// The process is being started.
    Starting,
}

/// Params of `process/closeStdin`.
pub type CloseStdinParams = ProcessParams;

/// Result of `process/closeStdin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CloseStdinResult {
    /// What became of the request.
    pub status: CloseStdinStatus,
}

/// What became of a request to close stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum CloseStdinStatus {
    /// The pipe is closed, or the terminal got its end-of-file character.
    Accepted,
    /// The terminal is in raw mode, where the character would be data; nothing was sent.
    RawMode,
    /// There is no stdin, or it was closed before.
    StdinClosed,
    /// No such process.
    UnknownProcess,
    /// The process is being started.
    Starting,
}

/// Params of `process/subscribe`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubscribeParams {
    /// The process.
    pub process_id: ProcessId,
    /// Its session; absent means the connection's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Only what comes after this number, default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<u64>,
    /// Keeps the log until this reader has it too.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub hold: bool,
    /// With `hold`, where a reader that comes back began; default `afterSeq`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<u64>,
}

/// Result of `process/subscribe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubscribeResult {
    /// The lowest number that can still be read.
    pub first_seq: u64,
    /// The next number the log will give.
    pub next_seq: u64,
}

/// Params of `process/unsubscribe`.
pub type UnsubscribeParams = ProcessParams;

/// Result of `process/unsubscribe`.
pub type UnsubscribeResult = Empty;
