//! Reads a child's output into its log, and applies the overflow policy when the log is full.
//!
//! The overflow policy:
//! - Attached: the child is not read and blocks.
//! - Detached: the oldest sealed segments are spilled to disk. When the quota or the disk is full, the child blocks.
//! - With `DropOldest`, the oldest segment is dropped where the child would block.
//! - While no client is attached but readers follow the log, segments that all of them have taken are dropped where the
//!   child would block.
//!
//! The memory cap is checked after a new segment has begun. The segment before it is then sealed and can be released,
//! spilled or dropped, even with a cap of one segment. The new, empty segment costs one page.
//!
//! Output that no process adds to is finite: the leader's tail at its death, or a stream without a writer. It is always
//! read, regardless of the policy, into a *reserve* beyond the cap. So a process that has ended is reported as ended
//! even at its quota and on a full disk. Beyond the reserve, the oldest segment is dropped and counted.
//!
//! `DropOldest` may drop the segment that contains `Exited`, if descendants write after the leader's end. The slot's
//! shared status keeps the exit, and a reader whose gap covers that event takes it from there.
//!
//! Failure paths:
//! - No memory or no fd for a segment: the overflow policy is applied, as at the cap. If it frees no segment, the child
//!   blocks and reading is retried after a delay.
//! - No memory for a page of the segment: the child blocks and reading is retried after a delay.
//! - Any other read error ends its stream.

use exec_server_log::{BlockReason, ReleasedSegment};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};

use crate::{
    context::SessionContext,
    control::{FromHolder, OverflowPolicy},
    poller::EventFlags,
    process::{Process, ProcessPhase, stream_fd},
};

/// Bytes per read of a terminal. One read returns no more, even if the terminal holds more.
const TERMINAL_BYTES: usize = 4096;

/// A read that returns fewer bytes has probably emptied the stream, as the echo of a key does. Another read would then
/// only return EAGAIN. If bytes are left, epoll reports them in the next turn. A program that prints without pause
/// leaves more than this in its stream, and is read again at once.
const FEW_BYTES: usize = 512;

/// Maximum bytes read from one fd per turn, so that a flood does not delay other children by more. Twice the capacity
/// of a pipe. Pipes keep their default size: in measurements, a larger pipe made a single child no faster, and eight
/// concurrent children slower.
const TURN_BYTES: usize = 128 * 1024;

/// Delay before a retry after a shortage of memory or fds.
const RETRY_NS: u64 = 1_000_000_000;

/// Spilling begins this many segments below the cap, so that a detached child need not wait for each disk write.
const SPILL_AHEAD: usize = 2;

/// Segments beyond the cap for output that is left in the streams of an ended process (4 MiB). Enough for two pipes of
/// the largest size that a user may set (1 MiB), once at the leader's exit and again when the last writer has gone.
const RESERVE_SEGMENTS: usize = 4;

enum ReliefOutcome {
    /// The policy freed a segment.
    Freed,
    /// The child must not be read, for this reason.
    Full(BlockReason),
}

enum ReadOutcome {
    /// `n` bytes are in the log. `is_emptied`: the stream probably holds no more.
    Bytes { n: usize, is_emptied: bool },
    /// Nothing can be read now.
    Nothing,
    /// No memory is available to read into.
    NoMemory,
    /// EOF, or an error that ends the stream.
    Ended,
}

impl Process {
    /// Handles a stream that is ready.
    pub(crate) fn handle_readable(&mut self, index: usize, flags: EventFlags, cx: &mut SessionContext) {
        // HUP without IN is the EOF of a pipe. End the stream without a read, which would need a segment. A paused pipe
        // is watched for HUP only, so its event lacks IN even if bytes are left: `has_hung_up` polls again. A terminal
        // is always read, because its HUP may overtake bytes that are still in the line discipline.
        let is_hang_up = flags.contains(EventFlags::HUP) && !flags.contains(EventFlags::IN);
        if is_hang_up && self.has_hung_up(index) {
            self.end_stream(index, cx);
        } else {
            self.read(index, flags.contains(EventFlags::HUP), cx);
        }
        self.settle(cx);
    }

    /// Reads a stream until it is empty, the limit per turn is reached, or the log is full. `has_hung_up`: the stream has
    /// no writer, so its EOF can be read in this turn.
    pub(crate) fn read(&mut self, index: usize, has_hung_up: bool, cx: &mut SessionContext) {
        let mut left = TURN_BYTES;
        // Make room only for an open stream: an event that was reported before the stream ended must not begin a
        // segment after the last event of the log.
        while left > 0 && self.is_open(index) && (self.paused.is_none() || self.is_final(index)) {
            // At the cap, look for the EOF first: learning it must not drop other output or wait for room.
            if self.writer.memory_segments() >= self.cap_segments() && self.has_hung_up(index) {
                return self.end_stream(index, cx);
            }
            if let Err(blocked) = self.make_room(cx) {
                let has_reserve = self.is_final(index) && self.use_reserve(cx);
                if !has_reserve {
                    return self.pause(blocked, cx);
                }
            }
            match self.read_record(index, cx) {
                // Of a stream that may have ended, read the EOF as well.
                ReadOutcome::Bytes { is_emptied: true, .. } if !has_hung_up && self.phase == ProcessPhase::Running => {
                    return;
                }
                ReadOutcome::Bytes { n, .. } => left = left.saturating_sub(n),
                ReadOutcome::Nothing => return,
                ReadOutcome::NoMemory => {
                    self.retry_later(cx);
                    // No `BlockReason` stands for a shortage of memory. `MemoryCap` is the nearest.
                    return self.pause(BlockReason::MemoryCap, cx);
                }
                ReadOutcome::Ended => return self.end_stream(index, cx),
            }
            // Append `Exited` right after the tail, before output that descendants have written since.
            if self.is_drained() {
                self.finish_exit(cx);
            }
        }
    }

    /// Checks again whether a paused child can be read. For a child that is not paused, spills ahead.
    pub(crate) fn reconsider(&mut self, cx: &mut SessionContext) {
        if self.phase == ProcessPhase::Closed {
            return;
        }
        if self.paused.is_none() {
            return self.spill_ahead(cx);
        }
        match self.make_room(cx) {
            Ok(()) => {
                self.paused = None;
                if let Some((span, at)) = &mut self.deadlines.idle {
                    // Restart the idle timeout: the holder could not see any output while it did not read.
                    *at = cx.now_ns.saturating_add(*span);
                    cx.has_new_deadline = true;
                }
                cx.control.set_blocked(self.slot, BlockReason::No);
                self.settle(cx);
            }
            Err(blocked) => self.pause(blocked, cx),
        }
    }

    /// Handles `Release`: the server no longer needs this segment.
    pub(crate) fn handle_release(&mut self, id: u64, cx: &mut SessionContext) {
        match self.writer.release(&cx.control, id) {
            ReleasedSegment::Memory(segment) => cx.dispose(segment),
            ReleasedSegment::Disk => cx.spill.unlink(self.slot, id),
            ReleasedSegment::Unknown => {}
        }
        self.reconsider(cx);
    }

    /// Handles a segment whose file has been written. Its memory becomes free once the server has returned it.
    pub(crate) fn handle_spilled(&mut self, id: u64, cx: &mut SessionContext) {
        match self.writer.set_on_disk(id) {
            Some(segment) => {
                cx.send(&FromHolder::Spilled { slot: self.slot, segment: id });
                cx.dispose(segment);
            }
            // The segment was released or dropped while it was being written.
            None => cx.spill.unlink(self.slot, id),
        }
    }

    /// Whether a pipe is empty and has no writer. Always false for a terminal, which reports its end only on a read.
    fn has_hung_up(&self, index: usize) -> bool {
        let flags = self.poll(index);
        !self.is_tty && flags.contains(PollFlags::HUP) && !flags.contains(PollFlags::IN)
    }

    /// Whether the unread output of a stream is finite: it is the rest of the leader's tail, or the stream has no
    /// writer.
    fn is_final(&self, index: usize) -> bool {
        let has_tail =
            self.phase == ProcessPhase::Draining && self.outputs.get(index).is_some_and(|output| output.tail > 0);
        has_tail || self.poll(index).contains(PollFlags::HUP)
    }

    /// Polls a stream without blocking. Returns no flags if the stream is closed or cannot be polled.
    fn poll(&self, index: usize) -> PollFlags {
        let (Some(output), Some(child)) = (self.outputs.get(index), &self.child) else { return PollFlags::empty() };
        let Some(fd) = stream_fd(child, output.stream) else { return PollFlags::empty() };
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let is_polled = rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok();
        let [polled] = polled;
        if is_polled { polled.revents() } else { PollFlags::empty() }
    }

    fn is_open(&self, index: usize) -> bool {
        self.phase != ProcessPhase::Closed && self.outputs.get(index).is_some_and(|output| output.is_open)
    }

    /// Reads once, straight into the log.
    fn read_record(&mut self, index: usize, cx: &mut SessionContext) -> ReadOutcome {
        let (Some(output), Some(child)) = (self.outputs.get_mut(index), &self.child) else {
            return ReadOutcome::Nothing;
        };
        let Some(fd) = stream_fd(child, output.stream).filter(|_| output.is_open) else { return ReadOutcome::Nothing };
        // The caller has made room, so this does not take a new segment.
        let Ok(mut room) = self.writer.room(&mut cx.pool) else { return ReadOutcome::Nothing };
        let buf = if self.is_tty {
            let Ok(buf) = room.backed(TERMINAL_BYTES) else { return ReadOutcome::NoMemory };
            buf
        } else {
            room.buf
        };
        let size = buf.len();
        let n = match rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut *buf)) {
            Ok(0) => return ReadOutcome::Ended,
            Ok(n) => n,
            Err(Errno::AGAIN) => {
                // The stream is empty, so the whole tail has been read. For a terminal, `tail` is only an upper bound.
                output.tail = 0;
                return ReadOutcome::Nothing;
            }
            // The kernel could not allocate a page of the segment. A pipe still holds the bytes. A terminal would lose
            // them, so `backed` allocates its pages before the read.
            Err(Errno::FAULT | Errno::NOMEM) => return ReadOutcome::NoMemory,
            // EIO is the normal end of a terminal. Any other error is permanent too.
            Err(_) => return ReadOutcome::Ended,
        };
        output.tail = output.tail.saturating_sub(n as u64);
        let is_due = self.writer.commit(&cx.control, output.stream, n);
        cx.request_wake(is_due);
        if let Some((span, at)) = &mut self.deadlines.idle {
            // No `has_new_deadline`: the deadline that was collected is now too early, which is harmless.
            *at = cx.now_ns.saturating_add(*span);
        }
        ReadOutcome::Bytes { n, is_emptied: n < FEW_BYTES.min(size) }
    }

    /// Ensures that a record can be appended within the cap.
    fn make_room(&mut self, cx: &mut SessionContext) -> Result<(), BlockReason> {
        if !self.begin_record(cx) {
            // Try only once. More attempts would be in vain: a dropped segment that the server has mapped becomes free
            // only when the server returns it, and a spilled one only when it is on disk.
            let is_freed = matches!(self.apply_overflow_policy(cx), ReliefOutcome::Freed) && self.begin_record(cx);
            if !is_freed {
                self.retry_later(cx);
                return Err(BlockReason::MemoryCap);
            }
        }
        self.announce(cx);
        while self.writer.memory_segments() > self.cap_segments() {
            match self.apply_overflow_policy(cx) {
                ReliefOutcome::Freed => {}
                ReliefOutcome::Full(blocked) => return Err(blocked),
            }
        }
        self.spill_ahead(cx);
        Ok(())
    }

    /// Makes room beyond the cap, for output that is finite. Returns false if memory or fds are short.
    fn use_reserve(&mut self, cx: &mut SessionContext) -> bool {
        if !self.begin_record(cx) {
            return false;
        }
        self.announce(cx);
        while self.writer.memory_segments() > self.cap_segments().saturating_add(RESERVE_SEGMENTS) {
            if !self.drop_oldest(cx) {
                break;
            }
        }
        true
    }

    /// Ensures that a segment for the next record exists. Returns false if memory or fds are short.
    fn begin_record(&mut self, cx: &mut SessionContext) -> bool {
        // The check costs system calls, so it is done only when a new segment needs an fd.
        let takes_fd = !self.writer.has_room() && !cx.pool.has_spare();
        if takes_fd && !self.may_take_fd(cx) {
            return false;
        }
        self.writer.room(&mut cx.pool).is_ok()
    }

    /// Whether the log may take one more fd. The first segment of a process may use half of the reserved fds: otherwise
    /// the process could not produce any output once starts have taken all other fds.
    fn may_take_fd(&self, cx: &SessionContext) -> bool {
        let is_first = self.writer.memory_segments() == 0;
        cx.free_fds().is_some_and(|fds| fds.free > if is_first { fds.reserved / 2 } else { fds.reserved })
    }

    /// Applies the overflow policy once.
    fn apply_overflow_policy(&mut self, cx: &mut SessionContext) -> ReliefOutcome {
        let blocked = if cx.is_attached {
            BlockReason::MemoryCap
        } else if cx.spill.is_quota_full(self.writer.disk_segments()) {
            BlockReason::Quota
        } else if cx.spill.is_paused() {
            BlockReason::DiskFull
        } else {
            self.spill_oldest(cx);
            // The child waits only until the segment is on disk, so it is not reported as blocked.
            return ReliefOutcome::Full(BlockReason::No);
        };
        let may_drop = self.overflow == OverflowPolicy::DropOldest || self.is_oldest_followed(cx);
        if may_drop && self.drop_oldest(cx) {
            return ReliefOutcome::Freed;
        }
        ReliefOutcome::Full(blocked)
    }

    /// Whether no client is attached, and all readers that follow the log have taken the oldest segment, so that
    /// dropping it loses nothing for them.
    fn is_oldest_followed(&self, cx: &SessionContext) -> bool {
        !cx.is_attached && self.writer.oldest_sealed_seq().is_some_and(|seq| seq <= self.followed_seq)
    }

    /// Spills before the cap is reached, in the cases where a full log would spill.
    fn spill_ahead(&mut self, cx: &mut SessionContext) {
        let is_near = self.writer.memory_segments() + SPILL_AHEAD > self.cap_segments();
        if is_near && !cx.is_attached && !cx.spill.is_quota_full(self.writer.disk_segments()) {
            self.spill_oldest(cx);
        }
    }

    /// Begins to spill the oldest sealed segment, if the disk is idle.
    fn spill_oldest(&mut self, cx: &mut SessionContext) {
        // The log of a closed process does not grow, so it stays in memory until the session is archived.
        if self.phase == ProcessPhase::Closed || !cx.spill.is_idle() {
            return;
        }
        if let Some(segment) = self.writer.oldest_sealed_in_memory() {
            cx.spill.begin(self.slot, segment, cx.now_ns);
        }
    }

    fn drop_oldest(&mut self, cx: &mut SessionContext) -> bool {
        let Some(dropped) = self.writer.drop_oldest(&cx.control) else { return false };
        cx.send(&FromHolder::Dropped { slot: self.slot, segment: dropped.id });
        match dropped.segment {
            Some(segment) => cx.dispose(segment),
            None => {
                cx.spill.unlink(self.slot, dropped.id);
                cx.spill.end_pause();
            }
        }
        true
    }

    fn pause(&mut self, blocked: BlockReason, cx: &mut SessionContext) {
        self.paused = Some(blocked);
        cx.control.set_blocked(self.slot, blocked);
        self.settle(cx);
    }

    /// Schedules a retry: the next deadline of the process calls `reconsider` and `settle`.
    pub(crate) fn retry_later(&mut self, cx: &mut SessionContext) {
        self.retry_in(RETRY_NS, cx);
    }

    pub(crate) fn retry_in(&mut self, ns: u64, cx: &mut SessionContext) {
        self.deadlines.retry_at = Some(cx.now_ns.saturating_add(ns));
        cx.has_new_deadline = true;
    }
}
