//! A disk segment loaded into the heap, checked record by record.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use super::{
    layout::{SEGMENT_BYTES, SEGMENT_HEADER, SegmentHeader, record_at},
    segment::SegmentInfo,
};

/// Why a disk segment is completely unusable.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("read a segment file")]
    Os(#[from] io::Error),
    /// Not a regular file, or larger than a segment.
    #[error("a file of `{found}` bytes is not a segment")]
    Size { found: u64 },
    /// The file ends within its header.
    #[error("a segment file ends after `{found}` bytes, within its header")]
    Short { found: u64 },
    /// The magic number does not match.
    #[error("a segment file has a wrong magic number")]
    Magic,
    /// Written by another version.
    #[error("a segment file has layout `{found}` instead of `{expected}`")]
    Layout {
        /// The layout that this version reads.
        expected: u32,
        /// The layout of the file.
        found: u32,
    },
    /// The header does not match its checksum, or belongs to another segment.
    #[error("the header of a segment file is damaged")]
    Header,
}

/// The intact records of a disk segment, up to the first one that is truncated or damaged.
#[derive(Debug)]
pub struct LoadedSegment {
    header: SegmentHeader,
    records: Vec<u8>,
    count: u32,
    output: u64,
}

impl LoadedSegment {
    /// Reads a segment file and checks every record. Cuts off the records from the first damaged or truncated one on;
    /// [`torn_records`](Self::torn_records) and [`torn_bytes`](Self::torn_bytes) count them.
    pub fn read(file: &File) -> Result<Arc<Self>, RecoverError> {
        let mut bytes = vec![0; usize::try_from(file_len(file)?).unwrap_or(SEGMENT_BYTES)];
        let len = read_full(file, &mut bytes)?;
        bytes.truncate(len);
        Self::parse(bytes)
    }

    /// Reads only the header of a segment file. Also returns the size of the file.
    pub(crate) fn read_header(file: &File) -> Result<(SegmentHeader, u64), RecoverError> {
        let file_len = file_len(file)?;
        let mut raw = [0; SEGMENT_HEADER];
        let len = read_full(file, &mut raw)?;
        if len < SEGMENT_HEADER {
            return Err(RecoverError::Short { found: len as u64 });
        }
        Ok((SegmentHeader::decode_with_checksum(&raw)?, file_len))
    }

    fn parse(mut bytes: Vec<u8>) -> Result<Arc<Self>, RecoverError> {
        let raw = bytes.first_chunk().ok_or(RecoverError::Short { found: bytes.len() as u64 })?;
        let header = SegmentHeader::decode_with_checksum(raw)?;
        // Bytes after the commit were never part of the log.
        bytes.truncate(header.commit as usize);
        bytes.drain(..SEGMENT_HEADER.min(bytes.len()));
        let mut loaded = Self { header, records: bytes, count: 0, output: 0 };
        loaded.cut();
        Ok(Arc::new(loaded))
    }

    /// Truncates the records at the first one that is not intact.
    fn cut(&mut self) {
        let mut pos = 0;
        while let Ok(Some(found)) = record_at(&self.records, pos) {
            let expected = self.header.base_seq.checked_add(u64::from(self.count));
            if Some(found.header.seq) != expected
                || !found.header.has_checksum_of(found.payload)
                || found.event().is_none()
            {
                break;
            }
            self.count += 1;
            self.output += found.header.output_bytes();
            pos = found.end;
        }
        self.records.truncate(pos);
    }

    /// The description of the segment from its header.
    pub fn info(&self) -> SegmentInfo {
        self.header.info()
    }

    /// The slot of the log that the segment belongs to.
    pub fn slot(&self) -> u32 {
        self.header.slot
    }

    /// Sequence number after the last intact event.
    pub fn next_seq(&self) -> u64 {
        self.header.base_seq.saturating_add(u64::from(self.count))
    }

    /// Output bytes up to the end of the last intact event.
    pub fn end_offset(&self) -> u64 {
        self.header.base_offset.saturating_add(self.output)
    }

    /// Number of events that were cut off: the header counts them, but they come after the last intact event or are not
    /// in the file.
    pub fn torn_records(&self) -> u64 {
        u64::from(self.header.records.saturating_sub(self.count))
    }

    /// Output bytes of the events that were cut off.
    pub fn torn_bytes(&self) -> u64 {
        u64::from(self.header.output).saturating_sub(self.output)
    }

    pub(crate) fn header(&self) -> &SegmentHeader {
        &self.header
    }

    pub(crate) fn records(&self) -> &[u8] {
        &self.records
    }

    /// Number of intact records, and their output bytes.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (u64::from(self.count), self.output)
    }
}

/// The size of a segment file. Fails if it cannot be a segment.
fn file_len(file: &File) -> Result<u64, RecoverError> {
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > SEGMENT_BYTES as u64 {
        return Err(RecoverError::Size { found: meta.len() });
    }
    Ok(meta.len())
}

fn read_full(file: &File, buf: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match file.read_at(&mut buf[len..], len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
