//! `fs/walk`: a bounded look at a tree. It must not know how it is walked.

use serde::{Deserialize, Serialize};

use super::Sandbox;
use crate::{path::PathArg, tolerant::null_default};

/// Params of `fs/walk`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkParams {
    /// Where to begin.
    pub path: PathArg,
    /// How far to go.
    pub options: WalkOptions,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// How far a walk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkOptions {
    /// Levels below the beginning, 64 at most.
    pub max_depth: u64,
    /// Directories that are looked into, the beginning counted, 10,000 at most.
    pub max_directories: u64,
    /// Entries that are listed, 50,000 at most.
    pub max_entries: u64,
    /// Whether links to directories are followed.
    pub follow_directory_symlinks: bool,
    /// Whether directories whose name begins with a dot are listed but not looked into.
    #[serde(default, deserialize_with = "null_default")]
    pub prune_hidden_directories: bool,
}

/// Result of `fs/walk`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkResult {
    /// What was found, level by level, sorted by name in each directory.
    pub entries: Vec<WalkEntry>,
    /// What could not be looked at.
    pub errors: Vec<WalkError>,
    /// Whether a bound cut the walk.
    pub truncated: bool,
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkEntry {
    /// Where it is.
    pub path: PathArg,
    /// What it is.
    pub kind: WalkKind,
}

/// What a walk lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WalkKind {
    /// A directory, or a link to one that is followed.
    Directory,
    /// A regular file.
    File,
}

/// Something that could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkError {
    /// Where it is.
    pub path: PathArg,
    /// What happened.
    pub message: String,
    /// The `file:` URI of the place, where `path` could not say it because it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}
