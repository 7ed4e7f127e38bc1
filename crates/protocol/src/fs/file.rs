//! Whole files: `fs/readFile`, `fs/writeFile`, `fs/getMetadata`, `fs/setMetadata`. It must not know how bytes reach a disk.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Lines, Moment, Sandbox};
use crate::{
    Empty,
    path::PathArg,
    tolerant::{is_false, null_default},
};

/// Params of `fs/readFile`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadFileParams {
    /// The file.
    pub path: PathArg,
    /// Whether links in the path are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
    /// Begins at this byte, default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Reads so many bytes at most, default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub len: Option<u64>,
    /// Reads these lines; not together with `offset` and `len`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<Lines>,
}

/// Result of `fs/readFile`. From the reference only `dataBase64`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadFileResult {
    /// Base64 of the bytes.
    pub data_base64: String,
    /// Which state of the file was read; for `ifMatch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Bytes of the whole file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Whether what was read reaches the end of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eof: Option<bool>,
}

/// Params of `fs/writeFile`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteFileParams<'a> {
    /// The file.
    pub path: PathArg,
    /// Base64 of the bytes.
    #[serde(borrow)]
    pub data_base64: Cow<'a, str>,
    /// Whether links in the path are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
    /// Writes only if the file is in this state (an etag), or not there (`absent`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_match: Option<String>,
    /// Adds the bytes at the end, in place.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub append: bool,
    /// Writes the bytes at this place and leaves the rest as it is, in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Answers when the bytes and the name are on the disk.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub fsync: bool,
    /// Permission bits, default those of the file that is replaced, or 0666 less the umask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Time of modification, default now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
}

/// Result of `fs/writeFile` and of `fs/commit`. From the reference an empty object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteFileResult {
    /// Whether nobody could see the file half written.
    #[serde(default)]
    pub atomic: bool,
    /// The state that the file is in now; for the next `ifMatch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Bytes of the whole file now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Params of `fs/getMetadata`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GetMetadataParams {
    /// The file, directory or link.
    pub path: PathArg,
    /// Whether links in the path are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
    /// Describes a link at the end of the path itself, in place of what it leads to.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub of_link: bool,
    /// Says whom it belongs to.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub owners: bool,
}

/// Whom a file belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The number of the user.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// The user's name in the server's `/etc/passwd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The group's name in the server's `/etc/group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Result of `fs/getMetadata`. S has the flags and times alone, H the size too.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GetMetadataResult {
    /// A directory, links followed.
    pub is_directory: bool,
    /// A regular file, links followed.
    pub is_file: bool,
    /// The path itself is a link.
    pub is_symlink: bool,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Milliseconds since 1970; 0 where it is not known.
    pub created_at_ms: i64,
    /// Milliseconds since 1970; 0 where it is not known.
    pub modified_at_ms: i64,
    /// The state of the file; changes with its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The time of modification, exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
    /// Names that the file has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<u64>,
    /// Whom it belongs to; with `owners`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Where the link leads, as it is written; with `ofLink`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// Base64 of where the link leads, where that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target_base64: Option<String>,
}

/// Params of `fs/setMetadata`: what is left out stays.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SetMetadataParams {
    /// The file, directory or link.
    pub path: PathArg,
    /// Whether links in the path are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
    /// Changes a link at the end of the path itself; a link has a time, but no mode.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub of_link: bool,
    /// Permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Time of modification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
}

/// Result of `fs/setMetadata`.
pub type SetMetadataResult = Empty;
