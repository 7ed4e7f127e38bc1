//! Writing over a file that stays the same file: one with more than one name, or in a directory where nothing can be made.
//!
//! It cannot happen in one step, so all that may refuse it is asked first: whether the file is in the expected state, whether its mode and
//! time may be set, whether there is room. From the first byte that is changed on nothing calls it off. Room is promised by the file
//! system; one that makes no such promise may still be full in the middle.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::MutexGuard,
};

use rustix::{
    fs::{FallocateFlags, Mode, SeekFrom},
    io::{Errno, retry_on_intr},
};

use crate::{
    Cancel, Result, Stat, Trouble,
    metadata::{permissions, times},
    target::{Existing, Target, require_state},
    write::{Finish, Written, written},
};

/// Bytes that are copied at once.
const STEP: usize = 1 << 20;

/// A write over a file, before its first byte is changed.
pub(crate) struct InPlace<'a> {
    existing: &'a Existing,
    finish: &'a Finish,
    /// Bytes that the file has.
    size: u64,
    /// Of the name, and of the file, which may have other names.
    _locks: (MutexGuard<'static, ()>, MutexGuard<'static, ()>),
}

impl<'a> InPlace<'a> {
    /// Waits for its turn and finds out whether it can be done to its end.
    pub(crate) fn begin(
        target: &Target,
        existing: &'a Existing,
        finish: &'a Finish,
        cancel: &Cancel,
    ) -> Result<Self, Trouble> {
        if existing.is_busy {
            return Err(Errno::TXTBSY.into());
        }
        let locks = (target.lock(), existing.lock());
        cancel.check()?;
        require_state(Some(existing), finish.if_match.as_deref())?;
        require_finish(existing, finish)?;
        let size = Stat::of(existing.file.as_fd())?.size;
        Ok(Self { existing, finish, size, _locks: locks })
    }

    /// Makes bytes the whole file.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<Written, Trouble> {
        let file = &self.existing.file;
        self.room(|| reserve(file, 0, bytes.len() as u64))?;
        file.write_all_at(bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        finish_in_place(self.existing, self.finish)
    }

    /// Makes what another file has the whole file, holes included. `begun` tells whether bytes were changed, also when it fails.
    pub(crate) fn copy(self, from: &File, begun: &mut bool) -> Result<Written, Trouble> {
        let file = &self.existing.file;
        let size = Stat::of(from.as_fd())?.size;
        self.room(|| {
            each_part(from, size, |at, end, is_hole| if is_hole { Ok(()) } else { reserve(file, at, end - at) })
        })?;
        *begun = true;
        each_part(from, size, |at, end, is_hole| match is_hole {
            true => clear(file, at, end.min(self.size)),
            false => copy_part(from, file, at, end),
        })?;
        file.set_len(size)?;
        finish_in_place(self.existing, self.finish)
    }

    /// Takes room, and gives back what was taken where there is not enough.
    fn room(&self, take: impl FnOnce() -> Result<(), Trouble>) -> Result<(), Trouble> {
        take().inspect_err(|_| {
            // It has this size already: what goes is what lies behind its end. Nobody is helped by a second error.
            self.existing.file.set_len(self.size).ok();
        })
    }
}

/// Asks whether mode and time of a file may be set, where that is wanted: they are set when the bytes are changed already.
pub(crate) fn require_finish(existing: &Existing, finish: &Finish) -> Result<(), Trouble> {
    finish.mode.map(permissions).transpose()?;
    finish.modified.map(times).transpose()?;
    if finish.mode.is_some() || finish.modified.is_some() {
        // Whoever may set the mode that it has may set any, and any time too. The system knows best who that is.
        let mode = Stat::of(existing.file.as_fd())?.mode;
        rustix::fs::fchmod(&existing.file, Mode::from_raw_mode(mode & 0o7777))?;
    }
    Ok(())
}

/// What is left when the bytes are there.
pub(crate) fn finish_in_place(existing: &Existing, finish: &Finish) -> Result<Written, Trouble> {
    let file = &existing.file;
    if let Some(mode) = finish.mode {
        rustix::fs::fchmod(file, permissions(mode)?)?;
    }
    if let Some(modified) = finish.modified {
        rustix::fs::futimens(file, &times(modified)?)?;
    }
    if finish.fsync {
        rustix::fs::fsync(file)?;
    }
    written(file, false)
}

/// Takes room for bytes at a place, also where the file has a hole. What is seen of it stays as it is.
fn reserve(file: &File, at: u64, len: u64) -> Result<(), Trouble> {
    if len == 0 {
        return Ok(());
    }
    match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, len)) {
        // Not every file system can promise it.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Goes through the parts of a file in order, each with bytes or a hole.
fn each_part(
    file: &File,
    size: u64,
    mut take: impl FnMut(u64, u64, bool) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            // Nothing but a hole is left.
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

fn copy_part(from: &File, to: &File, mut at: u64, end: u64) -> Result<(), Trouble> {
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

/// Makes a part of a file a hole, or zeros where there are no holes. Nothing where it ends before it begins.
fn clear(file: &File, mut at: u64, end: u64) -> Result<(), Trouble> {
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
