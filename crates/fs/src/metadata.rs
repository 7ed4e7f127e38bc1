//! Metadata of a file: type, size, times, and the etag that identifies its state.
//!
//! An *etag* changes whenever the bytes of a file change. It consists of the file's identity, size and times. The resolution of the times
//! is the tick of the kernel's clock, so two changes within one tick could have the same times. The etag of a file that changed very
//! recently therefore also contains a hash of its bytes, unless the file is large: then the second of two changes within one tick may go
//! unnoticed.

use std::{
    fs::File,
    hash::{DefaultHasher, Hasher},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps},
    io::Errno,
    time::ClockId,
};

use crate::{
    Cancel, ErrorKind, Links, Result, View,
    error::attempt,
    read::read_at,
    view::{proc_path, real_path},
};

/// Two changes within this time may have the same timestamp: twice the coarsest kernel tick.
const TICK_NS: i128 = 20_000_000;

/// Largest file whose bytes are hashed for its etag. The etag of a larger file consists of identity, size and times only.
const HASHED_BYTES: u64 = 1 << 20;

/// Value of `if_match` that requires that the file does not exist.
pub const ABSENT: &str = "absent";

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment {
    /// Whole seconds since the Unix epoch.
    pub seconds: i64,
    /// Additional nanoseconds.
    pub nanos: u32,
}

impl Moment {
    /// Milliseconds since the Unix epoch, rounded down.
    #[must_use]
    pub fn millis(self) -> i64 {
        self.seconds.saturating_mul(1000).saturating_add(i64::from(self.nanos / 1_000_000))
    }

    fn nanoseconds(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanos)
    }
}

/// Type of a file system object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
}

impl FileKind {
    /// The name of the type in error messages.
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
            // Character and block devices.
            _ => Self::Device,
        }
    }
}

/// Metadata of one file, directory or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub links: u64,
    /// Modification time (mtime).
    pub modified: Moment,
    /// Creation time, if the file system records it.
    pub created: Option<Moment>,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub uid: u32,
    pub gid: u32,
    /// Change time (ctime): updated on creation, on every write, chmod and rename, and on every new hard link.
    pub changed: Moment,
    /// Bytes allocated on disk.
    pub(crate) stored: u64,
}

impl Stat {
    /// Whether the allocated blocks could hold the whole file. Then it normally has no holes.
    pub(crate) fn is_dense(&self) -> bool {
        self.stored >= self.size
    }

    /// Device and inode. They are the same for every path that leads to the object.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Metadata of an open object.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, ErrorKind> {
        Self::at(fd, Path::new(""), AtFlags::EMPTY_PATH)
    }

    /// Metadata of a directory entry. A link is not followed.
    pub fn entry(dir: BorrowedFd<'_>, name: impl AsRef<Path>) -> Result<Self, ErrorKind> {
        Self::at(dir, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn at(dir: BorrowedFd<'_>, name: &Path, flags: AtFlags) -> Result<Self, ErrorKind> {
        let requested = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(dir, name, flags | AtFlags::NO_AUTOMOUNT, requested)?;
        Ok(Self::from(&found))
    }

    /// Whether both describe the same file.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl From<&Statx> for Stat {
    fn from(found: &Statx) -> Self {
        let moment = |at: rustix::fs::StatxTimestamp| Moment { seconds: at.tv_sec, nanos: at.tv_nsec };
        let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        Self {
            kind: FileKind::of(FileType::from_raw_mode(u32::from(found.stx_mode))),
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

/// Result of [`metadata`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Metadata of the object that the path leads to, or of the link itself if the caller asked for it.
    pub stat: Stat,
    /// Whether the path itself is a link.
    pub is_symlink: bool,
    /// Only for a regular file.
    pub etag: Option<String>,
    /// Target of the link, if the link itself is described.
    pub link_target: Option<Vec<u8>>,
}

/// Describes the object that a path leads to. If the path ends with a link, `of_link` describes the link instead of its target.
pub fn metadata(view: &View, path: &Path, links: Links, of_link: bool) -> Result<Metadata> {
    attempt("look at", path, || {
        let itself = view.open(path, links, OFlags::PATH | OFlags::NOFOLLOW)?;
        let mut stat = Stat::of(itself.as_fd())?;
        let is_symlink = stat.kind == FileKind::Symlink;
        if is_symlink && of_link {
            let target = rustix::fs::readlinkat(itself.as_fd(), "", Vec::new())?.into_bytes();
            return Ok(Metadata { stat, is_symlink, etag: None, link_target: Some(target) });
        }
        if is_symlink {
            stat = Stat::of(view.locate(path, links)?.as_fd())?;
        }
        let etag = (stat.kind == FileKind::File).then(|| etag_of_path(view, path, links, &stat)).transpose()?;
        Ok(Metadata { stat, is_symlink, etag, link_target: None })
    })
}

/// The etag of a file that was located but not opened. If the file cannot be read, the etag contains no hash.
fn etag_of_path(view: &View, path: &Path, links: Links, stat: &Stat) -> Result<String, ErrorKind> {
    if needs_hash(stat)
        && let Ok(fd) = view.open(path, links, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
    {
        let file = File::from(fd);
        // The name may refer to another file by now. Then return the etag of the located file, without a hash.
        if Stat::of(file.as_fd())? == *stat {
            return etag(&file, stat);
        }
    }
    Ok(base(stat))
}

/// The etag of an open file whose metadata is `stat`.
pub(crate) fn etag(file: &File, stat: &Stat) -> Result<String, ErrorKind> {
    if needs_hash(stat) { Ok(format!("{}-{:016x}", base(stat), hash(file)?)) } else { Ok(base(stat)) }
}

/// Whether an etag from an earlier time matches the current state of a file.
pub(crate) fn matches(file: &File, stat: &Stat, expected: &str) -> Result<bool, ErrorKind> {
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

/// Whether the file has changed so recently that another change could have the same times.
fn needs_hash(stat: &Stat) -> bool {
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    let now = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    // If the clock was set back, a file with a change time in the future counts as recent. That only costs a hash.
    stat.size <= HASHED_BYTES && now - stat.changed.nanoseconds() < TICK_NS
}

/// The uid that new files of this thread get: the fsuid, which a caller may have set to another value than the effective uid.
pub(crate) fn file_uid() -> u32 {
    // `Uid:` lists the real, effective, saved and file system uid.
    let uid = thread_status("Uid:").and_then(|uids| uids.split_whitespace().nth(3)?.parse().ok());
    uid.unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

/// A field of this thread's status in procfs.
pub(crate) fn thread_status(field: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(field)).map(str::to_owned)
}

/// The hash protects against accidents, not against attackers: an attacker who can write the file needs no collision.
fn hash(file: &File) -> Result<u64, ErrorKind> {
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    while at <= HASHED_BYTES {
        match read_at(file, &mut buffer, at) {
            // The file has ended, or the fd is open for writing only. In the second case the hash covers no bytes.
            Ok(0) | Err(Errno::BADF) => break,
            Ok(read) => {
                hasher.write(&buffer[..read]);
                at += read as u64;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(hasher.finish())
}

/// A change of metadata. A value of `None` is not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataChange {
    /// The permission bits.
    pub mode: Option<u32>,
    pub modified: Option<Moment>,
    /// Change a link itself, not the file that it leads to.
    pub of_link: bool,
}

/// Changes the permission bits and the modification time.
pub fn set_metadata(view: &View, path: &Path, links: Links, to: MetadataChange) -> Result<()> {
    attempt("change", path, || {
        let flags = if to.of_link { OFlags::PATH | OFlags::NOFOLLOW } else { OFlags::PATH };
        let fd = view.open(path, links, flags)?;
        if let Some(mode) = to.mode {
            if Stat::of(fd.as_fd())?.kind == FileKind::Symlink {
                return Err(ErrorKind::InvalidInput("a symbolic link has no mode of its own"));
            }
            rustix::fs::chmodat(CWD, proc_path(fd.as_fd()), permissions(mode)?, AtFlags::empty())?;
        }
        if let Some(modified) = to.modified {
            rustix::fs::utimensat(fd.as_fd(), "", &times(modified)?, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    })
}

/// Checks that a mode has only bits that a request may set.
pub(crate) fn permissions(mode: u32) -> Result<Mode, ErrorKind> {
    if mode > 0o7777 {
        return Err(ErrorKind::InvalidInput("a mode must be at most 0o7777"));
    }
    Ok(Mode::from_raw_mode(mode))
}

/// The timestamps for `futimens` and `utimensat`: a new modification time, and an unchanged access time.
pub(crate) fn times(modified: Moment) -> Result<Timestamps, ErrorKind> {
    if modified.nanos >= 1_000_000_000 {
        return Err(ErrorKind::InvalidInput("the nanoseconds must be at most 999,999,999"));
    }
    let untouched = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let last_modification = Timespec { tv_sec: modified.seconds, tv_nsec: i64::from(modified.nanos) };
    Ok(Timestamps { last_access: untouched, last_modification })
}

/// The path of an object with all links resolved.
pub fn canonicalize(view: &View, path: &Path, cancel: &Cancel) -> Result<PathBuf> {
    attempt("resolve", path, || {
        cancel.check()?;
        real_path(view.locate(path, Links::Follow)?.as_fd())
    })
}
