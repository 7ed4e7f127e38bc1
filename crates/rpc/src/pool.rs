//! A pool of large buffers that are reused, for transferring files in blocks.
//!
//! New memory of this size comes from the kernel page by page. The kernel zeroes each page, and takes it back when the
//! memory is freed. For a file in blocks this costs more than copying the bytes. So the pool keeps a few buffers while
//! any is in use.

use bytes::Bytes;
use parking_lot::Mutex;

/// Capacity of one buffer: a block of 256 KiB and the message around it.
pub const BUFFER_BYTES: usize = (256 + 4) * 1024;

/// Number of spare buffers kept while any buffer is in use: as many as one file has in flight.
const KEPT_BUSY: usize = 32;

/// Number of spare buffers kept when no buffer is in use: 4 MiB, which one file has in flight in one direction.
const KEPT_IDLE: usize = 16;

static POOL: Mutex<BufferPool> = Mutex::new(BufferPool { spare: Vec::new(), in_use: 0 });

#[derive(Debug)]
struct BufferPool {
    spare: Vec<Box<[u8]>>,
    in_use: usize,
}

/// A buffer with a filled and a spare part. Dropping it returns it to the pool.
#[derive(Debug)]
pub struct PooledBuffer {
    /// The bytes after `filled` are left over from an earlier use.
    room: Box<[u8]>,
    filled: usize,
}

impl PooledBuffer {
    /// Takes a buffer with room for at least `len` bytes and at least [`BUFFER_BYTES`].
    #[must_use]
    pub fn with_room(len: usize) -> Self {
        let mut pool = POOL.lock();
        pool.in_use += 1;
        let spare = if len <= BUFFER_BYTES { pool.spare.pop() } else { None };
        drop(pool);
        let room = spare.unwrap_or_else(|| vec![0; len.max(BUFFER_BYTES)].into_boxed_slice());
        Self { room, filled: 0 }
    }

    #[must_use]
    pub fn filled(&self) -> &[u8] {
        &self.room[..self.filled]
    }

    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.room[..self.filled]
    }

    /// The part that is not filled.
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.room[self.filled..]
    }

    /// Marks `len` more bytes as filled.
    pub fn fill(&mut self, len: usize) {
        self.filled = self.room.len().min(self.filled + len);
    }

    /// Turns the filled part into shared `Bytes`. The buffer returns to the pool when the last clone is dropped.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let room = std::mem::take(&mut self.room);
        let mut pool = POOL.lock();
        pool.in_use -= 1;
        // A larger buffer is not worth the memory that it would keep.
        if room.len() == BUFFER_BYTES && pool.spare.len() < KEPT_BUSY {
            pool.spare.push(room);
        }
        if pool.in_use == 0 {
            pool.spare.truncate(KEPT_IDLE);
        }
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        self.filled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_empty_and_few_are_kept() {
        // The pool is global, so this is the only test of this binary that takes buffers.
        let mut first = PooledBuffer::with_room(9);
        first.spare()[..9].copy_from_slice(b"left over");
        first.fill(9);
        let place = first.filled().as_ptr();
        assert_eq!(first.freeze(), "left over");
        let mut again = PooledBuffer::with_room(BUFFER_BYTES);
        assert_eq!((again.filled().as_ptr(), again.filled().len(), again.spare().len()), (place, 0, BUFFER_BYTES));

        let many: Vec<PooledBuffer> = (0..KEPT_BUSY * 2).map(|_| PooledBuffer::with_room(1)).collect();
        drop(many);
        assert_eq!(POOL.lock().spare.len(), KEPT_BUSY, "while one is in use");
        drop(again);
        assert_eq!(POOL.lock().spare.len(), KEPT_IDLE);

        let mut large = PooledBuffer::with_room(BUFFER_BYTES * 2);
        assert_eq!(large.spare().len(), BUFFER_BYTES * 2);
        drop(large);
        assert!(POOL.lock().spare.iter().all(|spare| spare.len() == BUFFER_BYTES));
    }
}
