//! The lease of a session: attached to one connection, detached with a running timer, or expired.
//!
//! A connection is an opaque number: the holder passes the epoch of its controller. Time is monotonic nanoseconds.
//!
//! ```text
//!              handle_attach                    poll_expired(now >= since + ttl)
//!   Detached ────────────────▶ Attached      Detached ───────────────▶ Expired (final)
//!        ▲                        │
//!        └──── handle_detach ─────┘          handle_attach by another connection: Attached ─▶ Attached
//! ```

/// How long a detached session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// This many nanoseconds after the detach.
    Nanos(u64),
    /// Never expires.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// A connection holds the session. The timer is stopped.
    Attached {
        /// The connection, in the caller's numbering.
        conn: u64,
    },
    /// No connection holds the session.
    Detached {
        /// When the session was detached, or when another session last used it.
        since_ns: u64,
    },
    /// The TTL has passed. This state is final.
    Expired,
}

/// The lease: state and current TTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    state: LeaseState,
    ttl: Ttl,
    /// Other sessions currently use this one, so it does not expire while detached.
    is_used: bool,
}

impl Lease {
    /// A detached session. Its timer starts now.
    pub fn new(ttl: Ttl, now_ns: u64) -> Self {
        Self { state: LeaseState::Detached { since_ns: now_ns }, ttl, is_used: false }
    }

    pub fn state(&self) -> LeaseState {
        self.state
    }

    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    pub fn is_attached(&self) -> bool {
        matches!(self.state, LeaseState::Attached { .. })
    }

    /// Attaches the session to `conn`, also if another connection holds it. Does nothing if the session has expired.
    pub fn handle_attach(&mut self, conn: u64, now_ns: u64) {
        if !self.poll_expired(now_ns) {
            self.state = LeaseState::Attached { conn };
        }
    }

    /// Detaches the session and starts the timer. Returns false and changes nothing if `conn` no longer holds the
    /// session.
    pub fn handle_detach(&mut self, conn: u64, now_ns: u64) -> bool {
        let held = self.state == LeaseState::Attached { conn };
        if held {
            self.state = LeaseState::Detached { since_ns: now_ns };
        }
        held
    }

    /// Records that other sessions use this one. It does not expire until `handle_unused`.
    pub fn handle_used(&mut self) {
        self.is_used = true;
    }

    /// Records that no other session uses this one. Restarts the timer if the session is detached.
    pub fn handle_unused(&mut self, now_ns: u64) {
        self.is_used = false;
        if matches!(self.state, LeaseState::Detached { .. }) {
            self.state = LeaseState::Detached { since_ns: now_ns };
        }
    }

    /// Whether other sessions currently use this one.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Sets the TTL. If the session is already detached, the new TTL counts from the start of its timer, not from now.
    pub fn set_ttl(&mut self, ttl: Ttl) {
        self.ttl = ttl;
    }

    /// When the session will expire if nothing else happens.
    pub fn deadline_ns(&self) -> Option<u64> {
        match (self.state, self.ttl) {
            (LeaseState::Detached { since_ns }, Ttl::Nanos(ttl)) if !self.is_used => Some(since_ns.saturating_add(ttl)),
            (LeaseState::Detached { .. } | LeaseState::Attached { .. } | LeaseState::Expired, _) => None,
        }
    }

    /// Expires the session if its deadline has passed. Returns whether it has expired.
    pub fn poll_expired(&mut self, now_ns: u64) -> bool {
        if self.deadline_ns().is_some_and(|deadline| now_ns >= deadline) {
            self.state = LeaseState::Expired;
        }
        self.state == LeaseState::Expired
    }
}
