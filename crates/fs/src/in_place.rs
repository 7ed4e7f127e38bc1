//! Overwriting a file in place, where it cannot be replaced by a new file: see `write`.
//!
//! An in-place write is not atomic. Everything that could refuse it is therefore checked first: the etag, whether mode and time may be set,
//! and whether there is enough space. After the first byte is changed, the write can no longer be cancelled. Space is reserved with
//! fallocate(2), except for an append or a write at an offset. Without a reservation, the disk can still fill up midway.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
};

use parking_lot::MutexGuard;
use rustix::{
    fs::{FallocateFlags, Mode},
    io::{Errno, retry_on_intr},
};

use crate::{
    Cancel, ErrorKind, Result, Stat,
    metadata::{permissions, times},
    read::{next_data, next_hole, read_at},
    target::{ExistingFile, WriteTarget, require_state},
    write::{WriteOptions, WriteResult, apply_options, write_result},
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
        self.release_on_error(reserve(file, 0, bytes.len() as u64))?;
        file.write_all_at(bytes, 0)?;
        self.finish(bytes.len() as u64)
    }

    /// Replaces the whole content with that of another file, including its holes. Sets `begun` before the first byte is changed: after an
    /// error it tells the caller whether the old content may be damaged.
    pub(crate) fn copy(self, from: &File, begun: &mut bool) -> Result<WriteResult, ErrorKind> {
        let file = &self.existing.file;
        let size = Stat::of(from.as_fd())?.size;
        self.release_on_error(each_part(from, size, |part, at, end| match part {
            FilePart::Hole => Ok(()),
            FilePart::Data => reserve(file, at, end - at),
        }))?;
        *begun = true;
        each_part(from, size, |part, at, end| match part {
            // Behind the old end of the file there is nothing to clear. `finish` makes it a hole.
            FilePart::Hole => clear(file, at, end.min(self.size)),
            FilePart::Data => copy_part(from, file, at, end),
        })?;
        self.finish(size)
    }

    /// If a reservation failed, releases the space that was reserved so far.
    fn release_on_error(&self, reserved: Result<(), ErrorKind>) -> Result<(), ErrorKind> {
        reserved.inspect_err(|_| {
            // Setting the current size again releases the space that was reserved behind the end. Ignore an error here: the first one is
            // reported.
            self.existing.file.set_len(self.size).ok();
        })
    }

    /// Sets the new size, and applies the options.
    fn finish(self, size: u64) -> Result<WriteResult, ErrorKind> {
        self.existing.file.set_len(size)?;
        finish_in_place(&self.existing.file, self.options)
    }
}

/// Applies the options after the bytes were written in place.
pub(crate) fn finish_in_place(file: &File, options: &WriteOptions) -> Result<WriteResult, ErrorKind> {
    apply_options(file, options)?;
    let is_atomic = false;
    write_result(file, is_atomic)
}

/// Checks whether the requested mode and time may be set. They are set after the bytes, when a refusal would come too late.
pub(crate) fn check_options(existing: &ExistingFile, options: &WriteOptions) -> Result<(), ErrorKind> {
    options.mode.map(permissions).transpose()?;
    options.modified.map(times).transpose()?;
    if options.mode.is_some() || options.modified.is_some() {
        // Ask the kernel by setting the current mode again. That changes nothing, and has the same precondition as setting another mode or
        // a time: the caller owns the file.
        let mode = Stat::of(existing.file.as_fd())?.mode;
        rustix::fs::fchmod(&existing.file, Mode::from_raw_mode(mode & 0o7777))?;
    }
    Ok(())
}

/// Reserves space for a range, also where the file has a hole. The visible content does not change.
fn reserve(file: &File, at: u64, len: u64) -> Result<(), ErrorKind> {
    if len == 0 {
        return Ok(());
    }
    match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, len)) {
        // Not every file system supports reservations.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        other => Ok(other?),
    }
}

/// The content of a part of a file.
enum FilePart {
    Data,
    Hole,
}

/// Calls `visit` for each part of a file in order, with its offset and its end.
fn each_part(
    file: &File,
    size: u64,
    mut visit: impl FnMut(FilePart, u64, u64) -> Result<(), ErrorKind>,
) -> Result<(), ErrorKind> {
    let mut at = 0;
    while at < size {
        let data = next_data(file, at)?.map_or(size, |data| data.min(size));
        if data > at {
            visit(FilePart::Hole, at, data)?;
        }
        let end = next_hole(file, data, size)?;
        if end > data {
            visit(FilePart::Data, data, end)?;
        }
        at = end;
    }
    Ok(())
}

fn copy_part(from: &File, to: &File, mut at: u64, end: u64) -> Result<(), ErrorKind> {
    let mut buffer = vec![0; usize::try_from(end - at).unwrap_or(STEP).min(STEP)];
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(STEP).min(STEP);
        let read = read_at(from, &mut buffer[..len], at)?;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
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
