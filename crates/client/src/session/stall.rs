//! Detects a link that is open but silent: the server has stopped, or the network drops its packets.
//!
//! The client pings a silent server once a second, because an idle server sends nothing by itself. The watch is off unless the caller sets
//! `report_stall_after`. It only reports; closing a dead link is left to `ServerLink::check_alive`.

use std::time::Duration;

use tokio::time::{self, Instant};

/// How often the link is checked, and after which silence the client pings the server.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkActivity {
    /// Something was received since the last check.
    Alive,
    /// Something was received after a silence that had been reported.
    AliveAgain,
    /// Nothing was received: ping the server.
    Silent,
    /// Nothing was received for as long as the caller's threshold: report it now.
    Stalled,
}

pub(super) struct StallWatch {
    /// The silence to report; `None` turns the watch off.
    after: Option<Duration>,
    checks: time::Interval,
    /// The value of the link's `progress` counter, which counts reads, at the last check.
    progress: u64,
    last_received: Instant,
    is_stalled: bool,
}

impl StallWatch {
    pub(super) fn new(after: Option<Duration>) -> Self {
        let mut checks = time::interval(CHECK_EVERY);
        checks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        Self { after, checks, progress: 0, last_received: Instant::now(), is_stalled: false }
    }

    pub(super) fn is_on(&self) -> bool {
        self.after.is_some()
    }

    /// Waits until the next check is due. Cancel safe.
    pub(super) async fn tick(&mut self) {
        self.checks.tick().await;
    }

    /// Checks the link. `progress` is a counter that grows with everything that is received.
    pub(super) fn check(&mut self, progress: u64) -> LinkActivity {
        let now = Instant::now();
        if progress != self.progress {
            self.progress = progress;
            self.last_received = now;
            return if std::mem::take(&mut self.is_stalled) { LinkActivity::AliveAgain } else { LinkActivity::Alive };
        }
        let is_long = self.after.is_some_and(|after| now.duration_since(self.last_received) >= after);
        if is_long && !std::mem::replace(&mut self.is_stalled, true) {
            LinkActivity::Stalled
        } else {
            LinkActivity::Silent
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_begin_and_the_end_of_a_silence_are_each_reported_once() {
        let mut watch = StallWatch::new(Some(Duration::from_secs(3)));
        assert_eq!(watch.check(1), LinkActivity::Alive);
        for expected in [LinkActivity::Silent, LinkActivity::Silent, LinkActivity::Stalled, LinkActivity::Silent] {
            time::advance(Duration::from_secs(1)).await;
            assert_eq!(watch.check(1), expected);
        }
        assert_eq!(watch.check(2), LinkActivity::AliveAgain);
        assert_eq!(watch.check(3), LinkActivity::Alive);
    }
}
