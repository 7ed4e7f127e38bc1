//! What every part of a world stands on: its clock, its records, its tasks.
//!
//! Owns the local tasks (scripts and holders), which end with it. Everything runs on one thread with paused time, so that the only
//! source of order is the runtime's queue.

use std::{cell::RefCell, rc::Rc, time::Duration};

use tokio::{task::JoinSet, time::Instant};

use crate::{
    child::Records,
    trace::{Invariant, Trace},
};

/// Tasks that end together, as those of a program that is killed.
#[derive(Clone, Default)]
pub struct Tasks(Rc<RefCell<JoinSet<()>>>);

impl Tasks {
    /// Adds one. It must run inside a `LocalSet`.
    pub fn spawn(&self, trace: &Trace, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.0.borrow_mut();
        while let Some(ended) = tasks.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                trace.fail(Invariant::Health, format_args!("a task panicked: {error}"));
            }
        }
        tasks.spawn_local(task);
    }

    /// Ends them all.
    pub fn end(&self) {
        self.0.borrow_mut().abort_all();
    }
}

/// A handle on the ground of one world. Clones stand on the same ground.
#[derive(Clone)]
pub struct Stage {
    /// What happened.
    pub trace: Trace,
    /// What children really did.
    pub records: Records,
    shared: Rc<Shared>,
}

struct Shared {
    started: Instant,
    tasks: Tasks,
}

impl Stage {
    /// An empty stage whose clock begins now.
    pub fn new() -> Self {
        let shared = Shared { started: Instant::now(), tasks: Tasks::default() };
        Self { trace: Trace::new(), records: Records::default(), shared: Rc::new(shared) }
    }

    /// Monotonic nanoseconds of the simulated clock. It begins at one second, as zero is a value that code likes to treat apart.
    pub fn now_ns(&self) -> u64 {
        1_000_000_000 + u64::try_from(self.shared.started.elapsed().as_nanos()).expect("worlds are short")
    }

    /// The instant of the simulated clock at which `now_ns` will say this.
    pub fn instant(&self, ns: u64) -> Instant {
        self.shared.started + Duration::from_nanos(ns.saturating_sub(1_000_000_000))
    }

    /// Waits so many milliseconds. Zero lets everybody else have a turn.
    pub async fn pause(&self, ms: u64) {
        if ms == 0 {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    /// Gives a task to the stage. It must run inside a `LocalSet`.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.shared.tasks.spawn(&self.trace, task);
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}
