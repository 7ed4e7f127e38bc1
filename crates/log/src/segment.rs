//! Segments as the holder owns them, and the pool that makes and reuses them. Knows nothing of control blocks and policies.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
};

use crate::{
    failpoint,
    layout::{
        self, END_BYTES, KIND_OUTPUT, LAYOUT, RECORD_HEADER, RECORD_MAX, RecordHeader, SEGMENT_BYTES, SEGMENT_HEADER,
        SEGMENT_MAGIC, SegmentHeader, record_bytes,
    },
    mapping::SharedHeader,
    memory::{Map, Writers},
};

/// Whole segments that may be free: four are enough for the hand-over between one full log and its reader, many logs give back more at a
/// time.
const POOL_LEAST: usize = 4;
const POOL_MOST: usize = 16;

/// The share of the segments in use that may be free beside them.
const POOL_SHARE: usize = 2;

/// Free segments kept for reuse. Most of many are small, those of short processes with little output, and a page or two each.
const POOL_MAX: usize = 32;

/// Where the bytes of a segment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In a memfd of the holder.
    Memory,
    /// In a file of the session's directory.
    Disk,
}

/// What both sides know of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Never used twice in the life of a holder, although its memory may be; see [`memfd_of`].
    pub id: u64,
    /// Number of its first event.
    pub base_seq: u64,
    /// Output bytes before it.
    pub base_offset: u64,
    /// Where it is.
    pub place: Place,
    /// Nothing is appended any more.
    pub sealed: bool,
}

/// The memfd that a segment lies in, named by the upper half of the segment's id.
///
/// Memory is reused for later segments, under new ids with the same upper half, so that a reader may keep a mapping and a
/// holder may save sending the descriptor again.
pub const fn memfd_of(id: u64) -> u64 {
    id >> 32
}

/// A segment in the holder: memfd and writable mapping.
///
/// Positions and counts live here and not in the shared header, which is only written: no reader can mislead the writer.
pub struct Segment {
    fd: Arc<OwnedFd>,
    map: Map,
    slot: u32,
    id: u64,
    base_seq: u64,
    base_offset: u64,
    used: usize,
    records: u32,
    output: u32,
    sealed: bool,
    /// Bytes that were ever in use, in any life: what there is of it in memory.
    touched: usize,
}

impl Segment {
    fn create(memfd: u32) -> io::Result<Self> {
        let (fd, map) = Map::create("exec-server-log", SEGMENT_BYTES, Writers::Creator)?;
        Ok(Self {
            fd: Arc::new(fd),
            map,
            slot: 0,
            id: u64::from(memfd) << 32,
            base_seq: 0,
            base_offset: 0,
            used: SEGMENT_HEADER,
            records: 0,
            output: 0,
            sealed: false,
            touched: SEGMENT_HEADER,
        })
    }

    /// Begins a new life of the memory. No reader may still have it.
    fn begin(&mut self, slot: u32, base_seq: u64, base_offset: u64) {
        self.id += 1;
        self.slot = slot;
        self.base_seq = base_seq;
        self.base_offset = base_offset;
        self.used = SEGMENT_HEADER;
        self.records = 0;
        self.output = 0;
        self.sealed = false;
        let shared = SharedHeader::of(&self.map);
        shared.layout.store(LAYOUT, Ordering::Relaxed);
        shared.slot.store(slot, Ordering::Relaxed);
        shared.id.store(self.id, Ordering::Relaxed);
        shared.base_seq.store(base_seq, Ordering::Relaxed);
        shared.base_offset.store(base_offset, Ordering::Relaxed);
        shared.sealed.store(0, Ordering::Relaxed);
        shared.output.store(0, Ordering::Relaxed);
        shared.records.store(0, Ordering::Relaxed);
        shared.magic.store(SEGMENT_MAGIC, Ordering::Relaxed);
        let used = u32::try_from(SEGMENT_HEADER).expect("the header is 64 bytes");
        shared.commit.store(used, Ordering::Release);
    }

    /// Its number, never used twice; the upper half names the memfd.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The memfd, to be handed to a reader, who can map it for reading only.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The same to be kept until it can be handed over: a copy of its own might not be had.
    pub fn shared_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// The log that it belongs to.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Number of its first event.
    pub fn base_seq(&self) -> u64 {
        self.base_seq
    }

    /// Output bytes before it.
    pub fn base_offset(&self) -> u64 {
        self.base_offset
    }

    /// Number of its last event; `base_seq - 1` while it is empty.
    pub fn last_seq(&self) -> u64 {
        self.next_seq() - 1
    }

    /// Output bytes in it.
    pub fn output_bytes(&self) -> u64 {
        u64::from(self.output)
    }

    /// Whether nothing is appended any more.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Replaces `out` by the bytes of the segment's file, with a checksum per record. Allocates nothing if `out` has the
    /// capacity of a segment.
    pub fn encode_for_disk(&self, out: &mut Vec<u8>) {
        let header = SegmentHeader {
            slot: self.slot,
            id: self.id,
            base_seq: self.base_seq,
            base_offset: self.base_offset,
            commit: u32::try_from(self.used).expect("a segment is 1 MiB"),
            sealed: u32::from(self.sealed),
            output: self.output,
            records: self.records,
        };
        out.clear();
        out.extend_from_slice(&header.encode_with_checksum());
        out.extend_from_slice(self.committed());
        layout::set_checksums(&mut out[SEGMENT_HEADER..]);
    }

    /// The payloads of its output records of one stream.
    pub(crate) fn output(&self, stream: u8) -> impl Iterator<Item = &[u8]> {
        let mut left = self.committed();
        std::iter::from_fn(move || {
            loop {
                let header = RecordHeader::decode(left.first_chunk()?)?;
                let len = usize::try_from(header.len).ok()?;
                let payload = left.get(RECORD_HEADER..RECORD_HEADER + len)?;
                left = left.get(record_bytes(len)..)?;
                if header.kind == KIND_OUTPUT && header.stream == stream {
                    return Some(payload);
                }
            }
        })
    }

    /// Bytes that a payload at the end could have.
    pub(crate) fn room(&self) -> usize {
        (SEGMENT_BYTES - self.used).saturating_sub(RECORD_HEADER).min(RECORD_MAX)
    }

    /// The same for output, which leaves room for the end of the log.
    pub(crate) fn output_room(&self) -> usize {
        (SEGMENT_BYTES - self.used).saturating_sub(RECORD_HEADER + END_BYTES).min(RECORD_MAX)
    }

    /// The payload of the next record; readers do not look there before it is committed.
    pub(crate) fn payload_mut(&mut self) -> &mut [u8] {
        let len = self.room();
        // SAFETY: `room` keeps header and payload inside the mapping; `&mut self` is the only writer, and readers look only
        // below the commit. The bytes of a memfd are always initialised.
        unsafe {
            let start = self.map.start().add(self.used + RECORD_HEADER);
            std::slice::from_raw_parts_mut(start.as_ptr(), len)
        }
    }

    /// Commits the record whose payload was put into [`Self::payload_mut`]; gives its number.
    pub(crate) fn commit(&mut self, kind: u8, stream: u8, len: usize) -> u64 {
        assert!(!self.sealed && len <= self.room(), "a record fits its segment");
        failpoint::step("append");
        let header = RecordHeader {
            len: u32::try_from(len).expect("a payload is at most 64 KiB"),
            kind,
            stream,
            crc: 0,
            seq: self.next_seq(),
        };
        let raw = header.encode();
        let end = self.used + record_bytes(len);
        // SAFETY: `used` plus the header is inside the mapping as `room` was checked, and nobody reads above the commit.
        unsafe {
            let start = self.map.start().add(self.used);
            start.copy_from_nonoverlapping(std::ptr::NonNull::from(&raw).cast(), RECORD_HEADER);
        }
        self.used = end;
        self.touched = self.touched.max(end);
        self.records += 1;
        self.output += u32::try_from(header.output_bytes()).expect("a payload is at most 64 KiB");
        let shared = SharedHeader::of(&self.map);
        shared.output.store(self.output, Ordering::Relaxed);
        shared.records.store(self.records, Ordering::Relaxed);
        let commit = u32::try_from(end).expect("a segment is 1 MiB");
        failpoint::step("commit");
        shared.commit.store(commit, Ordering::Release);
        header.seq
    }

    pub(crate) fn seal(&mut self) {
        self.sealed = true;
        SharedHeader::of(&self.map).sealed.store(1, Ordering::Release);
    }

    pub(crate) fn info(&self) -> SegmentInfo {
        SegmentInfo {
            id: self.id,
            base_seq: self.base_seq,
            base_offset: self.base_offset,
            place: Place::Memory,
            sealed: self.sealed,
        }
    }

    fn next_seq(&self) -> u64 {
        self.base_seq + u64::from(self.records)
    }

    fn committed(&self) -> &[u8] {
        // SAFETY: `used` is inside the mapping, and bytes below it are written by nobody until the next `begin`, which needs
        // `&mut self`.
        unsafe {
            let start = self.map.start().add(SEGMENT_HEADER);
            std::slice::from_raw_parts(start.as_ptr(), self.used - SEGMENT_HEADER)
        }
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").field("info", &self.info()).field("used", &self.used).finish_non_exhaustive()
    }
}

/// Makes segments and keeps a few free ones for reuse.
#[derive(Debug, Default)]
pub struct Pool {
    free: Vec<Segment>,
    made: u32,
}

impl Pool {
    /// An empty pool.
    pub fn new() -> Self {
        Self { free: Vec::with_capacity(POOL_MAX), made: 0 }
    }

    /// Whether the next segment is one that was there before, and costs neither memory nor a descriptor.
    pub fn has_spare(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes back a segment that no reader has any more, beside so many that are in use. Where the pool is full the memory is freed
    /// instead, and the id returned so that readers can be told to unmap it.
    pub fn recycle(&mut self, segment: Segment, in_use: usize) -> Option<u64> {
        let touched: usize = self.free.iter().map(|free| free.touched).sum();
        let most = (in_use / POOL_SHARE).clamp(POOL_LEAST, POOL_MOST) * SEGMENT_BYTES;
        if self.free.len() < POOL_MAX && touched + segment.touched <= most {
            self.free.push(segment);
            return None;
        }
        Some(segment.id())
    }

    /// Frees the spare segments and gives the last id of each, so that readers can be told to unmap them.
    pub fn trim_idle(&mut self) -> Vec<u64> {
        self.free.drain(..).map(|segment| segment.id()).collect()
    }

    pub(crate) fn take(&mut self, slot: u32, base_seq: u64, base_offset: u64) -> io::Result<Segment> {
        let mut segment = match self.free.pop() {
            // The lower half of an id counts the lives of a memfd; before it runs over the memory is replaced.
            Some(segment) if segment.id as u32 != u32::MAX => segment,
            Some(_) | None => {
                let segment = Segment::create(self.made)?;
                self.made += 1;
                segment
            }
        };
        segment.begin(slot, base_seq, base_offset);
        Ok(segment)
    }
}
