//! Whole files through blocks, with several blocks under way: as a stream, or as one piece of memory.
//!
//! Knows offsets and windows; it must not know which place a file is at.

use std::{path::Path, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures_util::{
    Stream, StreamExt as _, TryStreamExt as _,
    stream::{self, FuturesOrdered},
};

use super::{BLOCK, BLOCKS_UNDER_WAY, Block, CommitOptions, Error, ErrorKind, ReadAt, WriteAt, Written};
use crate::transport::BoxFuture;

/// The bytes of a file in order, in chunks of a [`BLOCK`] at most, up to its end: also what is added while it is read, and of a
/// file that does not tell its size.
pub fn read_stream(file: Arc<dyn ReadAt>) -> impl Stream<Item = Result<Bytes, Error>> + Send + Unpin {
    read_stream_from(file, 0)
}

/// The same from this byte on.
pub fn read_stream_from(file: Arc<dyn ReadAt>, offset: u64) -> impl Stream<Item = Result<Bytes, Error>> + Send + Unpin {
    let reader = Reader { file, next: offset, reads: FuturesOrdered::new(), is_over: false };
    Box::pin(stream::try_unfold(reader, |mut reader| async move {
        let bytes = reader.chunk().await?;
        Ok(bytes.map(|bytes| (bytes, reader)))
    }))
}

/// A file that is read from block to block.
struct Reader {
    file: Arc<dyn ReadAt>,
    /// Where the next block is asked for.
    next: u64,
    /// Those under way, each with where it begins.
    reads: FuturesOrdered<BoxFuture<'static, Result<(u64, Block), Error>>>,
    is_over: bool,
}

impl Reader {
    /// The next bytes; `None` at the end.
    async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        while !self.is_over {
            // Behind the size that the file was opened with there is most often nothing: it is looked at with one block at a time.
            while self.reads.is_empty() || (self.next < self.file.size() && self.reads.len() < BLOCKS_UNDER_WAY) {
                self.ask();
            }
            let Some(read) = self.reads.next().await else { break };
            let (offset, block) = read?;
            self.is_over = block.eof || block.bytes.is_empty();
            if block.bytes.len() < BLOCK {
                // The others begin too far behind it.
                self.reads = FuturesOrdered::new();
                self.next = offset + block.bytes.len() as u64;
            }
            if !block.bytes.is_empty() {
                return Ok(Some(block.bytes));
            }
        }
        Ok(None)
    }

    fn ask(&mut self) {
        let (file, offset) = (Arc::clone(&self.file), self.next);
        self.reads.push_back(Box::pin(async move { Ok((offset, file.read_at(offset, BLOCK, false).await?)) }));
        self.next = offset.saturating_add(BLOCK as u64);
    }
}

/// The bytes of a file in one piece.
pub async fn read_all(file: Arc<dyn ReadAt>) -> Result<Bytes, Error> {
    // What a place says of the size is believed only so far: the rest is made room for when it comes.
    const AT_ONCE: u64 = 1 << 30;
    let room = usize::try_from(file.size().min(AT_ONCE)).unwrap_or_default();
    let mut all = BytesMut::with_capacity(room);
    let mut chunks = read_stream(file);
    while let Some(chunk) = chunks.next().await {
        all.extend_from_slice(&chunk?);
    }
    Ok(all.freeze())
}

/// Writes all bytes of a file and completes it.
pub async fn write_all(
    path: &Path,
    file: Box<dyn WriteAt>,
    bytes: Bytes,
    options: CommitOptions,
) -> Result<Written, Error> {
    let writes = stream::iter((0..bytes.len()).step_by(BLOCK)).map(|offset| {
        let block = bytes.slice(offset..bytes.len().min(offset + BLOCK));
        file.write_at(offset as u64, block)
    });
    let written: Result<Vec<()>, Error> = writes.buffered(BLOCKS_UNDER_WAY).try_collect().await;
    written?;
    let size =
        u64::try_from(bytes.len()).map_err(|_| Error::new("write", path, ErrorKind::InvalidInput, "too many bytes"))?;
    file.commit(CommitOptions { size: Some(size), ..options }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that says one size, has another, and gives a few bytes at a time.
    struct Odd {
        said: u64,
        bytes: Vec<u8>,
        step: usize,
    }

    impl ReadAt for Odd {
        fn size(&self) -> u64 {
            self.said
        }

        fn etag(&self) -> Option<&str> {
            None
        }

        fn read_at(&self, offset: u64, len: usize, _: bool) -> BoxFuture<'_, Result<Block, Error>> {
            let begin = usize::try_from(offset).expect("a small number").min(self.bytes.len());
            let end = self.bytes.len().min(begin + len.min(self.step));
            let bytes = Bytes::copy_from_slice(&self.bytes[begin..end]);
            let eof = bytes.is_empty();
            Box::pin(std::future::ready(Ok(Block { bytes, hole: 0, eof })))
        }
    }

    #[tokio::test]
    async fn a_file_is_read_to_its_end_whatever_it_says_of_its_size() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 7).map(|at| (at / 3 % 251) as u8).collect();
        for said in [0, 5, BLOCK as u64, bytes.len() as u64, 100 * BLOCK as u64] {
            for step in [BLOCK, 1_000_000] {
                let file = Arc::new(Odd { said, bytes: bytes.clone(), step });
                assert!(read_all(file).await.expect("read") == bytes, "{said} {step}");
            }
        }
        let file = Arc::new(Odd { said: 0, bytes: bytes.clone(), step: BLOCK });
        let rest: Vec<Bytes> = read_stream_from(file, BLOCK as u64 + 1).try_collect().await.expect("read");
        assert!(rest.concat() == bytes[BLOCK + 1..]);
        assert!(read_all(Arc::new(Odd { said: 9, bytes: Vec::new(), step: 1 })).await.expect("read").is_empty());
    }
}
