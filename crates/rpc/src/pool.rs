//! A pool of large buffers that are reused, for transferring files in blocks.
//!
//! The allocator gets memory of this size from the kernel and returns it when it is freed, so every new buffer costs a
//! page fault and the zeroing of a page for each 4 KiB. For a file that is sent in blocks this costs more than copying
//! the bytes. So freed buffers are kept for reuse: up to `KEPT_BUSY` while any buffer is in use, else `KEPT_IDLE`.

use bytes::Bytes;
use parking_lot::Mutex;

/// Capacity of one buffer: a block of 256 KiB and the message around it.
pub const BUFFER_BYTES: usize = (256 + 4) * 1024;

/// Maximum number of unused buffers while others are in use: the 16 blocks that one file has in flight, for a file that
/// is received and one that is sent at the same time.
const KEPT_BUSY: usize = 32;

/// Maximum number of unused buffers when none is in use: the 16 blocks (4 MiB) that one file has in flight.
const KEPT_IDLE: usize = 16;

static POOL: Mutex<BufferPool> = Mutex::new(BufferPool { unused: Vec::new(), in_use: 0 });

#[derive(Debug)]
struct BufferPool {
    unused: Vec<Box<[u8]>>,
    in_use: usize,
}

/// A buffer with a filled and an unfilled part. Dropping it returns it to the pool.
#[derive(Debug)]
pub struct PooledBuffer {
    /// The bytes after `filled` are zero or left over from an earlier use.
    bytes: Box<[u8]>,
    filled: usize,
}

impl PooledBuffer {
    /// Takes a buffer with room for at least `len` bytes and at least [`BUFFER_BYTES`].
    #[must_use]
    pub fn with_room(len: usize) -> Self {
        let mut pool = POOL.lock();
        pool.in_use += 1;
        let unused = if len <= BUFFER_BYTES { pool.unused.pop() } else { None };
        drop(pool);
        let bytes = unused.unwrap_or_else(|| vec![0; len.max(BUFFER_BYTES)].into_boxed_slice());
        Self { bytes, filled: 0 }
    }

    #[must_use]
    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.filled]
    }

    pub fn unfilled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Marks `len` more bytes as filled, at most all.
    pub fn fill(&mut self, len: usize) {
        self.filled = self.bytes.len().min(self.filled + len);
    }

    /// Turns the filled part into shared `Bytes`. The buffer returns to the pool when the last clone is dropped.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut pool = POOL.lock();
        pool.in_use -= 1;
        // A larger buffer is not worth the memory that it would keep.
        if bytes.len() == BUFFER_BYTES && pool.unused.len() < KEPT_BUSY {
            pool.unused.push(bytes);
        }
        if pool.in_use == 0 {
            pool.unused.truncate(KEPT_IDLE);
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
    fn reused_buffers_are_empty_and_only_a_few_unused_ones_are_kept() {
        // The pool is global, so this is the only test of this binary that takes buffers.
        let mut first = PooledBuffer::with_room(9);
        first.unfilled()[..9].copy_from_slice(b"left over");
        first.fill(9);
        let address = first.filled().as_ptr();
        assert_eq!(first.freeze(), "left over");
        let mut reused = PooledBuffer::with_room(BUFFER_BYTES);
        assert_eq!(reused.filled().as_ptr(), address);
        assert_eq!((reused.filled().len(), reused.unfilled().len()), (0, BUFFER_BYTES));

        let many: Vec<PooledBuffer> = (0..KEPT_BUSY * 2).map(|_| PooledBuffer::with_room(1)).collect();
        drop(many);
        assert_eq!(POOL.lock().unused.len(), KEPT_BUSY, "while one is in use");
        drop(reused);
        assert_eq!(POOL.lock().unused.len(), KEPT_IDLE);

        let mut large = PooledBuffer::with_room(BUFFER_BYTES * 2);
        assert_eq!(large.unfilled().len(), BUFFER_BYTES * 2);
        drop(large);
        assert!(POOL.lock().unused.iter().all(|bytes| bytes.len() == BUFFER_BYTES));
    }
}
