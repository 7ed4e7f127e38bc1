//! Results of `environment/info` and `environment/status`.

use serde::{Deserialize, Serialize};

use crate::capabilities::EnvironmentCapabilities;

/// Result of `environment/info`. Directories are `file:` URIs. `searchPath` and the path of the shell are native.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InfoResult {
    /// `SHELL` of the server's environment, else `/bin/sh`. Older servers may omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Shell>,
    /// Default working directory of processes: the first root of the caller's token, else the server's own working directory.
    pub cwd: Option<String>,
    /// Directories for temporary files, as the reference reports them. This server sends an empty list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<String>>,
    /// Default directory for temporary files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temp_dir: Option<String>,
    /// Home directory that started processes get in `HOME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home_dir: Option<String>,
    /// The server's `PATH`. Processes inherit it with the environment policies `all` and `core`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search_path: Option<String>,
    /// Sandbox mechanisms that this host supports. Servers of the reference omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSupport>,
    /// Capability flags of the reference.
    #[serde(default)]
    pub capabilities: EnvironmentCapabilities,
}

/// Sandbox mechanisms that a host supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SandboxSupport {
    /// Landlock ABI version of the kernel, or null without Landlock. Processes can be confined only with version 6 or later.
    pub landlock: Option<u32>,
    /// The kernel supports seccomp filters. Processes can be confined only with them.
    pub seccomp: bool,
    /// The server can create mount namespaces. Without them neither processes nor file methods can be confined.
    pub namespaces: bool,
}

/// Name and path of a shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Shell {
    /// Short name, for example `bash`.
    pub name: String,
    /// Native path of the executable.
    pub path: String,
}

/// Result of `environment/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusResult {
    /// State of the server.
    pub status: Status,
}

/// State of a server. A server that is not ready does not answer at all, so there is only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// The server accepts requests.
    Ready,
}
