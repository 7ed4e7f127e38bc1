//! Directories and names: `fs/createDirectory`, `fs/readDirectory`, `fs/createSymlink`, `fs/remove`, `fs/copy` and `fs/canonicalize`.

use serde::{Deserialize, Serialize};

use super::{EntryKind, FileTarget, Moment, Owner, Sandbox};
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
    #[serde(flatten)]
    pub file: FileTarget,
    /// Create missing parents too. A directory that already exists is then not an error. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Permission bits of a new directory, independent of the umask. Default: 0777 minus the umask.
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
    /// The new link.
    #[serde(flatten)]
    pub file: FileTarget,
    /// Target of the link, stored as it is.
    #[serde(default, deserialize_with = "null_default")]
    pub target: String,
    /// Base64 of the target. Use it in place of `target` if the target is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<String>,
    /// Replace an existing file or link of this name atomically. A directory is never replaced. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub replace: bool,
}

/// Result of `fs/createSymlink`.
pub type CreateSymlinkResult = Empty;

/// Params of `fs/readDirectory`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadDirectoryParams {
    /// The directory.
    #[serde(flatten)]
    pub file: FileTarget,
    /// List broken links too, leave out unfinished files of this server, sort by name, and include `kind` and the other details. Default:
    /// false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub details: bool,
    /// With `details`: include `owner` of each entry. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub owners: bool,
    /// With `details`: base64 of a name. Only the names after it, in byte order, are listed. Use it to get the next part of a directory that
    /// is too large for one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_base64: Option<String>,
}

/// Result of `fs/readDirectory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadDirectoryResult {
    /// The entries, without `.` and `..`.
    pub entries: Vec<DirectoryEntry>,
    /// With `details`: there are more entries. Ask again with the last name as `afterBase64`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
}

/// One entry of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DirectoryEntry {
    /// Name of the entry. Bytes that are not UTF-8 are replaced.
    pub file_name: String,
    /// Whether the entry is a directory, after following links.
    pub is_directory: bool,
    /// Whether the entry is a regular file, after following links.
    pub is_file: bool,
    /// Whether the entry itself is a symbolic link. Servers of older generations omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_symlink: Option<bool>,
    /// Base64 of the name. Only present if the name is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_name_base64: Option<String>,
    /// Type of the entry, links not followed. This member and all below are only present with `details`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<EntryKind>,
    /// Size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Modification time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
    /// Owner. Only present with `owners`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Target of a symbolic link, as stored in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// Base64 of the link's target. Only present if the target is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target_base64: Option<String>,
}

/// Params of `fs/remove`. If the path ends with a symbolic link, the link itself is removed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RemoveParams {
    /// The file, link or directory.
    #[serde(flatten)]
    pub file: FileTarget,
    /// Remove the content of a directory too. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// A path that does not exist is not an error. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

/// Result of `fs/remove`.
pub type RemoveResult = Empty;

/// Params of `fs/copy`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CopyParams {
    /// Path of the file, link or directory to copy. A symbolic link itself is copied, not its target.
    pub source_path: PathArg,
    /// Path of the copy.
    pub destination_path: PathArg,
    /// Allow the source to be a directory.
    pub recursive: bool,
    /// The sandbox of the request.
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
    /// The path to resolve. It must exist.
    pub path: PathArg,
    /// The sandbox of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Result of `fs/canonicalize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CanonicalizeResult {
    /// The path without symbolic links. A `file:` URI if the request used one or if the path is not UTF-8, otherwise a native path.
    pub path: PathArg,
}
