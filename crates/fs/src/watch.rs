//! Watches a directory or a single file for changes with inotify. Changes are collected per path until the caller takes them. If there are
//! too many, or if the kernel lost events, *overflow* is reported instead, and the caller must examine everything again.
//!
//! ```text
//! inotify ▶ Watch::run (its own thread) ▶ PendingChanges: one entry per path, bounded ▶ PendingChanges::take, on request
//! ```
//!
//! No fd of a watched directory is kept open, because the kernel reports the removal of a directory only when it is not open. To add a
//! watch, a directory is opened from the root without following links, and the root must still be the same directory.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    ops::ControlFlow,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    fs::{
        OFlags, fstat,
        inotify::{self, ReadFlags},
    },
    io::Errno,
};

use crate::{
    ErrorKind, FileKind, Result, Stat,
    error::attempt,
    patterns::Patterns,
    scan::{Scan, ScanAction, ScanEntry, ScanFilter, is_kernel_file_system, open_below, open_root},
    stop::Stop,
    view::{Links, View, proc_path, real_path},
};

/// Maximum number of changed paths that wait to be taken. Beyond it they are dropped and overflow is reported.
pub const CHANGES: usize = 16_384;

/// Maximum total bytes of the changed paths that wait.
const CHANGE_BYTES: usize = 4 << 20;

/// Maximum number of levels below the root that are watched.
const DEPTH: usize = 128;

/// Maximum number of directory entries that one scan for directories examines.
const ENTRIES: u64 = 1_000_000;

/// The inotify events of a watched directory.
const EVENTS: inotify::WatchFlags = inotify::WatchFlags::CREATE
    .union(inotify::WatchFlags::DELETE)
    .union(inotify::WatchFlags::MODIFY)
    .union(inotify::WatchFlags::CLOSE_WRITE)
    .union(inotify::WatchFlags::ATTRIB)
    .union(inotify::WatchFlags::MOVE)
    .union(inotify::WatchFlags::DELETE_SELF)
    .union(inotify::WatchFlags::MOVE_SELF)
    .union(inotify::WatchFlags::ONLYDIR)
    .union(inotify::WatchFlags::EXCL_UNLINK);

/// Options of a watch.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    /// Watch the directories below the root too.
    pub recursive: bool,
    /// Include names that begin with a dot, and everything below them.
    pub hidden: bool,
    /// Exclude paths that match one of these patterns, and everything below them.
    pub exclude: Patterns,
    /// Maximum number of directories to watch.
    pub max_directories: usize,
}

/// How a path changed since its last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The path exists now. It is new, or it replaced something else.
    Created,
    /// The content or the attributes changed, or the path was replaced.
    Modified,
    /// The path does not exist any longer.
    Removed,
}

/// A change of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    pub kind: ChangeKind,
    /// The path is a directory, or was one when it was removed.
    pub is_directory: bool,
}

/// Why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnd {
    /// The root was removed, moved or unmounted.
    RootRemoved,
    /// Reading events from inotify failed.
    Failed,
}

/// Result of `PendingChanges::take`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeBatch {
    pub changes: Vec<Change>,
    /// Changes were lost. The caller must examine everything again.
    pub overflow: bool,
    /// More changes are ready.
    pub more: bool,
    /// Number of directories that are not watched because of a limit or an error. A limit that cut a scan short counts
    /// as one directory.
    pub unwatched: u64,
    /// The watch has ended. No changes follow.
    pub end: Option<WatchEnd>,
}

/// Changes that wait to be taken.
#[derive(Debug, Default)]
pub struct PendingChanges {
    state: Mutex<PendingState>,
}

#[derive(Debug, Default)]
struct PendingState {
    waiting: BTreeMap<PathBuf, (ChangeKind, bool)>,
    bytes: usize,
    overflow: bool,
    unwatched: u64,
    end: Option<WatchEnd>,
}

impl PendingChanges {
    /// Takes up to `most` changes. Overflow is reported once. The end is reported by every call after the last change.
    #[must_use]
    pub fn take(&self, most: usize) -> ChangeBatch {
        let mut state = self.state.lock();
        let mut changes = Vec::new();
        while changes.len() < most
            && let Some((path, (kind, is_directory))) = state.waiting.pop_first()
        {
            state.bytes -= path.as_os_str().len();
            changes.push(Change { path, kind, is_directory });
        }
        let more = !state.waiting.is_empty();
        let end = if more { None } else { state.end };
        ChangeBatch { changes, overflow: std::mem::take(&mut state.overflow), more, unwatched: state.unwatched, end }
    }

    /// Whether there is nothing to take.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && !state.overflow && state.end.is_none()
    }

    /// Whether the watch has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.lock().end.is_some()
    }

    fn record(&self, path: PathBuf, kind: ChangeKind, is_directory: bool) {
        let mut state = self.state.lock();
        if let Some(known) = state.waiting.get_mut(&path) {
            *known = (merge_changes(known.0, kind), is_directory);
            return;
        }
        state.bytes += path.as_os_str().len();
        state.waiting.insert(path, (kind, is_directory));
        if state.waiting.len() > CHANGES || state.bytes > CHANGE_BYTES {
            state.drop_all();
        }
    }

    /// Like [`ChangeBatch::unwatched`].
    #[must_use]
    pub fn unwatched(&self) -> u64 {
        self.state.lock().unwatched
    }

    fn add_unwatched(&self, count: u64) {
        self.state.lock().unwatched += count;
    }

    /// Ends the watch, unless it has ended already.
    pub fn end(&self, end: WatchEnd) {
        self.state.lock().end.get_or_insert(end);
    }
}

impl PendingState {
    /// Events were lost, so a partial list would mislead: clear it and report overflow.
    fn drop_all(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
        self.overflow = true;
    }
}

/// Combines two changes of one path.
fn merge_changes(first: ChangeKind, then: ChangeKind) -> ChangeKind {
    match (first, then) {
        (ChangeKind::Removed, ChangeKind::Created | ChangeKind::Modified) => ChangeKind::Modified,
        (ChangeKind::Created, ChangeKind::Modified | ChangeKind::Created) => ChangeKind::Created,
        (_, then) => then,
    }
}

/// Ends a [`Watch::run`] from another thread.
#[derive(Debug)]
pub struct WatchStopper {
    event: OwnedFd,
}

impl WatchStopper {
    pub fn new() -> io::Result<Self> {
        Ok(Self { event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Ends the watch. Further calls have no effect.
    pub fn end(&self) {
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).ok(); // EAGAIN: the counter is full, so the end is signalled.
    }
}

/// A watched root.
#[derive(Debug)]
pub struct Watch {
    inotify: OwnedFd,
    options: WatchOptions,
    /// The watched directory, as it appears in reported paths.
    reported_root: PathBuf,
    /// The watched directory with links resolved.
    root: PathBuf,
    /// Device and inode of the watched directory.
    identity: (u64, u64),
    /// Set if the root is a file: its name in the watched directory, and the path to report.
    single_file: Option<(OsString, PathBuf)>,
    /// Watched directories by inotify watch descriptor, as paths relative to the root.
    directories: HashMap<i32, PathBuf>,
}

impl Watch {
    /// Starts watching. Changes from now on are delivered to `changes` by [`run`](Self::run).
    pub fn new(view: &View, path: &Path, options: WatchOptions, changes: &PendingChanges) -> Result<Self> {
        attempt("watch", path, || Self::start(view, path, options, changes))
    }

    fn start(view: &View, path: &Path, options: WatchOptions, changes: &PendingChanges) -> Result<Self, ErrorKind> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let (mut dir, kind) = open_root(view, path)?;
        let mut reported_root = path.to_owned();
        let mut root = real_path(dir.as_fd())?;
        let mut single_file = None;
        if is_kernel_file_system(dir.as_fd()) {
            return Err(ErrorKind::Unsupported("the kernel reports no changes on this file system"));
        }
        if kind != FileKind::Directory {
            // Files are often replaced rather than written. Watching the directory reports both.
            let (Some(parent), Some(name)) = (root.parent(), root.file_name()) else {
                return Err(ErrorKind::InvalidInput("it has no parent directory"));
            };
            single_file = Some((name.to_owned(), path.to_owned()));
            dir = view.open_directory(parent, Links::Refuse)?;
            reported_root = parent.to_owned();
            root = parent.to_owned();
        }
        let identity = Stat::of(dir.as_fd())?.identity();
        let mut watch =
            Self { inotify, options, reported_root, root, identity, single_file, directories: HashMap::new() };
        watch.watch(dir.as_fd(), PathBuf::new())?;
        if watch.is_recursive() {
            watch.watch_below(view, dir, Path::new(""), changes, false);
        }
        Ok(watch)
    }

    /// Number of watched directories.
    #[must_use]
    pub fn directories(&self) -> usize {
        self.directories.len()
    }

    /// Delivers changes until the root is gone or `stopper` ends the watch. Calls `notify` after every batch.
    pub fn run(mut self, view: &View, changes: &PendingChanges, stopper: &WatchStopper, notify: &dyn Fn()) {
        let mut buffer = vec![MaybeUninit::uninit(); 64 << 10];
        loop {
            let mut ready = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&stopper.event, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) if !ready[1].revents().is_empty() => return,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => changes.end(WatchEnd::Failed),
            }
            self.read_events(view, &mut buffer, changes);
            notify();
            if changes.is_over() {
                return;
            }
        }
    }

    /// Reads and handles the pending events.
    fn read_events(&mut self, view: &View, buffer: &mut [MaybeUninit<u8>], changes: &PendingChanges) {
        let mut events = Vec::new();
        let mut reader = inotify::Reader::new(&self.inotify, buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
                    events.push(InotifyEvent { wd: event.wd(), flags: event.events(), name });
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(_) => return changes.end(WatchEnd::Failed),
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        for event in events {
            self.handle_event(view, event, changes);
            if changes.is_over() {
                return;
            }
        }
    }

    fn handle_event(&mut self, view: &View, event: InotifyEvent, changes: &PendingChanges) {
        let InotifyEvent { wd, flags, name } = event;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            changes.state.lock().drop_all();
            return self.rescan(view, changes);
        }
        let Some(dir) = self.directories.get(&wd).cloned() else { return };
        let is_root = dir.as_os_str().is_empty();
        let is_removed = flags.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT);
        if is_removed {
            self.directories.remove(&wd);
        }
        if is_root && (is_removed || flags.contains(ReadFlags::MOVE_SELF)) {
            return changes.end(WatchEnd::RootRemoved);
        }
        let Some(name) = name else { return };
        let relative = dir.join(&name);
        let is_left_out = match &self.single_file {
            Some((file_name, _)) => *file_name != name,
            None => self.is_hidden(&name) || self.options.exclude.is_match(&relative),
        };
        if is_left_out {
            return;
        }
        let is_directory = flags.contains(ReadFlags::ISDIR);
        let kind = if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            ChangeKind::Created
        } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            ChangeKind::Removed
        } else {
            ChangeKind::Modified
        };
        let reported =
            self.single_file.as_ref().map_or_else(|| self.reported_root.join(&relative), |(_, path)| path.clone());
        changes.record(reported, kind, is_directory);
        if is_directory && self.is_recursive() {
            match kind {
                ChangeKind::Created => self.watch_new_directory(view, &relative, changes),
                ChangeKind::Removed if flags.contains(ReadFlags::MOVED_FROM) => self.forget_below(&relative),
                ChangeKind::Removed | ChangeKind::Modified => {}
            }
        }
    }

    /// Handles a new directory. Entries that were created in it before it was watched are reported too.
    fn watch_new_directory(&mut self, view: &View, relative: &Path, changes: &PendingChanges) {
        match self.open(view, relative) {
            Ok(dir) => match self.watch(dir.as_fd(), relative.to_owned()) {
                Ok(()) => self.watch_below(view, dir, relative, changes, true),
                Err(_) => changes.add_unwatched(1),
            },
            Err(OpenError::RootIsAnother) => changes.end(WatchEnd::RootRemoved),
            // The directory is gone again, or the view refuses it.
            Err(OpenError::Unreachable) => {}
        }
    }

    /// Called after the kernel lost events: finds directories that were created in the meantime.
    fn rescan(&mut self, view: &View, changes: &PendingChanges) {
        if !self.is_recursive() {
            return;
        }
        match self.open(view, Path::new("")) {
            Ok(dir) => self.watch_below(view, dir, Path::new(""), changes, false),
            Err(_) => changes.end(WatchEnd::RootRemoved),
        }
    }

    /// Watches every directory below one that is already watched. With `report_existing`, everything found there is reported as created.
    fn watch_below(
        &mut self,
        view: &View,
        dir: OwnedFd,
        relative: &Path,
        changes: &PendingChanges,
        report_existing: bool,
    ) {
        let filter = ScanFilter {
            hidden: self.options.hidden,
            ignore_rules: false,
            rules_above: false,
            include: Patterns::default(),
            exclude: Patterns::default(),
            max_depth: DEPTH,
            max_entries: ENTRIES,
        };
        let stop = Stop::new();
        let base = self.reported_root.join(relative);
        let Ok(scan) = Scan::new(view, dir, &base, &filter, &stop) else { return };
        let summary = scan.run(|entry, _| {
            let path = relative.join(entry.relative);
            if self.options.exclude.is_match(&path) {
                return ControlFlow::Continue(ScanAction::Pass);
            }
            if report_existing {
                changes.record(self.reported_root.join(&path), ChangeKind::Created, entry.kind == FileKind::Directory);
            }
            // Add the watch before listing the directory. An entry created in between is then reported twice rather than missed.
            let enters = entry.kind == FileKind::Directory && self.watch_entry(view, entry, path, changes);
            ControlFlow::Continue(if enters { ScanAction::Enter } else { ScanAction::Pass })
        });
        // For each limit that the scan hit, and for each error, there may be directories that are not watched.
        changes.add_unwatched(u64::try_from(summary.cuts.len()).unwrap_or(u64::MAX) + summary.error_count);
    }

    fn watch_entry(&mut self, view: &View, entry: &ScanEntry<'_>, path: PathBuf, changes: &PendingChanges) -> bool {
        if self.directories.len() >= self.options.max_directories {
            changes.add_unwatched(1);
            return false;
        }
        // If the open fails, let the scan enter the directory: it fails there as well and records the error.
        let Ok(dir) = open_below(entry.parent, entry.name, OFlags::DIRECTORY) else { return true };
        // The same checks as in `Scan::descend`: what the view hides is not watched.
        if fstat(&dir).is_ok_and(|stat| view.is_cover(stat.st_dev)) || view.check_guard(dir.as_fd()).is_err() {
            return false;
        }
        let watched = self.watch(dir.as_fd(), path);
        changes.add_unwatched(u64::from(watched.is_err()));
        watched.is_ok()
    }

    /// Watches one directory through its fd, because its name may lead elsewhere by now.
    fn watch(&mut self, dir: BorrowedFd<'_>, relative: PathBuf) -> Result<(), ErrorKind> {
        let wd = inotify::add_watch(&self.inotify, proc_path(dir), EVENTS)?;
        self.directories.insert(wd, relative);
        Ok(())
    }

    /// Removes the watches of a directory that was moved away, and of everything below it.
    fn forget_below(&mut self, relative: &Path) {
        let gone: Vec<i32> =
            self.directories.iter().filter(|(_, path)| path.starts_with(relative)).map(|(wd, _)| *wd).collect();
        for wd in gone {
            self.directories.remove(&wd);
            inotify::remove_watch(&self.inotify, wd).ok(); // The kernel may have removed the watch already.
        }
    }

    fn is_recursive(&self) -> bool {
        self.options.recursive && self.single_file.is_none()
    }

    fn is_hidden(&self, name: &OsStr) -> bool {
        !self.options.hidden && name.as_bytes().starts_with(b".")
    }

    /// Opens a directory below the root. The root must still be the same directory.
    fn open(&self, view: &View, relative: &Path) -> Result<OwnedFd, OpenError> {
        let mut dir = view.open_directory(&self.root, Links::Refuse).map_err(|_| OpenError::RootIsAnother)?;
        if !Stat::of(dir.as_fd()).is_ok_and(|stat| stat.identity() == self.identity) {
            return Err(OpenError::RootIsAnother);
        }
        for name in relative {
            dir = open_below(dir.as_fd(), name, OFlags::DIRECTORY).map_err(|_| OpenError::Unreachable)?;
        }
        view.check_guard(dir.as_fd()).map_err(|_| OpenError::Unreachable)?;
        Ok(dir)
    }
}

/// One inotify event.
struct InotifyEvent {
    wd: i32,
    flags: ReadFlags,
    name: Option<OsString>,
}

/// Why a directory could not be opened.
#[derive(Debug)]
enum OpenError {
    RootIsAnother,
    Unreachable,
}
