//! Throttles clients that ask for sessions that do not exist. Session ids cannot be guessed; this makes attempts slow
//! and visible in the logs.
//!
//! There are two limits. Each wrong try on a connection delays the answer longer. All connections of one principal
//! share a token bucket. Other principals are not delayed, and neither is a request for a session that exists. Pure
//! state: the time is an argument.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::core::Principal;

/// Wrong tries per connection without a delay. A client that reconnects after a server restart needs one.
const FREE_TRIES: u32 = 3;

/// Delay of the first throttled try. Each further try doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// Maximum delay by the per-connection limit.
const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// Size of a principal's bucket. Many clients may reconnect at once to a server that has lost its sessions.
const BURST: u32 = 64;

/// Time in which a principal's bucket gains one token.
const REFILL: Duration = Duration::from_millis(125);

/// Number of principals at which full buckets are dropped, because they carry no information.
const PRINCIPALS_MAX: usize = 1024;

/// Per principal, the instant at which its bucket is full again.
#[derive(Debug, Default)]
pub(crate) struct GuessThrottle(BTreeMap<Principal, Instant>);

impl GuessThrottle {
    /// Counts a wrong try, the `tries`-th of its connection, and returns how long to delay its answer.
    pub(crate) fn delay(&mut self, principal: &Principal, tries: u32, now: Instant) -> Duration {
        if self.0.len() >= PRINCIPALS_MAX {
            self.0.retain(|_, full_at| *full_at > now);
        }
        let full_at = self.0.entry(principal.clone()).or_insert(now);
        // Each try takes a token, so the bucket is full one `REFILL` later. Beyond `BURST` missing tokens, a try waits.
        *full_at = (*full_at).max(now) + REFILL;
        let principal_delay = full_at.duration_since(now).saturating_sub(REFILL * BURST);
        let connection_delay = match tries.checked_sub(FREE_TRIES + 1) {
            None => Duration::ZERO,
            // The bound prevents an overflow. The longest delay is reached long before.
            Some(doublings) => FIRST_DELAY.saturating_mul(1 << doublings.min(10)).min(LONGEST_DELAY),
        };
        principal_delay.max(connection_delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_waits_longer_with_each_wrong_try() {
        let (mut throttle, now) = (GuessThrottle::default(), Instant::now());
        let waits: Vec<u128> =
            (1..=10).map(|tries| throttle.delay(&Principal::owner(), tries, now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 400, 800, 1600, 2000, 2000]);
    }

    #[test]
    fn connections_of_one_principal_share_a_bucket_and_other_principals_have_their_own() {
        let (mut throttle, now) = (GuessThrottle::default(), Instant::now());
        let (a, b) = (Principal::named("a"), Principal::named("b"));
        let waits: Vec<Duration> = (0..10_000).map(|_| throttle.delay(&a, 1, now)).collect();
        assert_eq!(waits[63], Duration::ZERO);
        assert_eq!(waits[9_999], REFILL * (10_000 - BURST));
        assert_eq!(throttle.delay(&b, 1, now), Duration::ZERO);
        assert_eq!(throttle.delay(&a, 1, now + REFILL * 20_000), Duration::ZERO);
    }
}
