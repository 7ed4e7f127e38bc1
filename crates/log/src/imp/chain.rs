//! A reader's view of the log of one process: its position, the list of segments and the walk through their records.
//!
//! A chain does no I/O: the caller loads disk segments and maps memory segments.

use std::{collections::VecDeque, sync::Arc};

use super::{
    event::LogRecord,
    layout::{EVENT_OVERHEAD, FoundRecord, MalformedRecord, record_at},
    loaded::LoadedSegment,
    mapping::MappedSegment,
    segment::{SegmentInfo, SegmentLocation},
};

/// A position between two events of a log. It can also be before the first retained event or beyond the newest one.
///
/// A cursor works with any chain of the same log. The segment position that it remembers is only a hint, which the
/// chain verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Sequence number of the event to read next.
    next_seq: u64,
    /// Output bytes before `next_seq`, if known.
    offset: Option<u64>,
    hint: Option<CursorHint>,
}

/// Where the chain found the cursor last: at or before the event to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CursorHint {
    segment: u64,
    /// Index of the segment, counted from the first segment that the chain ever had.
    index: u64,
    /// Byte position in the records of the segment.
    pos: usize,
    /// Sequence number of the event at `pos`.
    seq: u64,
    /// Output bytes before `pos`.
    offset: u64,
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

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStep<'a> {
    /// The next event. The cursor is now after it.
    Record(LogRecord<'a>),
    /// Events that are no longer retained. The cursor is now after them.
    Gap {
        /// First missing sequence number.
        from_seq: u64,
        /// Last missing sequence number.
        to_seq: u64,
        /// Missing output bytes. An upper bound if the cursor does not know its offset.
        bytes: u64,
    },
    /// There are no more events at the moment.
    End,
    /// The next event is in this disk segment. Pass its contents to [`SegmentChain::set_loaded`] or call
    /// [`SegmentChain::remove`], then read again.
    NeedsLoad(u64),
    /// The last segment, which has this id, is corrupt from here on. The cursor does not move. Treat the rest of the
    /// log as lost.
    Damaged(u64),
}

enum SegmentBody {
    /// The owner of a mapping. To get the mapping, write `(**lent).as_ref()`: `lent.as_ref()` would be `Arc::as_ref`.
    Memory(Arc<dyn AsRef<MappedSegment> + Send + Sync>),
    Disk(Option<Arc<LoadedSegment>>),
}

struct ChainEntry {
    info: SegmentInfo,
    body: SegmentBody,
}

impl ChainEntry {
    /// The committed records. `None` while a disk segment is not loaded.
    fn records(&self) -> Option<&[u8]> {
        match &self.body {
            SegmentBody::Memory(lent) => Some((**lent).as_ref().records()),
            SegmentBody::Disk(loaded) => loaded.as_ref().map(|loaded| loaded.records()),
        }
    }

    fn is_sealed(&self) -> bool {
        match &self.body {
            SegmentBody::Memory(lent) => self.info.sealed || (**lent).as_ref().is_sealed(),
            SegmentBody::Disk(_) => true,
        }
    }

    /// Sequence number after the last event, and output bytes up to there. `None` while a disk segment is not loaded.
    fn end(&self) -> Option<(u64, u64)> {
        let (records, output) = match &self.body {
            SegmentBody::Memory(lent) => (**lent).as_ref().totals(),
            SegmentBody::Disk(loaded) => loaded.as_ref()?.totals(),
        };
        Some((self.info.base_seq.saturating_add(records), self.info.base_offset.saturating_add(output)))
    }
}

/// The segments of a log that a reader knows, in order.
#[derive(Default)]
pub struct SegmentChain {
    entries: VecDeque<ChainEntry>,
    /// Number of segments removed from the front so far. A cursor's hint counts from the first segment ever, so it
    /// stays valid.
    shifted: u64,
    /// Sequence number and output offset at the end of the events that are known to be gone. Used when no later segment
    /// is known.
    gone: (u64, u64),
}

impl SegmentChain {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a segment in memory. `lent` owns the mapping of that memory. The chain keeps `lent` until the segment is
    /// taken, removed or moved to disk. So the `drop` of `L` can reuse the mapping.
    pub fn push_memory<L>(&mut self, info: SegmentInfo, lent: Arc<L>)
    where
        L: AsRef<MappedSegment> + Send + Sync + 'static,
    {
        self.push(SegmentInfo { location: SegmentLocation::Memory, ..info }, SegmentBody::Memory(lent));
    }

    pub fn push_disk(&mut self, info: SegmentInfo) {
        let info = SegmentInfo { location: SegmentLocation::Disk, sealed: true, ..info };
        self.push(info, SegmentBody::Disk(None));
    }

    /// Moves a segment from memory to disk after the holder has spilled it.
    pub fn set_on_disk(&mut self, id: u64) {
        if let Some(entry) = self.find_mut(id).filter(|entry| entry.info.location == SegmentLocation::Memory) {
            entry.info.location = SegmentLocation::Disk;
            entry.info.sealed = true;
            entry.body = SegmentBody::Disk(None);
        }
    }

    /// Attaches the contents of disk segment `id`. Returns false if the chain has no such disk segment, or if `loaded`
    /// belongs to another segment.
    pub fn set_loaded(&mut self, id: u64, loaded: Arc<LoadedSegment>) -> bool {
        let from_file = loaded.info();
        match self.find_mut(id) {
            Some(entry)
                if entry.info.location == SegmentLocation::Disk
                    && from_file.id == id
                    && from_file.base_seq == entry.info.base_seq =>
            {
                entry.body = SegmentBody::Disk(Some(loaded));
                true
            }
            Some(_) | None => false,
        }
    }

    /// Drops the contents of a disk segment. The next read there returns [`ReadStep::NeedsLoad`].
    pub fn unload(&mut self, id: u64) {
        if let Some(SegmentBody::Disk(loaded)) = self.find_mut(id).map(|entry| &mut entry.body) {
            *loaded = None;
        }
    }

    /// Removes a segment that the holder has dropped or whose file cannot be read. Readers get a gap.
    pub fn remove(&mut self, id: u64) {
        let Some(index) = self.entries.iter().position(|entry| entry.info.id == id) else {
            return;
        };
        if let Some(entry) = self.entries.remove(index) {
            // The end of a disk segment is unknown while it is not loaded, but its start is known.
            self.forget_below(entry.info.base_seq, entry.info.base_offset);
            if let Some((seq, offset)) = entry.end() {
                self.forget_below(seq, offset);
            }
            // Removing the first segment moves all others up by one, which `shifted` compensates. After any other
            // removal, the hints into later segments fail their check and the segment is searched by sequence number.
            self.shifted += u64::from(index == 0);
        }
    }

    /// Records that all events below `seq` that are in no segment of the chain are gone. The log has `offset` output
    /// bytes before `seq`. A reader needs this to report the gap if no later segment shows it.
    pub fn forget_below(&mut self, seq: u64, offset: u64) {
        if seq > self.gone.0 {
            self.gone = (seq, offset);
        }
    }

    /// Removes the sealed segments whose events are all at or below `seq` and that are not needed for the last
    /// `keep_bytes` of the log. Returns their ids, oldest first, so that the caller can release them.
    ///
    /// Each event counts [`EVENT_OVERHEAD`] more than its output. If only the output counted, kept small events could
    /// fill the log, and its writer would wait forever. Nothing is kept of a log without output.
    pub fn take_up_to(&mut self, seq: u64, keep_bytes: u64) -> Vec<u64> {
        let size = |(seq, offset): (u64, u64)| offset.saturating_add(seq.saturating_mul(EVENT_OVERHEAD));
        let end_of_log = self.end();
        let limit = size(end_of_log).saturating_sub(keep_bytes);
        let mut taken = Vec::new();
        while let Some(entry) = self.entries.front().filter(|entry| entry.is_sealed()) {
            let end = match self.entries.get(1) {
                Some(next) => Some((next.info.base_seq, next.info.base_offset)),
                None => entry.end(),
            };
            let is_kept = |end: (u64, u64)| size(end) > limit && end_of_log.1 > 0;
            let is_taken = |end: &(u64, u64)| end.0 <= seq.saturating_add(1) && !is_kept(*end);
            let Some((next_seq, offset)) = end.filter(is_taken) else { break };
            taken.push(entry.info.id);
            self.entries.pop_front();
            self.shifted += 1;
            self.forget_below(next_seq, offset);
        }
        taken
    }

    /// Sequence number of the first retained event, and output bytes before it.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.entries.front().map(|entry| (entry.info.base_seq, entry.info.base_offset))
    }

    pub fn segments(&self) -> impl Iterator<Item = SegmentInfo> + '_ {
        self.entries.iter().map(|entry| entry.info)
    }

    /// Output bytes that can still be read, of a log with `written` bytes in total.
    pub fn retained_bytes(&self, written: u64) -> u64 {
        self.first().map_or(0, |(_, offset)| written.saturating_sub(offset))
    }

    /// Output bytes of the log, as far as its segments are known.
    pub fn end_offset(&self) -> u64 {
        self.end().1
    }

    /// Sequence number after the last known event, and output bytes up to there.
    fn end(&self) -> (u64, u64) {
        let base = |entry: &ChainEntry| (entry.info.base_seq, entry.info.base_offset);
        self.entries.back().map_or(self.gone, |entry| entry.end().unwrap_or_else(|| base(entry)))
    }

    /// Reads at the cursor and moves the cursor past the result.
    pub fn read<'a>(&'a self, cursor: &mut Cursor) -> ReadStep<'a> {
        match self.seek(cursor) {
            SeekStep::Record(found, record) => {
                cursor.next_seq = record.seq.saturating_add(1);
                let end = record.offset.saturating_add(found.header.output_bytes());
                cursor.offset = Some(end);
                if let Some(hint) = &mut cursor.hint {
                    *hint = CursorHint { pos: found.end, seq: cursor.next_seq, offset: end, ..*hint };
                }
                ReadStep::Record(record)
            }
            SeekStep::Hole { seq, offset } => {
                let from_seq = cursor.next_seq;
                let bytes = offset.saturating_sub(cursor.offset.unwrap_or(0));
                *cursor = Cursor { next_seq: seq, offset: Some(offset), hint: None };
                ReadStep::Gap { from_seq, to_seq: seq - 1, bytes }
            }
            SeekStep::End => ReadStep::End,
            SeekStep::NeedsLoad(id) => ReadStep::NeedsLoad(id),
            SeekStep::Damaged(id) => ReadStep::Damaged(id),
        }
    }

    /// Searches from `cursor` on for the gap that contains event `seq` and the event after it. Returns the position
    /// before the gap.
    ///
    /// Returns `None` if there is no such gap, or if the search reaches a disk segment that is not loaded.
    pub fn before_gap(&self, cursor: Cursor, seq: u64) -> Option<Cursor> {
        // Avoid the search if the event after `seq` is not in a gap.
        if !matches!(self.read(&mut Cursor::after(seq)), ReadStep::Gap { .. }) {
            return None;
        }
        let mut probe = cursor;
        loop {
            let before = probe;
            match self.read(&mut probe) {
                ReadStep::Gap { to_seq, .. } if to_seq > seq => return Some(before),
                ReadStep::Record(record) if record.seq < seq => {}
                ReadStep::Gap { .. } => {}
                ReadStep::Record(_) | ReadStep::End | ReadStep::NeedsLoad(_) | ReadStep::Damaged(_) => return None,
            }
        }
    }

    /// Output bytes of the event that the next read returns. `None` if the next read does not return an event.
    pub fn peek_len(&self, cursor: &Cursor) -> Option<usize> {
        let mut cursor = *cursor;
        match self.seek(&mut cursor) {
            SeekStep::Record(found, _) => usize::try_from(found.header.output_bytes()).ok(),
            SeekStep::Hole { .. } | SeekStep::End | SeekStep::NeedsLoad(_) | SeekStep::Damaged(_) => None,
        }
    }

    /// Finds what is at the cursor without moving it. Updates only the cursor's hint, and its offset as soon as that is
    /// known.
    fn seek<'a>(&'a self, cursor: &mut Cursor) -> SeekStep<'a> {
        let Some(index) = self.index_of(cursor) else {
            return self.hole_or_end(cursor, 0);
        };
        let entry = &self.entries[index];
        let id = entry.info.id;
        let Some(region) = entry.records() else {
            return SeekStep::NeedsLoad(id);
        };
        match self.walk(cursor, index, region) {
            Ok(Some((found, record))) => SeekStep::Record(found, record),
            // If events after this segment are known to be gone, the rest of it belongs to their gap.
            Err(MalformedRecord) if index + 1 == self.entries.len() && self.gone.0 <= cursor.next_seq => {
                SeekStep::Damaged(id)
            }
            Ok(None) | Err(MalformedRecord) => self.hole_or_end(cursor, index + 1),
        }
    }

    /// The result for a cursor that is between two entries: before the base of entry `index`, or after the last entry.
    fn hole_or_end<'a>(&self, cursor: &Cursor, index: usize) -> SeekStep<'a> {
        let (seq, offset) = match self.entries.get(index) {
            Some(next) => (next.info.base_seq, next.info.base_offset),
            None => self.gone,
        };
        if seq > cursor.next_seq { SeekStep::Hole { seq, offset } } else { SeekStep::End }
    }

    /// Walks from the hint, or from the start of the segment, to the cursor's event. Returns `None` at the end of the
    /// segment.
    fn walk<'a>(&self, cursor: &mut Cursor, index: usize, region: &'a [u8]) -> WalkResult<'a> {
        let info = self.entries[index].info;
        let mut hint = match cursor.hint {
            Some(hint) if hint.segment == info.id => hint,
            Some(_) | None => {
                CursorHint { segment: info.id, index: 0, pos: 0, seq: info.base_seq, offset: info.base_offset }
            }
        };
        hint.index = self.shifted + index as u64;
        let walked = loop {
            match record_at(region, hint.pos) {
                Ok(Some(found)) if found.header.seq != hint.seq => break Err(MalformedRecord),
                Ok(Some(found)) if hint.seq < cursor.next_seq => {
                    hint.pos = found.end;
                    hint.seq += 1;
                    hint.offset = hint.offset.saturating_add(found.header.output_bytes());
                }
                Ok(Some(found)) => {
                    let event = found.event().ok_or(MalformedRecord);
                    break event.map(|event| Some((found, LogRecord { seq: hint.seq, offset: hint.offset, event })));
                }
                Ok(None) => break Ok(None),
                Err(malformed) => break Err(malformed),
            }
        };
        if hint.seq == cursor.next_seq {
            cursor.offset = Some(hint.offset);
        }
        cursor.hint = Some(hint);
        walked
    }

    /// Index of the last segment that begins at or before the cursor.
    fn index_of(&self, cursor: &Cursor) -> Option<usize> {
        let hinted = cursor.hint.and_then(|hint| {
            let index = usize::try_from(hint.index.checked_sub(self.shifted)?).ok()?;
            let found = self.entries.get(index)?.info.id == hint.segment;
            let is_last = match self.entries.get(index + 1) {
                Some(next) => next.info.base_seq > cursor.next_seq,
                None => true,
            };
            (found && is_last).then_some(index)
        });
        hinted.or_else(|| self.entries.partition_point(|entry| entry.info.base_seq <= cursor.next_seq).checked_sub(1))
    }

    fn push(&mut self, info: SegmentInfo, body: SegmentBody) {
        if let Some(entry) = self.find_mut(info.id) {
            *entry = ChainEntry { info, body };
            return;
        }
        let index = self.entries.partition_point(|entry| entry.info.base_seq <= info.base_seq);
        self.entries.insert(index, ChainEntry { info, body });
    }

    fn find_mut(&mut self, id: u64) -> Option<&mut ChainEntry> {
        self.entries.iter_mut().find(|entry| entry.info.id == id)
    }
}

type WalkResult<'a> = Result<Option<(FoundRecord<'a>, LogRecord<'a>)>, MalformedRecord>;

enum SeekStep<'a> {
    Record(FoundRecord<'a>, LogRecord<'a>),
    /// No event exists below `seq`, which has `offset` output bytes before it.
    Hole {
        seq: u64,
        offset: u64,
    },
    End,
    NeedsLoad(u64),
    Damaged(u64),
}

impl std::fmt::Debug for SegmentChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.segments()).finish()
    }
}
