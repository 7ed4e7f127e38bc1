//! Pauses between attempts: doubling, with full jitter, so that many clients of a restarted server do not come at once.
//! It must not sleep itself.

use std::time::Duration;

/// How long to wait between attempts to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    attempt: u32,
}

impl Backoff {
    /// Pauses of random length up to `first`, doubled with each attempt, never above `most`.
    #[must_use]
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, attempt: 0 }
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.attempt).unwrap_or(u32::MAX);
        let bound = self.first.saturating_mul(factor).min(self.most);
        self.attempt = (self.attempt + 1).min(31);
        // A machine without randomness waits the whole bound.
        let share = getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX));
        bound.mul_f64(share)
    }
}

impl Default for Backoff {
    /// From 50 ms to 5 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_within_their_growing_bound() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
        for bound in [10, 20, 40, 80, 100, 100] {
            assert!(backoff.pause() <= Duration::from_millis(bound));
        }
        let mut long = Backoff::default();
        assert!((0..200).all(|_| long.pause() <= Duration::from_secs(5)));
    }
}
