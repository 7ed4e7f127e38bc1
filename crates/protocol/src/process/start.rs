//! Params and result of `process/start`.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    ProcessId,
    path::PathArg,
    sandbox::{AppliedSandbox, SandboxContext},
    tolerant::{is_false, null_default},
};

/// Params of `process/start`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StartParams {
    /// Name of the process, chosen by the client.
    pub process_id: ProcessId,
    /// Program and arguments. A program without a slash is searched in the `PATH` of the child.
    pub argv: Vec<String>,
    /// Working directory. Absent: the first root of the caller's token, else the server's own working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathArg>,
    /// The complete environment; with `envPolicy`, variables that override the result of the policy. Without `env` and `envPolicy`, the
    /// process inherits the core variables of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// How to build the environment from the server's. Absent: if `env` is present, nothing is inherited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_policy: Option<EnvPolicy>,
    /// Run the process on a terminal.
    #[serde(default, deserialize_with = "null_default")]
    pub tty: bool,
    /// For a process without a terminal: give it a writable stdin. Otherwise its stdin is `/dev/null`.
    #[serde(default, deserialize_with = "null_default")]
    pub pipe_stdin: bool,
    /// The value that the program sees as `argv[0]`, if it differs from the program's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
    /// Initial size of the terminal. Default: 24 rows, 80 columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Value of `TERM` for a process on a terminal. A `TERM` in `env` takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
    /// Kill the process and everything it started after this many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Kill the process and everything it started after this many milliseconds without output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// Behavior when output is not taken and the log is full. Default: `block`, unless the server is configured otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
    /// Forget the process automatically when it has closed and no reader needs its log.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub auto_forget: bool,
    /// The sandbox of the process. A policy that cannot be enforced is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
    /// Network confinement of the reference. The start is refused if this is true.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub enforce_managed_network: bool,
    /// Proxy ports of the reference. Ignored: they have no meaning without the reference's network confinement.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub managed_network: Option<Box<RawValue>>,
    /// Network proxy of the reference. The start is refused if this is present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub network_proxy: Option<Box<RawValue>>,
    /// Cached shell state of the reference. This server does not capture shell state and runs the plain command, like
    /// the reference when it cannot capture the state. A command that the reference would run with the state is refused
    /// if `envPolicy` filters variables, because the shell's profile could export them again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell_snapshot: Option<ShellSnapshot>,
}

/// Cached shell state of the reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShellSnapshot {
    /// The scope that the state belongs to.
    pub scope_id: String,
    /// The shell whose profile is captured.
    pub shell: SnapshotShell,
}

/// The shell whose profile is captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SnapshotShell {
    /// Name of the shell. The reference captures the state of `bash`, `zsh` and `sh`.
    pub name: String,
    /// Path of the executable.
    pub path: String,
}

impl ShellSnapshot {
    /// Whether the reference would run this command with the captured state: `[path, "-lc", script, …]` with a shell that it supports.
    #[must_use]
    pub fn applies_to(&self, argv: &[String]) -> bool {
        matches!(self.shell.name.as_str(), "bash" | "zsh" | "sh")
            && argv.len() >= 3
            && argv[0] == self.shell.path
            && argv[1] == "-lc"
    }
}

/// How the environment of a process is built from the server's. Every member is required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvPolicy {
    /// Which variables of the server are inherited.
    pub inherit: Inherit,
    /// Keep variables whose names look like secrets (`*KEY*`, `*SECRET*`, `*TOKEN*`).
    pub ignore_default_excludes: bool,
    /// Patterns of names to drop.
    pub exclude: Vec<String>,
    /// Variables to set after names were dropped.
    pub set: BTreeMap<String, String>,
    /// If not empty: patterns of the only names to keep.
    pub include_only: Vec<String>,
}

impl EnvPolicy {
    /// Whether the policy removes variables by their names.
    #[must_use]
    pub fn filters(&self) -> bool {
        !self.ignore_default_excludes || !self.exclude.is_empty() || !self.include_only.is_empty()
    }

    /// Inherits the core variables, without names that look like secrets. A start without `env` and `envPolicy` gets this policy.
    pub fn core() -> Self {
        Self {
            inherit: Inherit::Core,
            ignore_default_excludes: false,
            exclude: Vec::new(),
            set: BTreeMap::new(),
            include_only: Vec::new(),
        }
    }
}

/// Which variables of the server a process inherits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Inherit {
    /// All variables.
    All,
    /// The core variables: `PATH`, `SHELL`, `TMPDIR`, `TEMP`, `TMP`, `HOME`, `LANG`, `LC_ALL`, `LC_CTYPE`, `LOGNAME` and `USER`.
    Core,
    /// No variables.
    None,
}

/// The variables that [`Inherit::Core`] stands for.
pub const CORE_VARIABLES: [&str; 11] =
    ["PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER"];

/// Size of a terminal in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Size {
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub cols: u16,
}

/// Behavior when the log is full because the client has not taken (acknowledged or read) output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Overflow {
    /// The process blocks until output is taken.
    #[default]
    Block,
    /// The oldest output is dropped, counted and reported as a gap.
    DropOldest,
}

/// Result of `process/start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StartResult {
    /// Name of the process, as in the request.
    pub process_id: ProcessId,
    /// `none` or `linuxSeccomp`. Absent or null if the server does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_type: Option<Cow<'static, str>>,
    /// The sandbox that was applied. Absent if the process is not confined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<AppliedSandbox>,
    /// PID that the operating system assigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl StartResult {
    /// The result for a process that started successfully.
    #[must_use]
    pub fn started(process_id: ProcessId, pid: u32, sandbox: Option<AppliedSandbox>) -> Self {
        let sandbox_type = if sandbox.is_some() { "linuxSeccomp" } else { "none" };
        Self { process_id, sandbox_type: Some(Cow::Borrowed(sandbox_type)), sandbox, pid: Some(pid) }
    }
}
