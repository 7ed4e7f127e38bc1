//! Computes pauses between attempts: exponential backoff with full jitter, so that the clients of a restarted server do not all reconnect
//! at once. Does not sleep itself.

use std::time::Duration;

/// How long to wait between attempts, for example to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Backoff {
    first: Duration,
    most: Duration,
    attempt: u32,
    jitter: Jitter,
}

/// The source of randomness for the pauses.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Jitter {
    /// The system's random numbers.
    System,
    /// A deterministic sequence, with its current state.
    Seeded(u64),
}

impl Jitter {
    /// Draws the fraction of the bound to wait, from 0 to 1.
    fn draw(&mut self) -> f64 {
        let drawn = match self {
            // Without system randomness, wait for the whole bound.
            Self::System => getrandom::u32().unwrap_or(u32::MAX),
            Self::Seeded(last) => {
                // splitmix64 with only its first mixing step. The upper 32 bits are used.
                *last = last.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mixed = (*last ^ (*last >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                u32::try_from(mixed >> 32).unwrap_or(u32::MAX)
            }
        };
        f64::from(drawn) / f64::from(u32::MAX)
    }
}

impl Backoff {
    /// Creates pauses of random length up to a bound. The bound starts at `first`, doubles with each attempt, and never exceeds `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, attempt: 0, jitter: Jitter::System }
    }

    setters! {
        /// Draws the pauses from a sequence with this seed, so that they are the same in every run.
        seeded(seed: u64) => jitter = Jitter::Seeded(seed);
    }

    /// Returns the next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.attempt).unwrap_or(u32::MAX);
        let bound = self.first.saturating_mul(factor).min(self.most);
        // 31 is the largest shift of a `u32`.
        self.attempt = (self.attempt + 1).min(31);
        bound.mul_f64(self.jitter.draw())
    }
}

impl Default for Backoff {
    /// Bounds from 50 ms to 5 s.
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
    fn equal_seeds_give_equal_pauses_and_different_seeds_do_not() {
        let pauses = |seed| {
            let mut backoff = Backoff::default().seeded(seed);
            (0..20).map(|_| backoff.pause()).collect::<Vec<_>>()
        };
        assert_eq!(pauses(7), pauses(7));
        assert_ne!(pauses(7), pauses(8));
    }
}
