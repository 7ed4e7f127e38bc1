//! A segment in shared memory as its reader sees it, and the header that both sides share.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use rustix::mm::ProtFlags;

use super::{
    layout::{LAYOUT, SEGMENT_BYTES, SEGMENT_HEADER, SEGMENT_MAGIC},
    memory::{MemoryMap, OpenError},
};

/// The header of a segment in memory. See `layout.rs` for its layout.
#[repr(C)]
pub(crate) struct SharedSegmentHeader {
    pub(crate) magic: AtomicU64,
    pub(crate) layout: AtomicU32,
    pub(crate) slot: AtomicU32,
    pub(crate) id: AtomicU64,
    pub(crate) base_seq: AtomicU64,
    pub(crate) base_offset: AtomicU64,
    /// Bytes in use. Stored with release, after the bytes themselves.
    pub(crate) commit: AtomicU32,
    pub(crate) sealed: AtomicU32,
    /// Output bytes below `commit`. Stored before `commit`.
    pub(crate) output: AtomicU32,
    /// Records below `commit`. Stored before `commit`.
    pub(crate) records: AtomicU32,
    pub(crate) reserved: [u32; 2],
}

const _: () = assert!(size_of::<SharedSegmentHeader>() == SEGMENT_HEADER);

impl SharedSegmentHeader {
    pub(crate) fn of(map: &MemoryMap) -> &Self {
        debug_assert_eq!(map.len(), SEGMENT_BYTES);
        // SAFETY: the mapping is page-aligned, outlives the borrow and is larger than the header. All used fields of
        // the header are atomics, so writes by the other process are not a data race.
        unsafe { map.start().cast().as_ref() }
    }
}

/// A segment of a holder, mapped read-only.
///
/// After the server returns the memory, the holder may reuse it for another segment. So no header field is cached here.
pub struct MappedSegment {
    map: MemoryMap,
}

impl MappedSegment {
    /// Maps a segment whose memfd a holder has sent, after checking size, seals, magic and layout.
    pub fn map(fd: OwnedFd) -> Result<Arc<Self>, OpenError> {
        let map = MemoryMap::open(&fd, SEGMENT_BYTES, ProtFlags::READ)?;
        let header = SharedSegmentHeader::of(&map);
        let magic = header.magic.load(Ordering::Acquire);
        if magic != SEGMENT_MAGIC {
            return Err(OpenError::Magic { found: magic });
        }
        let layout = header.layout.load(Ordering::Relaxed);
        if layout != LAYOUT {
            return Err(OpenError::Layout { expected: LAYOUT, found: layout });
        }
        Ok(Arc::new(Self { map }))
    }

    /// Id of the segment that is currently in this memory.
    pub fn id(&self) -> u64 {
        SharedSegmentHeader::of(&self.map).id.load(Ordering::Relaxed)
    }

    /// Slot of the log that currently uses this memory.
    pub fn slot(&self) -> u32 {
        SharedSegmentHeader::of(&self.map).slot.load(Ordering::Relaxed)
    }

    /// The committed records. The other process can store any `commit`, so the value is limited to the mapping.
    pub(crate) fn records(&self) -> &[u8] {
        let header = SharedSegmentHeader::of(&self.map);
        let commit = header.commit.load(Ordering::Acquire) as usize;
        let len = commit.min(SEGMENT_BYTES).saturating_sub(SEGMENT_HEADER);
        // SAFETY: header plus `len` is inside the mapping, which outlives the borrow. The bytes are initialised. The
        // writer stored `commit` with release, and does not change the bytes below it until the segment is returned.
        unsafe {
            let start = self.map.start().add(SEGMENT_HEADER);
            std::slice::from_raw_parts(start.as_ptr(), len)
        }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        let header = SharedSegmentHeader::of(&self.map);
        header.sealed.load(Ordering::Acquire) != 0
    }

    /// Records and output bytes committed so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let header = SharedSegmentHeader::of(&self.map);
        // The counters are stored before `commit`, so after this load they cover at least the committed records.
        header.commit.load(Ordering::Acquire);
        (u64::from(header.records.load(Ordering::Relaxed)), u64::from(header.output.load(Ordering::Relaxed)))
    }
}

/// [`SegmentChain::push_memory`](super::SegmentChain::push_memory) takes any owner of a mapping. With this, a mapping
/// can be its own owner.
impl AsRef<Self> for MappedSegment {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl std::fmt::Debug for MappedSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedSegment").field("id", &self.id()).finish()
    }
}
