//! The table of a session: names, slots, and the rules for when a name or a log is given up.
//!
//! Plain state under the session's lock. Must not know connections beyond telling the attached one to let a process go.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use exec_server_protocol::limits;
use tokio::{sync::Semaphore, task::unconstrained, time::Instant};

use exec_server_holder::wire::ToHolder;

use super::ttl_ms;
use crate::{connection::Peer, link::Link, process::Process, pump::Order};

/// What an empty session has left to live: time for a client to notice that its link is dead and to come back.
const EMPTY_TTL: Duration = Duration::from_secs(30);

/// Everything of a session that changes, under one lock that is never held across an await.
pub(super) struct State {
    pub(super) attached: Option<Arc<Peer>>,
    /// Since when no connection has it; not yet, for one that is being made.
    pub(super) detached_since: Option<Instant>,
    /// Time without a connection after which the session ends; `None` = never.
    pub(super) ttl: Option<Duration>,
    /// The client that attached last asked for a time to live.
    pub(super) is_ttl_asked: bool,
    /// The last attached client announced nothing: ids are free again 30 s after `closed`.
    pub(super) reference: bool,
    pub(super) processes: BTreeMap<String, Entry>,
    /// The holder's names; also holds processes that were hidden or forgotten and have no name any more.
    pub(super) by_slot: BTreeMap<u32, Arc<Process>>,
    pub(super) link: Option<Arc<Link>>,
    /// Its holder has left it to its files, which this server looks after.
    pub(super) is_archived: bool,
    /// The session is over; what still comes from its holder is expected.
    pub(super) over: bool,
    /// Subscriptions and waiting reads of other sessions.
    pub(super) users: usize,
    /// When a request of another session last restarted the clock.
    pub(super) used_at: Option<Instant>,
}

/// What a name stands for.
pub(super) enum Entry {
    /// Reserved; the gate is closed when the start is decided either way.
    Starting(Gate),
    Live(Arc<Process>),
}

/// One start: where later requests on its id wait.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<Decision>);

#[derive(Debug)]
struct Decision {
    taken: Semaphore,
    /// It waits no more for others, and counts as running.
    is_begun: AtomicBool,
    /// The client was told that nothing was started, but the holder has not said so yet.
    is_withdrawn: AtomicBool,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self(Arc::new(Decision {
            taken: Semaphore::new(0),
            is_begun: AtomicBool::new(false),
            is_withdrawn: AtomicBool::new(false),
        }))
    }

    /// The start has its slot.
    pub(super) fn begin(&self) {
        self.0.is_begun.store(true, Ordering::Relaxed);
    }

    /// The client is answered; the name stays reserved until the holder has decided.
    pub(crate) fn withdraw(&self) {
        self.0.is_withdrawn.store(true, Ordering::Release);
        self.0.taken.close();
    }

    pub(super) fn is_withdrawn(&self) -> bool {
        self.0.is_withdrawn.load(Ordering::Acquire)
    }

    /// The start is decided.
    pub(super) fn close(&self) {
        self.0.taken.close();
    }

    /// Returns when the start is decided. Waiters go on in the order in which they came.
    pub(super) async fn passed(&self) {
        // Not subject to the runtime's budget: a look that is put off for it would come behind those that came later.
        drop(unconstrained(self.0.taken.acquire()).await); // It never has a permit; closing it is what ends the wait.
    }
}

/// What is known under a process id.
pub(crate) enum Lookup {
    Live(Arc<Process>),
    Starting(Gate),
    Unknown,
}

impl Entry {
    pub(super) fn live(&self) -> Option<&Arc<Process>> {
        match self {
            Self::Live(process) => Some(process),
            Self::Starting(_) => None,
        }
    }

    pub(super) fn gate(&self) -> Option<&Gate> {
        match self {
            Self::Starting(gate) => Some(gate),
            Self::Live(_) => None,
        }
    }
}

impl State {
    /// Takes in a process that an earlier server left. Two of one name: the one that was forgotten while others held its log has no name any
    /// more, and the sweep comes back for it.
    pub(super) fn adopt(&mut self, process: Arc<Process>) {
        self.by_slot.insert(process.slot(), process.clone());
        let age = |process: &Process| (process.status().closed_seq.is_none(), process.meta.started_ms);
        let named = self.processes.get(process.id()).and_then(Entry::live);
        let (named, forgotten) = match named {
            Some(named) if age(named) > age(&process) => (None, Some(process)),
            other => (Some(process), other.cloned()),
        };
        if let Some(forgotten) = forgotten {
            forgotten.abandon();
        }
        if let Some(named) = named {
            self.processes.insert(named.id().to_owned(), Entry::Live(named));
        }
    }

    /// For a reference client an id is free again 30 s after `closed`, if its output was taken.
    pub(super) fn may_reuse_id(&self, process: &Process, now: Instant) -> bool {
        self.reference
            && process
                .closed_since(now, self.attached.is_some())
                .is_some_and(|since| now.duration_since(since) >= limits::CLOSED_ID_TAKEN)
    }

    /// Whether `most` processes run already, those that are being started counted, but for those that wait for others.
    pub(super) fn running_beyond(&self, most: usize) -> bool {
        // A look at each costs; where all together are too few there is no need.
        if self.processes.len() + self.by_slot.len() < most {
            return false;
        }
        let is_begun = |gate: &Gate| gate.0.is_begun.load(Ordering::Relaxed);
        let starting = self.processes.values().filter_map(Entry::gate).filter(|gate| is_begun(gate)).count();
        let running = self.by_slot.values().filter(|process| !process.has_ended()).count();
        starting + running >= most
    }

    /// Beyond the bound of closed processes the oldest that was taken goes.
    pub(super) fn make_room(&mut self, now: Instant, most: usize) {
        let attached = self.attached.is_some();
        let mut closed: Vec<(Instant, Arc<Process>)> = Vec::new();
        if self.processes.len() >= most {
            let live = self.processes.values().filter_map(Entry::live);
            closed = live
                .filter(|process| process.is_taken())
                .filter_map(|process| process.closed_since(now, attached).map(|since| (since, process.clone())))
                .collect();
        }
        if closed.len() >= most
            && let Some((_, oldest)) = closed.into_iter().min_by_key(|(since, _)| *since)
        {
            self.forget(&oldest);
        }
    }

    /// The id is still reserved by this very start.
    pub(super) fn is_starting(&self, id: &str, gate: &Gate) -> bool {
        self.processes.get(id).and_then(Entry::gate).is_some_and(|reserved| Arc::ptr_eq(&reserved.0, &gate.0))
    }

    pub(super) fn is_named(&self, process: &Arc<Process>) -> bool {
        self.processes.get(process.id()).and_then(Entry::live).is_some_and(|named| Arc::ptr_eq(named, process))
    }

    /// Frees a name, unless another process has it by now.
    pub(super) fn unname(&mut self, process: &Arc<Process>) {
        if self.is_named(process) {
            self.processes.remove(process.id());
        }
    }

    /// Gives a session that was emptied while no client is attached little time to live: its client may be about to mend its link,
    /// but nothing is left to come back for. A client that resumes the session sets the time to live anew.
    pub(super) fn shorten_if_empty(&mut self, now: Instant) {
        let is_empty = self.processes.is_empty() && self.by_slot.is_empty();
        if !is_empty || self.attached.is_some() || self.ttl.is_some_and(|ttl| ttl <= EMPTY_TTL) {
            return;
        }
        self.ttl = Some(EMPTY_TTL);
        self.detached_since = Some(now);
        if let Some(link) = &self.link {
            // Both, so that the holder's clock begins anew.
            link.send(&ToHolder::Attach);
            link.send(&ToHolder::Detach { ttl_ms: ttl_ms(self.ttl) });
        }
    }

    /// Drops a closed process. Its name goes at once; its log stays while others hold it, and the sweep comes back for it.
    pub(super) fn forget(&mut self, process: &Arc<Process>) {
        self.unname(process);
        process.abandon();
        if let Some(peer) = &self.attached {
            peer.mailbox.order(Order::Unfollow(process.clone()));
        }
        if process.has_holds() {
            return;
        }
        if self.by_slot.get(&process.slot()).is_some_and(|other| Arc::ptr_eq(other, process)) {
            self.by_slot.remove(&process.slot());
            process.forget();
        }
    }
}
