//! Makes work on other threads repeatable: a job goes on only while everything else in the world stands still.
//!
//! The server reads disks on the runtime's blocking threads, of which a world has one. A job waits here until the world's own thread is
//! about to sleep; tokio lets no simulated time pass while a job is under way. So what a job finds, and when it is heard of, does not
//! depend on how fast the machine is. Knows nothing of what the jobs do.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Times that the world's thread falls asleep before nothing is left that could wake it: more than any chain of messages between
/// server and holder within one instant.
const SOUND: usize = 32;

/// The gate of one world.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    nudge: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The world's thread has fallen asleep since this was last taken back.
    is_asleep: bool,
    /// The world is over: nobody waits any more.
    is_over: bool,
}

impl Gate {
    /// The world's thread is about to sleep: nothing can run.
    pub fn fall_asleep(&self) {
        self.lock().is_asleep = true;
        self.0.changed.notify_one();
    }

    /// The world is over; whatever is still under way goes on.
    pub fn open(&self) {
        self.lock().is_over = true;
        self.0.changed.notify_all();
    }

    /// Waits until the world has fallen asleep often enough that it sleeps soundly: at first it may not have heard yet of what the job
    /// before has done, or of what waits in its sockets, and of what that brings in turn.
    pub fn pass(&self) {
        for _ in 0..SOUND {
            let mut state = self.lock();
            state.is_asleep = false;
            // One that sleeps already is woken for nothing, so that it falls asleep again.
            self.0.nudge.notify_one();
            while !state.is_asleep && !state.is_over {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Wakes the world's thread for nothing, whenever a job asks for it. Runs as long as the world.
    pub async fn keep_nudging(self) {
        loop {
            self.0.nudge.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
