//! A `process/read`: a cursor job like a feed, answered once, and encoded when it is sent.
//!
//! The flags and `nextSeq` come from one snapshot of the status, taken before the log is read. So an answer that says
//! `closed` is complete up to the close, unless the reader's own `maxBytes` cut it. Then `nextSeq` shows where to
//! continue.

use std::{sync::Arc, time::Duration};

use exec_server_log::{Cursor, LogEvent, LogStatus, ReadStep, SegmentChain};
use exec_server_protocol::{limits, message, output::ReadEncoder, process as wire};
use exec_server_rpc::Outbox;
use exec_server_session::LogPosition;
use tokio::time::Instant;

use super::{
    FeedWaker, Reply,
    convert::{wire_blocked, wire_stream},
};
use crate::{
    process::{LostEnd, OutputHold, Process},
    session::SessionUse,
};

/// A read request. It is dropped when it is answered.
pub(crate) struct ReadCommand {
    pub(crate) reply: Reply,
    pub(crate) process: Arc<Process>,
    /// The last event that the reader has.
    pub(crate) after_seq: u64,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) wait: Duration,
    /// The process belongs to the connection's own session, so the reader is the owner.
    pub(crate) is_own: bool,
    /// For a follower from another session: its registration, while the read is pending.
    pub(crate) _poll: Option<OutputHold>,
    /// For a waiting read of another session: pauses that session's clock.
    pub(crate) _in_use: Option<SessionUse>,
}

pub(super) struct ReadJob {
    pub(super) command: ReadCommand,
    pub(super) waker: Arc<FeedWaker>,
    deadline: Option<Instant>,
    /// The read is in the pump's list of reads that may be answerable.
    pub(super) is_queued: bool,
    /// The read waits for the disk. Its deadline does not apply.
    pub(super) is_loading: bool,
    /// The output bytes up to the request's `after_seq`, if known.
    pub(super) after_offset: Option<u64>,
    cursor: Cursor,
}

/// The result of an attempt to answer.
pub(super) enum ReadOutcome {
    /// Answered. The reader now has everything up to this position.
    Answered(LogPosition),
    Wait,
    /// The next record is in this segment on disk.
    Load(u64),
}

/// The result of one pass over the log.
enum ProbeResult {
    /// There is output or a gap.
    Something,
    Nothing,
    /// The next record is in this segment on disk.
    Load(u64),
}

impl ReadJob {
    pub(super) fn new(command: ReadCommand, waker: Arc<FeedWaker>, now: Instant) -> Self {
        let deadline = (!command.wait.is_zero()).then(|| now + command.wait.min(limits::READ_WAIT));
        // If the offset is known, a gap can be reported exactly.
        let after_offset = command.process.offset_at(command.after_seq);
        let seq = command.after_seq;
        let cursor = after_offset.map_or(Cursor::after(seq), |offset| Cursor::after_with_offset(seq, offset));
        Self { command, waker, deadline, is_queued: false, is_loading: false, after_offset, cursor }
    }

    /// When the read must be answered at the latest, unless it waits for the disk.
    pub(super) fn timer(&self) -> Option<Instant> {
        self.deadline.filter(|_| !self.is_loading)
    }

    /// Answers into `out` if there is something to report or the deadline has passed.
    pub(super) fn attempt(&mut self, out: &mut Outbox, now: Instant) -> ReadOutcome {
        // Look again after arming, so that no event is missed between the look and the sleep.
        loop {
            let log = self.command.process.log();
            let status = log.status();
            // The process has exited, and the reader lacks events: the exit may be one of them.
            let exit_news = status.exited.is_some() && self.command.after_seq.saturating_add(1) < status.next_seq;
            let probed = probe_log(&log.chain, &mut self.cursor, status.next_seq);
            let elapsed = self.deadline.is_none_or(|deadline| deadline <= now);
            // The status is in shared memory and can be ahead of the segments, which arrive as messages. The segment
            // will wake this read.
            let is_behind = self.cursor.next_seq() < status.next_seq && log.lost_end().is_none();
            let has_news = (status.closed_seq.is_some() || exit_news) && !is_behind;
            match probed {
                ProbeResult::Load(segment) => return ReadOutcome::Load(segment),
                ProbeResult::Nothing if !has_news && !elapsed => {
                    if !log.arm(status.next_seq) {
                        return ReadOutcome::Wait;
                    }
                }
                ProbeResult::Something | ProbeResult::Nothing => {
                    drop(log);
                    return ReadOutcome::Answered(self.answer(out, &status));
                }
            }
        }
    }

    fn answer(&mut self, out: &mut Outbox, status: &LogStatus) -> LogPosition {
        let process = self.command.process.clone();
        let max_bytes = self.command.max_bytes;
        // The position before the answer. It stays if the outbox is closed, because `message` then encodes nothing.
        let mut last = LogPosition { seq: self.cursor.next_seq() - 1, offset: self.cursor.offset().unwrap_or(0) };
        // The expected size: base64 makes 4 bytes of 3.
        let hint = process.log().chain.peek_len(&self.cursor).map_or(256, |len| len * 4 / 3 + 256);
        out.message(hint, |buf| {
            message::begin_result(buf, &self.command.reply.id);
            let mut encoder = ReadEncoder::begin(buf);
            let mut tally = ReadTally::default();
            let log = process.log();
            while tally.has_room(max_bytes) {
                let next = log.chain.peek_len(&self.cursor).map(|len| len as u64);
                if next.is_some_and(|len| tally.would_exceed(len, max_bytes)) {
                    tally.cut_by_reader = next.zip(max_bytes).is_some_and(|(len, max)| tally.bytes + len > max);
                    break;
                }
                let before = self.cursor;
                match log.chain.read(&mut self.cursor) {
                    ReadStep::Record(record) if record.seq >= status.next_seq => {
                        // Newer than the status snapshot: leave it to the next read.
                        self.cursor = before;
                        tally.is_complete = true;
                        break;
                    }
                    ReadStep::Record(record) => {
                        if let LogEvent::Output { stream, bytes } = record.event {
                            encoder.push(buf, record.seq, wire_stream(stream), bytes);
                            tally.chunks += 1;
                            tally.bytes += bytes.len() as u64;
                            tally.last_chunk = record.seq;
                        }
                    }
                    ReadStep::Gap { from_seq, to_seq, bytes } if tally.chunks == 0 && tally.gap.is_none() => {
                        process.count_gap(bytes);
                        tally.gap = Some(wire::Gap { from_seq, to_seq, bytes });
                    }
                    // A gap after output, or a second gap: leave it to the next read, which reports it first.
                    ReadStep::Gap { .. } => {
                        self.cursor = before;
                        break;
                    }
                    ReadStep::End | ReadStep::Damaged(_) => {
                        tally.is_complete = self.cursor.next_seq() >= status.next_seq || log.lost_end().is_some();
                        break;
                    }
                    ReadStep::NeedsLoad(_) => break,
                }
            }
            let first_seq = log.chain.first().map_or(status.first_seq, |(seq, _)| seq);
            let lost = log.lost_end();
            drop(log);
            let end = self.end(status, &tally, first_seq, lost);
            last = LogPosition { seq: end.next_seq - 1, offset: self.cursor.offset().unwrap_or(last.offset) };
            encoder.finish(buf, &end);
            message::end_result(buf);
        });
        last
    }

    /// `nextSeq` and flags. If the server's cap, a gap after output or after another gap, or a pending disk read cut
    /// the answer, `exited` and `closed` are false, so that the reader asks again.
    fn end(&self, status: &LogStatus, tally: &ReadTally, first_seq: u64, lost: Option<LostEnd>) -> wire::ReadEnd {
        let cut_by_us = !tally.is_complete && !tally.cut_by_reader && !tally.is_full(self.command.max_bytes);
        // With `maxBytes`, as in the reference: after the last chunk, even if events without output follow it.
        let next_seq = if cut_by_us || (self.command.max_bytes.is_some() && tally.chunks > 0) {
            if tally.chunks > 0 { tally.last_chunk + 1 } else { self.cursor.next_seq() }
        } else {
            status.next_seq
        };
        let (_, exit) = status.exited.unzip();
        wire::ReadEnd {
            next_seq,
            exited: !cut_by_us && (exit.is_some() || lost.is_some()),
            // The exit status of a lost process is unknown: -1, as in the pushed event.
            exit_code: exit.map(|exit| exit.code).or(lost.map(|_| -1)).filter(|_| !cut_by_us),
            closed: !cut_by_us && status.closed_seq.is_some(),
            failure: lost.map(|_| self.failure().to_owned()),
            sandbox_denied: !cut_by_us && exit.is_some_and(|exit| exit.is_denied),
            first_seq,
            gap: tally.gap,
            blocked: wire_blocked(status.blocked),
        }
    }

    /// The error text for a reader of a lost process.
    fn failure(&self) -> &'static str {
        if self.command.process.log().is_uncounted() {
            "the holder of this process died: output that was not on disk is lost, and not all of it could be counted"
        } else {
            "the holder of this process died: its output is complete up to here"
        }
    }
}

/// Whether there is output or a gap after the cursor and below `next_seq`. The cursor stays where the answer begins.
fn probe_log(chain: &SegmentChain, cursor: &mut Cursor, next_seq: u64) -> ProbeResult {
    let mut probe = *cursor;
    loop {
        match chain.read(&mut probe) {
            // Newer than the status snapshot. A later snapshot will include it.
            ReadStep::Record(record) if record.seq >= next_seq => return ProbeResult::Nothing,
            ReadStep::Record(record) => match record.event {
                LogEvent::Output { .. } => return ProbeResult::Something,
                // Flags report the exit and the close. Moving past them keeps the next probe short.
                LogEvent::Exited(_) | LogEvent::Closed { .. } => *cursor = probe,
            },
            ReadStep::Gap { .. } => return ProbeResult::Something,
            ReadStep::End | ReadStep::Damaged(_) => return ProbeResult::Nothing,
            ReadStep::NeedsLoad(segment) => return ProbeResult::Load(segment),
        }
    }
}

#[derive(Default)]
struct ReadTally {
    chunks: usize,
    bytes: u64,
    last_chunk: u64,
    gap: Option<wire::Gap>,
    /// The answer contains everything up to the status snapshot.
    is_complete: bool,
    /// The next chunk would exceed the reader's own limit.
    cut_by_reader: bool,
}

impl ReadTally {
    fn has_room(&self, max_bytes: Option<u64>) -> bool {
        self.chunks == 0 || (!self.is_full(max_bytes) && self.bytes < limits::READ_BYTES as u64)
    }

    /// Whether the reader's own limit is reached.
    fn is_full(&self, max_bytes: Option<u64>) -> bool {
        self.chunks > 0 && max_bytes.is_some_and(|max| self.bytes >= max)
    }

    /// Whether the next chunk would exceed the limits. The first chunk is always returned.
    fn would_exceed(&self, len: u64, max_bytes: Option<u64>) -> bool {
        self.chunks > 0 && self.bytes + len > max_bytes.unwrap_or(u64::MAX).min(limits::READ_BYTES as u64)
    }
}
