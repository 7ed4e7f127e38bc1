//! Makes work on other threads repeatable: a job continues only while everything else in the world is idle.
//!
//! The server does disk I/O on the runtime's blocking threads; a world has one such thread. A job waits here until the world's own thread
//! is about to park. Tokio does not advance the simulated time while a blocking job runs. So the result of a job, and when the world
//! receives it, do not depend on the speed of the machine.

use parking_lot::Condvar;
use tokio::sync::Notify;

use crate::prelude::*;

/// How often the world's thread must park before the world counts as idle. More than the longest chain of messages between server and
/// holder within one instant.
const IDLE_PARKS: usize = 32;

/// The gate of one world.
#[derive(Clone, Debug, Default)]
pub struct IdleGate(Arc<GateShared>);

#[derive(Debug, Default)]
struct GateShared {
    state: Mutex<GateState>,
    changed: Condvar,
    wakeup: Notify,
}

#[derive(Debug, Default)]
struct GateState {
    /// The world's thread has parked since this flag was last cleared.
    is_parked: bool,
    /// The world has ended, so jobs no longer wait.
    is_over: bool,
}

impl IdleGate {
    /// The world's thread is about to park: nothing can run.
    pub fn mark_parked(&self) {
        self.0.state.lock().is_parked = true;
        self.0.changed.notify_one();
    }

    /// The world has ended. Jobs that are still waiting continue.
    pub fn open(&self) {
        self.0.state.lock().is_over = true;
        self.0.changed.notify_all();
    }

    /// Waits until the world's thread has parked often enough to be idle. After the first park the world may not have seen yet the result
    /// of the previous job or the data in its sockets, and that data may cause further work.
    pub fn wait_until_idle(&self) {
        for _ in 0..IDLE_PARKS {
            let mut state = self.0.state.lock();
            state.is_parked = false;
            // If the thread is already parked, wake it, so that it parks again.
            self.0.wakeup.notify_one();
            while !state.is_parked && !state.is_over {
                self.0.changed.wait(&mut state);
            }
        }
    }

    /// Wakes the world's thread without any effect whenever a job requests it. Runs as long as the world.
    pub async fn run_wakeups(self) {
        loop {
            self.0.wakeup.notified().await;
        }
    }
}
