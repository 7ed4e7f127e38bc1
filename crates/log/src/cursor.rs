//! A reader's position in a log. Only `SegmentChain` moves it.

/// A position between two events of a log. It can also be before the first retained event or beyond the newest one.
///
/// A cursor works with any chain of the same log. The segment position that it remembers is only a hint, which the
/// chain verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Sequence number of the event to read next.
    pub(crate) next_seq: u64,
    /// Output bytes before `next_seq`, if known.
    pub(crate) offset: Option<u64>,
    pub(crate) hint: Option<CursorHint>,
}

/// Where the chain found the cursor last: at or before the event to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CursorHint {
    pub(crate) segment: u64,
    /// Index of the segment, counted from the first segment that the chain ever had.
    pub(crate) index: u64,
    /// Byte position in the records of the segment.
    pub(crate) pos: usize,
    /// Sequence number of the event at `pos`.
    pub(crate) seq: u64,
    /// Output bytes before `pos`.
    pub(crate) offset: u64,
}

impl Cursor {
    /// A cursor before the first event.
    pub fn start() -> Self {
        Self::after_with_offset(0, 0)
    }

    /// A cursor after event `seq`. The first read determines the output offset.
    pub fn after(seq: u64) -> Self {
        Self { next_seq: seq.saturating_add(1), offset: (seq == 0).then_some(0), hint: None }
    }

    /// A cursor after event `seq`, which ends at output byte `offset`. With the offset known, the size of a gap is
    /// exact even if the events before the gap are gone.
    pub fn after_with_offset(seq: u64, offset: u64) -> Self {
        Self { next_seq: seq.saturating_add(1), offset: Some(offset), hint: None }
    }

    /// Sequence number of the event to read next.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Output bytes before the event to read next, if known.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }
}
