//! Copies one file.
//!
//! A small file takes one read and one write request. A large file is copied in blocks, in order, with up to [`BLOCKS_IN_FLIGHT`] reads and
//! as many writes in flight:
//!
//! ```text
//! reads in flight: [6][7][8]…  ──in order──▶  writes in flight: [2][3][4][5]     written: [0][1]
//! ```
//! The length of an interrupted part therefore says what is complete: everything but the last [`BLOCKS_IN_FLIGHT`] blocks. The next copy
//! continues from there. A write after a hole would make the part longer while earlier writes are in flight. The copy therefore waits for
//! these writes first.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::FuturesOrdered};
use tokio::time::{self, Instant};

use super::{CopyError, CopyObserver, MODE_KEPT, mark};
use crate::fs::{
    self, BLOCK, BLOCKS_IN_FLIGHT, CommitOptions, CreateOptions, FileSystem, Links, Moment, ReadAt, WriteAt,
    WriteOptions,
};

/// A file of up to this size is read and written in one request each.
pub(super) const SMALL: u64 = 1 << 20;

/// The unit in which the memory for small files is reserved. It is also the room for the growth of a file after it was listed.
const RESERVED_UNIT: u64 = 32 * 1024;

/// How long to wait for a part that another writer has open. The writer may belong to a client that disappeared without closing its
/// connection, because its machine sleeps or its address changed. A server needs up to 30 s to notice that and to close the part.
const BUSY_FOR: Duration = Duration::from_secs(40);

/// How long to wait before the wait is reported.
const BUSY_UNREPORTED: Duration = Duration::from_secs(2);

/// The first and the longest pause between two attempts to open a part that another writer has open.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(500);

/// The reason for the wait, as it is shown to the user.
const BUSY: &str = "another copy is writing this file";

/// How often a file is reopened after a server has lost its handle. Restarts alone never reach this limit. It ends the
/// copy if a server reports a lost handle each time.
const REOPENED_MAX: u32 = 100;

/// The metadata of a file before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceFile {
    pub(super) size: u64,
    pub(super) mode: u32,
    pub(super) modified: Moment,
}

impl SourceFile {
    /// The most bytes that are read of a small file in one request. A file that has become larger is copied in blocks.
    pub(super) fn reserved_bytes(&self) -> u64 {
        SMALL.min((self.size / RESERVED_UNIT).saturating_add(1).saturating_mul(RESERVED_UNIT))
    }
}

/// The two sides of a copy, and the receiver of its progress.
pub(super) struct FileCopy<'a> {
    pub(super) source: &'a dyn FileSystem,
    pub(super) target: &'a dyn FileSystem,
    pub(super) observer: &'a dyn CopyObserver,
}

/// The open files of a copy that is under way.
struct OpenFiles<'a> {
    from: &'a Path,
    to: &'a Path,
    reader: &'a dyn ReadAt,
    writer: &'a dyn WriteAt,
}

/// A range of the source that was read: its content, and the offset after it.
struct ReadSpan {
    pieces: Vec<(u64, Bytes)>,
    has_hole: bool,
    end: u64,
}

impl FileCopy<'_> {
    /// Copies a file of any size. Neither path contains a link.
    pub(super) async fn copy(&self, from: &Path, to: &Path, source: &SourceFile) -> Result<(), CopyError> {
        self.observer.begun(to, source.size);
        if source.size <= SMALL {
            self.copy_small(from, to, source).await
        } else {
            self.copy_large(from, to, source).await
        }
    }

    async fn copy_small(&self, from: &Path, to: &Path, source: &SourceFile) -> Result<(), CopyError> {
        let bytes = match self.source.read_within(from, source.reserved_bytes(), Links::Refuse).await {
            // The file has grown since it was listed, or its source lies. Its blocks are bounded; a larger answer would not be.
            Err(error) if error.kind == fs::FileErrorKind::TooLarge => return self.copy_large(from, to, source).await,
            read => read?,
        };
        let len = bytes.len() as u64;
        let options = WriteOptions {
            links: Links::Refuse,
            mode: Some(source.mode & MODE_KEPT),
            modified: Some(source.modified),
            ..WriteOptions::default()
        };
        self.target.write_file(to, bytes, options).await?;
        self.observer.moved(to, len);
        Ok(())
    }

    /// Copies a large file. Open files are lost when a server restarts; both sides are then opened again, and the copy continues.
    async fn copy_large(&self, from: &Path, to: &Path, source: &SourceFile) -> Result<(), CopyError> {
        let mut reported = 0;
        for _ in 0..REOPENED_MAX {
            match self.copy_once(from, to, source, &mut reported).await {
                Err(CopyError::File(error)) if error.kind == fs::FileErrorKind::Closed => {}
                done => return done,
            }
        }
        // The last attempt. Its error is final, whatever its kind.
        self.copy_once(from, to, source, &mut reported).await
    }

    /// Copies a large file with newly opened handles. `reported` is the number of bytes that the observer knows of.
    async fn copy_once(
        &self,
        from: &Path,
        to: &Path,
        source: &SourceFile,
        reported: &mut u64,
    ) -> Result<(), CopyError> {
        let reader = self.source.open(from, Links::Refuse).await?;
        // Use the size of the open file, not that of the listing.
        let source = SourceFile { size: reader.size(), ..source.clone() };
        let keep = Some(mark::part_key(&self.source.machine(), from, &source, reader.etag()));
        let writer = self.open_part(to, CreateOptions { links: Links::Refuse, keep }).await?;
        let begin = resumable_len(writer.found(), source.size);
        self.report_moved(to, reported, begin);
        let files = OpenFiles { from, to, reader: &*reader, writer: &*writer };
        self.copy_blocks(&files, begin, reported).await?;
        let options = CommitOptions {
            size: Some(source.size),
            mode: Some(source.mode & MODE_KEPT),
            modified: Some(source.modified),
            ..CommitOptions::default()
        };
        writer.commit(options).await?;
        Ok(())
    }

    /// Reports the bytes up to `end` that were not reported yet.
    fn report_moved(&self, to: &Path, reported: &mut u64, end: u64) {
        self.observer.moved(to, end.saturating_sub(*reported));
        *reported = end.max(*reported);
    }

    /// Creates the part, or opens it to continue. Waits while an earlier writer has it open. That writer may be writing its last blocks, or
    /// the server may not have noticed yet that it is gone.
    async fn open_part(&self, to: &Path, options: CreateOptions) -> Result<Box<dyn WriteAt>, CopyError> {
        let began = Instant::now();
        let mut pause = BUSY_PAUSE;
        let mut is_reported = false;
        loop {
            match self.target.create(to, options.clone()).await {
                Err(error) if error.kind != fs::FileErrorKind::Busy => return Err(error.into()),
                Err(error) if began.elapsed() >= BUSY_FOR => {
                    let reason = format!("{BUSY}: {}", error.reason);
                    return Err(fs::FileError { reason, ..error }.into());
                }
                Err(_) => {
                    if !is_reported && began.elapsed() >= BUSY_UNREPORTED {
                        is_reported = true;
                        self.observer.waiting(to, BUSY);
                    }
                    time::sleep(pause).await;
                    pause = BUSY_PAUSE_MAX.min(pause * 2);
                }
                Ok(writer) => return Ok(writer),
            }
        }
    }

    async fn copy_blocks(&self, files: &OpenFiles<'_>, begin: u64, reported: &mut u64) -> Result<(), CopyError> {
        let OpenFiles { from, to, reader, writer } = *files;
        let size = reader.size();
        let mut next = begin;
        let mut reads = FuturesOrdered::new();
        let mut writes = FuturesOrdered::new();
        loop {
            while reads.len() < reader.ahead() && next < size {
                let end = size.min(next.saturating_add(BLOCK as u64));
                reads.push_back(read_span(from, reader, next, end));
                next = end;
            }
            tokio::select! {
                biased;
                Some(written) = writes.next() => written?,
                Some(read) = reads.next(), if writes.len() < BLOCKS_IN_FLIGHT => {
                    let read: ReadSpan = read?;
                    if read.has_hole {
                        // Finish all earlier writes before a write after a hole; see the module documentation.
                        while let Some(written) = writes.next().await {
                            written?;
                        }
                    }
                    for (offset, bytes) in read.pieces {
                        writes.push_back(writer.write_at(offset, bytes));
                    }
                    // A hole can end after the range that was requested, or after the file. Continue behind it.
                    let end = read.end.min(size);
                    self.report_moved(to, reported, end);
                    next = next.max(end);
                }
                else => return Ok(()),
            }
        }
    }
}

/// Reads a range. A hole at its end may extend further; the span then ends with the hole.
async fn read_span(from: &Path, reader: &dyn ReadAt, begin: u64, end: u64) -> Result<ReadSpan, CopyError> {
    let mut span = ReadSpan { pieces: Vec::new(), has_hole: false, end: begin };
    while span.end < end {
        let len = usize::try_from(end - span.end).unwrap_or(BLOCK);
        let holes = true;
        let block = reader.read_at(span.end, len, holes).await?;
        let got = block.bytes.len() as u64;
        if got == 0 && block.hole == 0 {
            return Err(CopyError::Shrunk { path: from.to_owned() });
        }
        if got > 0 {
            span.pieces.push((span.end, block.bytes));
        }
        span.has_hole |= block.hole > 0;
        let after = span.end.saturating_add(got).checked_add(block.hole);
        span.end =
            after.ok_or_else(|| fs::FileError::invalid_data("read", from, "the length of a hole is out of range"))?;
    }
    Ok(span)
}

/// How much of an existing part is certainly complete: everything except the blocks that may have been in flight.
fn resumable_len(found: u64, size: u64) -> u64 {
    let block = BLOCK as u64;
    let in_flight = BLOCKS_IN_FLIGHT as u64 * block;
    // A part that is longer than its file is not from this source, so begin anew.
    if found > size { 0 } else { found.saturating_sub(in_flight) / block * block }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_part_excludes_blocks_in_flight() {
        let (block, in_flight) = (BLOCK as u64, BLOCKS_IN_FLIGHT as u64);
        let lengths = [0, 3, in_flight, in_flight + 1].map(|blocks| resumable_len(blocks * block, 100 * block));
        assert_eq!(lengths, [0, 0, 0, block]);
        assert_eq!(resumable_len((in_flight + 2) * block + 5, 100 * block), 2 * block);
        assert_eq!(resumable_len(101 * block, 100 * block), 0);
    }
}
