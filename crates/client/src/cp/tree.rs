//! Copies a tree: its directories, files and links are jobs, and hundreds of them run at a time.
//!
//! ```text
//! listings:  pop [dir] ──create it──▶ push [page] ──list it──▶ push [next page] and its directories
//!                                                        └──▶ entries: its files and links
//! entries:   pop [file] or [link], as long as its bytes fit ──▶ copy it
//! at last:   check the directories ──▶ set their modes and times
//! ```
//! Listings run first and ahead of the files, because they find further work. Both stacks are last in, first out. From `WAITING` entries
//! on, fewer listings run at a time; from `WAITING_MAX` on only one, and a page that arrives is dropped and listed again later, unless it is
//! the only one. The memory for entries therefore depends on the depth of the tree, and not on the number of its files or on what a source
//! reports.
//!
//! Directories that this copy created get their mode and time at the very end. Until then they must be writable, and every new entry would
//! change their time. It sets neither for directories that existed before. While the last small files are in flight, the copy checks that
//! its directories are still directories. Then it sets them all at once: changing an entry of a directory changes neither the time nor the
//! mode of the directory. Only those whose final mode restricts their owner go last, from the leaves up, because they may deny access to
//! the ones below.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};

use super::{
    CopyError, CopyReport, MODE_KEPT,
    file::{self, FileCopy, SourceFile},
    names,
    root::{self, TargetRoot},
};
use crate::fs::{BLOCK, BLOCKS_IN_FLIGHT, EntryKind, Links, ListEntry, ListPage, Moment};

/// Limit for jobs in flight. At a round trip of 50 ms it allows 10,000 small files per second. A server runs 16 file operations of a session
/// at a time and queues the others.
const JOBS: usize = 512;

/// Limit for directories that are created or listed at a time. They are among the `JOBS`.
const LISTINGS: usize = 128;

/// Limit for listings at a time while many entries wait.
const LISTINGS_FEW: usize = 16;

/// Limit for the bytes of small files in flight.
const SMALL_BYTES: u64 = 16 << 20;

/// Limit for large files in flight. Each has an open file on both sides, and a server allows 128 to a session.
const LARGE: usize = 16;

/// Limit for the blocks of large files in flight, on each side: those of two files. More files run at a time if they have fewer blocks.
const LARGE_BLOCKS: u64 = 2 * BLOCKS_IN_FLIGHT as u64;

/// Limit for large files that wait for other large files. Above it, no further entries are taken from the stack, so that a tree with many
/// large files does not fill the memory.
const LARGE_WAITING: usize = 1024;

/// Number of waiting entries from which on at most `LISTINGS_FEW` listings run at a time. A page has at most 50,000 entries.
const WAITING: usize = 100_000;

/// Number of waiting entries from which on one listing runs at a time.
const WAITING_MAX: usize = 2 * WAITING;

/// Limit for the directories of a tree. A source that reports more is assumed to never end.
const DIRECTORIES_MAX: usize = 2_000_000;

/// No further page of a target directory is requested once this many of its files are remembered.
const EXISTING_MAX: usize = 500_000;

/// The size of the longest path that Linux allows, in bytes, with its final NUL.
const PATH_MAX: usize = 4096;

/// The files in a target directory that an interrupted copy may have copied, by name.
type ExistingFiles = HashMap<OsString, ListEntry>;

/// A directory that exists at the target, as needed by the jobs for its entries.
struct TargetDirectory {
    /// The path relative to the root.
    below: PathBuf,
    /// Whether the directory was just created and is empty.
    is_new: bool,
    /// The set-group-id bit, or 0. New directories inherit it.
    setgid: u32,
    existing: ExistingFiles,
}

/// A directory of the source.
struct SourceDirectory {
    /// The path relative to the root.
    below: PathBuf,
    /// The mode in the source. Once the copy exists at the target: its final mode.
    mode: u32,
    modified: Moment,
}

/// A directory of the source that exists at the target.
struct CopiedDirectory {
    directory: SourceDirectory,
    finish: Finish,
}

/// What the end of the copy does with a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finish {
    /// Nothing: the directory existed before the copy.
    Keep,
    /// Sets its mode and time, if a check succeeds before.
    Check,
    /// Sets its mode and time.
    Set,
}

/// A job that waits to run.
enum CopyJob {
    /// Creates a directory, unless it exists.
    Directory { parent: Arc<TargetDirectory>, name: OsString, mode: u32, modified: Moment },
    /// Lists one page of a directory: the entries after a name.
    Page { dir: Arc<TargetDirectory>, after: Option<OsString> },
    /// Copies a file.
    File { dir: Arc<TargetDirectory>, name: OsString, source: SourceFile },
    /// Creates a symbolic link.
    Link { dir: Arc<TargetDirectory>, entry: ListEntry },
    /// Checks that the directory with this index is still a directory.
    Check { at: usize, below: PathBuf },
}

/// The result of a job.
enum JobResult {
    /// `is_ours` says whether this copy created the directory, in this run or before it was interrupted.
    Directory {
        directory: SourceDirectory,
        is_ours: bool,
        target_dir: TargetDirectory,
    },
    Listed {
        dir: Arc<TargetDirectory>,
        /// After which name the page begins.
        after: Option<OsString>,
        page: ListPage,
    },
    File {
        bytes: u64,
    },
    Link,
    Checked {
        at: usize,
    },
}

/// What a job takes from the limits while it runs.
#[derive(Clone, Copy)]
enum JobLoad {
    Listing,
    Small { bytes: u64 },
    Large { blocks: u64 },
}

/// The sum of the loads in flight.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct JobsInFlight {
    jobs: usize,
    listings: usize,
    small_bytes: u64,
    large: usize,
    large_blocks: u64,
}

/// A copy of a tree.
pub(super) struct TreeCopy<'a> {
    pub(super) files: FileCopy<'a>,
    pub(super) from: PathBuf,
    pub(super) root: &'a TargetRoot,
}

/// The mutable state of a copy.
#[derive(Default)]
struct TreeCopyState {
    /// Directories to create, and pages to list.
    listings: Vec<CopyJob>,
    /// Files and links.
    entries: Vec<CopyJob>,
    /// Large files that wait because others are in flight.
    large: VecDeque<CopyJob>,
    in_flight: JobsInFlight,
    /// Every directory that exists at the target so far.
    directories: Vec<CopiedDirectory>,
    /// The number of directories for which a check was started, or is not needed.
    checked: usize,
    report: CopyReport,
}

impl TreeCopy<'_> {
    /// Copies the tree. `mode` and `modified` are those of its root.
    pub(super) async fn copy(&self, mode: u32, modified: Moment) -> Result<CopyReport, CopyError> {
        let mut state = TreeCopyState::default();
        let directory =
            SourceDirectory { below: PathBuf::new(), mode: root::final_mode(mode, self.root.setgid), modified };
        let TargetRoot { is_ours, is_new, setgid, .. } = *self.root;
        let done =
            if is_new { new_directory(directory, setgid) } else { self.enter(directory, is_ours, setgid).await? };
        self.handle_result(&mut state, done)?;
        let mut in_flight = FuturesUnordered::new();
        loop {
            while let Some(job) = state.next_job() {
                in_flight.push(self.run(job));
            }
            let Some((load, done)) = in_flight.next().await else { break };
            state.in_flight.remove(load);
            match done {
                Ok(done) => self.handle_result(&mut state, done)?,
                Err(error) => self.handle_error(&mut state, error)?,
            }
        }
        self.finish(&mut state).await?;
        Ok(state.report)
    }

    /// Runs a job. Also returns what it took from the limits.
    fn run(&self, job: CopyJob) -> BoxFuture<'_, (JobLoad, Result<JobResult, CopyError>)> {
        async move {
            let load = job.load();
            let done = match job {
                CopyJob::Directory { parent, name, mode, modified } => {
                    let directory = SourceDirectory { below: parent.below.join(name), mode, modified };
                    self.directory(directory, &parent).await
                }
                CopyJob::Page { dir, after } => self.page(dir, after).await,
                CopyJob::File { dir, name, source } => self.file(&dir.below.join(name), &source).await,
                CopyJob::Link { dir, entry } => self.link(&dir.below.join(&entry.name), entry).await,
                CopyJob::Check { at, below } => self.check(at, &below).await,
            };
            (load, done)
        }
        .boxed()
    }

    async fn directory(&self, directory: SourceDirectory, parent: &TargetDirectory) -> Result<JobResult, CopyError> {
        let to = self.target_path(&directory.below);
        let found = if parent.is_new { None } else { super::find(self.files.target, &to, Links::Itself).await? };
        if let Some(found) = found {
            if found.kind != EntryKind::Directory {
                return Err(CopyError::NotADirectory { path: to });
            }
            let setgid = root::setgid_bit(&found);
            let directory = SourceDirectory { mode: root::final_mode(directory.mode, setgid), ..directory };
            return self.enter(directory, self.root.has_created(&found), setgid).await;
        }
        let mode = root::preliminary_mode(directory.mode, parent.setgid);
        // Recursive, so that an existing directory is not an error: the request is sent again if a cut hides its answer.
        let recursive = true;
        self.files.target.create_directory(&to, recursive, Links::Refuse, Some(mode)).await?;
        let directory = SourceDirectory { mode: root::final_mode(directory.mode, parent.setgid), ..directory };
        Ok(new_directory(directory, parent.setgid))
    }

    /// Handles a directory that exists at the target. In a continued copy it may already have its final mode, and contain files.
    async fn enter(&self, directory: SourceDirectory, is_ours: bool, setgid: u32) -> Result<JobResult, CopyError> {
        let below = directory.below.clone();
        let mut target_dir = TargetDirectory { below, is_new: false, setgid, existing: ExistingFiles::new() };
        if self.root.since_ms.is_some() {
            let to = self.target_path(&directory.below);
            // Make the directory writable again. Its final mode is set at the end.
            if is_ours && directory.mode & 0o700 != 0o700 {
                let mode = root::preliminary_mode(directory.mode, setgid);
                self.files.target.set_metadata(&to, Links::Itself, Some(mode), None).await?;
            }
            // The error is ignored: nothing depends on the cleanup.
            self.files.target.sweep(&to, Links::Refuse).await.ok();
            target_dir.existing = self.list_existing(&to).await?;
        }
        Ok(JobResult::Directory { directory, is_ours, target_dir })
    }

    /// The files in a target directory that an interrupted copy may have copied. Files beyond `EXISTING_MAX` are copied again.
    async fn list_existing(&self, to: &Path) -> Result<ExistingFiles, CopyError> {
        let mut existing = ExistingFiles::new();
        let mut after = None;
        while existing.len() < EXISTING_MAX {
            let page = self.files.target.list(to, after.clone(), Links::Refuse).await?;
            check_page(to, &page, after.as_deref())?;
            after = page.entries.last().map(|last| last.name.clone());
            let files = page.entries.into_iter().filter(|entry| entry.kind == EntryKind::File);
            existing.extend(files.map(|entry| (entry.name.clone(), entry)));
            if !page.more {
                break;
            }
        }
        Ok(existing)
    }

    async fn page(&self, dir: Arc<TargetDirectory>, after: Option<OsString>) -> Result<JobResult, CopyError> {
        let from = self.source_path(&dir.below);
        let page = self.files.source.list(&from, after.clone(), Links::Refuse).await?;
        check_page(&from, &page, after.as_deref())?;
        self.refuse_itself(&from, &page).await?;
        Ok(JobResult::Listed { dir, after, page })
    }

    /// Refuses a target that lies in this directory of the source. The paths do not show it if one machine is reached under two addresses.
    /// But then this listing contains the mark that lies beside the target. Without this check the copy would never end.
    async fn refuse_itself(&self, from: &Path, page: &ListPage) -> Result<(), CopyError> {
        let Some(mark) = &self.root.mark else { return Ok(()) };
        let has_mark_name = |entry: &&ListEntry| mark.path.file_name() == Some(&*entry.name);
        match page.entries.iter().find(has_mark_name) {
            Some(entry) if mark.is_at(self.files.source, &from.join(&entry.name)).await? => {
                Err(CopyError::IntoItself { path: self.from.clone() })
            }
            // There is no such file, or it is the mark of another copy, which is copied like any file.
            _ => Ok(()),
        }
    }

    async fn file(&self, below: &Path, source: &SourceFile) -> Result<JobResult, CopyError> {
        let to = self.target_path(below);
        self.files.copy(&self.source_path(below), &to, source).await?;
        self.files.observer.done(&to, EntryKind::File);
        Ok(JobResult::File { bytes: source.size })
    }

    async fn link(&self, below: &Path, entry: ListEntry) -> Result<JobResult, CopyError> {
        let to = self.target_path(below);
        self.files.target.symlink(&to, entry.target.unwrap_or_default(), Links::Refuse).await?;
        self.files.target.set_metadata(&to, Links::Itself, None, Some(entry.modified)).await?;
        self.files.observer.done(&to, EntryKind::Symlink);
        Ok(JobResult::Link)
    }

    /// Checks a directory that this copy created: if another program has replaced it since, change nothing.
    async fn check(&self, at: usize, below: &Path) -> Result<JobResult, CopyError> {
        let to = self.target_path(below);
        match self.files.target.metadata(&to, Links::Itself).await?.kind {
            EntryKind::Directory => Ok(JobResult::Checked { at }),
            _ => Err(CopyError::NotADirectory { path: to }),
        }
    }

    /// Records the result of a job. Returns an error if it ends the whole copy.
    fn handle_result(&self, state: &mut TreeCopyState, done: JobResult) -> Result<(), CopyError> {
        match done {
            JobResult::Directory { directory, is_ours, target_dir } => {
                let finish = if is_ours { Finish::Check } else { Finish::Keep };
                state.directories.push(CopiedDirectory { directory, finish });
                state.listings.push(CopyJob::Page { dir: Arc::new(target_dir), after: None });
            }
            JobResult::Listed { dir, after, page } => {
                // There is no memory for it now. At least one listing always succeeds, so the copy makes progress.
                if state.waiting() >= WAITING_MAX && state.in_flight.listings > 0 {
                    state.listings.push(CopyJob::Page { dir, after });
                } else {
                    self.handle_page(state, page, &dir)?;
                }
            }
            JobResult::File { bytes } => {
                state.report.files += 1;
                state.report.bytes = state.report.bytes.saturating_add(bytes);
            }
            JobResult::Link => state.report.links += 1,
            JobResult::Checked { at } => state.directories[at].finish = Finish::Set,
        }
        Ok(())
    }

    /// Records a failure, or returns it if it ends the whole copy.
    fn handle_error(&self, state: &mut TreeCopyState, error: CopyError) -> Result<(), CopyError> {
        if error.is_fatal() {
            return Err(error);
        }
        self.files.observer.failed(&error);
        state.report.failed += 1;
        Ok(())
    }

    fn handle_page(
        &self,
        state: &mut TreeCopyState,
        page: ListPage,
        dir: &Arc<TargetDirectory>,
    ) -> Result<(), CopyError> {
        if page.more
            && let Some(last) = page.entries.last()
        {
            let after = Some(last.name.clone());
            state.listings.push(CopyJob::Page { dir: Arc::clone(dir), after });
        }
        // In reverse, so that the first entry ends up on top of its stack.
        for entry in page.entries.into_iter().rev() {
            if self.target_len(dir, &entry.name) >= PATH_MAX || state.directories.len() >= DIRECTORIES_MAX {
                return Err(CopyError::Listing {
                    path: self.source_path(&dir.below.join(&entry.name)),
                    why: "the tree is too deep or has too many directories",
                });
            }
            let dir = Arc::clone(dir);
            match entry.kind {
                EntryKind::Directory => {
                    let ListEntry { name, mode, modified, .. } = entry;
                    state.listings.push(CopyJob::Directory { parent: dir, name, mode, modified });
                }
                EntryKind::File if dir.existing.get(&entry.name).is_some_and(|there| is_same(&entry, there)) => {
                    state.report.found += 1;
                    let to = self.target_path(&dir.below.join(&entry.name));
                    self.files.observer.begun(&to, entry.size);
                    self.files.observer.moved(&to, entry.size);
                    self.files.observer.done(&to, EntryKind::File);
                }
                EntryKind::File => {
                    let source = SourceFile { size: entry.size, mode: entry.mode, modified: entry.modified };
                    state.entries.push(CopyJob::File { dir, name: entry.name, source });
                }
                EntryKind::Symlink => state.entries.push(CopyJob::Link { dir, entry }),
                EntryKind::Other => {
                    state.report.left_out += 1;
                    self.files.observer.left_out(&self.source_path(&dir.below.join(&entry.name)));
                }
            }
        }
        Ok(())
    }

    /// Sets the mode and time of directories.
    async fn finish(&self, state: &mut TreeCopyState) -> Result<(), CopyError> {
        let directories = std::mem::take(&mut state.directories);
        // A directory whose check has failed was reported already.
        let directories = directories.into_iter().filter(|copied| copied.finish != Finish::Check);
        let (mut last, first): (Vec<_>, Vec<_>) =
            directories.partition(|copied| copied.finish == Finish::Set && copied.directory.mode & 0o700 != 0o700);
        self.set_all(state, &first).await?;
        last.sort_by_key(|copied| Reverse(copied.directory.depth()));
        for level in last.chunk_by(|one, next| one.directory.depth() == next.directory.depth()) {
            self.set_all(state, level).await?;
        }
        Ok(())
    }

    async fn set_all(&self, state: &mut TreeCopyState, directories: &[CopiedDirectory]) -> Result<(), CopyError> {
        let mut setting =
            futures_util::stream::iter(directories.iter().map(|copied| self.set(copied))).buffer_unordered(JOBS);
        while let Some(set) = setting.next().await {
            match set {
                Ok(()) => state.report.directories += 1,
                Err(error) => self.handle_error(state, error)?,
            }
        }
        Ok(())
    }

    async fn set(&self, copied: &CopiedDirectory) -> Result<(), CopyError> {
        let CopiedDirectory { directory, finish } = copied;
        let to = self.target_path(&directory.below);
        if *finish == Finish::Set {
            let (mode, modified) = (Some(directory.mode), Some(directory.modified));
            self.files.target.set_metadata(&to, Links::Itself, mode, modified).await?;
        }
        self.files.observer.done(&to, EntryKind::Directory);
        Ok(())
    }

    /// The length of the path of an entry at the target.
    fn target_len(&self, dir: &TargetDirectory, name: &OsStr) -> usize {
        let below = dir.below.as_os_str().len();
        // The slash before each part that is not empty.
        self.root.path.as_os_str().len() + below + usize::from(below > 0) + 1 + name.len()
    }

    fn source_path(&self, below: &Path) -> PathBuf {
        join(&self.from, below)
    }

    fn target_path(&self, below: &Path) -> PathBuf {
        join(&self.root.path, below)
    }
}

impl SourceDirectory {
    fn depth(&self) -> usize {
        self.below.components().count()
    }
}

impl CopyJob {
    fn load(&self) -> JobLoad {
        match self {
            Self::Directory { .. } | Self::Page { .. } => JobLoad::Listing,
            Self::File { source, .. } if source.size > file::SMALL => {
                JobLoad::Large { blocks: source.size.div_ceil(BLOCK as u64).min(BLOCKS_IN_FLIGHT as u64) }
            }
            Self::File { source, .. } => JobLoad::Small { bytes: source.reserved_bytes() },
            Self::Link { .. } | Self::Check { .. } => JobLoad::Small { bytes: 0 },
        }
    }
}

impl JobsInFlight {
    /// Whether one more job fits. The first one of its kind always does. See `next_listing` for the number of listings.
    fn has_room(&self, load: JobLoad) -> bool {
        self.jobs < JOBS
            && match load {
                JobLoad::Listing => true,
                JobLoad::Small { bytes } => self.small_bytes == 0 || self.small_bytes + bytes <= SMALL_BYTES,
                JobLoad::Large { blocks } => {
                    self.large == 0 || (self.large < LARGE && self.large_blocks + blocks <= LARGE_BLOCKS)
                }
            }
    }

    fn add(&mut self, load: JobLoad) {
        self.jobs += 1;
        match load {
            JobLoad::Listing => self.listings += 1,
            JobLoad::Small { bytes } => self.small_bytes += bytes,
            JobLoad::Large { blocks } => {
                self.large += 1;
                self.large_blocks += blocks;
            }
        }
    }

    fn remove(&mut self, load: JobLoad) {
        self.jobs -= 1;
        match load {
            JobLoad::Listing => self.listings -= 1,
            JobLoad::Small { bytes } => self.small_bytes -= bytes,
            JobLoad::Large { blocks } => {
                self.large -= 1;
                self.large_blocks -= blocks;
            }
        }
    }
}

impl TreeCopyState {
    /// The number of entries that wait in the stacks.
    fn waiting(&self) -> usize {
        self.listings.len() + self.entries.len()
    }

    /// Returns the next job that may run, and counts it.
    fn next_job(&mut self) -> Option<CopyJob> {
        let job = self.next_listing().or_else(|| self.next_large()).or_else(|| self.next_entry());
        let job = job.or_else(|| self.next_check())?;
        self.in_flight.add(job.load());
        Some(job)
    }

    fn next_listing(&mut self) -> Option<CopyJob> {
        let most = match self.waiting() {
            ..WAITING => LISTINGS,
            WAITING..WAITING_MAX => LISTINGS_FEW,
            _ => 1,
        };
        if self.in_flight.listings < most && self.in_flight.has_room(JobLoad::Listing) {
            self.listings.pop()
        } else {
            None
        }
    }

    fn next_large(&mut self) -> Option<CopyJob> {
        self.large.pop_front_if(|job| self.in_flight.has_room(job.load()))
    }

    fn next_entry(&mut self) -> Option<CopyJob> {
        while self.large.len() < LARGE_WAITING
            && let Some(job) = self.entries.pop()
        {
            let load = job.load();
            let is_large = matches!(load, JobLoad::Large { .. });
            // A large file does not overtake those that wait already.
            let is_next = !is_large || self.large.is_empty();
            if is_next && self.in_flight.has_room(load) {
                return Some(job);
            }
            if !is_large {
                self.entries.push(job);
                return None;
            }
            self.large.push_back(job);
        }
        None
    }

    /// Begins the checks of directories when only small files are left, and all of them are in flight.
    fn next_check(&mut self) -> Option<CopyJob> {
        let is_waiting = self.waiting() + self.large.len() > 0;
        let is_last = !is_waiting && self.in_flight.listings + self.in_flight.large == 0;
        if !is_last || !self.in_flight.has_room(JobLoad::Small { bytes: 0 }) {
            return None;
        }
        while let Some(CopiedDirectory { directory, finish }) = self.directories.get(self.checked) {
            let at = self.checked;
            self.checked += 1;
            if *finish == Finish::Check {
                return Some(CopyJob::Check { at, below: directory.below.clone() });
            }
        }
        None
    }
}

/// The result of creating a directory.
fn new_directory(directory: SourceDirectory, setgid: u32) -> JobResult {
    let below = directory.below.clone();
    let target_dir = TargetDirectory { below, is_new: true, setgid, existing: ExistingFiles::new() };
    JobResult::Directory { directory, is_ours: true, target_dir }
}

/// Joins two paths. Adds no slash if the second one is empty.
fn join(root: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { root.to_owned() } else { root.join(below) }
}

/// Whether a file at the target is a complete copy of this entry, made by an interrupted copy.
fn is_same(source: &ListEntry, target: &ListEntry) -> bool {
    (source.size, source.modified, source.mode & MODE_KEPT) == (target.size, target.modified, target.mode)
}

/// Checks a page before it is used: every name must be valid, and the names must ascend. Otherwise a server could repeat the same entries
/// forever.
fn check_page(path: &Path, page: &ListPage, after: Option<&OsStr>) -> Result<(), CopyError> {
    if page.more && page.entries.is_empty() {
        return Err(CopyError::Listing { path: path.to_owned(), why: "an empty page announces more entries" });
    }
    let mut before = after;
    for entry in &page.entries {
        if let Err(why) = names::check(&entry.name) {
            return Err(CopyError::Name { path: path.to_owned(), name: entry.name.clone(), why });
        }
        if before.is_some_and(|before| *entry.name <= *before) {
            return Err(CopyError::Listing { path: path.to_owned(), why: "its names are not in ascending order" });
        }
        before = Some(&entry.name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Arc<TargetDirectory> {
        let existing = ExistingFiles::new();
        Arc::new(TargetDirectory { below: PathBuf::new(), is_new: true, setgid: 0, existing })
    }

    fn file(at: usize, size: u64) -> CopyJob {
        let source = SourceFile { size, mode: 0o644, modified: Moment { seconds: 0, nanos: 0 } };
        CopyJob::File { dir: directory(), name: at.to_string().into(), source }
    }

    /// Runs all jobs to their end, with as many in flight as the limits allow. Returns how many there were, and the largest value of each
    /// limit.
    fn run_all(state: &mut TreeCopyState) -> (usize, JobsInFlight) {
        let (mut jobs, mut running, mut most) = (0, VecDeque::new(), JobsInFlight::default());
        loop {
            while let Some(job) = state.next_job() {
                jobs += 1;
                running.push_back(job.load());
                let now = state.in_flight;
                most = JobsInFlight {
                    jobs: most.jobs.max(now.jobs),
                    listings: most.listings.max(now.listings),
                    small_bytes: most.small_bytes.max(now.small_bytes),
                    large: most.large.max(now.large),
                    large_blocks: most.large_blocks.max(now.large_blocks),
                };
                assert!(state.large.len() <= LARGE_WAITING);
            }
            let Some(load) = running.pop_front() else { break };
            state.in_flight.remove(load);
        }
        assert_eq!((state.in_flight, state.large.len(), state.waiting()), (JobsInFlight::default(), 0, 0));
        (jobs, most)
    }

    #[test]
    fn waiting_large_files_are_bounded_and_all_are_copied() {
        let count = 3 * LARGE_WAITING;
        let mut state = TreeCopyState::default();
        state.entries.push(file(0, 1));
        state.entries.extend((1..=count).map(|at| file(at, file::SMALL + 1)));
        let (jobs, most) = run_all(&mut state);
        assert_eq!((jobs, most.large), (count + 1, LARGE));
    }

    #[test]
    fn files_in_flight_are_bounded_by_their_bytes_and_their_number() {
        let most_of = |count, size| {
            let mut state = TreeCopyState::default();
            state.entries.extend((0..count).map(|at| file(at, size)));
            let (jobs, most) = run_all(&mut state);
            assert_eq!(jobs, count);
            most
        };
        let small = |jobs, small_bytes| JobsInFlight { jobs, small_bytes, ..JobsInFlight::default() };
        let large = |large, large_blocks| JobsInFlight { jobs: large, large, large_blocks, ..JobsInFlight::default() };
        assert_eq!(most_of(2000, 4096), small(JOBS, SMALL_BYTES));
        assert_eq!(most_of(2000, file::SMALL), small(16, SMALL_BYTES));
        assert_eq!(most_of(40, 2 << 20), large(LARGE, 8 * LARGE as u64));
        assert_eq!(most_of(40, 9 << 20), large(3, 3 * 36));
        assert_eq!(most_of(40, u64::MAX), large(2, LARGE_BLOCKS));
    }

    #[test]
    fn listings_run_before_files_and_stop_ahead_of_too_many() {
        let page = || CopyJob::Page { dir: directory(), after: None };
        let listings_beside = |entries| {
            let mut state = TreeCopyState::default();
            state.entries.extend((0..entries).map(|at| file(at, 1)));
            state.listings.extend((0..2 * LISTINGS).map(|_| page()));
            let mut listings = 0;
            while let Some(CopyJob::Page { .. }) = state.next_job() {
                listings += 1;
            }
            (listings, run_all_after(&mut state))
        };
        /// Whether the remaining jobs all run once those in flight have ended.
        fn run_all_after(state: &mut TreeCopyState) -> usize {
            state.in_flight = JobsInFlight::default();
            run_all(state).0
        }
        // One file was started when no further listing could.
        assert_eq!(listings_beside(10), (LISTINGS, 9 + LISTINGS));
        assert_eq!(listings_beside(WAITING), (LISTINGS_FEW, WAITING - 1 + 2 * LISTINGS - LISTINGS_FEW));
        assert_eq!(listings_beside(WAITING_MAX), (1, WAITING_MAX - 1 + 2 * LISTINGS - 1));
    }

    #[cfg(feature = "local")]
    #[test]
    fn a_page_that_finds_no_room_is_listed_again_unless_it_is_the_only_one() {
        let files = crate::fs::LocalFiles::new();
        let root =
            TargetRoot { path: "/target".into(), is_ours: true, is_new: true, setgid: 0, mark: None, since_ms: None };
        let files = FileCopy { source: &files, target: &files, observer: &crate::cp::NoObserver };
        let copy = TreeCopy { files, from: "/source".into(), root: &root };
        let handled = |listings| {
            let mut state = TreeCopyState::default();
            state.entries.extend((0..WAITING_MAX).map(|at| file(at, 1)));
            state.in_flight.listings = listings;
            let entry = ListEntry {
                name: "b".into(),
                kind: EntryKind::File,
                size: 1,
                mode: 0o644,
                modified: Moment { seconds: 0, nanos: 0 },
                target: None,
                owner: None,
            };
            let page = ListPage { entries: vec![entry], more: false };
            let listed = JobResult::Listed { dir: directory(), after: Some("a".into()), page };
            copy.handle_result(&mut state, listed).expect("a valid page");
            let again = match state.listings.pop() {
                Some(CopyJob::Page { after, .. }) => after,
                _ => None,
            };
            (again, state.entries.len() - WAITING_MAX)
        };
        assert_eq!(handled(1), (Some("a".into()), 0));
        assert_eq!(handled(0), (None, 1));
    }
}
