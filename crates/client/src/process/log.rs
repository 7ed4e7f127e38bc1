//! One log per process handle: filled by the connection, read by cursors, outliving every connection beneath it.
//!
//! Owns order and memory. An event is published only after the one before it; what is published stays until every cursor
//! has taken it, and a little longer, for cursors that come late. The lowest cursor decides what is acknowledged, so a slow
//! reader holds the process back and loses nothing.
//!
//! Must not know connections: it is told events and asked what may be acknowledged. Failure paths: a number that is skipped
//! by a server that promises order, or more than the window allows, is a [`Breach`], which fails this process and no other.
//! However small the pieces are, a window is never a reason to stop reading the link: whoever takes events may be waiting
//! for the answer to a call, which would then lie behind what nobody reads.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use exec_server_protocol::process as wire;
use tokio::sync::{Notify, watch};

use self::kept::Kept;
use super::event::{Event, Exit, Totals};
use crate::error::Error;

mod kept;

/// Output kept behind the last cursor, for those who come late: 1 MiB, as much as a server keeps at least.
const HISTORY_BYTES: u64 = 1 << 20;

/// Events kept behind the last cursor. Small chunks would make 1 MiB expensive.
const HISTORY_EVENTS: usize = 4096;

/// Events that may wait for an earlier one, and their bytes: as the reference.
const EARLY_EVENTS: usize = 256;
const EARLY_BYTES: u64 = 1 << 20;

/// Events without output that are kept of a server with a window, which does not count them. An honest one has hardly any: an
/// exit, a close, a gap here and there. Those with output are as many as there are bytes, and kept small.
const EMPTY_EVENTS: usize = 1 << 16;

/// How much a server may send before it is acknowledged, and whether it promises order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discipline {
    /// Sends in order, and at most this many bytes beyond the last acknowledgement.
    Acked { window: u64 },
    /// Answers what it is asked, in order; acknowledged as if it were pushed with this window, where the server knows that.
    Polled { window: Option<u64> },
    /// Sends in order, and waits for nobody.
    Observed,
    /// Sends in any order, and knows no acknowledgement.
    Reference,
}

/// A rule that the server broke, or a bound that it passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breach(pub(crate) &'static str);
const SKIPPED: Breach = Breach("the server skipped a number");
const OVERRUN: Breach = Breach("the server sent more than its window allows");

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It was new, or known already.
    Fine,
    /// A reference server is ahead of a reader that is there: read no more until it has caught up.
    Full,
}

/// How far a process may be ahead of its reader where no acknowledgement bounds it.
const AHEAD_BYTES: u64 = 16 << 20;
const AHEAD_EVENTS: usize = 1 << 16;

/// The events of one process.
#[derive(Debug)]
pub(crate) struct Log {
    /// It begins behind this number.
    after: u64,
    state: Mutex<State>,
    /// The highest number heard of; one more on a failure.
    wake: watch::Sender<u64>,
    /// Something was taken, or a reader left.
    room: Notify,
}

#[derive(Debug)]
struct State {
    discipline: Discipline,
    /// Published, in order, without holes.
    events: Kept,
    /// The number that is published next.
    next: u64,
    /// Output bytes of the process before `next`, where that is known.
    offset: Option<u64>,
    /// Events that came before their turn.
    early: BTreeMap<u64, Event>,
    early_bytes: u64,
    cursors: BTreeMap<u64, Slot>,
    next_cursor: u64,
    /// Callers who wait for the end and read nothing.
    waiting: usize,
    /// Everything up to here was taken by all who read.
    taken: u64,
    /// Output bytes published after `taken`.
    untaken_bytes: u64,
    /// The last number acknowledged, and the output bytes taken since.
    acked: u64,
    unacked_bytes: u64,
    /// With its number.
    exit: Option<(u64, Exit)>,
    /// How the process ended, learned beside the events: its own may lie before the log's beginning.
    learned_exit: Option<Exit>,
    closed: Option<Totals>,
    failed: Option<Error>,
}

#[derive(Debug)]
struct Slot {
    position: u64,
    waker: Option<Waker>,
}

/// What a cursor finds.
#[derive(Debug)]
pub(crate) enum Found {
    /// The next event.
    Event(Event),
    /// The numbers after the cursor's are no longer here; the first that is.
    Before(u64),
    /// Nothing will follow.
    End,
    /// Nothing will follow, because of this.
    Failed(Error),
}

impl Log {
    /// A log that begins after `after`.
    pub(crate) fn new(discipline: Discipline, after: u64) -> Self {
        let state = State {
            discipline,
            events: Kept::default(),
            next: after.saturating_add(1),
            offset: (after == 0).then_some(0),
            early: BTreeMap::new(),
            early_bytes: 0,
            cursors: BTreeMap::new(),
            next_cursor: 0,
            waiting: 0,
            taken: after,
            untaken_bytes: 0,
            acked: after,
            unacked_bytes: 0,
            exit: None,
            learned_exit: None,
            closed: None,
            failed: None,
        };
        Self { after, state: Mutex::new(state), wake: watch::Sender::new(after), room: Notify::new() }
    }

    /// The number that it begins behind.
    pub(crate) fn began_after(&self) -> u64 {
        self.after
    }

    /// Hears an event: publishes it, and what waited for it; keeps it when it is early; ignores it when it is known.
    pub(crate) fn hear(&self, event: Event) -> Result<Heard, Breach> {
        let mut state = self.lock();
        let event = state.late_end(event);
        let Some((from, to)) = event.span() else { return Ok(Heard::Fine) };
        if from > to || to == u64::MAX {
            return Err(Breach("a number is impossible"));
        }
        if state.failed.is_some() || state.closed.is_some() || to < state.next {
            return Ok(Heard::Fine);
        }
        if from > state.next {
            state.keep_early(from, event)?;
        } else {
            let event = state.untold(event);
            state.publish(event);
            state.publish_early();
        }
        let heard = state.bound()?;
        state.let_go();
        let wakers = state.wakers();
        drop(state);
        self.wake.send_if_modified(|seen| std::mem::replace(seen, (*seen).max(to)) < to);
        wake(wakers);
        Ok(heard)
    }

    /// The number after the last published one.
    pub(crate) fn next(&self) -> u64 {
        self.lock().next
    }

    /// Ends the log with a failure, once, unless it is closed.
    pub(crate) fn fail(&self, error: Error) {
        let mut state = self.lock();
        if state.failed.is_some() || state.closed.is_some() {
            return;
        }
        state.failed = Some(error);
        state.early.clear();
        state.early_bytes = 0;
        let wakers = state.wakers();
        drop(state);
        self.room.notify_waiters();
        self.wake.send_modify(|seen| *seen = seen.saturating_add(1));
        wake(wakers);
    }

    /// The highest number heard of, watched.
    pub(crate) fn wake(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }

    /// Learns how the process ended: no event, because its number may lie before the log's beginning.
    pub(crate) fn learn_exit(&self, exit: Exit) {
        self.lock().learned_exit = Some(exit);
    }

    /// Learns that the close lies before the log's beginning: nothing will follow.
    pub(crate) fn learn_closed(&self, totals: Totals) {
        let mut state = self.lock();
        if state.failed.is_some() || state.closed.is_some() {
            return;
        }
        state.closed = Some(totals);
        let wakers = state.wakers();
        drop(state);
        self.room.notify_waiters();
        self.wake.send_modify(|_| ());
        wake(wakers);
    }

    /// What [`learn_exit`](Self::learn_exit) was told.
    pub(crate) fn learned_exit(&self) -> Option<Exit> {
        self.lock().learned_exit.clone()
    }

    /// How the process ended, as far as that is known.
    pub(crate) fn exit(&self) -> Option<Exit> {
        let state = self.lock();
        state.exit.as_ref().map(|(_, exit)| exit).or(state.learned_exit.as_ref()).cloned()
    }

    /// The exit and its number, where it was told as an event.
    pub(crate) fn exit_at(&self) -> Option<(u64, Exit)> {
        self.lock().exit.clone()
    }

    pub(crate) fn closed(&self) -> Option<Totals> {
        self.lock().closed
    }

    pub(crate) fn failed(&self) -> Option<Error> {
        self.lock().failed.clone()
    }

    /// Adds a reader after `position`; what it has not taken is kept from now on.
    pub(crate) fn add_cursor(&self, position: u64) -> u64 {
        let mut state = self.lock();
        let id = state.next_cursor;
        state.next_cursor += 1;
        state.cursors.insert(id, Slot { position, waker: None });
        id
    }

    /// Removes a reader; what it was given counts as taken.
    pub(crate) fn remove_cursor(&self, id: u64, position: u64) {
        let mut state = self.lock();
        if state.cursors.remove(&id).is_some() && state.cursors.is_empty() {
            state.take(position);
        }
        state.let_go();
        drop(state);
        self.room.notify_waiters();
    }

    /// Finds what follows `position`, and counts everything up to it as taken by this reader.
    pub(crate) fn poll(&self, id: u64, position: u64, cx: &Context<'_>) -> Poll<Found> {
        let mut state = self.lock();
        if let Some(slot) = state.cursors.get_mut(&id) {
            slot.position = position;
            slot.waker = None;
        }
        let before = state.untaken_bytes;
        state.let_go();
        let has_more_room = state.untaken_bytes < before;
        let found = state.find(position);
        if let Poll::Pending = found
            && let Some(slot) = state.cursors.get_mut(&id)
        {
            slot.waker = Some(cx.waker().clone());
        }
        drop(state);
        if has_more_room {
            self.room.notify_waiters();
        }
        found
    }

    /// Counts a caller who only waits: with no reader beside it, everything counts as taken.
    pub(crate) fn begin_wait(&self) {
        let mut state = self.lock();
        state.waiting += 1;
        state.let_go();
        drop(state);
        self.room.notify_waiters();
    }

    /// The counterpart of [`begin_wait`](Self::begin_wait).
    pub(crate) fn end_wait(&self) {
        self.lock().waiting -= 1;
    }

    /// Waits until a reference server may be read on.
    pub(crate) async fn room(&self) {
        self.wait_until(|state| !matches!(state.bound(), Ok(Heard::Full))).await;
    }

    /// Waits until fewer than `bytes` are published and not taken.
    pub(crate) async fn room_below(&self, bytes: u64) {
        self.wait_until(|state| state.untaken_bytes < bytes || state.failed.is_some()).await;
    }

    async fn wait_until(&self, mut is_met: impl FnMut(&mut State) -> bool) {
        loop {
            let changed = self.room.notified();
            tokio::pin!(changed);
            // Registered before the look, or a change in between would be missed.
            changed.as_mut().enable();
            if is_met(&mut self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Whether there is something to acknowledge: a quarter of the window was taken, or the last event.
    pub(crate) fn is_ack_due(&self) -> bool {
        self.lock().is_ack_due()
    }

    /// The number to acknowledge, where one is due.
    pub(crate) fn due_ack(&self) -> Option<u64> {
        let mut state = self.lock();
        if !state.is_ack_due() {
            return None;
        }
        state.unacked_bytes = 0;
        state.acked = state.taken;
        Some(state.taken)
    }

    /// Forgets what was acknowledged on an earlier connection, so that it is said again on the next.
    pub(crate) fn renew_ack(&self) {
        let mut state = self.lock();
        state.acked = 0;
        state.unacked_bytes = u64::MAX / 2;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Numbers an end that was made up for a lost process behind all that was heard. A server whose holder died has only the disk to go
    /// by, and may number it below what was in memory and told; it would seem to be known, and nobody would ever hear the end.
    fn late_end(&self, event: Event) -> Event {
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
        let begins = match &event {
            Event::Output { offset: Some(offset), .. } => Some(*offset),
            _ => self.offset,
        };
        self.offset = begins.zip(event.output_bytes()).and_then(|(begins, bytes)| begins.checked_add(bytes));
        self.events.push(event);
    }

    /// The part of an event that was not told: only a gap can reach back.
    ///
    /// After a resume a server tells a gap from the last acknowledgement on, or from the very beginning where it has no number to
    /// count from any more. The rest is the difference to what was told: all of the output before, or what of it is still here. Where
    /// that was let go of nobody knows it.
    fn untold(&self, event: Event) -> Event {
        let Event::Gap { from_seq, to_seq, bytes } = event else { return event };
        let told = (from_seq < self.next).then(|| self.told_bytes(from_seq));
        let rest = match told {
            None => bytes,
            Some(told) => bytes.zip(told).and_then(|(bytes, told)| bytes.checked_sub(told)),
        };
        Event::Gap { from_seq: from_seq.max(self.next), to_seq, bytes: rest }
    }

    /// Output bytes told from number `from` on; none where that is not known: an event began before it, is gone, or was not counted.
    fn told_bytes(&self, from: u64) -> Option<u64> {
        if from == 1 {
            return self.offset;
        }
        self.events.told_from(from)
    }

    fn publish_early(&mut self) {
        while let Some(entry) = self.early.first_entry()
            && *entry.key() <= self.next
        {
            let event = entry.remove();
            self.early_bytes -= event.weight();
            if event.span().is_some_and(|(_, to)| to >= self.next) {
                let event = self.untold(event);
                self.publish(event);
            }
        }
    }

    fn keep_early(&mut self, from: u64, event: Event) -> Result<(), Breach> {
        match self.discipline {
            Discipline::Acked { .. } | Discipline::Polled { .. } | Discipline::Observed => Err(SKIPPED),
            Discipline::Reference => {
                if event.weight() > EARLY_BYTES {
                    return Err(Breach("one piece of output is larger than 1 MiB"));
                }
                if let std::collections::btree_map::Entry::Vacant(entry) = self.early.entry(from) {
                    self.early_bytes += event.weight();
                    entry.insert(event);
                }
                if self.early.len() > EARLY_EVENTS || self.early_bytes > EARLY_BYTES {
                    return Err(Breach("too many events came before their turn"));
                }
                Ok(())
            }
        }
    }

    /// Keeps memory within its bound.
    fn bound(&mut self) -> Result<Heard, Breach> {
        match self.discipline {
            Discipline::Acked { window } => {
                // Twice, because acknowledgements travel; and what is behind the last cursor is history.
                let most = window.saturating_mul(2).saturating_add(HISTORY_BYTES);
                let is_within = self.untaken_bytes <= most && self.events.empty() <= EMPTY_EVENTS;
                is_within.then_some(Heard::Fine).ok_or(OVERRUN)
            }
            Discipline::Polled { .. } => Ok(Heard::Fine),
            Discipline::Observed | Discipline::Reference if !self.is_full() => Ok(Heard::Fine),
            Discipline::Reference if !self.cursors.is_empty() => Ok(Heard::Full),
            Discipline::Observed | Discipline::Reference => {
                // Nobody reads, or nobody waits for the reader: the oldest go, and whoever comes later finds a gap.
                while self.is_full()
                    && let Some((_, to)) = self.events.front()
                {
                    // Taken before it goes: what is gone can no longer be counted.
                    self.take(to);
                    self.events.pop();
                }
                Ok(Heard::Fine)
            }
        }
    }

    fn is_ack_due(&self) -> bool {
        let (Discipline::Acked { window } | Discipline::Polled { window: Some(window) }) = self.discipline else {
            return false;
        };
        let is_at_end = self.closed.is_some() && self.taken + 1 == self.next;
        self.taken > self.acked && (self.unacked_bytes >= window / 4 || is_at_end)
    }

    fn is_full(&self) -> bool {
        matches!(self.discipline, Discipline::Reference | Discipline::Observed)
            && (self.untaken_bytes > AHEAD_BYTES || self.events.len() > AHEAD_EVENTS)
    }

    /// Moves what is taken to the lowest reader, or to the end where callers only wait; then forgets what is old.
    fn let_go(&mut self) {
        match self.cursors.values().map(|slot| slot.position).min() {
            Some(lowest) => self.take(lowest),
            None if self.waiting > 0 => self.take(self.next - 1),
            None => {}
        }
        while self.events.bytes() - self.untaken_bytes > HISTORY_BYTES || self.events.len() > HISTORY_EVENTS {
            match self.events.front() {
                Some((_, to)) if to <= self.taken => self.events.pop(),
                _ => break,
            }
        }
    }

    /// Counts everything up to `position` as taken.
    fn take(&mut self, position: u64) {
        let position = position.min(self.next - 1);
        if position <= self.taken {
            return;
        }
        let bytes = self.events.bytes_between(self.taken, position);
        self.untaken_bytes = self.untaken_bytes.saturating_sub(bytes);
        self.unacked_bytes = self.unacked_bytes.saturating_add(bytes);
        self.taken = position;
    }

    fn find(&self, position: u64) -> Poll<Found> {
        if let Some(event) = self.events.after(position) {
            let from = event.span().map_or(0, |(from, _)| from);
            // There are no holes, so this is the first of all.
            let is_before = from > position.saturating_add(1);
            return Poll::Ready(if is_before {
                Found::Before(from)
            } else {
                Found::Event(trimmed(event, position + 1))
            });
        }
        if position < self.next - 1 {
            return Poll::Ready(Found::Before(self.next));
        }
        match (&self.failed, self.closed) {
            (_, Some(_)) => Poll::Ready(Found::End),
            (Some(error), None) => Poll::Ready(Found::Failed(error.clone())),
            (None, None) => Poll::Pending,
        }
    }

    fn wakers(&mut self) -> Vec<Waker> {
        self.cursors.values_mut().filter_map(|slot| slot.waker.take()).collect()
    }
}

/// The part of an event from `from` on: a reader may begin inside a gap, of which nobody knows how much lies behind it.
fn trimmed(event: Event, from: u64) -> Event {
    match event {
        Event::Gap { from_seq, to_seq, .. } if from_seq < from => Event::Gap { from_seq: from, to_seq, bytes: None },
        other => other,
    }
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

#[cfg(test)]
mod tests;
