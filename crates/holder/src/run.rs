//! The event loop of a real holder: wait for an event or a deadline, then run one turn.
//!
//! The only place in the holder that reads the monotonic clock.

use std::time::Duration;

use rustix::time::ClockId;

use crate::{ChildSpawner, Holder};

/// Runs the holder until it reports that it is done: its session has ended, or it has archived its session.
pub fn run<S: ChildSpawner>(mut holder: Holder<S>) {
    loop {
        let turn = holder.turn(monotonic_ns());
        if turn.ended {
            return;
        }
        holder.wait(turn.next_deadline_ns.map(|at| Duration::from_nanos(at.saturating_sub(monotonic_ns()))));
    }
}

/// Reads CLOCK_MONOTONIC, in nanoseconds. This clock stops during suspend, so suspend does not use up a session's time
/// to live.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
