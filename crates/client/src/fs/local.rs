//! File access on this machine, with the same code that the server uses, and without a server.
//!
//! An operation runs on a blocking thread, except a read that the page cache can serve at once. Dropping the future of a call cancels the
//! operation at the next point where it leaves nothing half done. A write of a block is not cancelled.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use exec_server_fs::{self as files, Cancel, ErrorCategory, JobQueue, View};
use exec_server_protocol::limits;
use exec_server_rpc::pool::PooledBuffer;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, oneshot},
    task,
};

use super::{
    Block, CommitOptions, CreateOptions, DirectoryEntry, EntryKind, FileError, FileErrorKind, FileFuture, FileSystem,
    Links, ListEntry, ListPage, Metadata, Moment, ReadAt, Walk, WalkKind, WalkOptions, WriteAt, WriteOptions, Written,
};

/// The name of this machine; see [`FileSystem::machine`].
const NAME: &str = "local";

/// The advice in the error for a file that is too large for `read_within`.
const ADVICE: &str = "read it in blocks";

/// Limit for the operations on paths that run at the same time, each on its own thread. Others wait. More threads do not make a disk
/// faster, and a copy of a tree from a distant server would otherwise start hundreds of them.
const JOBS: usize = 32;

/// The file system of this machine.
#[derive(Debug, Clone)]
pub struct LocalFiles {
    view: Arc<View>,
    /// Shared by all clones.
    jobs: Arc<Semaphore>,
}

impl Default for LocalFiles {
    fn default() -> Self {
        Self::with_view(View::default())
    }
}

impl LocalFiles {
    /// Creates access to all files that this program itself can access.
    #[must_use]
    pub fn new() -> Self {
        Self::with_view(View::everything())
    }

    fn with_view(view: View) -> Self {
        Self { view: Arc::new(view), jobs: Arc::new(Semaphore::new(JOBS)) }
    }

    /// Runs an operation on a blocking thread.
    fn run<'a, T: Send + 'static>(
        &'a self,
        operation: &'static str,
        path: &'a Path,
        work: impl FnOnce(&View, &Path, &Cancel) -> Result<T, files::Error> + Send + 'static,
    ) -> FileFuture<'a, T> {
        if !path.is_absolute() {
            let error = FileError::new(operation, path, FileErrorKind::InvalidInput, "the path is not absolute");
            return Box::pin(std::future::ready(Err(error)));
        }
        let (view, jobs) = (Arc::clone(&self.view), Arc::clone(&self.jobs));
        Box::pin(async move {
            let slot = jobs.acquire_owned().await.expect("the semaphore is never closed");
            let owned_path = path.to_owned();
            let work = move |cancel: &Cancel| {
                // A thread keeps its slot until it ends, also after its waiter was dropped.
                let _slot = slot;
                work(&view, &owned_path, cancel)
            };
            blocking(operation, path.to_owned(), work).await
        })
    }
}

/// Runs work on a blocking thread. Dropping the future cancels the work.
async fn blocking<T: Send + 'static>(
    operation: &'static str,
    path: PathBuf,
    work: impl FnOnce(&Cancel) -> Result<T, files::Error> + Send + 'static,
) -> Result<T, FileError> {
    let cancel = Cancel::new();
    let guard = CancelOnDrop(cancel.clone());
    let done = task::spawn_blocking(move || work(&cancel)).await;
    drop(guard);
    match done {
        Ok(done) => done.map_err(|error| of_files(operation, &error)),
        Err(error) => Err(FileError::new(operation, &path, FileErrorKind::Other, error.to_string())),
    }
}

/// Cancels the work when dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl FileSystem for LocalFiles {
    fn machine(&self) -> String {
        NAME.to_owned()
    }

    fn read_file<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Bytes> {
        // No limit. Not `u64::MAX`, because the read asks for one byte more.
        self.read_within(path, u64::MAX - 1, links)
    }

    fn read_within<'a>(&'a self, path: &'a Path, most: u64, links: Links) -> FileFuture<'a, Bytes> {
        self.run("read", path, move |view, path, cancel| {
            let file = files::open(view, path, of_links(links))?;
            let content = file.read(files::ReadRange::ALL, most, ADVICE, cancel)?;
            Ok(Bytes::from(content.bytes))
        })
    }

    fn write_file<'a>(&'a self, path: &'a Path, bytes: Bytes, options: WriteOptions) -> FileFuture<'a, Written> {
        self.run("write", path, move |view, path, cancel| {
            let position = if options.append { files::WritePosition::End } else { files::WritePosition::Whole };
            let links = of_links(options.links);
            let finish = finish_options(options.into());
            let request = files::WriteRequest { position, bytes: &bytes, options: &finish };
            let written = files::write(view, path, links, &request, cancel)?;
            Ok(Written { atomic: written.atomic, etag: Some(written.etag) })
        })
    }

    fn create_directory<'a>(
        &'a self,
        path: &'a Path,
        recursive: bool,
        links: Links,
        mode: Option<u32>,
    ) -> FileFuture<'a, ()> {
        self.run("make directory", path, move |view, path, _| {
            files::create_directory(view, path, of_links(links), recursive, mode)
        })
    }

    fn metadata<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Metadata> {
        self.run("look at", path, move |view, path, _| {
            let found = files::metadata(view, path, of_links(links), links == Links::Itself)?;
            Ok(Metadata {
                kind: of_type(found.stat.kind),
                is_symlink: found.is_symlink,
                size: found.stat.size,
                mode: Some(found.stat.mode),
                modified: of_moment(found.stat.modified),
                created_ms: found.stat.created.map_or(0, files::Moment::millis),
                etag: found.etag,
                link_target: found.link_target.map(OsString::from_vec),
                owner: None,
            })
        })
    }

    fn canonicalize<'a>(&'a self, path: &'a Path) -> FileFuture<'a, PathBuf> {
        self.run("resolve", path, files::canonicalize)
    }

    fn read_directory<'a>(&'a self, path: &'a Path) -> FileFuture<'a, Vec<DirectoryEntry>> {
        self.run("list", path, move |view, path, cancel| {
            let entries = files::read_directory(view, path, files::Links::Follow, limits::DIRECTORY_ENTRIES, cancel)?;
            let entry = |entry: files::DirectoryEntry| DirectoryEntry {
                name: entry.name,
                is_directory: entry.is_directory,
                is_file: entry.is_file,
            };
            Ok(entries.into_iter().map(entry).collect())
        })
    }

    fn list<'a>(&'a self, path: &'a Path, after: Option<OsString>, links: Links) -> FileFuture<'a, ListPage> {
        self.run("list", path, move |view, path, cancel| {
            let range = files::ListRange { after: after.as_deref(), most: limits::DIRECTORY_ENTRIES };
            let (details, more) = files::read_details(view, path, of_links(links), range, cancel)?;
            let entry = |detail: files::DetailedEntry| ListEntry {
                name: detail.entry.name,
                kind: of_type(detail.stat.kind),
                size: detail.stat.size,
                mode: detail.stat.mode,
                modified: of_moment(detail.stat.modified),
                target: detail.link_target.map(OsString::from_vec),
                owner: None,
            };
            Ok(ListPage { entries: details.into_iter().map(entry).collect(), more })
        })
    }

    fn walk<'a>(&'a self, path: &'a Path, options: WalkOptions) -> FileFuture<'a, Walk> {
        let range = 1..=limits::WALK_DIRECTORIES;
        let entries = 1..=limits::DIRECTORY_ENTRIES as u64;
        let is_bounded = options.max_depth <= limits::WALK_DEPTH
            && range.contains(&options.max_directories)
            && entries.contains(&options.max_entries);
        if !is_bounded {
            let reason = "the limits of the walk are 0 or too large";
            let error = FileError::new("walk", path, FileErrorKind::InvalidInput, reason);
            return Box::pin(std::future::ready(Err(error)));
        }
        self.run("walk", path, move |view, path, cancel| {
            let walk = files::WalkOptions {
                max_depth: options.max_depth,
                max_directories: options.max_directories,
                max_entries: options.max_entries,
                max_bytes: limits::WALK_BYTES,
                follow_directories: options.follow_directory_symlinks,
                prune_hidden: options.prune_hidden_directories,
            };
            let found = files::walk(view, path, &walk, cancel)?;
            // A walk lists only regular files and directories.
            let kind = |kind| if kind == files::FileKind::Directory { WalkKind::Directory } else { WalkKind::File };
            // Report paths that are not UTF-8 as errors, as every server does.
            let (entries, non_utf8): (Vec<_>, Vec<_>) =
                found.entries.into_iter().partition(|(path, _)| path.to_str().is_some());
            let non_utf8 = non_utf8.into_iter().map(|(path, _)| (path, "its name is not UTF-8".to_owned()));
            Ok(Walk {
                entries: entries.into_iter().map(|(path, found)| (path, kind(found))).collect(),
                errors: non_utf8.chain(found.errors).collect(),
                truncated: found.truncated,
            })
        })
    }

    fn remove<'a>(&'a self, path: &'a Path, recursive: bool, force: bool, links: Links) -> FileFuture<'a, ()> {
        self.run("remove", path, move |view, path, cancel| {
            files::remove(view, path, of_links(links), files::RemoveOptions { recursive, force }, cancel)
        })
    }

    fn copy<'a>(&'a self, source: &'a Path, target: &'a Path, recursive: bool) -> FileFuture<'a, ()> {
        let target = target.to_owned();
        self.run("copy", source, move |view, source, cancel| files::copy(view, source, &target, recursive, cancel))
    }

    fn symlink<'a>(&'a self, path: &'a Path, target: OsString, links: Links) -> FileFuture<'a, ()> {
        self.run("link", path, move |view, path, _| {
            files::create_symlink(view, path, of_links(links), target.as_bytes(), true)
        })
    }

    fn set_metadata<'a>(
        &'a self,
        path: &'a Path,
        links: Links,
        mode: Option<u32>,
        modified: Option<Moment>,
    ) -> FileFuture<'a, ()> {
        self.run("change", path, move |view, path, _| {
            let of_link = links == Links::Itself;
            let change = files::MetadataChange { mode, modified: modified.map(to_moment), of_link };
            files::set_metadata(view, path, of_links(links), change)
        })
    }

    fn sweep<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, ()> {
        self.run("clear up in", path, move |view, path, cancel| {
            files::sweep(view, path, of_links(links), cancel).map(|_| ())
        })
    }

    fn open<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Box<dyn ReadAt>> {
        self.run("open", path, move |view, path, _| {
            let file = files::open(view, path, of_links(links))?;
            let etag = file.etag()?;
            Ok(Box::new(LocalFile { file: Arc::new(file), etag }) as Box<dyn ReadAt>)
        })
    }

    fn create<'a>(&'a self, path: &'a Path, options: CreateOptions) -> FileFuture<'a, Box<dyn WriteAt>> {
        self.run("create", path, move |view, path, _| {
            let draft = files::Draft::create(view, path, of_links(options.links), options.keep.as_deref())?;
            let found = draft.size()?;
            let path = path.to_owned();
            let draft = Arc::new(Mutex::new(draft));
            let queue = Arc::default();
            Ok(Box::new(LocalDraft { draft, queue, path, found }) as Box<dyn WriteAt>)
        })
    }
}

/// A file that is open for reading.
struct LocalFile {
    file: Arc<files::OpenFile>,
    etag: String,
}

impl ReadAt for LocalFile {
    fn size(&self) -> u64 {
        self.file.stat.size
    }

    fn etag(&self) -> Option<&str> {
        Some(&self.etag)
    }

    fn read_at(&self, offset: u64, len: usize, holes: bool) -> FileFuture<'_, Block> {
        let file = Arc::clone(&self.file);
        let block = |mut bytes: PooledBuffer, block: files::ReadBlock| {
            bytes.fill(block.len);
            Block { bytes: bytes.freeze(), hole: block.hole, eof: block.eof }
        };
        Box::pin(async move {
            let mut bytes = PooledBuffer::with_room(len);
            // If the block is in the page cache and the file has no holes, no blocking thread is needed.
            if let Some(read) = file.read_block_now(&mut bytes.unfilled()[..len], offset) {
                return Ok(block(bytes, read));
            }
            let read = move |cancel: &Cancel| {
                let read = file.read_block(&mut bytes.unfilled()[..len], offset, holes, cancel)?;
                Ok(block(bytes, read))
            };
            blocking("read", self.file.path().to_owned(), read).await
        })
    }

    fn ahead(&self) -> usize {
        // The kernel reads ahead by itself. A block that was just read is still in the CPU cache when it is sent.
        1
    }
}

/// A file that is being written.
struct LocalDraft {
    draft: Arc<Mutex<files::Draft>>,
    /// Writes wait here and not for the lock, so that they occupy only one blocking thread.
    queue: Arc<JobQueue>,
    path: PathBuf,
    found: u64,
}

impl WriteAt for LocalDraft {
    fn found(&self) -> u64 {
        self.found
    }

    fn write_at(&self, offset: u64, bytes: Bytes) -> FileFuture<'_, ()> {
        let draft = Arc::clone(&self.draft);
        Box::pin(async move {
            let (done_tx, done_rx) = oneshot::channel();
            // Sending fails if the future was dropped. The result is not needed then.
            let write = move || done_tx.send(draft.lock().write_block(offset, &bytes)).unwrap_or(());
            if self.queue.enqueue(write) {
                let queue = Arc::clone(&self.queue);
                drop(task::spawn_blocking(move || queue.run()));
            }
            match done_rx.await {
                Ok(written) => written.map_err(|error| of_files("write", &error)),
                Err(error) => Err(FileError::new("write", &self.path, FileErrorKind::Other, error.to_string())),
            }
        })
    }

    fn commit(self: Box<Self>, options: CommitOptions) -> FileFuture<'static, Written> {
        Box::pin(blocking("complete", self.path.clone(), move |cancel| {
            let written = self.draft.lock().commit(options.size, &finish_options(options), cancel)?;
            Ok(Written { atomic: written.atomic, etag: Some(written.etag) })
        }))
    }

    fn discard(self: Box<Self>) -> FileFuture<'static, ()> {
        Box::pin(blocking("discard", self.path.clone(), move |_| {
            self.draft.lock().discard();
            Ok(())
        }))
    }
}

fn finish_options(options: CommitOptions) -> files::WriteOptions {
    files::WriteOptions {
        if_match: options.if_match,
        fsync: options.sync,
        mode: options.mode,
        modified: options.modified.map(to_moment),
    }
}

/// `Links::Itself` is `Refuse` together with `of_link`, which only some operations have.
fn of_links(links: Links) -> files::Links {
    if links == Links::Follow { files::Links::Follow } else { files::Links::Refuse }
}

fn of_type(kind: files::FileKind) -> EntryKind {
    match kind {
        files::FileKind::File => EntryKind::File,
        files::FileKind::Directory => EntryKind::Directory,
        files::FileKind::Symlink => EntryKind::Symlink,
        files::FileKind::Fifo | files::FileKind::Socket | files::FileKind::Device => EntryKind::Other,
    }
}

fn of_moment(moment: files::Moment) -> Moment {
    Moment { seconds: moment.seconds, nanos: moment.nanos }
}

fn to_moment(moment: Moment) -> files::Moment {
    files::Moment { seconds: moment.seconds, nanos: moment.nanos }
}

/// Converts an error of the file operations.
fn of_files(operation: &'static str, error: &files::Error) -> FileError {
    let kind = match error.category() {
        ErrorCategory::NotFound => FileErrorKind::NotFound,
        ErrorCategory::PermissionDenied | ErrorCategory::OutsideView => FileErrorKind::PermissionDenied,
        ErrorCategory::InvalidInput | ErrorCategory::NotRegular | ErrorCategory::TooMany => FileErrorKind::InvalidInput,
        ErrorCategory::Symlink => FileErrorKind::Symlink,
        ErrorCategory::TooLarge => FileErrorKind::TooLarge,
        ErrorCategory::EtagMismatch => FileErrorKind::Changed,
        ErrorCategory::Busy => FileErrorKind::Busy,
        ErrorCategory::AlreadyExists => FileErrorKind::AlreadyExists,
        ErrorCategory::IsADirectory => FileErrorKind::IsADirectory,
        ErrorCategory::NotADirectory => FileErrorKind::NotADirectory,
        ErrorCategory::DirectoryNotEmpty => FileErrorKind::NotEmpty,
        ErrorCategory::StorageFull => FileErrorKind::Full,
        ErrorCategory::Unsupported => FileErrorKind::Unsupported,
        ErrorCategory::Cancelled | ErrorCategory::Other => FileErrorKind::Other,
    };
    FileError::new(operation, &error.path, kind, error.kind.to_string())
}

#[cfg(test)]
mod tests {
    use parking_lot::Condvar;

    use super::*;

    #[tokio::test]
    async fn operations_on_paths_share_a_bounded_number_of_threads() {
        let files = LocalFiles::new();
        // How many operations run now, and the most so far.
        let running = Arc::new((Mutex::new((0, 0)), Condvar::new()));
        let operations = (0..2 * JOBS).map(|_| {
            let running = Arc::clone(&running);
            let count = move |_: &View, _: &Path, _: &Cancel| {
                let (counts, changed) = &*running;
                let mut counts = counts.lock();
                counts.0 += 1;
                counts.1 = counts.1.max(counts.0);
                changed.notify_all();
                // Each operation waits until as many run as may run.
                changed.wait_while(&mut counts, |counts| counts.1 < JOBS);
                counts.0 -= 1;
                Ok(())
            };
            files.run("count", Path::new("/"), count)
        });
        futures_util::future::try_join_all(operations).await.expect("count");
        assert_eq!(*running.0.lock(), (0, JOBS));
    }
}
