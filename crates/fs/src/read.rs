//! Reading: a file, a range or some lines of it at once, and an open file by blocks.

use std::{
    fs::File,
    io::{self, IoSliceMut, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, SeekFrom},
    io::{Errno, ReadWriteFlags},
};

use crate::{Cancel, Links, Result, Stat, Trouble, Type, View, error::On, metadata::etag};

/// Bytes that are read between two looks at whether anybody still waits.
const STEP: usize = 1 << 20;

/// The file system of processes: what looks like a file there is memory, descriptors or orders to the kernel.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Which part of a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// So many bytes from this one on; without a length up to the end.
    Bytes {
        /// The first byte.
        offset: u64,
        /// How many at most.
        len: Option<u64>,
    },
    /// So many lines from this one on, counted from 1.
    Lines {
        /// The first line.
        first: u64,
        /// How many at most.
        count: u64,
    },
}

impl Part {
    /// All of it.
    pub const ALL: Self = Self::Bytes { offset: 0, len: None };
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The state that the file was in before it was read.
    pub etag: String,
    /// Bytes of the whole file.
    pub size: u64,
    /// Whether the bytes reach its end.
    pub eof: bool,
}

/// A regular file that is open for reading. What happens to its name changes nothing for it.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    path: PathBuf,
    /// What it was when it was opened.
    pub stat: Stat,
}

/// A block of an open file, beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// How many bytes were read, fewer than there was room for only at the end of the file and before a hole.
    pub len: usize,
    /// Whether fewer are there than were asked for.
    pub eof: bool,
    /// Zeros at this place that no disk holds.
    pub hole: u64,
}

/// Opens a regular file for reading, without waiting for anybody.
pub fn open(view: &View, path: &Path, links: Links) -> Result<OpenFile> {
    let open = || -> Result<OpenFile, Trouble> {
        let (file, stat) = open_regular(view, path, links, OFlags::RDONLY)?;
        Ok(OpenFile { file, path: path.to_owned(), stat })
    };
    open().on("open", path)
}

/// Looks before it opens, for opening alone can set a device off; and again afterwards, for what was opened counts.
pub(crate) fn open_regular(view: &View, path: &Path, links: Links, flags: OFlags) -> Result<(File, Stat), Trouble> {
    require_regular(&Stat::of(view.locate(path, links)?.as_fd())?)?;
    let fd = view.open(path, links, flags | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
    let stat = Stat::of(fd.as_fd())?;
    require_regular(&stat)?;
    refuse_proc(fd.as_fd())?;
    Ok((File::from(fd), stat))
}

pub(crate) fn require_regular(stat: &Stat) -> Result<(), Trouble> {
    match stat.kind {
        Type::File => Ok(()),
        other => Err(Trouble::NotRegular(other.noun())),
    }
}

pub(crate) fn refuse_proc(fd: BorrowedFd<'_>) -> Result<(), Trouble> {
    let kind = rustix::fs::fstatfs(fd)?.f_type;
    if kind as i64 == PROC_SUPER_MAGIC { Err(Trouble::NotRegular("a file of /proc")) } else { Ok(()) }
}

impl OpenFile {
    /// The word for the state that the file is in.
    pub fn etag(&self) -> Result<String> {
        etag(&self.file, &self.stat).on("read", &self.path)
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that [`read`](Self::read) would hold, as far as can be told: for whoever counts memory.
    #[must_use]
    pub fn expects(&self, part: Part, most: u64) -> u64 {
        match part {
            Part::Bytes { offset, len } => self.stat.size.saturating_sub(offset).min(len.unwrap_or(u64::MAX)).min(most),
            Part::Lines { .. } => self.stat.size.min(most),
        }
    }

    /// Reads a part of it, `most` bytes of it at most: what is larger is an error that gives `advice`.
    pub fn read(&self, part: Part, most: u64, advice: &'static str, cancel: &Cancel) -> Result<Content> {
        let too_large = || Trouble::TooLarge { most, advice };
        let read = || -> Result<Content, Trouble> {
            let etag = etag(&self.file, &self.stat)?;
            let size = self.stat.size;
            let (bytes, eof) = match part {
                Part::Bytes { offset, len } => {
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
                Part::Lines { first, count } => read_lines(&self.file, (first, count), most, cancel, too_large)?,
            };
            Ok(Content { bytes, etag, size, eof })
        };
        read().on("read", &self.path)
    }

    /// Reads one block into `buf`. With `holes`, a place that no disk holds is told and not read.
    pub fn read_block(&self, buf: &mut [u8], offset: u64, holes: bool, cancel: &Cancel) -> Result<Block> {
        let mut read = || -> Result<Block, Trouble> {
            let mut len = buf.len();
            if holes {
                match next_data(&self.file, offset)? {
                    Some(data) if data > offset => {
                        return Ok(Block { len: 0, eof: false, hole: data - offset });
                    }
                    Some(_) => len = until_hole(&self.file, offset, len)?,
                    None => {
                        let size = Stat::of(self.file.as_fd())?.size;
                        let hole = size.saturating_sub(offset);
                        return Ok(Block { len: 0, eof: hole == 0, hole });
                    }
                }
            }
            let wanted = buf.len();
            let got = read_into(&self.file, &mut buf[..len], offset, cancel)?;
            Ok(Block { len: got, eof: got < len || (len < wanted && got == 0), hole: 0 })
        };
        read().on("read", &self.path)
    }

    /// Reads one block if all of it is in memory and the file has no holes, so that nobody waits; `None` otherwise, and where this cannot
    /// be told.
    #[must_use]
    pub fn read_block_now(&self, buf: &mut [u8], offset: u64) -> Option<Block> {
        if !self.stat.is_dense() || i64::try_from(offset).is_err() {
            return None;
        }
        let mut bufs = [IoSliceMut::new(buf)];
        let got = rustix::io::preadv2(&self.file, &mut bufs, offset, ReadWriteFlags::NOWAIT).ok()?;
        (got == buf.len()).then_some(Block { len: got, eof: false, hole: 0 })
    }
}

/// Where the next bytes lie that a disk holds; `None` where there are none. A file system that knows no holes has bytes everywhere.
fn next_data(file: &File, offset: u64) -> Result<Option<u64>, Trouble> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset)),
        Err(errno) => Err(errno.into()),
    }
}

/// How much of a block lies before the next hole.
fn until_hole(file: &File, offset: u64, len: usize) -> Result<usize, Trouble> {
    match rustix::fs::seek(file, SeekFrom::Hole(offset)) {
        Ok(hole) => Ok(usize::try_from(hole.saturating_sub(offset)).unwrap_or(len).clamp(1, len)),
        Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(len),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads up to `len` bytes; fewer where the file ends, also one that became shorter meanwhile.
fn read_range(file: &File, offset: u64, len: u64, cancel: &Cancel) -> Result<Vec<u8>, Trouble> {
    let (mut bytes, mut at) = (Vec::new(), offset);
    // No file has bytes beyond what its offsets can say.
    while at - offset < len && i64::try_from(at).is_ok() {
        cancel.check()?;
        let step = (len - (at - offset)).min(STEP as u64);
        bytes.reserve(usize::try_from(step).unwrap_or(STEP));
        match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut bytes), at) {
            Ok(0) => break,
            Ok(read) => at = at.saturating_add(read as u64),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // There may have been room for more than was asked for.
    bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
    Ok(bytes)
}

/// Fills `buf`, and tells how far; less where the file ends.
fn read_into(file: &File, buf: &mut [u8], offset: u64, cancel: &Cancel) -> Result<usize, Trouble> {
    let (mut reader, mut got) = (At { file, offset }, 0);
    while got < buf.len() {
        cancel.check()?;
        match reader.read(&mut buf[got..]) {
            Ok(0) => break,
            Ok(read) => got += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(got)
}

/// Reads at a place of its own; the file's shared position stays where it is.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // No file has bytes beyond what its offsets can say.
        if i64::try_from(self.offset).is_err() {
            return Ok(0);
        }
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset = self.offset.saturating_add(read as u64);
        Ok(read)
    }
}

fn read_lines(
    file: &File,
    (first, count): (u64, u64),
    most: u64,
    cancel: &Cancel,
    too_large: impl Fn() -> Trouble,
) -> Result<(Vec<u8>, bool), Trouble> {
    if first == 0 {
        return Err(Trouble::InvalidInput("lines are counted from 1"));
    }
    let (mut to_skip, mut to_take) = (first - 1, count);
    let mut bytes = Vec::new();
    let mut reader = At { file, offset: 0 };
    let mut buffer = vec![0; STEP];
    loop {
        cancel.check()?;
        let read = match reader.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        if read == 0 {
            return Ok((bytes, true));
        }
        for line in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            let is_whole = line.ends_with(b"\n");
            if to_skip > 0 {
                to_skip -= u64::from(is_whole);
            } else if to_take == 0 {
                return Ok((bytes, false));
            } else {
                bytes.extend_from_slice(line);
                to_take -= u64::from(is_whole);
            }
        }
        if bytes.len() as u64 > most {
            return Err(too_large());
        }
    }
}
