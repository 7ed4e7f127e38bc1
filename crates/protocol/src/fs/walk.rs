//! Listing a directory tree with limits: `fs/walk`.

use serde::{Deserialize, Serialize};

use super::Sandbox;
use crate::{path::PathArg, tolerant::null_default};

/// Params of `fs/walk`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkParams {
    /// Path of the directory to start at.
    pub path: PathArg,
    /// Limits and options of the walk.
    pub options: WalkOptions,
    /// The sandbox of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Limits and options of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkOptions {
    /// Maximum number of levels below `path` whose directories are read, at most 64. With 0, only `path` is read.
    pub max_depth: u64,
    /// Maximum number of directories to read, including `path`, at most 10,000.
    pub max_directories: u64,
    /// Maximum number of entries to examine, at most 50,000.
    pub max_entries: u64,
    /// Whether to follow symbolic links to directories.
    pub follow_directory_symlinks: bool,
    /// List directories whose name begins with a dot, but do not read them. Default: false.
    #[serde(default, deserialize_with = "null_default")]
    pub prune_hidden_directories: bool,
}

/// Result of `fs/walk`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkResult {
    /// The entries found, level by level, sorted by name within each directory.
    pub entries: Vec<WalkEntry>,
    /// The entries that could not be examined.
    pub errors: Vec<WalkError>,
    /// Whether a limit cut the walk short.
    pub truncated: bool,
}

/// One entry found by a walk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkEntry {
    /// Path of the entry.
    pub path: PathArg,
    /// Type of the entry.
    pub kind: WalkKind,
}

/// Type of an entry that a walk lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WalkKind {
    /// A directory, or a symbolic link to a directory that is followed.
    Directory,
    /// A regular file.
    File,
}

/// An entry that could not be examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkError {
    /// Path of the entry.
    pub path: PathArg,
    /// The reason, as text for people.
    pub message: String,
    /// `file:` URI of the entry. Only present if the path is not UTF-8, so that `path` cannot represent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}
