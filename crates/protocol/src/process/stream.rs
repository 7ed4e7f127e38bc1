//! Reading and writing the streams of a process: `process/read`, `process/write`, `process/closeStdin`, `process/subscribe` and
//! `process/unsubscribe`.

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
    /// Name of the process.
    pub process_id: ProcessId,
    /// The session of the process, if it is another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Return only events after this sequence number. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<u64>,
    /// Stop before the result exceeds this many raw bytes. At least one chunk is returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// How many milliseconds to wait if there is nothing to return. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// For a reader that follows a process of another session: the sequence number after which the reader began. While
    /// the request is in progress, the server treats the events after `fromSeq`, up to `afterSeq`, as taken by this
    /// reader.
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
    /// The other members of the result.
    #[serde(flatten)]
    pub end: ReadEnd,
}

/// One chunk of output in the result of `process/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadChunk {
    /// Sequence number of the event.
    pub seq: u64,
    /// The stream that the process wrote to.
    pub stream: Stream,
    /// Base64 of the output bytes.
    pub chunk: String,
}

/// All members of the result of `process/read` except the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadEnd {
    /// Where to continue: pass `nextSeq - 1` as `afterSeq` of the next read.
    pub next_seq: u64,
    /// Whether the process has exited. If the server cut this result, it reports the process as running and not closed, so that the client
    /// reads again.
    pub exited: bool,
    /// Exit status, or 128 + n if signal n ended the process. -1 if the status is lost. Null while `exited` is false.
    pub exit_code: Option<i32>,
    /// Whether the process has exited and all of its output is in the log.
    pub closed: bool,
    /// Null, except when the server's holder process was lost. Then a text that says whether all output was preserved.
    pub failure: Option<String>,
    /// Whether the sandbox is the likely reason for the failure of the process. It is a hint, not a proof. False until the process has
    /// ended.
    #[serde(default)]
    pub sandbox_denied: bool,
    /// The lowest sequence number that can still be read. 0 if the server did not send it.
    #[serde(default)]
    pub first_seq: u64,
    /// Requested events that can no longer be read.
    pub gap: Option<Gap>,
    /// Why the process is blocked until its output is taken. Absent if it is not blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
}

/// Params of `process/write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteParams<'a> {
    /// Name of the process.
    pub process_id: ProcessId,
    /// The session of the process, if it is another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Base64 of the bytes to write to stdin.
    #[serde(borrow)]
    pub chunk: Cow<'a, str>,
    /// Id of the write, not empty. With it the bytes are written exactly once, however often the client sends the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_id: Option<String>,
}

/// Result of `process/write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteResult {
    /// Outcome of the write.
    pub status: WriteStatus,
    /// The terminal dropped some of the bytes: in canonical mode it keeps only 4095 bytes of a line.
    #[serde(default, skip_serializing_if = "is_false")]
    pub line_cut: bool,
}

/// Outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WriteStatus {
    /// All bytes have entered the stdin of the process.
    Accepted,
    /// The process does not exist.
    UnknownProcess,
    /// The process has no stdin, its stdin is closed, or it ended before all bytes were written.
    StdinClosed,
    /// The process is being started. This server never sends it: it waits for the start.
    Starting,
}

/// Params of `process/closeStdin`.
pub type CloseStdinParams = ProcessParams;

/// Result of `process/closeStdin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CloseStdinResult {
    /// Outcome of the request.
    pub status: CloseStdinStatus,
}

/// Outcome of a request to close stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum CloseStdinStatus {
    /// The pipe is closed, or the terminal got its end-of-file character.
    Accepted,
    /// The terminal is not in canonical mode, so the end-of-file character would be ordinary data. Nothing was sent.
    RawMode,
    /// The process has no stdin, or it is already closed.
    StdinClosed,
    /// The process does not exist.
    UnknownProcess,
    /// The process is being started. This server never sends it: it waits for the start.
    Starting,
}

/// Params of `process/subscribe`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubscribeParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// The session of the process. It must be another session: the processes of the connection's own session are pushed
    /// without a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Push only events after this sequence number. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<u64>,
    /// Keep output until this connection has acknowledged it too. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub hold: bool,
    /// With `hold`, for a reader that subscribes again: the sequence number after which it first began. Events after
    /// this number count as taken only once this connection acknowledges them. Default: `afterSeq`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<u64>,
}

/// Result of `process/subscribe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubscribeResult {
    /// The lowest sequence number that can still be read.
    pub first_seq: u64,
    /// The sequence number that the next event will get.
    pub next_seq: u64,
}

/// Params of `process/unsubscribe`.
pub type UnsubscribeParams = ProcessParams;

/// Result of `process/unsubscribe`.
pub type UnsubscribeResult = Empty;
