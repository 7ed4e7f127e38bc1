//! `fs/search`, `fs/searchNext`, `fs/glob`, `fs/watch`, `fs/watchNext`: long work on separate threads. Results wait in
//! [`Seekers`](crate::seekers::Seekers) until the client fetches them. All of it ends with the connection.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use exec_server_fs::{
    Cancel, PathPattern, Patterns, Stop, View, glob as globbing,
    scan::{self, EntryKind, ScanFilter, ScanSummary},
    search as searching,
    watch::{self as watching, ChangeBatch, ChangeKind, Watch, WatchEnd, WatchStopper},
};
use exec_server_protocol::{
    fs as wire, limits,
    path::{Form, PathArg},
};
use tokio::sync::oneshot;

use super::{Errand, path, text_and_bytes, tree::written};
use crate::{
    error::Failure,
    handlers::Context,
    pump::Reply,
    seekers::{Page, Refused, Search, Seeker, Seekers, Watching},
};

/// `fs/search`: returns everything at once, or the first page.
pub(crate) async fn search(context: Context, params: wire::SearchParams, reply: Reply) {
    let mut errand = Errand::begin(context, "fs/search").await;
    let done = begin_search(&mut errand, params).await;
    errand.answer(reply, done);
}

async fn begin_search(errand: &mut Errand, params: wire::SearchParams) -> Result<wire::SearchResult, Failure> {
    let (path, form) = (path(&params.path)?, params.path.form());
    if params.pages && params.scan.handle_id.is_none() {
        return Err(Failure::InvalidParams { reason: "`pages` needs a `handleId`".to_owned() });
    }
    let place = errand.seekers().place_to_search(&errand.context.core.seekers)?;
    let search = Search::new(stop(&params.scan), params.pages, form, place);
    let under_way = UnderWay::new(errand, params.scan.handle_id.as_deref(), &search)?;
    let (pages, sandbox) = (params.pages, params.sandbox.clone());
    let worker = search.clone();
    errand.launch((&path.clone(), sandbox.as_deref()), move |view| {
        let outcome = run_search(view, &path, &params, &worker);
        worker.done(outcome);
    })?;
    // The thread sees the effects of all earlier requests. Later requests need not wait for its end.
    errand.give_turn_away();
    if pages {
        let page = search.page().await?;
        let is_done = page.outcome.is_some();
        let told = search_result(errand, page, form);
        if !is_done && told.is_ok() {
            under_way.stays();
        }
        return told;
    }
    let all = search.all().await;
    search_result(errand, all, form)
}

fn run_search(
    view: Result<&View, Failure>,
    path: &Path,
    params: &wire::SearchParams,
    search: &Search,
) -> Result<searching::SearchSummary, Refused> {
    let reading =
        searching::PatternOptions { literal: params.literal, ignore_case: params.ignore_case, word: params.word };
    let pattern = searching::SearchPattern::new(&params.pattern, reading)?;
    let filter = ScanFilter { include: Patterns::anywhere(&params.include)?, ..filter(&params.scan)? };
    let bounds = bounds(params);
    let request = searching::SearchRequest { path, pattern: &pattern, filter: &filter, limits: &bounds };
    Ok(searching::search(view?, request, &search.stop, &mut |line| search.tell(line))?)
}

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
pub(crate) async fn search_next(context: Context, params: wire::SearchNextParams, reply: Reply) {
    let errand = Errand::out_of_turn(context, "fs/searchNext");
    errand.answer(reply, next_page(&errand, &params.handle_id).await);
}

async fn next_page(errand: &Errand, name: &str) -> Result<wire::SearchResult, Failure> {
    let Some(Seeker::Search(search)) = errand.seekers().find(name) else {
        return Err(Failure::UnknownHandle { id: name.to_owned() });
    };
    let page = search.page().await?;
    let form = search.form;
    if page.outcome.is_some() {
        errand.seekers().remove(name, &Seeker::Search(search));
    }
    search_result(errand, page, form)
}

fn search_result(errand: &Errand, page: Page, form: Form) -> Result<wire::SearchResult, Failure> {
    let summary = match page.outcome {
        None => None,
        Some(Ok(outcome)) => Some(search_summary(outcome, form)),
        Some(Err(refused)) => return Err(errand.refused(refused)),
    };
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
pub(crate) async fn glob(context: Context, params: wire::GlobParams, reply: Reply) {
    let mut errand = Errand::begin(context, "fs/glob").await;
    let done = glob_all(&mut errand, params).await;
    errand.answer(reply, done);
}

async fn glob_all(errand: &mut Errand, params: wire::GlobParams) -> Result<wire::GlobResult, Failure> {
    let (path, form) = (path(&params.path)?, params.path.form());
    let place = errand.seekers().place_to_search(&errand.context.core.seekers)?;
    let search = Search::new(stop(&params.scan), false, form, place);
    let _under_way = UnderWay::new(errand, params.scan.handle_id.as_deref(), &search)?;
    let (found_tx, found_rx) = oneshot::channel();
    let (worker, sandbox) = (search.clone(), params.sandbox.clone());
    errand.launch((&path.clone(), sandbox.as_deref()), move |view| {
        found_tx.send(run_glob(view, &path, &params, &worker)).ok(); // Send fails if the connection has ended.
    })?;
    errand.give_turn_away();
    let found = found_rx.await.map_err(|_| Failure::Internal { what: "a glob" })?;
    let (found, seen) = found.map_err(|refused| errand.refused(refused))?;
    let entries = found.into_iter().map(|named| glob_entry(&named, form)).collect();
    Ok(wire::GlobResult { entries, summary: scan_summary(seen, form) })
}

fn run_glob(
    view: Result<&View, Failure>,
    path: &Path,
    params: &wire::GlobParams,
    search: &Search,
) -> Result<(Vec<globbing::GlobMatch>, ScanSummary), Refused> {
    let pattern = PathPattern::new(&params.pattern)?;
    let filter = filter(&params.scan)?;
    let results = size(params.max_results.unwrap_or(limits::GLOB_RESULTS)).min(limits::DIRECTORY_ENTRIES);
    let bounds = globbing::GlobLimits { max_results: results, max_result_bytes: limits::SEARCH_BYTES };
    let request = globbing::GlobRequest { path, pattern: &pattern, filter: &filter, limits: bounds };
    Ok(globbing::glob(view?, request, &search.stop)?)
}

fn glob_entry(named: &globbing::GlobMatch, form: Form) -> wire::GlobEntry {
    let (path, uri) = written(&named.path, form);
    let kind = match named.kind {
        EntryKind::File => wire::EntryKind::File,
        EntryKind::Directory => wire::EntryKind::Directory,
        EntryKind::Symlink => wire::EntryKind::Symlink,
        EntryKind::Special => wire::EntryKind::Other,
    };
    wire::GlobEntry { path: PathArg::new(path), uri, kind, size: named.size, modified_at_ms: named.modified_ms }
}

/// `fs/watch`: starts to collect changes.
pub(crate) async fn watch(context: Context, params: wire::WatchParams, reply: Reply) {
    let mut errand = Errand::begin(context, "fs/watch").await;
    let done = begin_watch(&mut errand, params).await;
    errand.answer(reply, done);
}

async fn begin_watch(errand: &mut Errand, params: wire::WatchParams) -> Result<wire::WatchResult, Failure> {
    let (path, form) = (path(&params.path)?, params.path.form());
    let options = watching::WatchOptions {
        recursive: params.recursive.unwrap_or(true),
        hidden: params.hidden.unwrap_or(true),
        exclude: Patterns::anywhere(&params.exclude).map_err(|source| Failure::Pattern { source })?,
        max_directories: size(
            params.max_directories.unwrap_or(limits::WATCHED_DIRECTORIES).clamp(1, limits::WATCHED_DIRECTORIES_MAX),
        ),
    };
    let place = errand.seekers().place_to_watch(&errand.context.core.seekers)?;
    let ender = WatchStopper::new().map_err(|source| Failure::Host { what: "watch", source })?;
    let watched = Watching::new(ender, form, place);
    let seeker = Seeker::Watch(watched.clone());
    errand.seekers().add(&params.handle_id, seeker.clone())?;
    let begun = watch_and_tell(errand, path, options, &params, &watched).await;
    match begun {
        Ok(directories) => Ok(wire::WatchResult {
            handle_id: params.handle_id,
            directories: directories as u64,
            unwatched: watched.changes.unwatched(),
        }),
        Err(failure) => {
            errand.seekers().remove(&params.handle_id, &seeker);
            Err(failure)
        }
    }
}

/// Starts the watch on the pool, where it can fail, and runs it on a separate thread. Returns the number of watched
/// directories.
async fn watch_and_tell(
    errand: &Errand,
    path: PathBuf,
    options: watching::WatchOptions,
    params: &wire::WatchParams,
    watched: &Arc<Watching>,
) -> Result<usize, Failure> {
    let (sandbox, worker, whence) = (params.sandbox.as_deref(), watched.clone(), path.clone());
    let begin = move |view: &View, _: &Cancel| Watch::new(view, &path, options, &worker.changes);
    let watch = errand.run(sandbox, begin).await?;
    let (directories, worker) = (watch.directories(), watched.clone());
    errand.keep((&whence, sandbox), move |view| match view {
        Ok(view) => watch.run(view, &worker.changes, &worker.ender, &|| worker.ring()),
        Err(_) => {
            worker.changes.fail();
            worker.ring();
        }
    })?;
    Ok(directories)
}

/// `fs/watchNext`: returns the changes, or waits for some.
pub(crate) async fn watch_next(context: Context, params: wire::WatchNextParams, reply: Reply) {
    let errand = Errand::out_of_turn(context, "fs/watchNext");
    errand.answer(reply, next_changes(&errand, &params).await);
}

async fn next_changes(errand: &Errand, params: &wire::WatchNextParams) -> Result<wire::WatchNextResult, Failure> {
    let name = &params.handle_id;
    let Some(Seeker::Watch(watched)) = errand.seekers().find(name) else {
        return Err(Failure::UnknownHandle { id: name.clone() });
    };
    let wait = Duration::from_millis(params.wait_ms).min(limits::READ_WAIT);
    let settle = params.settle_ms.map_or(limits::WATCH_SETTLE, Duration::from_millis).min(limits::WATCH_SETTLE_MAX);
    let most = size(params.max_changes.unwrap_or(limits::WATCH_CHANGES).clamp(1, limits::WATCH_CHANGES));
    let taken = watched.next(wait, settle, most).await?;
    let form = watched.form;
    if taken.end.is_some() {
        errand.seekers().remove(name, &Seeker::Watch(watched));
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

/// A search whose request is pending. Dropping it cancels the search and frees its name.
struct UnderWay {
    peer: Arc<crate::connection::Peer>,
    name: Option<String>,
    search: Arc<Search>,
    stays: bool,
}

impl UnderWay {
    fn new(errand: &Errand, name: Option<&str>, search: &Arc<Search>) -> Result<Self, Failure> {
        if let Some(name) = name {
            errand.seekers().add(name, Seeker::Search(search.clone()))?;
        }
        let peer = errand.context.peer.clone();
        Ok(Self { peer, name: name.map(str::to_owned), search: search.clone(), stays: false })
    }

    /// Keeps the search after this request: there are more pages to fetch.
    fn stays(mut self) {
        self.stays = true;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        self.search.call_off();
        if let Some(name) = &self.name {
            self.peer.seekers.remove(name, &Seeker::Search(self.search.clone()));
        }
    }
}

impl Errand {
    fn seekers(&self) -> &Seekers {
        &self.context.peer.seekers
    }

    fn refused(&self, refused: Refused) -> Failure {
        match refused {
            Refused::Pattern(source) => Failure::Pattern { source },
            Refused::File(error) => self.failed(error),
            Refused::Failure(failure) => failure,
        }
    }
}

fn stop(params: &wire::ScanParams) -> Stop {
    let time = params.timeout_ms.map_or(limits::SCAN_TIME, Duration::from_millis);
    Stop::within(time.min(limits::SCAN_TIME_MAX))
}

fn filter(params: &wire::ScanParams) -> Result<ScanFilter, Refused> {
    Ok(ScanFilter {
        hidden: params.hidden,
        ignore_rules: params.ignore_rules.unwrap_or(true),
        rules_above: true,
        include: Patterns::default(),
        exclude: Patterns::anywhere(&params.exclude)?,
        max_depth: size(params.max_depth.unwrap_or(limits::SCAN_DEPTH).min(limits::SCAN_DEPTH_MAX)),
        max_entries: params.max_entries.unwrap_or(limits::SCAN_ENTRIES).min(limits::SCAN_ENTRIES),
    })
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Runs work on a thread named `exec-seek`, so that it can be recognized in a list of threads.
pub(super) fn named(work: impl FnOnce()) {
    let before = rustix::thread::name().ok();
    rustix::thread::set_name(c"exec-seek").ok(); // Only cosmetic, so an error does not matter.
    work();
    if let Some(before) = before {
        rustix::thread::set_name(&before).ok();
    }
}
