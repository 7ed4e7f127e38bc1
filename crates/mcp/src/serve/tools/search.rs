//! `search_files`: finds matching lines in the files of a tree, or matching paths. The executor searches, so only the matches are
//! transferred.

use std::path::Path;

use exec_server_client::{
    fs::{FileErrorKind, GlobParams, RemoteFiles, ScanParams, ScanSummary, SearchParams},
    protocol::path::PathArg,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CallContext, ToolFailure, ToolReply, files::kind_name, in_range, or_default};
use crate::serve::{limits, text::lossy};

/// The default number of matches in one answer.
const RESULTS: u64 = 200;

/// The maximum number of context lines around a match.
const CONTEXT_MAX: u64 = 20;

/// How many times a search is attempted. A search ends with its connection, and a new attempt starts from the beginning.
const ATTEMPTS: usize = 3;

/// Arguments of `search_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchArguments {
    /// A regular expression that is matched within lines. Without it, the paths that match `glob` are returned.
    pattern: Option<String>,
    /// Only files whose paths below `path` match this glob, such as `**/*.rs` or `src/*.py`.
    glob: Option<String>,
    /// The directory or file to search. A relative path starts at the server's base directory, which is the default.
    path: Option<String>,
    /// Treats `pattern` as plain text, not as a regular expression.
    #[serde(default, deserialize_with = "or_default")]
    literal: bool,
    /// Ignores upper and lower case.
    #[serde(default, deserialize_with = "or_default")]
    ignore_case: bool,
    /// Includes hidden files and files that .gitignore excludes.
    #[serde(default, deserialize_with = "or_default")]
    all: bool,
    /// How many lines before and after each match are also returned; default 0.
    #[schemars(range(min = 0, max = 20))]
    context: Option<u64>,
    /// The maximum number of matches, default 200.
    #[schemars(range(min = 1, max = 5000))]
    max_results: Option<u64>,
}

/// Result of `search_files`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct SearchAnswer {
    /// The matching lines and their context lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<Vec<LineMatch>>,
    /// The matching paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<Vec<PathMatch>>,
    /// Whether there may be more matches than returned here.
    truncated: bool,
    /// How many files or directories could not be searched.
    errors: u64,
}

/// A matching line or a context line.
#[derive(Debug, Serialize, JsonSchema)]
struct LineMatch {
    /// The file, relative to the server's base directory if it is below it.
    path: String,
    /// The line number.
    line: u64,
    /// The line, or the part of it around the match.
    text: String,
    /// Whether this is a context line, not a match.
    context: bool,
}

/// A matching path.
#[derive(Debug, Serialize, JsonSchema)]
struct PathMatch {
    /// The path, relative to the server's base directory if it is below it.
    path: String,
    /// `file`, `directory`, `symlink` or `other`.
    kind: &'static str,
    /// The size in bytes.
    size_bytes: u64,
}

pub(super) async fn search(call: &CallContext<'_>, arguments: SearchArguments) -> Result<ToolReply, ToolFailure> {
    let most = in_range("max_results", arguments.max_results, RESULTS, 1..=limits::RESULTS)?;
    let context = in_range("context", arguments.context, 0, 0..=CONTEXT_MAX)?;
    let executor = &call.server.executor;
    let path = executor.path(arguments.path.as_deref().unwrap_or("."));
    let scan = ScanParams {
        hidden: arguments.all,
        ignore_rules: arguments.all.then_some(false),
        timeout_ms: Some(limits::SEARCH_MS),
        ..ScanParams::default()
    };
    // A placeholder: `RemoteFiles` sets the path, the handle and the sandbox.
    let unset = || PathArg::new("/");
    let searching = async {
        let files = executor.files().await?;
        match (arguments.pattern, arguments.glob) {
            (None, None) => Err(failure!("give `pattern` to search in files, or `glob` to find paths")),
            (Some(pattern), _) if pattern.is_empty() => Err(failure!("`pattern` is empty and would match every line")),
            (None, Some(glob)) => {
                let params = GlobParams { scan, max_results: Some(most), ..GlobParams::new(unset(), glob) };
                search_paths(call, &files, &path, params).await
            }
            (Some(pattern), glob) => {
                let params = SearchParams {
                    literal: arguments.literal,
                    ignore_case: arguments.ignore_case,
                    include: glob.into_iter().collect(),
                    scan,
                    before: Some(context),
                    after: Some(context),
                    max_matches: Some(most),
                    max_line_bytes: Some(limits::FOUND_LINE_BYTES),
                    ..SearchParams::new(unset(), pattern)
                };
                search_lines(call, &files, &path, &params).await
            }
        }
    };
    // Dropping the future cancels the search.
    call.unless_cancelled(searching).await
}

async fn search_paths(
    call: &CallContext<'_>,
    files: &RemoteFiles,
    path: &Path,
    params: GlobParams,
) -> Result<ToolReply, ToolFailure> {
    let glob = files.glob(path, params).await?;
    let executor = &call.server.executor;
    let entries: Vec<PathMatch> = glob
        .entries
        .iter()
        .map(|(path, kind, size, _)| PathMatch { path: executor.show(path), kind: kind_name(*kind), size_bytes: *size })
        .collect();
    let mut text: String = entries
        .iter()
        .map(|entry| format!("{}{}\n", entry.path, if entry.kind == "directory" { "/" } else { "" }))
        .collect();
    if entries.is_empty() {
        text.push_str("no path matches\n");
    }
    append_remarks(&mut text, &glob.summary);
    let truncated = glob.summary.truncated;
    let errors = glob.summary.error_count;
    Ok(ToolReply::new(text, &SearchAnswer { paths: Some(entries), truncated, errors, ..SearchAnswer::default() }))
}

async fn search_lines(
    call: &CallContext<'_>,
    files: &RemoteFiles,
    path: &Path,
    params: &SearchParams,
) -> Result<ToolReply, ToolFailure> {
    for _ in 1..ATTEMPTS {
        match attempt_search(call, files, path, params).await {
            // The connection was lost. The model has no result yet, so start again.
            Err(error) if error.kind == FileErrorKind::Closed => {}
            done => return Ok(done?),
        }
    }
    Ok(attempt_search(call, files, path, params).await?)
}

async fn attempt_search(
    call: &CallContext<'_>,
    files: &RemoteFiles,
    path: &Path,
    params: &SearchParams,
) -> Result<ToolReply, exec_server_client::fs::FileError> {
    let executor = &call.server.executor;
    let mut search = files.search(path, params.clone()).await?;
    let mut found = Vec::new();
    let mut text = String::new();
    let mut is_full = false;
    while !is_full && let Some(page) = search.next().await? {
        for line in page {
            // Set only if another line follows, so that a full answer that is complete does not count as truncated.
            is_full = text.len() >= limits::ANSWER_BYTES;
            if is_full {
                break;
            }
            let path = executor.show(&line.path);
            let shown = lossy(&line.text);
            // `grep` marks lines in the same way.
            let mark = if line.is_context { '-' } else { ':' };
            let cut = if line.cut.is_some() { " […]" } else { "" };
            text.push_str(&format!("{path}{mark}{}{mark} {shown}{cut}\n", line.line));
            found.push(LineMatch { path, line: line.line, text: shown, context: line.is_context });
        }
    }
    if found.is_empty() {
        text.push_str("no line matches\n");
    }
    let mut truncated = is_full;
    let mut errors = 0;
    // The summary comes with the last page.
    if let Some(summary) = search.summary() {
        truncated |= summary.scan.truncated;
        errors = summary.scan.error_count;
        append_remarks(&mut text, &summary.scan);
        if summary.binary > 0 {
            text.push_str(&format!("[{} binary files were skipped]\n", summary.binary));
        }
    } else {
        // The answer was full before the last page.
        text.push_str("[there are more matches: narrow the search]\n");
    }
    Ok(ToolReply::new(text, &SearchAnswer { lines: Some(found), truncated, errors, ..SearchAnswer::default() }))
}

/// Adds remarks about limits that cut the search short, and about paths that could not be searched.
fn append_remarks(text: &mut String, summary: &ScanSummary) {
    if summary.truncated {
        let why: Vec<String> = summary.truncated_by.iter().map(|cut| format!("{cut:?}").to_lowercase()).collect();
        text.push_str(&format!("[there may be more matches; limit reached: {}. Narrow the search]\n", why.join(", ")));
    }
    if let Some(first) = summary.errors.first() {
        let path = first.path.as_str();
        let message = &first.message;
        text.push_str(&format!(
            "[{} paths could not be searched; the first is {path}: {message}]\n",
            summary.error_count
        ));
    }
}
