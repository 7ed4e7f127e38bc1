//! Search, glob and watch on the files of a server.
//!
//! Searches and watches belong to a connection, not to the session, so a cut ends them. An unfinished search then fails, and its caller has
//! to begin again. A [`Watch`] restarts by itself and reports *overflow*, because changes may have been missed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use exec_server_protocol::{
    failure::Kind,
    fs as wire,
    fs::{ChangeKind, EntryKind, GlobParams, ScanSummary, SearchParams, SearchSummary, WatchEnd, WatchParams},
};

use super::{
    FileError, FileErrorKind, RemoteFiles,
    remote::{REPEATS_MAX, decode, resolve},
    remote_file::RemoteHandle,
};
use crate::{Error, requests};

/// How long one `fs/watchNext` waits on the server.
const WATCH_WAIT: Duration = Duration::from_secs(30);

/// A line that matches, or a line of its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchLine {
    /// The path of the file.
    pub path: PathBuf,
    /// The number of the line, from 1.
    pub line: u64,
    /// The offset of the line in the file, in bytes.
    pub offset: u64,
    /// The line without its line end, or a part of it.
    pub text: Vec<u8>,
    /// The ranges of `text` that match, as start and end.
    pub spans: Vec<(usize, usize)>,
    /// Whether the line is only context of a match.
    pub is_context: bool,
    /// If `text` is only a part of the line: the bytes of the line before `text`, and the length of the whole line.
    pub cut: Option<(u64, u64)>,
}

/// A running search that returns its results page by page. Dropping it cancels the search.
pub struct Search {
    handle: RemoteHandle,
    first: Option<wire::SearchResult>,
    summary: Option<SearchSummary>,
}

/// The paths that match a glob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    /// Path, type, size, and time of modification in milliseconds since 1970, ordered by path.
    pub entries: Vec<(PathBuf, EntryKind, u64, i64)>,
    /// The totals of the scan, and whether a limit ended it early.
    pub summary: ScanSummary,
}

/// One change in a watched tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path that changed.
    pub path: PathBuf,
    /// How the path changed.
    pub change: ChangeKind,
    /// Whether the path is, or was, a directory.
    pub is_directory: bool,
}

/// The changes since the last call of `Watch::next`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The changes, with each path once.
    pub changes: Vec<Change>,
    /// Whether changes were lost. If so, scan the whole tree again.
    pub overflow: bool,
    /// The number of directories that are not watched because of a limit.
    pub unwatched: u64,
    /// Why the watch ended, if it has ended.
    pub ended: Option<WatchEnd>,
}

/// A watch on a tree. Dropping it ends the watch.
pub struct Watch {
    handle: RemoteHandle,
    params: WatchParams,
    /// The number of directories that were watched when the watch began.
    pub directories: u64,
    /// The number of directories that were not watched because of a limit.
    pub unwatched: u64,
}

impl RemoteFiles {
    /// Searches a tree or one file for a regular expression. This method sets the path, the paging and the handle in `params`.
    pub async fn search(&self, path: &Path, params: SearchParams) -> Result<Search, FileError> {
        let handle = RemoteHandle::new(self, path);
        let mut params = SearchParams { path: self.path_arg("search", path).await?, pages: true, ..params };
        params.scan.handle_id = Some(handle.handle_id.clone());
        params.sandbox = self.sandbox();
        let first = self.call::<requests::FsSearch>("search", path, &params).await?;
        Ok(Search { handle, first: Some(first), summary: None })
    }

    /// Finds the paths below a directory that match a glob. This method sets the path in `params`.
    pub async fn glob(&self, path: &Path, params: GlobParams) -> Result<Glob, FileError> {
        let params = GlobParams { path: self.path_arg("look into", path).await?, sandbox: self.sandbox(), ..params };
        let found = self.call::<requests::FsGlob>("look into", path, &params).await?;
        let entries = found
            .entries
            .into_iter()
            .map(|entry| Ok((resolve("look into", path, &entry.path)?, entry.kind, entry.size, entry.modified_at_ms)));
        Ok(Glob { entries: entries.collect::<Result<_, FileError>>()?, summary: found.summary })
    }

    /// Watches a tree or one file. This method sets the path and the handle in `params`.
    pub async fn watch(&self, path: &Path, params: WatchParams) -> Result<Watch, FileError> {
        let handle = RemoteHandle::new(self, path);
        let params = WatchParams {
            handle_id: handle.handle_id.clone(),
            path: self.path_arg("watch", path).await?,
            sandbox: self.sandbox(),
            ..params
        };
        let begun = self.call::<requests::FsWatch>("watch", path, &params).await?;
        Ok(Watch { handle, params, directories: begun.directories, unwatched: begun.unwatched })
    }
}

impl Search {
    /// Returns the next lines, or `None` after the last ones.
    pub async fn next(&mut self) -> Result<Option<Vec<SearchLine>>, FileError> {
        while self.summary.is_none() {
            let RemoteHandle { remote, path, handle_id, .. } = &self.handle;
            let page = match self.first.take() {
                Some(first) => first,
                None => {
                    let params = wire::SearchNextParams { handle_id: handle_id.clone() };
                    remote.call::<requests::FsSearchNext>("search", path, &params).await?
                }
            };
            let found: Result<Vec<_>, _> = page.matches.into_iter().map(|line| found_line(path, line)).collect();
            if page.done && page.summary.is_none() {
                return Err(FileError::invalid_data("search", path, "the last page has no summary"));
            }
            self.summary = page.summary;
            self.handle.is_open = self.summary.is_none();
            let found = found?;
            if !found.is_empty() {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The summary of the search; `None` until the last page was read. It is set at the latest when [`next`](Self::next) returns `None`.
    #[must_use]
    pub fn summary(&self) -> Option<&SearchSummary> {
        self.summary.as_ref()
    }
}

impl Watch {
    /// Waits for changes, and then collects further ones for `settle`.
    pub async fn next(&mut self, settle: Duration) -> Result<Changes, FileError> {
        loop {
            let params = wire::WatchNextParams {
                handle_id: self.handle.handle_id.clone(),
                wait_ms: u64::try_from(WATCH_WAIT.as_millis()).unwrap_or(u64::MAX),
                settle_ms: Some(u64::try_from(settle.as_millis()).unwrap_or(u64::MAX)),
                max_changes: None,
            };
            let client = self.handle.remote.client().clone();
            let answer = match client.request::<requests::FsWatchNext>(&params).await {
                Ok(answer) => answer,
                // The watch ended with its connection, or the answer was lost or missed `call_timeout`. Changes may have been missed.
                Err(error) if is_gone(&error) => return self.restart().await,
                Err(error) => return Err(FileError::of_call("watch", &self.handle.path, &error)),
            };
            let changes = answer.changes.into_iter().map(|change| {
                let path = resolve("watch", &self.handle.path, &change.path)?;
                Ok(Change { path, change: change.change, is_directory: change.is_directory })
            });
            let changes: Vec<Change> = changes.collect::<Result<_, FileError>>()?;
            self.handle.is_open = answer.ended.is_none();
            if !changes.is_empty() || answer.overflow || answer.ended.is_some() {
                let (overflow, unwatched, ended) = (answer.overflow, answer.unwatched, answer.ended);
                return Ok(Changes { changes, overflow, unwatched, ended });
            }
        }
    }

    async fn restart(&mut self) -> Result<Changes, FileError> {
        let remote = self.handle.remote.clone();
        for _ in 0..REPEATS_MAX {
            self.handle = RemoteHandle::new(&remote, &self.handle.path);
            self.params.handle_id = self.handle.handle_id.clone();
            match remote.client().request::<requests::FsWatch>(&self.params).await {
                Ok(begun) => {
                    self.directories = begun.directories;
                    self.unwatched = begun.unwatched;
                    return Ok(Changes { overflow: true, unwatched: begun.unwatched, ..Changes::default() });
                }
                Err(error) if is_gone(&error) => {}
                Err(error) if error.server_kind() == Some(Kind::NotFound) => {
                    self.handle.is_open = false;
                    let ended = Some(WatchEnd::RootRemoved);
                    return Ok(Changes { overflow: true, ended, ..Changes::default() });
                }
                Err(error) => return Err(FileError::of_call("watch", &self.handle.path, &error)),
            }
        }
        let reason = "the connection broke during every attempt";
        Err(FileError::new("watch", &self.handle.path, FileErrorKind::Disconnected, reason))
    }
}

/// Whether the watch ended, or may have ended, with its connection.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::UnknownOutcome { .. }) || error.server_kind() == Some(Kind::UnknownHandle)
}

fn found_line(path: &Path, line: wire::SearchLine) -> Result<SearchLine, FileError> {
    let text = match line.text_base64 {
        Some(encoded) => decode("search", path, &encoded)?,
        None => line.text.into_bytes(),
    };
    let clamp = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(text.len());
    // Clamp the ranges to the text: the server may send wrong ones.
    let spans = line.spans.iter().map(|(from, to)| (clamp(*from).min(clamp(*to)), clamp(*to))).collect();
    Ok(SearchLine {
        path: resolve("search", path, &line.path)?,
        line: line.line,
        offset: line.offset,
        spans,
        is_context: line.context,
        cut: line.line_bytes.map(|all| (line.skipped_bytes.unwrap_or_default(), all)),
        text,
    })
}
