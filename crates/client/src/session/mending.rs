//! What is remembered from one attempt to mend a link to the next. Knows how links ended, not what is done about it.

use std::time::Duration;

use exec_server_rpc::Closed;

use crate::{
    backoff::Backoff,
    link::{self, Refused},
};

/// A link that lasted so long was no failure: the next one is made without a pause.
const SETTLED: Duration = Duration::from_millis(200);

/// Broken rules of the protocol, on links that did not last, after which a server is given up.
const OFFENCES: u32 = 5;

/// The close code of a link whose session another connection has taken.
const TAKEN: u16 = 1008;

pub(super) struct Mending {
    /// As it is at first.
    fresh: Backoff,
    backoff: Backoff,
    offences: u32,
    /// An attempt ended without an answer: it may reach the server late, and take the session from the link that came after it.
    /// That is no reason to give the session up to somebody else.
    has_ghost: bool,
}

impl Mending {
    pub(super) fn new(backoff: &Backoff, has_ghost: bool) -> Self {
        Self { fresh: backoff.clone(), backoff: backoff.clone(), offences: 0, has_ghost }
    }

    /// A link has ended that lasted so long.
    pub(super) fn handle_end(&mut self, lasted: Duration, closed: &Closed) {
        if lasted >= SETTLED {
            (self.backoff, self.offences) = (self.fresh.clone(), 0);
        }
        self.offences += u32::from(link::is_offence(closed));
    }

    /// An attempt has failed.
    pub(super) fn handle_refused(&mut self, refused: &Refused) {
        self.offences += u32::from(refused.is_offence);
        self.has_ghost |= refused.may_come_late();
    }

    /// Whether somebody else has taken the session, by the end of the link that had it; a ghost of our own comes once.
    pub(super) fn is_taken(&mut self, closed: &Closed) -> bool {
        matches!(closed, Closed::Peer { code: TAKEN, .. }) && !std::mem::take(&mut self.has_ghost)
    }

    pub(super) fn is_hopeless(&self) -> bool {
        self.offences >= OFFENCES
    }

    /// How long to wait before the next attempt.
    pub(super) fn pause(&mut self) -> Duration {
        self.backoff.pause()
    }
}
