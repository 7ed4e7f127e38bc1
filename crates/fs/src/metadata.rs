//! What is known of a file: type, size, times, and a word for its state.
//!
//! An *etag* changes whenever the bytes of a file do. It is made of the file's identity, size and times. Times have the grain of the
//! kernel's clock, so that two changes of one tick could look the same; of a file that was changed so recently the etag has a
//! hash of the bytes, too.

use std::{
    fs::File,
    hash::{DefaultHasher, Hasher},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps},
    io::Errno,
    time::ClockId,
};

use crate::{Cancel, Links, Result, Trouble, View, error::On, view::proc_path};

/// Changes that lie closer together than this may carry the same time: the coarsest tick of a kernel, doubled.
const TICK_NS: i128 = 20_000_000;

/// Bytes of a file that are read for the sake of its etag; times alone speak for what is larger.
const HASHED_BYTES: u64 = 1 << 20;

/// The state that `if_match` names for a file that is not there.
pub const ABSENT: &str = "absent";

/// A moment, to the nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment {
    /// Whole seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after them.
    pub nanos: u32,
}

impl Moment {
    /// Milliseconds since 1970, rounded down.
    #[must_use]
    pub fn millis(self) -> i64 {
        self.seconds.saturating_mul(1000).saturating_add(i64::from(self.nanos / 1_000_000))
    }

    fn nanoseconds(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanos)
    }
}

/// What something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A device.
    Device,
}

impl Type {
    /// What to call it in an error.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Directory => "a directory",
            Self::Symlink => "a symbolic link",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::Device => "a device",
        }
    }

    pub(crate) fn of(file_type: FileType) -> Self {
        match file_type {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            _ => Self::Device,
        }
    }
}

/// What is known of one file, directory or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: Type,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Names that it has.
    pub links: u64,
    /// When its bytes were changed last.
    pub modified: Moment,
    /// When it was made, where the file system knows.
    pub created: Option<Moment>,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The user it belongs to.
    pub uid: u32,
    /// The group it belongs to.
    pub gid: u32,
    pub(crate) changed: Moment,
    /// Bytes that it takes up on its disk.
    pub(crate) stored: u64,
}

impl Stat {
    /// Whether it is known to have no holes.
    pub(crate) fn is_dense(&self) -> bool {
        self.stored >= self.size
    }

    /// Device and inode: the same for every path that leads to it.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// When its inode was changed last: on creation, on every write, chmod, rename and on every new hard link.
    #[must_use]
    pub fn changed(&self) -> Moment {
        self.changed
    }

    /// Of what a descriptor stands for.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, Trouble> {
        Self::at(fd, Path::new(""), AtFlags::EMPTY_PATH)
    }

    /// Of an entry of a directory; a link is not followed.
    pub fn entry(dir: BorrowedFd<'_>, name: impl AsRef<Path>) -> Result<Self, Trouble> {
        Self::at(dir, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn at(dir: BorrowedFd<'_>, name: &Path, flags: AtFlags) -> Result<Self, Trouble> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(dir, name, flags | AtFlags::NO_AUTOMOUNT, wanted)?;
        Ok(Self::from(&found))
    }

    /// Whether both stand for the same file.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl From<&Statx> for Stat {
    fn from(found: &Statx) -> Self {
        let moment = |at: rustix::fs::StatxTimestamp| Moment { seconds: at.tv_sec, nanos: at.tv_nsec };
        let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        Self {
            kind: Type::of(FileType::from_raw_mode(u32::from(found.stx_mode))),
            size: found.stx_size,
            mode: u32::from(found.stx_mode) & 0o7777,
            links: u64::from(found.stx_nlink),
            modified: moment(found.stx_mtime),
            created: has_birth.then(|| moment(found.stx_btime)),
            device: (u64::from(found.stx_dev_major) << 32) | u64::from(found.stx_dev_minor),
            inode: found.stx_ino,
            uid: found.stx_uid,
            gid: found.stx_gid,
            changed: moment(found.stx_ctime),
            stored: found.stx_blocks.saturating_mul(512),
        }
    }
}

/// What [`metadata`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// What the path leads to, or the link itself where that was asked for.
    pub stat: Stat,
    /// Whether the path itself is a link.
    pub is_symlink: bool,
    /// The state of a regular file.
    pub etag: Option<String>,
    /// Where the link leads, if it is described itself.
    pub link_target: Option<Vec<u8>>,
}

/// Describes what a path leads to; with `of_link` a link at its end itself.
pub fn metadata(view: &View, path: &Path, links: Links, of_link: bool) -> Result<Metadata> {
    describe(view, path, links, of_link).on("look at", path)
}

fn describe(view: &View, path: &Path, links: Links, of_link: bool) -> Result<Metadata, Trouble> {
    let itself = view.open(path, links, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    let stat = Stat::of(itself.as_fd())?;
    if stat.kind != Type::Symlink {
        let etag = (stat.kind == Type::File).then(|| etag_of_path(view, path, links, &stat)).transpose()?;
        return Ok(Metadata { stat, is_symlink: false, etag, link_target: None });
    }
    if of_link {
        let target = rustix::fs::readlinkat(itself.as_fd(), "", Vec::new())?.into_bytes();
        return Ok(Metadata { stat, is_symlink: true, etag: None, link_target: Some(target) });
    }
    let target = view.locate(path, links)?;
    let stat = Stat::of(target.as_fd())?;
    let etag = (stat.kind == Type::File).then(|| etag_of_path(view, path, links, &stat)).transpose()?;
    Ok(Metadata { stat, is_symlink: true, etag, link_target: None })
}

/// The etag of a file that is only located so far. One that may not be read has none of its bytes in it.
fn etag_of_path(view: &View, path: &Path, links: Links, stat: &Stat) -> Result<String, Trouble> {
    if !is_recent(stat) || stat.size > HASHED_BYTES {
        return Ok(base(stat));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    match view.open(path, links, flags, Mode::empty()) {
        Ok(fd) => {
            let file = File::from(fd);
            // What was opened may be another file by now; then it is described as it was located.
            if Stat::of(file.as_fd())? == *stat { etag(&file, stat) } else { Ok(base(stat)) }
        }
        Err(_) => Ok(base(stat)),
    }
}

/// The word for the state that an open file is in, described by `stat`.
pub(crate) fn etag(file: &File, stat: &Stat) -> Result<String, Trouble> {
    if !is_recent(stat) || stat.size > HASHED_BYTES {
        return Ok(base(stat));
    }
    Ok(format!("{}-{:016x}", base(stat), hash(file)?))
}

/// Whether an etag of an earlier look fits the state that a file is in now.
pub(crate) fn matches(file: &File, stat: &Stat, expected: &str) -> Result<bool, Trouble> {
    let Some(rest) = expected.strip_prefix(&base(stat)) else { return Ok(false) };
    match rest.strip_prefix('-') {
        None => Ok(rest.is_empty()),
        Some(hashed) => Ok(stat.size <= HASHED_BYTES && format!("{:016x}", hash(file)?) == hashed),
    }
}

fn base(stat: &Stat) -> String {
    format!(
        "{:x}.{:x}.{:x}.{:x}.{:x}",
        stat.device,
        stat.inode,
        stat.size,
        stat.modified.nanoseconds(),
        stat.changed.nanoseconds()
    )
}

fn is_recent(stat: &Stat) -> bool {
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    let now = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    // A clock that was set back makes every file recent, which costs a hash and nothing else.
    now - stat.changed.nanoseconds() < TICK_NS
}

/// The uid that files of this thread are made with: the kernel's fsuid, which a caller may have set apart from the effective uid.
pub(crate) fn file_uid() -> u32 {
    // `Uid:` has the real, effective, saved and file system uid.
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let uid = line.and_then(|ids| ids.split_whitespace().nth(3)).and_then(|uid| uid.parse().ok());
    uid.unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

/// Against accidents, not against enemies: whoever can write the file needs no collision.
fn hash(file: &File) -> Result<u64, Trouble> {
    let mut hasher = DefaultHasher::new();
    let (mut buffer, mut at) = (vec![0; 64 << 10], 0);
    while at <= HASHED_BYTES {
        match file.read_at(&mut buffer, at) {
            Ok(0) => break,
            Ok(read) => {
                hasher.write(&buffer[..read]);
                at += read as u64;
            }
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            // A file that may be written and not read has no bytes to show.
            Err(error) if error.raw_os_error() == Some(Errno::BADF.raw_os_error()) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(hasher.finish())
}

/// Changes permission bits and the time of modification of what a path leads to; what is `None` stays.
pub fn set_metadata(
    view: &View,
    path: &Path,
    links: Links,
    of_link: bool,
    (mode, modified): (Option<u32>, Option<Moment>),
) -> Result<()> {
    let change = || -> Result<(), Trouble> {
        let flags = if of_link { OFlags::PATH | OFlags::NOFOLLOW } else { OFlags::PATH };
        let fd = view.open(path, links, flags, Mode::empty())?;
        if let Some(mode) = mode {
            if Stat::of(fd.as_fd())?.kind == Type::Symlink {
                return Err(Trouble::InvalidInput("a symbolic link has no mode of its own"));
            }
            rustix::fs::chmodat(CWD, proc_path(fd.as_fd()), permissions(mode)?, AtFlags::empty())?;
        }
        if let Some(modified) = modified {
            rustix::fs::utimensat(fd.as_fd(), "", &times(modified)?, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    };
    change().on("change", path)
}

/// The bits of a mode that a request may set.
pub(crate) fn permissions(mode: u32) -> Result<Mode, Trouble> {
    if mode > 0o7777 {
        return Err(Trouble::InvalidInput("a mode has twelve bits, up to 0o7777"));
    }
    Ok(Mode::from_raw_mode(mode))
}

/// The times to set for a file that was modified then; when it was read last stays.
pub(crate) fn times(modified: Moment) -> Result<Timestamps, Trouble> {
    if modified.nanos >= 1_000_000_000 {
        return Err(Trouble::InvalidInput("nanoseconds go up to 999,999,999"));
    }
    let untouched = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let last_modification = Timespec { tv_sec: modified.seconds, tv_nsec: i64::from(modified.nanos) };
    Ok(Timestamps { last_access: untouched, last_modification })
}

/// The path that something has when all links are resolved.
pub fn canonicalize(view: &View, path: &Path, cancel: &Cancel) -> Result<std::path::PathBuf> {
    let resolve = || -> Result<_, Trouble> {
        cancel.check()?;
        let fd = view.locate(path, Links::Follow)?;
        crate::view::real_path(fd.as_fd())
    };
    resolve().on("resolve", path)
}
