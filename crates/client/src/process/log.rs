//! The event log of a process handle. The connection fills it, cursors read it, and it outlives every connection.
//!
//! The log guarantees order and bounds memory. It publishes an event only after the previous one. It keeps a published event until every
//! cursor has consumed it, plus some history for cursors that are created later. The log acknowledges events up to the position of the
//! slowest cursor. With acknowledgements, a slow reader therefore blocks the process, but loses nothing. [`WhenFull`] says what happens
//! without acknowledgements.
//!
//! Failure paths: a [`ProtocolViolation`], for example a skipped sequence number or more output than the window allows, fails only this
//! log.
//!
//! If the server has a window, a full log never stops the client from reading the connection, however small the pieces of output are. The
//! consumer of the events may be waiting for the answer to a call, and that answer would be stuck behind output that is not being read.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    task::{Context, Poll, Waker},
};

use exec_server_protocol::{limits, process as wire};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use self::event_runs::EventRuns;
use super::event::{Event, Exit, Totals};
use crate::error::Error;

mod event_runs;

/// Consumed output that is kept for cursors that are created later: 1 MiB, as much as a server with `process/read`
/// keeps at least.
const HISTORY_BYTES: u64 = 1 << 20;

/// Consumed events are dropped while the log holds more events than this. With small pieces of output, 1 MiB of history would be too many
/// events.
const HISTORY_EVENTS: usize = 4096;

/// Limits for the events that wait until an earlier one arrives.
const EARLY_EVENTS: usize = 256;
const EARLY_BYTES: u64 = 1 << 20;

/// Limit for events without output from a server with a window, because the window does not count them. An honest server sends few: an
/// exit, a close, an occasional gap. The number of events with output is bounded by their bytes, and `EventRuns` stores them compactly.
const EMPTY_EVENTS: usize = 1 << 16;

/// Limit for the events of a batch. Without it, a batch of small pieces would need many times the memory of its output.
const BATCH_EVENTS: usize = 1024;

/// How a server sends the events of a process, and what happens when it is too far ahead of the readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowPolicy {
    /// Consumed events are acknowledged when they amount to a quarter of this window. `None`: nothing is acknowledged.
    pub(crate) ack_window: Option<u64>,
    /// Whether events arrive in order. If not, the log keeps an early event until the earlier ones have arrived.
    pub(crate) is_ordered: bool,
    pub(crate) when_full: WhenFull,
}

/// What happens when a process is too far ahead of the readers of its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// The server has violated its window. The log fails, and with it the handle of the process.
    Fail,
    /// Nothing: the task that fills the log waits for room by itself.
    Ignore,
    /// The oldest events are dropped. A reader that still needs them asks the server, and gets a gap if the server has dropped them, too.
    DropOldest,
    /// The client stops reading the connection until the reader has caught up. Without a reader, the oldest events are dropped.
    BlockConnection,
}

impl FlowPolicy {
    /// The server sends at most `window` bytes beyond the last acknowledgement.
    pub(crate) fn acked(window: u64) -> Self {
        Self { ack_window: Some(window), is_ordered: true, when_full: WhenFull::Fail }
    }

    /// The client fetches the events with `process/read`.
    pub(crate) fn polled(ack_window: Option<u64>) -> Self {
        Self { ack_window, is_ordered: true, when_full: WhenFull::Ignore }
    }

    /// The server sends events without waiting for the reader.
    pub(crate) fn observed() -> Self {
        Self { ack_window: None, is_ordered: true, when_full: WhenFull::DropOldest }
    }
}

impl Default for FlowPolicy {
    fn default() -> Self {
        Self::observed()
    }
}

/// A protocol violation by the server, or a limit that it exceeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProtocolViolation(pub(crate) &'static str);
const SKIPPED: ProtocolViolation = ProtocolViolation("the server skipped a sequence number");
const OVERRUN: ProtocolViolation = ProtocolViolation("the server sent more than its window allows");

/// The result of appending an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appended {
    /// The event was published, was kept until an earlier one arrives, or was ignored.
    Accepted,
    /// The process is too far ahead of an existing reader: stop reading the connection until the reader has caught up.
    ReaderBehind,
}

/// How far a process may be ahead of its readers under `DropOldest` and `BlockConnection`.
const AHEAD_BYTES: u64 = 16 << 20;
const AHEAD_EVENTS: usize = 1 << 16;

/// The events of one process.
#[derive(Debug)]
pub(crate) struct EventLog {
    /// The log begins after this sequence number.
    pub(crate) began_after: u64,
    state: Mutex<LogState>,
    /// The highest sequence number received. A failure increases it by one, to wake the receivers.
    wake: watch::Sender<u64>,
    /// Notified when events were consumed, a reader was removed, or the log ended.
    consumed: Notify,
}

#[derive(Debug, Default)]
struct LogState {
    flow_policy: FlowPolicy,
    /// Published events, in order and without holes.
    events: EventRuns,
    /// The sequence number to publish next.
    next: u64,
    /// Output bytes of the process before `next`, if known.
    offset: Option<u64>,
    /// Events that arrived before an earlier one.
    early: BTreeMap<u64, Event>,
    early_bytes: u64,
    cursors: BTreeMap<u64, CursorSlot>,
    next_cursor: u64,
    /// The number of callers that wait for the end and read no events.
    waiting: usize,
    /// The events up to this number count as consumed: every reader has consumed them, or they were dropped.
    taken: u64,
    /// Output bytes published after `taken`.
    untaken_bytes: u64,
    /// The last acknowledged number.
    acked: u64,
    /// What was consumed since: the output, and [`limits::EVENT_OVERHEAD`] for each event.
    unacked_bytes: u64,
    /// The exit event with its sequence number.
    exit: Option<(u64, Exit)>,
    /// The exit status from a source other than an event. The exit event may lie before the log's beginning.
    recorded_exit: Option<Exit>,
    closed: Option<Totals>,
    failed: Option<Error>,
}

#[derive(Debug)]
struct CursorSlot {
    position: u64,
    waker: Option<Waker>,
}

/// The result of a cursor's read.
#[derive(Debug)]
pub(crate) enum CursorRead {
    /// The next event.
    Event(Event),
    /// Events after the cursor's position are no longer in memory. Contains the number after the last of them.
    Before(u64),
    /// The process is closed and every event was read.
    End,
    /// The log failed and no event follows.
    Failed(Error),
}

impl EventLog {
    /// Creates a log that begins after `after`.
    pub(crate) fn new(flow_policy: FlowPolicy, after: u64) -> Self {
        let state = LogState {
            flow_policy,
            next: after.saturating_add(1),
            offset: (after == 0).then_some(0),
            taken: after,
            acked: after,
            ..LogState::default()
        };
        Self { began_after: after, state: Mutex::new(state), wake: watch::Sender::new(after), consumed: Notify::new() }
    }

    /// Changes how the server sends events.
    pub(crate) fn set_flow_policy(&self, flow_policy: FlowPolicy) {
        self.state.lock().flow_policy = flow_policy;
    }

    /// Appends an event. An event that continues the log is published, together with the early events that waited for it. An early event is
    /// kept. An event that was published already, or that comes after the end, is ignored.
    pub(crate) fn append(&self, event: Event) -> Result<Appended, ProtocolViolation> {
        let mut state = self.state.lock();
        let event = state.renumber_late_end(event);
        let Some((from, to)) = event.span() else { return Ok(Appended::Accepted) };
        // `u64::MAX` has no next number.
        if from > to || to == u64::MAX {
            return Err(ProtocolViolation("impossible sequence number"));
        }
        if state.is_over() || to < state.next {
            return Ok(Appended::Accepted);
        }
        let is_published = from <= state.next;
        if is_published {
            let event = state.unreported_part(event);
            state.publish(event);
            state.publish_early();
        } else {
            state.store_early(from, event)?;
        }
        let appended = state.enforce_bounds()?;
        state.release_consumed();
        let wakers = state.wakers();
        // Unlock first: a woken task may poll this log at once.
        drop(state);
        // An event that fills a hole publishes the early events after it, so notify even if the number stays the same.
        self.wake.send_if_modified(|seen| std::mem::replace(seen, (*seen).max(to)) < to || is_published);
        wakers.into_iter().for_each(Waker::wake);
        Ok(appended)
    }

    /// The sequence number after the last published event.
    pub(crate) fn next(&self) -> u64 {
        self.state.lock().next
    }

    /// Ends the log with a failure, unless it has failed or closed already.
    pub(crate) fn fail(&self, error: Error) {
        self.end(1, |state| {
            state.failed = Some(error);
            state.early.clear();
            state.early_bytes = 0;
        });
    }

    /// Ends the log without an event, and wakes everything that waits for it. Adds `increase` to the number that receivers see.
    fn end(&self, increase: u64, change: impl FnOnce(&mut LogState)) {
        let mut state = self.state.lock();
        if state.is_over() {
            return;
        }
        change(&mut state);
        let wakers = state.wakers();
        drop(state);
        self.consumed.notify_waiters();
        self.wake.send_modify(|seen| *seen = seen.saturating_add(increase));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A receiver of the highest sequence number received.
    pub(crate) fn wake(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }

    /// Records how the process ended, without an event: the exit event may lie before the log's beginning.
    pub(crate) fn record_exit(&self, exit: Exit) {
        self.state.lock().recorded_exit = Some(exit);
    }

    /// Records that the close lies before the log's beginning, so that no event follows.
    pub(crate) fn record_closed(&self, totals: Totals) {
        self.end(0, |state| state.closed = Some(totals));
    }

    /// The exit recorded by [`record_exit`](Self::record_exit).
    pub(crate) fn recorded_exit(&self) -> Option<Exit> {
        self.state.lock().recorded_exit.clone()
    }

    /// How the process ended, if known.
    pub(crate) fn exit(&self) -> Option<Exit> {
        let state = self.state.lock();
        state.exit.as_ref().map(|(_, exit)| exit).or(state.recorded_exit.as_ref()).cloned()
    }

    /// The exit and its sequence number, if it arrived as an event.
    pub(crate) fn exit_at(&self) -> Option<(u64, Exit)> {
        self.state.lock().exit.clone()
    }

    pub(crate) fn closed(&self) -> Option<Totals> {
        self.state.lock().closed
    }

    pub(crate) fn failed(&self) -> Option<Error> {
        self.state.lock().failed.clone()
    }

    /// Whether the log is closed or has failed, so that it accepts no further event.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().is_over()
    }

    /// Adds a reader after `position`. From now on the log keeps what this reader has not consumed.
    pub(crate) fn add_cursor(&self, position: u64) -> u64 {
        let mut state = self.state.lock();
        let id = state.next_cursor;
        state.next_cursor += 1;
        state.cursors.insert(id, CursorSlot { position, waker: None });
        id
    }

    /// Removes a reader. Everything up to `position` counts as consumed by it.
    pub(crate) fn remove_cursor(&self, id: u64, position: u64) {
        let mut state = self.state.lock();
        // `release_consumed` sees only the remaining readers, so record here what the last reader has consumed.
        if state.cursors.remove(&id).is_some() && state.cursors.is_empty() {
            state.consume(position);
        }
        state.release_consumed();
        drop(state);
        self.consumed.notify_waiters();
    }

    /// Returns the event after `position`. Everything up to `position` counts as consumed by this reader.
    pub(crate) fn poll(&self, id: u64, position: u64, cx: &Context<'_>) -> Poll<CursorRead> {
        let mut state = self.state.lock();
        if let Some(slot) = state.cursors.get_mut(&id) {
            slot.position = position;
            slot.waker = None;
        }
        let before = state.untaken_bytes;
        state.release_consumed();
        let has_more_room = state.untaken_bytes < before;
        let found = state.find(position);
        if let Poll::Pending = found
            && let Some(slot) = state.cursors.get_mut(&id)
        {
            slot.waker = Some(cx.waker().clone());
        }
        drop(state);
        if has_more_room {
            self.consumed.notify_waiters();
        }
        found
    }

    /// Adds the events after `position` that are in memory to a batch, until it has `max_bytes` of output. Nothing counts as consumed.
    pub(crate) fn append_following(&self, position: u64, max_bytes: u64, batch: &mut Vec<Event>) {
        let state = self.state.lock();
        let mut bytes: u64 = batch.iter().map(Event::weight).sum();
        let mut last = position;
        while bytes < max_bytes
            && batch.len() < BATCH_EVENTS
            && let Some(event) = state.events.after(last)
            && let Some((from, to)) = event.span()
            && from == last + 1
        {
            bytes += event.weight();
            last = to;
            batch.push(event);
        }
    }

    /// Registers a caller that only waits. If there is no reader, every event counts as consumed.
    pub(crate) fn begin_wait(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        state.release_consumed();
        drop(state);
        self.consumed.notify_waiters();
    }

    /// Unregisters a caller; see [`begin_wait`](Self::begin_wait).
    pub(crate) fn end_wait(&self) {
        self.state.lock().waiting -= 1;
    }

    /// Waits until the connection may be read again; see [`WhenFull::BlockConnection`].
    pub(crate) async fn wait_for_room(&self) {
        // When the last reader is removed, `enforce_bounds` makes room by dropping events.
        self.wait_until(|state| !matches!(state.enforce_bounds(), Ok(Appended::ReaderBehind))).await;
    }

    /// Waits until fewer than `bytes` of published output are unconsumed, or the log has failed.
    pub(crate) async fn wait_for_room_below(&self, bytes: u64) {
        self.wait_until(|state| state.untaken_bytes < bytes || state.failed.is_some()).await;
    }

    async fn wait_until(&self, mut is_met: impl FnMut(&mut LogState) -> bool) {
        loop {
            let changed = self.consumed.notified();
            tokio::pin!(changed);
            // Register before checking, so that no change between the two is missed.
            changed.as_mut().enable();
            if is_met(&mut self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Whether an acknowledgement is due: a quarter of the window, or the last event, was consumed.
    pub(crate) fn is_ack_due(&self) -> bool {
        self.state.lock().is_ack_due()
    }

    /// Returns the number to acknowledge if an acknowledgement is due, and records it as acknowledged.
    pub(crate) fn due_ack(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.is_ack_due() {
            return None;
        }
        state.unacked_bytes = 0;
        state.acked = state.taken;
        Some(state.taken)
    }

    /// Resets the acknowledgement after a reconnect, so that it is sent again on the new connection.
    pub(crate) fn renew_ack(&self) {
        let mut state = self.state.lock();
        state.acked = 0;
        // More than a quarter of any window, so that the acknowledgement is due at once.
        state.unacked_bytes = u64::MAX / 2;
    }
}

impl LogState {
    /// Renumbers the end of a lost process so that it follows every event received so far. After the death of a holder,
    /// a restarted server knows only the output on disk. It may give the exit or the close a number below events that
    /// were sent from memory. The log would then ignore the end as a duplicate, and readers would wait forever. A close
    /// is renumbered after an exit with any cause: the close is the last event, so a number below published events
    /// cannot be right.
    fn renumber_late_end(&self, event: Event) -> Event {
        let is_late = |seq: u64| seq < self.next && self.closed.is_none();
        match event {
            Event::Exited { seq, exit }
                if is_late(seq) && self.exit.is_none() && exit.cause == Some(wire::Cause::Lost) =>
            {
                Event::Exited { seq: self.next, exit }
            }
            Event::Closed { seq, totals } if is_late(seq) => Event::Closed { seq: self.next, totals },
            other => other,
        }
    }

    fn publish(&mut self, event: Event) {
        let Some((_, to)) = event.span() else { return };
        match &event {
            Event::Exited { seq, exit } => self.exit = Some((*seq, exit.clone())),
            Event::Closed { totals, .. } => self.closed = Some(*totals),
            Event::Output { .. } | Event::Gap { .. } | Event::Failed(_) => {}
        }
        self.untaken_bytes += event.weight();
        self.next = to + 1;
        // The offset that the server reports corrects the counted one.
        let start = match &event {
            Event::Output { offset: Some(offset), .. } => Some(*offset),
            _ => self.offset,
        };
        self.offset = start.zip(event.output_bytes()).and_then(|(start, bytes)| start.checked_add(bytes));
        self.events.push(event);
    }

    /// The part of an event that was not published yet. Only a gap can overlap published events.
    ///
    /// After a resume, a server reports a gap from the last acknowledgement on, or from the very beginning if it no longer knows the
    /// numbers. The remaining bytes are those of the gap minus those of the events that were reported. They are unknown if the log no
    /// longer has these events.
    fn unreported_part(&self, event: Event) -> Event {
        let Event::Gap { from_seq, to_seq, bytes } = event else { return event };
        let reported = (from_seq < self.next).then(|| self.reported_bytes(from_seq));
        let rest = match reported {
            None => bytes,
            Some(reported) => bytes.zip(reported).and_then(|(bytes, reported)| bytes.checked_sub(reported)),
        };
        Event::Gap { from_seq: from_seq.max(self.next), to_seq, bytes: rest }
    }

    /// Output bytes of the published events from number `from` on. `None` if they are unknown: an event spans `from`, was dropped from
    /// memory, or is a gap without a byte count.
    fn reported_bytes(&self, from: u64) -> Option<u64> {
        // `offset` counts from the first event on, also if events were dropped from memory.
        if from == 1 {
            return self.offset;
        }
        self.events.reported_from(from)
    }

    fn publish_early(&mut self) {
        while let Some(entry) = self.early.first_entry()
            && *entry.key() <= self.next
        {
            let event = entry.remove();
            self.early_bytes -= event.weight();
            if event.span().is_some_and(|(_, to)| to >= self.next) {
                let event = self.unreported_part(event);
                self.publish(event);
            }
        }
    }

    fn store_early(&mut self, from: u64, event: Event) -> Result<(), ProtocolViolation> {
        if self.flow_policy.is_ordered {
            return Err(SKIPPED);
        }
        if event.weight() > EARLY_BYTES {
            return Err(ProtocolViolation("one piece of output is larger than 1 MiB"));
        }
        if let Entry::Vacant(entry) = self.early.entry(from) {
            self.early_bytes += event.weight();
            entry.insert(event);
        }
        if self.early.len() > EARLY_EVENTS || self.early_bytes > EARLY_BYTES {
            return Err(ProtocolViolation("too many events arrived out of order"));
        }
        Ok(())
    }

    /// Enforces the bound on memory.
    fn enforce_bounds(&mut self) -> Result<Appended, ProtocolViolation> {
        match self.flow_policy.when_full {
            WhenFull::Fail => {
                // Twice the window, because acknowledgements are in flight, and 1 MiB of tolerance.
                let window = self.flow_policy.ack_window.unwrap_or_default();
                let most = window.saturating_mul(2).saturating_add(HISTORY_BYTES);
                let is_within = self.untaken_bytes <= most && self.events.empty <= EMPTY_EVENTS;
                is_within.then_some(Appended::Accepted).ok_or(OVERRUN)
            }
            WhenFull::Ignore => Ok(Appended::Accepted),
            WhenFull::BlockConnection if self.is_full() && !self.cursors.is_empty() => Ok(Appended::ReaderBehind),
            WhenFull::BlockConnection | WhenFull::DropOldest => {
                while self.is_full()
                    && let Some((_, to)) = self.events.front()
                {
                    // Count the event as consumed before dropping it: afterwards its bytes can no longer be counted.
                    self.consume(to);
                    self.events.pop();
                }
                Ok(Appended::Accepted)
            }
        }
    }

    fn is_ack_due(&self) -> bool {
        let Some(window) = self.flow_policy.ack_window else { return false };
        let is_at_end = self.closed.is_some() && self.taken + 1 == self.next;
        self.taken > self.acked && (self.unacked_bytes >= window / 4 || is_at_end)
    }

    fn is_over(&self) -> bool {
        self.failed.is_some() || self.closed.is_some()
    }

    fn is_full(&self) -> bool {
        self.untaken_bytes > AHEAD_BYTES || self.events.len > AHEAD_EVENTS
    }

    /// Moves `taken` to the lowest reader, or to the end if callers only wait. Then drops history beyond its limits.
    fn release_consumed(&mut self) {
        match self.cursors.values().map(|slot| slot.position).min() {
            Some(lowest) => self.consume(lowest),
            None if self.waiting > 0 => self.consume(self.next - 1),
            None => {}
        }
        while self.events.bytes - self.untaken_bytes > HISTORY_BYTES || self.events.len > HISTORY_EVENTS {
            match self.events.front() {
                Some((_, to)) if to <= self.taken => self.events.pop(),
                _ => break,
            }
        }
    }

    /// Counts everything up to `position` as consumed.
    fn consume(&mut self, position: u64) {
        let position = position.min(self.next - 1);
        if position <= self.taken {
            return;
        }
        let bytes = self.events.bytes_between(self.taken, position);
        self.untaken_bytes = self.untaken_bytes.saturating_sub(bytes);
        // Small events fill the server's log long before a quarter of the window is output.
        let overhead = limits::EVENT_OVERHEAD.saturating_mul(position - self.taken);
        self.unacked_bytes = self.unacked_bytes.saturating_add(bytes).saturating_add(overhead);
        self.taken = position;
    }

    fn find(&self, position: u64) -> Poll<CursorRead> {
        if let Some(event) = self.events.after(position) {
            let from = event.span().map_or(0, |(from, _)| from);
            // Published events have no holes, so this can only be the oldest event in memory.
            let is_before = from > position.saturating_add(1);
            return Poll::Ready(if is_before {
                CursorRead::Before(from)
            } else {
                CursorRead::Event(trimmed(event, position + 1))
            });
        }
        // Events after `position` were published, but none is in memory.
        if position < self.next - 1 {
            return Poll::Ready(CursorRead::Before(self.next));
        }
        match (&self.failed, self.closed) {
            (_, Some(_)) => Poll::Ready(CursorRead::End),
            (Some(error), None) => Poll::Ready(CursorRead::Failed(error.clone())),
            (None, None) => Poll::Pending,
        }
    }

    fn wakers(&mut self) -> Vec<Waker> {
        self.cursors.values_mut().filter_map(|slot| slot.waker.take()).collect()
    }
}

/// The part of an event from `from` on. A reader may begin inside a gap; the bytes of the remaining part are unknown.
fn trimmed(event: Event, from: u64) -> Event {
    match event {
        Event::Gap { from_seq, to_seq, .. } if from_seq < from => Event::Gap { from_seq: from, to_seq, bytes: None },
        other => other,
    }
}

#[cfg(test)]
mod tests;
