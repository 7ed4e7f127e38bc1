//! The real loop of a holder: sleep until something happens or is due, then turn.
//!
//! The only place that reads the clock.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::time::ClockId;

use crate::{Holder, Spawner};

/// Runs the holder until its session has ended.
pub fn run<S: Spawner>(mut holder: Holder<S>) {
    loop {
        let turn = holder.turn(monotonic_ns());
        if turn.ended {
            return;
        }
        let timeout = turn.next_deadline_ns.map(|at| nanos(at.saturating_sub(monotonic_ns())));
        let epoll = holder.as_fd();
        // An interrupted or failed wait only means an early turn.
        rustix::event::poll(&mut [PollFd::new(&epoll, PollFlags::IN)], timeout.as_ref()).ok();
    }
}

/// CLOCK_MONOTONIC in nanoseconds: time in suspend does not count against a session.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

fn nanos(ns: u64) -> Timespec {
    Timespec { tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX), tv_nsec: (ns % 1_000_000_000) as _ }
}
