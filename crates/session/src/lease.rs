//! The lease of a session: attached to one connection, detached with a clock running, or expired.
//!
//! Knows connections as opaque numbers and time as monotonic nanoseconds; no socket, no clock.
//!
//! ```text
//!              handle_attach                    poll_expired(now >= since + ttl)
//!   Detached ────────────────▶ Attached      Detached ───────────────▶ Expired (for good)
//!        ▲                        │
//!        └──── handle_detach ─────┘          handle_attach with takeover: Attached ─▶ Attached, epoch + 1
//! ```

/// How long a detached session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// This many nanoseconds from the detach on.
    Nanos(u64),
    /// For ever.
    None,
}

/// Who holds the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A connection holds it; its clock stands still.
    Attached {
        /// The connection, as the caller numbers them.
        conn: u64,
    },
    /// Nobody holds it.
    Detached {
        /// When it was detached, or used last.
        since_ns: u64,
    },
    /// Its time has passed; nothing brings it back.
    Expired,
}

/// What an attach is allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// Take it only if nobody holds it.
    IfFree,
    /// Take it from whoever holds it.
    TakeOver,
}

/// Why an attach was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another connection holds it.
    #[error("session is attached to connection `{holder}`")]
    Held {
        /// The connection that holds it.
        holder: u64,
    },
    /// Its time has passed.
    #[error("session has expired")]
    Expired,
}

/// The lease: state, time to live in force, and an epoch that grows with every change of hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    state: State,
    ttl: Ttl,
    /// Bumped by every successful attach; what carries an older one is stale.
    epoch: u64,
    /// Other sessions use it now: the clock of a detached session stands still.
    is_used: bool,
}

impl Lease {
    /// A session that nobody holds yet; its clock runs from now on.
    pub fn new(ttl: Ttl, now_ns: u64) -> Self {
        Self { state: State::Detached { since_ns: now_ns }, ttl, epoch: 0, is_used: false }
    }

    /// Who holds it.
    pub fn state(&self) -> State {
        self.state
    }

    /// The time to live in force.
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// The epoch of the last attach, 0 before the first.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a connection holds it.
    pub fn is_attached(&self) -> bool {
        matches!(self.state, State::Attached { .. })
    }

    /// Gives the session to `conn`; the answer is the new epoch. The same connection again changes nothing.
    pub fn handle_attach(&mut self, conn: u64, how: Attach, now_ns: u64) -> Result<u64, AttachError> {
        self.poll_expired(now_ns);
        match self.state {
            State::Expired => Err(AttachError::Expired),
            State::Attached { conn: holder } if holder == conn => Ok(self.epoch),
            State::Attached { conn: holder } if how == Attach::IfFree => Err(AttachError::Held { holder }),
            State::Attached { .. } | State::Detached { .. } => {
                self.state = State::Attached { conn };
                self.epoch += 1;
                Ok(self.epoch)
            }
        }
    }

    /// Starts the clock, if `conn` still holds the session; a superseded connection changes nothing.
    pub fn handle_detach(&mut self, conn: u64, now_ns: u64) -> bool {
        let held = self.state == State::Attached { conn };
        if held {
            self.state = State::Detached { since_ns: now_ns };
        }
        held
    }

    /// Other sessions begin to use it: while they do, it does not expire.
    pub fn handle_used(&mut self) {
        self.is_used = true;
    }

    /// The last use has ended: the clock of a detached session starts anew.
    pub fn handle_unused(&mut self, now_ns: u64) {
        self.is_used = false;
        if matches!(self.state, State::Detached { .. }) {
            self.state = State::Detached { since_ns: now_ns };
        }
    }

    /// Whether other sessions use it now.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Sets the time to live; it counts from the detach, also when that was before.
    pub fn set_ttl(&mut self, ttl: Ttl) {
        self.ttl = ttl;
    }

    /// When the session will expire if nothing happens.
    pub fn deadline_ns(&self) -> Option<u64> {
        match (self.state, self.ttl) {
            (State::Detached { since_ns }, Ttl::Nanos(ttl)) if !self.is_used => Some(since_ns.saturating_add(ttl)),
            (State::Detached { .. } | State::Attached { .. } | State::Expired, _) => None,
        }
    }

    /// Whether the session has expired by now.
    pub fn poll_expired(&mut self, now_ns: u64) -> bool {
        if self.deadline_ns().is_some_and(|deadline| now_ns >= deadline) {
            self.state = State::Expired;
        }
        self.state == State::Expired
    }
}
