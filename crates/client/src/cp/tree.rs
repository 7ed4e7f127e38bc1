//! Copies a tree: its directories, files and links are jobs, and tens of them run at a time.
//!
//! ```text
//! pop [dir] ──create it, list one page──▶ push [next page], then the files, links and directories of this page
//! ```
//! The stack is last in, first out, and at most `JOBS` jobs add entries to it at a time. Its size therefore depends on the depth of the
//! tree, and not on the number of its files. Directories that this copy created get their mode and time at the very end, from the leaves
//! up. Until then they must be writable, and every new entry would change their time. It sets neither for directories that existed
//! before.

use std::{
    collections::{HashMap, VecDeque},
    ffi::OsString,
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
use crate::fs::{EntryKind, Links, ListEntry, ListPage, Moment};

/// Limit for jobs in flight: twice the file operations that a server runs at a time for a session (`limits::FILE_JOBS_OF_SESSION`), so that
/// the next requests are already there when an operation ends.
const JOBS: usize = 32;

/// Limit for large files in flight. Their blocks fill the connection by themselves.
const LARGE: usize = 2;

/// Limit for large files that wait for other large files. Above it, no further entries are taken from the stack, so that a tree with many
/// large files does not fill the memory.
const LARGE_WAITING: usize = 1024;

/// Limit for the directories of a tree. A source that reports more is assumed to never end.
const DIRECTORIES_MAX: usize = 2_000_000;

/// No further page of a target directory is requested once this many of its files are remembered.
const EXISTING_MAX: usize = 500_000;

/// The size of the longest path that Linux allows, in bytes, with its final NUL.
const PATH_MAX: usize = 4096;

/// The files in a target directory that an interrupted copy may have copied, by name.
type ExistingFiles = HashMap<OsString, ListEntry>;

/// A target directory, as needed by the jobs for its entries.
#[derive(Default)]
struct TargetDirectory {
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

/// A job that waits to run.
enum CopyJob {
    /// Creates a directory, unless it exists.
    Directory { directory: SourceDirectory, parent: Arc<TargetDirectory> },
    /// Lists one page of a directory: the entries after a name.
    Page { below: PathBuf, after: Option<OsString>, target_dir: Arc<TargetDirectory> },
    /// Copies a file.
    File { below: PathBuf, source: SourceFile },
    /// Creates a symbolic link.
    Link { below: PathBuf, entry: ListEntry },
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
        below: PathBuf,
        page: ListPage,
        target_dir: Arc<TargetDirectory>,
    },
    File {
        bytes: u64,
    },
    Link,
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
    stack: Vec<CopyJob>,
    /// Large files that wait because `LARGE` others are in flight.
    large: VecDeque<CopyJob>,
    large_in_flight: usize,
    /// Every directory that exists at the target so far, and whether it gets its mode and time at the end.
    directories: Vec<(SourceDirectory, bool)>,
    report: CopyReport,
}

impl TreeCopy<'_> {
    /// Copies the tree. `mode` and `modified` are those of its root.
    pub(super) async fn copy(&self, mode: u32, modified: Moment) -> Result<CopyReport, CopyError> {
        let mut state = TreeCopyState::default();
        let directory =
            SourceDirectory { below: PathBuf::new(), mode: root::final_mode(mode, self.root.setgid), modified };
        let done = self.enter(directory, self.root.is_ours, self.root.setgid).await?;
        self.handle_result(&mut state, done)?;
        let mut in_flight = FuturesUnordered::new();
        loop {
            while in_flight.len() < JOBS
                && let Some(job) = state.next_job()
            {
                in_flight.push(self.run(job));
            }
            let Some((was_large, done)) = in_flight.next().await else { break };
            state.large_in_flight -= usize::from(was_large);
            match done {
                Ok(done) => self.handle_result(&mut state, done)?,
                Err(error) => self.handle_error(&mut state, error)?,
            }
        }
        self.finish(&mut state).await?;
        Ok(state.report)
    }

    /// Runs a job. Also returns whether it copied a large file.
    fn run(&self, job: CopyJob) -> BoxFuture<'_, (bool, Result<JobResult, CopyError>)> {
        async move {
            let was_large = job.is_large();
            let done = match job {
                CopyJob::Directory { directory, parent } => self.directory(directory, &parent).await,
                CopyJob::Page { below, after, target_dir } => self.page(below, after, target_dir).await,
                CopyJob::File { below, source } => self.file(&below, &source).await,
                CopyJob::Link { below, entry } => self.link(&below, entry).await,
            };
            (was_large, done)
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
        let target_dir = TargetDirectory { is_new: true, setgid: parent.setgid, existing: ExistingFiles::new() };
        Ok(JobResult::Directory { directory, is_ours: true, target_dir })
    }

    /// Handles a directory that exists at the target. In a continued copy it may already have its final mode, and contain files.
    async fn enter(&self, directory: SourceDirectory, is_ours: bool, setgid: u32) -> Result<JobResult, CopyError> {
        let mut target_dir = TargetDirectory { is_new: false, setgid, existing: ExistingFiles::new() };
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
            check_page(to, &page, after)?;
            after = page.entries.last().map(|last| last.name.clone());
            let files = page.entries.into_iter().filter(|entry| entry.kind == EntryKind::File);
            existing.extend(files.map(|entry| (entry.name.clone(), entry)));
            if !page.more {
                break;
            }
        }
        Ok(existing)
    }

    async fn page(
        &self,
        below: PathBuf,
        after: Option<OsString>,
        target_dir: Arc<TargetDirectory>,
    ) -> Result<JobResult, CopyError> {
        let from = self.source_path(&below);
        let page = self.files.source.list(&from, after.clone(), Links::Refuse).await?;
        check_page(&from, &page, after)?;
        self.refuse_itself(&from, &page).await?;
        Ok(JobResult::Listed { below, page, target_dir })
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

    /// Records the result of a job. Returns an error if it ends the whole copy.
    fn handle_result(&self, state: &mut TreeCopyState, done: JobResult) -> Result<(), CopyError> {
        match done {
            JobResult::Directory { directory, is_ours, target_dir } => {
                let below = directory.below.clone();
                let target_dir = Arc::new(target_dir);
                state.directories.push((directory, is_ours));
                state.stack.push(CopyJob::Page { below, after: None, target_dir });
            }
            JobResult::Listed { below, page, target_dir } => self.handle_page(state, &below, page, &target_dir)?,
            JobResult::File { bytes } => {
                state.report.files += 1;
                state.report.bytes = state.report.bytes.saturating_add(bytes);
            }
            JobResult::Link => state.report.links += 1,
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
        below: &Path,
        page: ListPage,
        target_dir: &Arc<TargetDirectory>,
    ) -> Result<(), CopyError> {
        if page.more
            && let Some(last) = page.entries.last()
        {
            let after = Some(last.name.clone());
            state.stack.push(CopyJob::Page { below: below.to_owned(), after, target_dir: Arc::clone(target_dir) });
        }
        // In reverse, so that the first entry ends up on top of the stack.
        for entry in page.entries.into_iter().rev() {
            let below = below.join(&entry.name);
            if self.target_path(&below).as_os_str().len() >= PATH_MAX || state.directories.len() >= DIRECTORIES_MAX {
                return Err(CopyError::Listing {
                    path: self.source_path(&below),
                    why: "the tree is too deep or has too many directories",
                });
            }
            match entry.kind {
                EntryKind::Directory => {
                    let directory = SourceDirectory { below, mode: entry.mode, modified: entry.modified };
                    state.stack.push(CopyJob::Directory { directory, parent: Arc::clone(target_dir) });
                }
                EntryKind::File if target_dir.existing.get(&entry.name).is_some_and(|there| is_same(&entry, there)) => {
                    state.report.found += 1;
                    let to = self.target_path(&below);
                    self.files.observer.begun(&to, entry.size);
                    self.files.observer.moved(&to, entry.size);
                    self.files.observer.done(&to, EntryKind::File);
                }
                EntryKind::File => {
                    let source = SourceFile { size: entry.size, mode: entry.mode, modified: entry.modified };
                    state.stack.push(CopyJob::File { below, source });
                }
                EntryKind::Symlink => state.stack.push(CopyJob::Link { below, entry }),
                EntryKind::Other => {
                    state.report.left_out += 1;
                    self.files.observer.left_out(&self.source_path(&below));
                }
            }
        }
        Ok(())
    }

    /// Sets the mode and time of directories, the deepest first. A parent comes after its entries because its final mode may deny access,
    /// and because changes inside of it change its time.
    async fn finish(&self, state: &mut TreeCopyState) -> Result<(), CopyError> {
        let mut directories = std::mem::take(&mut state.directories);
        directories.sort_by_key(|(directory, _)| std::cmp::Reverse(directory.depth()));
        for level in directories.chunk_by(|(one, _), (next, _)| one.depth() == next.depth()) {
            let sets = level.iter().map(|(directory, is_ours)| self.complete(directory, *is_ours));
            let mut setting = futures_util::stream::iter(sets).buffer_unordered(JOBS);
            while let Some(set) = setting.next().await {
                match set {
                    Ok(()) => state.report.directories += 1,
                    Err(error) => self.handle_error(state, error)?,
                }
            }
        }
        Ok(())
    }

    async fn complete(&self, directory: &SourceDirectory, is_ours: bool) -> Result<(), CopyError> {
        let to = self.target_path(&directory.below);
        if is_ours {
            // If another program has replaced the directory since, change nothing.
            if self.files.target.metadata(&to, Links::Itself).await?.kind != EntryKind::Directory {
                return Err(CopyError::NotADirectory { path: to });
            }
            let (mode, modified) = (Some(directory.mode), Some(directory.modified));
            self.files.target.set_metadata(&to, Links::Itself, mode, modified).await?;
        }
        self.files.observer.done(&to, EntryKind::Directory);
        Ok(())
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
    fn is_large(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.size > file::SMALL)
    }
}

impl TreeCopyState {
    /// Returns the next job that may run.
    fn next_job(&mut self) -> Option<CopyJob> {
        if self.large_in_flight < LARGE
            && let Some(job) = self.large.pop_front()
        {
            self.large_in_flight += 1;
            return Some(job);
        }
        while self.large.len() < LARGE_WAITING
            && let Some(job) = self.stack.pop()
        {
            if !job.is_large() {
                return Some(job);
            }
            if self.large_in_flight < LARGE {
                self.large_in_flight += 1;
                return Some(job);
            }
            self.large.push_back(job);
        }
        None
    }
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
fn check_page(path: &Path, page: &ListPage, after: Option<OsString>) -> Result<(), CopyError> {
    if page.more && page.entries.is_empty() {
        return Err(CopyError::Listing { path: path.to_owned(), why: "an empty page announces more entries" });
    }
    let mut before = after;
    for entry in &page.entries {
        if let Err(why) = names::check(&entry.name) {
            return Err(CopyError::Name { path: path.to_owned(), name: entry.name.clone(), why });
        }
        if before.is_some_and(|before| entry.name <= before) {
            return Err(CopyError::Listing { path: path.to_owned(), why: "its names are not in ascending order" });
        }
        before = Some(entry.name.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_large_files_are_bounded_and_all_are_copied() {
        let file = |at: usize, size| CopyJob::File {
            below: PathBuf::from(at.to_string()),
            source: file::SourceFile { size, mode: 0o644, modified: Moment { seconds: 0, nanos: 0 } },
        };
        let count = 3 * LARGE_WAITING;
        let mut state = TreeCopyState::default();
        state.stack.push(file(0, 1));
        state.stack.extend((1..=count).map(|at| file(at, file::SMALL + 1)));
        let mut started = 0;
        loop {
            match state.next_job() {
                Some(_) => started += 1,
                // The next large file starts when another one is done.
                None if state.large_in_flight > 0 => state.large_in_flight -= 1,
                None => break,
            }
            assert!(state.large_in_flight <= LARGE && state.large.len() <= LARGE_WAITING);
        }
        assert_eq!((started, state.large.len(), state.stack.len()), (count + 1, 0, 0));
    }
}
