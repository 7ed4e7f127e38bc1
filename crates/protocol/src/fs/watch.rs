//! Watching for changes below a directory: `fs/watch` and `fs/watchNext`.

use serde::{Deserialize, Serialize};

use super::Sandbox;
use crate::{
    path::PathArg,
    tolerant::{is_false, null_default},
};

/// Params of `fs/watch`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchParams {
    /// Name of the watch, chosen by the client, at most 32 bytes.
    pub handle_id: String,
    /// A directory, or a single file.
    pub path: PathArg,
    /// Watch the directories below `path` too. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Include names that begin with a dot, and everything below them. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<bool>,
    /// Exclude paths that match one of these globs, and everything below them.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Maximum number of directories to watch, at most 65,536. Default: 8192.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_directories: Option<u64>,
    /// The sandbox of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

impl WatchParams {
    /// A watch with the default of every option.
    pub fn new(path: PathArg, handle_id: impl Into<String>) -> Self {
        Self { handle_id: handle_id.into(), path, ..Self::default() }
    }
}

/// Result of `fs/watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchResult {
    /// Name of the watch, as in the request.
    pub handle_id: String,
    /// Number of directories that are watched.
    pub directories: u64,
    /// How often since `fs/watch` a directory could not be watched, because of `maxDirectories`, another limit or an error. Directories below
    /// it are not counted.
    pub unwatched: u64,
}

/// Params of `fs/watchNext`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchNextParams {
    /// Name of the watch.
    pub handle_id: String,
    /// How many milliseconds to wait for the first change. Default: 0.
    #[serde(default, deserialize_with = "null_default")]
    pub wait_ms: u64,
    /// How many milliseconds to collect more changes after the first one, at most 10,000. Default: 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_ms: Option<u64>,
    /// Maximum number of changes in the result, at most 4096, which is also the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_changes: Option<u64>,
}

/// Result of `fs/watchNext`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchNextResult {
    /// The changes since the last result, each path once, in the order of paths.
    pub changes: Vec<WatchChange>,
    /// Changes were lost. The client must examine everything again.
    pub overflow: bool,
    /// More changes are ready. Ask again at once.
    pub more: bool,
    /// How often since `fs/watch` a directory could not be watched, because of `maxDirectories`, another limit or an error. Directories below
    /// it are not counted.
    pub unwatched: u64,
    /// Why the watch has ended. Null while it is active.
    pub ended: Option<WatchEnd>,
}

/// A change of one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchChange {
    /// The path that changed.
    pub path: PathArg,
    /// `file:` URI of the path. Only present if the path is not UTF-8, so that `path` cannot represent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The kind of change.
    pub change: ChangeKind,
    /// Whether the path is, or was, a directory.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_directory: bool,
}

/// The kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    /// The path exists now. It is new, or it replaced something else.
    Created,
    /// The content or the attributes changed.
    Modified,
    /// The path does not exist any longer.
    Removed,
}

/// Why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WatchEnd {
    /// The watched directory or file was removed, moved or unmounted.
    RootRemoved,
    /// The host does not report changes any longer.
    Failed,
}
