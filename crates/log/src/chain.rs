//! A reader's picture of one process's log: which segments there are, and walking through them. Loads nothing itself and does
//! not know who lent the memory.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    cursor::{Cursor, Hint},
    event::Record,
    layout::{At, Found, record_at},
    loaded::Loaded,
    mapping::Mapping,
    segment::{Place, SegmentInfo},
};

/// What a read gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The next event; the cursor is past it.
    Record(Record<'a>),
    /// Events that are not retained any more; the cursor is past them.
    Gap {
        /// First missing number.
        from_seq: u64,
        /// Last missing number.
        to_seq: u64,
        /// Output bytes missing. Where the cursor does not know its offset, the most that it can be.
        bytes: u64,
    },
    /// Nothing more at the moment.
    End,
    /// The next event is in this disk segment: give it to [`Chain::set_loaded`], or [`Chain::remove`] it, and read again.
    NeedsLoad(u64),
    /// The last segment, this one, does not hold together from here on; the cursor stays. Treat the log as lost at this place.
    Damaged(u64),
}

enum Body {
    Memory(Arc<dyn AsRef<Mapping> + Send + Sync>),
    Disk(Option<Arc<Loaded>>),
}

struct Entry {
    info: SegmentInfo,
    body: Body,
}

impl Entry {
    /// The committed records; none while the segment is on disk only.
    fn records(&self) -> Option<&[u8]> {
        match &self.body {
            Body::Memory(lent) => Some((**lent).as_ref().records()),
            Body::Disk(loaded) => loaded.as_ref().map(|loaded| loaded.records()),
        }
    }

    fn is_sealed(&self) -> bool {
        match &self.body {
            Body::Memory(lent) => self.info.sealed || (**lent).as_ref().is_sealed(),
            Body::Disk(_) => true,
        }
    }

    /// Number after its last event and output bytes up to there, as far as it can tell by itself.
    fn end(&self) -> Option<(u64, u64)> {
        let (records, output) = match &self.body {
            Body::Memory(lent) => (**lent).as_ref().totals(),
            Body::Disk(loaded) => loaded.as_ref()?.totals(),
        };
        Some((self.info.base_seq.saturating_add(records), self.info.base_offset.saturating_add(output)))
    }
}

/// The segments of a log that a reader knows of, in order.
#[derive(Default)]
pub struct Chain {
    entries: VecDeque<Entry>,
    /// Segments taken from the front so far, so that a cursor's hint survives it.
    shifted: u64,
    /// Number and output offset of the end of the newest segment that was removed; matters where no later one is known.
    gone: (u64, u64),
}

impl Chain {
    /// A chain without segments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a segment in memory. The chain keeps `lent` until the segment is taken, removed or moved to disk; dropping the last
    /// clone of it is how its owner learns that the memory can be given back.
    pub fn push_memory<L>(&mut self, info: SegmentInfo, lent: Arc<L>)
    where
        L: AsRef<Mapping> + Send + Sync + 'static,
    {
        self.push(SegmentInfo { place: Place::Memory, ..info }, Body::Memory(lent));
    }

    /// Adds a segment that is on disk.
    pub fn push_disk(&mut self, info: SegmentInfo) {
        let info = SegmentInfo { place: Place::Disk, sealed: true, ..info };
        self.push(info, Body::Disk(None));
    }

    /// Moves a segment from memory to disk, because the holder has spilled it.
    pub fn set_on_disk(&mut self, id: u64) {
        if let Some(entry) = self.find_mut(id).filter(|entry| entry.info.place == Place::Memory) {
            entry.info.place = Place::Disk;
            entry.info.sealed = true;
            entry.body = Body::Disk(None);
        }
    }

    /// Gives the contents of a disk segment; false means that the chain has no such disk segment, or that they are of another.
    pub fn set_loaded(&mut self, id: u64, loaded: Arc<Loaded>) -> bool {
        let from_file = loaded.info();
        match self.find_mut(id) {
            Some(entry)
                if entry.info.place == Place::Disk
                    && from_file.id == id
                    && from_file.base_seq == entry.info.base_seq =>
            {
                entry.body = Body::Disk(Some(loaded));
                true
            }
            Some(_) | None => false,
        }
    }

    /// Drops the contents of a disk segment; reading there needs them again.
    pub fn unload(&mut self, id: u64) {
        if let Some(Body::Disk(loaded)) = self.find_mut(id).map(|entry| &mut entry.body) {
            *loaded = None;
        }
    }

    /// Removes a segment that the holder has dropped, or whose file cannot be read; readers get a gap.
    pub fn remove(&mut self, id: u64) {
        let Some(index) = self.entries.iter().position(|entry| entry.info.id == id) else {
            return;
        };
        if let Some(entry) = self.entries.remove(index) {
            let base = (entry.info.base_seq, entry.info.base_offset);
            self.forget_below(base.0, base.1);
            if let Some((seq, offset)) = entry.end() {
                self.forget_below(seq, offset);
            }
            // Hints into the others stay true only if all of them move up by one; else they are found anew by number.
            self.shifted += u64::from(index == 0);
        }
    }

    /// Notes that everything below `seq`, which is `offset` output bytes, is gone: what a reader of an adopted log must be told
    /// although no segment is left that shows it.
    pub fn forget_below(&mut self, seq: u64, offset: u64) {
        if seq > self.gone.0 {
            self.gone = (seq, offset);
        }
    }

    /// Removes the sealed segments that lie wholly at or below `seq` and are not needed for the last `keep_bytes` of output.
    /// Gives their ids, oldest first, to be released.
    pub fn take_up_to(&mut self, seq: u64, keep_bytes: u64) -> Vec<u64> {
        let limit = self.end_offset().saturating_sub(keep_bytes);
        let mut taken = Vec::new();
        while let Some(entry) = self.entries.front().filter(|entry| entry.is_sealed()) {
            let end = match self.entries.get(1) {
                Some(next) => Some((next.info.base_seq, next.info.base_offset)),
                None => entry.end(),
            };
            let Some((next_seq, offset)) = end.filter(|end| end.0 <= seq.saturating_add(1) && end.1 <= limit) else {
                break;
            };
            taken.push(entry.info.id);
            self.entries.pop_front();
            self.shifted += 1;
            self.forget_below(next_seq, offset);
        }
        taken
    }

    /// Number of the first retained event and the output bytes before it.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.entries.front().map(|entry| (entry.info.base_seq, entry.info.base_offset))
    }

    /// The segments in order.
    pub fn segments(&self) -> impl Iterator<Item = SegmentInfo> + '_ {
        self.entries.iter().map(|entry| entry.info)
    }

    /// Output bytes that can still be read of a log with `written` bytes.
    pub fn retained_bytes(&self, written: u64) -> u64 {
        self.first().map_or(0, |(_, offset)| written.saturating_sub(offset))
    }

    /// Output bytes of the log, as far as its segments show.
    pub fn end_offset(&self) -> u64 {
        self.entries.back().map_or(self.gone.1, |entry| entry.end().map_or(entry.info.base_offset, |end| end.1))
    }

    /// Reads at the cursor and moves it past what is returned.
    pub fn read<'a>(&'a self, cursor: &mut Cursor) -> Step<'a> {
        match self.seek(cursor) {
            Sought::Record(found, record) => {
                cursor.next_seq = record.seq.saturating_add(1);
                let end = record.offset.saturating_add(found.header.output_bytes());
                cursor.offset = Some(end);
                if let Some(hint) = &mut cursor.hint {
                    *hint = Hint { pos: found.end, seq: cursor.next_seq, offset: end, ..*hint };
                }
                Step::Record(record)
            }
            Sought::Hole { seq, offset } => {
                let from_seq = cursor.next_seq;
                let bytes = offset.saturating_sub(cursor.offset.unwrap_or(0));
                *cursor = Cursor { next_seq: seq, offset: Some(offset), hint: None };
                Step::Gap { from_seq, to_seq: seq - 1, bytes }
            }
            Sought::End => Step::End,
            Sought::NeedsLoad(id) => Step::NeedsLoad(id),
            Sought::Damaged(id) => Step::Damaged(id),
        }
    }

    /// The place before the gap that follows event `seq`, reached from `cursor` on; none where no gap follows, or the way is not in memory.
    pub fn before_gap(&self, cursor: Cursor, seq: u64) -> Option<Cursor> {
        if !matches!(self.read(&mut Cursor::after(seq)), Step::Gap { .. }) {
            return None;
        }
        let mut probe = cursor;
        loop {
            let before = probe;
            match self.read(&mut probe) {
                Step::Gap { to_seq, .. } if to_seq > seq => return Some(before),
                Step::Record(record) if record.seq < seq => {}
                Step::Gap { .. } => {}
                Step::Record(_) | Step::End | Step::NeedsLoad(_) | Step::Damaged(_) => return None,
            }
        }
    }

    /// Output bytes of the event that the next read gives; none where it would give something else.
    pub fn peek_len(&self, cursor: &Cursor) -> Option<usize> {
        let mut cursor = *cursor;
        match self.seek(&mut cursor) {
            Sought::Record(found, _) => usize::try_from(found.header.output_bytes()).ok(),
            Sought::Hole { .. } | Sought::End | Sought::NeedsLoad(_) | Sought::Damaged(_) => None,
        }
    }

    /// Finds what is at the cursor, without moving it; only its hint, and its offset once that is known, are brought up to date.
    fn seek<'a>(&'a self, cursor: &mut Cursor) -> Sought<'a> {
        let Some(mut index) = self.index_of(cursor) else {
            return self.after_last(cursor, 0);
        };
        loop {
            let entry = &self.entries[index];
            let id = entry.info.id;
            let Some(region) = entry.records() else {
                return Sought::NeedsLoad(id);
            };
            let whole = match self.walk(cursor, index, region) {
                Walked::Record(found, record) => return Sought::Record(found, record),
                Walked::End => true,
                Walked::Malformed => false,
            };
            index += 1;
            match self.entries.get(index) {
                Some(next) if next.info.base_seq <= cursor.next_seq => {}
                None if !whole && self.gone.0 <= cursor.next_seq => return Sought::Damaged(id),
                Some(_) | None => return self.after_last(cursor, index),
            }
        }
    }

    /// What a cursor finds that stands before the base of entry `index`, or behind the last one.
    fn after_last<'a>(&self, cursor: &Cursor, index: usize) -> Sought<'a> {
        let (seq, offset) = match self.entries.get(index) {
            Some(next) => (next.info.base_seq, next.info.base_offset),
            None => self.gone,
        };
        if seq > cursor.next_seq { Sought::Hole { seq, offset } } else { Sought::End }
    }

    /// Goes on from the hint, or from the start of the segment, to the cursor's event.
    fn walk<'a>(&self, cursor: &mut Cursor, index: usize, region: &'a [u8]) -> Walked<'a> {
        let info = self.entries[index].info;
        let mut hint = match cursor.hint {
            Some(hint) if hint.segment == info.id => hint,
            Some(_) | None => Hint { segment: info.id, index: 0, pos: 0, seq: info.base_seq, offset: info.base_offset },
        };
        hint.index = self.shifted + index as u64;
        let walked = loop {
            match record_at(region, hint.pos) {
                At::Record(found) if found.header.seq != hint.seq => break Walked::Malformed,
                At::Record(found) if hint.seq < cursor.next_seq => {
                    hint.pos = found.end;
                    hint.seq += 1;
                    hint.offset = hint.offset.saturating_add(found.header.output_bytes());
                }
                At::Record(found) => {
                    let (seq, offset) = (hint.seq, hint.offset);
                    break found
                        .event()
                        .map_or(Walked::Malformed, |event| Walked::Record(found, Record { seq, offset, event }));
                }
                At::End => break Walked::End,
                At::Malformed => break Walked::Malformed,
            }
        };
        if hint.seq == cursor.next_seq {
            cursor.offset = Some(hint.offset);
        }
        cursor.hint = Some(hint);
        walked
    }

    /// The last segment that begins at or before the cursor.
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

    fn push(&mut self, info: SegmentInfo, body: Body) {
        if let Some(entry) = self.find_mut(info.id) {
            *entry = Entry { info, body };
            return;
        }
        let index = self.entries.partition_point(|entry| entry.info.base_seq <= info.base_seq);
        self.entries.insert(index, Entry { info, body });
    }

    fn find_mut(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.info.id == id)
    }
}

enum Walked<'a> {
    Record(Found<'a>, Record<'a>),
    End,
    Malformed,
}

enum Sought<'a> {
    Record(Found<'a>, Record<'a>),
    /// Nothing up to this number, which has so many output bytes before it.
    Hole {
        seq: u64,
        offset: u64,
    },
    End,
    NeedsLoad(u64),
    Damaged(u64),
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.segments()).finish()
    }
}
