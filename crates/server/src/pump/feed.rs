//! A feed pushes one process: it has a cursor on the log, and limits how far it runs ahead of what the reader has
//! taken.
//!
//! A peer that announced `ack` moves its window by acknowledgements. For any other owner, [`UnackedFlow`] decides what
//! counts as taken. An observer without a hold is never held back.
//!
//! Failure paths: a gap in the log is sent before the next event. If the holder died before the process closed, the
//! feed ends with a synthetic close and, if the exit is not in the log, with a synthetic exit before it.

use std::{collections::VecDeque, sync::Arc};

use exec_server_log::{Cursor, Exit, LogEvent, LogRecord, ReadStep};
use exec_server_protocol::{
    SessionId,
    frame::OutputFrame,
    message,
    method::Notification,
    output::{self, EscapedId, Output},
    process as wire,
};
use exec_server_rpc::Outbox;
use exec_server_session::LogPosition;
use tokio::time::Instant;

use super::{
    FeedWaker, PeerCapabilities,
    convert::{limits_hit, wire_cause, wire_stream},
};
use crate::{
    compat::{self, Dialect, ReadEffect, UnackedFlow},
    process::{LostEnd, OutputHold, Process, log_bytes},
    session::SessionUse,
};

mod gaps;

use self::gaps::GapFill;

/// Distance between the marks, the remembered positions of sent output: small compared with a window of some MiB, and
/// large enough that there are few marks.
const MARK_BYTES: u64 = 64 << 10;

/// A command to push a process.
pub(crate) struct FollowCommand {
    pub(crate) process: Arc<Process>,
    pub(crate) role: FollowRole,
    pub(crate) start: FollowStart,
    pub(crate) capabilities: PeerCapabilities,
}

/// In which role a connection follows a process.
pub(crate) enum FollowRole {
    /// The session's own connection. Output that it has not taken is kept.
    Owner,
    /// Another reader. With a hold, its untaken output is kept like the owner's. Without one, nothing is kept and it
    /// may get gaps.
    Observer {
        hold: Option<OutputHold>,
        /// Marks the process's session as used.
        _in_use: Option<SessionUse>,
    },
}

/// Where pushing begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowStart {
    After(LogPosition),
    /// After an event number that the reader named. The byte offset becomes known with the next record.
    AfterSeq(u64),
    /// For a resumed client that cannot acknowledge: wait for its first read, at most until `until`. Without one,
    /// continue after `sent`, the last position sent.
    AwaitRead {
        until: Instant,
        sent: LogPosition,
    },
}

#[derive(Clone, Copy, Debug)]
enum FeedMode {
    /// The peer acknowledges. `taken` is the last acknowledged position.
    Acked { taken: LogPosition },
    /// The peer cannot acknowledge.
    Unacked(UnackedFlow),
    /// An observer without a hold.
    Free,
}

pub(super) struct Feed {
    pub(super) process: Arc<Process>,
    pub(super) waker: Arc<FeedWaker>,
    /// The feed is in the pump's list of turns.
    pub(super) has_turn: bool,
    role: FollowRole,
    capabilities: PeerCapabilities,
    mode: FeedMode,
    cursor: Cursor,
    addressee: EscapedId,
    sent: LogPosition,
    /// False until the first record has shown the byte offset of `sent`.
    offset_known: bool,
    /// Positions up to `sent`, about [`MARK_BYTES`] apart, newest last. Removed as they are taken.
    marks: VecDeque<LogPosition>,
    /// Last number and bytes of each gap after the taken position. The reader cannot acknowledge bytes that were never
    /// sent, so they do not count against the window.
    gaps: VecDeque<(u64, u64)>,
    /// Missing numbers that are still to be sent one by one, to a peer without `gap`.
    filling: Option<GapFill>,
    /// The exit code, held back if the dialect reports the exit after the last output.
    exit_held: Option<i32>,
    /// The close was sent, and nothing follows.
    finished: bool,
    /// The channel for binary frames, if the peer understands them, and whether it was announced.
    channel: Option<(u32, bool)>,
}

/// The result of a feed's turn.
pub(super) enum TurnOutcome {
    /// The quantum is used up, and there may be more to send.
    More,
    /// Nothing to send until an event, an acknowledgement or a timer.
    Idle,
    /// The next record is in this segment on disk.
    Load(u64),
}

impl Feed {
    pub(super) fn new(follow: FollowCommand, waker: Arc<FeedWaker>, channel: Option<u32>) -> Self {
        let FollowCommand { process, role, start, capabilities } = follow;
        // `exact` is the start position with its byte offset, if the offset is known.
        let (sent, exact, awaited_until) = match start {
            FollowStart::After(position) => {
                let offset = process.offset_at(position.seq);
                (position, offset.map(|offset| LogPosition { offset, ..position }), None)
            }
            FollowStart::AfterSeq(seq) => (LogPosition { seq, offset: 0 }, (seq == 0).then(LogPosition::default), None),
            FollowStart::AwaitRead { until, sent } => (sent, Some(sent), Some(until)),
        };
        let sent = exact.unwrap_or(sent);
        let mode = match (&role, awaited_until) {
            (FollowRole::Observer { hold: None, .. }, _) => FeedMode::Free,
            (FollowRole::Observer { .. }, _) => FeedMode::Acked { taken: sent },
            (FollowRole::Owner, None) if capabilities.ack => FeedMode::Acked { taken: sent },
            (FollowRole::Owner, awaited_until) => FeedMode::Unacked(UnackedFlow::new(awaited_until, sent)),
        };
        let addressee = match &role {
            FollowRole::Owner => EscapedId::new(&process.process_id()),
            FollowRole::Observer { .. } => EscapedId::with_session(&process.process_id(), &process.session_id()),
        };
        // Without acknowledgements, output that an earlier connection sent counts as taken only once enough is sent after
        // it. The ends of its segments are therefore the first marks.
        let marks = match mode {
            FeedMode::Unacked(_) => process.log().segment_ends(sent.seq).collect(),
            FeedMode::Acked { .. } | FeedMode::Free => VecDeque::new(),
        };
        Self {
            addressee,
            offset_known: exact.is_some(),
            cursor: exact.map_or(Cursor::after(sent.seq), |exact| Cursor::after_with_offset(exact.seq, exact.offset)),
            process,
            waker,
            has_turn: false,
            role,
            capabilities,
            mode,
            sent,
            marks,
            gaps: VecDeque::new(),
            filling: None,
            exit_held: None,
            finished: false,
            channel: channel.map(|channel| (channel, false)),
        }
    }

    /// The channel for binary frames.
    pub(super) fn channel(&self) -> Option<u32> {
        self.channel.map(|(channel, _)| channel)
    }

    /// The channel for a frame. Announces it to the peer before its first use.
    fn announce_channel(&mut self, out: &mut Outbox) -> Option<u32> {
        let (channel, is_announced) = self.channel.as_mut()?;
        let channel = *channel;
        if !std::mem::replace(is_announced, true) {
            let params =
                wire::ChannelParams { process_id: self.process.process_id(), session_id: self.session_key(), channel };
            out.message(128, |buf| message::encode_notification(buf, Notification::ProcessChannel.name(), &params));
        }
        Some(channel)
    }

    /// Whether the feed can be dropped: nothing is left to send, and nothing that the reader may still send matters.
    pub(super) fn is_settled(&self) -> bool {
        self.finished
            && match self.mode {
                FeedMode::Acked { taken } => taken.seq >= self.sent.seq,
                FeedMode::Unacked(flow) => !flow.is_polled(),
                FeedMode::Free => true,
            }
    }

    pub(super) fn is_owner(&self) -> bool {
        matches!(self.role, FollowRole::Owner)
    }

    /// When this feed needs attention even if nothing happens.
    pub(super) fn timer(&self) -> Option<Instant> {
        match self.mode {
            FeedMode::Unacked(flow) => flow.timer(),
            FeedMode::Acked { .. } | FeedMode::Free => None,
        }
    }

    /// Returns true if the timer has changed the mode, so that the feed gets a turn.
    pub(super) fn handle_timer(&mut self, now: Instant) -> bool {
        let FeedMode::Unacked(flow) = &mut self.mode else { return false };
        let is_due = flow.timer().is_some_and(|at| at <= now);
        if is_due {
            flow.handle_timer();
        }
        is_due
    }

    /// Handles an acknowledgement of everything up to `seq`. Returns true if the window may have opened.
    pub(super) fn handle_ack(&mut self, seq: u64) -> bool {
        let FeedMode::Acked { taken } = self.mode else { return false };
        // An acknowledgement of future numbers must not count for events that come later.
        let seq = seq.min(self.process.status().next_seq.saturating_sub(1));
        if seq <= taken.seq {
            // An observer that subscribed again holds output from before the position where pushing started. Release
            // that.
            if let FollowRole::Observer { hold: Some(hold), .. } = &self.role {
                hold.record_taken(seq);
            }
            return false;
        }
        if seq > self.sent.seq {
            // The previous connection sent more than was acknowledged on it. The reader has that output, so continue
            // after it.
            self.skip_to(seq);
        }
        // Use the mark at or before the number: the offset is too low by at most the distance between two marks.
        let mark = match self.marks.iter().rev().find(|mark| mark.seq <= seq) {
            _ if seq >= self.sent.seq => Some(self.sent),
            mark => mark.copied(),
        };
        if let Some(mark) = mark.filter(|_| self.is_owner() && self.offset_known) {
            self.process.retention().set_owner_mark(mark);
        }
        // The taken offset never goes back.
        let taken = LogPosition { seq, offset: mark.map_or(taken.offset, |mark| mark.offset.max(taken.offset)) };
        self.mode = FeedMode::Acked { taken };
        while self.marks.front().is_some_and(|mark| mark.seq < seq) {
            self.marks.pop_front();
        }
        // `taken.offset` is the offset of the mark, so it does not include the gaps after the mark.
        self.gaps.retain(|(to, _)| mark.is_none_or(|mark| mark.seq < *to));
        self.report_taken(taken);
        true
    }

    /// Moves the cursor to behind event `seq`, which the reader has although this connection did not send it.
    ///
    /// If that event was dropped from the log, the cursor moves to before the gap. The gap is then counted from an
    /// exact offset, and the reader knows which part of the gap it has.
    fn skip_to(&mut self, seq: u64) {
        self.filling = None;
        self.marks.clear();
        let was_offset_known = self.offset_known;
        if let Some(before) = self.process.log().chain.before_gap(self.cursor, seq).filter(|_| was_offset_known) {
            self.cursor = before;
            self.sent = LogPosition { seq: before.next_seq() - 1, offset: before.offset().unwrap_or(self.sent.offset) };
            return;
        }
        self.cursor = Cursor::after(seq);
        let offset = self.process.log().offset_after(seq);
        self.offset_known = offset.is_some();
        self.sent = LogPosition { seq, offset: offset.unwrap_or(self.sent.offset) };
    }

    fn report_taken(&self, position: LogPosition) {
        match &self.role {
            FollowRole::Owner => self.process.record_owner_taken(position),
            FollowRole::Observer { hold: Some(hold), .. } => hold.record_taken(position.seq),
            FollowRole::Observer { hold: None, .. } => {}
        }
    }

    pub(super) fn handle_read_begun(&mut self, waits: bool) {
        if let FeedMode::Unacked(flow) = &mut self.mode {
            flow.handle_read_begun(waits, self.marks.front().copied().unwrap_or(self.sent));
        }
    }

    /// Handles the answer to a read of the owner. By the request, the owner has taken everything up to `after_seq`. By
    /// the answer, it now has everything up to `last`.
    pub(super) fn handle_read_answered(&mut self, after_seq: u64, after_offset: Option<u64>, last: LogPosition) {
        let FeedMode::Unacked(flow) = &mut self.mode else { return };
        match flow.handle_read_answered(after_seq, after_offset, last) {
            ReadEffect::None => {}
            ReadEffect::ContinueAfter(last) => {
                self.cursor = Cursor::after_with_offset(last.seq, last.offset);
                self.sent = last;
                self.marks = self.process.log().segment_ends(last.seq).collect();
            }
            ReadEffect::Taken(position) => {
                while self.marks.front().is_some_and(|mark| mark.seq <= position.seq) {
                    self.marks.pop_front();
                }
                self.report_taken(position);
            }
        }
    }

    /// Sends up to about `quantum` bytes of output.
    pub(super) fn advance(&mut self, out: &mut Outbox, quantum: usize, now: Instant) -> TurnOutcome {
        if self.finished {
            return TurnOutcome::Idle;
        }
        let before = out.len();
        let mut looked_again = false;
        // A client that writes to stdin needs the channel before there is any output.
        if self.process.meta.stdin {
            self.announce_channel(out);
        }
        while out.len() - before < quantum {
            if self.fill_gap(out) {
                continue;
            }
            if self.finished || self.is_held(now) {
                return TurnOutcome::Idle;
            }
            let process = self.process.clone();
            // Lock the log only while one record is encoded. The branches unlock it before calls that lock it again.
            let log = process.log();
            match log.chain.read(&mut self.cursor) {
                ReadStep::Record(record) => {
                    let is_closed = matches!(record.event, LogEvent::Closed { .. });
                    self.send(record, out);
                    drop(log);
                    self.release_sent(is_closed);
                    if is_closed {
                        self.finished = true;
                        return TurnOutcome::Idle;
                    }
                }
                ReadStep::Gap { from_seq, to_seq, bytes } => {
                    drop(log);
                    self.report_gap(wire::Gap { from_seq, to_seq, bytes }, out);
                }
                ReadStep::NeedsLoad(segment) => return TurnOutcome::Load(segment),
                ReadStep::Damaged(segment) => {
                    drop(log);
                    process.handle_damaged(segment);
                }
                ReadStep::End => {
                    if let Some(lost) = log.lost_end() {
                        drop(log);
                        self.send_lost_end(lost, out);
                        self.finished = true;
                        return TurnOutcome::Idle;
                    }
                    // `arm` returns true if events exist after the cursor. If the second look finds no record in the
                    // chain either, the segment is on its way and will wake this feed. A third look would begin a busy
                    // loop.
                    if looked_again || !log.arm(self.cursor.next_seq()) {
                        return TurnOutcome::Idle;
                    }
                    looked_again = true;
                    continue;
                }
            }
            looked_again = false;
        }
        TurnOutcome::More
    }

    /// Whether pushing must pause, because the reader has not taken enough.
    fn is_held(&mut self, now: Instant) -> bool {
        match &mut self.mode {
            FeedMode::Unacked(flow) => flow.is_held(self.sent, now),
            FeedMode::Acked { taken } => {
                let gap_bytes: u64 = self.gaps.iter().map(|(_, bytes)| bytes).sum();
                self.sent.offset.saturating_sub(taken.offset + gap_bytes) >= self.capabilities.ack_window_bytes
            }
            FeedMode::Free => false,
        }
    }

    /// For a peer that cannot acknowledge: releases sent output.
    fn release_sent(&mut self, is_closed: bool) {
        if let FeedMode::Unacked(flow) = &mut self.mode
            && let Some(mark) = flow.release(&mut self.marks, self.sent, is_closed)
        {
            self.report_taken(mark);
        }
    }

    /// Sets the byte offset, which becomes known with the first record after an event number that the reader named.
    fn learn_offset(&mut self, offset: u64) {
        if !std::mem::replace(&mut self.offset_known, true) {
            self.sent.offset = offset;
            // All gaps so far are before `offset`, where counting for the window begins.
            self.gaps.clear();
            if let FeedMode::Acked { taken } = &mut self.mode {
                taken.offset = offset;
            }
        }
    }

    fn send(&mut self, record: LogRecord<'_>, out: &mut Outbox) {
        self.learn_offset(record.offset);
        match (record.event, self.process.meta.dialect) {
            (LogEvent::Output { stream, bytes }, Dialect::Process) => {
                let LogRecord { seq, offset, .. } = record;
                let stream = wire_stream(stream);
                if let Some(channel) = self.announce_channel(out) {
                    out.binary(&OutputFrame { channel, stream, seq, offset }.encode(), bytes);
                } else {
                    let chunk = Output { seq, stream, offset: Some(offset), gap: None, bytes };
                    out.message(output::output_len(&self.addressee, &chunk), |buf| {
                        output::encode_output(buf, &self.addressee, &chunk)
                    });
                }
            }
            (LogEvent::Output { stream, bytes }, Dialect::Command) => {
                compat::command::send_output(out, &self.addressee, stream, bytes);
            }
            (LogEvent::Exited(exit), Dialect::Process) => self.send_exited(record.seq, Some(exit), out),
            (LogEvent::Exited(exit), Dialect::Command) => self.exit_held = Some(exit.code),
            (LogEvent::Closed { written, dropped }, Dialect::Process) => {
                self.send_closed(record.seq, written, dropped, out)
            }
            (LogEvent::Closed { .. }, Dialect::Command) => self.send_command_exited(out),
        }
        let bytes = if let LogEvent::Output { bytes, .. } = record.event { bytes.len() as u64 } else { 0 };
        self.sent = LogPosition { seq: record.seq, offset: record.offset + bytes };
        let distance = match self.mode {
            // With a small window the marks must be closer: otherwise the window could fill up between two marks, and
            // neither sending nor acknowledging would continue.
            FeedMode::Acked { .. } => MARK_BYTES.min(self.capabilities.ack_window_bytes / 8),
            FeedMode::Unacked(_) => MARK_BYTES,
            FeedMode::Free => return,
        };
        if self.marks.back().is_none_or(|mark| log_bytes(self.sent) >= log_bytes(*mark) + distance) {
            self.marks.push_back(self.sent);
        }
    }

    /// `exit` is `None` if the holder died, so the exit status is unknown.
    fn send_exited(&self, seq: u64, exit: Option<Exit>, out: &mut Outbox) {
        let params = wire::ExitedParams {
            process_id: self.process.process_id(),
            session_id: self.session_key(),
            seq,
            exit_code: exit.map_or(-1, |exit| exit.code),
            sandbox_denied: Some(exit.is_some_and(|exit| exit.is_denied)),
            signal: exit.and_then(|exit| exit.signal).map(exec_server_protocol::signal::name),
            cause: Some(exit.map_or(wire::Cause::Lost, |exit| wire_cause(exit.cause))),
            usage: exit.map(|exit| wire::Usage {
                user_ms: exit.user_ms,
                system_ms: exit.system_ms,
                max_rss_bytes: exit.max_rss_bytes,
            }),
            limits_hit: exit.map_or_else(Vec::new, |exit| limits_hit(exit.hit)),
        };
        out.message(256, |buf| message::encode_notification(buf, Notification::ProcessExited.name(), &params));
    }

    fn send_closed(&self, seq: u64, written: u64, dropped: u64, out: &mut Outbox) {
        let params = wire::ClosedParams {
            process_id: self.process.process_id(),
            session_id: self.session_key(),
            seq,
            output_bytes: Some(written),
            dropped_bytes: Some(dropped),
        };
        out.message(160, |buf| message::encode_notification(buf, Notification::ProcessClosed.name(), &params));
    }

    fn send_command_exited(&mut self, out: &mut Outbox) {
        compat::command::send_exited(out, self.process.process_id(), self.exit_held.take());
    }

    /// Sends a synthetic end with the cause `lost`, because the holder is dead.
    fn send_lost_end(&mut self, lost: LostEnd, out: &mut Outbox) {
        if self.process.meta.dialect == Dialect::Command {
            return self.send_command_exited(out);
        }
        if let Some(seq) = lost.exited_seq {
            self.send_exited(seq, None, out);
        }
        let status = self.process.status();
        self.send_closed(lost.closed_seq, status.written, status.dropped, out);
        self.sent.seq = lost.closed_seq;
    }

    fn session_key(&self) -> Option<SessionId> {
        (!self.is_owner()).then(|| self.process.session_id())
    }

    /// Ends the feed: saves the owner's position for the next connection. The hold of an observer is dropped with the
    /// feed.
    pub(super) fn end(self) {
        self.process.log().remove_waker(&self.waker);
        if self.is_owner() {
            // If the peer acknowledges, each acknowledgement has set the mark.
            if self.offset_known && !matches!(self.mode, FeedMode::Acked { .. }) {
                self.process.retention().set_owner_mark(self.sent);
            }
            let position = self.resume_position();
            self.process.retention().set_owner_position(position);
        }
    }

    /// Where a resumed connection continues: after the last acknowledged event, or after the last sent one if the peer
    /// does not acknowledge.
    fn resume_position(&self) -> LogPosition {
        let FeedMode::Acked { taken } = self.mode else { return self.sent };
        if taken.seq == self.sent.seq && self.offset_known {
            return self.sent;
        }
        // The offset of an acknowledged number may be too low by the distance of two marks. The log may know the exact
        // one.
        let offset = self.process.log().offset_after(taken.seq).unwrap_or(taken.offset);
        LogPosition { seq: taken.seq, offset }
    }
}
