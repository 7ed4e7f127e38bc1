//! Params and results of `fs/*`: generations S and H, and the additions of this server.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::value::{RawValue, to_raw_value};

use crate::{path::PathArg, sandbox::AppliedSandbox};

pub use draft::*;
pub use file::*;
pub use handle::*;
pub use search::*;
pub use tree::*;
pub use walk::*;
pub use watch::*;

mod draft;
mod file;
mod handle;
mod search;
mod tree;
mod walk;
mod watch;

/// The sandbox of a request, not yet decoded. The server decodes it when it applies the sandbox, and refuses one that it cannot enforce.
pub type Sandbox = Option<Box<RawValue>>;

/// The file that a request is about, and which rules apply on the way to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileTarget {
    /// Path of the file or directory.
    pub path: PathArg,
    /// Whether symbolic links in the path are followed. Default: true. If not, such a link is an error. A method that works on a link itself
    /// accepts a link as the last component in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The sandbox of the request.
    #[serde(default, deserialize_with = "undecoded", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Reads any JSON value. A flattened struct is decoded from values in memory, from which serde cannot make a `RawValue`.
fn undecoded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Sandbox, D::Error> {
    let value = Option::<serde_json::Value>::deserialize(deserializer)?;
    value.map(|value| to_raw_value(&value)).transpose().map_err(D::Error::custom)
}

/// Result of the method, with the sandbox that confined the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "{R}"))]
pub struct SandboxedResult<R> {
    /// The result itself.
    #[serde(flatten)]
    pub result: R,
    /// How the request was confined. Present if and only if the request had a `sandbox`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<AppliedSandbox>,
}

/// A point in time, as seconds and nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Moment {
    /// Whole seconds since the Unix epoch. Negative before 1970.
    pub seconds: i64,
    /// Additional nanoseconds, less than 1,000,000,000.
    pub nanos: u32,
}

/// A range of lines of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Lines {
    /// Number of the first line, starting at 1.
    pub first: u64,
    /// Number of lines.
    pub count: u64,
}

/// Type of a directory entry. Symbolic links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, a socket or a device.
    Other,
}

/// Value of `ifMatch` that requires that the file does not exist. No etag has this value.
pub const ABSENT: &str = "absent";
