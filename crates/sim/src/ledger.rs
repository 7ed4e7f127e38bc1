//! The events that one cursor of the real client has received of a process, compared with what the child really did.
//!
//! Stricter than the view of the model client: a cursor promises every event once and in order, through any fault. Does not depend on links
//! or sessions; [`session_history`](crate::session_history) decides whether an error is correct.

use exec_server_client::Event;

use crate::{child::ChildRecords, prelude::*};

/// The position of a cursor and its checks.
pub struct Ledger {
    name: String,
    /// The reader's name in the trace.
    who: String,
    plan: Plan,
    /// Gaps are allowed: the log drops output, or it does not wait for this reader.
    pub may_miss: bool,
    is_observer: bool,
    /// The reader attached after other readers had already read.
    pub is_late: bool,
    /// A restarted program attached to the process again. It is fed by `process/read`, which counts gap bytes from the beginning of the
    /// output, so a gap may have no byte count.
    pub is_reattached: bool,
    /// After a gap without a byte count: the position in the text is unknown until the next bytes have an offset.
    is_adrift: bool,
    /// There was such a gap. It may have contained the exit.
    has_uncounted: bool,
    /// The sequence number of the last event.
    pub position: u64,
    taken: [u64; 2],
    gaps: u64,
    /// The exit code.
    pub exited: Option<i32>,
    /// The close was received.
    pub closed: bool,
    trace: Trace,
    records: ChildRecords,
}

impl Ledger {
    /// A cursor at the beginning.
    pub fn new(who: String, name: &str, plan: &Plan, context: &WorldContext) -> Self {
        Self {
            name: name.to_owned(),
            who,
            plan: plan.clone(),
            may_miss: plan.drops,
            is_observer: false,
            is_late: false,
            is_reattached: false,
            is_adrift: false,
            has_uncounted: false,
            position: 0,
            taken: [0; 2],
            gaps: 0,
            exited: None,
            closed: false,
            trace: context.trace.clone(),
            records: context.records.clone(),
        }
    }

    /// A reader that the log does not wait for.
    pub fn observing(mut self) -> Self {
        (self.may_miss, self.is_observer) = (true, true);
        self
    }

    fn report_violation(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.trace.report_violation(invariant, format_args!("{} {}: {what}", self.who, self.name));
    }

    /// Handles the next event. `kill_requested` says whether a kill was requested.
    pub fn take(&mut self, event: &Event, kill_requested: bool) {
        if self.closed {
            return violation!(self, End, "something follows the close: {event:?}");
        }
        match event {
            Event::Output { seq, stream, bytes, offset } => {
                self.follow(*seq, *seq);
                self.take_bytes(*seq, *stream, bytes, *offset);
            }
            Event::Gap { from_seq, to_seq, bytes } => {
                self.follow(*from_seq, *to_seq);
                self.take_gap(*from_seq, *to_seq, *bytes);
            }
            Event::Exited { seq, exit } => {
                self.follow(*seq, *seq);
                self.take_exit(exit, kill_requested);
            }
            Event::Closed { seq, totals } => {
                self.follow(*seq, *seq);
                self.take_close(totals.output_bytes, totals.dropped_bytes);
            }
            Event::Failed(_) => {}
        }
    }

    fn follow(&mut self, from: u64, to: u64) {
        if from != self.position + 1 || to < from {
            violation!(self, Prefix, "{from}..{to} follows {}", self.position);
        }
        self.position = to;
    }

    fn take_bytes(&mut self, seq: u64, stream: wire::Stream, bytes: &[u8], offset: Option<u64>) {
        if (stream == wire::Stream::Pty) != self.plan.tty {
            violation!(self, Wire, "#{seq} is of {stream:?}");
        }
        let index = usize::from(stream == wire::Stream::Stderr);
        if self.is_adrift && !self.find_place(seq, bytes, offset) {
            return;
        }
        let at = self.taken[index];
        if let Some(offset) = offset.filter(|offset| *offset != self.taken.iter().sum::<u64>()) {
            violation!(self, Prefix, "#{seq} at offset {offset}, expected {:?}", self.taken);
        }
        if text(&self.name, index, at, bytes.len()) != bytes {
            violation!(self, Prefix, "#{seq}: {} bytes are not those at {at}", bytes.len());
        }
        self.taken[index] += bytes.len() as u64;
        if self.records.with(&self.name, |record| record.written[index]) < self.taken[index] {
            violation!(self, Prefix, "#{seq} has bytes that were never written");
        }
        if self.exited.is_some() {
            self.trace.count(Branch::OutputAfterExit);
        }
        self.trace.line(format_args!("{} {} #{seq} {stream:?}: {} bytes at {at}", self.who, self.name, bytes.len()));
    }

    /// Finds the position of bytes after a gap without a byte count. Returns false if the bytes have no offset; then it only checks that
    /// they occur in the text.
    fn find_place(&mut self, seq: u64, bytes: &[u8], offset: Option<u64>) -> bool {
        let Some(offset) = offset else {
            let written = self.records.with(&self.name, |record| record.written[0]);
            let len = usize::try_from(written.saturating_sub(self.taken[0])).expect("worlds are small");
            let all = text(&self.name, 0, self.taken[0], len);
            if !all.windows(bytes.len().max(1)).any(|part| part == bytes) {
                violation!(self, Prefix, "#{seq}: {} bytes were never written", bytes.len());
            }
            return false;
        };
        if offset < self.taken[0] {
            violation!(self, Prefix, "#{seq} at offset {offset}, behind {:?}", self.taken);
        }
        (self.taken[0], self.is_adrift) = (offset, false);
        true
    }

    fn take_gap(&mut self, from: u64, to: u64, bytes: Option<u64>) {
        self.trace.count(Branch::Gap);
        self.trace.line(format_args!("{} {} gap {from}..{to}: {bytes:?} bytes", self.who, self.name));
        // Output that was freed before a late reader attached is a gap for it, with or without a hold.
        let is_late = self.position == to && from == 1 && self.is_late;
        // Output may be freed once the followers have received it. That is a gap for the owner, or for a follower that attached after
        // others.
        let is_freed = self.records.with(&self.name, |record| record.followers > u32::from(self.is_late));
        if !self.may_miss && !is_late && !is_freed {
            return violation!(self, Gap, "a gap {from}..{to} in a log that must not drop");
        }
        let Some(bytes) = bytes else {
            // The server has forgotten this output, so its bytes cannot be counted for a reader that attached later.
            if (self.is_observer || self.is_reattached) && self.plan.is_single() {
                (self.is_adrift, self.has_uncounted) = (true, true);
                return;
            }
            return violation!(self, Gap, "a gap {from}..{to} whose bytes were not counted");
        };
        self.trace.count(if self.plan.drops { Branch::DropOldestGap } else { Branch::ObserverGap });
        self.taken[0] += bytes;
        self.gaps += bytes;
    }

    fn take_exit(&mut self, exit: &exec_server_client::Exit, kill_requested: bool) {
        let (real, lost) = self.records.with(&self.name, |record| (record.exit, record.lost));
        if self.exited.replace(exit.code).is_some() {
            violation!(self, End, "a second exit");
        }
        if real != Some(exit.code) && !(lost && exit.code == -1) {
            violation!(self, End, "exit {}, really {real:?}", exit.code);
        }
        let cause = exit.cause.map(|cause| serde_json::to_value(cause).expect("a word"));
        let cause = cause.as_ref().and_then(|cause| cause.as_str());
        if cause.is_some_and(|cause| !self.plan.allows(cause, exit.code, kill_requested, lost)) {
            violation!(self, End, "exit {} because of {cause:?}", exit.code);
        }
        match cause {
            Some("timeout") => self.trace.count(Branch::Timeout),
            Some("idleTimeout") => self.trace.count(Branch::IdleTimeout),
            _ => {}
        }
        self.trace.line(format_args!("{} {} exited {} ({cause:?})", self.who, self.name, exit.code));
    }

    fn take_close(&mut self, output_bytes: Option<u64>, dropped_bytes: Option<u64>) {
        self.closed = true;
        self.trace.line(format_args!("{} {} closed", self.who, self.name));
        let record = self.records.get(&self.name);
        let written: u64 = record.written.iter().sum();
        if self.exited.is_none() && !self.has_uncounted {
            violation!(self, End, "closed without an exit");
        }
        let is_within = self.taken.iter().zip(&record.written).all(|(taken, written)| taken <= written);
        if !is_within || self.taken != record.written && !record.lost && !self.is_adrift {
            violation!(self, End, "closed with {:?} taken of {:?}", self.taken, record.written);
        }
        if output_bytes.is_some_and(|reported| reported > written || reported < written && !record.lost) {
            violation!(self, End, "closed says {output_bytes:?} bytes, really {written}");
        }
        // A late reader's gaps are not all dropped output: other readers had received some of it.
        if self.plan.drops
            && !self.is_observer
            && !self.is_late
            && dropped_bytes.is_some_and(|reported| reported < self.gaps)
        {
            violation!(self, Gap, "closed says {dropped_bytes:?} dropped, gaps said {}", self.gaps);
        }
    }

    /// A description of the position. Used if a world ends before the close.
    pub fn summary(&self) -> String {
        let record = self.records.get(&self.name);
        format!(
            "at {} with {:?} of {:?}, exit heard {:?} really {:?}",
            self.position, self.taken, record.written, self.exited, record.exit
        )
    }
}
