//! Segments as the holder owns them, and the pool that creates and reuses them.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
};

use super::{
    failpoint,
    layout::{
        self, END_BYTES, KIND_OUTPUT, LAYOUT, RECORD_HEADER, RECORD_MAX, RecordHeader, SEGMENT_BYTES, SEGMENT_HEADER,
        SEGMENT_MAGIC, SegmentHeader, record_at, record_bytes,
    },
    mapping::SharedSegmentHeader,
    memory::{MemoryMap, WriteAccess},
};

/// The pool limits its free memory to the memory lent to readers divided by this.
const POOL_SHARE: usize = 2;

/// Least and greatest value of that limit, in segments. The least is enough for the hand-over between one full log and
/// its reader. With many logs, readers return more segments at a time, so the limit grows.
const FREE_LIMIT_MIN: usize = 4;
const FREE_LIMIT_MAX: usize = 16;

/// Maximum number of free segments. It is above `FREE_LIMIT_MAX`, because only touched pages count as free memory, and
/// most segments of short processes have touched only one or two.
const FREE_SEGMENTS_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentLocation {
    /// In a memfd of the holder.
    Memory,
    /// In a file in the session's directory.
    Disk,
}

/// The description of a segment that holder and server share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Unique among the segments that one holder creates, even if the memory is reused; see [`memfd_of`].
    pub id: u64,
    /// Sequence number of the first event.
    pub base_seq: u64,
    /// Output bytes of the log before this segment.
    pub base_offset: u64,
    pub location: SegmentLocation,
    /// No more records will be appended.
    pub sealed: bool,
}

/// The number of the memfd that holds a segment: the upper half of the segment's id.
///
/// The memory is reused for later segments, whose ids have the same upper half. A reader can therefore keep its
/// mapping, and the holder does not have to send the fd again.
pub const fn memfd_of(id: u64) -> u64 {
    id >> 32
}

/// A segment in the holder: memfd and writable mapping.
///
/// Positions and counts are kept here. The holder only writes the shared header and never reads it back, so no reader
/// can mislead the writer.
pub struct Segment {
    fd: Arc<OwnedFd>,
    map: MemoryMap,
    slot: u32,
    id: u64,
    base_seq: u64,
    base_offset: u64,
    /// Bytes in use, including the header.
    used: usize,
    records: u32,
    output: u32,
    sealed: bool,
    /// Highest value that `used` ever had, also for earlier segments in the same memfd. Up to here the memfd has pages
    /// in memory.
    touched: usize,
}

impl Segment {
    fn create(memfd: u32) -> io::Result<Self> {
        let (fd, map) = MemoryMap::create("exec-server-log", SEGMENT_BYTES, WriteAccess::Creator)?;
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

    /// Starts a new segment, with a new id, in this memory. All readers must have returned the old one.
    fn begin(&mut self, slot: u32, base_seq: u64, base_offset: u64) {
        self.id += 1;
        self.slot = slot;
        self.base_seq = base_seq;
        self.base_offset = base_offset;
        self.used = SEGMENT_HEADER;
        self.records = 0;
        self.output = 0;
        self.sealed = false;
        let shared = SharedSegmentHeader::of(&self.map);
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
        // Stored last, with release: a reader that loads this commit sees the new header.
        shared.commit.store(used, Ordering::Release);
    }

    /// The id of the segment. A holder never uses an id twice. The upper half is the number of the memfd.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The memfd to pass to a reader, which can map it read-only. The shared handle can be kept until it is sent.
    /// Unlike a `dup`, this cannot fail when fds are exhausted.
    pub fn shared_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// The slot of the log that the segment belongs to.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Sequence number of the last event, or `base_seq - 1` if the segment is empty.
    pub fn last_seq(&self) -> u64 {
        self.next_seq() - 1
    }

    /// Output bytes in this segment.
    pub fn output_bytes(&self) -> u64 {
        u64::from(self.output)
    }

    /// Whether no more records will be appended.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Replaces `out` with the contents of the segment's file, including a checksum per record. Does not allocate if
    /// `out` has the capacity of a segment.
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

    /// The payloads of the output records of one stream.
    pub(crate) fn output(&self, stream: u8) -> impl Iterator<Item = &[u8]> {
        let records = self.committed();
        let mut pos = 0;
        let next = move || {
            let found = record_at(records, pos).ok()??;
            pos = found.end;
            Some(found)
        };
        let of_stream = move |header: &RecordHeader| header.kind == KIND_OUTPUT && header.stream == stream;
        std::iter::from_fn(next).filter(move |found| of_stream(&found.header)).map(|found| found.payload)
    }

    /// Largest payload that still fits.
    pub(crate) fn room(&self) -> usize {
        (SEGMENT_BYTES - self.used).saturating_sub(RECORD_HEADER).min(RECORD_MAX)
    }

    /// Largest output payload that still fits. Leaves `END_BYTES` free for the exit and close events.
    pub(crate) fn output_room(&self) -> usize {
        (SEGMENT_BYTES - self.used).saturating_sub(RECORD_HEADER + END_BYTES).min(RECORD_MAX)
    }

    /// The payload buffer of the next record. Readers do not read it before the commit.
    pub(crate) fn payload_mut(&mut self) -> &mut [u8] {
        let len = self.room();
        // SAFETY: `room` keeps header and payload inside the mapping. `&mut self` is the only writer, and readers read
        // only below the commit. The bytes of a memfd are always initialised.
        unsafe {
            let start = self.map.start().add(self.used + RECORD_HEADER);
            std::slice::from_raw_parts_mut(start.as_ptr(), len)
        }
    }

    /// Commits the record whose payload is in [`Self::payload_mut`]. Returns its sequence number.
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
        // SAFETY: `room` was checked, so `used` plus the header is inside the mapping. No reader reads above the
        // commit.
        unsafe {
            let start = self.map.start().add(self.used);
            start.copy_from_nonoverlapping(std::ptr::NonNull::from(&raw).cast(), RECORD_HEADER);
        }
        self.used = end;
        self.touched = self.touched.max(end);
        self.records += 1;
        self.output += u32::try_from(header.output_bytes()).expect("a payload is at most 64 KiB");
        let shared = SharedSegmentHeader::of(&self.map);
        shared.output.store(self.output, Ordering::Relaxed);
        shared.records.store(self.records, Ordering::Relaxed);
        let commit = u32::try_from(end).expect("a segment is 1 MiB");
        failpoint::step("commit");
        // Publishes the record: its bytes and the counters above are stored before.
        shared.commit.store(commit, Ordering::Release);
        header.seq
    }

    pub(crate) fn seal(&mut self) {
        self.sealed = true;
        SharedSegmentHeader::of(&self.map).sealed.store(1, Ordering::Release);
    }

    pub fn info(&self) -> SegmentInfo {
        SegmentInfo {
            id: self.id,
            base_seq: self.base_seq,
            base_offset: self.base_offset,
            location: SegmentLocation::Memory,
            sealed: self.sealed,
        }
    }

    fn next_seq(&self) -> u64 {
        self.base_seq + u64::from(self.records)
    }

    fn committed(&self) -> &[u8] {
        // SAFETY: `used` is inside the mapping. Bytes below `used` are not written until the next `begin`, which needs
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

/// Creates segments and keeps some free ones for reuse.
#[derive(Debug, Default)]
pub struct SegmentPool {
    free: Vec<Segment>,
    /// Number of memfds created so far.
    made: u32,
}

impl SegmentPool {
    pub fn new() -> Self {
        Self { free: Vec::with_capacity(FREE_SEGMENTS_MAX), made: 0 }
    }

    /// Whether the next segment can reuse a free memfd and needs no new fd.
    pub fn has_spare(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes back a segment that all readers have returned. `lent` is the number of segments that are lent to readers.
    ///
    /// If the pool is full, the memory is freed and the segment's id is returned, so that the caller can tell readers
    /// to unmap it.
    pub fn recycle(&mut self, segment: Segment, lent: usize) -> Option<u64> {
        let touched: usize = self.free.iter().map(|free| free.touched).sum();
        let most = (lent / POOL_SHARE).clamp(FREE_LIMIT_MIN, FREE_LIMIT_MAX) * SEGMENT_BYTES;
        if self.free.len() < FREE_SEGMENTS_MAX && touched + segment.touched <= most {
            self.free.push(segment);
            return None;
        }
        Some(segment.id())
    }

    /// Frees all spare segments. Returns the last id of each, so that the caller can tell readers to unmap them.
    pub fn trim_idle(&mut self) -> Vec<u64> {
        self.free.drain(..).map(|segment| segment.id()).collect()
    }

    pub(crate) fn take(&mut self, slot: u32, base_seq: u64, base_offset: u64) -> io::Result<Segment> {
        let mut segment = match self.free.pop() {
            // The lower half of an id counts the reuses of a memfd. Before it overflows, replace the memfd.
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
