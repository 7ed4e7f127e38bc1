//! Flow control for a client that cannot acknowledge output, as those of the generations V0, S and H.
//!
//! Sent output counts as taken, except for the last [`limits::UNREAD_BYTES`], which such a client may read again after
//! a resume. A client that polls with `process/read` shows by its reads what it has taken. All distances are measured
//! with [`log_bytes`]. If only the output counted, small events could fill the log before anything counts as taken.
//!
//! ```text
//!                          read with waitMs, or a second read
//!  new ──────────▶ Pushed ─────────────────────────────────▶ Polled
//!   │                 ▲◀── held for 2 s with no read in flight ──┘
//!   └─▶ Awaiting ─────┘ its first read, or 1 s
//!     resumed
//! ```

use std::{collections::VecDeque, time::Duration};

use exec_server_protocol::limits;
use exec_server_session::LogPosition;
use tokio::time::Instant;

use crate::process::log_bytes;

/// If pushing has paused this long for a polling reader without a read in flight, pushing resumes.
const POLLED_PATIENCE: Duration = Duration::from_secs(2);

/// How many bytes are sent from one release of output to the next.
const RELEASE_EVERY_BYTES: u64 = 64 << 10;

/// What a feed knows about its reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnackedFlow {
    mode: UnackedMode,
    reads: u64,
    reads_in_flight: u32,
    /// The size of the log up to the position that was sent when output was last released.
    released_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnackedMode {
    /// The client has resumed: nothing is pushed before its first read or `until`.
    Awaiting { until: Instant },
    /// Output is pushed. The client does not poll.
    Pushed,
    /// The client polls. Everything up to `base` counts as read.
    Polled {
        base: LogPosition,
        /// Since when pushing pauses because the reads are too far behind.
        held_since: Option<Instant>,
    },
}

/// What the answer to a read changes for the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadEffect {
    None,
    /// Pushing begins after this position.
    ContinueAfter(LogPosition),
    /// The reader has taken everything up to this position.
    Taken(LogPosition),
}

impl UnackedFlow {
    /// `awaited_until`: set if the client has resumed; pushing waits for its first read, at most until then. `sent`:
    /// the position where the feed begins.
    pub(crate) fn new(awaited_until: Option<Instant>, sent: LogPosition) -> Self {
        let mode = awaited_until.map_or(UnackedMode::Pushed, |until| UnackedMode::Awaiting { until });
        Self { mode, reads: 0, reads_in_flight: 0, released_at: log_bytes(sent) }
    }

    /// Whether the client polls. Then only its further reads show that it has taken the last output.
    pub(crate) fn is_polled(&self) -> bool {
        matches!(self.mode, UnackedMode::Polled { .. })
    }

    /// When pushing begins or resumes even if nothing happens.
    pub(crate) fn timer(&self) -> Option<Instant> {
        match self.mode {
            UnackedMode::Awaiting { until } => Some(until),
            UnackedMode::Polled { held_since: Some(since), .. } if self.reads_in_flight == 0 => {
                Some(since + POLLED_PATIENCE)
            }
            UnackedMode::Polled { .. } | UnackedMode::Pushed => None,
        }
    }

    pub(crate) fn handle_timer(&mut self) {
        self.mode = UnackedMode::Pushed;
    }

    /// Whether pushing pauses. `sent` is the last event that was sent.
    pub(crate) fn is_held(&mut self, sent: LogPosition, now: Instant) -> bool {
        match &mut self.mode {
            UnackedMode::Awaiting { .. } => true,
            UnackedMode::Pushed => false,
            UnackedMode::Polled { base, held_since } => {
                let is_held = log_bytes(sent).saturating_sub(log_bytes(*base)) >= limits::UNREAD_BYTES;
                *held_since = is_held.then(|| held_since.unwrap_or(now));
                is_held
            }
        }
    }

    /// Handles a read by the session's own connection. The client polls if the read waits for output (`waits`) or is
    /// not the first one. `oldest` is the first position that may still be unread.
    pub(crate) fn handle_read_begun(&mut self, waits: bool, oldest: LogPosition) {
        self.reads += 1;
        self.reads_in_flight += 1;
        let polls = waits || self.reads > 1;
        if polls && self.mode == UnackedMode::Pushed {
            self.mode = UnackedMode::Polled { base: oldest, held_since: None };
        }
    }

    /// Handles the answer to a read of everything after `after_seq`, which begins at output byte `after_offset` if that
    /// is known. The reader has taken everything before, and with the answer it has everything up to `last`.
    pub(crate) fn handle_read_answered(
        &mut self,
        after_seq: u64,
        after_offset: Option<u64>,
        last: LogPosition,
    ) -> ReadEffect {
        self.reads_in_flight = self.reads_in_flight.saturating_sub(1);
        match self.mode {
            UnackedMode::Awaiting { .. } => {
                let base = LogPosition { seq: after_seq, offset: after_offset.unwrap_or(last.offset) };
                let polled = UnackedMode::Polled { base, held_since: None };
                self.mode = if self.reads > 1 { polled } else { UnackedMode::Pushed };
                ReadEffect::ContinueAfter(last)
            }
            // Also with the number that polling began with: nothing has reported it as taken.
            UnackedMode::Polled { base, .. } if after_seq >= base.seq => {
                let base = LogPosition { seq: after_seq, offset: after_offset.unwrap_or(base.offset) };
                self.mode = UnackedMode::Polled { base, held_since: None };
                ReadEffect::Taken(base)
            }
            UnackedMode::Polled { .. } | UnackedMode::Pushed => ReadEffect::None,
        }
    }

    /// Removes those of the feed's `marks`, remembered positions of sent output, that are older than the last
    /// [`limits::UNREAD_BYTES`]. Returns the newest of them.
    pub(crate) fn release(
        &mut self,
        marks: &mut VecDeque<LogPosition>,
        sent: LogPosition,
        is_closed: bool,
    ) -> Option<LogPosition> {
        let sent = log_bytes(sent);
        let is_due = is_closed || sent >= self.released_at.saturating_add(RELEASE_EVERY_BYTES);
        if self.mode != UnackedMode::Pushed || !is_due {
            return None;
        }
        self.released_at = sent;
        let mut taken = None;
        while let Some(mark) = marks.front()
            && log_bytes(*mark).saturating_add(limits::UNREAD_BYTES) <= sent
        {
            taken = marks.pop_front();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_events_are_released_before_they_fill_the_log() {
        let mut flow = UnackedFlow::new(None, LogPosition::default());
        let mut marks = VecDeque::new();
        let mut taken = LogPosition::default();
        for seq in 1..=600_000 {
            let sent = LogPosition { seq, offset: seq * 60 };
            marks.push_back(sent);
            taken = flow.release(&mut marks, sent, false).unwrap_or(taken);
            // An event of 60 bytes takes 88 bytes of the log, and the log has room for 19 MiB.
            assert!((seq - taken.seq) * 88 < 17 << 20, "{seq}");
        }
        assert!(taken.seq > 400_000, "{taken:?}");
    }

    #[test]
    fn a_polling_client_is_held_back_by_the_size_of_the_log_not_of_the_output() {
        let mut flow = UnackedFlow::new(None, LogPosition::default());
        flow.handle_read_begun(true, LogPosition::default());
        assert!(flow.is_polled());
        let taken = flow.handle_read_answered(0, Some(0), LogPosition::default());
        assert_eq!(taken, ReadEffect::Taken(LogPosition::default()), "the number that polling began with counts, too");
        let sent = |seq| LogPosition { seq, offset: seq };
        assert!(!flow.is_held(sent(500_000), Instant::now()));
        assert!(flow.is_held(sent(510_000), Instant::now()), "33 bytes each are more than 16 MiB");
    }
}
