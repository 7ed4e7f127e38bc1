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
    /// The reference's capability flags.
    #[serde(default)]
    pub capabilities: EnvironmentCapabilities,
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
