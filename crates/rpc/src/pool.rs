//! Large buffers that are used again: what files go through, in blocks.
//!
//! Fresh memory of this size comes from the kernel page by page, each filled with zeros first, and goes back when it is freed;
//! for a file in blocks that costs more than the bytes themselves. So a few are kept while any is in use.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Room of one buffer: a block of 256 KiB, and the words around it.
pub const BUFFER_BYTES: usize = (256 + 4) * 1024;

/// Buffers kept while some are in use: as many as one file has on its way.
const KEPT_BUSY: usize = 32;

/// Buffers kept when none is in use: 4 MiB, what one file has on its way in one direction.
const KEPT_IDLE: usize = 16;

static POOL: Mutex<Pool> = Mutex::new(Pool { spare: Vec::new(), in_use: 0 });

#[derive(Debug)]
struct Pool {
    spare: Vec<Box<[u8]>>,
    in_use: usize,
}

/// Some room, and how much of it is filled. It is used again when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    /// What it was filled with before is still there, behind `filled`.
    room: Box<[u8]>,
    filled: usize,
}

impl Buffer {
    /// Takes one that has room for `len` bytes, or for [`BUFFER_BYTES`] where that is more.
    #[must_use]
    pub fn with_room(len: usize) -> Self {
        let mut pool = pool();
        pool.in_use += 1;
        let spare = if len <= BUFFER_BYTES { pool.spare.pop() } else { None };
        drop(pool);
        let room = spare.unwrap_or_else(|| vec![0; len.max(BUFFER_BYTES)].into_boxed_slice());
        Self { room, filled: 0 }
    }

    /// What it was filled with.
    #[must_use]
    pub fn filled(&self) -> &[u8] {
        &self.room[..self.filled]
    }

    /// The same, to be changed.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.room[..self.filled]
    }

    /// The room that is left.
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.room[self.filled..]
    }

    /// Counts `len` more bytes as filled.
    pub fn fill(&mut self, len: usize) {
        self.filled = self.room.len().min(self.filled + len);
    }

    /// What is in it, to be shared; it is used again when the last share is dropped.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let room = std::mem::take(&mut self.room);
        let mut pool = pool();
        pool.in_use -= 1;
        // A larger one is not worth its memory.
        if room.len() == BUFFER_BYTES && pool.spare.len() < KEPT_BUSY {
            pool.spare.push(room);
        }
        if pool.in_use == 0 {
            pool.spare.truncate(KEPT_IDLE);
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.filled()
    }
}

fn pool() -> MutexGuard<'static, Pool> {
    // No code under this lock can panic half-way through a change.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_empty_and_few_are_kept() {
        // The only test of this program that takes any: the pool is everybody's.
        let mut first = Buffer::with_room(9);
        first.spare()[..9].copy_from_slice(b"left over");
        first.fill(9);
        let place = first.filled().as_ptr();
        assert_eq!(first.freeze(), "left over");
        let mut again = Buffer::with_room(BUFFER_BYTES);
        assert_eq!((again.filled().as_ptr(), again.filled().len(), again.spare().len()), (place, 0, BUFFER_BYTES));

        let many: Vec<Buffer> = (0..KEPT_BUSY * 2).map(|_| Buffer::with_room(1)).collect();
        drop(many);
        assert_eq!(pool().spare.len(), KEPT_BUSY, "while one is in use");
        drop(again);
        assert_eq!(pool().spare.len(), KEPT_IDLE);

        let mut large = Buffer::with_room(BUFFER_BYTES * 2);
        assert_eq!(large.spare().len(), BUFFER_BYTES * 2);
        drop(large);
        assert!(pool().spare.iter().all(|spare| spare.len() == BUFFER_BYTES));
    }
}
