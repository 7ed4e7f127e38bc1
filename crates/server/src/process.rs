//! The server's view of one child: its log, what each reader has taken of it, and the queue of stdin writes.
//!
//! The child itself, its fds and its exit belong to the holder. Nothing here blocks: `load::SegmentLoad` reads segments
//! from disk, and the pump runs it off the runtime's threads. `without_holder` is for processes whose holder died or
//! archived the session.
//!
//! Releasing output: the owner (the client of the process's own session) and every follower have a position
//! ([`Retention`]). Segments below the lowest position are released to the holder, except for the last
//! [`limits::READABLE_BYTES`](exec_server_protocol::limits). The holder also learns what all followers have taken. If
//! the owner is detached and the log can grow no more, the holder drops that output instead of blocking the child until
//! the owner comes back.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use exec_server_holder::control::{FOLLOWERS, ToHolder};
use exec_server_log::{ControlBlock, LogStatus, SegmentLocation};
use exec_server_protocol::{ProcessId, SessionId};
use exec_server_session::{FollowerId, FollowerKind, LogPosition, Retention};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::{holder_link::HolderLink, metrics::Metrics, session::short_id};

mod load;
mod log;
mod meta;
mod stdin;
mod without_holder;

use self::{log::StatusSource, stdin::StdinQueue};
pub(crate) use self::{
    log::{CountedOutput, LostEnd, ProcessLog, log_bytes},
    meta::{ProcessMeta, truncate_argv},
    stdin::StdinOperation,
};

/// One process of a session.
///
/// Locks that are held together are taken in this order: the session's state, `retention` or `stdin`, `log`, `holder`,
/// and then those of the link and of the outgoing queues. No lock is held across an await or during disk I/O.
pub(crate) struct Process {
    pub(crate) session: Arc<str>,
    pub(crate) meta: ProcessMeta,
    pub(crate) pid: u32,
    slot: u32,
    metrics: Arc<Metrics>,
    /// The zero of the clock of `retention`.
    created: Instant,
    retention: Mutex<Retention>,
    stdin: Mutex<StdinQueue>,
    /// A feed locks it while it encodes one record, a read while it encodes its answer.
    log: Mutex<ProcessLog>,
    holder: Mutex<HolderSide>,
}

/// The part of a process that refers to its holder.
struct HolderSide {
    /// The current link. After a holder has archived the session and exited, a new holder may replace it.
    link: Arc<HolderLink>,
    /// pidfd of the leader, to kill its group if the holder dies. `None` if the leader was gone at adoption, or if the
    /// session was archived.
    leader: Option<Arc<OwnedFd>>,
}

/// The registration of a follower. Dropping it removes the follower, even if the command that carried it was never
/// executed.
pub(crate) struct OutputHold {
    process: Arc<Process>,
    id: FollowerId,
}

impl OutputHold {
    /// Records that the follower has taken everything up to `seq`.
    pub(crate) fn record_taken(&self, seq: u64) {
        if self.process.change_retention(|retention, next_seq| retention.handle_taken(self.id, seq, next_seq)) {
            self.process.report_followed();
        }
    }
}

impl Drop for OutputHold {
    fn drop(&mut self) {
        self.process.change_retention(|retention, _| {
            retention.remove_follower(self.id);
            true
        });
        self.process.report_followed();
    }
}

/// The facts about a process that the link knows when the process first appears.
pub(crate) struct ProcessInit {
    pub(crate) session: Arc<str>,
    pub(crate) meta: ProcessMeta,
    pub(crate) pid: u32,
    pub(crate) slot: u32,
    pub(crate) leader: Option<OwnedFd>,
    /// Output that an earlier server has already counted.
    pub(crate) counted: CountedOutput,
}

impl Process {
    pub(crate) fn new(init: ProcessInit, link: Arc<HolderLink>, control: Arc<ControlBlock>) -> Self {
        let released = control.status(init.slot);
        let taken = LogPosition { seq: released.released_seq, offset: released.released_offset };
        let process = Self::with_status_source(init, link, StatusSource::Shared(control), taken);
        // The beginning of an adopted log may have been released. A reader that asks for it gets a gap.
        process.log().chain.forget_below(taken.seq + 1, taken.offset);
        process
    }

    fn with_status_source(
        init: ProcessInit,
        link: Arc<HolderLink>,
        status_source: StatusSource,
        taken: LogPosition,
    ) -> Self {
        Self {
            session: init.session,
            meta: init.meta,
            pid: init.pid,
            slot: init.slot,
            metrics: link.metrics.clone(),
            created: Instant::now(),
            retention: Mutex::new(Retention::new(taken)),
            stdin: Mutex::default(),
            log: Mutex::new(ProcessLog::new(init.slot, status_source, init.counted)),
            holder: Mutex::new(HolderSide { link, leader: init.leader.map(Arc::new) }),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.meta.process_id
    }

    /// The id as sent on the wire.
    pub(crate) fn process_id(&self) -> ProcessId {
        ProcessId::new(self.id())
    }

    pub(crate) fn session_id(&self) -> SessionId {
        SessionId::new(self.session.clone())
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    pub(crate) fn link(&self) -> Arc<HolderLink> {
        self.holder.lock().link.clone()
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, ProcessLog> {
        self.log.lock()
    }

    /// The status that the holder publishes, with a synthetic end if the holder is dead.
    pub(crate) fn status(&self) -> LogStatus {
        self.log().status()
    }

    /// Gives up everything that is shared with the holder, and then tells the holder that it may reuse the slot and the
    /// memory. Readers that still have the process see an empty log.
    pub(crate) fn forget(self: &Arc<Self>) {
        // Drop the mappings before the segments are returned: after that the holder lets other processes write there.
        let segments = self.log().forget();
        // Before `Forget` is sent: a stdin operation must not reach the next process in this slot.
        self.forget_stdin();
        let link = self.link();
        for segment in segments {
            match segment.location {
                SegmentLocation::Memory => link.send(&ToHolder::Return { segment: segment.id }),
                // The holder removes its files on `Forget`. Without a holder, remove them here.
                SegmentLocation::Disk if link.is_broken() => link.release(self.slot, segment.id),
                SegmentLocation::Disk => {}
            }
        }
        link.forget(self.slot);
        link.save_archive();
        self.log().wake();
    }

    pub(crate) fn owner_position(&self) -> LogPosition {
        let retention = self.retention.lock();
        let first = self.log().chain.first();
        retention.owner_position(first.map(|(seq, _)| seq))
    }

    /// The output bytes up to and including event `seq`, if they are known: from the log, at the beginning, and at the
    /// owner's mark (a position of the owner with an exact offset).
    pub(crate) fn offset_at(&self, seq: u64) -> Option<u64> {
        if seq == 0 {
            return Some(0);
        }
        let known = self.log().offset_after(seq);
        known.or_else(|| {
            let mark = self.retention.lock().owner_mark();
            (mark.seq == seq).then_some(mark.offset)
        })
    }

    /// What the readers have taken. Changes that may make output releasable go through the methods of the process.
    pub(crate) fn retention(&self) -> MutexGuard<'_, Retention> {
        self.retention.lock()
    }

    /// Records that the owner has taken everything up to `position`.
    pub(crate) fn record_owner_taken(&self, position: LogPosition) {
        self.change_retention(|retention, next_seq| retention.handle_owner_taken(position, next_seq));
    }

    /// Drops the owner as a reader: all output counts as taken by it.
    pub(crate) fn abandon(&self) {
        self.change_retention(|retention, _| {
            retention.handle_owner_gone();
            true
        });
    }

    /// Adds a follower whose untaken output is kept. It begins after event `from`.
    pub(crate) fn hold(self: &Arc<Self>, from: u64) -> OutputHold {
        self.add_follower(FollowerKind::Holding, from, from)
    }

    /// Adds a polling follower that began after event `from` and has taken everything up to `seq`. It counts while its
    /// read is pending.
    pub(crate) fn poll(self: &Arc<Self>, from: u64, seq: u64) -> OutputHold {
        self.add_follower(FollowerKind::Polling, from, seq)
    }

    fn add_follower(self: &Arc<Self>, kind: FollowerKind, from: u64, seq: u64) -> OutputHold {
        let id = self.retention.lock().add_follower(kind, from, seq);
        self.report_followed();
        OutputHold { process: self.clone(), id }
    }

    /// Applies a change of what the readers have taken. If it returns true, releases the segments that no reader needs.
    /// The change also gets the number of the next event.
    fn change_retention(&self, change: impl FnOnce(&mut Retention, u64) -> bool) -> bool {
        let mut retention = self.retention.lock();
        let mut log = self.log();
        if !change(&mut retention, log.status().next_seq) {
            return false;
        }
        let gone = log.take_up_to(retention.releasable_seq());
        // `release` may do I/O, so no lock is held from here on.
        drop(log);
        drop(retention);
        for segment in gone {
            self.link().release(self.slot, segment);
        }
        true
    }

    /// Tells the holder what the followers have taken, if that has changed.
    fn report_followed(&self) {
        let link = self.link();
        if !link.supports(FOLLOWERS) {
            return;
        }
        // Held until the message is sent: otherwise a thread with an older value could send after one with a newer
        // value.
        let mut retention = self.retention.lock();
        let log = self.log();
        if log.is_forgotten() {
            return;
        }
        let first_seq = log.first_seq();
        drop(log);
        if let Some(seq) = retention.poll_followed(first_seq) {
            link.send(&ToHolder::Followed { slot: self.slot, seq });
        }
    }

    /// Gives up a damaged segment, so that readers get a gap instead of waiting forever.
    pub(crate) fn handle_damaged(&self, segment: u64) {
        tracing::error!(
            session = short_id(&self.session),
            process = self.id(),
            segment,
            "part of the log is damaged; it is reported as a gap"
        );
        self.log().chain.remove(segment);
    }

    /// Handles a segment that the holder wrote to disk. Cursors borrow only from the chain, so the memory can be
    /// returned at once. `forget` has already returned the segments of a forgotten process.
    pub(crate) fn handle_spilled(&self, segment: u64) {
        let mut log = self.log();
        if !log.is_forgotten() {
            log.chain.set_on_disk(segment);
            drop(log);
            self.link().send(&ToHolder::Return { segment });
        }
    }

    /// Handles a segment that the holder dropped, because of `dropOldest` or because all followers had taken it.
    /// Cursors that reach it get a gap. `forget` has already returned the segments of a forgotten process.
    pub(crate) fn handle_dropped(&self, segment: u64) {
        let mut log = self.log();
        if !log.is_forgotten() {
            log.chain.remove(segment);
            drop(log);
            self.link().send(&ToHolder::Return { segment });
            self.report_followed();
        }
    }

    /// Handles the death of the holder: answers all queued operations and lets readers see an end. The caller kills
    /// the remaining processes.
    pub(crate) fn handle_holder_lost(&self) {
        self.log().set_lost_end();
        self.fail_stdin();
        self.log().wake();
    }

    /// pidfd and pid of the leader, if the holder died before the process closed.
    pub(crate) fn leader(&self) -> Option<(Arc<OwnedFd>, u32)> {
        self.log().lost_end()?;
        let leader = self.holder.lock().leader.clone()?;
        Some((leader, self.pid))
    }

    /// How long the process has been closed and the owner could have known it. `None` if it is not closed. Each call
    /// without an attached owner, or before the owner has all output, restarts the clock.
    pub(crate) fn closed_for(&self, now: Instant, is_attached: bool) -> Option<Duration> {
        let mut retention = self.retention.lock();
        let status = self.status();
        status.closed_seq?;
        let now_ns = u64::try_from(now.duration_since(self.created).as_nanos()).unwrap_or(u64::MAX);
        Some(Duration::from_nanos(retention.closed_for_ns(now_ns, is_attached, status.next_seq)))
    }

    /// Whether the owner has taken everything: acknowledged it or, if the peer cannot acknowledge, been sent it.
    pub(crate) fn is_taken(&self) -> bool {
        let retention = self.retention.lock();
        retention.owner_has_all(self.status().next_seq)
    }

    /// Counts a gap that was reported to a reader.
    pub(crate) fn count_gap(&self, bytes: u64) {
        self.metrics.gaps.inc();
        self.metrics.gap_bytes.add(bytes);
    }

    /// Counts the output since the last call in the metrics.
    pub(crate) fn count_output(&self) {
        let uncounted = self.log().take_uncounted();
        self.metrics.output_bytes.add(uncounted.written);
        self.metrics.dropped_bytes.add(uncounted.dropped);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.count_output();
    }
}
