//! Makes work on other threads repeatable: a job continues only while everything else in the world is idle.
//!
//! The server does disk I/O on the runtime's blocking threads; a world has one such thread. A job waits here until the world's own thread
//! is about to park. Tokio does not advance the simulated time while a blocking job runs. So the result of a job, and when the world
//! receives it, do not depend on the speed of the machine.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// How often the world's thread must park before the world counts as idle. More than the longest chain of messages between server and
/// holder within one instant.
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
    /// The world's thread has parked since this flag was last cleared.
    is_asleep: bool,
    /// The world has ended, so jobs no longer wait.
    is_over: bool,
}

impl Gate {
    /// The world's thread is about to park: nothing can run.
    pub fn fall_asleep(&self) {
        self.lock().is_asleep = true;
        self.0.changed.notify_one();
    }

    /// The world has ended. Jobs that are still waiting continue.
    pub fn open(&self) {
        self.lock().is_over = true;
        self.0.changed.notify_all();
    }

    /// Waits until the world's thread has parked often enough to be idle. After the first park the world may not have seen yet the result
    /// of the previous job or the data in its sockets, and that data may cause further work.
    pub fn pass(&self) {
        for _ in 0..SOUND {
            let mut state = self.lock();
            state.is_asleep = false;
            // If the thread is already parked, wake it, so that it parks again.
            self.0.nudge.notify_one();
            while !state.is_asleep && !state.is_over {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Wakes the world's thread without any effect whenever a job requests it. Runs as long as the world.
    pub async fn keep_nudging(self) {
        loop {
            self.0.nudge.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
