//! A child's output into its log: reading, and what happens when the log is full.
//!
//! Owns the policy of section 1 of the design: *attached* and full, the child is not read and blocks; *detached*, the
//! oldest sealed segments go to disk up to a quota, then it blocks; `DropOldest` gives up the oldest segment where it would
//! block; so does a reader that follows while no client is attached, for the segments that it has taken. It does not know messages other
//! than those it sends.
//!
//! The cap is looked at after a new segment has begun: the segment before it is then sealed and can be released, spilled
//! or dropped, even with a cap of one. The empty one in front costs a page.
//!
//! Bytes that are left when nothing writes them any more (the leader's tail at its death, a stream without a writer) are finite. They are
//! read whatever the policy says, into a *reserve* beyond the cap: a process that has ended is reported as ended also at its quota and
//! on a full disk. Beyond the reserve the oldest segment is dropped and counted.
//!
//! `DropOldest` may drop the segment that holds `Exited`, when others go on writing after the leader's end: the slot's
//! shared status keeps the exit, and a reader takes it from there when its gap covers that number.
//!
//! Failure paths: no memory or no descriptor for a segment blocks and is tried again by the clock, and the policy is asked for
//! what can be given up, as at the cap; no memory for a page of it blocks likewise. Any other read error ends its stream.

use exec_server_log::{Blocked, Released};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::context::Context;
use crate::poller::EventFlags;
use crate::process::{Phase, Process, stream_fd};
use crate::wire::{FromHolder, Overflow};

/// What is read of a terminal at once: it keeps no more.
const TERMINAL_BYTES: usize = 4096;

/// Bytes read from one descriptor in one turn, so that a flood delays its neighbours by no more than this: twice what a pipe holds. Pipes
/// keep the size that they are born with: measured, a wider one made a single child no faster, and eight together slower.
const TURN_BYTES: usize = 128 * 1024;

/// When to try again after memory was short.
const RETRY_NS: u64 = 1_000_000_000;

/// Segments below the cap at which spilling begins, so that a detached child does not wait for each write.
const SPILL_AHEAD: usize = 2;

/// Segments beyond the cap for what is left in the streams of a process that has ended, 4 MiB: two pipes of the largest size that a user
/// may give them (1 MiB), at the leader's exit and once more when the last writer has gone.
const RESERVE_SEGMENTS: usize = 4;

enum Step {
    /// Some memory was freed.
    Freed,
    /// The child is not read, for this reason.
    Full(Blocked),
}

enum Read {
    Bytes(usize),
    Nothing,
    /// There is no memory to read into now.
    Short,
    Ended,
}

impl Process {
    /// Reads a stream that is ready.
    pub(crate) fn handle_readable(&mut self, index: usize, flags: EventFlags, cx: &mut Context) {
        // A hang-up without input is the end of a pipe: no segment is needed to learn it. A terminal is read: its
        // hang-up may overtake bytes that are still on their way through the line discipline. A paused stream is watched for the hang-up
        // alone, which then says nothing about input: `has_hung_up` looks.
        let is_hang_up = flags.contains(EventFlags::HUP) && !flags.contains(EventFlags::IN);
        if is_hang_up && self.has_hung_up(index) {
            self.end_stream(index, cx);
        } else {
            self.read(index, cx);
        }
        self.settle(cx);
    }

    /// Reads a stream until it is empty, the turn's share is used, or the log is full.
    pub(crate) fn read(&mut self, index: usize, cx: &mut Context) {
        let mut left = TURN_BYTES;
        // Room is made only for a stream that can fill it: an event that was ready before the stream ended must not begin a
        // segment behind the last event of the log.
        while left > 0 && self.is_open(index) && (self.paused.is_none() || self.is_final(index)) {
            // At the cap the end of a stream must cost nothing: no other event may be dropped or waited for to learn it.
            if self.writer.memory_segments() >= self.cap_segments() && self.has_hung_up(index) {
                return self.end_stream(index, cx);
            }
            if let Err(blocked) = self.make_room(cx)
                && !(self.is_final(index) && self.use_reserve(cx))
            {
                return self.pause(blocked, cx);
            }
            match self.read_record(index, cx) {
                Read::Bytes(n) => left = left.saturating_sub(n),
                Read::Nothing => return,
                Read::Short => {
                    self.retry_later(cx);
                    return self.pause(Blocked::MemoryCap, cx);
                }
                Read::Ended => return self.end_stream(index, cx),
            }
            if self.is_drained() {
                self.finish_exit(cx);
            }
        }
    }

    /// Looks again whether a paused child can be read.
    pub(crate) fn reconsider(&mut self, cx: &mut Context) {
        if self.phase == Phase::Closed {
            return;
        }
        if self.paused.is_none() {
            return self.spill_ahead(cx);
        }
        match self.make_room(cx) {
            Ok(()) => {
                self.paused = None;
                if let Some((span, at)) = &mut self.timing.idle {
                    // Silence is counted from when it could be heard again.
                    *at = cx.now_ns.saturating_add(*span);
                    cx.has_new_deadline = true;
                }
                cx.control.set_blocked(self.slot, Blocked::No);
                self.settle(cx);
            }
            Err(blocked) => self.pause(blocked, cx),
        }
    }

    /// The server took a segment.
    pub(crate) fn handle_release(&mut self, id: u64, cx: &mut Context) {
        match self.writer.release(&cx.control, id) {
            Released::Memory(segment) => cx.dispose(segment),
            Released::Disk => cx.spill.unlink(self.slot, id),
            Released::Unknown => {}
        }
        self.reconsider(cx);
    }

    /// The file of a segment was written: its memory is free once the server returned it.
    pub(crate) fn handle_spilled(&mut self, id: u64, cx: &mut Context) {
        match self.writer.set_on_disk(id) {
            Some(segment) => {
                cx.send(&FromHolder::Spilled { slot: self.slot, segment: id });
                cx.dispose(segment);
            }
            // Taken or dropped in the meantime.
            None => cx.spill.unlink(self.slot, id),
        }
    }

    /// Whether a pipe is empty and has no writer any more. A terminal says so only when it is read.
    fn has_hung_up(&self, index: usize) -> bool {
        let found = self.poll(index);
        !self.is_tty && found.contains(PollFlags::HUP) && !found.contains(PollFlags::IN)
    }

    /// Whether what is left to read of a stream is finite and cannot grow: the rest of the leader's tail, or no writer is left.
    fn is_final(&self, index: usize) -> bool {
        let has_tail = self.phase == Phase::Draining && self.outputs.get(index).is_some_and(|output| output.tail > 0);
        has_tail || self.poll(index).contains(PollFlags::HUP)
    }

    fn poll(&self, index: usize) -> PollFlags {
        let (Some(output), Some(child)) = (self.outputs.get(index), &self.child) else { return PollFlags::empty() };
        let Some(fd) = stream_fd(child, output.stream) else { return PollFlags::empty() };
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let is_polled = rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok();
        let [polled] = polled;
        if is_polled { polled.revents() } else { PollFlags::empty() }
    }

    fn is_open(&self, index: usize) -> bool {
        self.phase != Phase::Closed && self.outputs.get(index).is_some_and(|output| output.is_open)
    }

    /// One read straight into the log.
    fn read_record(&mut self, index: usize, cx: &mut Context) -> Read {
        let (Some(output), Some(child)) = (self.outputs.get_mut(index), &self.child) else { return Read::Nothing };
        let Some(fd) = stream_fd(child, output.stream).filter(|_| output.is_open) else { return Read::Nothing };
        // The caller has made room, so this takes no new segment.
        let Ok(mut room) = self.writer.room(&mut cx.pool) else { return Read::Nothing };
        let buf = if self.is_tty {
            let Ok(buf) = room.backed(TERMINAL_BYTES) else { return Read::Short };
            buf
        } else {
            room.buf
        };
        let n = match rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut *buf)) {
            Ok(0) => return Read::Ended,
            Ok(n) => n,
            Err(Errno::AGAIN) => {
                output.tail = 0;
                return Read::Nothing;
            }
            // A page of the segment could not be had. What was to be read is still in its pipe; a terminal's had its page.
            Err(Errno::FAULT | Errno::NOMEM) => return Read::Short,
            // EIO is how a terminal ends; any other error will not go away either.
            Err(_) => return Read::Ended,
        };
        output.tail = output.tail.saturating_sub(n as u64);
        let is_due = self.writer.commit(&cx.control, output.stream, n);
        cx.wake(is_due);
        if let Some((span, at)) = &mut self.timing.idle {
            *at = cx.now_ns.saturating_add(*span);
        }
        Read::Bytes(n)
    }

    /// Makes sure that a record can be appended within the cap.
    fn make_room(&mut self, cx: &mut Context) -> Result<(), Blocked> {
        if !self.begin_record(cx) {
            // Once: what the server still has is free when it gives it back, and what goes to disk when it is there.
            let is_freed = matches!(self.relieve(cx), Step::Freed) && self.begin_record(cx);
            if !is_freed {
                self.retry_later(cx);
                return Err(Blocked::MemoryCap);
            }
        }
        self.announce(cx);
        while self.writer.memory_segments() > self.cap_segments() {
            match self.relieve(cx) {
                Step::Freed => {}
                Step::Full(blocked) => return Err(blocked),
            }
        }
        self.spill_ahead(cx);
        Ok(())
    }

    /// Makes room beyond the cap, for output that cannot grow; false where memory or descriptors are short.
    fn use_reserve(&mut self, cx: &mut Context) -> bool {
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

    /// Makes sure that there is a segment for the next record; false where memory or descriptors are short.
    fn begin_record(&mut self, cx: &mut Context) -> bool {
        // Asked for once a segment, and not for one that is used again.
        let takes_fd = !self.writer.has_room() && !cx.pool.has_spare();
        if takes_fd && !self.may_take_fd(cx) {
            return false;
        }
        self.writer.room(&mut cx.pool).is_ok()
    }

    /// Whether the log may have one more descriptor. The only one of a process may be of those that are kept, down to the half: where starts
    /// have taken all others it could say nothing.
    fn may_take_fd(&self, cx: &Context) -> bool {
        let is_only = self.writer.memory_segments() == 0;
        cx.free_fds().is_some_and(|fds| fds.free > if is_only { fds.kept / 2 } else { fds.kept })
    }

    /// One act of the overflow policy.
    fn relieve(&mut self, cx: &mut Context) -> Step {
        let blocked = if cx.is_attached {
            Blocked::MemoryCap
        } else if cx.spill.is_quota_full(self.writer.disk_segments()) {
            Blocked::Quota
        } else if cx.spill.is_resting() {
            Blocked::DiskFull
        } else {
            self.spill_oldest(cx);
            return Step::Full(Blocked::No);
        };
        let may_drop = self.overflow == Overflow::DropOldest || self.is_oldest_followed(cx);
        if may_drop && self.drop_oldest(cx) {
            return Step::Freed;
        }
        Step::Full(blocked)
    }

    /// Whether no client is attached, and the readers that follow have the oldest segment: to them it is no loss.
    fn is_oldest_followed(&self, cx: &Context) -> bool {
        !cx.is_attached && self.writer.oldest_sealed_seq().is_some_and(|seq| seq <= self.followed_seq)
    }

    /// Spills before the cap is reached, where spilling is the rule.
    fn spill_ahead(&mut self, cx: &mut Context) {
        let is_near = self.writer.memory_segments() + SPILL_AHEAD > self.cap_segments();
        if is_near && !cx.is_attached && !cx.spill.is_quota_full(self.writer.disk_segments()) {
            self.spill_oldest(cx);
        }
    }

    /// Sends the oldest sealed segment to disk, if the disk is free for it.
    fn spill_oldest(&mut self, cx: &mut Context) {
        // A complete log stays where it is: it grows no more.
        if self.phase == Phase::Closed || !cx.spill.is_idle() {
            return;
        }
        if let Some(segment) = self.writer.oldest_sealed_in_memory() {
            cx.spill.begin(self.slot, segment, cx.now_ns);
        }
    }

    fn drop_oldest(&mut self, cx: &mut Context) -> bool {
        let Some(dropped) = self.writer.drop_oldest(&cx.control) else { return false };
        cx.send(&FromHolder::Dropped { slot: self.slot, segment: dropped.id });
        match dropped.segment {
            Some(segment) => cx.dispose(segment),
            None => {
                cx.spill.unlink(self.slot, dropped.id);
                cx.spill.handle_space();
            }
        }
        true
    }

    fn pause(&mut self, blocked: Blocked, cx: &mut Context) {
        self.paused = Some(blocked);
        cx.control.set_blocked(self.slot, blocked);
        self.settle(cx);
    }

    /// Tries the process again by the clock.
    pub(crate) fn retry_later(&mut self, cx: &mut Context) {
        self.retry_in(RETRY_NS, cx);
    }

    pub(crate) fn retry_in(&mut self, ns: u64, cx: &mut Context) {
        self.timing.retry_at = Some(cx.now_ns.saturating_add(ns));
        cx.has_new_deadline = true;
    }
}
