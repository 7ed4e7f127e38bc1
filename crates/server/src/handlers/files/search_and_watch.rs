//! `fs/search`, `fs/searchNext`, `fs/glob`, `fs/watch`, `fs/watchNext`: long work on separate threads. Results wait in
//! [`FileTasks`](crate::file_tasks::FileTasks) until the client fetches them. All of it ends with the connection.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use exec_server_fs::{
    Cancel, PathPattern, Patterns, Stop, View, glob as globbing,
    scan::{self, ScanFilter, ScanSummary},
    search as searching,
    watch::{self as watching, ChangeBatch, ChangeKind, Watch, WatchEnd, WatchStopper},
};
use exec_server_protocol::{
    fs as wire, limits,
    path::{Form, PathArg},
};
use tokio::sync::oneshot;

use super::{
    FileRequest, path, text_and_bytes,
    tree::{entry_kind, written},
};
use crate::{
    error::Failure,
    file_tasks::{FileTask, FileTasks, SearchPage, SearchTask, WatchTask},
};

/// `fs/search`: returns everything at once, or the first page.
pub(crate) async fn search(
    mut request: FileRequest,
    params: wire::SearchParams,
) -> Result<wire::SearchResult, Failure> {
    let path = path(&params.path)?;
    let form = params.path.form();
    if params.pages && params.scan.handle_id.is_none() {
        return Err(Failure::InvalidParams { reason: "`pages` needs a `handleId`".to_owned() });
    }
    let slot = request.file_tasks().reserve_search(&request.context.core.file_tasks)?;
    let search = SearchTask::new(stop(&params.scan), params.pages, form, slot);
    let pending = PendingSearch::new(&request, params.scan.handle_id.as_deref(), &search)?;
    let pages = params.pages;
    let sandbox = params.sandbox.clone();
    let worker = search.clone();
    request.launch(&path.clone(), sandbox.as_deref(), move |view| {
        let outcome = run_search(view, &path, &params, &worker);
        worker.finish(outcome);
    })?;
    // The thread sees the effects of all earlier requests. Later requests need not wait for its end.
    request.turn = None;
    if pages {
        let page = search.page().await?;
        let is_done = page.outcome.is_some();
        let result = search_result(&request, page, form);
        if !is_done && result.is_ok() {
            pending.keep();
        }
        return result;
    }
    let all = search.all().await;
    search_result(&request, all, form)
}

fn run_search(
    view: Result<&View, Failure>,
    path: &Path,
    params: &wire::SearchParams,
    search: &SearchTask,
) -> Result<searching::SearchSummary, Failure> {
    let options =
        searching::PatternOptions { literal: params.literal, ignore_case: params.ignore_case, word: params.word };
    let pattern = searching::SearchPattern::new(&params.pattern, options)?;
    let filter = ScanFilter { include: Patterns::anywhere(&params.include)?, ..filter(&params.scan)? };
    let bounds = bounds(params);
    let request = searching::SearchRequest { path, pattern: &pattern, filter: &filter, limits: &bounds };
    Ok(searching::search(view?, request, &search.stop, &mut |line| search.push_line(line))?)
}

/// The limits of a search: as requested, or else the defaults, but never above the server's maxima.
fn bounds(params: &wire::SearchParams) -> searching::SearchLimits {
    let context = |lines: Option<u64>| size(lines.unwrap_or(0).min(limits::SEARCH_CONTEXT));
    searching::SearchLimits {
        context: (context(params.before), context(params.after)),
        max_matches: params.max_matches.unwrap_or(limits::SEARCH_MATCHES).min(limits::SEARCH_MATCHES_MAX),
        max_per_file: params.max_per_file,
        max_line_bytes: size(
            params.max_line_bytes.unwrap_or(limits::SEARCH_LINE_BYTES).min(limits::SEARCH_LINE_BYTES_MAX),
        ),
        max_file_bytes: params.max_file_bytes.unwrap_or(limits::SEARCH_FILE_BYTES),
        max_result_bytes: if params.pages { limits::SEARCH_PAGED_BYTES } else { limits::SEARCH_BYTES },
    }
}

/// `fs/searchNext`: returns the next page.
pub(crate) async fn search_next(
    request: FileRequest,
    params: wire::SearchNextParams,
) -> Result<wire::SearchResult, Failure> {
    let Some(FileTask::Search(search)) = request.file_tasks().find(&params.handle_id) else {
        return Err(Failure::UnknownHandle { id: params.handle_id });
    };
    let page = search.page().await?;
    let form = search.form;
    if page.outcome.is_some() {
        request.file_tasks().remove(&params.handle_id, &FileTask::Search(search));
    }
    search_result(&request, page, form)
}

fn search_result(request: &FileRequest, page: SearchPage, form: Form) -> Result<wire::SearchResult, Failure> {
    let summary = page.outcome.transpose().map_err(|failure| request.task_failure(failure))?;
    let summary = summary.map(|summary| search_summary(summary, form));
    let matches = page.lines.into_iter().map(|line| search_line(line, form)).collect();
    Ok(wire::SearchResult { matches, done: summary.is_some(), summary })
}

fn search_line(line: searching::SearchLine, form: Form) -> wire::SearchLine {
    let (path, uri) = written(&line.path, form);
    let (text, text_base64) = text_and_bytes(&line.text);
    let is_whole = line.text.len() == line.bytes;
    wire::SearchLine {
        path: PathArg::new(path),
        uri,
        line: line.number,
        offset: line.offset,
        text,
        text_base64,
        spans: line.spans.into_iter().map(|(from, to)| (from as u64, to as u64)).collect(),
        context: line.is_context,
        line_bytes: (!is_whole).then_some(line.bytes as u64),
        skipped_bytes: (line.skipped > 0).then_some(line.skipped as u64),
    }
}

fn search_summary(outcome: searching::SearchSummary, form: Form) -> wire::SearchSummary {
    wire::SearchSummary {
        matches: outcome.matches,
        matched_files: outcome.matched_files,
        files: outcome.files,
        bytes: outcome.bytes,
        binary: outcome.binary,
        large: outcome.large,
        long_lines: outcome.long_lines,
        scan: scan_summary(outcome.scan, form),
    }
}

fn scan_summary(seen: ScanSummary, form: Form) -> wire::ScanSummary {
    let errors = seen.errors.into_iter().map(|(path, error)| {
        let (path, uri) = written(&path, form);
        wire::WalkError { path: PathArg::new(path), message: error.to_string(), uri }
    });
    wire::ScanSummary {
        directories: seen.directories,
        entries: seen.entries,
        special: seen.special,
        truncated: !seen.cuts.is_empty(),
        truncated_by: seen.cuts.into_iter().map(cut).collect(),
        errors: errors.collect(),
        error_count: seen.error_count,
    }
}

fn cut(cut: scan::ScanCut) -> wire::Cut {
    match cut {
        scan::ScanCut::Cancelled => wire::Cut::Cancelled,
        scan::ScanCut::Time => wire::Cut::Time,
        scan::ScanCut::Depth => wire::Cut::Depth,
        scan::ScanCut::Entries => wire::Cut::Entries,
        scan::ScanCut::Results => wire::Cut::Results,
        scan::ScanCut::Bytes => wire::Cut::Bytes,
    }
}

/// `fs/glob`: lists the paths that match.
pub(crate) async fn glob(mut request: FileRequest, params: wire::GlobParams) -> Result<wire::GlobResult, Failure> {
    let path = path(&params.path)?;
    let form = params.path.form();
    let slot = request.file_tasks().reserve_search(&request.context.core.file_tasks)?;
    let search = SearchTask::new(stop(&params.scan), false, form, slot);
    let _pending = PendingSearch::new(&request, params.scan.handle_id.as_deref(), &search)?;
    let (found_tx, found_rx) = oneshot::channel();
    let worker = search.clone();
    let sandbox = params.sandbox.clone();
    request.launch(&path.clone(), sandbox.as_deref(), move |view| {
        found_tx.send(run_glob(view, &path, &params, &worker)).ok(); // Send fails if the connection has ended.
    })?;
    request.turn = None; // As in `search`.
    let found = found_rx.await.map_err(|_| Failure::Internal { what: "a glob" })?;
    let (found, seen) = found.map_err(|error| request.task_failure(error))?;
    let entries = found.into_iter().map(|named| glob_entry(&named, form)).collect();
    Ok(wire::GlobResult { entries, summary: scan_summary(seen, form) })
}

fn run_glob(
    view: Result<&View, Failure>,
    path: &Path,
    params: &wire::GlobParams,
    search: &SearchTask,
) -> Result<(Vec<globbing::GlobMatch>, ScanSummary), Failure> {
    let pattern = PathPattern::new(&params.pattern)?;
    let filter = filter(&params.scan)?;
    let results = size(params.max_results.unwrap_or(limits::GLOB_RESULTS)).min(limits::DIRECTORY_ENTRIES);
    let bounds = globbing::GlobLimits { max_results: results, max_result_bytes: limits::SEARCH_BYTES };
    let request = globbing::GlobRequest { path, pattern: &pattern, filter: &filter, limits: bounds };
    Ok(globbing::glob(view?, request, &search.stop)?)
}

fn glob_entry(named: &globbing::GlobMatch, form: Form) -> wire::GlobEntry {
    let (path, uri) = written(&named.path, form);
    wire::GlobEntry {
        path: PathArg::new(path),
        uri,
        kind: entry_kind(named.kind),
        size: named.size,
        modified_at_ms: named.modified_ms,
    }
}

/// `fs/watch`: starts to collect changes.
pub(crate) async fn watch(request: FileRequest, params: wire::WatchParams) -> Result<wire::WatchResult, Failure> {
    let path = path(&params.path)?;
    let form = params.path.form();
    let options = watching::WatchOptions {
        recursive: params.recursive.unwrap_or(true),
        hidden: params.hidden.unwrap_or(true),
        exclude: Patterns::anywhere(&params.exclude)?,
        // At least one: the watched directory itself.
        max_directories: size(
            params.max_directories.unwrap_or(limits::WATCHED_DIRECTORIES).clamp(1, limits::WATCHED_DIRECTORIES_MAX),
        ),
    };
    let slot = request.file_tasks().reserve_watch(&request.context.core.file_tasks)?;
    let stopper = WatchStopper::new().map_err(|source| Failure::Host { what: "watch", source })?;
    let watched = WatchTask::new(stopper, form, slot);
    let task = FileTask::Watch(watched.clone());
    request.file_tasks().add(&params.handle_id, task.clone())?;
    let begun = run_watch(&request, path, options, &params, &watched).await;
    let directories = begun.inspect_err(|_| request.file_tasks().remove(&params.handle_id, &task))? as u64;
    Ok(wire::WatchResult { handle_id: params.handle_id, directories, unwatched: watched.changes.unwatched() })
}

/// Starts the watch on the pool, where it can fail, and runs it on a separate thread. Returns the number of watched
/// directories.
async fn run_watch(
    request: &FileRequest,
    path: PathBuf,
    options: watching::WatchOptions,
    params: &wire::WatchParams,
    watched: &Arc<WatchTask>,
) -> Result<usize, Failure> {
    let sandbox = params.sandbox.as_deref();
    let worker = watched.clone();
    let root = path.clone();
    let begin = move |view: &View, _: &Cancel| Watch::new(view, &path, options, &worker.changes);
    let watch = request.run(sandbox, begin).await?;
    let directories = watch.directories();
    let worker = watched.clone();
    request.launch_thread(&root, sandbox, move |view| match view {
        Ok(view) => watch.run(view, &worker.changes, &worker.stopper, &|| worker.notify()),
        // The request has succeeded already, so the client gets `ended` with the next changes.
        Err(_) => {
            worker.changes.end(WatchEnd::Failed);
            worker.notify();
        }
    })?;
    Ok(directories)
}

/// `fs/watchNext`: returns the changes, or waits for some.
pub(crate) async fn watch_next(
    request: FileRequest,
    params: wire::WatchNextParams,
) -> Result<wire::WatchNextResult, Failure> {
    let Some(FileTask::Watch(watched)) = request.file_tasks().find(&params.handle_id) else {
        return Err(Failure::UnknownHandle { id: params.handle_id });
    };
    let wait = Duration::from_millis(params.wait_ms).min(limits::READ_WAIT);
    let settle = params.settle_ms.map_or(limits::WATCH_SETTLE, Duration::from_millis).min(limits::WATCH_SETTLE_MAX);
    // At least one. Otherwise the client would never get a change.
    let most = size(params.max_changes.unwrap_or(limits::WATCH_CHANGES).clamp(1, limits::WATCH_CHANGES));
    let taken = watched.next(wait, settle, most).await?;
    let form = watched.form;
    if taken.end.is_some() {
        request.file_tasks().remove(&params.handle_id, &FileTask::Watch(watched));
    }
    Ok(watch_result(taken, form))
}

fn watch_result(taken: ChangeBatch, form: Form) -> wire::WatchNextResult {
    let changes = taken.changes.into_iter().map(|change| {
        let (path, uri) = written(&change.path, form);
        let what = match change.kind {
            ChangeKind::Created => wire::ChangeKind::Created,
            ChangeKind::Modified => wire::ChangeKind::Modified,
            ChangeKind::Removed => wire::ChangeKind::Removed,
        };
        wire::WatchChange { path: PathArg::new(path), uri, change: what, is_directory: change.is_directory }
    });
    wire::WatchNextResult {
        changes: changes.collect(),
        overflow: taken.overflow,
        more: taken.more,
        unwatched: taken.unwatched,
        ended: taken.end.map(|end| match end {
            WatchEnd::RootRemoved => wire::WatchEnd::RootRemoved,
            WatchEnd::Failed => wire::WatchEnd::Failed,
        }),
    }
}

/// A search or glob whose request is pending. Dropping it cancels the work and frees its name.
struct PendingSearch {
    peer: Arc<crate::connection::Peer>,
    name: Option<String>,
    search: Arc<SearchTask>,
    is_kept: bool,
}

impl PendingSearch {
    fn new(request: &FileRequest, name: Option<&str>, search: &Arc<SearchTask>) -> Result<Self, Failure> {
        if let Some(name) = name {
            request.file_tasks().add(name, FileTask::Search(search.clone()))?;
        }
        let peer = request.context.peer.clone();
        Ok(Self { peer, name: name.map(str::to_owned), search: search.clone(), is_kept: false })
    }

    /// Keeps the search after this request: there are more pages to fetch.
    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for PendingSearch {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.search.cancel();
        if let Some(name) = &self.name {
            self.peer.file_tasks.remove(name, &FileTask::Search(self.search.clone()));
        }
    }
}

impl FileRequest {
    fn file_tasks(&self) -> &FileTasks {
        &self.context.peer.file_tasks
    }

    /// Records a failed file operation if it was denied. Other failures are only returned.
    fn task_failure(&self, failure: Failure) -> Failure {
        if let Failure::File(_) = failure { self.record_if_denied(failure) } else { failure }
    }
}

/// Ends the work after the requested time, or else the default time, but never after more than the server's maximum.
fn stop(params: &wire::ScanParams) -> Stop {
    let time = params.timeout_ms.map_or(limits::SCAN_TIME, Duration::from_millis);
    Stop::within(time.min(limits::SCAN_TIME_MAX))
}

fn filter(params: &wire::ScanParams) -> Result<ScanFilter, Failure> {
    Ok(ScanFilter {
        hidden: params.hidden,
        ignore_rules: params.ignore_rules.unwrap_or(true),
        rules_above: true, // `search` and `glob` clear it for a view of less than everything.
        include: Patterns::default(),
        exclude: Patterns::anywhere(&params.exclude)?,
        max_depth: size(params.max_depth.unwrap_or(limits::SCAN_DEPTH).min(limits::SCAN_DEPTH_MAX)),
        max_entries: params.max_entries.unwrap_or(limits::SCAN_ENTRIES).min(limits::SCAN_ENTRIES),
    })
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
