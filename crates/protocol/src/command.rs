//! The methods of V0, `command/exec` and its family. It must not know how they map to `process/*`.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};

use crate::{ProcessId, path::PathArg};

/// Params of `command/exec`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecParams {
    /// The caller's name for the process.
    pub process_id: ProcessId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: PathArg,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Runs on a terminal of 24 by 80; only then is there a stdin.
    pub tty: bool,
    /// Override of `argv[0]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
    /// Accepted from older clients and ignored: the limits of the server apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes_cap: Option<u64>,
}

/// Result of `command/exec`, sent at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecResult {
    /// The caller's name for the process.
    pub process_id: ProcessId,
    /// The process id of the operating system.
    pub pid: Option<u32>,
    /// Always true.
    pub running: bool,
    /// Always null.
    pub exit_code: Option<i32>,
    /// Always null.
    pub stdout: Option<String>,
    /// Always null.
    pub stderr: Option<String>,
}

impl ExecResult {
    /// The answer to a start that went well.
    #[must_use]
    pub fn started(process_id: ProcessId, pid: Option<u32>) -> Self {
        Self { process_id, pid, running: true, exit_code: None, stdout: None, stderr: None }
    }
}

/// Params of `command/exec/write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteParams<'a> {
    /// The process.
    pub process_id: ProcessId,
    /// Base64 of the bytes, decoded by the one who writes them.
    #[serde(borrow)]
    pub chunk: Cow<'a, str>,
}

/// Result of `command/exec/write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteResult {
    /// Always true; trouble is an error.
    pub accepted: bool,
}

/// Params of `command/exec/terminate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateParams {
    /// The process.
    pub process_id: ProcessId,
}

/// Result of `command/exec/terminate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateResult {
    /// Whether there was something to kill.
    pub running: bool,
}

/// The two labels that V0 knows; a terminal's output is `stdout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "CommandStream"))]
#[serde(rename_all = "camelCase")]
pub enum Stream {
    /// Standard output, or a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Params of the notification `command/exec/outputDelta`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputDeltaParams {
    /// The process.
    pub process_id: ProcessId,
    /// Where the bytes came from.
    pub stream: Stream,
    /// Base64 of the bytes.
    pub chunk: String,
}

/// Params of the notification `command/exec/exited`, the last one of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExitedParams {
    /// The process.
    pub process_id: ProcessId,
    /// The exit status, or 128 + n after signal n.
    pub exit_code: i32,
}
