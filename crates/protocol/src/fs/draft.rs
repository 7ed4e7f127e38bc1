//! Writing a file in blocks: `fs/create`, `fs/writeBlock` and `fs/commit`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{FileTarget, Moment, WriteFileResult};
use crate::tolerant::{is_false, null_default};

/// Params of `fs/create`, which begins a draft: a new version of a file that stays invisible until `fs/commit`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreateParams {
    /// Name of the draft, chosen by the client, at most 32 bytes. It must differ from the names of files opened with `fs/open`.
    pub handle_id: String,
    /// The file that the draft becomes.
    #[serde(flatten)]
    pub file: FileTarget,
    /// Keep the written bytes if the draft ends without a commit. A later `fs/create` of the same path with the same `keep` continues the
    /// draft. 1 to 64 letters, digits, `-` and `_`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
}

/// Result of `fs/create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreateResult {
    /// Name of the draft, as in the request.
    pub handle_id: String,
    /// Number of bytes that the draft already has: those of an earlier draft with the same `keep`, otherwise 0.
    pub size: u64,
}

/// Params of `fs/writeBlock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteBlockParams<'a> {
    /// Name of the draft.
    pub handle_id: String,
    /// Where to write the bytes. A gap between blocks reads as zeros.
    pub offset: u64,
    /// Base64 of the bytes, at most 1 MiB of them.
    #[serde(borrow)]
    pub chunk: Cow<'a, str>,
}

/// Result of `fs/writeBlock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteBlockResult {
    /// Size of the draft after the write, in bytes.
    pub size: u64,
}

/// Params of `fs/commit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommitParams {
    /// Name of the draft. The commit ends the draft even if it fails. Two failures leave it open: the error `etagMismatch`, and a failure
    /// in the middle of a write in place.
    pub handle_id: String,
    /// Commit only if the file has this etag, or with `absent` only if it does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_match: Option<String>,
    /// Answer only when the bytes and the name are on the disk. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub fsync: bool,
    /// Size of the file in bytes. The draft is cut to it, or extended with a hole. Default: the size that was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Permission bits. Default: those of the file that is replaced, or 0666 minus the umask for a new file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Modification time. Default: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
}

/// Result of `fs/commit`.
pub type CommitResult = WriteFileResult;
