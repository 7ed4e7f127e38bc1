//! `fs/search`, `fs/searchNext` and `fs/glob`: looking through a tree. It must not know how it is gone through.

use serde::{Deserialize, Serialize};

use super::{EntryKind, Sandbox, WalkError};
use crate::{
    path::PathArg,
    tolerant::{is_false, null_default},
};

/// Params of `fs/search`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchParams {
    /// A directory, or one file.
    pub path: PathArg,
    /// The regular expression, matched within lines.
    pub pattern: String,
    /// The pattern is a plain text.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub literal: bool,
    /// Letters match in either case.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub ignore_case: bool,
    /// Only whole words match.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub word: bool,
    /// Only files that one of these globs matches.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// What of the tree is looked at.
    #[serde(flatten)]
    pub scan: ScanParams,
    /// Lines before a match that are told too, 100 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Lines after a match that are told too, 100 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Matching lines in all, default 1000, 1,000,000 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_matches: Option<u64>,
    /// Matching lines of one file, default all; what is left out so is no cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_file: Option<u64>,
    /// Bytes of a line that are told, default 1024, 65,536 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_line_bytes: Option<u64>,
    /// Larger files are passed over and counted, default 1 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_file_bytes: Option<u64>,
    /// Tells the first page, and the others one by one to `fs/searchNext`; needs a `handleId`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub pages: bool,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

impl SearchParams {
    /// Looks for a pattern with the defaults of everything else.
    pub fn new(path: PathArg, pattern: impl Into<String>) -> Self {
        Self {
            path,
            pattern: pattern.into(),
            literal: false,
            ignore_case: false,
            word: false,
            include: Vec::new(),
            scan: ScanParams::default(),
            before: None,
            after: None,
            max_matches: None,
            max_per_file: None,
            max_line_bytes: None,
            max_file_bytes: None,
            pages: false,
            sandbox: None,
        }
    }
}

impl GlobParams {
    /// Looks for a pattern with the defaults of everything else.
    pub fn new(path: PathArg, pattern: impl Into<String>) -> Self {
        Self { path, pattern: pattern.into(), scan: ScanParams::default(), max_results: None, sandbox: None }
    }
}

/// What of a tree is looked at: the members that `fs/search` and `fs/glob` share.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScanParams {
    /// Neither files nor directories that one of these globs matches.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Names that begin with a dot too.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub hidden: bool,
    /// Heeds `.gitignore`, `.ignore` and `.git/info/exclude`, and passes over `.git`; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_rules: Option<bool>,
    /// Levels below the beginning, default 64, 256 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u64>,
    /// Entries of directories that are looked at, default and at most 1,000,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_entries: Option<u64>,
    /// How long it may take, default 60,000, 600,000 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The caller's name for it while it is under way, so that `fs/close` can call it off; 32 bytes at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle_id: Option<String>,
}

/// Result of `fs/search` and `fs/searchNext`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchResult {
    /// Lines that match and their neighbours, file by file in the order of their paths.
    pub matches: Vec<SearchLine>,
    /// There are no more pages, and `summary` is there.
    pub done: bool,
    /// What it came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<SearchSummary>,
}

/// A line that matches, or one beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchLine {
    /// The file.
    pub path: PathArg,
    /// The `file:` URI of the file, where `path` could not say it because it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The number of the line, from 1.
    pub line: u64,
    /// Bytes of the file before the line.
    pub offset: u64,
    /// The line without its end; what is not UTF-8 in it is replaced.
    pub text: String,
    /// Base64 of the same bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_base64: Option<String>,
    /// Where it matches, in bytes of the text as it is in the file: from, to. At most 64.
    #[serde(default)]
    pub spans: Vec<(u64, u64)>,
    /// It is told only because it is beside a match.
    #[serde(default, skip_serializing_if = "is_false")]
    pub context: bool,
    /// Bytes of the line in all, where `text` is not the whole of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_bytes: Option<u64>,
    /// Bytes of the line before `text`, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_bytes: Option<u64>,
}

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchSummary {
    /// Matching lines that were told, on all pages.
    pub matches: u64,
    /// Files that hold them.
    pub matched_files: u64,
    /// Files that were read.
    pub files: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Files that are no text: a NUL byte ended their search.
    pub binary: u64,
    /// Files that are larger than `maxFileBytes`.
    pub large: u64,
    /// Files whose search ended at a line of more than 8 MiB.
    pub long_lines: u64,
    /// What was gone through.
    #[serde(flatten)]
    pub scan: ScanSummary,
}

/// What was gone through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScanSummary {
    /// Directories that were read.
    pub directories: u64,
    /// Entries that were looked at, those included that a rule leaves out.
    pub entries: u64,
    /// FIFOs, sockets, devices, and directories of the kernel's own file systems, all of which are passed over.
    pub special: u64,
    /// There may be more than was told.
    pub truncated: bool,
    /// Why.
    pub truncated_by: Vec<Cut>,
    /// The first hundred that could not be looked at.
    pub errors: Vec<WalkError>,
    /// All that could not be looked at.
    pub error_count: u64,
}

/// A bound that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Cut {
    /// It was called off by `fs/close`.
    Cancelled,
    /// `timeoutMs`.
    Time,
    /// `maxDepth`.
    Depth,
    /// `maxEntries`.
    Entries,
    /// `maxMatches` or `maxResults`.
    Results,
    /// The bytes that results may have.
    Bytes,
}

/// Params of `fs/searchNext`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchNextParams {
    /// The search.
    pub handle_id: String,
}

/// Params of `fs/glob`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GlobParams {
    /// A directory.
    pub path: PathArg,
    /// A glob over paths below it, such as `src/**/*.rs`.
    pub pattern: String,
    /// What of the tree is looked at.
    #[serde(flatten)]
    pub scan: ScanParams,
    /// Paths that are told, default 1000, 50,000 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_results: Option<u64>,
    /// The reference's sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub sandbox: Sandbox,
}

/// Result of `fs/glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GlobResult {
    /// What matches, in the order of paths.
    pub entries: Vec<GlobEntry>,
    /// What was gone through.
    pub summary: ScanSummary,
}

/// A path that matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GlobEntry {
    /// Where it is.
    pub path: PathArg,
    /// The `file:` URI of the place, where `path` could not say it because it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// What it is, links not followed.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// When it was changed last, in milliseconds since 1970.
    pub modified_at_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::{GlobParams, SearchParams};

    #[test]
    fn members_that_are_shared_stand_beside_the_others_and_nulls_are_as_if_missing() {
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
