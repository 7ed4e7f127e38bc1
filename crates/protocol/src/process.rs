//! Params, results and notifications of `process/*`: generations S and H, and the additions of this server.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{ProcessId, SessionId};

pub use control::*;
pub use events::*;
pub use start::*;
pub use stream::*;

mod control;
mod events;
mod start;
mod stream;

/// Params of the methods that only name a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// The session of the process, if it is another session of the same principal. Absent: the connection's own session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

/// A range of events that can no longer be read, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// Sequence number of the first lost event.
    pub from_seq: u64,
    /// Sequence number of the last lost event.
    pub to_seq: u64,
    /// Number of output bytes in the lost events.
    pub bytes: u64,
}

/// The stream that the process wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The terminal, which combines standard output and standard error.
    Pty,
}

impl Stream {
    /// The name of the stream on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// Exit status, or 128 + n if signal n ended the process.
    pub exit_code: i32,
    /// Name of the signal that ended the process, for example `SIGKILL`. Null if the process exited, and with the cause
    /// `lost`.
    pub signal: Option<Cow<'static, str>>,
    /// Why the process ended.
    pub cause: Cause,
    /// Resources that the process used. All zero with the cause `lost`.
    pub usage: Usage,
    /// Limits of the server that the process, or something that it started, has reached. Omitted if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_hit: Vec<Limit>,
}

/// Why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// The process exited by itself.
    Exit,
    /// A signal ended the process, and the server did not send it for a timeout or for `process/terminate`.
    Signal,
    /// `timeoutMs` passed.
    Timeout,
    /// `idleTimeoutMs` passed without output.
    IdleTimeout,
    /// `process/terminate` ended the process.
    Terminated,
    /// The kernel's OOM killer killed the process.
    Oom,
    /// The server's holder process died and its children died with it. The exit status is unknown; `exitCode` is -1.
    Lost,
}

/// A limit that the server sets on a process and everything that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Limit {
    /// Number of processes and threads. A fork or a new thread was refused.
    Pids,
    /// Memory. One of the processes was killed.
    Memory,
}

/// Resources used by a process and by its children that it has waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// CPU time in user mode, in milliseconds.
    pub user_ms: u64,
    /// CPU time in the kernel, in milliseconds.
    pub system_ms: u64,
    /// Peak resident set size, in bytes.
    pub max_rss_bytes: u64,
}
