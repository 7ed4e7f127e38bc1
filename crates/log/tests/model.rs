//! Checks writer and chain against a list of events. After any sequence of appends, spills, releases and drops, every
//! cursor reads exactly the retained events in order, and every gap has the exact number of bytes.
//!
//! The file has over 400 lines because the model and the world that it checks are read together.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::{Arc, Weak},
};

use exec_server_log::{
    ControlBlock, Cursor, EVENT_OVERHEAD, Exit, ExitCause, LimitsHit, LoadedSegment, LogEvent, LogRecord, LogWriter,
    MappedSegment, OutputStream, RECORD_MAX, ROOM_MIN, ReadStep, ReleasedSegment, SEGMENT_BYTES, Segment, SegmentChain,
    SegmentInfo, SegmentLocation, SegmentPool, disk_name, load, memfd_of,
};
use proptest::prelude::*;
use tempfile::TempDir;

const SLOT: u32 = 77;

/// An operation. `Remove`: the chain loses a disk segment that is not the last one, as if its file could not be read.
#[derive(Clone, Debug)]
enum LogOp {
    Append { count: usize, len: usize, stream: OutputStream },
    Exit(i32),
    Close,
    Spill,
    Unload,
    DropOldest,
    Remove { permille: usize },
    BeforeGap { cursor: usize, permille: u64 },
    Arm { is_behind: bool },
    TakeDirty,
    TakeUpTo { cursor: usize, keep_bytes: u64 },
    Trim,
    Read { cursor: usize, steps: usize },
    Rewind { cursor: usize, permille: u64, with_offset: bool },
}

fn ops() -> impl Strategy<Value = Vec<LogOp>> {
    let stream = prop_oneof![Just(OutputStream::Stdout), Just(OutputStream::Stderr), Just(OutputStream::Pty)];
    let len = prop_oneof![1..64_usize, 1000..5000_usize, RECORD_MAX - 40..=RECORD_MAX];
    let keep = prop_oneof![Just(0_u64), 0..4_000_000_u64];
    let op = prop_oneof![
        6 => (1..30_usize, len, stream).prop_map(|(count, len, stream)| LogOp::Append { count, len, stream }),
        1 => any::<i32>().prop_map(LogOp::Exit),
        1 => Just(LogOp::Close),
        4 => Just(LogOp::Spill),
        1 => Just(LogOp::Unload),
        2 => Just(LogOp::DropOldest),
        1 => (0..1000_usize).prop_map(|permille| LogOp::Remove { permille }),
        3 => (0..3_usize, 0..1000_u64).prop_map(|(cursor, permille)| LogOp::BeforeGap { cursor, permille }),
        2 => any::<bool>().prop_map(|is_behind| LogOp::Arm { is_behind }),
        1 => Just(LogOp::TakeDirty),
        4 => (0..3_usize, keep).prop_map(|(cursor, keep_bytes)| LogOp::TakeUpTo { cursor, keep_bytes }),
        1 => Just(LogOp::Trim),
        6 => (0..3_usize, 1..80_usize).prop_map(|(cursor, steps)| LogOp::Read { cursor, steps }),
        2 => (0..3_usize, 0..1100_u64, any::<bool>())
            .prop_map(|(cursor, permille, with_offset)| LogOp::Rewind { cursor, permille, with_offset }),
    ];
    prop::collection::vec(op, 1..80)
}

/// An event as the model stores it.
#[derive(Clone, Debug, PartialEq)]
enum ModelEvent {
    Output(OutputStream, Vec<u8>),
    Exited(Exit),
    Closed { written: u64, dropped: u64 },
}

impl ModelEvent {
    fn bytes(&self) -> u64 {
        match self {
            Self::Output(_, bytes) => bytes.len() as u64,
            Self::Exited(_) | Self::Closed { .. } => 0,
        }
    }

    fn of(event: &LogEvent<'_>) -> Self {
        match *event {
            LogEvent::Output { stream, bytes } => Self::Output(stream, bytes.to_vec()),
            LogEvent::Exited(exit) => Self::Exited(exit),
            LogEvent::Closed { written, dropped } => Self::Closed { written, dropped },
        }
    }
}

/// The log as a list. Event n is at index n - 1, together with the id of its segment.
#[derive(Default)]
struct LogModel {
    events: Vec<(u64, ModelEvent)>,
    /// Segments that the writer released or dropped.
    gone: Vec<u64>,
    /// Segments that only the chain has lost.
    unreadable: Vec<u64>,
    dropped: u64,
    exit: Option<(u64, Exit)>,
    closed: Option<u64>,
    /// The flags of the wake-up protocol: a reader waits at the end, the log is dirty, the session's reader waits.
    is_armed: bool,
    is_dirty: bool,
    is_session_armed: bool,
}

#[derive(Debug, PartialEq)]
enum ExpectedStep {
    Record { seq: u64, offset: u64, event: ModelEvent },
    Gap { from_seq: u64, to_seq: u64, bytes: u64 },
    End,
}

impl LogModel {
    fn next_seq(&self) -> u64 {
        self.events.len() as u64 + 1
    }

    fn written(&self) -> u64 {
        self.offset_of(self.next_seq())
    }

    /// Output bytes before event `seq`.
    fn offset_of(&self, seq: u64) -> u64 {
        let before = usize::try_from(seq).unwrap() - 1;
        self.events[..before.min(self.events.len())].iter().map(|(_, event)| event.bytes()).sum()
    }

    fn segment_of(&self, seq: u64) -> u64 {
        self.events[usize::try_from(seq).unwrap() - 1].0
    }

    fn is_retained(&self, seq: u64) -> bool {
        !self.gone.contains(&self.segment_of(seq))
    }

    fn is_readable(&self, seq: u64) -> bool {
        self.is_retained(seq) && !self.unreadable.contains(&self.segment_of(seq))
    }

    /// The first event at or after `seq` that a reader can get, or the next one if there is none.
    fn readable_from(&self, seq: u64) -> u64 {
        (seq..self.next_seq()).find(|seq| self.is_readable(*seq)).unwrap_or(self.next_seq())
    }

    /// The last event of a segment.
    fn last_seq_in(&self, segment: u64) -> u64 {
        self.events.iter().rposition(|(id, _)| *id == segment).unwrap() as u64 + 1
    }

    /// The position that `before_gap` finds if all disk segments are loaded.
    fn before_gap(&self, from: u64, seq: u64) -> Option<u64> {
        let next = seq + 1;
        let is_in_gap = next < self.next_seq() && !self.is_readable(next);
        let contains_both = from == next || (seq > 0 && !self.is_readable(seq));
        let begin = (from..next).rev().take_while(|seq| !self.is_readable(*seq)).last().unwrap_or(next);
        (is_in_gap && contains_both).then_some(begin)
    }

    /// Whether the writer must write the eventfd for a new event.
    fn notify(&mut self) -> bool {
        if !std::mem::take(&mut self.is_armed) {
            return false;
        }
        self.is_dirty = true;
        std::mem::take(&mut self.is_session_armed)
    }

    fn first_seq(&self) -> u64 {
        (1..self.next_seq()).find(|seq| self.is_retained(*seq)).unwrap_or(self.next_seq())
    }

    fn bytes_in(&self, segment: u64) -> u64 {
        let inside = self.events.iter().filter(|(id, _)| *id == segment);
        inside.map(|(_, event)| event.bytes()).sum()
    }

    fn expect(&self, cursor: &Cursor) -> ExpectedStep {
        let seq = cursor.next_seq();
        if seq >= self.next_seq() {
            return ExpectedStep::End;
        }
        if self.is_readable(seq) {
            let (_, event) = &self.events[usize::try_from(seq).unwrap() - 1];
            return ExpectedStep::Record { seq, offset: self.offset_of(seq), event: event.clone() };
        }
        let next = self.readable_from(seq);
        // A cursor without an offset learns it on the way if the event before it can be read. Else its gap counts from the start.
        let is_learned = seq > 1 && self.is_readable(seq - 1);
        let known = cursor.offset().unwrap_or(if is_learned { self.offset_of(seq) } else { 0 });
        ExpectedStep::Gap { from_seq: seq, to_seq: next - 1, bytes: self.offset_of(next) - known }
    }
}

struct LentMapping(Arc<MappedSegment>);

impl AsRef<MappedSegment> for LentMapping {
    fn as_ref(&self) -> &MappedSegment {
        &self.0
    }
}

struct LogWorld {
    control: ControlBlock,
    server: ControlBlock,
    pool: SegmentPool,
    writer: LogWriter,
    chain: SegmentChain,
    model: LogModel,
    cursors: [Cursor; 3],
    mappings: HashMap<u64, Arc<MappedSegment>>,
    lent: HashMap<u64, Weak<LentMapping>>,
    /// Disk segments whose contents the chain has.
    loaded: HashSet<u64>,
    dir: TempDir,
    stamp: u8,
}

impl LogWorld {
    fn new() -> Self {
        let control = ControlBlock::create().unwrap();
        let server = ControlBlock::open(control.shared_fd().try_clone().unwrap()).unwrap();
        control.reset_slot(SLOT);
        Self {
            control,
            server,
            pool: SegmentPool::new(),
            writer: LogWriter::new(SLOT),
            chain: SegmentChain::new(),
            model: LogModel::default(),
            cursors: [Cursor::start(); 3],
            mappings: HashMap::new(),
            lent: HashMap::new(),
            loaded: HashSet::new(),
            dir: TempDir::new().unwrap(),
            stamp: 0,
        }
    }

    fn apply(&mut self, op: &LogOp) {
        match *op {
            LogOp::Append { count, len, stream } => {
                for _ in 0..count {
                    self.append(len, stream);
                }
            }
            LogOp::Exit(code) => self.exit(code),
            LogOp::Close => self.close(),
            LogOp::Spill => self.spill(),
            LogOp::Unload => {
                let ids: Vec<_> = self.chain.segments().map(|info| info.id).collect();
                ids.into_iter().for_each(|id| self.chain.unload(id));
                self.loaded.clear();
            }
            LogOp::DropOldest => self.drop_oldest(),
            LogOp::Remove { permille } => self.remove(permille),
            LogOp::BeforeGap { cursor, permille } => self.before_gap(cursor, permille),
            LogOp::Arm { is_behind } => self.arm(is_behind),
            LogOp::TakeDirty => self.take_dirty(),
            LogOp::TakeUpTo { cursor, keep_bytes } => self.take_up_to(cursor, keep_bytes),
            LogOp::Trim => {
                for id in self.pool.trim_idle() {
                    self.mappings.remove(&memfd_of(id));
                }
            }
            LogOp::Read { cursor, steps } => (0..steps).for_each(|_| self.read(cursor)),
            LogOp::Rewind { cursor, permille, with_offset } => {
                let seq = self.model.events.len() as u64 * permille / 1000;
                self.cursors[cursor] = if with_offset && seq < self.model.next_seq() {
                    Cursor::after_with_offset(seq, self.model.offset_of(seq + 1))
                } else {
                    Cursor::after(seq)
                };
            }
        }
        self.check_status();
    }

    fn append(&mut self, len: usize, stream: OutputStream) {
        if self.model.closed.is_some() {
            return;
        }
        let had_room = self.writer.has_room();
        let room = self.writer.room(&mut self.pool).unwrap();
        assert_eq!(room.fresh, !had_room);
        assert!((ROOM_MIN..=RECORD_MAX).contains(&room.buf.len()));
        let len = len.min(room.buf.len());
        self.stamp = self.stamp.wrapping_add(1);
        room.buf[..len].fill(self.stamp);
        assert!(!self.writer.commit(&self.control, stream, 0), "no bytes are no event");
        let wake = self.writer.commit(&self.control, stream, len);
        assert_eq!(wake, self.model.notify());
        self.note(ModelEvent::Output(stream, vec![self.stamp; len]));
    }

    fn exit(&mut self, code: i32) {
        if self.model.exit.is_some() || self.model.closed.is_some() {
            return;
        }
        let number = u64::from(code.unsigned_abs());
        let exit = Exit {
            code,
            signal: (code < 0).then_some(9),
            cause: [ExitCause::Exit, ExitCause::Timeout, ExitCause::OutOfMemory][usize::try_from(number % 3).unwrap()],
            user_ms: number,
            system_ms: number + 1,
            max_rss_bytes: number + 2,
            hit: LimitsHit { pids: number & 4 != 0, memory: number & 8 != 0 },
            is_denied: number & 16 != 0,
        };
        self.model.exit = Some((self.model.next_seq(), exit));
        self.append_end(|writer, control, pool| writer.append_exited(control, pool, exit).unwrap());
        self.note(ModelEvent::Exited(exit));
    }

    fn close(&mut self) {
        if self.model.exit.is_none() || self.model.closed.is_some() {
            return;
        }
        self.model.closed = Some(self.model.next_seq());
        self.append_end(|writer, control, pool| writer.append_closed(control, pool).unwrap());
        let written = self.model.written();
        let dropped = self.model.dropped;
        self.note(ModelEvent::Closed { written, dropped });
    }

    /// A log with an unsealed segment needs no other segment for its end: exit and close always fit, even if it is full
    /// of output.
    fn append_end(&mut self, append: impl FnOnce(&mut LogWriter, &ControlBlock, &mut SegmentPool) -> bool) {
        let before = self.writer.segments().last().filter(|info| !info.sealed).map(|info| info.id);
        let wake = append(&mut self.writer, &self.control, &mut self.pool);
        assert_eq!(wake, self.model.notify());
        let after = self.writer.segments().last().map(|info| info.id);
        assert!(before.is_none() || after == before, "the end of a log took a segment of its own");
    }

    fn note(&mut self, event: ModelEvent) {
        let segment = self.writer.segments().last().unwrap().id;
        self.model.events.push((segment, event));
        while let Some(info) = self.writer.take_fresh() {
            let memory = self.writer.segment(info.id).unwrap();
            let mapping = self
                .mappings
                .entry(memfd_of(info.id))
                .or_insert_with(|| MappedSegment::map(memory.shared_fd().try_clone().unwrap()).unwrap());
            assert_eq!(mapping.id(), info.id);
            let lent = Arc::new(LentMapping(mapping.clone()));
            self.lent.insert(info.id, Arc::downgrade(&lent));
            self.chain.push_memory(info, lent);
        }
    }

    fn spill(&mut self) {
        let Some(segment) = self.writer.oldest_sealed_in_memory() else {
            return;
        };
        let id = segment.id();
        let mut bytes = Vec::with_capacity(SEGMENT_BYTES);
        segment.encode_for_disk(&mut bytes);
        let file = File::create_new(self.dir.path().join(disk_name(SLOT, id))).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let memory = self.writer.set_on_disk(id).unwrap();
        self.chain.set_on_disk(id);
        self.loaded.remove(&id);
        self.recycle(memory);
    }

    fn recycle(&mut self, memory: Segment) {
        let lent = self.lent.remove(&memory.id()).unwrap();
        assert!(lent.upgrade().is_none(), "the chain has given it back");
        if let Some(id) = self.pool.recycle(memory, 0) {
            self.mappings.remove(&memfd_of(id));
        }
    }

    fn drop_oldest(&mut self) {
        let Some(dropped) = self.writer.drop_oldest(&self.control) else {
            return;
        };
        assert_eq!(dropped.bytes, self.model.bytes_in(dropped.id));
        assert_eq!(dropped.segment.is_some(), dropped.location == SegmentLocation::Memory);
        self.model.dropped += dropped.bytes;
        self.model.gone.push(dropped.id);
        // If the reader has not loaded the last segment of a closed log, it learns from the status where the log ended.
        self.chain.remove(dropped.id);
        if self.chain.first().is_none() {
            let status = self.server.status(SLOT);
            self.chain.forget_below(status.first_seq, status.written);
        }
        if let Some(memory) = dropped.segment {
            self.recycle(memory);
        }
    }

    fn remove(&mut self, permille: usize) {
        let ids: Vec<_> = self.chain.segments().map(|info| info.id).collect();
        let Some((_, ids)) = ids.split_last() else { return };
        let Some(id) = ids.get(ids.len() * permille / 1000) else { return };
        if self.is_on_disk(*id) {
            self.chain.remove(*id);
            self.model.unreadable.push(*id);
        }
    }

    fn is_on_disk(&self, id: u64) -> bool {
        self.writer.segments().any(|info| info.id == id && info.location == SegmentLocation::Disk)
    }

    /// The contents of a segment are known: it is in memory or loaded.
    fn is_known(&self, id: u64) -> bool {
        !self.is_on_disk(id) || self.loaded.contains(&id)
    }

    fn load_all(&mut self) {
        let dir = File::open(self.dir.path()).unwrap();
        let ids: Vec<_> = self.chain.segments().map(|info| info.id).filter(|id| !self.is_known(*id)).collect();
        for id in ids {
            assert!(self.chain.set_loaded(id, load(dir.as_fd(), SLOT, id).unwrap()));
            self.loaded.insert(id);
        }
    }

    fn before_gap(&mut self, cursor: usize, permille: u64) {
        let cursor = self.cursors[cursor];
        let seq = self.model.events.len() as u64 * permille / 1000;
        if cursor.next_seq() > seq + 1 {
            return;
        }
        self.load_all();
        let found = self.chain.before_gap(cursor, seq);
        assert_eq!(found.map(|found| found.next_seq()), self.model.before_gap(cursor.next_seq(), seq), "{seq}");
    }

    fn arm(&mut self, is_behind: bool) {
        let next_seq = self.model.next_seq();
        let seen = next_seq - u64::from(is_behind);
        assert_eq!(self.server.arm_slot(SLOT, seen), is_behind);
        self.model.is_armed = !is_behind;
        assert_eq!(self.server.arm(), self.model.is_dirty);
        self.model.is_session_armed = !self.model.is_dirty;
    }

    fn take_dirty(&mut self) {
        let mut dirty = Vec::new();
        self.server.take_dirty(|slot| dirty.push(slot));
        let expected: &[u32] = if std::mem::take(&mut self.model.is_dirty) { &[SLOT] } else { &[] };
        assert_eq!(dirty, expected);
    }

    /// The next sequence number and the output bytes of the log, as far as the chain can know them.
    fn end(&self) -> (u64, u64) {
        match self.chain.segments().last() {
            Some(last) if !self.is_known(last.id) => (last.base_seq, last.base_offset),
            Some(_) | None => (self.model.next_seq(), self.model.written()),
        }
    }

    /// The segments that `take_up_to` must remove.
    fn removable(&self, taken: u64, keep_bytes: u64) -> Vec<u64> {
        let size = |(seq, offset): (u64, u64)| offset + EVENT_OVERHEAD * seq;
        let limit = size(self.end()).saturating_sub(keep_bytes);
        let segments: Vec<_> = self.chain.segments().collect();
        let mut removable = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let is_last_known = self.model.closed.is_some() && self.is_known(segment.id);
            let end = match segments.get(index + 1) {
                Some(next) => (next.base_seq, next.base_offset),
                None if is_last_known => (self.model.next_seq(), self.model.written()),
                None => break,
            };
            if end.0 > taken + 1 || (size(end) > limit && self.end().1 > 0) {
                break;
            }
            removable.push(segment.id);
        }
        removable
    }

    fn take_up_to(&mut self, cursor: usize, keep_bytes: u64) {
        let taken = self.cursors[cursor].next_seq() - 1;
        let retained = |world: &Self| {
            let first_seq = world.chain.first().map_or(world.model.next_seq(), |(seq, _)| seq);
            world.chain.retained_bytes(world.model.written()) + EVENT_OVERHEAD * (world.model.next_seq() - first_seq)
        };
        let before = retained(self);
        let removable = self.removable(taken, keep_bytes);
        let removed = self.chain.take_up_to(taken, keep_bytes);
        assert_eq!(removed, removable);
        for id in removed {
            let last_seq = self.model.last_seq_in(id);
            assert!(last_seq <= taken, "untaken is never let go");
            self.model.gone.push(id);
            match self.writer.release(&self.control, id) {
                ReleasedSegment::Memory(memory) => self.recycle(memory),
                ReleasedSegment::Disk => {}
                ReleasedSegment::Unknown => panic!("the writer has what the chain has"),
            }
            let status = self.server.status(SLOT);
            assert_eq!(status.released_seq, last_seq);
            let end = self.model.offset_of(status.released_seq + 1);
            assert_eq!(status.released_offset, end);
        }
        // A log without output keeps nothing: there is nothing to read again.
        assert!(self.end().1 == 0 || retained(self) >= keep_bytes.min(before));
    }

    fn read(&mut self, cursor: usize) {
        let dir = File::open(self.dir.path()).unwrap();
        let expected = self.model.expect(&self.cursors[cursor]);
        loop {
            let mut at = self.cursors[cursor];
            let len = self.chain.peek_len(&at);
            let found = match self.chain.read(&mut at) {
                ReadStep::NeedsLoad(id) => {
                    assert_eq!(len, None);
                    assert!(self.is_on_disk(id) && self.loaded.insert(id), "it is loaded already");
                    let loaded = load(dir.as_fd(), SLOT, id).unwrap();
                    assert!(self.chain.set_loaded(id, loaded));
                    continue;
                }
                ReadStep::Record(LogRecord { seq, offset, event }) => {
                    let event = ModelEvent::of(&event);
                    assert!(self.is_known(self.model.segment_of(seq)), "an unloaded segment cannot be read");
                    assert_eq!(len.map(|len| len as u64), Some(event.bytes()));
                    ExpectedStep::Record { seq, offset, event }
                }
                ReadStep::Gap { from_seq, to_seq, bytes } => {
                    assert_eq!(len, None);
                    ExpectedStep::Gap { from_seq, to_seq, bytes }
                }
                ReadStep::End => {
                    assert_eq!(len, None);
                    ExpectedStep::End
                }
                ReadStep::Damaged(id) => panic!("segment {id} is damaged"),
            };
            assert_eq!(found, expected);
            self.cursors[cursor] = at;
            return;
        }
    }

    fn check_status(&self) {
        let status = self.server.status(SLOT);
        assert_eq!(status.next_seq, self.model.next_seq());
        assert_eq!(status.first_seq, self.model.first_seq());
        assert_eq!(status.written, self.model.written());
        assert_eq!(status.dropped, self.model.dropped);
        assert_eq!(status.exited, self.model.exit);
        assert_eq!(status.closed_seq, self.model.closed);
        assert_eq!(self.writer.next_seq(), self.model.next_seq());
        assert_eq!(self.writer.written(), self.model.written());
        let segments: Vec<_> = self.writer.segments().collect();
        let readable = segments.iter().filter(|info| !self.model.unreadable.contains(&info.id));
        // The chain learns from the shared header that a segment in memory was sealed.
        let known: Vec<_> = readable.map(|info| (info.id, info.base_seq, info.base_offset, info.location)).collect();
        let in_chain = self.chain.segments().map(|info| (info.id, info.base_seq, info.base_offset, info.location));
        assert_eq!(known, in_chain.collect::<Vec<_>>());
        for (index, info) in segments.iter().enumerate() {
            assert_eq!(info.sealed, index + 1 < segments.len() || self.model.closed.is_some());
            assert_eq!(self.writer.segment(info.id).is_some(), info.location == SegmentLocation::Memory);
        }
        let on_disk = segments.iter().filter(|info| info.location == SegmentLocation::Disk).count();
        assert_eq!(self.writer.disk_segments(), on_disk);
        assert_eq!(self.writer.memory_segments(), segments.len() - on_disk);
        let oldest = segments.first().filter(|info| info.sealed);
        assert_eq!(self.writer.oldest_sealed_seq(), oldest.map(|info| self.model.last_seq_in(info.id)));
        let first = self.model.readable_from(1);
        let is_empty = first == self.model.next_seq();
        assert_eq!(self.chain.first(), (!is_empty).then(|| (first, self.model.offset_of(first))));
        let retained = if is_empty { 0 } else { self.model.written() - self.model.offset_of(first) };
        assert_eq!(self.chain.retained_bytes(self.model.written()), retained);
        assert_eq!(self.chain.end_offset(), self.end().1);
    }

    fn check_recent_output(&self, stream: OutputStream) {
        let segments: Vec<_> = self.writer.segments().collect();
        let recent = segments.iter().rev().take(2).filter(|info| info.location == SegmentLocation::Memory);
        let recent: Vec<u64> = recent.map(|info| info.id).collect();
        let mut expected = Vec::new();
        for (segment, event) in &self.model.events {
            if let ModelEvent::Output(of, bytes) = event
                && *of == stream
                && recent.contains(segment)
            {
                expected.extend_from_slice(bytes);
            }
        }
        assert!(self.writer.recent_output(stream) == expected, "recent output of {stream:?}");
    }

    /// Reads every cursor to the end.
    fn finish(&mut self) {
        for cursor in 0..self.cursors.len() {
            while self.cursors[cursor].next_seq() < self.model.next_seq() {
                self.read(cursor);
            }
            self.read(cursor);
        }
        for stream in [OutputStream::Stdout, OutputStream::Stderr, OutputStream::Pty] {
            self.check_recent_output(stream);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_cursor_sees_what_is_retained_and_each_gap_to_the_byte(ops in ops()) {
        let mut world = LogWorld::new();
        for op in &ops {
            world.apply(op);
        }
        world.finish();
    }
}

#[test]
fn a_long_log_survives_many_rotations_with_reuse_of_memory() {
    let mut world = LogWorld::new();
    for round in 0..400_u64 {
        world.apply(&LogOp::Append { count: 20, len: RECORD_MAX, stream: OutputStream::Stdout });
        world.apply(&LogOp::Read { cursor: 0, steps: 25 });
        if round % 3 == 0 {
            world.apply(&LogOp::Spill);
        }
        world.apply(&LogOp::TakeUpTo { cursor: 0, keep_bytes: 1 << 20 });
        if round % 50 == 0 {
            // The model keeps every byte, so start with a new world before it grows too large.
            world.finish();
            world = LogWorld::new();
        }
    }
    world.finish();
    assert!(world.mappings.len() < 10, "memory was reused");
}

#[test]
fn what_is_kept_of_taken_output_leaves_room_however_small_the_events_are() {
    for len in [1, 60, RECORD_MAX] {
        let control = ControlBlock::create().unwrap();
        let mut pool = SegmentPool::new();
        let (mut writer, mut chain) = (LogWriter::new(SLOT), SegmentChain::new());
        control.reset_slot(SLOT);
        while writer.segments().count() < 6 {
            let room = writer.room(&mut pool).unwrap().buf.len();
            writer.commit(&control, OutputStream::Stdout, len.min(room));
            while let Some(info) = writer.take_fresh() {
                let memory = writer.segment(info.id).unwrap().shared_fd();
                chain.push_memory(info, MappedSegment::map(memory.try_clone().unwrap()).unwrap());
            }
        }
        let written = writer.written();
        chain.take_up_to(u64::MAX, 1 << 20);
        // 1 MiB may begin anywhere in a segment, and the last segment, which has one event here, is never removed.
        let most = if len == 1 { 2 } else { 3 };
        assert!((2..=most).contains(&chain.segments().count()), "{len}");
        assert!(len < RECORD_MAX || chain.retained_bytes(written) >= 1 << 20, "{len}");
    }
}

#[test]
fn a_cursor_behind_a_readable_event_reports_the_gap_after_it_to_the_byte() {
    let mut world = LogWorld::new();
    let append = |count, len| LogOp::Append { count, len, stream: OutputStream::Stdout };
    // The second segment goes, and the cursor is at its first event, behind the last event of the first segment.
    world.apply(&append(24, RECORD_MAX));
    let second = world.model.events.iter().position(|(id, _)| *id != world.model.segment_of(1)).unwrap();
    world.apply(&append(24, RECORD_MAX));
    world.apply(&LogOp::Spill);
    world.apply(&LogOp::Spill);
    world.cursors[0] = Cursor::after(second as u64);
    world.apply(&LogOp::Remove { permille: 500 });
    let gap = world.model.expect(&world.cursors[0]);
    let second = world.model.segment_of(second as u64 + 1);
    assert!(matches!(gap, ExpectedStep::Gap { bytes, .. } if bytes == world.model.bytes_in(second)), "{gap:?}");
    world.finish();
}

#[test]
fn a_gap_is_found_from_any_event_inside_it_and_from_no_other() {
    let mut world = LogWorld::new();
    world.apply(&LogOp::Append { count: 120, len: RECORD_MAX, stream: OutputStream::Stdout });
    for _ in 0..4 {
        world.apply(&LogOp::Spill);
    }
    // The second and the fourth segment go.
    world.apply(&LogOp::Remove { permille: 250 });
    world.apply(&LogOp::Remove { permille: 700 });
    world.load_all();
    let gaps = (1..world.model.next_seq()).filter(|seq| {
        let found = world.chain.before_gap(Cursor::after(0), *seq).map(|found| found.next_seq());
        assert_eq!(found, world.model.before_gap(1, *seq), "{seq}");
        found.is_some()
    });
    assert!(gaps.count() > 10);
}

#[test]
fn what_is_known_to_be_gone_is_not_counted_again() {
    let mut chain = SegmentChain::new();
    chain.forget_below(5, 100);
    chain.forget_below(5, 50);
    chain.forget_below(4, 200);
    let gap = chain.read(&mut Cursor::after(0));
    assert!(matches!(gap, ReadStep::Gap { from_seq: 1, to_seq: 4, bytes: 100 }), "{gap:?}");
}

#[test]
fn the_chain_knows_where_a_segment_is_whatever_its_reader_says() {
    let mut world = LogWorld::new();
    world.apply(&LogOp::Append { count: 1, len: RECORD_MAX, stream: OutputStream::Pty });
    let info = world.chain.segments().next().unwrap();
    let lent = Arc::new(LentMapping(world.mappings[&memfd_of(info.id)].clone()));
    let mut chain = SegmentChain::new();
    chain.push_memory(SegmentInfo { location: SegmentLocation::Disk, ..info }, lent);
    assert_eq!(chain.segments().next().map(|info| info.location), Some(SegmentLocation::Memory));
    chain.push_disk(SegmentInfo { id: info.id + 1, location: SegmentLocation::Memory, sealed: false, ..info });
    let disk = chain.segments().last().unwrap();
    assert!(disk.location == SegmentLocation::Disk && disk.sealed, "{disk:?}");
}

#[test]
fn a_loaded_segment_of_another_id_is_refused() {
    let mut world = LogWorld::new();
    world.apply(&LogOp::Append { count: 40, len: RECORD_MAX, stream: OutputStream::Pty });
    world.apply(&LogOp::Spill);
    world.apply(&LogOp::Spill);
    let ids: Vec<_> = world.writer.segments().map(|info| info.id).collect();
    let path = world.dir.path().join(disk_name(SLOT, ids[0]));
    let loaded = LoadedSegment::read(&File::open(path).unwrap()).unwrap();
    assert!(!world.chain.set_loaded(ids[1], loaded.clone()));
    let mut chain = SegmentChain::new();
    chain.push_disk(SegmentInfo { id: ids[1], ..loaded.info() });
    assert!(!chain.set_loaded(ids[1], loaded.clone()), "although it begins at the same event");
    assert!(world.chain.set_loaded(ids[0], loaded));
}
