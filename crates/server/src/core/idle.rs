//! When a server has nothing left to do: no connection, and no process that runs. For one that somebody started in passing,
//! and that should not stay for ever.
//!
//! ```text
//! busy ──last connection gone, last process ended──▶ idle ──long enough──▶ retired: draining, nobody is let in any more
//!   ▲                                                 │
//!   └──────────────── a visit, a connection ──────────┘
//! ```
//!
//! The decision and the admission of a visit are made under one lock: whoever was let in is never sent away by it.
//! Ended processes that nobody has read yet do not keep a server: their holders keep them for the next one.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{self, Instant};

use super::Core;
use crate::process::lock;

/// How often a server that may retire looks around.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Somebody is inside: the server does not retire before this is dropped.
pub struct Visit(Arc<Core>);

impl Drop for Visit {
    fn drop(&mut self) {
        *lock(&self.0.visits) -= 1;
    }
}

impl Core {
    /// Lets somebody in who has not said anything yet; `None` when the server is about to end.
    pub fn enter(self: &Arc<Self>) -> Option<Visit> {
        let mut visits = lock(&self.visits);
        if self.is_draining() {
            return None;
        }
        *visits += 1;
        Some(Visit(Arc::clone(self)))
    }

    /// Returns when the server has had nothing to do for `long`; from then on it is draining.
    pub async fn retire_after(&self, long: Duration) {
        let mut tick = time::interval(LOOK_EVERY.min(long));
        let (mut since, mut seen) = (Instant::now(), self.connections_so_far());
        loop {
            let now = tick.tick().await;
            let connections = self.connections_so_far();
            // A connection that came and went between two looks was work, too.
            if !self.is_idle() || connections != seen {
                (since, seen) = (now, connections);
            }
            if now.duration_since(since) >= long && self.retire() {
                return;
            }
        }
    }

    fn retire(&self) -> bool {
        let visits = lock(&self.visits);
        let is_over = *visits == 0 && self.is_idle();
        if is_over {
            self.draining.store(true, Ordering::Release);
        }
        is_over
    }

    fn is_idle(&self) -> bool {
        // A holder that does not answer may have processes that run.
        lock(&self.peers).is_empty()
            && self.pending.is_empty()
            && lock(&self.sessions).values().all(|session| session.is_idle())
    }

    fn connections_so_far(&self) -> u64 {
        self.next_peer.load(Ordering::Relaxed)
    }
}
