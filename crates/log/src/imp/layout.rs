//! Byte layout of segments and records: little-endian, the same in memory and on disk. Does no I/O.
//!
//! ```text
//! segment  0 magic u64 | 8 layout u32 | 12 slot u32 | 16 id u64 | 24 base_seq u64 | 32 base_offset u64
//!          40 commit u32 | 44 sealed u32 | 48 output u32 | 52 records u32 | 56 crc u32 | 60 zero u32 | 64 records
//! record   0 len u32 | 4 kind u8 | 5 stream u8 | 6 zero u16 | 8 crc u32 | 12 zero u32 | 16 seq u64
//!          24 payload, padded to a multiple of 8
//! ```
//!
//! `commit` counts the bytes in use, including the header. `output` and `records` count the output bytes and records
//! below `commit`. Both checksums are zero in memory and set on disk. The checksum of a segment covers its header, the
//! checksum of a record covers its header and its payload. Each is computed with the crc field set to zero.

use super::{
    event::{self, Exit, LogEvent, OutputStream},
    loaded::RecoverError,
    segment::{SegmentInfo, SegmentLocation},
};

/// Size of a segment, 1 MiB. With larger segments, memory would be released later, and the unsealed last segment of a
/// quiet log would keep more of it.
pub const SEGMENT_BYTES: usize = 1 << 20;

/// Largest payload of a record, 64 KiB. This is one chunk on the wire.
pub const RECORD_MAX: usize = 64 << 10;

/// Smallest room offered for a record, 4 KiB. A segment with less space left is sealed, which wastes up to about 0.4 %.
pub const ROOM_MIN: usize = 4 << 10;

/// Bytes that an event counts in a log beside its output: 24 for the header and up to 7 for padding, rounded up.
pub const EVENT_OVERHEAD: u64 = 32;

/// Maximum number of processes of a session that have a log at the same time. Each used slot takes 128 bytes in the
/// control block.
pub const SLOTS: u32 = 4096;

pub(crate) const LAYOUT: u32 = 1;
pub(crate) const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"exsegmnt");
pub(crate) const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"exctrlbk");

pub(crate) const SEGMENT_HEADER: usize = 64;
pub(crate) const RECORD_HEADER: usize = 24;
const _: () = assert!(RECORD_HEADER as u64 + 7 <= EVENT_OVERHEAD);
const CRC_AT: usize = 8;

/// Bytes that output leaves free at the end of each segment. They guarantee that the exit and close events fit into the
/// current segment, even if memory, fds or quotas are exhausted.
pub(crate) const END_BYTES: usize = 2 * RECORD_HEADER + event::EXIT_BYTES + event::CLOSED_BYTES;
// If this were not a multiple of 8, the padding of the last output record could take some of these bytes.
const _: () = assert!(END_BYTES.is_multiple_of(8));

pub(crate) const KIND_OUTPUT: u8 = 1;
pub(crate) const KIND_EXITED: u8 = 2;
pub(crate) const KIND_CLOSED: u8 = 3;

/// Header of a record, copied out of shared memory so that the values that were checked are the values that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) len: u32,
    pub(crate) kind: u8,
    pub(crate) stream: u8,
    pub(crate) crc: u32,
    pub(crate) seq: u64,
}

impl RecordHeader {
    pub(crate) fn encode(&self) -> [u8; RECORD_HEADER] {
        let mut out = [0; RECORD_HEADER];
        out[..4].copy_from_slice(&self.len.to_le_bytes());
        out[4] = self.kind;
        out[5] = self.stream;
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&self.crc.to_le_bytes());
        out[16..].copy_from_slice(&self.seq.to_le_bytes());
        out
    }

    pub(crate) fn decode(raw: &[u8; RECORD_HEADER]) -> Option<Self> {
        let header =
            Self { len: u32_at(raw, 0), kind: raw[4], stream: raw[5], crc: u32_at(raw, CRC_AT), seq: u64_at(raw, 16) };
        // Reject nonzero reserved bytes: they come from a newer layout, which this code cannot interpret.
        (raw[6..8] == [0; 2] && raw[12..16] == [0; 4]).then_some(header)
    }

    pub(crate) fn output_bytes(&self) -> u64 {
        if self.kind == KIND_OUTPUT { u64::from(self.len) } else { 0 }
    }

    fn checksum(&self, payload: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&Self { crc: 0, ..*self }.encode());
        hasher.update(payload);
        hasher.finalize()
    }

    pub(crate) fn has_checksum_of(&self, payload: &[u8]) -> bool {
        self.crc == self.checksum(payload)
    }
}

/// A record within a region, and the position where the next record begins.
pub(crate) struct FoundRecord<'a> {
    pub(crate) header: RecordHeader,
    pub(crate) payload: &'a [u8],
    pub(crate) end: usize,
}

impl<'a> FoundRecord<'a> {
    pub(crate) fn event(&self) -> Option<LogEvent<'a>> {
        match self.header.kind {
            KIND_OUTPUT if !self.payload.is_empty() => {
                Some(LogEvent::Output { stream: OutputStream::from_byte(self.header.stream)?, bytes: self.payload })
            }
            KIND_EXITED => Exit::decode(self.payload).map(LogEvent::Exited),
            KIND_CLOSED => event::decode_closed(self.payload),
            _ => None,
        }
    }
}

/// The committed bytes at a position are not a record.
pub(crate) struct MalformedRecord;

/// Reads the record at `pos` of the committed `region`, which begins after the segment header. Returns `None` at the
/// end of the region. Never reads outside `region`.
pub(crate) fn record_at(region: &[u8], pos: usize) -> Result<Option<FoundRecord<'_>>, MalformedRecord> {
    if pos == region.len() {
        return Ok(None);
    }
    let rest = region.get(pos..).ok_or(MalformedRecord)?;
    let header = rest.first_chunk().and_then(RecordHeader::decode).ok_or(MalformedRecord)?;
    let len = header.len as usize;
    if len > RECORD_MAX {
        return Err(MalformedRecord);
    }
    let payload = rest.get(RECORD_HEADER..RECORD_HEADER + len).ok_or(MalformedRecord)?;
    let end = pos + record_bytes(len);
    if end > region.len() {
        return Err(MalformedRecord);
    }
    Ok(Some(FoundRecord { header, payload, end }))
}

/// Size of a record with a payload of `len` bytes, including header and padding.
pub(crate) const fn record_bytes(len: usize) -> usize {
    RECORD_HEADER + len.next_multiple_of(8)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) slot: u32,
    pub(crate) id: u64,
    pub(crate) base_seq: u64,
    pub(crate) base_offset: u64,
    pub(crate) commit: u32,
    pub(crate) sealed: u32,
    pub(crate) output: u32,
    pub(crate) records: u32,
}

impl SegmentHeader {
    /// The description of a segment on disk with this header. Nothing is appended to a file, so it counts as sealed.
    pub(crate) fn info(&self) -> SegmentInfo {
        SegmentInfo {
            id: self.id,
            base_seq: self.base_seq,
            base_offset: self.base_offset,
            location: SegmentLocation::Disk,
            sealed: true,
        }
    }

    /// Encodes the header without its checksum, as it is stored in memory.
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut out = [0; SEGMENT_HEADER];
        out[..8].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&LAYOUT.to_le_bytes());
        out[12..16].copy_from_slice(&self.slot.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..32].copy_from_slice(&self.base_seq.to_le_bytes());
        out[32..40].copy_from_slice(&self.base_offset.to_le_bytes());
        out[40..44].copy_from_slice(&self.commit.to_le_bytes());
        out[44..48].copy_from_slice(&self.sealed.to_le_bytes());
        out[48..52].copy_from_slice(&self.output.to_le_bytes());
        out[52..56].copy_from_slice(&self.records.to_le_bytes());
        out
    }

    pub(crate) fn encode_with_checksum(&self) -> [u8; SEGMENT_HEADER] {
        let mut out = self.encode();
        let crc = crc32fast::hash(&out);
        out[56..60].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode_with_checksum(raw: &[u8; SEGMENT_HEADER]) -> Result<Self, RecoverError> {
        if u64_at(raw, 0) != SEGMENT_MAGIC {
            return Err(RecoverError::Magic);
        }
        let layout = u32_at(raw, 8);
        if layout != LAYOUT {
            return Err(RecoverError::Layout { expected: LAYOUT, found: layout });
        }
        let header = Self {
            slot: u32_at(raw, 12),
            id: u64_at(raw, 16),
            base_seq: u64_at(raw, 24),
            base_offset: u64_at(raw, 32),
            commit: u32_at(raw, 40),
            sealed: u32_at(raw, 44),
            output: u32_at(raw, 48),
            records: u32_at(raw, 52),
        };
        if header.encode_with_checksum() != *raw {
            return Err(RecoverError::Header);
        }
        Ok(header)
    }
}

/// Sets the checksum of every record of `region`.
pub(crate) fn set_checksums(region: &mut [u8]) {
    let mut pos = 0;
    while let Ok(Some(found)) = record_at(region, pos) {
        let crc = found.header.checksum(found.payload);
        let end = found.end;
        region[pos + CRC_AT..pos + CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        pos = end;
    }
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&raw[at..at + 4]);
    u32::from_le_bytes(out)
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&raw[at..at + 8]);
    u64::from_le_bytes(out)
}
