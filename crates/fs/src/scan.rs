//! Goes through a tree, bounded: what search, glob and watch see of it is decided here.
//!
//! Every directory is opened below its parent's descriptor and without following a link, so that whoever moves things about meanwhile
//! leads nobody out of the tree. Links are seen and never followed, so that there are no loops. Names are visited in the order of
//! their bytes. What vanishes while it is looked at is not there; what cannot be looked at is told.

use std::{
    ffi::{CStr, OsStr, OsString},
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
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, fstatfs, openat, statat},
    io::Errno,
};

use crate::{
    Trouble,
    ignored::{self, Rules},
    patterns::Patterns,
    stop::{Stop, Stopped},
    view::{Links, View, proc_path, real_path},
};

/// Errors that are told one by one; the others are counted.
pub const ERRORS: usize = 100;

/// The depth that nobody goes beyond: every level holds a descriptor.
pub const MAX_DEPTH: usize = 256;

/// File systems of the kernel's own, whose files are no content; reading some of them waits or has effects.
const KERNEL_FILE_SYSTEMS: &[u64] = &[
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6270_6e65, // binfmt_misc and others of its family
];

/// What of a tree is looked at, and how much.
#[derive(Debug, Clone)]
pub struct Filter {
    /// Names that begin with a dot too.
    pub hidden: bool,
    /// Leave out what ignore files say, and `.git`.
    pub ignore_rules: bool,
    /// Ask ignore files above the root as well, where it is inside of a repository. Not for one who may not look there.
    pub rules_above: bool,
    /// Only files that one of these matches; all where there is none.
    pub include: Patterns,
    /// Neither files nor directories that one of these matches.
    pub exclude: Patterns,
    /// Levels below the root.
    pub max_depth: usize,
    /// Entries of directories in all.
    pub max_entries: u64,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            hidden: false,
            ignore_rules: true,
            rules_above: true,
            include: Patterns::default(),
            exclude: Patterns::default(),
            max_depth: 64,
            max_entries: 1_000_000,
        }
    }
}

/// A bound that was met, so that there may be more than was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// It was called off.
    Cancelled,
    /// Its time was over.
    Time,
    /// Something lies deeper.
    Depth,
    /// There are more entries.
    Entries,
    /// There are more results.
    Results,
    /// The results are as many bytes as they may be.
    Bytes,
}

impl From<Stopped> for Cut {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Cancelled => Self::Cancelled,
            Stopped::Time => Self::Time,
        }
    }
}

/// What a scan has seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// Directories that were read.
    pub directories: u64,
    /// Entries that were looked at, before any rule.
    pub entries: u64,
    /// FIFOs, sockets, devices, and directories of the kernel's own file systems.
    pub special: u64,
    /// The first things that could not be looked at.
    pub errors: Vec<(PathBuf, io::Error)>,
    /// All of them.
    pub error_count: u64,
    /// Why it ended early, each reason once, in order.
    pub cuts: Vec<Cut>,
}

impl Seen {
    /// Notes that a bound was met.
    pub fn cut(&mut self, cut: Cut) {
        if let Err(at) = self.cuts.binary_search(&cut) {
            self.cuts.insert(at, cut);
        }
    }

    /// Notes what could not be looked at. What is gone is no trouble: it is as if it had never been there.
    pub fn trouble(&mut self, path: &Path, error: impl Into<io::Error>) {
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

/// What an entry is, itself: links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, wherever it leads.
    Symlink,
    /// A FIFO, a socket or a device.
    Special,
}

/// One entry, while it is visited.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The directory it is in.
    pub parent: BorrowedFd<'a>,
    /// Its name there.
    pub name: &'a OsStr,
    /// Where it is below the root.
    pub relative: &'a Path,
    /// What it is.
    pub kind: EntryKind,
}

/// What to do after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Go on; into it, if it is a directory.
    Enter,
    /// Go on beside it.
    Pass,
}

/// A directory that is being gone through.
struct Level {
    dir: OwnedFd,
    device: u64,
    relative: PathBuf,
    rules: Rules,
    rest: vec::IntoIter<(OsString, EntryKind)>,
}

/// One scan: what it may see and what it has seen.
pub struct Scan<'a> {
    view: &'a View,
    filter: &'a Filter,
    stop: &'a Stop,
    /// What the root is called in what is told.
    path: &'a Path,
    /// The root without links, for rules.
    real: PathBuf,
    above: Vec<Rules>,
    levels: Vec<Level>,
    /// What was seen so far.
    pub seen: Seen,
}

impl<'a> Scan<'a> {
    /// Begins at a directory of a view that is open already. `path` names it in what is told.
    pub fn new(
        (view, root): (&'a View, OwnedFd),
        path: &'a Path,
        filter: &'a Filter,
        stop: &'a Stop,
    ) -> Result<Self, Trouble> {
        let stat = fstat(&root)?;
        let real = real_path(root.as_fd()).unwrap_or_else(|_| path.to_owned());
        let above = if filter.ignore_rules && filter.rules_above { Rules::above(&real) } else { Vec::new() };
        let mut scan = Self { view, filter, stop, path, real, above, levels: Vec::new(), seen: Seen::default() };
        if is_of_the_kernel(root.as_fd()) {
            scan.seen.special += 1;
        } else {
            scan.enter(root, stat.st_dev, PathBuf::new())?;
        }
        Ok(scan)
    }

    /// Visits everything below the root that the filter lets through. `Break` ends it at once.
    pub fn run(mut self, mut visit: impl FnMut(&Entry<'_>, &mut Seen) -> ControlFlow<(), Next>) -> Seen {
        while let Some(level) = self.levels.last_mut() {
            if let Some(stopped) = self.stop.check() {
                self.seen.cut(stopped.into());
                break;
            }
            let Some((name, kind)) = level.rest.next() else {
                self.levels.pop();
                continue;
            };
            let relative = level.relative.join(&name);
            if self.is_left_out(&name, &relative, kind) {
                continue;
            }
            let Some(level) = self.levels.last() else { break };
            let entry = Entry { parent: level.dir.as_fd(), name: &name, relative: &relative, kind };
            match visit(&entry, &mut self.seen) {
                ControlFlow::Break(()) => break,
                ControlFlow::Continue(Next::Enter) if kind == EntryKind::Directory => self.descend(&name, relative),
                ControlFlow::Continue(Next::Enter | Next::Pass) => {}
            }
        }
        self.seen
    }

    fn is_left_out(&self, name: &OsStr, relative: &Path, kind: EntryKind) -> bool {
        let filter = self.filter;
        let is_directory = kind == EntryKind::Directory;
        (!filter.hidden && name.as_bytes().starts_with(b"."))
            || filter.exclude.is_match(relative)
            || (!is_directory && !filter.include.is_empty() && !filter.include.is_match(relative))
            || (filter.ignore_rules && (name == ".git" || self.is_ignored(relative, is_directory)))
    }

    fn is_ignored(&self, relative: &Path, is_directory: bool) -> bool {
        let rules = self.above.iter().chain(self.levels.iter().map(|level| &level.rules));
        ignored::is_ignored(rules, &self.real.join(relative), is_directory)
    }

    fn descend(&mut self, name: &OsStr, relative: PathBuf) {
        let Some(level) = self.levels.last() else { return };
        if self.levels.len() >= self.filter.max_depth.min(MAX_DEPTH) {
            return self.seen.cut(Cut::Depth);
        }
        let device = level.device;
        let entered = open_below(level.dir.as_fd(), name, OFlags::DIRECTORY).map_err(io::Error::from).and_then(|dir| {
            let stat = fstat(&dir)?;
            if self.view.is_cover(stat.st_dev) {
                return Ok(());
            }
            self.view.admit(dir.as_fd()).map_err(refusal)?;
            if stat.st_dev != device && is_of_the_kernel(dir.as_fd()) {
                self.seen.special += 1;
                return Ok(());
            }
            self.enter(dir, stat.st_dev, relative.clone())
        });
        if let Err(error) = entered {
            // Became a link or a file since it was listed.
            if error.kind() != io::ErrorKind::NotADirectory && Errno::from_io_error(&error) != Some(Errno::LOOP) {
                self.seen.trouble(&self.path.join(&relative), error);
            }
        }
    }

    fn enter(&mut self, dir: OwnedFd, device: u64, relative: PathBuf) -> io::Result<()> {
        let rules = if self.filter.ignore_rules {
            Rules::of(dir.as_fd(), &self.real.join(&relative))
        } else {
            Rules::default()
        };
        let names = self.list(dir.as_fd())?;
        self.seen.directories += 1;
        self.levels.push(Level { dir, device, relative, rules, rest: names.into_iter() });
        Ok(())
    }

    /// The names of a directory, as many as there is room for, sorted.
    fn list(&mut self, dir: BorrowedFd<'_>) -> io::Result<Vec<(OsString, EntryKind)>> {
        let mut names = Vec::new();
        // A descriptor of its own: a listing moves the place that it is read at.
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            if self.seen.entries >= self.filter.max_entries {
                self.seen.cut(Cut::Entries);
                break;
            }
            if names.len() % 1024 == 1023 && self.stop.check().is_some() {
                break;
            }
            self.seen.entries += 1;
            if let Some(kind) = kind_of(dir, entry.file_name(), entry.file_type()) {
                names.push((OsStr::from_bytes(entry.file_name().to_bytes()).to_owned(), kind));
            }
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }
}

/// What a scan reports of an object that the view does not admit.
pub(crate) fn refusal(trouble: Trouble) -> io::Error {
    match trouble {
        Trouble::Os(error) => error,
        other => io::Error::new(io::ErrorKind::PermissionDenied, other.to_string()),
    }
}

/// Opens the beginning of a scan: a directory or a regular file, and nothing else, which is seen before anything is opened.
pub(crate) fn open_root(view: &View, path: &Path) -> Result<(OwnedFd, EntryKind), Trouble> {
    let located = view.locate(path, Links::Follow)?;
    let (kind, what) = match FileType::from_raw_mode(fstat(&located)?.st_mode) {
        FileType::Directory => (EntryKind::Directory, ""),
        FileType::RegularFile => (EntryKind::File, ""),
        FileType::Fifo => (EntryKind::Special, "a FIFO"),
        FileType::Socket => (EntryKind::Special, "a socket"),
        FileType::CharacterDevice | FileType::BlockDevice => (EntryKind::Special, "a device"),
        FileType::Symlink | FileType::Unknown => (EntryKind::Special, "of no known kind"),
    };
    if kind == EntryKind::Special {
        return Err(Trouble::NotRegular(what));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // By the descriptor: the name may lead elsewhere by now.
    Ok((openat(CWD, proc_path(located.as_fd()), flags, Mode::empty())?, kind))
}

/// Opens a name below a directory, to read, without following a link and without waiting for a FIFO's writer.
pub(crate) fn open_below(dir: BorrowedFd<'_>, name: &OsStr, more: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | more;
    openat(dir, name, flags, Mode::empty())
}

/// What a name is; some file systems do not say it with the name. None: it is gone.
fn kind_of(dir: BorrowedFd<'_>, name: &CStr, told: FileType) -> Option<EntryKind> {
    let kind = match told {
        FileType::Unknown => FileType::from_raw_mode(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_mode),
        known => known,
    };
    Some(match kind {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {
            EntryKind::Special
        }
    })
}

pub(crate) fn is_of_the_kernel(dir: BorrowedFd<'_>) -> bool {
    fstatfs(dir).is_ok_and(|stat| u64::try_from(stat.f_type).is_ok_and(|magic| KERNEL_FILE_SYSTEMS.contains(&magic)))
}
