//! Whole files: `fs/readFile`, `fs/writeFile`, `fs/getMetadata` and `fs/setMetadata`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{FileTarget, Lines, Moment};
use crate::{
    Empty,
    tolerant::{is_false, null_default},
};

/// Params of `fs/readFile`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadFileParams {
    /// The file.
    #[serde(flatten)]
    pub file: FileTarget,
    /// Byte offset to start at. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Maximum number of bytes to read. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub len: Option<u64>,
    /// Read these lines. Not allowed together with `offset` or `len`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<Lines>,
}

/// Result of `fs/readFile`. The reference sends only `dataBase64`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadFileResult {
    /// Base64 of the bytes.
    pub data_base64: String,
    /// Etag of the file before it was read. Pass it as `ifMatch` of a later write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Size of the whole file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Whether the bytes reach the end of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eof: Option<bool>,
}

/// Params of `fs/writeFile`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteFileParams<'a> {
    /// The file.
    #[serde(flatten)]
    pub file: FileTarget,
    /// Base64 of the bytes to write.
    #[serde(borrow)]
    pub data_base64: Cow<'a, str>,
    /// Write only if the file has this etag, or with `absent` only if it does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_match: Option<String>,
    /// Append the bytes to the file, in place. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub append: bool,
    /// Write the bytes at this offset, in place, and leave the rest of the file as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Answer only when the bytes and the name are on the disk. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub fsync: bool,
    /// Permission bits. Default: those of the file that is replaced, or 0666 minus the umask for a new file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Modification time. Default: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
}

/// Result of `fs/writeFile` and of `fs/commit`. The reference sends an empty object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteFileResult {
    /// Whether the write was atomic, so that no reader could see a partly written file.
    #[serde(default)]
    pub atomic: bool,
    /// Etag of the file after the write. Pass it as `ifMatch` of the next write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Size of the whole file after the write, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Params of `fs/getMetadata`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GetMetadataParams {
    /// The file, directory or symbolic link.
    #[serde(flatten)]
    pub file: FileTarget,
    /// If the path ends with a symbolic link, describe the link itself, not its target. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub of_link: bool,
    /// Include `owner` in the result. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub owners: bool,
}

/// Owner of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Name of the user in the server's `/etc/passwd`, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Name of the group in the server's `/etc/group`, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Result of `fs/getMetadata`. Generation S sends only the flags and the times, H also the size.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GetMetadataResult {
    /// Whether the path leads to a directory. False for a link that is described itself (`ofLink`).
    pub is_directory: bool,
    /// Whether the path leads to a regular file. False for a link that is described itself (`ofLink`).
    pub is_file: bool,
    /// Whether the path itself is a symbolic link.
    pub is_symlink: bool,
    /// Size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Creation time, in milliseconds since the Unix epoch. 0 if unknown.
    pub created_at_ms: i64,
    /// Modification time, in milliseconds since the Unix epoch. 0 if unknown.
    pub modified_at_ms: i64,
    /// Etag of a regular file. It changes whenever the bytes change. In a file over 1 MiB, a second change within one tick of the kernel's clock
    /// may go unnoticed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Modification time with nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
    /// Number of hard links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<u64>,
    /// Owner. Only present with `owners`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Target of the link, as stored in it. Only present with `ofLink`. In a target that is not UTF-8, invalid bytes are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// Base64 of the link's target. Only present if the target is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target_base64: Option<String>,
}

/// Params of `fs/setMetadata`. Members that are left out are not changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SetMetadataParams {
    /// The file, directory or symbolic link.
    #[serde(flatten)]
    pub file: FileTarget,
    /// If the path ends with a symbolic link, change the link itself. A link has a modification time, but no mode. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub of_link: bool,
    /// New permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// New modification time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
}

/// Result of `fs/setMetadata`.
pub type SetMetadataResult = Empty;
