//! A `process/read`: a cursor job like a feed, answered once, encoded when it is sent.
//!
//! The flags and `nextSeq` come from one look at the state, taken before the log is read, so that an answer never says `closed` while it
//! leaves something out that it did not say was cut.

use std::{sync::Arc, time::Duration};

use exec_server_log::{Cursor, Event, Status, Step};
use exec_server_protocol::{limits, message, message::RequestId, output::ReadEncoder, process as wire};
use exec_server_rpc::Outbox;
use tokio::time::Instant;

use super::{
    Reply, Watch,
    words::{wire_blocked, wire_stream},
};
use crate::{
    process::{Hold, Position, Process},
    session::InUse,
};

/// A read as it was asked for.
pub(crate) struct ReadOrder {
    pub(crate) reply: Reply,
    pub(crate) process: Arc<Process>,
    pub(crate) after_seq: u64,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) wait: Duration,
    /// Of the connection's own session: it moves the owner's cursor.
    pub(crate) own: bool,
    /// Of another session, by a reader that follows: what it has taken.
    pub(crate) poll: Option<Hold>,
    /// Of another session, while it waits.
    pub(crate) in_use: Option<InUse>,
}

impl ReadOrder {
    pub(super) fn waits(&self) -> bool {
        !self.wait.is_zero()
    }
}

pub(super) struct ReadJob {
    reply: Reply,
    pub(super) process: Arc<Process>,
    pub(super) watch: Arc<Watch>,
    deadline: Option<Instant>,
    pub(super) own: bool,
    /// In the pump's list of reads that may be answered.
    pub(super) is_news: bool,
    /// It waits for the disk, whatever the clock says.
    pub(super) is_loading: bool,
    /// What the reader has already, as far as it said.
    pub(super) after_seq: u64,
    /// How many output bytes that makes, where anything here tells.
    pub(super) after_offset: Option<u64>,
    cursor: Cursor,
    max_bytes: Option<u64>,
    /// Both end with the answer.
    _poll: Option<Hold>,
    _in_use: Option<InUse>,
}

/// What became of an attempt to answer.
pub(super) enum Outcome {
    /// Answered; the reader now has everything up to there.
    Answered(Position),
    Wait,
    /// The next record is on disk.
    Load(u64),
}

/// What one pass over the log found.
enum Look {
    Something,
    Nothing,
    Load(u64),
}

impl ReadJob {
    pub(super) fn new(order: ReadOrder, watch: Arc<Watch>, now: Instant) -> Self {
        let deadline = order.waits().then(|| now + order.wait.min(limits::READ_WAIT));
        // Where the offset is known a gap can be told to the byte.
        let after_offset = order.process.offset_at(order.after_seq);
        let cursor = match after_offset {
            Some(offset) => Cursor::after_with_offset(order.after_seq, offset),
            None => Cursor::after(order.after_seq),
        };
        Self {
            is_news: false,
            is_loading: false,
            after_seq: order.after_seq,
            after_offset,
            reply: order.reply,
            process: order.process,
            watch,
            deadline,
            own: order.own,
            cursor,
            max_bytes: order.max_bytes,
            _poll: order.poll,
            _in_use: order.in_use,
        }
    }

    /// When it is to be answered at the latest, unless it waits for the disk.
    pub(super) fn timer(&self) -> Option<Instant> {
        self.deadline.filter(|_| !self.is_loading)
    }

    pub(super) fn reply_id(&self) -> RequestId {
        self.reply.id.clone()
    }

    /// Answers into `out` if there is something to say or the time is over.
    pub(super) fn attempt(&mut self, out: &mut Outbox, now: Instant) -> Outcome {
        // Looks again after arming, so that nothing slips between the look and the sleep. What is new then makes the next look an answer.
        loop {
            let status = self.process.status();
            let exit_news = status.exited.is_some() && self.after_seq.saturating_add(1) < status.next_seq;
            let look = self.look(status.next_seq);
            let elapsed = self.deadline.is_none_or(|deadline| deadline <= now);
            // The state is shared memory and may be ahead of the segments, which come as messages: theirs will ring.
            let is_behind = self.cursor.next_seq() < status.next_seq && self.process.lost().is_none();
            let is_news = (status.closed_seq.is_some() || exit_news) && !is_behind;
            match look {
                Look::Load(segment) => return Outcome::Load(segment),
                Look::Nothing if !is_news && !elapsed => {}
                Look::Something | Look::Nothing => return Outcome::Answered(self.answer(out, &status)),
            }
            if !self.process.arm(status.next_seq) {
                return Outcome::Wait;
            }
        }
    }

    /// Is there output below `next_seq` (or the news that some is gone) after the cursor? The cursor stays where the answer begins.
    fn look(&mut self, next_seq: u64) -> Look {
        let chain = self.process.chain();
        let mut probe = self.cursor;
        loop {
            match chain.read(&mut probe) {
                // Newer than the look at the state; there it will soon be seen too.
                Step::Record(record) if record.seq >= next_seq => return Look::Nothing,
                Step::Record(record) => match record.event {
                    Event::Output { .. } => return Look::Something,
                    // Exit and close are told by flags. Passing them for good keeps the next look short.
                    Event::Exited(_) | Event::Closed { .. } => self.cursor = probe,
                },
                Step::Gap { .. } => return Look::Something,
                Step::End | Step::Damaged(_) => return Look::Nothing,
                Step::NeedsLoad(segment) => return Look::Load(segment),
            }
        }
    }

    fn answer(&mut self, out: &mut Outbox, status: &Status) -> Position {
        let process = self.process.clone();
        let mut last = Position { seq: self.cursor.next_seq() - 1, offset: self.cursor.offset().unwrap_or(0) };
        let hint = self.process.chain().peek_len(&self.cursor).map_or(256, |len| len * 4 / 3 + 256);
        out.message(hint, |buf| {
            message::begin_result(buf, &self.reply.id);
            let mut encoder = ReadEncoder::begin(buf);
            let mut taken = Taken::default();
            let chain = process.chain();
            while taken.has_room(self.max_bytes) {
                let next = chain.peek_len(&self.cursor).map(|len| len as u64);
                if next.is_some_and(|len| taken.would_exceed(len, self.max_bytes)) {
                    taken.cut_by_reader = next.zip(self.max_bytes).is_some_and(|(len, max)| taken.bytes + len > max);
                    break;
                }
                let before = self.cursor;
                match chain.read(&mut self.cursor) {
                    Step::Record(record) if record.seq >= status.next_seq => {
                        // Newer than the look at the state: the next read's business.
                        self.cursor = before;
                        taken.all = true;
                        break;
                    }
                    Step::Record(record) => {
                        if let Event::Output { stream, bytes } = record.event {
                            encoder.push(buf, record.seq, wire_stream(stream), bytes);
                            taken.count += 1;
                            taken.bytes += bytes.len() as u64;
                            taken.last_chunk = record.seq;
                        }
                    }
                    Step::Gap { from_seq, to_seq, bytes } if taken.count == 0 && taken.gap.is_none() => {
                        self.process.told_gap(bytes);
                        taken.gap = Some(wire::Gap { from_seq, to_seq, bytes });
                    }
                    // A second gap, or data after a gap inside the answer: left for the next read, which says so first.
                    Step::Gap { .. } => {
                        self.cursor = before;
                        break;
                    }
                    Step::End | Step::Damaged(_) => {
                        taken.all = self.cursor.next_seq() >= status.next_seq || process.lost().is_some();
                        break;
                    }
                    Step::NeedsLoad(_) => break,
                }
            }
            let first_seq = chain.first().map_or(status.first_seq, |(seq, _)| seq);
            drop(chain);
            let end = self.end(status, &taken, first_seq);
            last = Position { seq: end.next_seq - 1, offset: self.cursor.offset().unwrap_or(last.offset) };
            encoder.finish(buf, &end);
            message::end_result(buf);
        });
        last
    }

    /// `nextSeq` and flags by the rules of H; where our own cap (or a disk read to come) cut the answer, it says that there is more.
    fn end(&self, status: &Status, taken: &Taken, first_seq: u64) -> wire::ReadEnd {
        let cut_by_us = !taken.all && !taken.cut_by_reader && !taken.full(self.max_bytes);
        let next_seq = if cut_by_us || (self.max_bytes.is_some() && taken.count > 0) {
            if taken.count > 0 { taken.last_chunk + 1 } else { self.cursor.next_seq() }
        } else {
            status.next_seq
        };
        let lost = self.process.lost();
        let (_, exit) = status.exited.unzip();
        wire::ReadEnd {
            next_seq,
            exited: !cut_by_us && (exit.is_some() || lost.is_some()),
            // Nobody knows how a lost process would have ended; -1 as in the pushed event.
            exit_code: exit.map(|exit| exit.code).or(lost.map(|_| -1)).filter(|_| !cut_by_us),
            closed: !cut_by_us && status.closed_seq.is_some(),
            failure: lost.map(|_| self.failure().to_owned()),
            sandbox_denied: !cut_by_us && exit.is_some_and(|exit| exit.is_denied),
            first_seq,
            gap: taken.gap,
            blocked: wire_blocked(status.blocked),
        }
    }
}

impl ReadJob {
    /// What a reader of a lost process is told.
    fn failure(&self) -> &'static str {
        if self.process.is_uncounted() {
            "the holder of this process is gone; what it had not spilled to disk is lost, and not all of it is counted"
        } else {
            "the holder of this process is gone; what it had written is complete up to here"
        }
    }
}

#[derive(Default)]
struct Taken {
    count: usize,
    bytes: u64,
    last_chunk: u64,
    gap: Option<wire::Gap>,
    /// Everything up to the looked-at state is in the answer.
    all: bool,
    /// The next chunk would have gone beyond the reader's own limit.
    cut_by_reader: bool,
}

impl Taken {
    fn has_room(&self, max_bytes: Option<u64>) -> bool {
        self.count == 0 || (!self.full(max_bytes) && self.bytes < limits::READ_BYTES as u64)
    }

    /// The reader's own limit is reached.
    fn full(&self, max_bytes: Option<u64>) -> bool {
        self.count > 0 && max_bytes.is_some_and(|max| self.bytes >= max)
    }

    /// At least one chunk is returned, whatever the limits.
    fn would_exceed(&self, len: u64, max_bytes: Option<u64>) -> bool {
        self.count > 0 && self.bytes + len > max_bytes.unwrap_or(u64::MAX).min(limits::READ_BYTES as u64)
    }
}
