//! Methods of generation V0: `command/exec`, `command/exec/write` and `command/exec/terminate`, and their notifications.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};

use crate::{ProcessId, path::PathArg};

/// Params of `command/exec`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecParams {
    /// Name of the process, chosen by the client.
    pub process_id: ProcessId,
    /// Program and arguments. `argv[0]` is the program.
    pub argv: Vec<String>,
    /// Working directory. A relative path is resolved against the server's own working directory.
    pub cwd: PathArg,
    /// The complete environment of the process.
    pub env: BTreeMap<String, String>,
    /// Runs the process on a terminal of 24 rows and 80 columns. Without a terminal the process has no stdin.
    pub tty: bool,
    /// The value that the program sees as `argv[0]`, if it differs from the program's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
    /// Accepted from older clients and ignored. The server's own limits apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes_cap: Option<u64>,
}

/// Result of `command/exec`, sent when the process has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecResult {
    /// Name of the process, as in the request.
    pub process_id: ProcessId,
    /// PID that the operating system assigned.
    pub pid: Option<u32>,
    /// Always true.
    pub running: bool,
    /// Always null. The exit code comes in `command/exec/exited`.
    pub exit_code: Option<i32>,
    /// Always null. Output comes in `command/exec/outputDelta`.
    pub stdout: Option<String>,
    /// Always null. Output comes in `command/exec/outputDelta`.
    pub stderr: Option<String>,
}

impl ExecResult {
    /// The result for a process that started successfully.
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
    /// Name of the process.
    pub process_id: ProcessId,
    /// Base64 of the bytes to write to stdin.
    #[serde(borrow)]
    pub chunk: Cow<'a, str>,
}

/// Result of `command/exec/write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteResult {
    /// Always true. A write that fails is answered with an error.
    pub accepted: bool,
}

/// Params of `command/exec/terminate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateParams {
    /// Name of the process.
    pub process_id: ProcessId,
}

/// Result of `command/exec/terminate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TerminateResult {
    /// Whether the process was still running and was killed.
    pub running: bool,
}

/// The stream labels of V0. Output of a terminal is labelled `stdout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "CommandStream"))]
#[serde(rename_all = "camelCase")]
pub enum Stream {
    /// Standard output, or the output of a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// The name of the stream on the wire.
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
    /// Name of the process.
    pub process_id: ProcessId,
    /// The stream that the process wrote to.
    pub stream: Stream,
    /// Base64 of the output bytes.
    pub chunk: String,
}

/// Params of the notification `command/exec/exited`, which is the last notification of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExitedParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// Exit status, or 128 + n if signal n ended the process. -1 if the server's holder process died.
    pub exit_code: i32,
}
