//! Directories and names: `fs/createDirectory`, `fs/readDirectory`, `fs/createSymlink`, `fs/remove`, `fs/copy`, `fs/canonicalize`. It
//! must not know how a tree is walked.

use serde::{Deserialize, Serialize};

use super::{EntryKind, Moment, Owner, Sandbox};
use crate::{
    Empty,
    path::PathArg,
    tolerant::{is_false, null_default},
};

/// Params of `fs/createDirectory`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreateDirectoryParams {
    /// The directory.
    pub path: PathArg,
    /// Makes parents too, and takes one that is there for done; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Whether links in the path are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
    /// Permission bits of the directory if it is made, whatever the umask; default 0777 less the umask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

/// Result of `fs/createDirectory`.
pub type CreateDirectoryResult = Empty;

/// Params of `fs/createSymlink`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreateSymlinkParams {
    /// The link that is made.
    pub path: PathArg,
    /// Where it leads, written into it as it is.
    #[serde(default, deserialize_with = "null_default")]
    pub target: String,
    /// Base64 of where it leads, in place of `target`, where that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<String>,
    /// Replaces a file or a link of this name, in one step; never a directory.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub replace: bool,
    /// Whether links in the path before its end are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Result of `fs/createSymlink`.
pub type CreateSymlinkResult = Empty;

/// Params of `fs/readDirectory`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadDirectoryParams {
    /// The directory.
    pub path: PathArg,
    /// Whether links in the path are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
    /// Lists every entry, broken links and special files too, sorted by name, each with `kind` and what else is known of it.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub details: bool,
    /// With `details`: says whom each entry belongs to.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub owners: bool,
    /// With `details`: only names after this one, in the order of their bytes; base64. For the next part of a directory that is too large
    /// for one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_base64: Option<String>,
}

/// Result of `fs/readDirectory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadDirectoryResult {
    /// What is in it, without `.` and `..`.
    pub entries: Vec<DirectoryEntry>,
    /// With `details`: there are more; ask again with the last name as `afterBase64`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DirectoryEntry {
    /// Its name; what is not UTF-8 in it is replaced.
    pub file_name: String,
    /// A directory, links followed.
    pub is_directory: bool,
    /// A regular file, links followed.
    pub is_file: bool,
    /// A symbolic link itself; servers of older generations leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_symlink: Option<bool>,
    /// Base64 of the name, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_name_base64: Option<String>,
    /// What it is itself; this and all below with `details`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<EntryKind>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Time of modification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
    /// Whom it belongs to; with `owners`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Where a link leads, as it is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// Base64 of where a link leads, where that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target_base64: Option<String>,
}

/// Params of `fs/remove`. A link at the end of the path is removed itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RemoveParams {
    /// The file, link or directory.
    pub path: PathArg,
    /// Removes what is in a directory too, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Takes one that is not there for done, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// Whether links in the path before its end are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Result of `fs/remove`.
pub type RemoveResult = Empty;

/// Params of `fs/copy`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CopyParams {
    /// What is copied; a link is copied itself.
    pub source_path: PathArg,
    /// What it becomes.
    pub destination_path: PathArg,
    /// Whether a directory may be copied.
    pub recursive: bool,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Result of `fs/copy`.
pub type CopyResult = Empty;

/// Params of `fs/canonicalize`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CanonicalizeParams {
    /// The path; it must exist.
    pub path: PathArg,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Result of `fs/canonicalize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CanonicalizeResult {
    /// The same place without links, in the form of the request; a `file:` URI where it is not UTF-8.
    pub path: PathArg,
}
