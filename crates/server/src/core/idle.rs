//! Shuts down a server that has been idle: it has no connection, no visit, no running process, and no session to adopt.
//! For servers that a command starts on demand and that should not run forever.
//!
//! ```text
//! busy ──last connection gone, last process ended──▶ idle ──long enough──▶ retired: draining, no visit is admitted
//!   ▲                                                 │
//!   └──────────────── a visit, a connection ──────────┘
//! ```
//!
//! One lock covers both the decision to retire and the admission of a visit, so a server never retires while an
//! admitted peer is connecting. Ended processes with unread output do not keep the server running: their holders keep
//! them for the next server.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{self, Instant};

use super::Core;

/// How often the server checks whether it is idle.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// An admitted peer. The server does not retire while one exists.
pub struct Visit(Arc<Core>);

impl Drop for Visit {
    fn drop(&mut self) {
        *self.0.visits.lock() -= 1;
    }
}

impl Core {
    /// Admits a peer that has not sent anything yet; `None` if the server is shutting down.
    pub fn enter(self: &Arc<Self>) -> Option<Visit> {
        let mut visits = self.visits.lock();
        if self.is_draining() {
            return None;
        }
        *visits += 1;
        Some(Visit(Arc::clone(self)))
    }

    /// Returns when the server has been idle for `long`. From then on it is draining.
    pub async fn retire_after(&self, long: Duration) {
        // A shorter `long` needs a shorter interval.
        let mut tick = time::interval(CHECK_EVERY.min(long));
        let mut idle_since = Instant::now();
        let mut seen = self.connections_so_far();
        loop {
            let now = tick.tick().await;
            let connections = self.connections_so_far();
            // A connection that opened and closed between two checks counts as activity.
            if !self.is_idle() || connections != seen {
                idle_since = now;
                seen = connections;
            }
            if now.duration_since(idle_since) >= long && self.retire() {
                return;
            }
        }
    }

    /// Starts draining if the server is idle now. Returns whether it is.
    fn retire(&self) -> bool {
        let visits = self.visits.lock();
        let is_retired = *visits == 0 && self.is_idle();
        if is_retired {
            self.draining.store(true, Ordering::Release);
        }
        is_retired
    }

    fn is_idle(&self) -> bool {
        // A pending session counts as busy: its holder does not answer, but may have running processes.
        self.peers.by_id.lock().is_empty()
            && self.pending.is_empty()
            && self.sessions.lock().values().all(|session| session.is_idle())
    }

    fn connections_so_far(&self) -> u64 {
        self.peers.last_id.load(Ordering::Relaxed)
    }
}
