//! The server's view of one child: the segments of its log, its watchers, what each reader has taken, and the queue of
//! stdin writes.
//!
//! The child itself, its fds and its exit belong to the holder. Nothing here blocks: `load::SegmentLoad` reads segments
//! from disk, and the pump runs it off the runtime's threads. `without_holder` creates a process whose holder was found
//! dead.
//!
//! Releasing output: the owner and every `hold` subscriber is a *taker* with a position. Segments below the lowest
//! position are released to the holder, except for the last [`limits::READABLE_BYTES`]. The holder also learns what
//! following readers have taken (`followers`). At its quota the holder drops that output instead of blocking the child
//! until a detached owner comes back.

use std::{
    collections::VecDeque,
    fmt,
    os::fd::OwnedFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use exec_server_holder::control::{DIGESTS, ToHolder, WriteStatus};
use exec_server_log::{ControlBlock, Cursor, LogStatus, ReadStep, SegmentChain, SegmentInfo, SegmentLocation};
use exec_server_protocol::{ProcessId, SessionId, limits, process as wire};
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::time::Instant;

use crate::{
    error::Failure,
    holder_link::{HolderLink, LentMapping, ReplyWaiter},
    pump::{FeedWaker, Reply},
    session::short_id,
};

mod followers;
mod load;
mod meta;
mod output_metrics;
mod without_holder;

pub(crate) use self::{
    followers::OutputHold,
    meta::{Dialect, ProcessMeta, truncate_argv},
};
use self::{followers::OutputTaker, load::SegmentLoads, without_holder::StatusSource};

/// Bytes of one part of a stdin write. A part and its header fit into one message to the holder.
const WRITE_PART_BYTES: usize = 56 << 10;

pub(crate) struct Process {
    pub(crate) session: Arc<str>,
    pub(crate) meta: ProcessMeta,
    pub(crate) pid: u32,
    slot: u32,
    /// The current link. After a holder has archived the session and exited, a new holder may replace it.
    link: Mutex<Arc<HolderLink>>,
    status_source: RwLock<StatusSource>,
    /// Changed by the link as segments come and go, read by cursors. Locked only while records are encoded.
    chain: Mutex<SegmentChain>,
    /// Notified of new events. Bounded by the feeds and reads of all connections.
    wakers: Mutex<Vec<Arc<FeedWaker>>>,
    takers: Mutex<Vec<OutputTaker>>,
    next_taker: AtomicU64,
    /// The last position of the following readers that was sent to the holder.
    followed: Mutex<u64>,
    stdin: Mutex<StdinQueue>,
    loads: Mutex<SegmentLoads>,
    /// The owner's position, where its next connection starts.
    owner: Mutex<LogPosition>,
    /// A position at or before `owner` with an exact byte offset. The offset in `owner` may be too low: an acknowledged
    /// number that lies between two marks of its feed gets the offset of the earlier mark.
    owner_mark: Mutex<LogPosition>,
    /// pidfd of the leader, to kill its group if the holder dies. `None` if the leader was gone at adoption, or if the
    /// session was archived.
    leader: Mutex<Option<Arc<OwnedFd>>>,
    /// Set once when the holder died: the numbers of the end events that the server makes up.
    lost: OnceLock<LostEnd>,
    /// The end is in the audit log.
    end_recorded: AtomicBool,
    /// Set once when the process is forgotten. From then on the holder may give its slot and segments to another
    /// process.
    forgotten: OnceLock<LogStatus>,
    /// When the process closed, on a clock that stands still while the owner is away or has not taken everything.
    closed_since: Mutex<Option<Instant>>,
    /// Already counted in the metrics: bytes written and bytes dropped.
    counted: [AtomicU64; 2],
}

/// The position of a reader: the number of the last event it got, and the output bytes up to and including that event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) seq: u64,
    pub(crate) offset: u64,
}

/// The end of a process whose holder died: numbers for the exit and close events that were never written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostEnd {
    pub(crate) exited_seq: Option<u64>,
    pub(crate) closed_seq: u64,
}

#[derive(Default)]
struct StdinQueue {
    queue: VecDeque<StdinOperation>,
    /// The holder is processing the front of the queue.
    busy: bool,
}

/// A queued operation on a process's stdin.
pub(crate) enum StdinOperation {
    Write { key: Option<[u8; 16]>, digest: u32, data: Bytes, done: usize, is_cut: bool, reply: Reply },
    Close { reply: Reply },
}

impl StdinOperation {
    fn into_reply(self) -> Reply {
        let (Self::Write { reply, .. } | Self::Close { reply }) = self;
        reply
    }

    /// Answers that stdin is closed, because the process has ended.
    fn answer_closed(self, process: &str) {
        match self {
            Self::Write { reply, .. } => reply.write(process, wire::WriteStatus::StdinClosed),
            Self::Close { reply } => {
                reply.result(&wire::CloseStdinResult { status: wire::CloseStdinStatus::StdinClosed })
            }
        }
    }

    /// Answers that the process is unknown, because it was forgotten.
    fn answer_unknown(self, process: &str) {
        match self {
            Self::Write { reply, .. } => reply.write(process, wire::WriteStatus::UnknownProcess),
            Self::Close { reply } => {
                reply.result(&wire::CloseStdinResult { status: wire::CloseStdinStatus::UnknownProcess })
            }
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.meta.process_id).field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// The facts about a process that the link knows when the process first appears.
pub(crate) struct ProcessInit {
    pub(crate) session: Arc<str>,
    pub(crate) meta: ProcessMeta,
    pub(crate) pid: u32,
    pub(crate) slot: u32,
    pub(crate) leader: Option<OwnedFd>,
    /// Bytes written and dropped that an earlier server has already counted.
    pub(crate) counted: [u64; 2],
}

/// A position beyond every event number that will ever be assigned.
const ABANDONED: u64 = u64::MAX / 2;

/// The key of the owner. The owner is always a taker: output that it has not taken is kept while it is away.
const OWNER: u64 = 0;

impl Process {
    pub(crate) fn new(init: ProcessInit, link: Arc<HolderLink>, control: Arc<ControlBlock>) -> Self {
        let released = control.status(init.slot);
        let taken = LogPosition { seq: released.released_seq, offset: released.released_offset };
        let process = Self::with_status_source(init, link, StatusSource::Shared(control), taken);
        // The beginning of an adopted log may have been released. A reader that asks for it gets a gap.
        process.chain().forget_below(taken.seq + 1, taken.offset);
        process
    }

    fn with_status_source(
        init: ProcessInit,
        link: Arc<HolderLink>,
        status_source: StatusSource,
        taken: LogPosition,
    ) -> Self {
        Self {
            session: init.session,
            meta: init.meta,
            pid: init.pid,
            slot: init.slot,
            link: Mutex::new(link),
            status_source: RwLock::new(status_source),
            chain: Mutex::default(),
            wakers: Mutex::default(),
            takers: Mutex::new(vec![OutputTaker { key: OWNER, from: 0, seq: taken.seq, holds: true }]),
            next_taker: AtomicU64::new(OWNER + 1),
            followed: Mutex::default(),
            stdin: Mutex::default(),
            loads: Mutex::default(),
            owner: Mutex::new(taken),
            owner_mark: Mutex::new(taken),
            leader: Mutex::new(init.leader.map(Arc::new)),
            lost: OnceLock::new(),
            end_recorded: AtomicBool::new(false),
            forgotten: OnceLock::new(),
            closed_since: Mutex::default(),
            counted: init.counted.map(AtomicU64::new),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.meta.process_id
    }

    /// The id as sent on the wire.
    pub(crate) fn process_id(&self) -> ProcessId {
        ProcessId::new(self.id())
    }

    pub(crate) fn session_id(&self) -> SessionId {
        SessionId::new(self.session.clone())
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    pub(crate) fn link(&self) -> Arc<HolderLink> {
        self.link.lock().clone()
    }

    /// The status that the holder publishes, with a made-up end if the holder is dead.
    pub(crate) fn status(&self) -> LogStatus {
        if let Some(last) = self.forgotten.get() {
            return *last;
        }
        let mut status = self.published_status();
        if let Some(lost) = self.lost.get() {
            status.next_seq = lost.closed_seq + 1;
            status.closed_seq = Some(lost.closed_seq);
        }
        status
    }

    /// Gives up everything that is shared with the holder, and then tells the holder to reuse it. Readers that still
    /// have the process see an empty log.
    pub(crate) fn forget(self: &Arc<Self>) {
        self.forgotten.set(self.status()).ok(); // Already forgotten: keep the first status.
        let mut chain = self.chain();
        let (end_seq, end_offset) = (self.status().next_seq, chain.end_offset());
        // Drop the mappings before the segments are returned: the holder then lets other processes write there.
        let segments: Vec<SegmentInfo> = std::mem::take(&mut *chain).segments().collect();
        chain.forget_below(end_seq, end_offset);
        drop(chain);
        let link = self.link();
        for segment in segments {
            match segment.location {
                SegmentLocation::Memory => link.send(&ToHolder::Return { segment: segment.id }),
                // The holder removes its files on `Forget`. Without a holder, remove them here.
                SegmentLocation::Disk if link.is_broken() => link.release(self.slot, segment.id),
                SegmentLocation::Disk => {}
            }
        }
        drop(link.status(|req| ToHolder::Forget { req, slot: self.slot }));
        link.save_archive();
        // Answer the queued stdin operations now: they must not reach the next process in this slot.
        self.send_next_stdin(self.stdin.lock());
        self.wake();
    }

    pub(crate) fn lost_end(&self) -> Option<LostEnd> {
        self.lost.get().copied()
    }

    /// Returns true the first time only. The caller then records the end.
    pub(crate) fn mark_end_recorded(&self) -> bool {
        !self.end_recorded.swap(true, Ordering::AcqRel)
    }

    /// Whether the process has exited. Descendants may still hold its streams open.
    pub(crate) fn has_ended(&self) -> bool {
        self.lost.get().is_some() || self.status().exited.is_some()
    }

    pub(crate) fn chain(&self) -> MutexGuard<'_, SegmentChain> {
        self.chain.lock()
    }

    /// Returns true if there are already events after `seen_next_seq`. Otherwise the next event wakes the readers.
    pub(crate) fn arm(&self, seen_next_seq: u64) -> bool {
        match &*self.status_source.read() {
            StatusSource::Shared(control) => {
                self.lost.get().is_none()
                    && self.forgotten.get().is_none()
                    && control.arm_slot(self.slot, seen_next_seq)
            }
            StatusSource::LastKnown { .. } => false,
        }
    }

    pub(crate) fn add_waker(&self, waker: Arc<FeedWaker>) {
        self.wakers.lock().push(waker);
    }

    pub(crate) fn remove_waker(&self, waker: &Arc<FeedWaker>) {
        self.wakers.lock().retain(|other| !Arc::ptr_eq(other, waker));
    }

    /// Number of feeds and reads that wait for events, including the owner's.
    pub(crate) fn waker_count(&self) -> usize {
        self.wakers.lock().len()
    }

    /// Wakes every feed and read, because there are new events.
    pub(crate) fn wake(&self) {
        for waker in self.wakers.lock().iter() {
            waker.wake();
        }
    }

    pub(crate) fn owner_position(&self) -> LogPosition {
        let owner = *self.owner.lock();
        // If events after the owner's position were dropped, start at the mark instead. Its byte offset is exact, so the
        // reported gap is exact. The client knows which part of the gap it already has.
        let is_gone = self.chain().first().is_some_and(|(first, _)| first > owner.seq + 1);
        if is_gone { *self.owner_mark.lock() } else { owner }
    }

    /// The output bytes up to and including event `seq`, if the log knows: it is the offset at which the next event
    /// begins.
    pub(crate) fn offset_after(&self, seq: u64) -> Option<u64> {
        let status = self.status();
        match self.chain().read(&mut Cursor::after(seq)) {
            ReadStep::Record(record) => Some(record.offset),
            ReadStep::End if seq.saturating_add(1) == status.next_seq => Some(status.written),
            ReadStep::End | ReadStep::Gap { .. } | ReadStep::NeedsLoad(_) | ReadStep::Damaged(_) => None,
        }
    }

    /// Like `offset_after`, but also works where no next event is available: at the beginning, and at the owner's
    /// mark.
    pub(crate) fn offset_at(&self, seq: u64) -> Option<u64> {
        if seq == 0 {
            return Some(0);
        }
        let mark = *self.owner_mark.lock();
        self.offset_after(seq).or((mark.seq == seq).then_some(mark.offset))
    }

    /// Records that the owner has everything up to `position`, whose offset is exact.
    pub(crate) fn set_owner_mark(&self, position: LogPosition) {
        let mut mark = self.owner_mark.lock();
        if position.seq >= mark.seq {
            *mark = position;
        }
    }

    /// Records how far the owner got. Never moves back: an old connection may report after a new one.
    pub(crate) fn set_owner_position(&self, position: LogPosition) {
        let mut owner = self.owner.lock();
        if position.seq >= owner.seq {
            *owner = position;
        }
    }

    /// Records that the owner has taken everything up to `position`. The owner's position moves along, so that a resume
    /// that arrives before the old connection has reported its position does not start at released output.
    pub(crate) fn record_owner_taken(&self, position: LogPosition) {
        self.set_owner_position(position);
        self.record_taken(OWNER, position.seq);
    }

    /// Records that a taker has taken everything up to `seq`, and releases segments that no taker needs.
    pub(crate) fn record_taken(&self, key: u64, seq: u64) {
        // Clamp to what was written: an acknowledgement of future numbers must not count for events that come later.
        let seq = seq.min(self.status().next_seq.saturating_sub(1));
        let mut moved = false;
        for taker in self.takers.lock().iter_mut().filter(|taker| taker.key == key && taker.seq < seq) {
            taker.seq = seq;
            moved = true;
        }
        if moved {
            self.release_taken();
        }
        if moved && key != OWNER {
            self.report_followed();
        }
    }

    /// The last event that the owner has taken, on any of its connections.
    pub(crate) fn owner_taken_seq(&self) -> u64 {
        self.takers.lock().iter().find(|taker| taker.key == OWNER).map_or(0, |taker| taker.seq)
    }

    /// The last event that every holding taker has taken.
    pub(crate) fn taken_seq(&self) -> u64 {
        self.takers.lock().iter().filter(|taker| taker.holds).map(|taker| taker.seq).min().unwrap_or(ABANDONED)
    }

    fn release_taken(&self) {
        let taken = self.taken_seq();
        let mut chain = self.chain();
        let gone = chain.take_up_to(taken, limits::READABLE_BYTES);
        let first = chain.first();
        drop(chain);
        if !gone.is_empty() {
            self.note_released(first);
        }
        for segment in gone {
            // `release` does I/O, so the chain lock is not held here.
            self.link().release(self.slot, segment);
        }
    }

    /// Gives up a damaged segment, so that readers get a gap instead of waiting forever.
    pub(crate) fn handle_damaged(&self, segment: u64) {
        tracing::error!(
            session = short_id(&self.session),
            process = self.id(),
            segment,
            "part of the log is damaged; it is reported as a gap"
        );
        self.chain().remove(segment);
    }

    /// Adds a segment that the holder began, or that it names at adoption: in memory if there is a mapping, otherwise
    /// on disk.
    pub(crate) fn push_segment(&self, info: SegmentInfo, mapping: Option<Arc<LentMapping>>) {
        match mapping {
            Some(mapping) => self.chain().push_memory(info, mapping),
            None => self.chain().push_disk(info),
        }
        self.wake();
    }

    /// Handles a segment that the holder wrote to disk. Cursors borrow only from the chain, so the memory can be
    /// returned at once.
    pub(crate) fn handle_spilled(&self, segment: u64) {
        self.chain().set_on_disk(segment);
        self.link().send(&ToHolder::Return { segment });
    }

    /// Handles a segment that the holder dropped, because of `dropOldest` or for following readers. Cursors that reach
    /// it get a gap.
    pub(crate) fn handle_dropped(&self, segment: u64) {
        self.chain().remove(segment);
        self.link().send(&ToHolder::Return { segment });
        self.report_followed();
    }

    /// Queues a stdin operation. It is answered after its turn.
    pub(crate) fn enqueue_stdin(self: &Arc<Self>, operation: StdinOperation) {
        let mut stdin = self.stdin.lock();
        stdin.queue.push_back(operation);
        self.send_next_stdin(stdin);
    }

    /// Hands the front of the queue to the holder, unless an operation is already under way. Takes the guard, because
    /// the whole queue must be answered without the lock if nothing can be handed over.
    fn send_next_stdin(self: &Arc<Self>, mut stdin: MutexGuard<'_, StdinQueue>) {
        if self.forgotten.get().is_some() {
            // The slot may belong to another process now.
            let queue = std::mem::take(&mut stdin.queue);
            drop(stdin);
            return queue.into_iter().for_each(|operation| operation.answer_unknown(self.id()));
        }
        if stdin.busy {
            return;
        }
        let Some(front) = stdin.queue.front() else { return };
        let waiter = ReplyWaiter::Stdin(Arc::downgrade(self));
        let slot = self.slot;
        let asked = match front {
            StdinOperation::Write { key, digest, data, done, .. } => {
                let part = &data[*done..data.len().min(done + WRITE_PART_BYTES)];
                let (total, offset, key) = (data.len() as u64, *done as u64, *key);
                let digest = self.link().supports(DIGESTS).then_some(*digest);
                self.link().request(waiter, |req| ToHolder::Write { req, slot, key, digest, total, offset, data: part })
            }
            StdinOperation::Close { .. } => self.link().request(waiter, |req| ToHolder::CloseStdin { req, slot }),
        };
        stdin.busy = asked.is_ok();
        drop(stdin);
        if asked.is_err() {
            self.fail_stdin();
        }
    }

    fn fail_stdin(&self) {
        // Includes the part that the holder had: no answer will come for it.
        let lost = std::mem::take(&mut *self.stdin.lock());
        let link = self.link();
        for operation in lost.queue {
            if link.is_archive() {
                operation.answer_closed(self.id());
            } else {
                operation.into_reply().fail(&link.broken_failure());
            }
        }
    }

    /// Handles the holder's answer to a part: `done` bytes of the write have been written to the child's stdin.
    pub(crate) fn handle_written(self: &Arc<Self>, status: WriteStatus, done: u64) {
        let mut stdin = self.stdin.lock();
        stdin.busy = false;
        if let Some(StdinOperation::Write { data, done: so_far, is_cut, .. }) = stdin.queue.front_mut() {
            *is_cut |= status == WriteStatus::Cut;
            match status {
                WriteStatus::Accepted | WriteStatus::Cut => {
                    let done = usize::try_from(done).unwrap_or(usize::MAX).min(data.len());
                    self.link().metrics.stdin_bytes.add(done.saturating_sub(*so_far) as u64);
                    *so_far = done;
                }
                // Happens only right after an adoption, while a part from the previous server is still being written.
                // Send the same part again.
                WriteStatus::Busy => return self.send_next_stdin(stdin),
                WriteStatus::StdinClosed | WriteStatus::UnknownProcess | WriteStatus::Mismatch => *so_far = data.len(),
            }
            if *so_far < data.len() {
                return self.send_next_stdin(stdin);
            }
        }
        if let Some(StdinOperation::Write { is_cut, reply, .. }) = stdin.queue.pop_front() {
            match status {
                WriteStatus::Accepted | WriteStatus::Cut => reply.accept_write(is_cut),
                WriteStatus::StdinClosed => reply.write(self.id(), wire::WriteStatus::StdinClosed),
                WriteStatus::UnknownProcess => reply.write(self.id(), wire::WriteStatus::UnknownProcess),
                WriteStatus::Mismatch | WriteStatus::Busy => reply.fail(&Failure::WriteIdReused),
            }
        }
        self.send_next_stdin(stdin);
    }

    /// Handles the holder's answer to `CloseStdin`.
    pub(crate) fn handle_stdin_closed(self: &Arc<Self>, status: wire::CloseStdinStatus) {
        let mut stdin = self.stdin.lock();
        stdin.busy = false;
        if let Some(StdinOperation::Close { reply }) = stdin.queue.pop_front() {
            reply.result(&wire::CloseStdinResult { status });
        }
        self.send_next_stdin(stdin);
    }

    /// Handles the death of the holder: answers all queued operations and lets readers see an end. The caller kills
    /// the remaining processes.
    pub(crate) fn handle_holder_lost(&self) {
        self.set_lost_end(self.published_status());
        self.fail_stdin();
        self.wake();
    }

    /// pidfd and pid of the leader, if the holder died before the process closed.
    pub(crate) fn leader(&self) -> Option<(Arc<OwnedFd>, u32)> {
        self.leader.lock().clone().filter(|_| self.lost.get().is_some()).map(|leader| (leader, self.pid))
    }

    /// Drops the owner as a taker: all output counts as taken by it.
    pub(crate) fn abandon(&self) {
        self.set_owner_position(LogPosition { seq: ABANDONED, offset: 0 });
        self.takers.lock().retain(|taker| taker.key != OWNER);
        self.release_taken();
    }

    /// Whether readers other than the owner hold untaken output.
    pub(crate) fn has_holds(&self) -> bool {
        self.takers.lock().iter().any(|taker| taker.key != OWNER && taker.holds)
    }

    /// Since when the process has been closed and the owner could have known it. Time in which the owner is away does
    /// not count: each call without an owner restarts the clock.
    pub(crate) fn closed_since(&self, now: Instant, attached: bool) -> Option<Instant> {
        self.status().closed_seq?;
        let mut since = self.closed_since.lock();
        if since.is_none() || !attached || !self.is_taken() {
            *since = Some(now);
        }
        *since
    }

    /// Whether the owner has everything: acknowledged or, if the peer cannot acknowledge, sent.
    pub(crate) fn is_taken(&self) -> bool {
        self.owner.lock().seq + 1 >= self.status().next_seq
    }

    /// A cursor for a reader that has everything up to `after`.
    pub(crate) fn cursor(&self, after: LogPosition) -> Cursor {
        Cursor::after_with_offset(after.seq, after.offset)
    }
}
