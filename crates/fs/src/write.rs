//! Writing: a whole file at once, or a draft of a file block by block.
//!
//! The bytes are written to a file without a name (`O_TMPFILE`) in the target's directory. The file gets its name when
//! it is complete. No reader sees a partly written file, and a full disk leaves the old file intact. An abandoned write
//! disappears with its fd, even if the process is killed. To replace an existing file, the new file needs a temporary
//! name just before the rename; on file systems without `O_TMPFILE`, and if a draft is kept, it has one from the start.
//! That name begins with `.exec-server-`, and the writer holds a lock on the file: see `leftovers`.
//!
//! Some writes happen in place and are not atomic: a file with more than one hard link (the other names must see the change, as in the
//! reference), appending, writing at an offset, a file in a directory where no new file can be created, and a file whose owner or
//! attributes this process may not give to a new file.

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
    io::{Errno, retry_on_intr},
};

use crate::{
    Cancel, ErrorKind, FileKind, Links, Moment, Result, Stat, View,
    error::{ErrorContext, attempt},
    in_place::{InPlaceWrite, check_options, finish_in_place},
    leftovers,
    metadata::{ABSENT, etag, file_uid, permissions, thread_status, times},
    target::{ExistingFile, FILE_END, WriteTarget, require_state},
    view::{open_at, proc_path},
};

/// Bytes written between two checks for cancellation.
const STEP: usize = 1 << 20;

/// Maximum number of directory entries that are checked for leftovers of older drafts.
const STALE_SEEN: usize = 100_000;

/// Number of names that are tried for a file that needs a name.
const NAME_TRIES: u32 = 8;

/// Maximum size of the list of extended attribute names that are copied to a new file, and of each value.
const ATTRIBUTES_BYTES: usize = 64 << 10;

/// Where the bytes of a write go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePosition {
    /// Replace the whole file.
    Whole,
    /// Append to the file.
    End,
    /// Overwrite the file from this offset.
    Offset(u64),
}

/// Conditions and attributes of a write.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// Write only if the file has this etag, or with [`ABSENT`] only if it does not exist.
    pub if_match: Option<String>,
    /// Return only when the data is on disk.
    pub fsync: bool,
    /// Permission bits. Default: those of the existing file, without set-user-id and set-group-id, or 0666 minus the umask.
    pub mode: Option<u32>,
    /// Modification time. Default: now.
    pub modified: Option<Moment>,
}

/// Result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteResult {
    /// Whether the file was created or replaced atomically. False for a write in place.
    pub atomic: bool,
    /// Etag of the file after the write.
    pub etag: String,
    /// Size of the file after the write.
    pub size: u64,
}

/// Bytes for a file.
#[derive(Debug)]
pub struct WriteRequest<'a> {
    pub position: WritePosition,
    pub bytes: &'a [u8],
    pub options: &'a WriteOptions,
}

/// Writes bytes to a file. Creates the file if it does not exist. Its directory must exist.
pub fn write(
    view: &View,
    path: &Path,
    links: Links,
    request: &WriteRequest<'_>,
    cancel: &Cancel,
) -> Result<WriteResult> {
    let WriteRequest { position, bytes, options } = *request;
    attempt("write", path, || {
        cancel.check()?;
        let target = WriteTarget::resolve(view, path, links)?;
        match position {
            WritePosition::Whole => write_whole(&target, bytes, options, cancel),
            WritePosition::End | WritePosition::Offset(_) => write_part(&target, position, bytes, options),
        }
    })
}

fn write_whole(
    target: &WriteTarget,
    bytes: &[u8],
    options: &WriteOptions,
    cancel: &Cancel,
) -> Result<WriteResult, ErrorKind> {
    // Check permissions and etag before anything is written, so that a request that must fail fails early.
    let existing = target.existing()?;
    require_state(existing.as_ref(), options.if_match.as_deref())?;
    let in_place = |existing: &ExistingFile| {
        InPlaceWrite::prepare(target, existing, options, cancel).and_then(|in_place_write| in_place_write.write(bytes))
    };
    if let Some(existing) = existing.as_ref().filter(|existing| existing.stat.links > 1) {
        return in_place(existing);
    }
    let scratch = match (ScratchFile::new(target, existing.as_ref()), &existing) {
        (Ok(scratch), _) => scratch,
        // The directory does not allow new files, or a new file cannot get the old owner. The file itself can be written.
        (Err(reason), Some(existing)) if is_refused(&reason) && !existing.is_busy => return in_place(existing),
        (Err(reason), _) => return Err(reason),
    };
    for (step, chunk) in bytes.chunks(STEP).enumerate() {
        cancel.check()?;
        scratch.file.write_all_at(chunk, (step * STEP) as u64)?;
    }
    scratch.publish(target, options, cancel)
}

fn is_refused(reason: &ErrorKind) -> bool {
    // A full disk does not count: the bytes might fit in place of the old ones, but then the write would not be atomic.
    [Errno::ACCESS, Errno::PERM, Errno::ROFS].into_iter().any(|errno| reason.is(errno))
}

fn write_part(
    target: &WriteTarget,
    position: WritePosition,
    bytes: &[u8],
    options: &WriteOptions,
) -> Result<WriteResult, ErrorKind> {
    let _lock = target.lock();
    let (existing, is_new) = match target.existing()? {
        Some(existing) if existing.is_busy => return Err(Errno::TXTBSY.into()),
        Some(existing) => (existing, false),
        None => {
            require_state(None, options.if_match.as_deref())?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::openat(&target.dir, &target.name, flags, Mode::from_raw_mode(0o666))?);
            let stat = Stat::of(file.as_fd())?;
            (ExistingFile { file, stat, is_busy: false }, true)
        }
    };
    let _file_lock = existing.lock();
    if !is_new {
        require_state(Some(&existing), options.if_match.as_deref())?;
    }
    check_options(&existing, options)?;
    match position {
        // `write` passes no `Whole`.
        WritePosition::Offset(offset) => write_at(&existing.file, offset, bytes)?,
        WritePosition::Whole | WritePosition::End => append(&existing.file, bytes)?,
    }
    finish_in_place(&existing.file, options)
}

fn write_at(file: &File, offset: u64, bytes: &[u8]) -> Result<(), ErrorKind> {
    if i64::try_from(offset.saturating_add(bytes.len() as u64)).is_err() {
        return Err(ErrorKind::InvalidInput("the end of the write is beyond the largest possible file size"));
    }
    Ok(file.write_all_at(bytes, offset)?)
}

/// Appends with O_APPEND: the kernel finds the end for each write, so that concurrent appends of other processes are not lost.
fn append(file: &File, mut bytes: &[u8]) -> Result<(), ErrorKind> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::APPEND)?;
    while !bytes.is_empty() {
        let written = retry_on_intr(|| rustix::io::write(file, bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Sets mode and time and syncs, after the bytes were written.
pub(crate) fn apply_options(file: &File, options: &WriteOptions) -> Result<(), ErrorKind> {
    if let Some(mode) = options.mode {
        rustix::fs::fchmod(file, permissions(mode)?)?;
    }
    if let Some(modified) = options.modified {
        rustix::fs::futimens(file, &times(modified)?)?;
    }
    if options.fsync {
        rustix::fs::fsync(file)?;
    }
    Ok(())
}

pub(crate) fn write_result(file: &File, is_atomic: bool) -> Result<WriteResult, ErrorKind> {
    let stat = Stat::of(file.as_fd())?;
    Ok(WriteResult { atomic: is_atomic, etag: etag(file, &stat)?, size: stat.size })
}

/// A new file that does not have its final name yet.
#[derive(Debug)]
struct ScratchFile {
    file: File,
    /// The temporary name, if the file needs one.
    name: Option<OsString>,
    /// The file stays when the draft is abandoned.
    is_kept: bool,
}

impl ScratchFile {
    /// Creates an empty file beside the target, with the attributes of the file that it replaces.
    fn new(target: &WriteTarget, existing: Option<&ExistingFile>) -> Result<Self, ErrorKind> {
        // Create with 0600 when replacing (the old mode is copied later), with 0666 minus the umask when new.
        let mode = Mode::from_raw_mode(if existing.is_some() { 0o600 } else { 0o666 });
        let unnamed = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let scratch = match rustix::fs::openat(&target.dir, ".", unnamed, mode) {
            Ok(fd) => Self { file: File::from(fd), name: None, is_kept: false },
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::named(target, mode)?,
            Err(errno) => return Err(errno.into()),
        };
        if let Some(existing) = existing {
            scratch.copy_attributes_of(existing).inspect_err(|_| scratch.discard(target))?;
        }
        Ok(scratch)
    }

    fn named(target: &WriteTarget, mode: Mode) -> Result<Self, ErrorKind> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..NAME_TRIES {
            let name = WriteTarget::random_name(FILE_END)?;
            let file = File::from(rustix::fs::openat(&target.dir, &name, flags, mode)?);
            // A concurrent `sweep` between the two steps may hold the lock or have removed the name. Then try another name.
            if leftovers::lock_as_writer(&file) && Stat::of(file.as_fd())?.links > 0 {
                return Ok(Self { file, name: Some(name), is_kept: false });
            }
            rustix::fs::unlinkat(&target.dir, &name, AtFlags::empty()).ok(); // The sweep may have removed it already.
        }
        Err(ErrorKind::Busy("other processes keep locking its temporary files; retry"))
    }

    /// Copies owner, mode and extended attributes. If that is not permitted, the caller writes in place.
    fn copy_attributes_of(&self, existing: &ExistingFile) -> Result<(), ErrorKind> {
        let own = Stat::of(self.file.as_fd())?;
        let Stat { uid, gid, .. } = existing.stat;
        if (own.uid, own.gid) != (uid, gid) {
            rustix::fs::fchown(&self.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        copy_attributes(&existing.file, &self.file)?;
        // Drop the set-user-id and set-group-id bits: the users who may run the file as its owner trusted the old bytes, not the new ones.
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(existing.stat.mode & 0o1777))?;
        Ok(())
    }

    /// Gives the file its final name.
    fn publish(
        mut self,
        target: &WriteTarget,
        options: &WriteOptions,
        cancel: &Cancel,
    ) -> Result<WriteResult, ErrorKind> {
        self.try_publish(target, options, cancel).inspect_err(|_| self.discard(target))
    }

    fn try_publish(
        &mut self,
        target: &WriteTarget,
        options: &WriteOptions,
        cancel: &Cancel,
    ) -> Result<WriteResult, ErrorKind> {
        apply_options(&self.file, options)?;
        let _lock = target.lock();
        // Check under the lock: a write that was cancelled before another writer took the lock must not take effect after that writer.
        cancel.check()?;
        if let Some(expected) = options.if_match.as_deref() {
            require_state(target.existing()?.as_ref(), Some(expected))?;
        }
        if options.if_match.as_deref() == Some(ABSENT) {
            self.take_free_name(target)?;
        } else {
            self.replace(target)?;
        }
        if options.fsync {
            sync_directory(target)?;
        }
        let is_atomic = true;
        write_result(&self.file, is_atomic)
    }

    /// Takes the name only if it is free. The kernel checks this atomically.
    fn take_free_name(&mut self, target: &WriteTarget) -> Result<(), ErrorKind> {
        let taken = match &self.name {
            Some(name) => {
                rustix::fs::renameat_with(&target.dir, name, &target.dir, &target.name, RenameFlags::NOREPLACE)
            }
            None => self.link(target, &target.name),
        };
        match taken {
            Err(Errno::EXIST) => return Err(ErrorKind::EtagMismatch("it exists")),
            other => other?,
        }
        self.name = None;
        Ok(())
    }

    fn replace(&mut self, target: &WriteTarget) -> Result<(), ErrorKind> {
        if self.name.is_none() {
            // If nothing has to be replaced, link the file directly under its final name. Then no temporary name exists that a kill could
            // leave behind.
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

    /// Gives the file a temporary name just before it replaces another file.
    fn link_aside(&self, target: &WriteTarget) -> Result<OsString, ErrorKind> {
        // The result can be ignored: a file without a name is open nowhere else, so the lock is free.
        leftovers::lock_as_writer(&self.file);
        let name = target.scratch_name();
        // Try a second time if an abandoned file of this name was removed.
        for _ in 0..2 {
            match self.link(target, &name) {
                Err(Errno::EXIST) if leftovers::remove_if_abandoned(target.dir.as_fd(), &name) => {}
                // Another process is about to replace the same file.
                Err(Errno::EXIST) => break,
                other => return Ok(other.map(|()| name)?),
            }
        }
        let name = WriteTarget::random_name(FILE_END)?;
        self.link(target, &name)?;
        Ok(name)
    }

    fn link(&self, target: &WriteTarget, name: &OsStr) -> Result<(), Errno> {
        rustix::fs::linkat(CWD, proc_path(self.file.as_fd()), &target.dir, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Removes the temporary name, if there is one. A file without a name disappears with its fd.
    fn discard(&self, target: &WriteTarget) {
        if let Some(name) = &self.name {
            // Another process may have removed the name already.
            rustix::fs::unlinkat(&target.dir, name, AtFlags::empty()).ok();
        }
    }
}

fn sync_directory(target: &WriteTarget) -> Result<(), ErrorKind> {
    // A directory that can be written but not read cannot be opened for fsync. The file itself was synced.
    match open_at(&target.dir, ".", OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(Errno::ACCESS) => Ok(()),
        dir => Ok(rustix::fs::fsync(dir?)?),
    }
}

/// Copies access control lists and other extended attributes.
fn copy_attributes(from: &File, to: &File) -> Result<(), ErrorKind> {
    let mut names = vec![0_u8; ATTRIBUTES_BYTES];
    let len = match rustix::fs::flistxattr(from, &mut names) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
        other => other?,
    };
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        // File capabilities were granted to the old program, not to the new bytes.
        if name == b"security.capability" {
            continue;
        }
        let mut value = vec![0_u8; ATTRIBUTES_BYTES];
        let len = match rustix::fs::fgetxattr(from, name, &mut value) {
            Err(Errno::NODATA) => continue,
            other => other?,
        };
        match rustix::fs::fsetxattr(to, name, &value[..len], XattrFlags::empty()) {
            // The system assigns security labels. Setting them may fail without harm.
            Err(_) if name.starts_with(b"security.") || name.starts_with(b"trusted.") => {}
            other => other?,
        }
    }
    Ok(())
}

/// A file that is written block by block and stays invisible until [`commit`](Draft::commit). If it is dropped without a commit, it leaves
/// nothing behind, unless it was created with `keep`.
#[derive(Debug)]
pub struct Draft {
    target: WriteTarget,
    scratch: Option<ScratchFile>,
    path: PathBuf,
    is_half_done: bool,
}

impl Draft {
    /// Begins a draft of the file that a path leads to.
    ///
    /// With a word `keep`, the bytes stay when the draft is dropped. The next draft with the same path and word continues them;
    /// [`size`](Self::size) says how many there are. A second draft at the same time is refused.
    pub fn create(view: &View, path: &Path, links: Links, keep: Option<&str>) -> Result<Self> {
        attempt("create", path, || {
            let target = WriteTarget::resolve(view, path, links)?;
            // Fails if there is a file that may not be written.
            drop(target.existing()?);
            let scratch = match keep {
                None => ScratchFile::new(&target, None)?,
                Some(word) => open_kept_draft(&target, word)?,
            };
            Ok(Self { target, scratch: Some(scratch), path: path.to_owned(), is_half_done: false })
        })
    }

    /// The path that the draft was created for.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the draft so far, including holes.
    pub fn size(&self) -> Result<u64> {
        self.file().and_then(|file| Ok(Stat::of(file.as_fd())?.size)).context("write", &self.path)
    }

    /// Writes bytes at an offset. A gap before them becomes a hole.
    pub fn write_block(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        attempt("write", &self.path, || write_at(self.file()?, offset, bytes))
    }

    /// Gives the file the content of the draft. With a `size`, the draft is cut or extended with a hole first.
    ///
    /// The caller may try again after an [`EtagMismatch`](ErrorKind::EtagMismatch), and if the file was [changed in
    /// part](Self::is_half_done). After any other error it should drop the draft.
    pub fn commit(&mut self, size: Option<u64>, options: &WriteOptions, cancel: &Cancel) -> Result<WriteResult> {
        self.try_commit(size, options, cancel).context("write", &self.path)
    }

    fn try_commit(
        &mut self,
        size: Option<u64>,
        options: &WriteOptions,
        cancel: &Cancel,
    ) -> Result<WriteResult, ErrorKind> {
        cancel.check()?;
        let existing = self.target.existing()?;
        require_state(existing.as_ref(), options.if_match.as_deref())?;
        if let Some(size) = size {
            self.file()?.set_len(size)?;
        }
        let Some(scratch) = &mut self.scratch else { return Err(Errno::BADF.into()) };
        match &existing {
            Some(existing) if existing.stat.links > 1 => return self.copy_over(existing, options, cancel),
            Some(existing) => match scratch.copy_attributes_of(existing) {
                Err(reason) if is_refused(&reason) && !existing.is_busy => {
                    return self.copy_over(existing, options, cancel);
                }
                other => other?,
            },
            // A kept draft was created with 0600.
            None if scratch.is_kept => {
                rustix::fs::fchmod(&scratch.file, Mode::from_raw_mode(0o666 & !umask()))?;
            }
            None => {}
        }
        let was_kept = scratch.is_kept;
        let written = scratch.try_publish(&self.target, options, cancel)?;
        self.scratch = None;
        if was_kept {
            // Other kept drafts of this file that were in use when this draft began may be abandoned by now. This draft has its final
            // name, so no kept name needs to be spared.
            remove_stale(&self.target, OsStr::new(""));
        }
        Ok(written)
    }

    /// Copies the bytes in place. Used if the file cannot be replaced.
    fn copy_over(
        &mut self,
        existing: &ExistingFile,
        options: &WriteOptions,
        cancel: &Cancel,
    ) -> Result<WriteResult, ErrorKind> {
        let in_place_write = InPlaceWrite::prepare(&self.target, existing, options, cancel)?;
        let Some(scratch) = &self.scratch else { return Err(Errno::BADF.into()) };
        let written = in_place_write.copy(&scratch.file, &mut self.is_half_done)?;
        self.discard();
        Ok(written)
    }

    /// After a failed commit: whether it had begun to write in place. The file may then have parts of both the old and
    /// the new content, and the commit can be repeated.
    #[must_use]
    pub fn is_half_done(&self) -> bool {
        self.is_half_done
    }

    /// Removes the draft, even if it was created with `keep`.
    pub fn discard(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            scratch.discard(&self.target);
        }
    }

    /// Closes the draft without removing its temporary name, if it has one, like a kill.
    pub fn close_unremoved(&mut self) {
        self.scratch = None;
    }

    /// Does what dropping the draft does: leaves nothing behind, unless it was created with `keep`.
    pub fn abandon(&mut self) {
        if self.scratch.as_ref().is_some_and(|scratch| !scratch.is_kept) {
            self.discard();
        }
    }

    /// The draft's file. EBADF after a commit or `discard`.
    pub(crate) fn file(&self) -> Result<&File, ErrorKind> {
        self.scratch.as_ref().map(|scratch| &scratch.file).ok_or_else(|| Errno::BADF.into())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Opens the kept draft for this word, or creates a new one.
fn open_kept_draft(target: &WriteTarget, word: &str) -> Result<ScratchFile, ErrorKind> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if word.is_empty() || word.len() > 64 || !word.bytes().all(is_word) {
        return Err(ErrorKind::InvalidInput("`keep` must be 1 to 64 letters, digits, `-` and `_`"));
    }
    let name = target.kept_name(word);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..NAME_TRIES {
        let file = File::from(rustix::fs::openat(&target.dir, &name, flags, Mode::from_raw_mode(0o600))?);
        let stat = Stat::of(file.as_fd())?;
        // Refuse an object that another user placed there: that user must neither get the bytes nor decide what becomes the file.
        if stat.kind != FileKind::File || stat.links > 1 || stat.uid != file_uid() {
            return Err(ErrorKind::InvalidInput(
                "the file of the kept draft has another owner, another type or a second hard link",
            ));
        }
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                return Err(ErrorKind::Busy("another client is writing the kept draft of this file"));
            }
            other => other?,
        }
        // Check under the lock: a concurrent cleanup may have removed the name between the two steps. Then the bytes would not be kept
        // anywhere.
        if !Stat::entry(target.dir.as_fd(), &name).is_ok_and(|entry| entry.is_same_file(&stat)) {
            continue;
        }
        // A new draft: older ones of this file are not needed.
        if stat.size == 0 {
            remove_stale(target, &name);
        }
        return Ok(ScratchFile { file, name: Some(name), is_kept: true });
    }
    Err(ErrorKind::Busy("other processes keep removing the file of the kept draft; retry"))
}

/// Removes the kept drafts of the same file under all names but `ours`, unless they are in use. Errors are ignored, because nothing depends
/// on the result.
fn remove_stale(target: &WriteTarget, ours: &OsStr) {
    let dir = open_at(&target.dir, ".", OFlags::RDONLY | OFlags::DIRECTORY);
    let Ok(entries) = dir.and_then(Dir::new) else { return };
    for entry in entries.take(STALE_SEEN).filter_map(std::result::Result::ok) {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != ours && target.is_kept_name(name) {
            leftovers::remove_if_abandoned(target.dir.as_fd(), name);
        }
    }
}

/// The umask of this process. It is read from procfs, because the system call `umask` can only return it by changing it.
/// If procfs cannot be read, assumes a umask that gives no access to other users.
fn umask() -> u32 {
    thread_status("Umask:").and_then(|bits| u32::from_str_radix(bits.trim(), 8).ok()).unwrap_or(0o077)
}
