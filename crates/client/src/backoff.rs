//! Pauses between attempts: doubling, with full jitter, so that many clients of a restarted server do not come at once.
//! It must not sleep itself.

use std::time::Duration;

/// How long to wait between attempts to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    attempt: u32,
    jitter: Jitter,
}

/// Where the length of a pause comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Jitter {
    /// The system's randomness.
    System,
    /// A sequence of one's own, by its last number.
    Seeded(u64),
}

impl Jitter {
    /// A share of the bound.
    fn draw(&mut self) -> f64 {
        let drawn = match self {
            // A machine without randomness waits the whole bound.
            Self::System => getrandom::u32().unwrap_or(u32::MAX),
            Self::Seeded(last) => {
                // One step of splitmix64, of which the upper half is used.
                *last = last.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mixed = (*last ^ (*last >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                u32::try_from(mixed >> 32).unwrap_or(u32::MAX)
            }
        };
        f64::from(drawn) / f64::from(u32::MAX)
    }
}

impl Backoff {
    /// Pauses of random length up to `first`, doubled with each attempt, never above `most`.
    #[must_use]
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, attempt: 0, jitter: Jitter::System }
    }

    /// Draws the lengths from a sequence of this seed: a program that must repeat itself gets the same pauses each time.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.jitter = Jitter::Seeded(seed);
        self
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.attempt).unwrap_or(u32::MAX);
        let bound = self.first.saturating_mul(factor).min(self.most);
        self.attempt = (self.attempt + 1).min(31);
        bound.mul_f64(self.jitter.draw())
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

    #[test]
    fn a_seed_repeats_its_pauses_and_another_has_others() {
        let pauses = |seed| {
            let mut backoff = Backoff::default().seeded(seed);
            (0..20).map(|_| backoff.pause()).collect::<Vec<_>>()
        };
        assert_eq!(pauses(7), pauses(7));
        assert_ne!(pauses(7), pauses(8));
    }
}
