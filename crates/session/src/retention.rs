//! What the readers of one log have taken, and so what may be released.
//!
//! The *owner* is the session that started the process. Output that it has not taken is kept while it is away. Every
//! other reader is a *follower*. Output that a follower with a hold has not taken is kept as well.
//!
//! At its quota a process blocks until its owner takes output. While the owner is detached, the followers stand in for
//! it: the holder may drop output that all of them have taken. Only a follower that began before the first retained
//! event can free the oldest output. A follower that began later (the command `exec-server attach` skips older output)
//! limits the others, like any slow reader, and frees nothing by itself.

/// A number beyond every event number that will ever be assigned. Half of the range, so that adding to it cannot
/// overflow.
const BEYOND_ALL: u64 = u64::MAX / 2;

/// The position of a reader: the number of the last event it got, and the output bytes up to and including that event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    pub seq: u64,
    pub offset: u64,
}

/// Identifies a follower of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerId(u64);

/// Whether output that a follower has not taken is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowerKind {
    /// A subscriber with `hold`: its untaken output is kept.
    Holding,
    /// A reader that polls. Nothing is kept for it.
    Polling,
}

#[derive(Clone, Copy, Debug)]
struct Follower {
    id: FollowerId,
    kind: FollowerKind,
    /// The follower began after this event.
    from: u64,
    /// The last event that the follower has taken.
    taken: u64,
}

/// The readers of one log and their positions.
#[derive(Clone, Debug)]
pub struct Retention {
    /// Where the owner's next connection starts.
    owner: LogPosition,
    /// A position at or before `owner` with an exact byte offset. The offset in `owner` may be too low: the owner's
    /// feed remembers only some positions (its marks). An acknowledged number between two marks gets the offset of the
    /// earlier one.
    owner_mark: LogPosition,
    /// The last event that the owner has taken, on any of its connections. `None` once the owner gave up the log.
    owner_taken: Option<u64>,
    followers: Vec<Follower>,
    next_follower: u64,
    /// The result of the last `poll_followed` that had one.
    followed: u64,
    /// Since when the owner could have known that the log is closed; see [`closed_for_ns`](Self::closed_for_ns).
    closed_since_ns: Option<u64>,
}

impl Retention {
    /// A log whose owner has taken everything up to `taken`.
    pub fn new(taken: LogPosition) -> Self {
        Self {
            owner: taken,
            owner_mark: taken,
            owner_taken: Some(taken.seq),
            followers: Vec::new(),
            next_follower: 0,
            followed: 0,
            closed_since_ns: None,
        }
    }

    /// Where the owner's next connection starts, in a log whose first retained event is `first_seq`.
    pub fn owner_position(&self, first_seq: Option<u64>) -> LogPosition {
        // If events after the owner's position were dropped, start at the mark instead. Its byte offset is exact, so
        // the reported gap is exact. The client knows which part of the gap it already has.
        let is_gone = first_seq.is_some_and(|first| first > self.owner.seq + 1);
        if is_gone { self.owner_mark } else { self.owner }
    }

    pub fn owner_mark(&self) -> LogPosition {
        self.owner_mark
    }

    /// The last event that the owner has taken; 0 if it gave up the log.
    pub fn owner_taken(&self) -> u64 {
        self.owner_taken.unwrap_or(0)
    }

    /// Whether the owner has everything of a log whose next event is `next_seq`: acknowledged or, if its client cannot
    /// acknowledge, sent.
    pub fn owner_has_all(&self, next_seq: u64) -> bool {
        self.owner.seq + 1 >= next_seq
    }

    /// Records that the owner has everything up to `position`, whose offset is exact.
    pub fn set_owner_mark(&mut self, position: LogPosition) {
        if position.seq >= self.owner_mark.seq {
            self.owner_mark = position;
        }
    }

    /// Records how far the owner got. Never moves back: an old connection may report after a new one.
    pub fn set_owner_position(&mut self, position: LogPosition) {
        if position.seq >= self.owner.seq {
            self.owner = position;
        }
    }

    /// Records that the owner has taken everything up to `position`, in a log whose next event is `next_seq`. Returns
    /// whether this may have made output releasable.
    ///
    /// The owner's position moves along, so that a resume that arrives before the old connection has reported its
    /// position does not start at released output.
    pub fn handle_owner_taken(&mut self, position: LogPosition, next_seq: u64) -> bool {
        self.set_owner_position(position);
        self.owner_taken.as_mut().is_some_and(|taken| advance(taken, position.seq, next_seq))
    }

    /// Drops the owner as a reader: all output counts as taken by it.
    pub fn handle_owner_gone(&mut self) {
        self.set_owner_position(LogPosition { seq: BEYOND_ALL, offset: 0 });
        self.owner_taken = None;
    }

    /// Adds a follower that began after event `from` and has taken everything up to `taken`.
    pub fn add_follower(&mut self, kind: FollowerKind, from: u64, taken: u64) -> FollowerId {
        let id = FollowerId(self.next_follower);
        self.next_follower += 1;
        self.followers.push(Follower { id, kind, from, taken });
        id
    }

    pub fn remove_follower(&mut self, id: FollowerId) {
        self.followers.retain(|follower| follower.id != id);
    }

    /// Records that a follower has taken everything up to `seq`, in a log whose next event is `next_seq`. Returns
    /// whether this may have made output releasable.
    pub fn handle_taken(&mut self, id: FollowerId, seq: u64, next_seq: u64) -> bool {
        let follower = self.followers.iter_mut().find(|follower| follower.id == id);
        follower.is_some_and(|follower| advance(&mut follower.taken, seq, next_seq))
    }

    /// Whether a follower holds output.
    pub fn has_holds(&self) -> bool {
        self.followers.iter().any(|follower| follower.kind == FollowerKind::Holding)
    }

    /// The last event that no reader needs.
    pub fn releasable_seq(&self) -> u64 {
        let holding = self.followers.iter().filter(|follower| follower.kind == FollowerKind::Holding);
        holding.map(|follower| follower.taken).chain(self.owner_taken).min().unwrap_or(BEYOND_ALL)
    }

    /// The last event that all followers have taken, if this has changed since the last call. It is 0 if no follower
    /// began before the first retained event `first_seq`.
    pub fn poll_followed(&mut self, first_seq: u64) -> Option<u64> {
        let has_all = self.followers.iter().any(|follower| follower.from < first_seq);
        let slowest = self.followers.iter().map(|follower| follower.taken).min();
        let followed = slowest.filter(|_| has_all).unwrap_or(0);
        (std::mem::replace(&mut self.followed, followed) != followed).then_some(followed)
    }

    /// How long the owner could have known that the log is closed. Call it only for a closed log. Time in which the
    /// owner is away does not count: each call without an attached owner, or before the owner has everything, restarts
    /// the clock.
    pub fn closed_for_ns(&mut self, now_ns: u64, is_attached: bool, next_seq: u64) -> u64 {
        if !is_attached || !self.owner_has_all(next_seq) {
            self.closed_since_ns = None;
        }
        now_ns.saturating_sub(*self.closed_since_ns.get_or_insert(now_ns))
    }
}

/// Moves `taken` forward to `seq`. Clamps to what was written: an acknowledgement of future numbers must not count for
/// events that come later.
fn advance(taken: &mut u64, seq: u64, next_seq: u64) -> bool {
    let seq = seq.min(next_seq.saturating_sub(1));
    let is_moved = *taken < seq;
    *taken = seq.max(*taken);
    is_moved
}
