//! Whole files through blocks, with several blocks under way: as a stream, or as one piece of memory.
//!
//! Knows offsets and windows; it must not know which place a file is at.

use std::{path::Path, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};

use super::{BLOCK, BLOCKS_UNDER_WAY, CommitOptions, Error, ErrorKind, ReadAt, WriteAt, Written};

/// The bytes of a file in order, in chunks of a [`BLOCK`] at most; it ends behind the last of them, and with the file if that
/// shrinks meanwhile.
pub fn read_stream(file: Arc<dyn ReadAt>) -> impl Stream<Item = Result<Bytes, Error>> + Send + Unpin {
    let size = file.size();
    let offsets = stream::iter((0..size).step_by(BLOCK));
    let blocks = offsets.map(move |offset| {
        let file = Arc::clone(&file);
        async move {
            let len = usize::try_from(size - offset).unwrap_or(BLOCK).min(BLOCK);
            let block = file.read_at(offset, len, false).await?;
            Ok::<_, Error>((block.bytes.len() == len, block.bytes))
        }
    });
    // A block that is not full is the last one: the file has become shorter.
    let mut is_over = false;
    let chunks = blocks.buffered(BLOCKS_UNDER_WAY).try_take_while(move |(is_full, bytes)| {
        let go_on = !is_over && !bytes.is_empty();
        is_over |= !is_full;
        std::future::ready(Ok(go_on))
    });
    Box::pin(chunks.map_ok(|(_, bytes)| bytes))
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
