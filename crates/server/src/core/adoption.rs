//! Adoption: takes over the sessions that earlier servers left in the state directory.
//!
//! ```text
//!  scan ──▶ pending ──holder answers──▶ in the table
//!              │
//!              └──no live holder──▶ what is on disk: the record of a session without processes, the files of a dead
//!                                   holder, the tombstone of an expired session, or nothing (the session is lost)
//! ```
//! One task per session waits for the holder without a deadline: a holder that is stopped or starved still has running
//! children. Until the holder answers, the session is *pending*: the server knows the session, and answers requests for
//! it with the retryable error `sessionAdopting`. This module owns the table of pending sessions.

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use exec_server_protocol::process::AdoptingSession;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior},
};

use super::{Core, FoundSession, GoneReason, Principal};
use crate::session::{Session, SessionRecord, short_id};

/// How long server startup waits for holders. Then the server serves, and the sessions of holders that did not answer
/// stay pending.
const ADOPT_WITHIN: Duration = Duration::from_secs(5);

/// Interval of further attempts to reach a holder that accepts no connection or failed the handshake.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// Delay before the first further attempt. Short, because the holder may just be exiting.
const FIRST_RETRY_AFTER: Duration = Duration::from_millis(50);

const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The sessions whose holders have not answered yet.
#[derive(Default)]
pub(super) struct PendingSessions {
    sessions: Mutex<BTreeMap<String, PendingSession>>,
    /// Notified when a session is no longer pending.
    settled: Notify,
}

struct PendingSession {
    /// From the session's record. `None` where the record could not be read or was never written.
    principal: Option<Principal>,
    since: Instant,
}

impl PendingSessions {
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.lock().is_empty()
    }

    /// How long a session of this principal has been pending; `None` if it is not pending. Without a readable record
    /// the session's principal is unknown. Then any principal that names the id gets the answer, because
    /// `unknownSession` would make the session's client give it up.
    pub(super) fn pending_for(&self, id: &str, principal: &Principal) -> Option<Duration> {
        let sessions = self.sessions.lock();
        let pending = sessions.get(id)?;
        let is_own = pending.principal.as_ref().is_none_or(|owner| owner == principal);
        is_own.then(|| pending.since.elapsed())
    }

    /// Returns when no pending session matches.
    async fn settled(&self, matches: impl Fn(&str) -> bool) {
        loop {
            // Enable before the check, so that no notification between the two is missed.
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if !self.sessions.lock().keys().any(|id| matches(id)) {
                return;
            }
            settled.await;
        }
    }
}

/// A session is pending as long as its `Adoption` exists.
struct Adoption {
    core: Weak<Core>,
    id: String,
}

impl Adoption {
    fn begin(core: &Arc<Core>, id: String, principal: Option<Principal>) -> Self {
        core.pending.sessions.lock().insert(id.clone(), PendingSession { principal, since: Instant::now() });
        Self { core: Arc::downgrade(core), id }
    }

    /// Waits until the holder is adopted or dead. This is a task of the core, so it must not hold the core while it
    /// waits.
    async fn run(self, mut found: FoundSession) {
        let mut pause = FIRST_RETRY_AFTER;
        loop {
            match found {
                FoundSession::Holder { controller, secret } => match self.adopt_holder(controller, secret).await {
                    Ok(()) => return,
                    // The holder may have archived the session and exited just now. Look again soon, and do not log.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && pause == FIRST_RETRY_AFTER => {}
                    // The holder is never killed; the server tries again. A holder that no server reaches ends by
                    // itself when the session's time-to-live is over.
                    Err(error) => {
                        tracing::warn!(session = short_id(&self.id), %error, "handshake with the holder failed; trying again")
                    }
                },
                FoundSession::Silent => {}
                left => {
                    if let Some(core) = self.core.upgrade() {
                        core.adopt_without_holder(&self.id, left).await;
                    }
                    return;
                }
            }
            let Some(left) = self.inspect_again(pause).await else { return };
            found = left;
            pause = RETRY_EVERY;
        }
    }

    /// Checks again what is left of the session, until that can be read. `None` if nothing is left, if it will never be
    /// readable, or if the server ends.
    async fn inspect_again(&self, mut pause: Duration) -> Option<FoundSession> {
        loop {
            tokio::time::sleep(pause).await;
            pause = RETRY_EVERY;
            let (holders, session) = (self.core.upgrade()?.holders.clone(), self.id.clone());
            let inspected = tokio::task::spawn_blocking(move || holders.inspect(&session)).await;
            match inspected.map_err(io::Error::other).flatten() {
                Ok(found) => return found,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return None,
                // Try again: a directory that cannot be read at the moment does not show whether the holder lives.
                Err(_) => {}
            }
        }
    }

    async fn adopt_holder(&self, controller: OwnedFd, secret: [u8; 32]) -> io::Result<()> {
        let session = Session::adopt(&self.core, self.id.as_str().into(), controller, secret, epoch()).await?;
        let Some(core) = self.core.upgrade() else { return Ok(()) };
        tracing::info!(session = short_id(&self.id), processes = session.processes().len(), "adopted");
        core.metrics.adopted.inc();
        core.sessions.lock().insert(session.id.clone(), session);
        Ok(())
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.pending.sessions.lock().remove(&self.id);
            core.pending.settled.notify_waiters();
        }
    }
}

impl Core {
    /// Takes over what earlier servers left in the state directory, and starts the sweep. Call it once, before serving.
    /// Holders that do not answer in time are awaited in the background.
    pub async fn adopt(self: &Arc<Self>) -> io::Result<()> {
        let (holders, sandboxes) = (self.holders.clone(), self.sandboxes.clone());
        let scan = move || -> io::Result<Vec<_>> {
            let found = holders.scan()?.into_iter().map(|(id, found)| {
                let record = holders.read_record(&id).ok().flatten();
                (id, record, found)
            });
            let found = found.collect();
            sandboxes.adopt_placeholders();
            Ok(found)
        };
        let found = tokio::task::spawn_blocking(scan).await.map_err(io::Error::other).flatten()?;
        // Register all sessions as pending before the first is adopted and before any client can connect.
        let mut begun = Vec::new();
        for (id, record, found) in found {
            let record = record.and_then(|record| serde_json::from_slice::<SessionRecord>(&record).ok());
            let principal = record.map(|record| Principal::named(&record.principal));
            begun.push((Adoption::begin(self, id, principal), found));
        }
        // Adopt concurrently: a holder that does not answer must not delay the others.
        for (adopting, found) in begun {
            self.spawn(adopting.run(found));
        }
        // After a timeout the adoption tasks keep waiting.
        if tokio::time::timeout(ADOPT_WITHIN, self.pending.settled(|_| true)).await.is_err() {
            for id in self.pending.sessions.lock().keys() {
                tracing::error!(session = short_id(id), "the holder cannot be adopted now; waiting for it");
                self.metrics.adoption_failures.inc();
            }
        }
        self.spawn_sweep();
        Ok(())
    }

    fn spawn_sweep(self: &Arc<Self>) {
        let core = Arc::downgrade(self);
        self.spawn(async move {
            let mut tick = tokio::time::interval(SWEEP_EVERY);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                // Do not use the instant that `tick` returns, which is when the tick was due. If this server was
                // stopped for a while, that is long past. `sweep` would store it as the time at which a process closed,
                // and at the next tick the process would seem to have been closed for the whole pause.
                tick.tick().await;
                let Some(core) = core.upgrade() else { return };
                let now = Instant::now();
                let sessions: Vec<Arc<Session>> = core.sessions.lock().values().cloned().collect();
                sessions.into_iter().for_each(|session| session.sweep(now, core.config.closed_kept));
                core.check_state();
                if core.sandboxes.has_any() {
                    let sandboxes = core.sandboxes.clone();
                    // A panic in the job was already printed.
                    tokio::task::spawn_blocking(move || sandboxes.sweep()).await.unwrap_or(());
                }
                if !core.holders.can_create_holders() {
                    let holders = core.holders.clone();
                    // As above.
                    tokio::task::spawn_blocking(move || holders.repair()).await.unwrap_or(());
                }
            }
        });
    }

    /// Logs when the state directory is removed or replaced, and when it is back. Running processes continue either
    /// way.
    fn check_state(&self) {
        let is_lost = !self.holders.is_state_there();
        if self.state_lost.swap(is_lost, Ordering::Relaxed) == is_lost {
            return;
        }
        if is_lost {
            tracing::error!(
                "the state directory is gone or was replaced: running processes keep running, but new sessions cannot start processes, output \
                 cannot be spilled, and the next server will not find the processes; put the directory back, or end the processes and restart the server"
            );
        } else {
            tracing::info!("the state directory is back");
        }
    }

    /// Returns when the session is not pending.
    pub(crate) async fn session_settled(&self, id: &str) {
        self.pending.settled(|pending| pending == id).await;
    }

    /// The pending sessions of a principal.
    pub(crate) fn adopting(&self, principal: &Principal) -> Vec<AdoptingSession> {
        let sessions = self.pending.sessions.lock();
        let own = sessions.iter().filter(|(_, pending)| pending.principal.as_ref() == Some(principal));
        let describe = |(id, pending): (&String, &PendingSession)| AdoptingSession {
            session_id: id.as_str().into(),
            waiting_ms: u64::try_from(pending.since.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        own.map(describe).collect()
    }

    /// Takes over what is left of a session that has no live holder.
    async fn adopt_without_holder(self: &Arc<Self>, id: &str, found: FoundSession) {
        match found {
            FoundSession::Record(record) => {
                match Session::from_record(Arc::downgrade(self), id.into(), &record, None) {
                    Ok(session) => drop(self.sessions.lock().insert(session.id.clone(), session)),
                    Err(error) => self.discard(id, &format!("its record cannot be read: {error}")),
                }
            }
            FoundSession::Expired(text) => {
                self.remember_gone(id, GoneReason::expired_before(&text));
                self.discard(id, "it had expired");
            }
            FoundSession::DeadHolder(dead_holder) => {
                self.kill_cgroup(id).await;
                match Session::from_dead_holder(self, id.into(), dead_holder) {
                    Ok(session) => {
                        let processes = session.processes().len();
                        if session.is_archived() {
                            tracing::info!(
                                session = short_id(id),
                                processes,
                                "serving the archived session from its files"
                            );
                        } else {
                            tracing::error!(
                                session = short_id(id),
                                processes,
                                "the holder died; serving the output that it spilled"
                            );
                        }
                        self.sessions.lock().insert(session.id.clone(), session);
                    }
                    Err(error) => {
                        self.remember_gone(id, GoneReason::HolderLost);
                        self.discard(
                            id,
                            &format!("its holder died, and the files that it left cannot be read: {error}"),
                        );
                    }
                }
            }
            FoundSession::Lost => {
                self.kill_cgroup(id).await;
                self.remember_gone(id, GoneReason::HolderLost);
                self.discard(id, "its holder died");
            }
            // `Adoption::run` handles these.
            FoundSession::Holder { .. } | FoundSession::Silent => {}
        }
    }

    /// Calls `Holders::kill_cgroup` on a blocking thread, because it may wait.
    async fn kill_cgroup(&self, id: &str) {
        let (holders, session) = (self.holders.clone(), id.to_owned());
        // A panic in the job was already printed.
        tokio::task::spawn_blocking(move || holders.kill_cgroup(&session)).await.unwrap_or(());
    }

    fn discard(&self, id: &str, why: &str) {
        tracing::warn!(session = short_id(id), why, "session removed");
        if let Err(error) = self.holders.remove(id) {
            tracing::warn!(session = short_id(id), %error, "cannot remove the files of the session");
        }
    }
}

/// The epoch of this server: nanoseconds since boot. So each server has a higher one than the servers before it, as far
/// as a holder can see: holders do not survive a reboot.
fn epoch() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
