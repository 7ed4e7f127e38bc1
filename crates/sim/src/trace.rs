//! What happened in a world, line by line with its virtual time; how often each rare branch was taken; and the first thing that was wrong.
//!
//! Knows nothing of what it records. The trace is kept in memory and written to a file only for a world that failed.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::{self, Write as _},
    rc::Rc,
};

use tokio::time::Instant;

/// A rare branch that the suite of seeds must reach, by the name under which it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Branch {
    /// A session was resumed.
    Resume,
    /// A resume took the session from a connection that was still open.
    Takeover,
    /// A resume without takeover was granted because the old peer was silent.
    HandedOver,
    /// A resume was refused because the old peer lives.
    Refused,
    /// A second connection raced for the same session.
    Race,
    /// A superseded connection went on speaking.
    StaleSpoke,
    /// A gap was reported.
    Gap,
    /// A child blocked on the cap of its log.
    Blocked,
    /// A server ended without a word and another adopted its sessions.
    Adoption,
    /// A process was alive when its events were replayed.
    ReplayWhileLive,
    /// A chunk came twice, after a resume.
    Duplicate,
    /// An unanswered write was sent again.
    WriteRetry,
    /// A start was sent again and turned out to have happened.
    StartRetry,
    /// A link was cut inside a frame.
    CutInside,
    /// A link was cut between frames.
    CutBetween,
    /// A link became half-open.
    HalfOpen,
    /// One direction of a link stalled for a while.
    Stall,
    /// A grace period ran out on a child that ignores SIGTERM.
    GraceOver,
    /// Output came after the exit.
    OutputAfterExit,
    /// A session's time ran out.
    Expired,
    /// A process was read back from disk segments.
    Spill,
}

impl Branch {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::Resume,
        Self::Takeover,
        Self::HandedOver,
        Self::Refused,
        Self::Race,
        Self::StaleSpoke,
        Self::Gap,
        Self::Blocked,
        Self::Adoption,
        Self::ReplayWhileLive,
        Self::Duplicate,
        Self::WriteRetry,
        Self::StartRetry,
        Self::CutInside,
        Self::CutBetween,
        Self::HalfOpen,
        Self::Stall,
        Self::GraceOver,
        Self::OutputAfterExit,
        Self::Expired,
        Self::Spill,
    ];
}

/// How often each branch was taken.
pub type Counters = BTreeMap<Branch, u64>;

/// A handle on the record of one world.
#[derive(Clone)]
pub struct Trace(Rc<RefCell<State>>);

struct State {
    started: Instant,
    text: String,
    failure: Option<String>,
    counters: Counters,
}

impl Trace {
    /// An empty record that begins now.
    pub fn new() -> Self {
        Self(Rc::new(RefCell::new(State {
            started: Instant::now(),
            text: String::new(),
            failure: None,
            counters: Counters::new(),
        })))
    }

    /// Records one event.
    pub fn line(&self, event: fmt::Arguments<'_>) {
        let mut state = self.0.borrow_mut();
        let ms = state.started.elapsed().as_millis();
        writeln!(state.text, "{:>6}.{:03} {event}", ms / 1000, ms % 1000).expect("a string takes all");
    }

    /// Records that something is wrong. The first one is the world's verdict.
    pub fn fail(&self, what: fmt::Arguments<'_>) {
        self.line(format_args!("WRONG: {what}"));
        self.0.borrow_mut().failure.get_or_insert_with(|| what.to_string());
    }

    /// Counts a rare branch.
    pub fn count(&self, branch: Branch) {
        *self.0.borrow_mut().counters.entry(branch).or_default() += 1;
    }

    /// The verdict so far.
    pub fn has_failed(&self) -> bool {
        self.0.borrow().failure.is_some()
    }

    /// Everything that was recorded: text, verdict, counters.
    pub fn take(&self) -> (String, Option<String>, Counters) {
        let mut state = self.0.borrow_mut();
        (std::mem::take(&mut state.text), state.failure.take(), std::mem::take(&mut state.counters))
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}
