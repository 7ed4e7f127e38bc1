//! Sealed memfds and their mappings. Knows sizes and seals, not what the bytes mean.

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

/// Why a descriptor was not accepted as shared memory of a log.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel refused.
    #[error("map shared memory of a log")]
    Os(#[from] io::Error),
    /// Another size: reading it could run past its end.
    #[error("shared memory of a log has `{found}` bytes instead of `{expected}`")]
    Size {
        /// What this layout has.
        expected: u64,
        /// What the descriptor has.
        found: u64,
    },
    /// Not sealed against resizing: a shrunk file would be SIGBUS.
    #[error("shared memory of a log is not sealed against resizing")]
    NotSealed,
    /// Not one of ours.
    #[error("shared memory begins with `{found:#018x}`, which is no log")]
    Magic {
        /// The first eight bytes.
        found: u64,
    },
    /// Made by another version.
    #[error("shared memory of a log has layout `{found}` instead of `{expected}`")]
    Layout {
        /// What this version reads.
        expected: u32,
        /// What the other side wrote.
        found: u32,
    },
}

/// Who may write to memory made by [`Map::create`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    /// Everybody who maps it.
    All,
    /// Only the mapping that made it; later ones are read-only by seal.
    Creator,
}

/// A shared mapping of a whole memfd of fixed size.
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory without thread affinity; all shared access goes through atomics or through bytes that the
// commit protocol has made immutable, and `unmap` needs the only owner.
unsafe impl Send for Map {}
// SAFETY: as for `Send`: `&Map` gives out nothing but a pointer.
unsafe impl Sync for Map {}

impl Map {
    /// Makes a memfd of `len` bytes, sealed in size, and maps it for writing.
    pub(crate) fn create(name: &str, len: usize, writers: Writers) -> io::Result<(OwnedFd, Self)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag, later ones may demand it.
            Err(rustix::io::Errno::INVAL) => fs::memfd_create(name, flags)?,
            other => other?,
        };
        fs::ftruncate(&fd, len as u64)?;
        let map = Self::of(&fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if writers == Writers::Creator {
            // After the mapping above, which stays writable.
            seals |= SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        }
        fs::fcntl_add_seals(&fd, seals)?;
        Ok((fd, map))
    }

    /// Maps a memfd of another process after checking that it cannot change its size.
    pub(crate) fn open(fd: &OwnedFd, len: usize, prot: ProtFlags) -> Result<Self, OpenError> {
        let needed = SealFlags::SHRINK | SealFlags::GROW;
        match fs::fcntl_get_seals(fd) {
            Ok(seals) if seals.contains(needed) => {}
            // Not a memfd at all.
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
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { mm::mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// First byte of the mapping; valid for its whole length as long as `self` lives.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Makes sure that there are pages behind a part of a mapping, before something is read into it that cannot be read a second time. An older
/// kernel than 5.14 cannot, and is believed.
pub(crate) fn populate(part: &mut [u8]) -> io::Result<()> {
    let beyond = part.as_ptr().addr() % rustix::param::page_size();
    // SAFETY: the pages of the part belong to its mapping, which begins at a page; they get their frames, and keep what is in them.
    let populated = unsafe {
        let start = part.as_mut_ptr().wrapping_sub(beyond);
        mm::madvise(start.cast(), part.len() + beyond, Advice::LinuxPopulateWrite)
    };
    match populated {
        Err(Errno::INVAL) => Ok(()),
        other => Ok(other?),
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of the mapping made in `of`, which nobody else unmaps, and every borrow of its
        // bytes is tied to `self`.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping failed");
    }
}
