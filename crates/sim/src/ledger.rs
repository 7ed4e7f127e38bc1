//! What one cursor of the real client was told of a process, held against what the child really did.
//!
//! Strict, unlike the picture of the model client: a cursor promises every event once and in order through any fault. Knows no link and
//! no session; whether an error is true is for the [`fate`](crate::fate) to say.

use exec_server_client::{Event, protocol::process as wire};

use crate::{
    branch::Branch,
    child::{Records, text},
    trace::{Invariant, Trace},
    view::Plan,
};

/// Where a cursor stands. A clone goes on from the same place, as a cursor behind the same number does.
#[derive(Clone)]
pub struct Ledger {
    name: String,
    /// Who reads, for the trace.
    who: String,
    plan: Plan,
    /// Gaps may be told: its log drops, or nobody waits for this reader.
    pub may_miss: bool,
    is_observer: bool,
    /// It came when others had read already.
    is_late: bool,
    /// Its process was taken up by a later program, which reads: a read counts only from the beginning.
    pub is_taken_up: bool,
    /// A gap was not counted: where in the text the next bytes belong is known again when they tell their offset.
    is_adrift: bool,
    /// There was such a gap. The exit may have been in it.
    has_uncounted: bool,
    /// The last number told.
    pub position: u64,
    taken: [u64; 2],
    gaps: u64,
    /// The code it ended with.
    pub exited: Option<i32>,
    /// Nothing more comes.
    pub closed: bool,
    trace: Trace,
    records: Records,
}

impl Ledger {
    /// A cursor at the beginning.
    pub fn new(who: String, name: String, plan: Plan, trace: Trace, records: Records) -> Self {
        let may_miss = plan.drops;
        Self {
            name,
            who,
            plan,
            may_miss,
            is_observer: false,
            is_late: false,
            is_taken_up: false,
            is_adrift: false,
            has_uncounted: false,
            position: 0,
            taken: [0; 2],
            gaps: 0,
            exited: None,
            closed: false,
            trace,
            records,
        }
    }

    /// A reader for which nobody waits.
    pub fn observing(mut self) -> Self {
        (self.may_miss, self.is_observer) = (true, true);
        self
    }

    /// A reader that comes after others.
    pub fn late(mut self) -> Self {
        self.is_late = true;
        self
    }

    /// The same place in another reader's hands.
    pub fn named(mut self, who: String) -> Self {
        self.who = who;
        self
    }

    fn wrong(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.trace.fail(invariant, format_args!("{} {}: {what}", self.who, self.name));
    }

    /// The next event; `asked_to_die` says whether an end by force was wanted.
    pub fn take(&mut self, event: &Event, asked_to_die: bool) {
        if self.closed {
            return self.wrong(Invariant::End, format_args!("something follows the close: {event:?}"));
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
                self.take_exit(exit, asked_to_die);
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
            self.wrong(Invariant::Prefix, format_args!("{from}..{to} follows {}", self.position));
        }
        self.position = to;
    }

    fn take_bytes(&mut self, seq: u64, stream: wire::Stream, bytes: &[u8], offset: Option<u64>) {
        if (stream == wire::Stream::Pty) != self.plan.tty {
            self.wrong(Invariant::Wire, format_args!("#{seq} is of {stream:?}"));
        }
        let index = usize::from(stream == wire::Stream::Stderr);
        if self.is_adrift && !self.find_place(seq, bytes, offset) {
            return;
        }
        let at = self.taken[index];
        if let Some(offset) = offset.filter(|offset| *offset != self.taken.iter().sum::<u64>()) {
            self.wrong(Invariant::Prefix, format_args!("#{seq} at offset {offset}, expected {:?}", self.taken));
        }
        if text(&self.name, index, at, bytes.len()) != bytes {
            self.wrong(Invariant::Prefix, format_args!("#{seq}: {} bytes are not those at {at}", bytes.len()));
        }
        self.taken[index] += bytes.len() as u64;
        if self.records.with(&self.name, |record| record.written[index]) < self.taken[index] {
            self.wrong(Invariant::Prefix, format_args!("#{seq} has bytes that were never written"));
        }
        if self.exited.is_some() {
            self.trace.count(Branch::OutputAfterExit);
        }
        self.trace.line(format_args!("{} {} #{seq} {stream:?}: {} bytes at {at}", self.who, self.name, bytes.len()));
    }

    /// Finds out where bytes after an uncounted gap belong. False where they do not tell: then they must be of the text at least.
    fn find_place(&mut self, seq: u64, bytes: &[u8], offset: Option<u64>) -> bool {
        let Some(offset) = offset else {
            let written = self.records.with(&self.name, |record| record.written[0]);
            let len = usize::try_from(written.saturating_sub(self.taken[0])).expect("worlds are small");
            let all = text(&self.name, 0, self.taken[0], len);
            if !all.windows(bytes.len().max(1)).any(|part| part == bytes) {
                self.wrong(Invariant::Prefix, format_args!("#{seq}: {} bytes were never written", bytes.len()));
            }
            return false;
        };
        if offset < self.taken[0] {
            self.wrong(Invariant::Prefix, format_args!("#{seq} at offset {offset}, behind {:?}", self.taken));
        }
        (self.taken[0], self.is_adrift) = (offset, false);
        true
    }

    fn take_gap(&mut self, from: u64, to: u64, bytes: Option<u64>) {
        self.trace.count(Branch::Gap);
        self.trace.line(format_args!("{} {} gap {from}..{to}: {bytes:?} bytes", self.who, self.name));
        // What was let go before it came is gone for a late reader, held or not.
        let is_late = self.position == to && from == 1 && self.is_late;
        // Freed for readers that follow: for its owner, and for one of them that came when others had it already.
        let is_freed = self.records.with(&self.name, |record| record.followers > u32::from(self.is_late));
        if !self.may_miss && !is_late && !is_freed {
            return self.wrong(Invariant::Gap, format_args!("a gap {from}..{to} in a log that must not drop"));
        }
        let Some(bytes) = bytes else {
            // What the server has forgotten, nobody can count for a reader that comes late.
            if (self.is_observer || self.is_taken_up) && self.plan.is_single() {
                (self.is_adrift, self.has_uncounted) = (true, true);
                return;
            }
            return self.wrong(Invariant::Gap, format_args!("a gap {from}..{to} whose bytes were not counted"));
        };
        self.trace.count(if self.plan.drops { Branch::DropOldestGap } else { Branch::ObserverGap });
        self.taken[0] += bytes;
        self.gaps += bytes;
    }

    fn take_exit(&mut self, exit: &exec_server_client::Exit, asked_to_die: bool) {
        let (real, lost) = self.records.with(&self.name, |record| (record.exit, record.lost));
        if self.exited.replace(exit.code).is_some() {
            self.wrong(Invariant::End, format_args!("a second exit"));
        }
        if real != Some(exit.code) && !(lost && exit.code == -1) {
            self.wrong(Invariant::End, format_args!("exit {}, really {real:?}", exit.code));
        }
        let cause = exit.cause.map(|cause| serde_json::to_value(cause).expect("a word"));
        let cause = cause.as_ref().and_then(|cause| cause.as_str());
        if cause.is_some_and(|cause| !self.plan.allows(cause, exit.code, asked_to_die, lost)) {
            self.wrong(Invariant::End, format_args!("exit {} because of {cause:?}", exit.code));
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
            self.wrong(Invariant::End, format_args!("closed without an exit"));
        }
        let is_within = self.taken.iter().zip(&record.written).all(|(taken, written)| taken <= written);
        if !is_within || self.taken != record.written && !record.lost && !self.is_adrift {
            self.wrong(Invariant::End, format_args!("closed with {:?} taken of {:?}", self.taken, record.written));
        }
        if output_bytes.is_some_and(|told| told > written || told < written && !record.lost) {
            self.wrong(Invariant::End, format_args!("closed says {output_bytes:?} bytes, really {written}"));
        }
        // What a late reader misses was not all dropped: some of it was taken by others.
        if self.plan.drops && !self.is_observer && !self.is_late && dropped_bytes.is_some_and(|told| told < self.gaps) {
            self.wrong(Invariant::Gap, format_args!("closed says {dropped_bytes:?} dropped, gaps said {}", self.gaps));
        }
    }

    /// How far it came, for a world that ends without its close.
    pub fn standing(&self) -> String {
        let record = self.records.get(&self.name);
        format!(
            "at {} with {:?} of {:?}, exit heard {:?} really {:?}",
            self.position, self.taken, record.written, self.exited, record.exit
        )
    }
}
