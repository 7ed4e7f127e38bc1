//! The log of a process as its readers see it: the segments, the status, the loaded parts, and the readers that wait.
//!
//! One lock guards all of it, see [`Process`](super::Process). Nothing here does I/O or sends to the holder.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use exec_server_log::{
    ControlBlock, Cursor, Exit, LoadedSegment, LogStatus, ReadStep, SegmentChain, SegmentInfo, SegmentLocation,
};
use exec_server_protocol::limits;
use exec_server_session::LogPosition;

use crate::{holder_link::LentMapping, pump::FeedWaker};

/// Spilled segments of one process that are in memory at once, 1 MiB each. Enough for a few readers at different
/// positions.
const LOADED_SEGMENTS: usize = 2;

const _: () = assert!(limits::EVENT_OVERHEAD == exec_server_log::EVENT_OVERHEAD);

/// The size of a log up to this position: its output, and [`limits::EVENT_OVERHEAD`] for each event.
pub(crate) fn log_bytes(position: LogPosition) -> u64 {
    position.offset.saturating_add(position.seq.saturating_mul(limits::EVENT_OVERHEAD))
}

pub(crate) struct ProcessLog {
    slot: u32,
    source: StatusSource,
    /// Changed by the link as segments come and go, read by cursors.
    pub(crate) chain: SegmentChain,
    /// Spilled segments that are being loaded.
    pub(super) loading: BTreeSet<u64>,
    /// Spilled segments that are in memory, oldest first.
    loaded: VecDeque<u64>,
    /// Woken by new events. Bounded by the feeds and reads of all connections.
    wakers: Vec<Arc<FeedWaker>>,
    /// Set once when the holder died: the numbers of the synthetic end events.
    lost: Option<LostEnd>,
    /// Set once when the process is forgotten: the last status. From then on the holder may give the slot and the
    /// segments to another process.
    forgotten: Option<LogStatus>,
    /// The end is in the audit log.
    pub(crate) is_end_recorded: bool,
    /// Already counted in the metrics.
    counted: CountedOutput,
}

/// Where the status of a process comes from.
pub(super) enum StatusSource {
    /// The block shared with the holder.
    Shared(Arc<ControlBlock>),
    /// No holder: the last known status, and the offset up to which the output can be read.
    LastKnown { status: LogStatus, end_offset: u64 },
}

/// The end of a process whose holder died: numbers for the exit and close events that were never written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostEnd {
    pub(crate) exited_seq: Option<u64>,
    pub(crate) closed_seq: u64,
}

/// Bytes that were written to a log, and bytes that were dropped from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CountedOutput {
    pub(crate) written: u64,
    pub(crate) dropped: u64,
}

impl ProcessLog {
    pub(super) fn new(slot: u32, source: StatusSource, counted: CountedOutput) -> Self {
        Self {
            slot,
            source,
            chain: SegmentChain::default(),
            loading: BTreeSet::new(),
            loaded: VecDeque::new(),
            wakers: Vec::new(),
            lost: None,
            forgotten: None,
            is_end_recorded: false,
            counted,
        }
    }

    /// The status that the holder publishes, with a synthetic end if the holder is dead.
    pub(crate) fn status(&self) -> LogStatus {
        if let Some(last) = self.forgotten {
            return last;
        }
        let mut status = self.published_status();
        if let Some(lost) = self.lost {
            status.next_seq = lost.closed_seq + 1;
            status.closed_seq = Some(lost.closed_seq);
        }
        status
    }

    pub(super) fn published_status(&self) -> LogStatus {
        match &self.source {
            StatusSource::Shared(control) => control.status(self.slot),
            StatusSource::LastKnown { status, .. } => *status,
        }
    }

    pub(crate) fn lost_end(&self) -> Option<LostEnd> {
        self.lost
    }

    /// Whether more output may be lost than a gap counts: the holder died, and this server knows only its files.
    pub(crate) fn is_uncounted(&self) -> bool {
        matches!(self.source, StatusSource::LastKnown { .. }) && self.lost.is_some()
    }

    /// Whether the process has exited or lost its holder. Descendants may still hold its streams open.
    pub(crate) fn has_ended(&self) -> bool {
        self.lost.is_some() || self.status().exited.is_some()
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.is_some()
    }

    /// The number of the first retained event, or of the next event if none is retained.
    pub(crate) fn first_seq(&self) -> u64 {
        self.chain.first().map_or_else(|| self.status().next_seq, |(seq, _)| seq)
    }

    /// Returns true if there are already events from `seen_next_seq` on. Otherwise the next event wakes the readers.
    /// For a process that is lost, forgotten or known only from files, no event comes, and the result is false.
    pub(crate) fn arm(&self, seen_next_seq: u64) -> bool {
        match &self.source {
            StatusSource::Shared(control) => {
                self.lost.is_none() && self.forgotten.is_none() && control.arm_slot(self.slot, seen_next_seq)
            }
            StatusSource::LastKnown { .. } => false,
        }
    }

    pub(crate) fn add_waker(&mut self, waker: Arc<FeedWaker>) {
        self.wakers.push(waker);
    }

    pub(crate) fn remove_waker(&mut self, waker: &Arc<FeedWaker>) {
        self.wakers.retain(|other| !Arc::ptr_eq(other, waker));
    }

    /// Number of feeds and pending reads of this log, including the owner's.
    pub(crate) fn waker_count(&self) -> usize {
        self.wakers.len()
    }

    /// Wakes every feed and read, because there are new events.
    pub(crate) fn wake(&self) {
        for waker in &self.wakers {
            waker.wake();
        }
    }

    /// The output bytes up to and including event `seq`, if the log knows: it is the offset at which the next event
    /// begins.
    pub(crate) fn offset_after(&self, seq: u64) -> Option<u64> {
        let status = self.status();
        match self.chain.read(&mut Cursor::after(seq)) {
            ReadStep::Record(record) => Some(record.offset),
            ReadStep::End if seq.saturating_add(1) == status.next_seq => Some(status.written),
            ReadStep::End | ReadStep::Gap { .. } | ReadStep::NeedsLoad(_) | ReadStep::Damaged(_) => None,
        }
    }

    /// Output bytes that can still be read.
    pub(crate) fn retained_bytes(&self) -> u64 {
        let end = match &self.source {
            StatusSource::Shared(_) => self.status().written,
            StatusSource::LastKnown { end_offset, .. } => *end_offset,
        };
        self.chain.retained_bytes(end)
    }

    /// Whether the process has closed and all retained parts of its log are on disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.status().closed_seq.is_some()
            && self.chain.segments().all(|segment| segment.location == SegmentLocation::Disk)
    }

    /// Adds a segment that the holder began, or that it names at adoption: in memory if there is a mapping, otherwise
    /// on disk.
    pub(crate) fn push(&mut self, info: SegmentInfo, mapping: Option<Arc<LentMapping>>) {
        match mapping {
            Some(mapping) => self.chain.push_memory(info, mapping),
            None => self.chain.push_disk(info),
        }
        self.wake();
    }

    /// The last position of each segment that ends at or before event `seq`, oldest first.
    pub(crate) fn segment_ends(&self, seq: u64) -> impl Iterator<Item = LogPosition> {
        let bases = self.chain.segments().skip(1).map(|next| (next.base_seq, next.base_offset));
        let ends = bases.map(|(next_seq, offset)| LogPosition { seq: next_seq.saturating_sub(1), offset });
        ends.take_while(move |end| end.seq <= seq)
    }

    /// Removes the segments that no reader needs, and returns their ids. If no holder keeps the status, records where
    /// the log begins now.
    pub(super) fn take_up_to(&mut self, seq: u64) -> Vec<u64> {
        let gone = self.chain.take_up_to(seq, limits::READABLE_BYTES);
        if let StatusSource::LastKnown { status, .. } = &mut self.source
            && !gone.is_empty()
        {
            let (seq, offset) = self.chain.first().unwrap_or((status.next_seq, status.written));
            status.first_seq = seq;
            // What counts as released never goes back.
            status.released_seq = status.released_seq.max(seq.saturating_sub(1));
            status.released_offset = status.released_offset.max(offset);
        }
        gone
    }

    /// Attaches the contents of a disk segment, and unloads the oldest one if there are too many. Does nothing if the
    /// segment was taken during the read.
    pub(super) fn set_loaded(&mut self, segment: u64, loaded: Arc<LoadedSegment>) {
        if !self.chain.set_loaded(segment, loaded) {
            return;
        }
        self.loaded.push_back(segment);
        if self.loaded.len() > LOADED_SEGMENTS
            && let Some(oldest) = self.loaded.pop_front()
        {
            self.chain.unload(oldest);
        }
    }

    /// Unloads the segments of a log that has no readers, so that ended processes do not use memory.
    pub(crate) fn unload_idle(&mut self) {
        if self.wakers.is_empty() && self.loading.is_empty() {
            self.loaded.drain(..).for_each(|segment| self.chain.unload(segment));
        }
    }

    /// Freezes the status and empties the log. Returns the segments it had; their mappings are dropped.
    pub(super) fn forget(&mut self) -> Vec<SegmentInfo> {
        let last = self.status();
        self.forgotten = Some(last);
        let end_offset = self.chain.end_offset();
        let segments = std::mem::take(&mut self.chain).segments().collect();
        self.chain.forget_below(last.next_seq, end_offset);
        segments
    }

    /// Gives up the status block that was shared with the holder. The last status stays.
    pub(super) fn detach_source(&mut self) {
        let status = self.published_status();
        self.source = StatusSource::LastKnown { status, end_offset: status.written };
    }

    /// Assigns numbers to the end events that the holder did not write. Only the first call has an effect.
    pub(super) fn set_lost_end(&mut self) {
        let status = self.published_status();
        if status.closed_seq.is_none() && self.lost.is_none() {
            let exited_seq = status.exited.is_none().then_some(status.next_seq);
            let closed_seq = status.next_seq + u64::from(exited_seq.is_some());
            self.lost = Some(LostEnd { exited_seq, closed_seq });
        }
    }

    /// The end of the process, the first time that it is known. The caller records it. `fallback_cause` is the
    /// cause if neither an exit status nor the loss of the holder is known.
    pub(crate) fn take_end(&mut self, fallback_cause: Option<&'static str>) -> Option<UnrecordedEnd> {
        let exit = self.status().exited.map(|(_, exit)| exit);
        let cause = self.lost.map(|_| "lost").or(fallback_cause);
        if (exit.is_none() && cause.is_none()) || std::mem::replace(&mut self.is_end_recorded, true) {
            return None;
        }
        Some(UnrecordedEnd { exit, cause })
    }

    /// The output since the last call. The metrics use differences of what the holder publishes, so the path of an
    /// output byte costs nothing extra.
    pub(super) fn take_uncounted(&mut self) -> CountedOutput {
        let status = self.status();
        let before = self.counted;
        // `before` can be ahead of the status: for a dead holder it is `u64::MAX`, so that nothing is counted.
        self.counted =
            CountedOutput { written: status.written.max(before.written), dropped: status.dropped.max(before.dropped) };
        CountedOutput { written: self.counted.written - before.written, dropped: self.counted.dropped - before.dropped }
    }
}

/// The end of a process that is not in the audit log yet.
pub(crate) struct UnrecordedEnd {
    pub(crate) exit: Option<Exit>,
    /// The cause if there is no exit status.
    pub(crate) cause: Option<&'static str>,
}
