//! Watching real directories: reported changes, overflow, and the end of a watch.
#![allow(clippy::disallowed_methods, reason = "tests wait in real time, with a deadline")]

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use exec_server_fs::{
    ErrorCategory, Patterns, View,
    watch::{CHANGES, Change, ChangeBatch, ChangeKind, PendingChanges, Watch, WatchEnd, WatchOptions, WatchStopper},
};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(20);

fn options() -> WatchOptions {
    WatchOptions { recursive: true, hidden: true, exclude: Patterns::default(), max_directories: 10_000 }
}

/// A watch that runs on its own thread.
struct Watched {
    changes: Arc<PendingChanges>,
    bell: Arc<(Mutex<u64>, Condvar)>,
    stopper: Arc<WatchStopper>,
    thread: Option<thread::JoinHandle<()>>,
    directories: usize,
}

fn start(path: &Path, options: WatchOptions) -> (Watch, Arc<PendingChanges>) {
    let changes = Arc::new(PendingChanges::default());
    (Watch::new(&View::everything(), path, options, &changes).expect("it can be watched"), changes)
}

fn watch(path: &Path, options: WatchOptions) -> Watched {
    let (watch, changes) = start(path, options);
    run(watch, changes)
}

fn run(watch: Watch, changes: Arc<PendingChanges>) -> Watched {
    let directories = watch.directories();
    let (bell, stopper) =
        (Arc::new((Mutex::new(0), Condvar::new())), Arc::new(WatchStopper::new().expect("a descriptor is free")));
    let thread = thread::spawn({
        let (changes, bell, stopper) = (changes.clone(), bell.clone(), stopper.clone());
        move || {
            watch.run(&View::everything(), &changes, &stopper, &|| {
                *bell.0.lock().expect("no panic under the lock") += 1;
                bell.1.notify_all();
            });
        }
    });
    Watched { changes, bell, stopper, thread: Some(thread), directories }
}

impl Watched {
    /// Takes changes until `enough` is true for all of them together.
    fn until(&self, enough: impl Fn(&ChangeBatch) -> bool) -> ChangeBatch {
        let end = Instant::now() + LONG;
        let mut all = ChangeBatch::default();
        let mut known = BTreeMap::new();
        loop {
            let taken = self.changes.take(usize::MAX);
            known.extend(taken.changes.into_iter().map(|change| (change.path.clone(), change)));
            all.changes = known.values().cloned().collect();
            all.overflow |= taken.overflow;
            (all.unwatched, all.end) = (taken.unwatched, taken.end);
            if enough(&all) {
                return all;
            }
            assert!(Instant::now() < end, "not told within {LONG:?}: {:?}", &all.changes[..all.changes.len().min(5)]);
            let rung = self.bell.0.lock().expect("no panic under the lock");
            drop(self.bell.1.wait_timeout(rung, Duration::from_millis(20)).expect("no panic under the lock"));
        }
    }

    fn until_reported(&self, path: &Path, kind: ChangeKind) -> Change {
        let taken = self.until(|taken| taken.changes.iter().any(|change| change.path == path && change.kind == kind));
        taken.changes.into_iter().find(|change| change.path == path).expect("it was told")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.stopper.end();
        self.thread.take().expect("joined once").join().expect("a watch does not panic");
    }
}

/// Maximum number of events that the kernel queues for a reader.
fn kernel_queue() -> usize {
    fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .expect("inotify is there")
        .trim()
        .parse()
        .expect("a number")
}

#[test]
fn created_changed_and_removed_files_are_reported() {
    let dir = TempDir::new().unwrap();
    let watched = watch(dir.path(), options());
    let path = dir.path().join(OsStr::from_bytes(b"odd\xff\nname"));
    fs::write(&path, "1").unwrap();
    assert!(!watched.until_reported(&path, ChangeKind::Created).is_directory);
    fs::write(&path, "2").unwrap();
    watched.until_reported(&path, ChangeKind::Modified);
    let other = dir.path().join("other");
    fs::rename(&path, &other).unwrap();
    let both = watched.until(|taken| taken.changes.len() >= 2);
    let kind = |path: &PathBuf| both.changes.iter().find(|change| change.path == *path).map(|change| change.kind);
    assert_eq!((kind(&path), kind(&other)), (Some(ChangeKind::Removed), Some(ChangeKind::Created)));
    fs::remove_file(&other).unwrap();
    watched.until_reported(&other, ChangeKind::Removed);
}

#[test]
fn new_directories_are_watched_and_their_entries_reported() {
    let dir = TempDir::new().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    let watched = watch(dir.path(), options());
    assert_eq!(watched.directories, 3);
    for round in 0..50 {
        let deep = dir.path().join(format!("n{round}/m/o"));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "x").unwrap();
        watched.until_reported(&deep.join("file"), ChangeKind::Created);
    }
    // A directory that is moved within the root is watched under its new name only.
    let moved = dir.path().join("moved");
    fs::rename(dir.path().join("n0"), &moved).unwrap();
    watched.until_reported(&moved, ChangeKind::Created);
    fs::write(moved.join("m/o/later"), "x").unwrap();
    watched.until_reported(&moved.join("m/o/later"), ChangeKind::Created);
    // A directory that is moved out of the root is no longer watched.
    let outside = TempDir::new().unwrap();
    fs::rename(&moved, outside.path().join("out")).unwrap();
    watched.until_reported(&moved, ChangeKind::Removed);
    fs::write(outside.path().join("out/m/o/unseen"), "x").unwrap();
    let last = dir.path().join("last");
    fs::write(&last, "x").unwrap();
    let reported = watched.until(|taken| taken.changes.iter().any(|change| change.path == last));
    assert!(reported.changes.iter().all(|change| !change.path.ends_with("unseen")), "{reported:?}");
}

#[test]
fn hidden_excluded_and_nested_names_are_left_out_on_request() {
    let dir = TempDir::new().unwrap();
    for sub in [".git", "target/deep", "src"] {
        fs::create_dir_all(dir.path().join(sub)).unwrap();
    }
    let exclude = Patterns::anywhere(&["target".into()]).unwrap();
    let watched = watch(dir.path(), WatchOptions { hidden: false, exclude, ..options() });
    assert_eq!(watched.directories, 2);
    for name in [".git/x", "target/x", "target/deep/x", ".hidden", "src/x"] {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    let reported = watched.until(|taken| !taken.changes.is_empty());
    assert!(reported.changes.iter().all(|change| change.path == dir.path().join("src/x")), "{reported:?}");
    let flat = watch(dir.path(), WatchOptions { recursive: false, ..options() });
    assert_eq!(flat.directories, 1);
}

#[test]
fn an_overflow_of_the_kernel_queue_is_reported_and_the_watch_continues() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("known")).unwrap();
    let (watch, changes) = start(dir.path(), options());
    // No thread reads the events yet, so the kernel's queue overflows.
    let queue = kernel_queue();
    let (one, other) = (dir.path().join("known/a"), dir.path().join("known/b"));
    fs::write(&one, "x").unwrap();
    for _ in 0..queue / 2 + 10 {
        fs::rename(&one, &other).unwrap();
        fs::rename(&other, &one).unwrap();
    }
    // The event of this directory is lost too. The watch has to find the directory by itself.
    fs::create_dir_all(dir.path().join("lost/deep")).unwrap();
    let watched = run(watch, changes);
    watched.until(|taken| taken.overflow);
    let later = dir.path().join("lost/deep/later");
    // The rescan comes after the overflow is reported, so write until the change is reported.
    let end = Instant::now() + LONG;
    loop {
        fs::write(&later, "x").unwrap();
        let taken = watched.changes.take(usize::MAX);
        if taken.changes.iter().any(|change| change.path == later) {
            break;
        }
        assert!(Instant::now() < end);
        thread::yield_now();
    }
}

#[test]
fn changes_that_are_not_taken_overflow_instead_of_using_memory() {
    let dir = TempDir::new().unwrap();
    let watched = watch(dir.path(), options());
    let queue = kernel_queue();
    // Each file causes at least one event. So either more changes were read than fit, or the kernel's queue overflowed.
    for at in 0..CHANGES + queue + 10 {
        fs::write(dir.path().join(at.to_string()), "").unwrap();
    }
    let taken = watched.until(|taken| taken.overflow);
    assert!(taken.changes.len() <= CHANGES);
}

#[test]
fn a_root_that_is_removed_or_moved_ends_the_watch() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("sub")).unwrap();
    let watched = watch(&root, options());
    fs::remove_dir_all(&root).unwrap();
    let reported = watched.until(|taken| taken.end.is_some());
    assert_eq!(reported.end, Some(WatchEnd::RootRemoved));
    assert!(
        reported.changes.iter().any(|change| change.path == root.join("sub") && change.kind == ChangeKind::Removed)
    );
    fs::create_dir(&root).unwrap();
    let watched = watch(&root, options());
    fs::rename(&root, dir.path().join("elsewhere")).unwrap();
    watched.until(|taken| taken.end == Some(WatchEnd::RootRemoved));
}

#[test]
fn a_file_is_watched_through_every_replacement() {
    let dir = TempDir::new().unwrap();
    let (file, beside) = (dir.path().join("file"), dir.path().join("beside"));
    fs::write(&file, "1").unwrap();
    let watched = watch(&file, options());
    for round in 0..3 {
        fs::write(&beside, round.to_string()).unwrap();
        fs::rename(&beside, &file).unwrap();
        watched.until_reported(&file, ChangeKind::Created);
    }
    fs::remove_file(&file).unwrap();
    let reported = watched.until(|taken| taken.changes.iter().any(|change| change.kind == ChangeKind::Removed));
    assert!(reported.changes.iter().all(|change| change.path == file), "{reported:?}");
}

#[test]
fn directories_beyond_the_limit_are_counted() {
    let dir = TempDir::new().unwrap();
    for at in 0..10 {
        fs::create_dir(dir.path().join(at.to_string())).unwrap();
    }
    let watched = watch(dir.path(), WatchOptions { max_directories: 4, ..options() });
    assert_eq!((watched.directories, watched.changes.take(1).unwatched), (4, 7));
}

#[test]
fn a_watch_leaves_no_descriptor_open() {
    let count = || fs::read_dir("/proc/self/fd").unwrap().count();
    let dir = TempDir::new().unwrap();
    fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
    let before = count();
    for _ in 0..200 {
        drop(watch(dir.path(), options()));
    }
    // Tests in parallel threads open and close fds too.
    assert!(count() < before + 100, "{before} became {}", count());
}

#[test]
fn a_root_behind_a_link_is_reported_by_its_given_name() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("real", &link).unwrap();
    let watched = watch(&link, options());
    fs::create_dir(link.join("sub")).unwrap();
    fs::write(link.join("sub/file"), "x").unwrap();
    watched.until_reported(&link.join("sub/file"), ChangeKind::Created);
    // A root outside the view is refused.
    let refused =
        Watch::new(&View::beneath([dir.path().join("real")]), dir.path(), options(), &PendingChanges::default());
    assert_eq!(refused.unwrap_err().category(), ErrorCategory::OutsideView);
    let on_proc = Watch::new(&View::everything(), Path::new("/proc/self"), options(), &PendingChanges::default());
    assert_eq!(on_proc.unwrap_err().category(), ErrorCategory::Unsupported);
}
