//! Reading a file in blocks: `fs/open`, `fs/readBlock` and `fs/close`.

use serde::{Deserialize, Serialize};

use super::{FileTarget, Moment};
use crate::{
    Empty,
    tolerant::{is_false, null_default},
};

/// Params of `fs/open`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenParams {
    /// Name of the open file, chosen by the client, at most 32 bytes.
    pub handle_id: String,
    /// The file.
    #[serde(flatten)]
    pub file: FileTarget,
}

/// Result of `fs/open`. The reference sends only `handleId`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenResult {
    /// Name of the open file, as in the request.
    pub handle_id: String,
    /// Size of the file when it was opened, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Etag of the file when it was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Modification time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Moment>,
}

/// Params of `fs/readBlock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadBlockParams {
    /// Name of the open file.
    pub handle_id: String,
    /// Byte offset to start at.
    pub offset: u64,
    /// Number of bytes to read, from 1 to 1 MiB.
    pub len: u64,
    /// Report a hole in the file instead of sending its zeros. Default: false.
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
    /// The file ends before the requested number of bytes.
    pub eof: bool,
    /// Length of a hole at `offset`: this many zeros that are not stored on disk. `chunk` is then empty. Continue reading behind the hole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hole: Option<u64>,
}

/// Params of `fs/close`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CloseParams {
    /// Name of the open file, draft, search or watch. A name that is not in use is not an error.
    pub handle_id: String,
    /// Discard the written bytes of a draft that has `keep`. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub discard: bool,
}

/// Result of `fs/close`.
pub type CloseResult = Empty;
