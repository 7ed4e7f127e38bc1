//! How often a copy waits for a distant file system. Every answer of this file system takes one unit of the paused clock, so the duration of
//! a copy is the length of its longest chain of requests that wait for each other.

#![cfg(feature = "local")]

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use tempfile::TempDir;

use crate::prelude::*;
use exec_server_client::{
    cp::{self, CopyEndpoint, CopyReport, NoObserver},
    fs::{
        BLOCK, BLOCKS_IN_FLIGHT, Block, CommitOptions, CreateOptions, DirectoryEntry, FileFuture, FileSystem, Links,
        ListPage, LocalFiles, Metadata, Moment, ReadAt, Walk, WalkOptions, WriteAt, WriteOptions, Written,
    },
};

/// The time between a request and its answer.
const ROUND_TRIP: Duration = Duration::from_secs(1);

/// Counts the requests that wait for an answer.
#[derive(Debug, Default)]
struct Requests {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Requests {
    /// Answers after one round trip.
    async fn answer<T>(&self, work: impl Future<Output = T>) -> T {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        // A unit of the paused clock.
        tokio::time::timeout(ROUND_TRIP, std::future::pending::<()>()).await.ok();
        let done = work.await;
        self.now.fetch_sub(1, Ordering::Relaxed);
        done
    }
}

/// Files of this machine that answer late.
#[derive(Debug, Default)]
struct DistantFiles {
    files: LocalFiles,
    requests: Arc<Requests>,
}

/// An open file, or a draft, that answers late.
struct Distant<T: ?Sized> {
    file: Box<T>,
    requests: Arc<Requests>,
}

impl DistantFiles {
    fn answer<'a, T: Send + 'a>(&'a self, work: FileFuture<'a, T>) -> FileFuture<'a, T> {
        Box::pin(self.requests.answer(work))
    }
}

impl FileSystem for DistantFiles {
    fn machine(&self) -> String {
        "far away".to_owned()
    }

    fn read_file<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, bytes::Bytes> {
        self.answer(self.files.read_file(path, links))
    }

    fn read_within<'a>(&'a self, path: &'a Path, most: u64, links: Links) -> FileFuture<'a, bytes::Bytes> {
        self.answer(self.files.read_within(path, most, links))
    }

    fn write_file<'a>(&'a self, path: &'a Path, bytes: bytes::Bytes, options: WriteOptions) -> FileFuture<'a, Written> {
        self.answer(self.files.write_file(path, bytes, options))
    }

    fn create_directory<'a>(
        &'a self,
        path: &'a Path,
        recursive: bool,
        links: Links,
        mode: Option<u32>,
    ) -> FileFuture<'a, ()> {
        self.answer(self.files.create_directory(path, recursive, links, mode))
    }

    fn metadata<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Metadata> {
        self.answer(self.files.metadata(path, links))
    }

    fn canonicalize<'a>(&'a self, path: &'a Path) -> FileFuture<'a, PathBuf> {
        self.answer(self.files.canonicalize(path))
    }

    fn read_directory<'a>(&'a self, path: &'a Path) -> FileFuture<'a, Vec<DirectoryEntry>> {
        self.answer(self.files.read_directory(path))
    }

    fn list<'a>(&'a self, path: &'a Path, after: Option<OsString>, links: Links) -> FileFuture<'a, ListPage> {
        self.answer(self.files.list(path, after, links))
    }

    fn walk<'a>(&'a self, path: &'a Path, options: WalkOptions) -> FileFuture<'a, Walk> {
        self.answer(self.files.walk(path, options))
    }

    fn remove<'a>(&'a self, path: &'a Path, recursive: bool, force: bool, links: Links) -> FileFuture<'a, ()> {
        self.answer(self.files.remove(path, recursive, force, links))
    }

    fn copy<'a>(&'a self, source: &'a Path, target: &'a Path, recursive: bool) -> FileFuture<'a, ()> {
        self.answer(self.files.copy(source, target, recursive))
    }

    fn symlink<'a>(&'a self, path: &'a Path, target: OsString, links: Links) -> FileFuture<'a, ()> {
        self.answer(self.files.symlink(path, target, links))
    }

    fn set_metadata<'a>(
        &'a self,
        path: &'a Path,
        links: Links,
        mode: Option<u32>,
        modified: Option<Moment>,
    ) -> FileFuture<'a, ()> {
        self.answer(self.files.set_metadata(path, links, mode, modified))
    }

    fn sweep<'a>(&'a self, _: &'a Path, _: Links) -> FileFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn open<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Box<dyn ReadAt>> {
        let requests = Arc::clone(&self.requests);
        Box::pin(async move {
            let file = requests.answer(self.files.open(path, links)).await?;
            Ok(Box::new(Distant { file, requests }) as Box<dyn ReadAt>)
        })
    }

    fn create<'a>(&'a self, path: &'a Path, options: CreateOptions) -> FileFuture<'a, Box<dyn WriteAt>> {
        let requests = Arc::clone(&self.requests);
        Box::pin(async move {
            let file = requests.answer(self.files.create(path, options)).await?;
            Ok(Box::new(Distant { file, requests }) as Box<dyn WriteAt>)
        })
    }
}

impl ReadAt for Distant<dyn ReadAt> {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn etag(&self) -> Option<&str> {
        self.file.etag()
    }

    fn read_at(&self, offset: u64, len: usize, holes: bool) -> FileFuture<'_, Block> {
        Box::pin(self.requests.answer(self.file.read_at(offset, len, holes)))
    }
}

impl WriteAt for Distant<dyn WriteAt> {
    fn found(&self) -> u64 {
        self.file.found()
    }

    fn write_at(&self, offset: u64, bytes: bytes::Bytes) -> FileFuture<'_, ()> {
        Box::pin(self.requests.answer(self.file.write_at(offset, bytes)))
    }

    fn commit(self: Box<Self>, options: CommitOptions) -> FileFuture<'static, Written> {
        Box::pin(async move { self.requests.answer(self.file.commit(options)).await })
    }

    fn discard(self: Box<Self>) -> FileFuture<'static, ()> {
        Box::pin(async move { self.requests.answer(self.file.discard()).await })
    }
}

/// What a copy has cost.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    round_trips: u64,
    most_requests: usize,
}

/// Copies `source` to `target`, both in `dir`, with one of them far away.
async fn copy(dir: &TempDir, source: &str, target: &str, is_upload: bool) -> (CopyReport, Cost) {
    let dir = dir.path().canonicalize().unwrap();
    let distant = DistantFiles::default();
    let requests = Arc::clone(&distant.requests);
    let (near, far): (Arc<dyn FileSystem>, Arc<dyn FileSystem>) = (Arc::new(LocalFiles::new()), Arc::new(distant));
    let (from, to) = if is_upload { (near, far) } else { (far, near) };
    let source = CopyEndpoint { files: from, path: dir.join(source) };
    let target = CopyEndpoint { files: to, path: dir.join(target) };
    let began = Instant::now();
    let report = cp::copy(&source, &target, true, &NoObserver).await.unwrap();
    let took = began.elapsed();
    assert_eq!(took.subsec_nanos() / 100_000_000, 0, "nothing else takes time: {took:?}");
    let cost = Cost { round_trips: took.as_secs(), most_requests: requests.most.load(Ordering::Relaxed) };
    (report, cost)
}

/// Creates a tree of 20 directories with 50 files each.
fn make_tree(dir: &TempDir) {
    for directory in 0..20 {
        let path = dir.path().join(format!("tree/d{directory}"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..50 {
            fs::write(path.join(format!("f{file}")), vec![b'x'; 4096]).unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_of_a_thousand_files_waits_for_a_distant_side_a_few_times_only() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir);
    let (report, up) = copy(&dir, "tree", "up", true).await;
    assert_eq!((report.files, report.directories, report.failed), (1000, 21, 0));
    // Resolve; look; mark, root, look, mark; directories; twice 512 files, and the checks of directories with the last of them; modes and
    // times; remove the mark.
    assert_eq!(up, Cost { round_trips: 11, most_requests: 512 });
    let (report, down) = copy(&dir, "tree", "down", false).await;
    assert_eq!((report.files, report.directories, report.failed), (1000, 21, 0));
    // Resolve; list the root; list the directories; twice 512 files.
    assert_eq!(down, Cost { round_trips: 5, most_requests: 512 });
}

#[tokio::test(start_paused = true)]
async fn the_depth_of_a_tree_costs_one_round_trip_for_each_level() {
    let dir = tempfile::tempdir().unwrap();
    let levels = ["tree/a", "tree/a/b", "tree/a/b/c"];
    fs::create_dir_all(dir.path().join("tree/a/b/c")).unwrap();
    for level in levels {
        fs::write(dir.path().join(level).join("f"), "x").unwrap();
    }
    // With the root, one file and one level less than above would take 8 and 3.
    assert_eq!(copy(&dir, "tree", "up", true).await.1.round_trips, 11 + levels.len() as u64 - 2);
    assert_eq!(copy(&dir, "tree", "down", false).await.1.round_trips, 5 + levels.len() as u64 - 2);
}

#[tokio::test(start_paused = true)]
async fn a_large_file_has_all_its_blocks_in_flight_at_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("large"), vec![7; 3 * BLOCKS_IN_FLIGHT * BLOCK]).unwrap();
    // Resolve; create; blocks; commit.
    let (_, up) = copy(&dir, "large", "up", true).await;
    assert_eq!(up, Cost { round_trips: 3 + 3, most_requests: BLOCKS_IN_FLIGHT });
    // Resolve; open; blocks.
    let (_, down) = copy(&dir, "large", "down", false).await;
    assert_eq!(down, Cost { round_trips: 2 + 3, most_requests: BLOCKS_IN_FLIGHT });
}

#[tokio::test(start_paused = true)]
async fn several_files_of_medium_size_are_copied_at_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    for file in 0..16 {
        fs::write(dir.path().join(format!("tree/f{file}")), vec![7; 5 * BLOCK]).unwrap();
    }
    // As for one file: create, blocks and commit for the files, and no directory to create. The check follows the files.
    assert_eq!(copy(&dir, "tree", "up", true).await.1.round_trips, 6 + 3 + 3);
    assert_eq!(copy(&dir, "tree", "down", false).await.1.round_trips, 2 + 2);
}
