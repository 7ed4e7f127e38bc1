//! Writing by blocks: `fs/create`, `fs/writeBlock`, `fs/commit`. It must not know temporary files.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Moment, Sandbox, WriteFileResult};
use crate::{
    path::PathArg,
    tolerant::{is_false, null_default},
};

/// Params of `fs/create`: a draft of a file, which nobody sees before `fs/commit`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreateParams {
    /// The caller's name for the draft, 32 bytes at most; one space of names with `fs/open`.
    pub handle_id: String,
    /// The file that it becomes.
    pub path: PathArg,
    /// Whether links in the path are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
    /// Keeps what was written when the handle goes without a commit: a later `fs/create` of the same path with the same word goes on with
    /// it. 1 to 64 letters, digits, `-` and `_`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
}

/// Result of `fs/create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreateResult {
    /// The same name.
    pub handle_id: String,
    /// Bytes that the draft has already: what an earlier one with the same `keep` left, else 0.
    pub size: u64,
}

/// Params of `fs/writeBlock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteBlockParams<'a> {
    /// The draft.
    pub handle_id: String,
    /// Where the bytes go; what lies between is zeros.
    pub offset: u64,
    /// Base64 of the bytes, 1 MiB of them at most.
    #[serde(borrow)]
    pub chunk: Cow<'a, str>,
}

/// Result of `fs/writeBlock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteBlockResult {
    /// Bytes of the draft now.
    pub size: u64,
}

/// Params of `fs/commit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommitParams {
    /// The draft. It is gone afterwards, whether the commit works or not, unless the answer is an `etagMismatch`.
    pub handle_id: String,
    /// Commits only if the file is in this state (an etag), or not there (`absent`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_match: Option<String>,
    /// Answers when the bytes and the name are on the disk.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub fsync: bool,
    /// Bytes of the whole file: cuts the draft, or fills it with a hole. Default what was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Permission bits, default those of the file that is replaced, or 0666 less the umask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Time of modification, default now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
}

/// Result of `fs/commit`.
pub type CommitResult = WriteFileResult;
