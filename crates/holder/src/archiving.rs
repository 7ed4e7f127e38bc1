//! Archives a session: when every process of a detached session has closed, the holder writes the rest of their logs to
//! disk and exits. The server then serves the files, and creates another holder when a process is started in the
//! session.
//!
//! ```text
//!          idle for long enough        all segments on disk       final manifest, lease clock on disk
//!  Waiting ─────────────────▶ Spilling ─────────────▶ Writing ──────────────────────▶ Reported ──▶ the holder exits
//!     ▲                          │                      │                                │
//!     └── attached, a start, a new server, a failed write of the final files ────────────┘
//! ```
//!
//! From `Reported`, the holder exits when the server sends `Leave`, or when no server is connected.
//!
//! This module decides the steps and their order; [`spill`](crate::spill) writes the segments and files. Until the
//! holder exits, the archive can be cancelled at every step: the files on disk are then spilled logs like any other.
//!
//! Failure paths:
//! - The disk or the quota is full: the holder stays and tries again later.
//! - The holder is killed before the last segment is written: the segments that are only in its memory are lost, unless
//!   a running server has mapped them.
//! - The holder is killed after that: nothing is lost. Even before the final manifest is written, the manifest on disk
//!   lists every process as closed: it is rewritten when a process closes, before any later segment.
//!
//! A holder stays if descendants have outlived their process, because they would die with the holder. It also stays if
//! a process received writes with a `writeId` (in the holder: a key): a client may repeat such a write, and only the
//! holder's ledger knows the answer.

use exec_server_session::LeaseState;

use crate::{
    ChildSpawner,
    control::{FromHolder, TTL_NONE},
    holder::Holder,
    process::{Process, ProcessPhase},
    reap,
};

/// Progress of the archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ArchiveStep {
    /// The session is in use, or has not been idle for long enough.
    #[default]
    Waiting,
    /// The spill thread is writing segments.
    Spilling,
    /// The spill thread is writing the final manifest and the lease clock (the file `archived`).
    Writing,
    /// Everything is on disk, and `Archived` was sent to the server, if one is connected. Sent again at `again_at`.
    Reported { again_at: u64 },
}

#[derive(Default)]
pub(crate) struct ArchiveProgress {
    /// The current or last server has sent `AllowArchive`, so it can serve a session without a holder.
    is_allowed: bool,
    step: ArchiveStep,
    /// When the archive may start. Used in `ArchiveStep::Waiting` only.
    due_at: Option<u64>,
}

impl ArchiveProgress {
    /// A new server has taken over. It may be of another release, so it must send `AllowArchive` itself.
    pub(crate) fn handle_new_controller(&mut self) {
        self.is_allowed = false;
    }

    pub(crate) fn allow(&mut self) {
        self.is_allowed = true;
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        match self.step {
            ArchiveStep::Waiting => self.due_at,
            ArchiveStep::Reported { again_at } => Some(again_at),
            ArchiveStep::Spilling | ArchiveStep::Writing => None,
        }
    }
}

impl<S: ChildSpawner> Holder<S> {
    /// Takes the steps that are possible in this turn. Returns true if everything is on disk and no server is connected
    /// or connecting. A connected server ends the holder with `Leave` instead ([`Holder::handle_leave`]).
    pub(crate) fn archive(&mut self) -> bool {
        if !self.may_archive() {
            self.cancel_archive();
            return false;
        }
        let now_ns = self.cx.now_ns;
        match self.archiving.step {
            ArchiveStep::Waiting => {
                let after_ns = self.archive_after_ns();
                let due_at = *self.archiving.due_at.get_or_insert(now_ns.saturating_add(after_ns));
                if now_ns >= due_at && self.may_write_archive() {
                    self.archiving.step = ArchiveStep::Spilling;
                    self.spill_for_archive();
                } else if now_ns >= due_at {
                    self.archiving.due_at = Some(now_ns.saturating_add(after_ns.max(RETRY_NS)));
                }
                false
            }
            ArchiveStep::Spilling => {
                self.spill_for_archive();
                false
            }
            ArchiveStep::Writing => false,
            // Wait while connections have not sent `Hello` yet: the next server may be among them.
            ArchiveStep::Reported { .. } if !self.cx.controller.is_connected() => !self.listener.has_pending(),
            ArchiveStep::Reported { again_at } => {
                if now_ns >= again_at {
                    self.report_archived();
                }
                false
            }
        }
    }

    /// Handles `Leave`. All commands that the server sent before it have been executed; only disk jobs may still be
    /// pending, and [`Holder::leave`] waits for them. If the session has become busy since `Archived`, the holder
    /// answers `Staying`.
    pub(crate) fn handle_leave(&mut self) {
        self.is_leaving = matches!(self.archiving.step, ArchiveStep::Reported { .. }) && self.may_archive();
        if !self.is_leaving {
            self.cx.send(&FromHolder::Staying);
        }
    }

    /// Handles the result of writing the manifest and the lease clock.
    pub(crate) fn handle_archive_written(&mut self, is_written: bool) {
        if self.archiving.step != ArchiveStep::Writing {
            return;
        }
        if is_written {
            self.report_archived();
        } else {
            self.cancel_archive();
        }
    }

    fn report_archived(&mut self) {
        let again_at = self.cx.now_ns.saturating_add(self.archive_after_ns().max(RETRY_NS));
        self.archiving.step = ArchiveStep::Reported { again_at };
        self.cx.send(&FromHolder::Archived);
    }

    /// Whether nothing needs this holder now: the session is detached, all processes have closed, no descendant runs,
    /// and no write with a key can be repeated. A session without processes has nothing to archive.
    fn may_archive(&self) -> bool {
        self.archiving.is_allowed
            && self.limits.archive_after_ms != TTL_NONE
            && self.ending.is_none()
            && self.may_work()
            && matches!(self.lease.state(), LeaseState::Detached { .. })
            && !self.processes.is_empty()
            && self
                .processes
                .values()
                .all(|process| process.phase == ProcessPhase::Closed && !process.input.has_ledger())
            // Check this only if our OS process serves nothing but this holder (`is_exclusive`). Otherwise it can have
            // children that do not belong to the session, as in a test.
            && !(self.cx.is_exclusive && reap::has_children())
    }

    fn archive_after_ns(&self) -> u64 {
        self.limits.archive_after_ms.saturating_mul(1_000_000)
    }

    /// Whether every process has disk quota left for its segments in memory, and no other holder has taken over this
    /// session.
    fn may_write_archive(&self) -> bool {
        let is_within_quota = |process: &Process| {
            let in_memory = process.writer.memory_segments();
            // `is_quota_full(n)` asks about segment n + 1, hence one less than the total.
            in_memory == 0 || !self.cx.spill.is_quota_full(process.writer.disk_segments() + in_memory - 1)
        };
        // The directory contains another secret if the server has created another holder.
        self.processes.values().all(is_within_quota) && self.listener.is_secret_in(&self.dir)
    }

    /// Spills the next segment. After the last segment, writes the final manifest and the lease clock.
    fn spill_for_archive(&mut self) {
        if !self.cx.spill.is_idle() {
            return;
        }
        let in_memory = self.processes.values().find_map(|process| {
            let segment = process.writer.oldest_sealed_in_memory()?;
            Some((process.slot, segment))
        });
        if let Some((slot, segment)) = in_memory {
            return self.cx.spill.begin(slot, segment, self.cx.now_ns);
        }
        let manifest = self.encode_manifest();
        self.cx.spill.begin_archive(manifest, self.lease_clock());
        self.archiving.step = ArchiveStep::Writing;
    }

    fn cancel_archive(&mut self) {
        if matches!(self.archiving.step, ArchiveStep::Writing | ArchiveStep::Reported { .. }) {
            self.cx.spill.cancel_archive();
        }
        self.archiving = ArchiveProgress { is_allowed: self.archiving.is_allowed, ..ArchiveProgress::default() };
    }
}

/// Minimum time between two attempts, and between two `Archived` messages that the server has not answered.
const RETRY_NS: u64 = 1_000_000_000;
