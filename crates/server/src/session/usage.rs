//! The clock of a detached session and those who use it from other sessions.
//!
//! A request that names the session starts its clock anew; a subscription or a waiting read makes it stand still. The clock itself is the
//! holder's, while there is one, and that of `State::detached_since` otherwise. Must not know what is asked of the session.

use std::{sync::Arc, time::Duration};

use exec_server_holder::wire::{FOLLOWERS, ToHolder};
use tokio::time::Instant;

use super::{Session, table::State};
use crate::process::lock;

/// Requests in so short a time are one use: most that the clock is behind for it.
const ONE_USE: Duration = Duration::from_secs(1);

/// Somebody uses the session; its clock starts anew when the last of them is dropped.
pub(crate) struct InUse(Arc<Session>);

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.users -= 1;
        if state.users == 0 {
            state.restart_clock(Instant::now());
        }
    }
}

impl Session {
    /// How long it lives without use; `None` = without a limit.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        lock(&self.state).ttl
    }

    /// Another session used it just now.
    pub(crate) fn touch(&self, now: Instant) {
        let mut state = lock(&self.state);
        let Some(ttl) = state.ttl.filter(|_| state.attached.is_none() && state.users == 0) else { return };
        let one_use = ONE_USE.min(ttl / 8);
        if state.used_at.is_none_or(|at| now.duration_since(at) >= one_use) {
            state.used_at = Some(now);
            state.restart_clock(now);
        }
    }

    /// Another session uses it until the answer is dropped.
    pub(crate) fn begin_use(self: Arc<Self>) -> InUse {
        let mut state = lock(&self.state);
        state.users += 1;
        if state.users == 1 {
            state.tell_use(true);
        }
        drop(state);
        InUse(self)
    }
}

impl State {
    fn restart_clock(&mut self, now: Instant) {
        self.detached_since = self.detached_since.map(|_| now);
        self.tell_use(false);
    }

    fn tell_use(&self, is_going_on: bool) {
        if let Some(link) = self.link.as_ref().filter(|link| link.takes(FOLLOWERS)) {
            link.send(&ToHolder::Used { is_going_on });
        }
    }
}
