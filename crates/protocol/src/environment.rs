//! Results of `environment/info` and `environment/status`. It must not know how a host is examined.

use serde::{Deserialize, Serialize};

use crate::capabilities::EnvironmentCapabilities;

/// Result of `environment/info`; paths are `file:` URIs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InfoResult {
    /// The login shell of the server's user; older peers may leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Shell>,
    /// The server's working directory.
    pub cwd: Option<String>,
    /// Directories for temporary files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<String>>,
    /// The directory for temporary files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temp_dir: Option<String>,
    /// The home directory that programs started here get in `HOME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home_dir: Option<String>,
    /// The server's `PATH`, which programs inherit by the policies `all` and `core`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search_path: Option<String>,
    /// What this host can enforce of a sandbox; other servers do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSupport>,
    /// The reference's capability flags.
    #[serde(default)]
    pub capabilities: EnvironmentCapabilities,
}

/// What a host can enforce of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SandboxSupport {
    /// The release of Landlock that the kernel has; null where it has none. Below 6 no process can be confined.
    pub landlock: Option<u32>,
    /// System calls can be filtered.
    pub seccomp: bool,
    /// Mount namespaces can be made, without which neither processes nor file methods can be confined.
    pub namespaces: bool,
}

/// A shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Shell {
    /// Its short name, for example `bash`.
    pub name: String,
    /// Its native path.
    pub path: String,
}

/// Result of `environment/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusResult {
    /// The state of the server.
    pub status: Status,
}

/// States of the server that answers; one that is not ready does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// Requests are served.
    Ready,
}
