//! Overwriting a file in place: a file with more than one hard link, or one in a directory where no new file can be created.
//!
//! An in-place write is not atomic. Everything that could refuse it is therefore checked first: the etag, whether mode and time may be set,
//! and whether there is enough space. After the first byte is changed, the write can no longer be cancelled. The space is reserved by the
//! file system; on one without such reservations the disk may still fill up midway.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
};

use parking_lot::MutexGuard;
use rustix::{
    fs::{FallocateFlags, Mode, SeekFrom},
    io::{Errno, retry_on_intr},
};

use crate::{
    Cancel, ErrorKind, Result, Stat,
    metadata::{permissions, times},
    target::{ExistingFile, WriteTarget, require_state},
    write::{WriteOptions, WriteResult, write_result},
};

/// Bytes copied at once.
const STEP: usize = 1 << 20;

/// An in-place write that is ready to start. No byte has been changed yet.
pub(crate) struct InPlaceWrite<'a> {
    existing: &'a ExistingFile,
    options: &'a WriteOptions,
    /// Current size of the file.
    size: u64,
    /// The lock of the name, and the lock of the file, which may have other names.
    _locks: (MutexGuard<'static, ()>, MutexGuard<'static, ()>),
}

impl<'a> InPlaceWrite<'a> {
    /// Takes the locks and checks that the write can be completed.
    pub(crate) fn prepare(
        target: &WriteTarget,
        existing: &'a ExistingFile,
        options: &'a WriteOptions,
        cancel: &Cancel,
    ) -> Result<Self, ErrorKind> {
        if existing.is_busy {
            return Err(Errno::TXTBSY.into());
        }
        let locks = (target.lock(), existing.lock());
        cancel.check()?;
        require_state(Some(existing), options.if_match.as_deref())?;
        check_options(existing, options)?;
        let size = Stat::of(existing.file.as_fd())?.size;
        Ok(Self { existing, options, size, _locks: locks })
    }

    /// Replaces the whole content with `bytes`.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<WriteResult, ErrorKind> {
        let file = &self.existing.file;
        self.with_reserved_space(|| reserve(file, 0, bytes.len() as u64))?;
        file.write_all_at(bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        apply_options(self.existing, self.options)
    }

    /// Replaces the whole content with that of another file, including its holes. Sets `begun` before the first byte is changed, so that
    /// the caller knows it after an error.
    pub(crate) fn copy(self, from: &File, begun: &mut bool) -> Result<WriteResult, ErrorKind> {
        let file = &self.existing.file;
        let size = Stat::of(from.as_fd())?.size;
        self.with_reserved_space(|| {
            each_part(from, size, |at, end, is_hole| if is_hole { Ok(()) } else { reserve(file, at, end - at) })
        })?;
        *begun = true;
        each_part(from, size, |at, end, is_hole| match is_hole {
            true => clear(file, at, end.min(self.size)),
            false => copy_part(from, file, at, end),
        })?;
        file.set_len(size)?;
        apply_options(self.existing, self.options)
    }

    /// Reserves space. If there is not enough, releases what was reserved.
    fn with_reserved_space(&self, take: impl FnOnce() -> Result<(), ErrorKind>) -> Result<(), ErrorKind> {
        take().inspect_err(|_| {
            // Setting the current size again releases the space that was reserved behind the end. Ignore an error here: the first one is
            // reported.
            self.existing.file.set_len(self.size).ok();
        })
    }
}

/// Checks whether mode and time may be set, if requested. They are set after the bytes are changed, when it would be too late to refuse.
pub(crate) fn check_options(existing: &ExistingFile, options: &WriteOptions) -> Result<(), ErrorKind> {
    options.mode.map(permissions).transpose()?;
    options.modified.map(times).transpose()?;
    if options.mode.is_some() || options.modified.is_some() {
        // A caller that may set the current mode again may set any mode and any time. Only the kernel can decide that reliably.
        let mode = Stat::of(existing.file.as_fd())?.mode;
        rustix::fs::fchmod(&existing.file, Mode::from_raw_mode(mode & 0o7777))?;
    }
    Ok(())
}

/// Sets mode and time and syncs, after the bytes were written.
pub(crate) fn apply_options(existing: &ExistingFile, options: &WriteOptions) -> Result<WriteResult, ErrorKind> {
    let file = &existing.file;
    if let Some(mode) = options.mode {
        rustix::fs::fchmod(file, permissions(mode)?)?;
    }
    if let Some(modified) = options.modified {
        rustix::fs::futimens(file, &times(modified)?)?;
    }
    if options.fsync {
        rustix::fs::fsync(file)?;
    }
    write_result(file, false)
}

/// Reserves space for a range, also where the file has a hole. The visible content does not change.
fn reserve(file: &File, at: u64, len: u64) -> Result<(), ErrorKind> {
    if len == 0 {
        return Ok(());
    }
    match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, len)) {
        // Not every file system supports reservations.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Calls `take` for each part of a file in order: data or a hole.
fn each_part(
    file: &File,
    size: u64,
    mut take: impl FnMut(u64, u64, bool) -> Result<(), ErrorKind>,
) -> Result<(), ErrorKind> {
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            // Only a hole is left.
            Err(Errno::NXIO) => size,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno.into()),
        };
        if data > at {
            take(at, data, true)?;
        }
        let end = match rustix::fs::seek(file, SeekFrom::Hole(data)) {
            Ok(hole) => hole.min(size),
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => size,
            Err(errno) => return Err(errno.into()),
        };
        if end > data {
            take(data, end, false)?;
        }
        at = end;
    }
    Ok(())
}

fn copy_part(from: &File, to: &File, mut at: u64, end: u64) -> Result<(), ErrorKind> {
    let mut buffer = vec![0; usize::try_from(end - at).unwrap_or(STEP).min(STEP)];
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(STEP).min(STEP);
        let read = match from.read_at(&mut buffer[..len], at) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        to.write_all_at(&buffer[..read], at)?;
        at += read as u64;
    }
    Ok(())
}

/// Turns a range of a file into a hole, or writes zeros if holes are not supported. Does nothing for an empty range.
fn clear(file: &File, mut at: u64, end: u64) -> Result<(), ErrorKind> {
    if at >= end {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match retry_on_intr(|| rustix::fs::fallocate(file, flags, at, end - at)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        other => return Ok(other?),
    }
    let zeros = vec![0; STEP];
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(STEP).min(STEP);
        file.write_all_at(&zeros[..len], at)?;
        at += len as u64;
    }
    Ok(())
}
