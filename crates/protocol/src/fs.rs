//! Params and results of `fs/*`: generations S and H and the additions. It must not know how a file is touched.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::sandbox::AppliedSandbox;

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

/// The sandbox of a request as it came; whoever enforces it reads it. What cannot be enforced is refused.
pub type Sandbox = Option<Box<RawValue>>;

/// A result, and the sandbox that it was got in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "{R}"))]
pub struct Told<R> {
    /// What was asked for.
    #[serde(flatten)]
    pub result: R,
    /// How the request was confined; there if, and only if, it had a `sandbox`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<AppliedSandbox>,
}

/// A moment of a file's life, to the nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Moment {
    /// Whole seconds since 1970, negative before it.
    pub seconds: i64,
    /// Nanoseconds after them, below 1,000,000,000.
    pub nanos: u32,
}

/// Some lines of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Lines {
    /// The first one, counted from 1.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// What an entry of a directory is, links not followed.
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

/// The word for `ifMatch` that asks for a file that is not there yet; no etag reads so.
pub const ABSENT: &str = "absent";
