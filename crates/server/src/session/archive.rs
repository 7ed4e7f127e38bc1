//! An archived session: all its processes have closed, its holder has exited, and this server maintains the log files.
//!
//! ```text
//!  holder sends Archived ──▶ detached and no start pending: Leave ──▶ EOF ──▶ archived ──▶ a start: another holder
//! ```
//! Decides when a holder may leave, and keeps the files correct afterwards. The server rewrites the manifest (the file
//! that lists the processes) and the clock when a process is forgotten, when output is taken, and when a client
//! attaches or detaches. It removes unneeded segment files only after it has written the manifest that no longer names
//! them. A kill in between leaves too many files, never too few.
//!
//! Failure path: the sweep retries a file that cannot be written.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{ProcessEntry, Session, short_id, ttl_ms};
use crate::{
    core::ArchiveFiles,
    holder_link::{HolderLink, ProcessSlots},
    process::Process,
};

/// How long a holder may take to exit after `Leave`.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Tracks whether the files of an archived session are up to date.
#[derive(Default)]
pub(super) struct ArchiveState {
    /// Held while the files are written.
    turn: Mutex<()>,
    /// The files are out of date, and a write that will bring them up to date is scheduled or due for a retry.
    is_stale: AtomicBool,
    /// The last write failed.
    has_failed: AtomicBool,
}

impl Session {
    /// Handles the holder's report that everything is on disk and that it could leave.
    pub(crate) fn handle_archived(&self, link: &Arc<HolderLink>) {
        let state = self.state.lock();
        let is_quiet = state.attached.is_none()
            && !state.is_over
            && state.processes.values().all(|entry| matches!(entry, ProcessEntry::Live(_)))
            && state.by_slot.values().all(|process| process.log().is_on_disk());
        // Decide under the lock: a start that arrives now sees that the holder is leaving, and waits.
        if is_quiet {
            link.request_leave();
        }
    }

    /// Handles the exit of a holder after `Leave`.
    pub(crate) fn handle_left(self: &Arc<Self>) {
        let Some(core) = self.core.upgrade() else { return };
        tracing::debug!(session = short_id(&self.id), "session archived: all its processes have closed");
        self.record_ends();
        let link = HolderLink::archive(core.holders.clone(), core.metrics.clone(), self);
        let mut state = self.state.lock();
        state.by_slot.values().for_each(|process| process.archive(link.clone()));
        state.link = None;
        state.is_archived = true;
        drop(state);
        // The holder's files may still list a process that was forgotten since.
        self.save_later();
    }

    /// Waits until a holder that was asked to leave has exited or declined.
    pub(super) async fn departure_decided(&self) -> io::Result<()> {
        let Some(link) = self.state.lock().link.clone().filter(|link| link.is_departing()) else { return Ok(()) };
        Ok(tokio::time::timeout(LEAVE_WITHIN, link.departure_decided()).await?)
    }

    /// Schedules a write of the files, unless one is already scheduled.
    pub(crate) fn save_later(self: &Arc<Self>) {
        if self.archive.is_stale.swap(true, Ordering::AcqRel) {
            return;
        }
        self.begin_save();
    }

    /// Retries a write that failed.
    pub(super) fn save_again(self: &Arc<Self>) {
        if self.archive.has_failed.swap(false, Ordering::AcqRel) {
            self.begin_save();
        }
    }

    fn begin_save(self: &Arc<Self>) {
        let Some(core) = self.core.upgrade() else { return };
        let session = self.clone();
        let save = move || {
            let _turn = session.archive.turn.lock();
            if let Err(error) = session.write_archive() {
                tracing::warn!(session = short_id(&session.id), %error, "cannot update the files of the archived session; trying again");
                session.archive.is_stale.store(true, Ordering::Release);
                session.archive.has_failed.store(true, Ordering::Release);
            }
        };
        // A panic in the job was already printed.
        core.spawn(async move { tokio::task::spawn_blocking(save).await.unwrap_or(()) });
    }

    /// Writes the manifest and the clock as they are now. Blocking; the caller holds `turn`.
    fn write_archive(&self) -> io::Result<()> {
        // Clear the flag before taking the snapshot: a later change sets it again and schedules another write.
        self.archive.is_stale.store(false, Ordering::Release);
        let Some(core) = self.core.upgrade() else { return Ok(()) };
        let files = {
            let state = self.state.lock();
            if !state.is_archived || state.is_over {
                return Ok(());
            }
            let mut files = ArchiveFiles {
                ttl_ms: ttl_ms(state.attachment.ttl),
                detached_for: state.detached_since.map(|since| Instant::now().duration_since(since)),
                processes: Vec::new(),
                segments: BTreeSet::new(),
            };
            for process in state.by_slot.values() {
                let (entry, segments) = process.manifest_entry();
                files.processes.push(entry);
                files.segments.extend(segments);
            }
            files
        };
        core.holders.write_archive(&self.id, &files)
    }

    /// Brings the files up to date and hands them over to a new holder, which maintains them from now on.
    pub(super) async fn hand_over_archive(self: &Arc<Self>) -> io::Result<()> {
        let session = self.clone();
        let hand_over = move || {
            let _turn = session.archive.turn.lock();
            session.write_archive()?;
            session.state.lock().is_archived = false;
            Ok(())
        };
        tokio::task::spawn_blocking(hand_over).await.map_err(io::Error::other).flatten()
    }

    /// Connects the session's processes to a new holder. `found` are the processes that the holder took over from the
    /// files. Fails if one is missing: the holder would give its slot, and with it the names of its files, to another
    /// process.
    pub(super) fn rejoin(&self, link: &Arc<HolderLink>, found: &ProcessSlots) -> io::Result<()> {
        let state = self.state.lock();
        let is_found = |process: &Arc<Process>| found.get(&process.slot()).is_some_and(|other| is_same(other, process));
        if !state.by_slot.values().all(is_found) {
            return Err(io::Error::other("the new holder did not take over all processes of the archived session"));
        }
        for (slot, other) in found {
            match state.by_slot.get(slot).filter(|process| is_same(other, process)) {
                Some(process) => process.rejoin(link.clone(), other),
                // Forgotten by the server while the files were handed over.
                None => link.forget(*slot),
            }
        }
        Ok(())
    }
}

/// Whether two views of the same slot are the same process.
fn is_same(one: &Process, other: &Process) -> bool {
    (one.pid, one.id()) == (other.pid, other.id())
}
