//! Searching a directory tree: `fs/search`, `fs/searchNext` and `fs/glob`.

use serde::{Deserialize, Serialize};

use super::{EntryKind, Sandbox, WalkError};
use crate::{
    path::PathArg,
    tolerant::{is_false, null_default},
};

/// Params of `fs/search`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchParams {
    /// A directory, or a single file.
    pub path: PathArg,
    /// The regular expression, in the syntax of Rust's `regex` crate. A match never spans lines.
    pub pattern: String,
    /// Treat the pattern as plain text. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub literal: bool,
    /// Ignore case. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub ignore_case: bool,
    /// Match whole words only. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub word: bool,
    /// Search only files that match one of these globs. Empty: all files.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Options that `fs/search` and `fs/glob` share.
    #[serde(flatten)]
    pub scan: ScanParams,
    /// Lines of context to return before each match, at most 100. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Lines of context to return after each match, at most 100. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum number of matching lines, at most 1,000,000. Default: 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_matches: Option<u64>,
    /// Maximum number of matching lines per file. Lines beyond it are left out, which does not count as truncation. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_file: Option<u64>,
    /// Maximum bytes of a line to return, at most 65,536. Default: 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_line_bytes: Option<u64>,
    /// Larger files are skipped and counted. Default: 1 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_file_bytes: Option<u64>,
    /// Return only the first page, and the others with `fs/searchNext`. Requires `handleId`. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub pages: bool,
    /// The sandbox of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

impl SearchParams {
    /// A search with the default of every option.
    pub fn new(path: PathArg, pattern: impl Into<String>) -> Self {
        Self { path, pattern: pattern.into(), ..Self::default() }
    }
}

impl GlobParams {
    /// A glob with the default of every option.
    pub fn new(path: PathArg, pattern: impl Into<String>) -> Self {
        Self { path, pattern: pattern.into(), ..Self::default() }
    }
}

/// Options that `fs/search` and `fs/glob` share.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScanParams {
    /// Skip files and directories that match one of these globs.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Include names that begin with a dot. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub hidden: bool,
    /// Apply `.gitignore`, `.ignore` and `.git/info/exclude`, and skip `.git`. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_rules: Option<bool>,
    /// Maximum number of levels below `path`, at most 256. With 1, only the entries of `path` are examined. Default: 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u64>,
    /// Maximum number of directory entries to examine, at most 1,000,000, which is also the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_entries: Option<u64>,
    /// Timeout in milliseconds, at most 600,000. Default: 60,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Name of the search while it runs, chosen by the client, at most 32 bytes. `fs/close` with this name cancels it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle_id: Option<String>,
}

/// Result of `fs/search` and `fs/searchNext`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchResult {
    /// The matching lines and their context lines, ordered by path and line number.
    pub matches: Vec<SearchLine>,
    /// There are no more pages. `summary` is then present.
    pub done: bool,
    /// Summary of the whole search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<SearchSummary>,
}

/// A matching line, or a context line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchLine {
    /// Path of the file.
    pub path: PathArg,
    /// `file:` URI of the file. Only present if the path is not UTF-8, so that `path` cannot represent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Line number, starting at 1.
    pub line: u64,
    /// Number of bytes in the file before the line.
    pub offset: u64,
    /// The line without its line ending. Bytes that are not UTF-8 are replaced.
    pub text: String,
    /// Base64 of the same bytes. Only present if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_base64: Option<String>,
    /// Ranges of the matches, as `[from, to]` byte offsets in the raw bytes of `text`, before invalid UTF-8 is replaced. At most 64.
    #[serde(default)]
    pub spans: Vec<(u64, u64)>,
    /// This is a context line, which does not match itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub context: bool,
    /// Length of the whole line in bytes. Only present if `text` is only a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_bytes: Option<u64>,
    /// Number of bytes of the line before `text`. Only present if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_bytes: Option<u64>,
}

/// Summary of a search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchSummary {
    /// Number of matching lines returned, on all pages.
    pub matches: u64,
    /// Number of files with matching lines.
    pub matched_files: u64,
    /// Number of files read.
    pub files: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Number of binary files: their search ended at a NUL byte.
    pub binary: u64,
    /// Number of files that were skipped because they are larger than `maxFileBytes`.
    pub large: u64,
    /// Number of files whose search ended at a line of more than 8 MiB.
    pub long_lines: u64,
    /// Summary of the directory scan.
    #[serde(flatten)]
    pub scan: ScanSummary,
}

/// Summary of a directory scan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScanSummary {
    /// Number of directories read.
    pub directories: u64,
    /// Number of entries examined, including those that a rule excludes.
    pub entries: u64,
    /// Number of FIFOs, sockets, devices, and directories of the kernel's own file systems. All of them are skipped.
    pub special: u64,
    /// The result may be incomplete.
    pub truncated: bool,
    /// The limits that made it incomplete.
    pub truncated_by: Vec<Cut>,
    /// The first 100 entries that could not be examined.
    pub errors: Vec<WalkError>,
    /// Number of all entries that could not be examined.
    pub error_count: u64,
}

/// A limit that cut a search or a glob short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Cut {
    /// `fs/close` cancelled it.
    Cancelled,
    /// `timeoutMs` passed.
    Time,
    /// `maxDepth` was reached.
    Depth,
    /// `maxEntries` was reached.
    Entries,
    /// `maxMatches` or `maxResults` was reached.
    Results,
    /// The results reached their maximum size in bytes.
    Bytes,
}

/// Params of `fs/searchNext`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchNextParams {
    /// Name of the search.
    pub handle_id: String,
}

/// Params of `fs/glob`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GlobParams {
    /// Path of a directory.
    pub path: PathArg,
    /// A glob for paths below the directory, such as `src/**/*.rs`.
    pub pattern: String,
    /// Options that `fs/search` and `fs/glob` share.
    #[serde(flatten)]
    pub scan: ScanParams,
    /// Maximum number of paths to return, at most 50,000. Default: 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_results: Option<u64>,
    /// The sandbox of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Result of `fs/glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GlobResult {
    /// The matching paths. The names of each directory are visited in byte order.
    pub entries: Vec<GlobEntry>,
    /// Summary of the directory scan.
    pub summary: ScanSummary,
}

/// A path that matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GlobEntry {
    /// The path.
    pub path: PathArg,
    /// `file:` URI of the path. Only present if the path is not UTF-8, so that `path` cannot represent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Type of the entry. Symbolic links are not followed.
    pub kind: EntryKind,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, in milliseconds since the Unix epoch.
    pub modified_at_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::{GlobParams, SearchParams};

    #[test]
    fn shared_members_are_flattened_and_null_means_missing() {
        let text = r#"{"path":"/","pattern":"x","hidden":true,"maxDepth":3,"exclude":null,"include":["*.rs"],"sandbox":{"a":1},"handleId":"h","pages":true}"#;
        let params: SearchParams = serde_json::from_str(text).unwrap();
        assert_eq!((params.scan.hidden, params.scan.max_depth, params.pages), (true, Some(3), true));
        assert_eq!(params.sandbox.map(|sandbox| sandbox.get().to_owned()), Some(r#"{"a":1}"#.to_owned()));
        let bare: GlobParams =
            serde_json::from_str(r#"{"path":"/","pattern":"*","sandbox":null,"maxDepth":null}"#).unwrap();
        assert_eq!((bare.scan.max_depth, bare.sandbox.is_none()), (None, true));
        let written = serde_json::to_string(&bare).unwrap();
        assert_eq!(written, r#"{"path":"/","pattern":"*"}"#);
    }
}
