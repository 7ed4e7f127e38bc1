//! A reader's place in a log. Moved only by the chain that it reads.

/// A place in a log: between two events, also where the log is not retained any more or does not reach yet.
///
/// It may be used with any chain of the same log; what it remembers of segments is a hint that the chain verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Number of the event to read next.
    pub(crate) next_seq: u64,
    /// Output bytes before `next_seq`, where known.
    pub(crate) offset: Option<u64>,
    pub(crate) hint: Option<Hint>,
}

/// Where the chain looked last: at or before the event to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) segment: u64,
    /// Index of the segment, counted from the first one that the chain ever had.
    pub(crate) index: u64,
    /// Position in the records of the segment.
    pub(crate) pos: usize,
    /// Number of the event at `pos`.
    pub(crate) seq: u64,
    /// Output bytes before `pos`.
    pub(crate) offset: u64,
}

impl Cursor {
    /// Before the first event.
    pub fn start() -> Self {
        Self::after_with_offset(0, 0)
    }

    /// After event `seq`; how many output bytes lie before it is found out by the first read.
    pub fn after(seq: u64) -> Self {
        Self { next_seq: seq.saturating_add(1), offset: (seq == 0).then_some(0), hint: None }
    }

    /// After event `seq`, which ends at output byte `offset`; so a gap is exact although the events before it are gone.
    pub fn after_with_offset(seq: u64, offset: u64) -> Self {
        Self { next_seq: seq.saturating_add(1), offset: Some(offset), hint: None }
    }

    /// Number of the event to read next.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Output bytes before the event to read next, where known.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }
}
