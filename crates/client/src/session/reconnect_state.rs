//! The state that is kept from one attempt to reconnect to the next: backoff, protocol violations, and possible ghosts.

use std::time::Duration;

use exec_server_rpc::CloseReason;

use crate::{
    backoff::Backoff,
    server_link::{self, DialError},
};

/// A link that lasted this long counts as a success: the backoff and the counts of violations and short links start over.
const SETTLED: Duration = Duration::from_millis(200);

/// The client gives up on a server after this many protocol violations. A link that lasted restarts the count.
const VIOLATIONS_MAX: u32 = 5;

/// The pause before the client replaces the second and each later link in a row that did not last.
const SHORT_LINK_PAUSE: Duration = Duration::from_millis(100);

/// The WebSocket close code of a link whose session another connection has taken over.
const TAKEN: u16 = 1008;

pub(super) struct ReconnectState {
    /// The unused backoff, to start over from.
    fresh: Backoff,
    /// The current backoff between failed attempts.
    pub(super) backoff: Backoff,
    violations: u32,
    /// How many links in a row did not last.
    short_links: u32,
    /// Whether the link of an earlier attempt broke before the answer. Such an attempt (a ghost) can reach the server late and take the
    /// session from the current link. The client must then resume the session, because no other client has it.
    has_ghost: bool,
}

impl ReconnectState {
    pub(super) fn new(backoff: &Backoff, has_ghost: bool) -> Self {
        Self { fresh: backoff.clone(), backoff: backoff.clone(), violations: 0, short_links: 0, has_ghost }
    }

    /// Records the end of a link that lasted this long.
    pub(super) fn handle_end(&mut self, lasted: Duration, closed: &CloseReason) {
        if lasted >= SETTLED {
            self.backoff = self.fresh.clone();
            self.violations = 0;
            self.short_links = 0;
        } else {
            self.short_links += 1;
        }
        self.violations += u32::from(server_link::is_violation(closed));
    }

    /// Records a failed attempt.
    pub(super) fn handle_dial_error(&mut self, dial_error: &DialError) {
        self.violations += u32::from(dial_error.is_violation);
        self.has_ghost |= dial_error.may_come_late();
    }

    /// Whether another client has taken the session over, judged by how the link ended. A ghost can cause one such end, so this clears the
    /// flag: the next such end counts as a takeover.
    pub(super) fn detect_takeover(&mut self, closed: &CloseReason) -> bool {
        matches!(closed, CloseReason::Peer { code: TAKEN, .. }) && !std::mem::take(&mut self.has_ghost)
    }

    pub(super) fn is_hopeless(&self) -> bool {
        self.violations >= VIOLATIONS_MAX
    }

    /// How long to wait before the first attempt after a link. `None` if it may be made at once. Without this pause, a server that accepts
    /// every resume and then closes the link would be called in a busy loop. The pause does not grow: a link that is cut often must still
    /// make progress.
    pub(super) fn pause_after_short_links(&self) -> Option<Duration> {
        (self.short_links > 1).then_some(SHORT_LINK_PAUSE)
    }
}
