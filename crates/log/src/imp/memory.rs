//! Sealed memfds and their mappings. Checks sizes and seals, and does not interpret the contents.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
};

use rustix::{
    fs::{self, MemfdFlags, SealFlags},
    io::Errno,
    mm::{self, Advice, MapFlags, ProtFlags},
};

/// Why an fd was not accepted as shared memory of a log.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("map shared memory of a log")]
    Os(#[from] io::Error),
    /// Wrong size: reading could run past the end.
    #[error("shared memory of a log has `{found}` bytes instead of `{expected}`")]
    Size { expected: u64, found: u64 },
    /// Not sealed against resizing: if the file shrank, reading it would raise SIGBUS.
    #[error("shared memory of a log is not sealed against resizing")]
    NotSealed,
    /// The magic number does not match.
    #[error("shared memory begins with `{found:#018x}`, which is not a log")]
    Magic {
        /// The first eight bytes.
        found: u64,
    },
    /// Created by another version.
    #[error("shared memory of a log has layout `{found}` instead of `{expected}`")]
    Layout {
        /// The layout that this version reads.
        expected: u32,
        /// The layout that the other side wrote.
        found: u32,
    },
}

/// The processes that may write to memory made by [`MemoryMap::create`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteAccess {
    /// Every process that maps it.
    All,
    /// Only the mapping of its creator. The seals make all later mappings read-only.
    Creator,
}

/// A shared mapping of a whole memfd of fixed size.
pub(crate) struct MemoryMap {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory without thread affinity. All shared access goes through atomics, or through bytes
// that the commit protocol has made immutable. Only the owner unmaps it, in `drop`.
unsafe impl Send for MemoryMap {}
// SAFETY: as for `Send`. `&MemoryMap` gives out only a pointer.
unsafe impl Sync for MemoryMap {}

impl MemoryMap {
    /// Creates a memfd of `len` bytes, seals its size and maps it for writing.
    pub(crate) fn create(name: &str, len: usize, writers: WriteAccess) -> io::Result<(OwnedFd, Self)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`. Later ones may require it.
            Err(rustix::io::Errno::INVAL) => fs::memfd_create(name, flags)?,
            other => other?,
        };
        fs::ftruncate(&fd, len as u64)?;
        let map = Self::of(&fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if writers == WriteAccess::Creator {
            // Sealed after the mapping above, which therefore stays writable.
            seals |= SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        }
        fs::fcntl_add_seals(&fd, seals)?;
        Ok((fd, map))
    }

    /// Maps a memfd of another process, after checking that its size cannot change.
    pub(crate) fn open(fd: &OwnedFd, len: usize, prot: ProtFlags) -> Result<Self, OpenError> {
        let needed = SealFlags::SHRINK | SealFlags::GROW;
        match fs::fcntl_get_seals(fd) {
            Ok(seals) if seals.contains(needed) => {}
            // EINVAL: not a memfd.
            Ok(_) | Err(rustix::io::Errno::INVAL) => return Err(OpenError::NotSealed),
            Err(errno) => return Err(OpenError::Os(errno.into())),
        }
        let found = u64::try_from(fs::fstat(fd).map_err(io::Error::from)?.st_size).unwrap_or(0);
        if found != len as u64 {
            return Err(OpenError::Size { expected: len as u64, found });
        }
        Ok(Self::of(fd, len, prot)?)
    }

    fn of(fd: impl AsFd, len: usize, prot: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses does not touch existing memory.
        let start = unsafe { mm::mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// First byte of the mapping. Valid for its whole length as long as `self` lives.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Allocates the pages behind a part of a mapping. Needed before reading from a source whose data cannot be read a
/// second time if the copy fails.
///
/// Kernels before 5.14 do not have `MADV_POPULATE_WRITE` (EINVAL). There the pages are assumed to be available.
pub(crate) fn populate(part: &mut [u8]) -> io::Result<()> {
    let beyond = part.as_ptr().addr() % rustix::param::page_size();
    // SAFETY: the mapping begins at a page boundary, so all these pages belong to it. `MADV_POPULATE_WRITE` keeps their
    // contents.
    let populated = unsafe {
        let start = part.as_mut_ptr().wrapping_sub(beyond);
        mm::madvise(start.cast(), part.len() + beyond, Advice::LinuxPopulateWrite)
    };
    match populated {
        Err(Errno::INVAL) => Ok(()),
        other => Ok(other?),
    }
}

impl Drop for MemoryMap {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` describe the mapping made in `of`. Nothing else unmaps it, and every borrow of its
        // bytes is tied to `self`.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping failed");
    }
}
