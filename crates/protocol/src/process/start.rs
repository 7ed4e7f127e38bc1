//! Params and result of `process/start`. It must not know how a process is started.

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
    /// The caller's name for the process.
    pub process_id: ProcessId,
    /// Program and arguments; the program is looked up in the child's PATH.
    pub argv: Vec<String>,
    /// Working directory; absent means the caller's first root, else the server's own directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathArg>,
    /// The whole environment, or with `envPolicy` what is laid over it. Without both, the child inherits the server's core variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// How the environment is made from the server's; absent, and with `env` present, nothing is inherited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_policy: Option<EnvPolicy>,
    /// Runs on a terminal.
    #[serde(default, deserialize_with = "null_default")]
    pub tty: bool,
    /// Keeps a writable stdin without a terminal.
    #[serde(default, deserialize_with = "null_default")]
    pub pipe_stdin: bool,
    /// Override of `argv[0]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
    /// First size of the terminal, default 24 by 80.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// TERM for a process on a terminal; `env` wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
    /// Ends the process after so many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Ends the process after so many milliseconds without output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// What happens when output is not taken, default `block`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
    /// Forgets the process once it has ended and no reader needs its log any more.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub auto_forget: bool,
    /// What the process may touch; a policy that cannot be enforced is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
    /// The reference's network confinement; refused.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub enforce_managed_network: bool,
    /// Ports of the reference's proxy; means nothing without the confinement.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub managed_network: Option<Box<RawValue>>,
    /// The reference's proxy; refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub network_proxy: Option<Box<RawValue>>,
    /// The reference's cached shell state. Refused where `envPolicy` would filter what the shell's profile exports; otherwise the
    /// plain command runs, as in the reference when the state cannot be captured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell_snapshot: Option<ShellSnapshot>,
}

/// Params of the reference's cached shell state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShellSnapshot {
    /// Whom the state belongs to.
    pub scope_id: String,
    /// The shell whose profile is captured.
    pub shell: SnapshotShell,
}

/// The shell whose profile is captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SnapshotShell {
    /// Its name; `bash`, `zsh` and `sh` have such a state.
    pub name: String,
    /// Its program.
    pub path: String,
}

impl ShellSnapshot {
    /// Whether the reference would run this command with the state: `[path, "-lc", script, …]` of a shell that it knows.
    #[must_use]
    pub fn applies_to(&self, argv: &[String]) -> bool {
        matches!(self.shell.name.as_str(), "bash" | "zsh" | "sh")
            && argv.len() >= 3
            && argv[0] == self.shell.path
            && argv[1] == "-lc"
    }
}

/// How a child's environment is made from the server's; every member is required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvPolicy {
    /// Which variables of the server are taken.
    pub inherit: Inherit,
    /// Keeps names that look like secrets.
    pub ignore_default_excludes: bool,
    /// Patterns of names to drop.
    pub exclude: Vec<String>,
    /// Variables to set after the dropping.
    pub set: BTreeMap<String, String>,
    /// When not empty: patterns of the only names to keep.
    pub include_only: Vec<String>,
}

impl EnvPolicy {
    /// Whether it keeps variables away from the child by their names.
    #[must_use]
    pub fn filters(&self) -> bool {
        !self.ignore_default_excludes || !self.exclude.is_empty() || !self.include_only.is_empty()
    }

    /// The platform's short list, without names that look like secrets: what a start gets that says nothing about its environment.
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

/// Which variables of the server a child inherits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Inherit {
    /// All of them.
    All,
    /// The platform's short list.
    Core,
    /// None.
    None,
}

/// The short list that [`Inherit::Core`] stands for.
pub const CORE_VARIABLES: [&str; 11] =
    ["PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER"];

/// Size of a terminal in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// What happens when output is not taken and the log is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Overflow {
    /// The process waits.
    #[default]
    Block,
    /// The oldest output is dropped, counted and told as a gap.
    DropOldest,
}

/// Result of `process/start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StartResult {
    /// The caller's name for the process.
    pub process_id: ProcessId,
    /// `none` or `linuxSeccomp`; null or absent means the peer did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_type: Option<Cow<'static, str>>,
    /// The sandbox that was applied, where one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<AppliedSandbox>,
    /// The process id of the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl StartResult {
    /// The answer to a start that went well.
    #[must_use]
    pub fn started(process_id: ProcessId, pid: u32, sandbox: Option<AppliedSandbox>) -> Self {
        let sandbox_type = if sandbox.is_some() { "linuxSeccomp" } else { "none" };
        Self { process_id, sandbox_type: Some(Cow::Borrowed(sandbox_type)), sandbox, pid: Some(pid) }
    }
}
