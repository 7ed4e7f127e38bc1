//! When long work ends before it is done: it was called off, or its time is over. Whoever works asks often; whoever waits says so once.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Cancel;

/// A [`Cancel`] and a time. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    cancel: Cancel,
    /// Monotonic nanoseconds; none where only a cancel ends it.
    deadline_ns: Option<u64>,
}

impl From<Cancel> for Stop {
    fn from(cancel: Cancel) -> Self {
        Self { cancel, deadline_ns: None }
    }
}

/// Why work ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It was called off.
    Cancelled,
    /// Its time is over.
    Time,
}

impl Stop {
    /// Work that may take as long as it likes, and can be called off.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Work that may take this long from now on.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self::new().or_after(limit)
    }

    /// The same, and ends when this long from now on is over.
    #[must_use]
    pub fn or_after(self, limit: Duration) -> Self {
        let ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Self { deadline_ns: Some(now_ns().saturating_add(ns)), ..self }
    }

    /// Calls it off. It ends at its next look.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Whether it is time to end; none means go on.
    #[must_use]
    pub fn check(&self) -> Option<Stopped> {
        if self.cancel.is_cancelled() {
            return Some(Stopped::Cancelled);
        }
        self.deadline_ns.filter(|at| now_ns() >= *at).map(|_| Stopped::Time)
    }
}

/// Monotonic nanoseconds; not the clock of the wall.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Stop, Stopped};

    #[test]
    fn work_ends_by_its_time_or_when_called_off() {
        assert_eq!(Stop::new().check(), None);
        assert_eq!(Stop::within(Duration::from_secs(60)).check(), None);
        assert_eq!(Stop::within(Duration::ZERO).check(), Some(Stopped::Time));
        let stop = Stop::new();
        stop.cancel();
        assert_eq!(stop.check(), Some(Stopped::Cancelled));
    }
}
