//! A session without a holder whose processes have all closed: their logs are files, and this server looks after them.
//!
//! ```text
//!  holder says Archived ──▶ nobody attached, nothing starts: Leave ──▶ end of file ──▶ archived ──▶ a start: another holder
//! ```
//! Owns when that happens, and the truth of the files from then on: the roll and the clock are written again when a process is
//! forgotten, when output is taken, and when a client attaches or leaves. Files of segments that nobody needs go after the roll that
//! does not name them, so that a kill in between leaves too much and never too little.
//!
//! Failure path: a file that cannot be written is tried again by the sweep.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use exec_server_holder::wire::ToHolder;
use tokio::time::Instant;

use super::{Entry, Session, short, ttl_ms};
use crate::{
    core::ArchiveFiles,
    link::Link,
    process::{Process, lock},
};

/// How long a holder that was told to leave may take to do it.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// What is kept about the files of an archived session.
#[derive(Default)]
pub(super) struct Archive {
    /// Held while they are written.
    turn: Mutex<()>,
    /// They are not what they should be; whoever has the next turn writes them.
    is_stale: AtomicBool,
    /// The last try failed.
    has_failed: AtomicBool,
}

impl Session {
    /// The holder has everything on disk and could leave.
    pub(crate) fn handle_archived(&self, link: &Arc<Link>) {
        let state = lock(&self.state);
        let is_quiet = state.attached.is_none()
            && !state.over
            && state.processes.values().all(|entry| matches!(entry, Entry::Live(_)))
            && state.by_slot.values().all(|process| process.is_on_disk());
        // Decided under the lock: a start that comes now finds that the holder leaves, and waits.
        if is_quiet {
            link.ask_to_leave();
        }
    }

    /// The holder has left as it was told.
    pub(crate) fn handle_left(self: &Arc<Self>) {
        let Some(core) = self.core.upgrade() else { return };
        tracing::debug!(session = short(&self.id), "its processes have closed; it is served from its files");
        self.record_ends();
        let link = Link::archive(core.holders.clone(), core.metrics.clone(), self);
        let mut state = lock(&self.state);
        state.by_slot.values().for_each(|process| process.archive(link.clone()));
        state.link = None;
        state.is_archived = true;
        drop(state);
        // A process that was forgotten on the way is in the files that the holder wrote.
        self.save_later();
    }

    /// Waits for a holder that is about to leave.
    pub(super) async fn departure_decided(&self) -> io::Result<()> {
        let Some(link) = lock(&self.state).link.clone().filter(|link| link.is_departing()) else { return Ok(()) };
        Ok(tokio::time::timeout(LEAVE_WITHIN, link.departure_decided()).await?)
    }

    /// Has the files written soon.
    pub(crate) fn save_later(self: &Arc<Self>) {
        if self.archive.is_stale.swap(true, Ordering::AcqRel) {
            return;
        }
        self.begin_save();
    }

    /// Tries again what has failed.
    pub(super) fn save_again(self: &Arc<Self>) {
        if self.archive.has_failed.swap(false, Ordering::AcqRel) {
            self.begin_save();
        }
    }

    fn begin_save(self: &Arc<Self>) {
        let Some(core) = self.core.upgrade() else { return };
        let session = self.clone();
        core.spawn(async move {
            tokio::task::spawn_blocking(move || session.save()).await.unwrap_or(());
        });
    }

    fn save(&self) {
        let _turn = lock(&self.archive.turn);
        if let Err(error) = self.write_archive() {
            tracing::warn!(session = short(&self.id), %error, "the files of the session are not up to date; trying again");
            self.archive.is_stale.store(true, Ordering::Release);
            self.archive.has_failed.store(true, Ordering::Release);
        }
    }

    /// Writes roll and clock as they are now. Blocking; the caller has the turn.
    fn write_archive(&self) -> io::Result<()> {
        self.archive.is_stale.store(false, Ordering::Release);
        let Some(core) = self.core.upgrade() else { return Ok(()) };
        let files = {
            let state = lock(&self.state);
            if !state.is_archived || state.over {
                return Ok(());
            }
            let mut files = ArchiveFiles {
                ttl_ms: ttl_ms(state.ttl),
                detached_for: state.detached_since.map(|since| Instant::now().duration_since(since)),
                processes: Vec::new(),
                segments: BTreeSet::new(),
            };
            for process in state.by_slot.values() {
                let (enrolled, segments) = process.enrolled();
                files.processes.push(enrolled);
                files.segments.extend(segments);
            }
            files
        };
        core.holders.write_archive(&self.id, &files)
    }

    /// Makes the files ready for another holder, which looks after them from now on.
    pub(super) async fn hand_over_archive(self: &Arc<Self>) -> io::Result<()> {
        let session = self.clone();
        let hand_over = move || {
            let _turn = lock(&session.archive.turn);
            session.write_archive()?;
            lock(&session.state).is_archived = false;
            Ok(())
        };
        tokio::task::spawn_blocking(hand_over).await.map_err(io::Error::other).flatten()
    }

    /// There is no holder after all.
    pub(super) fn take_back_archive(self: &Arc<Self>) {
        lock(&self.state).is_archived = true;
        self.save_later();
    }

    /// A new holder has taken up these processes of the session. It must have all that are known: it would give their slots, and with
    /// them the names of their files, to others.
    pub(super) fn rejoin(&self, link: &Arc<Link>, found: &[Arc<Process>]) -> io::Result<()> {
        let state = lock(&self.state);
        let is_found = |process: &Arc<Process>| found.iter().any(|known| is_same(known, process));
        if !state.by_slot.values().all(is_found) {
            return Err(io::Error::other("the files of its earlier processes cannot be taken over"));
        }
        for known in found {
            let slot = known.slot();
            match state.by_slot.get(&slot).filter(|process| is_same(known, process)) {
                Some(process) => process.rejoin(link.clone(), known),
                // Forgotten while the files were handed over.
                None => drop(link.status(|req| ToHolder::Forget { req, slot })),
            }
        }
        Ok(())
    }
}

fn is_same(known: &Process, process: &Process) -> bool {
    (known.slot(), known.pid, known.id()) == (process.slot(), process.pid, process.id())
}
