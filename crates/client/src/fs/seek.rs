//! Searching, globbing and watching the trees of a server.
//!
//! Searches and watches belong to a connection, not to the session: a cut ends them. A search that was not told to its end then
//! fails, and its caller begins again; a [`Watch`] watches anew by itself and says *overflow*, because nobody knows what it missed.

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
    Error, ErrorKind, Remote,
    handle::Handle,
    remote::{decode, resolve},
};
use crate::requests;

/// How often a watch is begun anew whose connections break one after the other.
const AGAIN_MAX: usize = 16;

/// How long one request for changes waits at the server; a link that is silent for longer says nothing of the watch.
const WATCH_WAIT: Duration = Duration::from_secs(30);

/// A line that matches, or one beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// The number of the line, from 1.
    pub line: u64,
    /// Bytes of the file before the line.
    pub offset: u64,
    /// The line without its end, or a part of it.
    pub text: Vec<u8>,
    /// Where in `text` it matches.
    pub spans: Vec<(usize, usize)>,
    /// It is told only because it is beside a match.
    pub is_context: bool,
    /// Bytes of the line before `text`, and in all, where `text` is not the whole of it.
    pub cut: Option<(u64, u64)>,
}

/// A search, told page by page. Dropping it calls it off.
pub struct Search {
    handle: Handle,
    first: Option<wire::SearchResult>,
    summary: Option<SearchSummary>,
}

/// Paths that match, and what was gone through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    /// Path, kind, bytes and time of modification in milliseconds since 1970, in the order of paths.
    pub entries: Vec<(PathBuf, EntryKind, u64, i64)>,
    /// What was gone through.
    pub summary: ScanSummary,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where.
    pub path: PathBuf,
    /// What.
    pub change: ChangeKind,
    /// It is, or was, a directory.
    pub is_directory: bool,
}

/// What changed since it was told last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Each path once.
    pub changes: Vec<Change>,
    /// Changes were lost: look at everything.
    pub overflow: bool,
    /// Directories that are not watched because of a bound.
    pub unwatched: u64,
    /// Why nothing more will come.
    pub ended: Option<WatchEnd>,
}

/// A watch. Dropping it ends it.
pub struct Watch {
    handle: Handle,
    params: WatchParams,
    /// Directories that were watched at its beginning.
    pub directories: u64,
    /// Directories that were not, because of a bound.
    pub unwatched: u64,
}

impl Remote {
    /// Searches a tree, or one file, for a regular expression. What the params say of the path, pages and names is set here.
    pub async fn search(&self, path: &Path, params: SearchParams) -> Result<Search, Error> {
        let handle = Handle::new(self, path);
        let mut params = SearchParams { path: self.path("search", path).await?, pages: true, ..params };
        params.scan.handle_id = Some(handle.handle_id.clone());
        params.sandbox = self.sandbox();
        let first = self.call::<requests::FsSearch>("search", path, &params).await?;
        Ok(Search { handle, first: Some(first), summary: None })
    }

    /// Finds the paths below a directory that match a glob.
    pub async fn glob(&self, path: &Path, params: GlobParams) -> Result<Glob, Error> {
        let params = GlobParams { path: self.path("look into", path).await?, sandbox: self.sandbox(), ..params };
        let found = self.call::<requests::FsGlob>("look into", path, &params).await?;
        let entries = found
            .entries
            .into_iter()
            .map(|entry| Ok((resolve("look into", path, &entry.path)?, entry.kind, entry.size, entry.modified_at_ms)));
        Ok(Glob { entries: entries.collect::<Result<_, Error>>()?, summary: found.summary })
    }

    /// Watches a tree, or one file.
    pub async fn watch(&self, path: &Path, params: WatchParams) -> Result<Watch, Error> {
        let handle = Handle::new(self, path);
        let params = WatchParams {
            handle_id: handle.handle_id.clone(),
            path: self.path("watch", path).await?,
            sandbox: self.sandbox(),
            ..params
        };
        let begun = self.call::<requests::FsWatch>("watch", path, &params).await?;
        Ok(Watch { handle, params, directories: begun.directories, unwatched: begun.unwatched })
    }
}

impl Search {
    /// The next lines; none when there are no more.
    pub async fn next(&mut self) -> Result<Option<Vec<Found>>, Error> {
        while self.summary.is_none() {
            let Handle { remote, path, handle_id, .. } = &self.handle;
            let page = match self.first.take() {
                Some(first) => first,
                None => {
                    let params = wire::SearchNextParams { handle_id: handle_id.clone() };
                    remote.call::<requests::FsSearchNext>("search", path, &params).await?
                }
            };
            let found: Result<Vec<Found>, Error> =
                page.matches.into_iter().map(|line| found_line(path, line)).collect();
            if page.done && page.summary.is_none() {
                return Err(Error::new("search", path, ErrorKind::InvalidData, "the answer has no summary"));
            }
            self.summary = page.summary;
            self.handle.is_open = self.summary.is_none();
            match found? {
                found if found.is_empty() => {}
                found => return Ok(Some(found)),
            }
        }
        Ok(None)
    }

    /// What it came to; none before [`next`](Self::next) has said that there are no more.
    #[must_use]
    pub fn summary(&self) -> Option<&SearchSummary> {
        self.summary.as_ref()
    }
}

impl Watch {
    /// Waits for changes and gathers them for `settle`.
    pub async fn next(&mut self, settle: Duration) -> Result<Changes, Error> {
        loop {
            let params = wire::WatchNextParams {
                handle_id: self.handle.handle_id.clone(),
                wait_ms: u64::try_from(WATCH_WAIT.as_millis()).unwrap_or(u64::MAX),
                settle_ms: Some(u64::try_from(settle.as_millis()).unwrap_or(u64::MAX)),
                max_changes: None,
            };
            let client = self.handle.remote.client().clone();
            let told = match client.request::<requests::FsWatchNext>(&params).await {
                Ok(told) => told,
                // Gone with its connection, or perhaps with the answer: what was missed is not known.
                Err(error) if is_gone(&error) => return self.begin_anew().await,
                Err(error) => return Err(Error::of_call("watch", &self.handle.path, &error)),
            };
            let changes = told.changes.into_iter().map(|change| {
                let path = resolve("watch", &self.handle.path, &change.path)?;
                Ok(Change { path, change: change.change, is_directory: change.is_directory })
            });
            let changes: Vec<Change> = changes.collect::<Result<_, Error>>()?;
            self.handle.is_open = told.ended.is_none();
            if !changes.is_empty() || told.overflow || told.ended.is_some() {
                let (overflow, unwatched, ended) = (told.overflow, told.unwatched, told.ended);
                return Ok(Changes { changes, overflow, unwatched, ended });
            }
        }
    }

    async fn begin_anew(&mut self) -> Result<Changes, Error> {
        let remote = self.handle.remote.clone();
        for _ in 0..AGAIN_MAX {
            let handle = Handle::new(&remote, &self.handle.path);
            self.params.handle_id = handle.handle_id.clone();
            self.handle = handle;
            match remote.client().request::<requests::FsWatch>(&self.params).await {
                Ok(begun) => {
                    (self.directories, self.unwatched) = (begun.directories, begun.unwatched);
                    return Ok(Changes { overflow: true, unwatched: begun.unwatched, ..Changes::default() });
                }
                Err(error) if is_gone(&error) => {}
                Err(error) if error.server_kind() == Some(Kind::NotFound) => {
                    self.handle.is_open = false;
                    let ended = Some(WatchEnd::RootRemoved);
                    return Ok(Changes { overflow: true, ended, ..Changes::default() });
                }
                Err(error) => return Err(Error::of_call("watch", &self.handle.path, &error)),
            }
        }
        let reason = "the connection breaks again and again";
        Err(Error::new("watch", &self.handle.path, ErrorKind::Disconnected, reason))
    }
}

/// Whether the watch went with its connection, or may have.
fn is_gone(error: &crate::Error) -> bool {
    matches!(error, crate::Error::UnknownOutcome { .. }) || error.server_kind() == Some(Kind::UnknownHandle)
}

fn found_line(path: &Path, line: wire::SearchLine) -> Result<Found, Error> {
    let text = match line.text_base64 {
        Some(encoded) => decode("search", path, &encoded)?,
        None => line.text.into_bytes(),
    };
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(text.len());
    // Whatever the server says, a place is in the text.
    let spans = line.spans.iter().map(|(from, to)| (place(*from).min(place(*to)), place(*to))).collect();
    Ok(Found {
        path: resolve("search", path, &line.path)?,
        line: line.line,
        offset: line.offset,
        spans,
        is_context: line.context,
        cut: line.line_bytes.map(|all| (line.skipped_bytes.unwrap_or_default(), all)),
        text,
    })
}
