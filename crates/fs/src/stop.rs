//! Early end of long operations: by cancellation or by a deadline. The working thread polls `check`; another thread may cancel.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Cancel;

/// A [`Cancel`] and an optional deadline. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    cancel: Cancel,
    /// A time of the monotonic clock. `None`: no deadline.
    deadline: Option<Duration>,
}

/// Why an operation ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    Cancelled,
    /// The deadline has passed.
    Time,
}

impl Stop {
    /// Without a deadline.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With a deadline after `limit`, counted from now.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self { deadline: Some(now().saturating_add(limit)), ..Self::default() }
    }

    /// Requests cancellation. The operation ends at its next `check`.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Returns why the operation must end, or `None` to continue.
    #[must_use]
    pub fn check(&self) -> Option<StopReason> {
        if self.cancel.is_cancelled() {
            return Some(StopReason::Cancelled);
        }
        self.deadline.filter(|at| now() >= *at).map(|_| StopReason::Time)
    }
}

/// The time of the monotonic clock. Changes of the wall clock do not affect it.
fn now() -> Duration {
    // Fails only for a negative time, which this clock never has.
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Stop, StopReason};

    #[test]
    fn a_stop_ends_work_at_its_deadline_or_when_cancelled() {
        assert_eq!(Stop::new().check(), None);
        assert_eq!(Stop::within(Duration::from_secs(60)).check(), None);
        assert_eq!(Stop::within(Duration::ZERO).check(), Some(StopReason::Time));
        let stop = Stop::new();
        stop.cancel();
        assert_eq!(stop.check(), Some(StopReason::Cancelled));
    }
}
