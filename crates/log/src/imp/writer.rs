//! The writing end of the log of one process.
//!
//! It decides where a record goes and keeps the shared counters up to date. The owner of the writer decides which
//! segments are spilled, dropped or lent to a reader.

use std::{collections::VecDeque, io};

use super::{
    control::{ControlBlock, LogStatus},
    event::{self, Exit, OutputStream},
    failpoint,
    layout::{END_BYTES, KIND_CLOSED, KIND_EXITED, KIND_OUTPUT, ROOM_MIN},
    memory,
    recover::RecoveredLog,
    segment::{Segment, SegmentInfo, SegmentLocation, SegmentPool},
};

/// Space for one output record.
#[derive(Debug)]
pub struct RecordRoom<'a> {
    /// Buffer to read into, 4 to 64 KiB. It contains old data.
    pub buf: &'a mut [u8],
    /// A new segment was started. The caller must announce it to readers: see [`LogWriter::take_fresh`].
    pub fresh: bool,
}

impl RecordRoom<'_> {
    /// The first `len` bytes of the buffer, with pages allocated behind them. Use it for a source such as a terminal:
    /// if the kernel cannot allocate a page during the read, a terminal discards the data, whereas a pipe keeps it.
    pub fn backed(&mut self, len: usize) -> io::Result<&mut [u8]> {
        let len = len.min(self.buf.len());
        let part = &mut self.buf[..len];
        memory::populate(part)?;
        Ok(part)
    }
}

/// The result of `LogWriter::release`.
#[derive(Debug)]
pub enum ReleasedSegment {
    /// The segment was in memory. Reuse it after all readers have returned it.
    Memory(Segment),
    /// The segment was on disk. Its file can be removed.
    Disk,
    /// There is no such segment, or it is not sealed yet.
    Unknown,
}

/// A segment that [`LogWriter::drop_oldest`] has dropped.
#[derive(Debug)]
pub struct DroppedSegment {
    pub id: u64,
    pub location: SegmentLocation,
    /// The memory of the segment. Reuse it after all readers have returned it. `None` if the segment was on disk.
    pub segment: Option<Segment>,
    /// Output bytes in the segment.
    pub bytes: u64,
}

/// One retained segment. `last_seq` and `output` are set when it is sealed, so that they are known after it moves to
/// disk.
struct RetainedSegment {
    info: SegmentInfo,
    /// `None` if the segment is on disk.
    memory: Option<Segment>,
    last_seq: u64,
    /// Output bytes in the segment.
    output: u64,
}

/// The log of one process in the holder.
///
/// The segments are in order. Only the last one can be unsealed, and an unsealed segment is always in memory.
pub struct LogWriter {
    slot: u32,
    next_seq: u64,
    written: u64,
    dropped: u64,
    released_seq: u64,
    released_offset: u64,
    segments: VecDeque<RetainedSegment>,
    /// New segments that `take_fresh` has not returned yet.
    fresh: VecDeque<SegmentInfo>,
    /// Number of `segments` in memory.
    in_memory: usize,
}

impl LogWriter {
    /// An empty log in `slot`. The owner must have called [`ControlBlock::reset_slot`]. Uses no memory before the first
    /// record.
    pub fn new(slot: u32) -> Self {
        Self {
            slot,
            next_seq: 1,
            written: 0,
            dropped: 0,
            released_seq: 0,
            released_offset: 0,
            segments: VecDeque::new(),
            fresh: VecDeque::new(),
            in_memory: 0,
        }
    }

    /// Restores the log of a closed process from the disk segments of an earlier holder. `None` if a part is missing.
    pub fn restore(control: &ControlBlock, slot: u32, status: &LogStatus, recovered: &RecoveredLog) -> Option<Self> {
        if !recovered.is_whole(status) {
            return None;
        }
        // A segment ends where the next one begins, and the last one at the end of the log.
        let ends = recovered.segments.iter().skip(1).map(|next| (next.base_seq, next.base_offset));
        let ends = ends.chain([(recovered.next_seq, recovered.end_offset)]);
        let retained = |(info, (end_seq, end_offset)): (&SegmentInfo, (u64, u64))| RetainedSegment {
            info: *info,
            memory: None,
            last_seq: end_seq.saturating_sub(1),
            output: end_offset.saturating_sub(info.base_offset),
        };
        let writer = Self {
            slot,
            next_seq: status.next_seq,
            written: status.written,
            dropped: status.dropped,
            released_seq: status.released_seq,
            released_offset: status.released_offset,
            segments: recovered.segments.iter().zip(ends).map(retained).collect(),
            fresh: VecDeque::new(),
            in_memory: 0,
        };
        // Files of the first segments may be gone (see `is_whole`), so `first_seq` comes from the first segment found.
        control.restore_slot(slot, &LogStatus { first_seq: writer.first_seq(), ..*status });
        Some(writer)
    }

    /// Whether the current segment has room for one more output record.
    pub fn has_room(&self) -> bool {
        let last = self.segments.back().and_then(|held| held.memory.as_ref());
        last.is_some_and(|segment| !segment.is_sealed() && segment.output_room() >= ROOM_MIN)
    }

    /// Returns space for one output record. Starts a new segment if the current one has too little. Never blocks.
    pub fn room(&mut self, pool: &mut SegmentPool) -> io::Result<RecordRoom<'_>> {
        // Add the bytes that output leaves free, which `make_room` does not subtract. So the current segment is kept
        // exactly if `has_room` returns true.
        let fresh = self.make_room(pool, ROOM_MIN + END_BYTES)?;
        let segment = self.current().expect("room was just made");
        let len = segment.output_room();
        Ok(RecordRoom { buf: &mut segment.payload_mut()[..len], fresh })
    }

    /// Commits the first `len` bytes of the room as one record. True means that the caller must write the eventfd.
    ///
    /// Call [`LogWriter::room`] first and fill its buffer; `len` must not exceed the length of the buffer. Does nothing
    /// for zero bytes. Panics if the current segment has no room for the record.
    pub fn commit(&mut self, control: &ControlBlock, stream: OutputStream, len: usize) -> bool {
        if len == 0 {
            return false;
        }
        let segment = self.current().expect("commit follows room");
        segment.commit(KIND_OUTPUT, stream.to_byte(), len);
        self.written += len as u64;
        self.publish(control)
    }

    /// Appends the exit event. A current segment always has room for it, because output leaves `END_BYTES` free. True
    /// means that the caller must write the eventfd.
    pub fn append_exited(&mut self, control: &ControlBlock, pool: &mut SegmentPool, exit: Exit) -> io::Result<bool> {
        let seq = self.append(pool, KIND_EXITED, &exit.encode())?;
        control.set_exited(self.slot, seq, &exit);
        Ok(self.publish(control))
    }

    /// Appends the `Closed` event and seals the log. An existing current segment always has room for it. True means
    /// that the caller must write the eventfd.
    pub fn append_closed(&mut self, control: &ControlBlock, pool: &mut SegmentPool) -> io::Result<bool> {
        let totals = event::encode_closed(self.written, self.dropped);
        let seq = self.append(pool, KIND_CLOSED, &totals)?;
        // Only a sealed segment can be released or spilled, so seal the last one, too.
        self.seal_current();
        control.set_closed(self.slot, seq);
        Ok(self.publish(control))
    }

    /// Sequence number of the next event.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Output bytes so far, including dropped ones.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn segments(&self) -> impl Iterator<Item = SegmentInfo> + '_ {
        self.segments.iter().map(|held| held.info)
    }

    /// The memory of a retained segment. `None` if it is on disk.
    pub fn segment(&self, id: u64) -> Option<&Segment> {
        self.find(id).and_then(|index| self.segments[index].memory.as_ref())
    }

    /// The recent output of one stream: the part that is in the last two segments and still in memory.
    pub fn recent_output(&self, stream: OutputStream) -> Vec<u8> {
        let start = self.segments.len().saturating_sub(2);
        let segments = self.segments.range(start..).filter_map(|held| held.memory.as_ref());
        segments.flat_map(|segment| segment.output(stream.to_byte())).flatten().copied().collect()
    }

    /// Number of retained segments in memory, including the current one.
    pub fn memory_segments(&self) -> usize {
        self.in_memory
    }

    /// Number of retained segments on disk.
    pub fn disk_segments(&self) -> usize {
        self.segments.len() - self.in_memory
    }

    /// Returns the oldest new segment that was not returned before.
    pub fn take_fresh(&mut self) -> Option<SegmentInfo> {
        self.fresh.pop_front()
    }

    /// The oldest sealed segment in memory, which is the one to spill next.
    pub fn oldest_sealed_in_memory(&self) -> Option<&Segment> {
        let mut memory = self.segments.iter().filter_map(|held| held.memory.as_ref());
        memory.find(|segment| segment.is_sealed())
    }

    /// Records that the file of a sealed segment is written. Returns its memory, which can be reused after all readers
    /// have returned it.
    pub fn set_on_disk(&mut self, id: u64) -> Option<Segment> {
        let index = self.find(id)?;
        let held = &mut self.segments[index];
        if !held.info.sealed {
            return None;
        }
        let memory = held.memory.take()?;
        held.info.location = SegmentLocation::Disk;
        self.in_memory -= 1;
        Some(memory)
    }

    /// Removes a sealed segment after the server has reported that it took all events of it.
    pub fn release(&mut self, control: &ControlBlock, id: u64) -> ReleasedSegment {
        let Some(held) = self.remove_sealed(id) else {
            return ReleasedSegment::Unknown;
        };
        self.released_seq = self.released_seq.max(held.last_seq);
        let end = held.info.base_offset + held.output;
        self.released_offset = self.released_offset.max(end);
        control.set_released(self.slot, self.released_seq, self.released_offset);
        control.set_first(self.slot, self.first_seq(), self.dropped);
        held.memory.map_or(ReleasedSegment::Disk, ReleasedSegment::Memory)
    }

    /// Sequence number of the last event in the segment that [`LogWriter::drop_oldest`] would drop.
    pub fn oldest_sealed_seq(&self) -> Option<u64> {
        self.segments.front().filter(|held| held.info.sealed).map(|held| held.last_seq)
    }

    /// Drops the oldest segment, if it is sealed, and counts its output as dropped. The owner of the log decides when.
    pub fn drop_oldest(&mut self, control: &ControlBlock) -> Option<DroppedSegment> {
        let id = self.segments.front()?.info.id;
        let held = self.remove_sealed(id)?;
        self.dropped += held.output;
        control.set_first(self.slot, self.first_seq(), self.dropped);
        Some(DroppedSegment { id, location: held.info.location, segment: held.memory, bytes: held.output })
    }

    /// All retained segments, including the current one. Called when the holder forgets the process.
    pub fn into_segments(self) -> impl Iterator<Item = (SegmentInfo, Option<Segment>)> {
        self.segments.into_iter().map(|held| (held.info, held.memory))
    }

    fn publish(&mut self, control: &ControlBlock) -> bool {
        self.next_seq += 1;
        control.publish(self.slot, self.next_seq, self.written);
        control.notify(self.slot)
    }

    fn append(&mut self, pool: &mut SegmentPool, kind: u8, payload: &[u8]) -> io::Result<u64> {
        self.make_room(pool, payload.len())?;
        let segment = self.current().expect("room was just made");
        segment.payload_mut()[..payload.len()].copy_from_slice(payload);
        Ok(segment.commit(kind, 0, payload.len()))
    }

    /// Makes sure that the last segment has room for a payload of `least` bytes. True means that it started a new
    /// segment.
    fn make_room(&mut self, pool: &mut SegmentPool, least: usize) -> io::Result<bool> {
        if self.current().is_some_and(|segment| segment.room() >= least) {
            return Ok(false);
        }
        failpoint::step("rotate");
        // Take the new segment before sealing the old one: if this fails, the log is unchanged.
        let segment = pool.take(self.slot, self.next_seq, self.written)?;
        self.seal_current();
        failpoint::step("sealed");
        let info = segment.info();
        self.segments.push_back(RetainedSegment { info, memory: Some(segment), last_seq: 0, output: 0 });
        self.in_memory += 1;
        self.fresh.push_back(info);
        Ok(true)
    }

    fn current(&mut self) -> Option<&mut Segment> {
        self.segments.back_mut().and_then(|held| held.memory.as_mut()).filter(|segment| !segment.is_sealed())
    }

    fn seal_current(&mut self) {
        let Some(held) = self.segments.back_mut() else {
            return;
        };
        if let Some(segment) = held.memory.as_mut().filter(|segment| !segment.is_sealed()) {
            segment.seal();
            held.info.sealed = true;
            held.last_seq = segment.last_seq();
            held.output = segment.output_bytes();
        }
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.segments.iter().position(|held| held.info.id == id)
    }

    fn remove_sealed(&mut self, id: u64) -> Option<RetainedSegment> {
        let index = self.find(id)?;
        if !self.segments[index].info.sealed {
            return None;
        }
        let held = self.segments.remove(index)?;
        if held.memory.is_some() {
            self.in_memory -= 1;
        }
        Some(held)
    }

    /// Lowest retained sequence number, or the next one if nothing is retained.
    fn first_seq(&self) -> u64 {
        self.segments.front().map_or(self.next_seq, |held| held.info.base_seq)
    }
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWriter")
            .field("slot", &self.slot)
            .field("next_seq", &self.next_seq)
            .field("segments", &self.segments.len())
            .finish_non_exhaustive()
    }
}
