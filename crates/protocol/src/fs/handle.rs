//! Reading by blocks: `fs/open`, `fs/readBlock`, `fs/close`. It must not know descriptors.

use serde::{Deserialize, Serialize};

use super::{Moment, Sandbox};
use crate::{
    Empty,
    path::PathArg,
    tolerant::{is_false, null_default},
};

/// Params of `fs/open`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenParams {
    /// The caller's name for the open file, 32 bytes at most.
    pub handle_id: String,
    /// The file.
    pub path: PathArg,
    /// Whether links in the path are followed, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Result of `fs/open`. From the reference only `handleId`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenResult {
    /// The same name.
    pub handle_id: String,
    /// Bytes of the file when it was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The state of the file when it was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Time of modification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
}

/// Params of `fs/readBlock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadBlockParams {
    /// The open file.
    pub handle_id: String,
    /// Where to begin.
    pub offset: u64,
    /// How many bytes, from 1 to 1 MiB.
    pub len: u64,
    /// Tells of a hole in place of its zeros.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub holes: bool,
}

/// Result of `fs/readBlock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadBlockResult {
    /// Base64 of the bytes.
    pub chunk: String,
    /// Fewer bytes than asked for are there.
    pub eof: bool,
    /// So many zeros lie at `offset` that no disk holds, and the chunk is empty; go on behind them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hole: Option<u64>,
}

/// Params of `fs/close`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CloseParams {
    /// The open file; one that is not open is no mistake.
    pub handle_id: String,
    /// Of a draft with a `keep` also what was written so far goes.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub discard: bool,
}

/// Result of `fs/close`.
pub type CloseResult = Empty;
