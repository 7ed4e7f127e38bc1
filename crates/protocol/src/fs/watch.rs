//! `fs/watch` and `fs/watchNext`: what changes below a directory. It must not know who tells of it.

use serde::{Deserialize, Serialize};

use super::Sandbox;
use crate::{
    path::PathArg,
    tolerant::{is_false, null_default},
};

/// Params of `fs/watch`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchParams {
    /// The caller's name for the watch, 32 bytes at most.
    pub handle_id: String,
    /// A directory, or one file.
    pub path: PathArg,
    /// Directories below it too, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Names that begin with a dot too, and what is below them; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<bool>,
    /// Neither what one of these globs matches nor what is below it.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Directories that are watched, default 8192, 65,536 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_directories: Option<u64>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

impl WatchParams {
    /// Watches with the defaults of everything else.
    pub fn new(path: PathArg, handle_id: impl Into<String>) -> Self {
        Self {
            handle_id: handle_id.into(),
            path,
            recursive: None,
            hidden: None,
            exclude: Vec::new(),
            max_directories: None,
            sandbox: None,
        }
    }
}

/// Result of `fs/watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchResult {
    /// The same name.
    pub handle_id: String,
    /// Directories that are watched.
    pub directories: u64,
    /// Directories that are not, because of a bound, of this server or of its host.
    pub unwatched: u64,
}

/// Params of `fs/watchNext`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchNextParams {
    /// The watch.
    pub handle_id: String,
    /// How long to wait for a change, default 0.
    #[serde(default, deserialize_with = "null_default")]
    pub wait_ms: u64,
    /// How long to gather after the first change, default 50, 10,000 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_ms: Option<u64>,
    /// Changes in one answer, default and at most 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_changes: Option<u64>,
}

/// Result of `fs/watchNext`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchNextResult {
    /// What changed since it was told last, each path once, in the order of paths.
    pub changes: Vec<WatchChange>,
    /// Changes were lost: look at everything.
    pub overflow: bool,
    /// More wait.
    pub more: bool,
    /// Directories that are not watched, because of a bound, of this server or of its host.
    pub unwatched: u64,
    /// Why nothing more will come; null while something may.
    pub ended: Option<WatchEnd>,
}

/// What happened to one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchChange {
    /// Where.
    pub path: PathArg,
    /// The `file:` URI of the place, where `path` could not say it because it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// What.
    pub change: ChangeKind,
    /// It is, or was, a directory.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_directory: bool,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    /// It is there now, new or in the place of what was there before.
    Created,
    /// Its content or its attributes are others.
    Modified,
    /// It is there no more.
    Removed,
}

/// Why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WatchEnd {
    /// What was watched was removed, moved or unmounted.
    RootRemoved,
    /// The host tells nothing more.
    Failed,
}
