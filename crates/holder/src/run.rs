//! The real loop of a holder: sleep until something happens or is due, then turn.
//!
//! The only place that reads the clock.

use std::time::Duration;

use rustix::time::ClockId;

use crate::{Holder, Spawner};

/// Runs the holder until its session has ended.
pub fn run<S: Spawner>(mut holder: Holder<S>) {
    loop {
        let turn = holder.turn(monotonic_ns());
        if turn.ended {
            return;
        }
        holder.wait(turn.next_deadline_ns.map(|at| Duration::from_nanos(at.saturating_sub(monotonic_ns()))));
    }
}

/// CLOCK_MONOTONIC in nanoseconds: time in suspend does not count against a session.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
