//! The process table of a session: names, slots, and the rules for when a name or a log is removed. A name is a process
//! id by which clients find the process.
//!
//! Plain state under the session's lock. Its only effect on connections is to tell the attached one to unfollow a
//! process.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, task::unconstrained, time::Instant};

use exec_server_holder::control::ToHolder;

use super::{Attachment, ttl_ms};
use crate::{
    connection::Peer,
    holder_link::{HolderLink, ProcessSlots},
    process::Process,
    pump::PumpCommand,
};

/// Remaining time-to-live of an empty session. Long enough for a client to notice a dead link and reconnect.
const EMPTY_TTL: Duration = Duration::from_secs(30);

/// The mutable state of a session, under one lock that is never held across an await.
#[derive(Default)]
pub(super) struct SessionState {
    pub(super) attached: Option<Arc<Peer>>,
    /// Since when no connection is attached. `None` while attached and while the session is being created.
    pub(super) detached_since: Option<Instant>,
    /// From the client that attached last.
    pub(super) attachment: Attachment,
    /// The highest `attempt` of a connection with the session's key; 0 before the first one.
    pub(super) last_attempt: u64,
    pub(super) processes: BTreeMap<String, ProcessEntry>,
    /// All processes. Also contains those without a name: hidden ones, forgotten ones that readers still hold, and
    /// those that started after their start was withdrawn. The task of the link has its own table for the messages of
    /// the holder.
    pub(super) by_slot: ProcessSlots,
    pub(super) link: Option<Arc<HolderLink>>,
    /// The holder has exited, and this server maintains the files.
    pub(super) is_archived: bool,
    /// The session has ended or expired. The end of the holder link is then expected.
    pub(super) is_over: bool,
    /// Number of subscriptions and waiting reads by other sessions.
    pub(super) users: usize,
    /// When a request of another session last restarted the clock.
    pub(super) used_at: Option<Instant>,
}

/// The state of a process id.
#[derive(Clone)]
pub(super) enum ProcessEntry {
    /// Reserved. The gate is closed when the start has succeeded or failed.
    Starting(StartGate),
    Live(Arc<Process>),
}

/// A pending start. Later requests for its id wait here.
#[derive(Clone, Debug)]
pub(crate) struct StartGate(Arc<StartDecision>);

#[derive(Debug)]
struct StartDecision {
    /// Never has a permit. Closing it releases the waiters.
    barrier: Semaphore,
    /// The start has left the queue and counts as running.
    is_begun: AtomicBool,
    /// The client got the error `holderSilent`, and the holder has not said yet whether the process started.
    is_withdrawn: AtomicBool,
}

impl StartGate {
    pub(super) fn new() -> Self {
        Self(Arc::new(StartDecision {
            barrier: Semaphore::new(0),
            is_begun: AtomicBool::new(false),
            is_withdrawn: AtomicBool::new(false),
        }))
    }

    /// Marks the start as admitted.
    pub(super) fn begin(&self) {
        self.0.is_begun.store(true, Ordering::Relaxed);
    }

    /// Releases the waiters, because the client gets its answer now. The name stays reserved until the holder has
    /// decided.
    pub(crate) fn withdraw(&self) {
        self.0.is_withdrawn.store(true, Ordering::Release);
        self.0.barrier.close();
    }

    pub(super) fn is_withdrawn(&self) -> bool {
        self.0.is_withdrawn.load(Ordering::Acquire)
    }

    /// Releases the waiters: the start has succeeded or failed.
    pub(super) fn close(&self) {
        self.0.barrier.close();
    }

    /// Returns when the start is decided or withdrawn. Waiters continue in arrival order.
    pub(super) async fn decided(&self) {
        // Exempt from Tokio's coop budget: a waiter whose poll the budget defers would continue after later ones. The
        // result is always an error: the semaphore never has a permit, so `acquire` returns only when it is closed.
        drop(unconstrained(self.0.barrier.acquire()).await);
    }
}

impl ProcessEntry {
    pub(super) fn live(&self) -> Option<&Arc<Process>> {
        match self {
            Self::Live(process) => Some(process),
            Self::Starting(_) => None,
        }
    }

    pub(super) fn gate(&self) -> Option<&StartGate> {
        match self {
            Self::Starting(gate) => Some(gate),
            Self::Live(_) => None,
        }
    }
}

impl SessionState {
    /// Adds a process that an earlier server left. If two have the same id, the older one had lost its name (see
    /// `by_slot`). It gets no name, and the sweep removes it later.
    pub(super) fn adopt(&mut self, process: Arc<Process>) {
        self.by_slot.insert(process.slot(), process.clone());
        // Most processes without a name have closed, so one that has not closed counts as the newer one.
        let recency = |process: &Process| (process.status().closed_seq.is_none(), process.meta.started_ms);
        let named = self.processes.get(process.id()).and_then(ProcessEntry::live);
        if named.is_some_and(|named| recency(named) > recency(&process)) {
            return process.abandon();
        }
        let older = self.processes.insert(process.id().to_owned(), ProcessEntry::Live(process));
        if let Some(ProcessEntry::Live(older)) = older {
            older.abandon();
        }
    }

    /// Whether the id of a closed process, whose output was taken, can be used again.
    pub(super) fn may_reuse_id(&self, process: &Process, now: Instant) -> bool {
        let Some(free_after) = self.attachment.rules.closed_id_free_after() else { return false };
        process.closed_for(now, self.attached.is_some()).is_some_and(|closed_for| closed_for >= free_after)
    }

    /// Whether at least `most` processes run already. Counts admitted starts, but not queued ones.
    pub(super) fn is_running_limit_reached(&self, most: usize) -> bool {
        // Counting is linear. Skip it if both tables together are too small to reach the bound.
        if self.processes.len() + self.by_slot.len() < most {
            return false;
        }
        let is_begun = |gate: &StartGate| gate.0.is_begun.load(Ordering::Relaxed);
        let starting = self.processes.values().filter_map(ProcessEntry::gate).filter(|gate| is_begun(gate)).count();
        let running = self.by_slot.values().filter(|process| !process.log().has_ended()).count();
        starting + running >= most
    }

    /// If there are `most` closed processes whose output was taken, forgets the one with the longest `closed_for`.
    pub(super) fn make_room(&mut self, now: Instant, most: usize) {
        // A cheap check first: what follows is linear.
        if self.processes.len() < most {
            return;
        }
        let attached = self.attached.is_some();
        let taken = self.processes.values().filter_map(ProcessEntry::live).filter(|process| process.is_taken());
        let closed: Vec<(Duration, Arc<Process>)> =
            taken.filter_map(|process| Some((process.closed_for(now, attached)?, process.clone()))).collect();
        // `min_by_key` returns the first of equally old ones, `max_by_key` would return the last.
        if closed.len() >= most
            && let Some((_, oldest)) = closed.into_iter().min_by_key(|(closed_for, _)| Reverse(*closed_for))
        {
            self.forget(&oldest);
        }
    }

    /// Whether this start still holds the reservation of the id.
    pub(super) fn is_starting(&self, id: &str, gate: &StartGate) -> bool {
        self.processes.get(id).and_then(ProcessEntry::gate).is_some_and(|reserved| Arc::ptr_eq(&reserved.0, &gate.0))
    }

    pub(super) fn is_named(&self, process: &Arc<Process>) -> bool {
        self.processes.get(process.id()).and_then(ProcessEntry::live).is_some_and(|named| Arc::ptr_eq(named, process))
    }

    /// Frees the name of a process, unless a newer process has the same name.
    pub(super) fn remove_name(&mut self, process: &Arc<Process>) {
        if self.is_named(process) {
            self.processes.remove(process.id());
        }
    }

    /// Shortens the time-to-live of a session that became empty while detached. Its client may be about to reconnect,
    /// but nothing is left to resume. A client that resumes sets the time-to-live again.
    pub(super) fn shorten_ttl_if_empty(&mut self, now: Instant) {
        let is_empty = self.processes.is_empty() && self.by_slot.is_empty();
        if !is_empty || self.attached.is_some() || self.attachment.ttl.is_some_and(|ttl| ttl <= EMPTY_TTL) {
            return;
        }
        self.attachment.ttl = Some(EMPTY_TTL);
        self.detached_since = Some(now);
        if let Some(link) = &self.link {
            // `Attach` and then `Detach` restart the holder's clock.
            link.send(&ToHolder::Attach);
            link.send(&ToHolder::Detach { ttl_ms: ttl_ms(self.attachment.ttl) });
        }
    }

    /// Drops a closed process. Its name is removed at once. If readers hold its log, the sweep removes the log later.
    pub(super) fn forget(&mut self, process: &Arc<Process>) {
        self.remove_name(process);
        process.abandon();
        if let Some(peer) = &self.attached {
            peer.outgoing.enqueue_command(PumpCommand::Unfollow(process.clone()));
        }
        if process.retention().has_holds() {
            return;
        }
        if self.by_slot.get(&process.slot()).is_some_and(|other| Arc::ptr_eq(other, process)) {
            self.by_slot.remove(&process.slot());
            process.forget();
        }
    }
}
