//! Reads and writes whole files in blocks, with several blocks in flight, as a stream or as one buffer.

use std::{path::Path, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures_util::{
    Stream, StreamExt as _, TryStreamExt as _,
    stream::{self, FuturesOrdered},
};

use super::{BLOCK, BLOCKS_IN_FLIGHT, Block, CommitOptions, FileError, FileErrorKind, ReadAt, WriteAt, Written};
use crate::transport::BoxFuture;

/// Streams the bytes of a file in order, in chunks of at most one [`BLOCK`]. Reads until the end of the file, including bytes that are
/// appended during the read. Also works for files that report no size.
pub fn read_stream(file: Arc<dyn ReadAt>) -> impl Stream<Item = Result<Bytes, FileError>> + Send + Unpin {
    read_stream_from(file, 0)
}

/// Like `read_stream`, from this offset on.
pub fn read_stream_from(
    file: Arc<dyn ReadAt>,
    offset: u64,
) -> impl Stream<Item = Result<Bytes, FileError>> + Send + Unpin {
    let reader = BlockReader { file, next: offset, reads: FuturesOrdered::new(), is_over: false };
    Box::pin(stream::try_unfold(reader, |mut reader| async move {
        let bytes = reader.chunk().await?;
        Ok(bytes.map(|bytes| (bytes, reader)))
    }))
}

/// Reads a file in order, with several blocks in flight.
struct BlockReader {
    file: Arc<dyn ReadAt>,
    /// The offset of the next block to request.
    next: u64,
    /// The reads in flight, each with its offset.
    reads: FuturesOrdered<BoxFuture<'static, Result<(u64, Block), FileError>>>,
    is_over: bool,
}

impl BlockReader {
    /// Returns the next bytes, or `None` at the end.
    async fn chunk(&mut self) -> Result<Option<Bytes>, FileError> {
        while !self.is_over {
            // Always keep one read in flight, because the file may have grown beyond the size that it had when it was opened. Below that
            // size, keep several in flight.
            while self.reads.is_empty() || (self.next < self.file.size() && self.reads.len() < BLOCKS_IN_FLIGHT) {
                self.request_block();
            }
            let Some(read) = self.reads.next().await else { break };
            let (offset, block) = read?;
            self.is_over = block.eof || block.bytes.is_empty();
            if block.bytes.len() < BLOCK {
                // The block is short. The other reads in flight begin behind bytes that are still missing, so drop them.
                self.reads = FuturesOrdered::new();
                self.next = offset + block.bytes.len() as u64;
            }
            if !block.bytes.is_empty() {
                return Ok(Some(block.bytes));
            }
        }
        Ok(None)
    }

    fn request_block(&mut self) {
        let file = Arc::clone(&self.file);
        let offset = self.next;
        // A stream returns the zeros of a hole like other bytes.
        let holes = false;
        self.reads.push_back(Box::pin(async move { Ok((offset, file.read_at(offset, BLOCK, holes).await?)) }));
        self.next = offset.saturating_add(BLOCK as u64);
    }
}

/// Reads a whole file into memory.
pub async fn read_all(file: Arc<dyn ReadAt>) -> Result<Bytes, FileError> {
    // The reported size may be wrong, so reserve at most this much at once. More is allocated as the bytes arrive.
    const AT_ONCE: u64 = 1 << 30;
    let room = usize::try_from(file.size().min(AT_ONCE)).unwrap_or_default();
    let mut all = BytesMut::with_capacity(room);
    let mut chunks = read_stream(file);
    while let Some(chunk) = chunks.next().await {
        all.extend_from_slice(&chunk?);
    }
    Ok(all.freeze())
}

/// Writes all bytes of a file, then commits it.
pub async fn write_all(
    path: &Path,
    file: Box<dyn WriteAt>,
    bytes: Bytes,
    options: CommitOptions,
) -> Result<Written, FileError> {
    let writes = stream::iter((0..bytes.len()).step_by(BLOCK)).map(|offset| {
        let block = bytes.slice(offset..bytes.len().min(offset + BLOCK));
        file.write_at(offset as u64, block)
    });
    let written: Result<Vec<()>, FileError> = writes.buffered(BLOCKS_IN_FLIGHT).try_collect().await;
    written?;
    let size = u64::try_from(bytes.len())
        .map_err(|_| FileError::new("write", path, FileErrorKind::InvalidInput, "too many bytes"))?;
    file.commit(CommitOptions { size: Some(size), ..options }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that reports a wrong size, and returns at most `step` bytes per read.
    struct OddFile {
        reported_size: u64,
        bytes: Vec<u8>,
        step: usize,
    }

    impl ReadAt for OddFile {
        fn size(&self) -> u64 {
            self.reported_size
        }

        fn etag(&self) -> Option<&str> {
            None
        }

        fn read_at(&self, offset: u64, len: usize, _: bool) -> BoxFuture<'_, Result<Block, FileError>> {
            let begin = usize::try_from(offset).expect("a small number").min(self.bytes.len());
            let end = self.bytes.len().min(begin + len.min(self.step));
            let bytes = Bytes::copy_from_slice(&self.bytes[begin..end]);
            let eof = bytes.is_empty();
            Box::pin(std::future::ready(Ok(Block { bytes, hole: 0, eof })))
        }
    }

    #[tokio::test]
    async fn a_file_is_read_to_its_end_even_if_its_size_is_wrong_or_reads_are_short() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 7).map(|at| (at / 3 % 251) as u8).collect();
        for reported_size in [0, 5, BLOCK as u64, bytes.len() as u64, 100 * BLOCK as u64] {
            for step in [BLOCK, 100_000] {
                let file = Arc::new(OddFile { reported_size, bytes: bytes.clone(), step });
                assert!(read_all(file).await.expect("read") == bytes, "{reported_size} {step}");
            }
        }
        let file = Arc::new(OddFile { reported_size: 0, bytes: bytes.clone(), step: BLOCK });
        let rest: Vec<Bytes> = read_stream_from(file, BLOCK as u64 + 1).try_collect().await.expect("read");
        assert!(rest.concat() == bytes[BLOCK + 1..]);
        assert!(
            read_all(Arc::new(OddFile { reported_size: 9, bytes: Vec::new(), step: 1 }))
                .await
                .expect("read")
                .is_empty()
        );
    }
}
