//! Pauses and restarts the clock of a detached session while other sessions use it.
//!
//! A request that names the session restarts its clock. A subscription or a waiting read pauses it. The clock runs in
//! the holder if there is one, and otherwise in `SessionState::detached_since`.

use std::{sync::Arc, time::Duration};

use exec_server_holder::control::{FOLLOWERS, ToHolder};
use tokio::time::Instant;

use super::{Session, process_table::SessionState};

/// Requests within this interval restart the clock only once. So the session may expire early, by at most this much.
const USE_INTERVAL: Duration = Duration::from_secs(1);

/// Pauses the session's clock. The clock restarts when the last `SessionUse` is dropped.
pub(crate) struct SessionUse(Arc<Session>);

impl Drop for SessionUse {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.users -= 1;
        if state.users == 0 {
            state.restart_clock(Instant::now());
        }
    }
}

impl Session {
    /// How long the session lives without use; `None` = no limit.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.state.lock().attachment.ttl
    }

    /// Restarts the clock because another session used this one.
    pub(crate) fn touch(&self, now: Instant) {
        let mut state = self.state.lock();
        let Some(ttl) = state.attachment.ttl.filter(|_| state.attached.is_none() && state.users == 0) else { return };
        // A short time-to-live needs a finer interval.
        let interval = USE_INTERVAL.min(ttl / 8);
        if state.used_at.is_none_or(|at| now.duration_since(at) >= interval) {
            state.used_at = Some(now);
            state.restart_clock(now);
        }
    }

    /// Pauses the clock until the returned value is dropped.
    pub(crate) fn begin_use(self: Arc<Self>) -> SessionUse {
        let mut state = self.state.lock();
        state.users += 1;
        if state.users == 1 {
            state.report_use(true);
        }
        drop(state);
        SessionUse(self)
    }
}

impl SessionState {
    fn restart_clock(&mut self, now: Instant) {
        self.detached_since = self.detached_since.map(|_| now);
        self.report_use(false);
    }

    fn report_use(&self, is_going_on: bool) {
        if let Some(link) = self.link.as_ref().filter(|link| link.supports(FOLLOWERS)) {
            link.send(&ToHolder::Used { is_going_on });
        }
    }
}
