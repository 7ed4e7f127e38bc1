//! Params, results and notifications of `process/*`: generations S and H and the additions. It must not know how
//! they are served.

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

/// Params of the methods that need only the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessParams {
    /// The process.
    pub process_id: ProcessId,
    /// Another session of the same principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

/// Numbers that can no longer be read, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// The first number that is gone.
    pub from_seq: u64,
    /// The last number that is gone.
    pub to_seq: u64,
    /// Output bytes that went with them.
    pub bytes: u64,
}

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A terminal.
    Pty,
}

impl Stream {
    /// The word on the wire.
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
    /// The exit status, or 128 + n after signal n.
    pub exit_code: i32,
    /// The name of the signal that ended it, for example `SIGKILL`.
    pub signal: Option<Cow<'static, str>>,
    /// Why it ended.
    pub cause: Cause,
    /// What it used.
    pub usage: Usage,
    /// Limits that it, or something that it started, has reached; left out where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_hit: Vec<Limit>,
}

/// Why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// By itself.
    Exit,
    /// By a signal that was not ours.
    Signal,
    /// By `timeoutMs`.
    Timeout,
    /// By `idleTimeoutMs`.
    IdleTimeout,
    /// By `process/terminate`.
    Terminated,
    /// By the kernel, for want of memory.
    Oom,
    /// With the program that held it; how it would have ended nobody knows.
    Lost,
}

/// A limit that this server sets on a process and all that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Limit {
    /// The number of processes and threads: one more was refused.
    Pids,
    /// Memory: one of them was killed for it.
    Memory,
}

/// What a process and its reaped children used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Processor time in user mode, in milliseconds.
    pub user_ms: u64,
    /// Processor time in the kernel, in milliseconds.
    pub system_ms: u64,
    /// Highest resident memory, in bytes.
    pub max_rss_bytes: u64,
}
