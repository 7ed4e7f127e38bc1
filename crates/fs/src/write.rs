//! Writing: a whole file at once, or a draft of it block by block.
//!
//! Bytes go into a file without a name, in the directory of the target; it gets its name when all of it is there. So nobody sees
//! half of it, a full disk leaves the old file whole, and what is abandoned is gone with its descriptor, also when the program is
//! killed. For the moment in which it replaces another file, and from the beginning where the file system knows no files without
//! a name, it has one that begins with `.exec-server-`. Whoever has such a file holds a lock on it: see `left`.
//!
//! In place, and so not in one step, are written: a file with more than one name (the other names must see the change, as in the
//! reference), what is appended or written at an offset, and a file in a directory where nothing can be made.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, fs::FileExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags},
    io::Errno,
};

use crate::{
    Cancel, Links, Moment, Result, Stat, Trouble, View,
    error::On,
    in_place::{InPlace, finish_in_place, require_finish},
    left,
    metadata::{ABSENT, etag, file_uid, permissions, times},
    target::{Existing, FILE_END, Target, require_state},
    view::proc_path,
};

/// Bytes that are written between two looks at whether anybody still waits.
const STEP: usize = 1 << 20;

/// Entries of a directory that are looked at for what older drafts left.
const STALE_SEEN: usize = 100_000;

/// Names that are tried for a file that cannot be without one.
const NAME_TRIES: u32 = 8;

/// Names of attributes that are carried over to a new file, in bytes.
const ATTRIBUTES_BYTES: usize = 64 << 10;

/// Where the bytes of a write go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// They are the file.
    Whole,
    /// Behind what is there.
    End,
    /// Over what is there, from this byte on.
    Offset(u64),
}

/// What a write does beside writing.
#[derive(Debug, Clone, Default)]
pub struct Finish {
    /// Only if the file is in this state, or [`ABSENT`].
    pub if_match: Option<String>,
    /// Waits until it is on the disk.
    pub fsync: bool,
    /// Permission bits; else those of the file that is replaced, or what the umask leaves.
    pub mode: Option<u32>,
    /// Time of modification; else now.
    pub modified: Option<Moment>,
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Whether it happened in one step.
    pub atomic: bool,
    /// The state that the file is in now.
    pub etag: String,
    /// Bytes of the file now.
    pub size: u64,
}

/// Writes bytes to a file, which is made if it is not there. Its directory must be.
pub fn write(
    view: &View,
    path: &Path,
    links: Links,
    (place, bytes): (Place, &[u8]),
    (finish, cancel): (&Finish, &Cancel),
) -> Result<Written> {
    let write = || -> Result<Written, Trouble> {
        cancel.check()?;
        let target = Target::find(view, path, links)?;
        match place {
            Place::Whole => write_whole(&target, bytes, finish, cancel),
            Place::End | Place::Offset(_) => write_part(&target, place, bytes, finish),
        }
    };
    write().on("write", path)
}

fn write_whole(target: &Target, bytes: &[u8], finish: &Finish, cancel: &Cancel) -> Result<Written, Trouble> {
    // Before anything is written: whoever may not write the file learns it, and whoever comes too late.
    let existing = target.existing()?;
    require_state(existing.as_ref(), finish.if_match.as_deref())?;
    let in_place =
        |existing: &Existing| InPlace::begin(target, existing, finish, cancel).and_then(|turn| turn.write(bytes));
    if let Some(existing) = existing.as_ref().filter(|existing| existing.stat.links > 1) {
        return in_place(existing);
    }
    let scratch = match (Scratch::new(target, existing.as_ref()), &existing) {
        (Ok(scratch), _) => scratch,
        // Nothing can be made in the directory, but the file can be written.
        (Err(trouble), Some(existing)) if is_refused(&trouble) && !existing.is_busy => return in_place(existing),
        (Err(trouble), _) => return Err(trouble),
    };
    for (step, chunk) in bytes.chunks(STEP).enumerate() {
        cancel.check()?;
        scratch.file.write_all_at(chunk, (step * STEP) as u64)?;
    }
    scratch.publish(target, finish, cancel)
}

fn is_refused(trouble: &Trouble) -> bool {
    // Not so a full disk: it may have room for these bytes in place of the old ones, but then not in one step.
    [Errno::ACCESS, Errno::PERM, Errno::ROFS].into_iter().any(|errno| trouble.is(errno))
}

fn write_part(target: &Target, place: Place, bytes: &[u8], finish: &Finish) -> Result<Written, Trouble> {
    let _lock = target.lock();
    let (existing, is_new) = match target.existing()? {
        Some(existing) if existing.is_busy => return Err(Errno::TXTBSY.into()),
        Some(existing) => (existing, false),
        None => {
            require_state(None, finish.if_match.as_deref())?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::openat(&target.dir, &target.name, flags, Mode::from_raw_mode(0o666))?);
            let stat = Stat::of(file.as_fd())?;
            (Existing { file, stat, is_busy: false }, true)
        }
    };
    let _file_lock = existing.lock();
    if !is_new {
        require_state(Some(&existing), finish.if_match.as_deref())?;
    }
    require_finish(&existing, finish)?;
    match place {
        Place::Offset(offset) if i64::try_from(offset.saturating_add(bytes.len() as u64)).is_err() => {
            return Err(Trouble::InvalidInput("no file reaches that far"));
        }
        Place::Offset(offset) => existing.file.write_all_at(bytes, offset)?,
        Place::Whole | Place::End => append(&existing.file, bytes)?,
    }
    finish_in_place(&existing, finish)
}

/// The kernel finds the end for each write, so that others who append lose nothing.
fn append(file: &File, mut bytes: &[u8]) -> Result<(), Trouble> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::APPEND)?;
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

pub(crate) fn written(file: &File, atomic: bool) -> Result<Written, Trouble> {
    let stat = Stat::of(file.as_fd())?;
    Ok(Written { atomic, etag: etag(file, &stat)?, size: stat.size })
}

/// A file without its name yet.
#[derive(Debug)]
struct Scratch {
    file: File,
    /// The name that it has meanwhile, where it must have one.
    name: Option<OsString>,
    /// Stays when it is abandoned.
    is_kept: bool,
}

impl Scratch {
    /// An empty one beside the target, with the attributes of what it replaces.
    fn new(target: &Target, existing: Option<&Existing>) -> Result<Self, Trouble> {
        // Secret until it has the mode of what it replaces; a new file has what the umask leaves, from the beginning.
        let mode = Mode::from_raw_mode(if existing.is_some() { 0o600 } else { 0o666 });
        let unnamed = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let scratch = match rustix::fs::openat(&target.dir, ".", unnamed, mode) {
            Ok(fd) => Self { file: File::from(fd), name: None, is_kept: false },
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::named(target, mode)?,
            Err(errno) => return Err(errno.into()),
        };
        match existing.map_or(Ok(()), |existing| scratch.resemble(existing)) {
            Ok(()) => Ok(scratch),
            Err(trouble) => {
                scratch.discard(target);
                Err(trouble)
            }
        }
    }

    fn named(target: &Target, mode: Mode) -> Result<Self, Trouble> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..NAME_TRIES {
            let name = Target::random_name(FILE_END)?;
            let file = File::from(rustix::fs::openat(&target.dir, &name, flags, mode)?);
            // Whoever swept between these two steps holds the lock, or has taken the name away.
            if left::hold(&file) && Stat::of(file.as_fd())?.links > 0 {
                return Ok(Self { file, name: Some(name), is_kept: false });
            }
            rustix::fs::unlinkat(&target.dir, &name, AtFlags::empty()).ok(); // It may be gone already.
        }
        Err(Trouble::Busy("others hold every file that is made there"))
    }

    /// Takes over owner, mode and attributes. What cannot be taken over makes the caller write in place.
    fn resemble(&self, existing: &Existing) -> Result<(), Trouble> {
        let own = Stat::of(self.file.as_fd())?;
        if (own.uid, own.gid) != (existing.stat.uid, existing.stat.gid) {
            let owner = (Uid::from_raw(existing.stat.uid), Gid::from_raw(existing.stat.gid));
            rustix::fs::fchown(&self.file, Some(owner.0), Some(owner.1))?;
        }
        copy_attributes(&existing.file, &self.file)?;
        // Whoever may run it as its owner was trusted with the old bytes, not with these.
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(existing.stat.mode & 0o1777))?;
        Ok(())
    }

    /// Gives it its name.
    fn publish(mut self, target: &Target, finish: &Finish, cancel: &Cancel) -> Result<Written, Trouble> {
        let published = self.try_publish(target, finish, cancel);
        if published.is_err() {
            self.discard(target);
        }
        published
    }

    fn try_publish(&mut self, target: &Target, finish: &Finish, cancel: &Cancel) -> Result<Written, Trouble> {
        if let Some(mode) = finish.mode {
            rustix::fs::fchmod(&self.file, permissions(mode)?)?;
        }
        if let Some(modified) = finish.modified {
            rustix::fs::futimens(&self.file, &times(modified)?)?;
        }
        if finish.fsync {
            rustix::fs::fsync(&self.file)?;
        }
        let _lock = target.lock();
        // Under the lock: whoever was called off before another began does not come after it.
        cancel.check()?;
        if let Some(expected) = finish.if_match.as_deref() {
            require_state(target.existing()?.as_ref(), Some(expected))?;
        }
        if finish.if_match.as_deref() == Some(ABSENT) {
            self.take_free_name(target)?;
        } else {
            self.replace(target)?;
        }
        if finish.fsync {
            sync_directory(target)?;
        }
        written(&self.file, true)
    }

    /// Takes the name only if nobody has it, not even since a moment ago.
    fn take_free_name(&mut self, target: &Target) -> Result<(), Trouble> {
        let taken = match &self.name {
            Some(name) => {
                rustix::fs::renameat_with(&target.dir, name, &target.dir, &target.name, RenameFlags::NOREPLACE)
            }
            None => self.link(target, &target.name),
        };
        match taken {
            Ok(()) => {
                self.name = None;
                Ok(())
            }
            Err(Errno::EXIST) => Err(Trouble::EtagMismatch("it exists")),
            Err(errno) => Err(errno.into()),
        }
    }

    fn replace(&mut self, target: &Target) -> Result<(), Trouble> {
        if self.name.is_none() {
            // Where nothing is to be replaced there is no other name that a kill could leave.
            match self.link(target, &target.name) {
                Err(Errno::EXIST) => self.name = Some(self.link_aside(target)?),
                other => return Ok(other?),
            }
        }
        if let Some(name) = &self.name {
            rustix::fs::renameat(&target.dir, name, &target.dir, &target.name)?;
            self.name = None;
        }
        Ok(())
    }

    /// Gives it the name that it has for the moment before it replaces something.
    fn link_aside(&self, target: &Target) -> Result<OsString, Trouble> {
        // Nobody else has it as long as it has no name.
        left::hold(&self.file);
        let name = target.scratch_name();
        for _ in 0..2 {
            match self.link(target, &name) {
                Err(Errno::EXIST) if left::clear(target.dir.as_fd(), &name) => {}
                // Another program is about to replace the same file.
                Err(Errno::EXIST) => break,
                other => return Ok(other.map(|()| name)?),
            }
        }
        let name = Target::random_name(FILE_END)?;
        self.link(target, &name)?;
        Ok(name)
    }

    fn link(&self, target: &Target, name: &OsStr) -> Result<(), Errno> {
        rustix::fs::linkat(CWD, proc_path(self.file.as_fd()), &target.dir, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Takes its name away, if it has one. Bytes without a name go with their descriptor.
    fn discard(&self, target: &Target) {
        if let Some(name) = &self.name {
            // Somebody else may have cleared it away.
            rustix::fs::unlinkat(&target.dir, name, AtFlags::empty()).ok();
        }
    }
}

fn sync_directory(target: &Target) -> Result<(), Trouble> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // A directory that may be written and not listed cannot be synced either; the file was.
    match rustix::fs::openat(&target.dir, ".", flags, Mode::empty()) {
        Ok(dir) => Ok(rustix::fs::fsync(dir)?),
        Err(Errno::ACCESS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Carries access lists and other attributes over.
fn copy_attributes(from: &File, to: &File) -> Result<(), Trouble> {
    let mut names = vec![0_u8; ATTRIBUTES_BYTES];
    let len = match rustix::fs::flistxattr(from, &mut names) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        // Rights of the program that was there are not those of the bytes that come.
        if name == b"security.capability" {
            continue;
        }
        let mut value = vec![0_u8; ATTRIBUTES_BYTES];
        let len = match rustix::fs::fgetxattr(from, name, &mut value) {
            Ok(len) => len,
            Err(Errno::NODATA) => continue,
            Err(errno) => return Err(errno.into()),
        };
        match rustix::fs::fsetxattr(to, name, &value[..len], XattrFlags::empty()) {
            // Labels are the system's to give.
            Err(_) if name.starts_with(b"security.") || name.starts_with(b"trusted.") => {}
            other => other?,
        }
    }
    Ok(())
}

/// A file that is written block by block and seen by nobody before [`commit`](Draft::commit). Dropped without it, it leaves nothing behind,
/// unless it was made to be kept.
#[derive(Debug)]
pub struct Draft {
    target: Target,
    scratch: Option<Scratch>,
    path: PathBuf,
    is_half_done: bool,
}

impl Draft {
    /// Begins one for the file that a path leads to.
    ///
    /// With `keep`, what is written stays when the draft is dropped, and the next one for the same path and word goes on with it;
    /// how much is there is what [`size`](Self::size) says. Two at a time are refused.
    pub fn create(view: &View, path: &Path, links: Links, keep: Option<&str>) -> Result<Self> {
        let create = || -> Result<Self, Trouble> {
            let target = Target::find(view, path, links)?;
            let existing = target.existing()?;
            let scratch = match keep {
                None => Scratch::new(&target, None)?,
                Some(word) => kept(&target, word)?,
            };
            drop(existing);
            Ok(Self { target, scratch: Some(scratch), path: path.to_owned(), is_half_done: false })
        };
        create().on("create", path)
    }

    /// The path it was made for.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that it has.
    pub fn size(&self) -> Result<u64> {
        self.file().and_then(|file| Ok(Stat::of(file.as_fd())?.size)).on("write", &self.path)
    }

    /// Writes bytes at a place; what lies between is a hole.
    pub fn write_block(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let write = || -> Result<(), Trouble> {
            if i64::try_from(offset.saturating_add(bytes.len() as u64)).is_err() {
                return Err(Trouble::InvalidInput("no file reaches that far"));
            }
            self.file()?.write_all_at(bytes, offset)?;
            Ok(())
        };
        write().on("write", &self.path)
    }

    /// Makes it the file. With a `size` it is cut there, or filled up with a hole.
    ///
    /// After an [`EtagMismatch`](Trouble::EtagMismatch) the draft is still there, and so it is where the file was [changed in
    /// part](Self::is_half_done); after anything else it is used up.
    pub fn commit(&mut self, size: Option<u64>, finish: &Finish, cancel: &Cancel) -> Result<Written> {
        self.try_commit(size, finish, cancel).on("write", &self.path)
    }

    fn try_commit(&mut self, size: Option<u64>, finish: &Finish, cancel: &Cancel) -> Result<Written, Trouble> {
        cancel.check()?;
        let existing = self.target.existing()?;
        require_state(existing.as_ref(), finish.if_match.as_deref())?;
        if let Some(size) = size {
            self.file()?.set_len(size)?;
        }
        let Some(scratch) = &mut self.scratch else { return Err(Errno::BADF.into()) };
        match &existing {
            Some(existing) if existing.stat.links > 1 => return self.copy_over(existing, finish, cancel),
            Some(existing) => match scratch.resemble(existing) {
                Err(trouble) if is_refused(&trouble) && !existing.is_busy => {
                    return self.copy_over(existing, finish, cancel);
                }
                other => other?,
            },
            // Kept ones were secret so far.
            None if scratch.is_kept => {
                rustix::fs::fchmod(&scratch.file, Mode::from_raw_mode(0o666 & !umask()))?;
            }
            None => {}
        }
        let was_kept = scratch.is_kept;
        let written = scratch.try_publish(&self.target, finish, cancel)?;
        self.scratch = None;
        if was_kept {
            // Whoever was still at an older version when this one was begun may have gone by now.
            remove_stale(&self.target, OsStr::new(""));
        }
        Ok(written)
    }

    /// In place, for a file that cannot be replaced.
    fn copy_over(&mut self, existing: &Existing, finish: &Finish, cancel: &Cancel) -> Result<Written, Trouble> {
        let turn = InPlace::begin(&self.target, existing, finish, cancel)?;
        let Some(scratch) = &self.scratch else { return Err(Errno::BADF.into()) };
        let written = turn.copy(&scratch.file, &mut self.is_half_done)?;
        self.discard();
        Ok(written)
    }

    /// Whether a commit in place failed in the middle: neither the old bytes nor these are the file, and it can be tried again.
    #[must_use]
    pub fn is_half_done(&self) -> bool {
        self.is_half_done
    }

    /// Leaves nothing behind, whatever was to be kept.
    pub fn discard(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            scratch.discard(&self.target);
        }
    }

    /// Closes it and removes nothing: what it has stays as after a kill, for the next writer of the name to clear away.
    pub fn leave(&mut self) {
        self.scratch = None;
    }

    /// Does what dropping it does: leaves nothing behind, unless it was made to be kept.
    pub fn abandon(&mut self) {
        if self.scratch.as_ref().is_some_and(|scratch| !scratch.is_kept) {
            self.discard();
        }
    }

    pub(crate) fn file(&self) -> Result<&File, Trouble> {
        self.scratch.as_ref().map(|scratch| &scratch.file).ok_or_else(|| Errno::BADF.into())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// The unfinished file of this word, or a new one.
fn kept(target: &Target, word: &str) -> Result<Scratch, Trouble> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if word.is_empty() || word.len() > 64 || !word.bytes().all(is_word) {
        return Err(Trouble::InvalidInput("`keep` is 1 to 64 letters, digits, `-` and `_`"));
    }
    let name = target.kept_name(word);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..NAME_TRIES {
        let file = File::from(rustix::fs::openat(&target.dir, &name, flags, Mode::from_raw_mode(0o600))?);
        let stat = Stat::of(file.as_fd())?;
        // Whoever put something else there must not get the bytes, nor decide what becomes the file.
        if stat.kind != crate::Type::File || stat.links > 1 || stat.uid != file_uid() {
            return Err(Trouble::InvalidInput("what is kept under this word is not a file of this server's"));
        }
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Trouble::Busy("somebody else writes the file that is kept under this word"));
            }
            Err(errno) => return Err(errno.into()),
        }
        // Under the lock: whoever cleared up between these two steps took the name away, and the bytes would be kept nowhere.
        if !Stat::entry(target.dir.as_fd(), &name).is_ok_and(|entry| entry.is_same_file(&stat)) {
            continue;
        }
        if stat.size == 0 {
            remove_stale(target, &name);
        }
        return Ok(Scratch { file, name: Some(name), is_kept: true });
    }
    Err(Trouble::Busy("others take away what is kept under this word"))
}

/// Removes what is left of other versions of the same file, unless somebody is at it. Nothing depends on it, so nothing is said
/// where it fails.
fn remove_stale(target: &Target, ours: &OsStr) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(&target.dir, ".", flags, Mode::empty());
    let Ok(entries) = dir.and_then(Dir::new) else { return };
    for entry in entries.take(STALE_SEEN).filter_map(std::result::Result::ok) {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == ours || !target.is_kept_name(name) {
            continue;
        }
        left::clear(target.dir.as_fd(), name);
    }
}

/// The bits that this process takes from new files. Only `umask` itself could ask, and it would change them.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|bits| u32::from_str_radix(bits.trim(), 8).ok()).unwrap_or(0o077)
}
