//! What happened in a world, line by line with its virtual time; what was sent; how often each rare branch was taken; and the first thing
//! that was wrong, by the name of the promise it breaks.
//!
//! Knows nothing of what it records. The trace is kept in memory; whoever runs the world decides what becomes of it.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use crate::branch::Branch;

/// What must hold after every step of every world. A failure names the one that did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// Delivered bytes are a prefix of written bytes, each once and in order.
    Prefix,
    /// What is missing is told as a gap, counted to the byte, and only where it may be missing.
    Gap,
    /// A write reaches stdin at most once, and if it was accepted exactly once; in order.
    Stdin,
    /// One exit with the true code and cause, one close, and the close last with the true totals.
    End,
    /// What a log holds stays below its limit.
    Retained,
    /// After a lease has run out no child and no entry is left; and none runs out early.
    Expiry,
    /// Every call ends in an answer or a typed error that fits.
    Answered,
    /// A connection that has lost its session changes nothing.
    Superseded,
    /// A client that gives up says why, and it is true.
    Lost,
    /// A start happens once, and only what was asked to die is killed.
    Start,
    /// A file is read as it was written, whole, and never older than what was answered.
    Files,
    /// Messages have the shape that the wire promises.
    Wire,
    /// Nothing panics, spins or is left behind.
    Health,
}

impl Invariant {
    /// Its name, as printed on failure.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefix => "delivered-bytes-are-a-prefix",
            Self::Gap => "gaps-are-told-to-the-byte",
            Self::Stdin => "stdin-exactly-once",
            Self::End => "one-exit-one-close-close-last",
            Self::Retained => "retained-within-limit",
            Self::Expiry => "expiry-leaves-nothing",
            Self::Answered => "every-call-is-answered",
            Self::Superseded => "superseded-changes-nothing",
            Self::Lost => "lost-with-a-true-reason",
            Self::Start => "started-once-killed-on-request",
            Self::Files => "files-are-whole-and-never-older",
            Self::Wire => "messages-keep-their-shape",
            Self::Health => "nothing-panics-spins-or-is-left",
        }
    }
}

/// How often each branch was taken.
pub type Counters = BTreeMap<Branch, u64>;

/// How often each method and notification was sent, by its name on the wire.
pub type Sent = BTreeMap<String, u64>;

/// What a world leaves behind.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Line by line.
    pub text: String,
    /// The first thing that was wrong.
    pub failure: Option<String>,
    /// The rare branches.
    pub counters: Counters,
    /// The moves.
    pub sent: Sent,
}

/// A handle on the record of one world.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<State>>);

struct State {
    started: Instant,
    record: Record,
}

impl Trace {
    /// An empty record that begins now.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State { started: Instant::now(), record: Record::default() })))
    }

    /// Records one event.
    pub fn line(&self, event: fmt::Arguments<'_>) {
        let mut state = self.lock();
        let ms = state.started.elapsed().as_millis();
        writeln!(state.record.text, "{:>6}.{:03} {event}", ms / 1000, ms % 1000).expect("a string takes all");
    }

    /// Records that something is wrong. The first one is the world's verdict.
    pub fn fail(&self, invariant: Invariant, what: fmt::Arguments<'_>) {
        self.line(format_args!("WRONG [{}]: {what}", invariant.name()));
        self.lock().record.failure.get_or_insert_with(|| format!("[{}] {what}", invariant.name()));
    }

    /// Counts a rare branch.
    pub fn count(&self, branch: Branch) {
        *self.lock().record.counters.entry(branch).or_default() += 1;
    }

    /// Counts a method or notification that was sent.
    pub fn sent(&self, method: &str) {
        let mut state = self.lock();
        match state.record.sent.get_mut(method) {
            Some(times) => *times += 1,
            None => drop(state.record.sent.insert(method.to_owned(), 1)),
        }
    }

    /// The verdict so far.
    pub fn has_failed(&self) -> bool {
        self.lock().record.failure.is_some()
    }

    /// Everything that was recorded.
    pub fn take(&self) -> Record {
        std::mem::take(&mut self.lock().record)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}
