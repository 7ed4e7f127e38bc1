//! Scans a directory tree with limits. Search, glob and watch use it; it decides which entries they see.
//!
//! Every directory is opened relative to the fd of its parent, without following links, so that concurrent renames cannot lead the scan out
//! of the tree. Links are reported but never followed, so loops cannot occur. Names are visited in byte order. An entry that disappears
//! during the scan, or is no longer a directory when it is entered, is skipped. Other errors of directories below the root are recorded.

use std::{
    ffi::{OsStr, OsString},
    io,
    ops::ControlFlow,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    vec,
};

use rustix::{
    fs::{CWD, Dir, OFlags, fstat, fstatfs},
    io::Errno,
};

use crate::{
    ErrorKind, FileKind, Stat,
    directory::kind_of,
    ignore_rules::IgnoreRules,
    patterns::Patterns,
    stop::{Stop, StopReason},
    view::{Links, View, open_at, proc_path, real_path},
};

/// Maximum number of errors that are kept. Further errors are only counted.
pub const ERRORS: usize = 100;

/// Maximum depth of any scan. Every level holds an open fd.
pub const MAX_DEPTH: usize = 256;

/// Magic numbers of the kernel's own file systems. Their files are not content, and reading some of them blocks or has side effects.
const KERNEL_FILE_SYSTEMS: &[u64] = &[
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x4249_4e4d, // binfmt_misc
];

/// Which part of a tree to scan, and how much of it.
#[derive(Debug, Clone)]
pub struct ScanFilter {
    /// Include names that begin with a dot.
    pub hidden: bool,
    /// Apply ignore files, and skip `.git`.
    pub ignore_rules: bool,
    /// Also apply the ignore files above the root, if the root is inside a git repository. Must be false for a caller that may not read
    /// there.
    pub rules_above: bool,
    /// Visit only files that match one of these patterns. Empty: all files.
    pub include: Patterns,
    /// Skip files and directories that match one of these patterns.
    pub exclude: Patterns,
    /// Visit only entries at most this many levels below the root; 0 counts as 1. `MAX_DEPTH` also applies.
    pub max_depth: usize,
    /// Maximum number of directory entries to examine.
    pub max_entries: u64,
}

/// A limit that cut a scan short, so that the result may be incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScanCut {
    Cancelled,
    /// The deadline passed.
    Time,
    Depth,
    Entries,
    Results,
    /// The results reached their maximum size in bytes.
    Bytes,
}

impl From<StopReason> for ScanCut {
    fn from(stopped: StopReason) -> Self {
        match stopped {
            StopReason::Cancelled => Self::Cancelled,
            StopReason::Time => Self::Time,
        }
    }
}

/// Summary of a scan.
#[derive(Debug, Default)]
pub struct ScanSummary {
    /// Number of directories read.
    pub directories: u64,
    /// Number of entries examined, before any rule was applied.
    pub entries: u64,
    /// Number of directories of the kernel's own file systems, which are not entered. A search adds the FIFOs, sockets
    /// and devices that it does not read.
    pub special: u64,
    /// The first errors, each with its path.
    pub errors: Vec<(PathBuf, io::Error)>,
    /// Number of all errors.
    pub error_count: u64,
    /// The limits that cut the scan short, each once, sorted.
    pub cuts: Vec<ScanCut>,
}

impl ScanSummary {
    /// Records that a limit was reached.
    pub fn record_cut(&mut self, cut: ScanCut) {
        if let Err(at) = self.cuts.binary_search(&cut) {
            self.cuts.insert(at, cut);
        }
    }

    /// Records an error. `NotFound` is ignored: the entry disappeared during the scan.
    pub fn record_error(&mut self, path: &Path, error: impl Into<io::Error>) {
        let error = error.into();
        if error.kind() == io::ErrorKind::NotFound {
            return;
        }
        self.error_count += 1;
        if self.errors.len() < ERRORS {
            self.errors.push((path.to_owned(), error));
        }
    }
}

/// An entry that is being visited.
#[derive(Debug)]
pub struct ScanEntry<'a> {
    /// The directory that contains the entry.
    pub parent: BorrowedFd<'a>,
    pub name: &'a OsStr,
    /// Path relative to the root.
    pub relative: &'a Path,
    /// Type of the entry. Links are not followed.
    pub kind: FileKind,
}

/// How the scan continues after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanAction {
    /// Continue, and enter the entry if it is a directory.
    Enter,
    /// Continue without entering it.
    Pass,
}

/// A directory that is being scanned.
struct ScanLevel {
    dir: OwnedFd,
    device: u64,
    relative: PathBuf,
    rules: IgnoreRules,
    rest: vec::IntoIter<(OsString, FileKind)>,
}

/// A running scan.
pub struct Scan<'a> {
    view: &'a View,
    filter: &'a ScanFilter,
    stop: &'a Stop,
    /// The root as it appears in reported paths.
    path: &'a Path,
    /// The path of the root with links resolved, which the ignore rules need.
    real: PathBuf,
    above: Vec<IgnoreRules>,
    levels: Vec<ScanLevel>,
    pub summary: ScanSummary,
}

impl<'a> Scan<'a> {
    /// Starts at an open directory of a view. `path` is its name in reported paths.
    pub fn new(
        view: &'a View,
        root: OwnedFd,
        path: &'a Path,
        filter: &'a ScanFilter,
        stop: &'a Stop,
    ) -> Result<Self, ErrorKind> {
        let stat = fstat(&root)?;
        let real = real_path(root.as_fd()).unwrap_or_else(|_| path.to_owned());
        let above = if filter.ignore_rules && filter.rules_above { IgnoreRules::above(&real) } else { Vec::new() };
        let mut scan =
            Self { view, filter, stop, path, real, above, levels: Vec::new(), summary: ScanSummary::default() };
        if is_kernel_file_system(root.as_fd()) {
            scan.summary.special += 1;
        } else {
            scan.enter(root, stat.st_dev, PathBuf::new())?;
        }
        Ok(scan)
    }

    /// Visits everything below the root that passes the filter. `Break` ends the scan at once.
    pub fn run(
        mut self,
        mut visit: impl FnMut(&ScanEntry<'_>, &mut ScanSummary) -> ControlFlow<(), ScanAction>,
    ) -> ScanSummary {
        while let Some(level) = self.levels.last_mut() {
            if let Some(stopped) = self.stop.check() {
                self.summary.record_cut(stopped.into());
                break;
            }
            let Some((name, kind)) = level.rest.next() else {
                self.levels.pop();
                continue;
            };
            let relative = level.relative.join(&name);
            if self.is_excluded(&name, &relative, kind) {
                continue;
            }
            let Some(level) = self.levels.last() else { break };
            let entry = ScanEntry { parent: level.dir.as_fd(), name: &name, relative: &relative, kind };
            match visit(&entry, &mut self.summary) {
                ControlFlow::Break(()) => break,
                ControlFlow::Continue(ScanAction::Enter) if kind == FileKind::Directory => {
                    self.descend(&name, relative)
                }
                ControlFlow::Continue(_) => {}
            }
        }
        self.summary
    }

    fn is_excluded(&self, name: &OsStr, relative: &Path, kind: FileKind) -> bool {
        let filter = self.filter;
        let is_directory = kind == FileKind::Directory;
        (!filter.hidden && name.as_bytes().starts_with(b"."))
            || filter.exclude.is_match(relative)
            || (!is_directory && !filter.include.is_empty() && !filter.include.is_match(relative))
            || (filter.ignore_rules && (name == ".git" || self.is_ignored(relative, is_directory)))
    }

    fn is_ignored(&self, relative: &Path, is_directory: bool) -> bool {
        let path = self.real.join(relative);
        // From the deepest directory upwards: the first directory with a matching rule decides.
        let mut rules = self.above.iter().chain(self.levels.iter().map(|level| &level.rules)).rev();
        rules.find_map(|rules| rules.decide(&path, is_directory)).unwrap_or(false)
    }

    fn descend(&mut self, name: &OsStr, relative: PathBuf) {
        let Some(level) = self.levels.last() else { return };
        if self.levels.len() >= self.filter.max_depth.min(MAX_DEPTH) {
            return self.summary.record_cut(ScanCut::Depth);
        }
        let device = level.device;
        let entered = open_below(level.dir.as_fd(), name, OFlags::DIRECTORY).map_err(io::Error::from).and_then(|dir| {
            let stat = fstat(&dir)?;
            // A directory on a cover is invisible: skip it as if it did not exist.
            if self.view.is_cover(stat.st_dev) {
                return Ok(());
            }
            self.view.check_guard(dir.as_fd()).map_err(refusal_error)?;
            if stat.st_dev != device && is_kernel_file_system(dir.as_fd()) {
                self.summary.special += 1;
                return Ok(());
            }
            self.enter(dir, stat.st_dev, relative.clone())
        });
        if let Err(error) = entered {
            // The entry has become a link or a file since it was listed.
            if error.kind() != io::ErrorKind::NotADirectory && Errno::from_io_error(&error) != Some(Errno::LOOP) {
                self.summary.record_error(&self.path.join(&relative), error);
            }
        }
    }

    fn enter(&mut self, dir: OwnedFd, device: u64, relative: PathBuf) -> io::Result<()> {
        let mut rules = IgnoreRules::default();
        if self.filter.ignore_rules {
            rules = IgnoreRules::of(dir.as_fd(), &self.real.join(&relative));
        }
        let names = self.list(dir.as_fd())?;
        self.summary.directories += 1;
        self.levels.push(ScanLevel { dir, device, relative, rules, rest: names.into_iter() });
        Ok(())
    }

    /// The names of a directory, sorted, up to the limit of entries.
    fn list(&mut self, dir: BorrowedFd<'_>) -> io::Result<Vec<(OsString, FileKind)>> {
        let mut names = Vec::new();
        // `Dir::read_from` opens its own fd, so the position of `dir` does not change.
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            if self.summary.entries >= self.filter.max_entries {
                self.summary.record_cut(ScanCut::Entries);
                break;
            }
            // Check at every 1024th name, so that a huge directory does not delay the end of the scan. `run` checks
            // again and records the reason.
            if names.len() % 1024 == 1023 && self.stop.check().is_some() {
                break;
            }
            self.summary.entries += 1;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if let Some(kind) = kind_of(dir, name, entry.file_type()) {
                names.push((name.to_owned(), kind));
            }
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }
}

/// The error that a scan records for an object that the view refuses.
pub(crate) fn refusal_error(reason: ErrorKind) -> io::Error {
    match reason {
        ErrorKind::Os(error) => error,
        other => io::Error::new(io::ErrorKind::PermissionDenied, other.to_string()),
    }
}

/// Opens the root of a scan. It must be a directory or a regular file; this is checked before anything is opened.
pub(crate) fn open_root(view: &View, path: &Path) -> Result<(OwnedFd, FileKind), ErrorKind> {
    let located = view.locate(path, Links::Follow)?;
    let kind = Stat::of(located.as_fd())?.kind;
    if !matches!(kind, FileKind::Directory | FileKind::File) {
        return Err(ErrorKind::NotRegular(kind.noun()));
    }
    // Open through the located fd: the path may lead elsewhere by now.
    Ok((open_at(CWD, proc_path(located.as_fd()), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?, kind))
}

/// Opens a name in a directory for reading, without following a link and without waiting for the writer of a FIFO.
pub(crate) fn open_below(dir: BorrowedFd<'_>, name: &OsStr, more: OFlags) -> rustix::io::Result<OwnedFd> {
    open_at(dir, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | more)
}

pub(crate) fn is_kernel_file_system(dir: BorrowedFd<'_>) -> bool {
    fstatfs(dir).is_ok_and(|stat| u64::try_from(stat.f_type).is_ok_and(|magic| KERNEL_FILE_SYSTEMS.contains(&magic)))
}
