//! Records a world: a trace with one line per event and its virtual time, the methods sent, how often each rare branch was taken, and the
//! first violation with the name of its invariant.
//!
//! The trace is kept in memory. The caller that runs the world decides whether to store it.

use std::fmt::{self, Write as _};

use crate::prelude::*;

/// The invariants of every step of every world. A failure names the violated invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// Delivered bytes are a prefix of the written bytes, each once and in order.
    Prefix,
    /// Missing output is reported as a gap, exact to the byte, and only where it may be missing.
    Gap,
    /// A write reaches stdin at most once, and exactly once if it was accepted; in order.
    Stdin,
    /// There is one exit with the correct code and cause, and one close, which is last and has the correct totals.
    End,
    /// A log retains no more than its limit.
    Retained,
    /// After a session has expired, no child and no entry is left. No session expires early.
    Expiry,
    /// Every call ends with an answer or a typed error that fits.
    Answered,
    /// A connection that has lost its session has no effect.
    Superseded,
    /// A client that gives up reports the correct reason.
    Lost,
    /// A start is executed once, and a process is killed only on request.
    Start,
    /// A file is read as it was written: complete, and never older than the last answered write.
    Files,
    /// Messages have the shape that the protocol defines.
    Wire,
    /// Nothing panics, spins or is left over.
    Health,
}

impl Invariant {
    /// The name printed on failure.
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

/// Reports that an invariant is violated. The reporter adds its name to the text.
macro_rules! violation {
    ($reporter:expr, $invariant:ident, $($text:tt)+) => {
        $reporter.report_violation($crate::trace::Invariant::$invariant, format_args!($($text)+))
    };
}
pub(crate) use violation;

/// How often each branch was taken.
pub type Counters = BTreeMap<Branch, u64>;

/// How often each method and notification was sent, by its name on the wire.
pub type Sent = BTreeMap<String, u64>;

/// The recording of a world.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The trace, one line per event.
    pub text: String,
    /// The first violation.
    pub failure: Option<String>,
    pub counters: Counters,
    pub sent: Sent,
}

/// A handle to the recording of one world.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<TraceState>>);

struct TraceState {
    started: Instant,
    recording: Recording,
}

impl Trace {
    /// Adds a line to the trace.
    pub fn line(&self, event: fmt::Arguments<'_>) {
        let mut state = self.0.lock();
        let ms = state.started.elapsed().as_millis();
        writeln!(state.recording.text, "{:>6}.{:03} {event}", ms / 1000, ms % 1000).expect("a string takes all");
    }

    /// Records a violation. The first one is the result of the world.
    pub fn report_violation(&self, invariant: Invariant, what: fmt::Arguments<'_>) {
        self.line(format_args!("WRONG [{}]: {what}", invariant.name()));
        self.0.lock().recording.failure.get_or_insert_with(|| format!("[{}] {what}", invariant.name()));
    }

    /// Counts a rare branch.
    pub fn count(&self, branch: Branch) {
        *self.0.lock().recording.counters.entry(branch).or_default() += 1;
    }

    /// Counts a method or notification that was sent.
    pub fn sent(&self, method: &str) {
        *self.0.lock().recording.sent.entry(method.to_owned()).or_default() += 1;
    }

    /// Whether there was a violation so far.
    pub fn has_failed(&self) -> bool {
        self.0.lock().recording.failure.is_some()
    }

    /// Takes the recording out.
    pub fn take(&self) -> Recording {
        std::mem::take(&mut self.0.lock().recording)
    }
}

impl Default for Trace {
    /// An empty recording that starts now.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(TraceState { started: Instant::now(), recording: Recording::default() })))
    }
}
