//! Reading: a whole file, a range or some lines of it at once, and an open file in blocks.

use std::{
    fs::File,
    io::IoSliceMut,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    buffer::spare_capacity,
    fs::{OFlags, SeekFrom},
    io::{Errno, ReadWriteFlags, retry_on_intr},
};

use crate::{
    Cancel, ErrorKind, FileKind, Links, Result, Stat, View,
    error::{ErrorContext, attempt},
    metadata::etag,
};

/// Bytes read between two checks for cancellation.
const STEP: usize = 1 << 20;

/// Magic number of procfs. Its "files" are process memory, fds or kernel controls.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// The part of a file to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadRange {
    /// A range of bytes. Without `len`, up to the end of the file.
    Bytes {
        offset: u64,
        /// Maximum number of bytes.
        len: Option<u64>,
    },
    /// A range of lines. The first line has the number 1.
    Lines {
        first: u64,
        /// Maximum number of lines.
        count: u64,
    },
}

impl ReadRange {
    /// The whole file.
    pub const ALL: Self = Self::Bytes { offset: 0, len: None };
}

/// Result of `OpenFile::read`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    pub bytes: Vec<u8>,
    /// Etag of the file before it was read.
    pub etag: String,
    /// Size of the whole file.
    pub size: u64,
    /// Whether the bytes reach the end of the file.
    pub eof: bool,
}

/// A regular file that is open for reading. Renaming or removing its name does not affect it.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    path: PathBuf,
    /// Metadata from when the file was opened.
    pub stat: Stat,
}

/// Result of reading a block. The bytes themselves are in the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBlock {
    /// Number of bytes read. It is less than the size of the buffer only at the end of the file and before a hole, and 0 at a hole.
    pub len: usize,
    /// Whether the file ends before the buffer is full. False at a hole, and for a block that ends before a hole.
    pub eof: bool,
    /// Length of the hole at the offset, or 0.
    pub hole: u64,
}

/// Opens a regular file for reading, without blocking.
pub fn open(view: &View, path: &Path, links: Links) -> Result<OpenFile> {
    attempt("open", path, || {
        // Check the type before opening, because opening a device can have side effects. `regular_file` checks again, because the name may
        // refer to another object by then.
        require_regular(&Stat::of(view.locate(path, links)?.as_fd())?)?;
        let fd = view.open(path, links, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let (file, stat) = regular_file(fd)?;
        Ok(OpenFile { file, path: path.to_owned(), stat })
    })
}

/// Checks that an open object is a regular file and not a file of `/proc`.
pub(crate) fn regular_file(fd: OwnedFd) -> Result<(File, Stat), ErrorKind> {
    let stat = Stat::of(fd.as_fd())?;
    require_regular(&stat)?;
    refuse_proc(fd.as_fd())?;
    Ok((File::from(fd), stat))
}

pub(crate) fn require_regular(stat: &Stat) -> Result<(), ErrorKind> {
    if stat.kind == FileKind::File { Ok(()) } else { Err(ErrorKind::NotRegular(stat.kind.noun())) }
}

pub(crate) fn refuse_proc(fd: BorrowedFd<'_>) -> Result<(), ErrorKind> {
    let kind = rustix::fs::fstatfs(fd)?.f_type;
    if kind as i64 == PROC_SUPER_MAGIC { Err(ErrorKind::NotRegular("a file of /proc")) } else { Ok(()) }
}

impl OpenFile {
    /// The etag of the file when it was opened.
    pub fn etag(&self) -> Result<String> {
        etag(&self.file, &self.stat).context("read", &self.path)
    }

    /// The path that the file was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Estimate, from the size at open, of the bytes that [`read`](Self::read) will return; at most `most`. `read` can return more if the
    /// file has grown, and for lines up to `STEP` bytes above `most`.
    #[must_use]
    pub fn expected_bytes(&self, range: ReadRange, most: u64) -> u64 {
        match range {
            ReadRange::Bytes { offset, len } => {
                self.stat.size.saturating_sub(offset).min(len.unwrap_or(u64::MAX)).min(most)
            }
            ReadRange::Lines { .. } => self.stat.size.min(most),
        }
    }

    /// Reads a part of the file. If the part has more than `most` bytes, returns an error that contains `advice`. For lines, the limit is
    /// checked only once per `STEP`, so the result may exceed it by up to `STEP` bytes.
    pub fn read(&self, range: ReadRange, most: u64, advice: &'static str, cancel: &Cancel) -> Result<FileContent> {
        let too_large = || ErrorKind::TooLarge { most, advice };
        attempt("read", &self.path, || {
            let etag = etag(&self.file, &self.stat)?;
            let size = self.stat.size;
            let (bytes, eof) = match range {
                ReadRange::Bytes { offset, len } => {
                    let rest = size.saturating_sub(offset);
                    if len.unwrap_or(rest).min(rest) > most {
                        return Err(too_large());
                    }
                    let bytes = read_range(&self.file, offset, len.unwrap_or(u64::MAX).min(most + 1), cancel)?;
                    if bytes.len() as u64 > most {
                        return Err(too_large());
                    }
                    let end = offset.saturating_add(bytes.len() as u64);
                    let eof = len.is_none_or(|len| (bytes.len() as u64) < len) || end >= size;
                    (bytes, eof)
                }
                ReadRange::Lines { first, count } => {
                    read_lines(&self.file, first, count, most, cancel)?.ok_or_else(too_large)?
                }
            };
            Ok(FileContent { bytes, etag, size, eof })
        })
    }

    /// Reads one block into `buf`. With `holes`, a hole is reported instead of being read as zeros.
    pub fn read_block(&self, buf: &mut [u8], offset: u64, holes: bool, cancel: &Cancel) -> Result<ReadBlock> {
        attempt("read", &self.path, || {
            let mut len = buf.len();
            let mut size = u64::MAX;
            if holes {
                // Read the size before `next_data`: bytes that are appended later must not count as a part of the hole.
                size = Stat::of(self.file.as_fd())?.size;
                match next_data(&self.file, offset)? {
                    Some(data) if data > offset => {
                        return Ok(ReadBlock { len: 0, eof: false, hole: data - offset });
                    }
                    Some(_) => {
                        let hole = next_hole(&self.file, offset, offset.saturating_add(len as u64))?;
                        // Read at least one byte: a hole made since `next_data` may begin at `offset`, and a block of
                        // no bytes would mean the end of the file.
                        len = usize::try_from(hole - offset).unwrap_or(len).max(1).min(len);
                    }
                    None => {
                        let hole = size.saturating_sub(offset);
                        return Ok(ReadBlock { len: 0, eof: hole == 0, hole });
                    }
                }
            }
            let got = read_into(&self.file, &mut buf[..len], offset, cancel)?;
            Ok(ReadBlock { len: got, eof: got < len || (len < buf.len() && offset + got as u64 >= size), hole: 0 })
        })
    }

    /// Reads one block without blocking, if all of it is in the page cache and the file has no holes. Returns `None`
    /// otherwise, and if the kernel cannot tell.
    #[must_use]
    pub fn read_block_now(&self, buf: &mut [u8], offset: u64) -> Option<ReadBlock> {
        if !self.stat.is_dense() || i64::try_from(offset).is_err() {
            return None;
        }
        let mut bufs = [IoSliceMut::new(buf)];
        let got = rustix::io::preadv2(&self.file, &mut bufs, offset, ReadWriteFlags::NOWAIT).ok()?;
        (got == buf.len()).then_some(ReadBlock { len: got, eof: false, hole: 0 })
    }
}

/// The offset of the next data in the file. `None` if only a hole is left. On a file system without support for holes, everything is data.
pub(crate) fn next_data(file: &File, offset: u64) -> Result<Option<u64>, ErrorKind> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset)),
        Err(errno) => Err(errno.into()),
    }
}

/// The offset of the next hole, or `end` if there is none before it.
pub(crate) fn next_hole(file: &File, offset: u64, end: u64) -> Result<u64, ErrorKind> {
    match rustix::fs::seek(file, SeekFrom::Hole(offset)) {
        Ok(hole) => Ok(hole.min(end)),
        Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(end),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads at an offset without changing the shared position of the file. Returns 0 at the end of the file.
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    // File offsets are at most `i64::MAX`. Beyond it, `pread` would fail with EINVAL.
    if i64::try_from(offset).is_err() {
        return Ok(0);
    }
    retry_on_intr(|| rustix::io::pread(file, &mut *buffer, offset))
}

/// Reads up to `len` bytes. Returns fewer if the file ends first, for example because it was truncated in the meantime.
fn read_range(file: &File, offset: u64, len: u64, cancel: &Cancel) -> Result<Vec<u8>, ErrorKind> {
    let mut bytes = Vec::new();
    let mut at = offset;
    // File offsets are at most `i64::MAX`. Stop there, so that `pread` does not fail with EINVAL.
    while at - offset < len && i64::try_from(at).is_ok() {
        cancel.check()?;
        let step = (len - (at - offset)).min(STEP as u64);
        bytes.reserve(usize::try_from(step).unwrap_or(STEP));
        let read = retry_on_intr(|| rustix::io::pread(file, spare_capacity(&mut bytes), at))?;
        if read == 0 {
            break;
        }
        at = at.saturating_add(read as u64);
    }
    // `spare_capacity` may be larger than the requested length.
    bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
    Ok(bytes)
}

/// Fills `buf` and returns the number of bytes read. It is less than the buffer's length if the file ends first.
fn read_into(file: &File, buf: &mut [u8], offset: u64, cancel: &Cancel) -> Result<usize, ErrorKind> {
    let mut got = 0;
    while got < buf.len() {
        cancel.check()?;
        match read_at(file, &mut buf[got..], offset.saturating_add(got as u64))? {
            0 => break,
            read => got += read,
        }
    }
    Ok(got)
}

/// Reads `count` lines from line number `first` on, and says whether they reach the end of the file. `None` if they
/// have more than `most` bytes. This is checked after each `STEP`. If a `STEP` contains the end of the last line and
/// bytes after it, the lines are returned without this check.
fn read_lines(
    file: &File,
    first: u64,
    count: u64,
    most: u64,
    cancel: &Cancel,
) -> Result<Option<(Vec<u8>, bool)>, ErrorKind> {
    if first == 0 {
        return Err(ErrorKind::InvalidInput("line numbers begin at 1"));
    }
    let mut to_skip = first - 1;
    let mut to_take = count;
    let mut bytes = Vec::new();
    let mut buffer = vec![0; STEP];
    let mut at = 0;
    loop {
        cancel.check()?;
        let read = read_at(file, &mut buffer, at)?;
        if read == 0 {
            return Ok(Some((bytes, true)));
        }
        at += read as u64;
        for line in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            let is_whole = line.ends_with(b"\n");
            if to_skip > 0 {
                to_skip -= u64::from(is_whole);
            } else if to_take == 0 {
                return Ok(Some((bytes, false)));
            } else {
                bytes.extend_from_slice(line);
                to_take -= u64::from(is_whole);
            }
        }
        if bytes.len() as u64 > most {
            return Ok(None);
        }
    }
}
