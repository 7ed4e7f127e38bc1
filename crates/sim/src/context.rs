//! The parts that everything in a world shares: the clock, the records, and the tasks.
//!
//! Owns the local tasks (scripts and holders), which end with it. Everything runs on one thread with paused time, so only the runtime's
//! queue decides the order.

use tokio::task::JoinSet;

use crate::{child::ChildRecords, prelude::*};

/// Tasks that are aborted together, like those of a killed program.
#[derive(Clone, Default)]
pub struct Tasks(Rc<RefCell<JoinSet<()>>>);

impl Tasks {
    /// Spawns a task. Must be called inside a `LocalSet`.
    pub fn spawn(&self, trace: &Trace, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.0.borrow_mut();
        while let Some(ended) = tasks.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                violation!(trace, Health, "a task panicked: {error}");
            }
        }
        tasks.spawn_local(task);
    }

    /// Aborts all tasks.
    pub fn end(&self) {
        self.0.borrow_mut().abort_all();
    }
}

/// A handle to the shared parts of one world. Clones refer to the same parts.
#[derive(Clone)]
pub struct WorldContext {
    pub trace: Trace,
    /// The real behaviour of the children.
    pub records: ChildRecords,
    started: Instant,
    tasks: Tasks,
}

impl WorldContext {
    /// Monotonic nanoseconds of the simulated clock. It starts at one second, because code often treats zero as a special value.
    pub fn now_ns(&self) -> u64 {
        1_000_000_000 + u64::try_from(self.started.elapsed().as_nanos()).expect("worlds are short")
    }

    /// The instant at which `now_ns` returns `ns`.
    pub fn instant(&self, ns: u64) -> Instant {
        self.started + Duration::from_nanos(ns.saturating_sub(1_000_000_000))
    }

    /// Waits `ms` milliseconds. Zero only yields to the other tasks.
    pub async fn pause(&self, ms: u64) {
        if ms == 0 {
            tokio::task::yield_now().await;
        } else {
            sleep(Duration::from_millis(ms)).await;
        }
    }

    /// Spawns a task that ends with the context. Must be called inside a `LocalSet`.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn(&self.trace, task);
    }
}

impl Default for WorldContext {
    /// An empty context whose clock starts now.
    fn default() -> Self {
        let (trace, started) = (Trace::default(), Instant::now());
        Self { trace, records: ChildRecords::default(), started, tasks: Tasks::default() }
    }
}
