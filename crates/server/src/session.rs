//! A session: survives connections and is what a client resumes. Owns the table of processes and decides which
//! connection is attached.
//!
//! ```text
//!            attach                    detach                  time-to-live over
//!  created ─────────▶ attached        ─────────▶ detached(since) ─────────────▶ expired
//!                        │   ▲  takeover: the old connection is superseded and closed
//!                        └───┘
//! ```
//! A resume attaches a detached session again.
//!
//! If the session has a holder, the clock of the detached session runs in the holder, so it also runs while no server
//! does. Without a live holder (before the first process, or after the holder has exited) the clock runs here. Failure
//! path: if the holder dies, the session stays; its processes have ended and their output can still be read.

use std::{
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use exec_server_holder::control::{StartSpec, TTL_NONE, ToHolder};
use exec_server_protocol::limits;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{
    compat::ClientRules,
    connection::Peer,
    core::{Config, Core, DeadHolder, Holders, Principal, SavedClock},
    error::Failure,
    files::SessionFiles,
    holder_link::{FdShortage, HolderLink, HolderWelcome, ProcessSlots},
    process::{CountedOutput, Process, ProcessInit, ProcessMeta},
    pump::{FollowCommand, FollowRole, FollowStart, PeerCapabilities, PumpCommand},
    sandbox::Confinement,
};

mod archive;
mod audit_records;
mod process_table;
mod starting;
mod usage;

use self::archive::ArchiveState;
use self::process_table::{ProcessEntry, SessionState};
pub(crate) use self::{process_table::StartGate, usage::SessionUse};

/// How long a new holder may take to answer the server's hello.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// How long `end` waits for the holder. A stopped holder ends the session when it continues, because the request is in
/// its socket.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A session of one principal. Survives its connections, and the server through its holder.
pub struct Session {
    pub(crate) id: Arc<str>,
    pub(crate) principal: Principal,
    core: Weak<Core>,
    state: Mutex<SessionState>,
    /// The session's open files, and its share of the file jobs.
    pub(crate) files: SessionFiles,
    /// Held while the holder is being created, so that only one is created and starts keep their order.
    opening: tokio::sync::Mutex<()>,
    /// In strict audit mode, held from the audit record of a start until the start is sent, so that both have the same
    /// order.
    recording: tokio::sync::Mutex<()>,
    archive: ArchiveState,
}

/// The facts that a restarted server needs about a session. Stored in the session's directory and by its holder.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionRecord {
    pub(crate) principal: String,
    /// `None` = never expires.
    pub(crate) ttl_ms: Option<u64>,
    #[serde(flatten)]
    pub(crate) rules: ClientRules,
}

/// The session settings that a connection brings when it attaches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attachment {
    /// How long the session may be detached before it expires; `None` = unlimited.
    pub(crate) ttl: Option<Duration>,
    /// Whether the client asked for a time-to-live.
    pub(crate) is_ttl_asked: bool,
    pub(crate) rules: ClientRules,
}

/// Which connections a new connection may take the session from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachClaim {
    /// Any: for `takeover`, or for a session that is new.
    Any,
    /// Only this connection, which did not answer the ping. `None`: the session must be detached.
    From(Option<u64>),
}

/// A process as a start request describes it.
pub(crate) struct ProcessLaunch {
    pub(crate) meta: ProcessMeta,
    pub(crate) spec: StartSpec,
    /// The sandbox to run it in.
    pub(crate) confinement: Option<Confinement>,
    /// The requesting peer, named in the audit record.
    pub(crate) peer: Arc<str>,
}

impl Session {
    pub(crate) fn new(
        id: Arc<str>,
        principal: Principal,
        core: Weak<Core>,
        attachment: Attachment,
        detached_since: Option<Instant>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            principal,
            core,
            state: Mutex::new(SessionState { detached_since, attachment, ..SessionState::default() }),
            archive: ArchiveState::default(),
            files: SessionFiles::default(),
            opening: tokio::sync::Mutex::default(),
            recording: tokio::sync::Mutex::default(),
        })
    }

    /// Recreates a session from its record. The session counts as detached: since the time that `clock` tells, else
    /// from now on.
    pub(crate) fn from_record(
        core: Weak<Core>,
        id: Arc<str>,
        record: &[u8],
        clock: Option<SavedClock>,
    ) -> io::Result<Arc<Self>> {
        let record: SessionRecord = serde_json::from_slice(record).map_err(io::Error::other)?;
        let record_ttl = record.ttl_ms.map(Duration::from_millis);
        let (ttl, detached_for) = clock.map_or((record_ttl, None), |clock| (clock.ttl, clock.detached_for));
        let now = Instant::now();
        let since = now.checked_sub(detached_for.unwrap_or_default()).unwrap_or(now);
        let attachment = Attachment { ttl, is_ttl_asked: false, rules: record.rules };
        Ok(Self::new(id, Principal::named(&record.principal), core, attachment, Some(since)))
    }

    pub(crate) fn record(&self) -> Vec<u8> {
        let Attachment { ttl, rules, .. } = self.state.lock().attachment;
        let record = SessionRecord {
            principal: self.principal.as_str().to_owned(),
            ttl_ms: ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
            rules,
        };
        serde_json::to_vec(&record).expect("a record of strings and numbers serializes")
    }

    /// Whether no process of the session runs or is being started.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.processes.values().all(|entry| entry.live().is_some_and(|process| process.log().has_ended()))
            && state.by_slot.values().all(|process| process.log().has_ended())
    }

    pub(crate) fn attached(&self) -> Option<Arc<Peer>> {
        self.state.lock().attached.clone()
    }

    /// Attaches `peer` and supersedes the previous connection, if any. With `AttachClaim::From` the attach fails if the
    /// session is attached to a connection other than the named one: another client was faster and keeps the session.
    ///
    /// `attempt` is the number of a connection with the session's key. The attach fails unless it is the highest so far: an earlier attempt of
    /// the same client has arrived late, and must not take the session from a later one.
    pub(crate) fn attach(
        self: &Arc<Self>,
        peer: Arc<Peer>,
        attachment: Attachment,
        claim: AttachClaim,
        attempt: Option<u64>,
    ) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if state.is_over {
            return Err(Failure::UnknownSession { id: self.id.to_string() });
        }
        let id = peer.id;
        let other = state.attached.as_ref().map(|attached| attached.id).filter(|attached| *attached != id);
        if let (AttachClaim::From(silent), Some(other)) = (claim, other)
            && silent != Some(other)
        {
            return Err(Failure::SessionAttached { id: self.id.to_string() });
        }
        if let Some(attempt) = attempt {
            if attempt <= state.last_attempt {
                return Err(Failure::SessionAttached { id: self.id.to_string() });
            }
            state.last_attempt = attempt;
        }
        let old = state.attached.replace(peer).filter(|old| old.id != id);
        state.detached_since = None;
        state.attachment = attachment;
        if let Some(link) = &state.link {
            link.send(&ToHolder::Attach);
            link.send(&ToHolder::SetTtl { ttl_ms: ttl_ms(attachment.ttl) });
            self.limit_orphan(link, attachment.is_ttl_asked);
        }
        let is_archived = state.is_archived;
        drop(state);
        if is_archived {
            self.save_later();
        }
        if let Some(old) = old {
            old.supersede(self.id.clone());
        }
        Ok(())
    }

    /// Handles the end of a connection. Does nothing if another connection has taken the session over.
    pub(crate) fn detach(self: &Arc<Self>, peer: &Peer, now: Instant) {
        let mut state = self.state.lock();
        if state.attached.as_ref().is_none_or(|attached| attached.id != peer.id) {
            return;
        }
        state.attached = None;
        state.detached_since = Some(now);
        if let Some(link) = &state.link {
            link.send(&ToHolder::Detach { ttl_ms: ttl_ms(state.attachment.ttl) });
        }
        let is_archived = state.is_archived;
        drop(state);
        if is_archived {
            self.save_later();
        }
    }

    /// Tells the holder how long it may outlive this server. A time-to-live that the client asked for is not shortened.
    fn limit_orphan(&self, link: &HolderLink, is_ttl_asked: bool) {
        let limit = self.core.upgrade().and_then(|core| core.config.orphan_ttl);
        if limit.is_some() {
            link.send(&ToHolder::SetOrphanTtl { ttl_ms: ttl_ms(limit.filter(|_| !is_ttl_asked)) });
        }
    }

    /// Starts pushing every process to the connection, after its `initialized`.
    pub(crate) fn follow_all(&self, peer: &Peer, resumed: bool, now: Instant) {
        let state = self.state.lock();
        let capabilities = peer.capabilities();
        let cap = self.core.upgrade().map(|core| core.config.unacked_cap_bytes()).filter(|_| !capabilities.ack);
        for process in state.processes.values().filter_map(ProcessEntry::live) {
            // The client that started the process may have been able to acknowledge. This one cannot, so the log must
            // keep more.
            if let Some(bytes) = cap {
                process.link().send(&ToHolder::Cap { slot: process.slot(), bytes });
            }
            let position = process.owner_position();
            let start = if capabilities.ack || !resumed {
                FollowStart::After(position)
            } else {
                FollowStart::AwaitRead { until: now + limits::CATCH_UP_WAIT, sent: position }
            };
            peer.outgoing.enqueue_command(follow(process, start, capabilities));
        }
    }

    /// The link to the session's holder. Creates a holder for the first process, and for the first start after a holder
    /// archived the session.
    pub(crate) async fn link(self: &Arc<Self>) -> Result<Arc<HolderLink>, Failure> {
        let _opening = self.opening.lock().await;
        let failed = |source| Failure::HolderFailed { session: self.id.to_string(), source };
        self.departure_decided().await.map_err(failed)?;
        let (link, is_over, is_archived) = {
            let state = self.state.lock();
            (state.link.clone(), state.is_over, state.is_archived)
        };
        match link {
            Some(link) if !is_over && !link.is_broken() => return Ok(link),
            None if !is_over => {}
            Some(_) | None => return Err(self.holder_lost_failure()),
        }
        // Keep only `holders` across the await: this may run as a task of the core, which must not keep the core alive.
        let holders = self.core.upgrade().ok_or(Failure::Draining)?.holders.clone();
        if is_archived {
            self.hand_over_archive().await.map_err(failed)?;
        }
        let mut made = self.create_holder(holders.clone()).await;
        if made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            // The holder died before it answered the hello: the spawner may have died while it created the holder. Try
            // once more with a new spawner.
            made = self.create_holder(holders).await;
        }
        let made = made.inspect_err(|_| {
            // Undo `hand_over_archive`.
            if is_archived {
                self.state.lock().is_archived = true;
                self.save_later();
            }
        });
        let (link, welcome) = made.map_err(failed)?;
        let core = self.core.upgrade().ok_or(Failure::Draining)?;
        self.open(&core, link.clone(), welcome);
        Ok(link)
    }

    async fn create_holder(&self, holders: Arc<dyn Holders>) -> io::Result<(Arc<HolderLink>, HolderWelcome)> {
        let (socket, secret) = holders.create(&self.id, &self.record())?;
        let metrics = self.core.upgrade().map(|core| core.metrics.clone()).unwrap_or_default();
        let link = HolderLink::new(self.id.clone(), holders.clone(), metrics, socket)?;
        // Epoch 1 is the lowest: every server that adopts this holder later has a higher one.
        let hello = tokio::time::timeout(HELLO_WITHIN, link.hello(secret, 1, FdShortage::Fail)).await;
        let welcomed = hello.map_err(io::Error::from).flatten();
        match welcomed.and_then(|(welcome, found)| self.rejoin(&link, &found).map(|()| welcome)) {
            Ok(welcome) => Ok((link, welcome)),
            Err(error) => {
                // Before the link is dropped: a holder that loses its link and finds its secret removed or replaced
                // knows that no server will come back.
                holders.undo_create(&self.id);
                Err(error)
            }
        }
    }

    fn open(self: &Arc<Self>, core: &Arc<Core>, link: Arc<HolderLink>, welcome: HolderWelcome) {
        let mut state = self.state.lock();
        state.link = Some(link.clone());
        self.limit_orphan(&link, state.attachment.is_ttl_asked);
        let ttl_ms = ttl_ms(state.attachment.ttl);
        if state.attached.is_some() {
            link.send(&ToHolder::Attach);
            // The holder needs the time-to-live if the server is killed while the client is attached. Send it after
            // `Attach`: a holder that still counts as detached would apply a short time-to-live at once.
            link.send(&ToHolder::SetTtl { ttl_ms });
        } else {
            link.send(&ToHolder::Detach { ttl_ms });
        }
        drop(state);
        core.spawn(link.run(self.clone(), welcome));
    }

    /// Takes over the holder that an earlier server left. Does not hold the core while it waits for the holder's
    /// answer.
    pub(crate) async fn adopt(
        weak_core: &Weak<Core>,
        id: Arc<str>,
        socket: std::os::fd::OwnedFd,
        secret: [u8; 32],
        epoch: u64,
    ) -> io::Result<Arc<Self>> {
        let gone = || io::Error::other("the server is shutting down");
        let core = weak_core.upgrade().ok_or_else(gone)?;
        let link = HolderLink::new(id.clone(), core.holders.clone(), core.metrics.clone(), socket)?;
        drop(core);
        let (welcome, found) = link.hello(secret, epoch, FdShortage::Wait).await?;
        let core = weak_core.upgrade().ok_or_else(gone)?;
        let clock = SavedClock {
            ttl: (welcome.ttl_ms != TTL_NONE).then(|| Duration::from_millis(welcome.ttl_ms)),
            detached_for: Some(Duration::from_millis(welcome.detached_ms)),
        };
        let session = Self::from_record(weak_core.clone(), id, &welcome.info, Some(clock))?;
        session.mark_recorded_ends(&core.config.audit, &found);
        {
            let mut state = session.state.lock();
            found.into_values().for_each(|process| state.adopt(process));
            state.link = Some(link.clone());
        }
        core.spawn(link.run(session.clone(), welcome));
        Ok(session)
    }

    /// Creates a session from the files of a dead holder: its processes have ended, and their spilled output can be
    /// read.
    pub(crate) fn from_dead_holder(core: &Arc<Core>, id: Arc<str>, dead_holder: DeadHolder) -> io::Result<Arc<Self>> {
        let session = Self::from_record(Arc::downgrade(core), id, &dead_holder.record, dead_holder.clock)?;
        let is_whole = dead_holder.logs.iter().all(|(entry, recovered)| recovered.is_whole(&entry.status));
        let link = if is_whole {
            HolderLink::archive(core.holders.clone(), core.metrics.clone(), &session)
        } else {
            HolderLink::without_holder(session.id.clone(), core.holders.clone(), core.metrics.clone())
        };
        let mut state = session.state.lock();
        for (entry, recovered) in dead_holder.logs {
            let init = ProcessInit {
                session: session.id.clone(),
                meta: serde_json::from_slice(&entry.meta).map_err(io::Error::other)?,
                pid: entry.pid,
                slot: entry.slot,
                leader: None,
                // Count nothing here: the server that ran when the output was written has counted it.
                counted: CountedOutput { written: u64::MAX, dropped: u64::MAX },
            };
            let process = Arc::new(Process::from_dead_holder(init, link.clone(), entry.status, &recovered));
            state.adopt(process);
        }
        state.is_archived = is_whole;
        state.link = (!is_whole).then_some(link);
        session.mark_recorded_ends(&core.config.audit, &state.by_slot);
        drop(state);
        Ok(session)
    }

    /// Whether the session is archived: its holder has exited, and its files contain all that the holder had.
    pub(crate) fn is_archived(&self) -> bool {
        self.state.lock().is_archived
    }

    /// Reserves a process id, in arrival order. For some clients the id of a closed process becomes free after some
    /// time.
    pub(crate) fn reserve(&self, id: &str, now: Instant, config: &Config) -> Result<StartGate, Failure> {
        let mut state = self.state.lock();
        if state.is_over {
            drop(state);
            return Err(self.holder_lost_failure());
        }
        if let Some(entry) = state.processes.get(id) {
            if entry.gate().is_some_and(StartGate::is_withdrawn) {
                return Err(Failure::WithdrawnPending { program: id.to_owned() });
            }
            let Some(old) = entry.live().filter(|process| state.may_reuse_id(process, now)).cloned() else {
                return Err(Failure::DuplicateProcess { id: id.to_owned() });
            };
            state.forget(&old);
        }
        state.make_room(now, config.closed_processes);
        let gate = StartGate::new();
        state.processes.insert(id.to_owned(), ProcessEntry::Starting(gate.clone()));
        Ok(gate)
    }

    /// Handles the holder's report that a process has started.
    pub(crate) fn handle_started(&self, process: &Arc<Process>, gate: &StartGate) {
        self.record_running(process);
        let mut state = self.state.lock();
        state.by_slot.insert(process.slot(), process.clone());
        state.processes.insert(process.id().to_owned(), ProcessEntry::Live(process.clone()));
        drop(state);
        gate.close();
    }

    /// Handles the holder's report that a process has started whose start was withdrawn. It gets no name and is killed
    /// at once.
    pub(crate) fn handle_started_late(&self, process: &Arc<Process>, gate: &StartGate) {
        tracing::warn!(
            session = short_id(&self.id),
            pid = process.pid,
            "the holder started a process after its start was withdrawn; killing the process"
        );
        self.record_running(process);
        self.state.lock().by_slot.insert(process.slot(), process.clone());
        let slot = process.slot();
        // Ignore the reply: the log records the exit, and the sweep then forgets the process.
        drop(process.link().status(|req| ToHolder::Terminate { req, slot, grace_ms: None }));
        self.handle_start_failed(process.id(), gate);
    }

    /// Starts pushing a new process to the attached connection, after its start was answered.
    pub(crate) fn follow_new(&self, process: &Arc<Process>) {
        if let Some(peer) = self.attached().filter(|peer| peer.is_listening()) {
            let start = FollowStart::After(process.owner_position());
            peer.outgoing.enqueue_command(follow(process, start, peer.capabilities()));
        }
    }

    /// The state of a process id. A withdrawn start counts as unknown.
    fn lookup(&self, id: &str) -> Option<ProcessEntry> {
        let state = self.state.lock();
        let is_withdrawn = |entry: &ProcessEntry| entry.gate().is_some_and(StartGate::is_withdrawn);
        state.processes.get(id).filter(|entry| !is_withdrawn(entry)).cloned()
    }

    /// The process with this id; waits for a pending start. Waiters continue in arrival order.
    pub(crate) async fn process(&self, id: &str) -> Option<Arc<Process>> {
        loop {
            match self.lookup(id)? {
                ProcessEntry::Live(process) => return Some(process),
                ProcessEntry::Starting(gate) => gate.decided().await,
            }
        }
    }

    /// Waits until no start of this id is pending.
    pub(crate) async fn start_decided(&self, id: &str) {
        while let Some(ProcessEntry::Starting(gate)) = self.lookup(id) {
            gate.decided().await;
        }
    }

    pub(crate) fn by_slot(&self) -> ProcessSlots {
        self.state.lock().by_slot.clone()
    }

    pub(crate) fn processes(&self) -> Vec<Arc<Process>> {
        self.state.lock().processes.values().filter_map(ProcessEntry::live).cloned().collect()
    }

    /// Removes the name of a process. Its events are still sent, and the sweep forgets it after it has closed.
    pub(crate) fn hide(&self, process: &Arc<Process>) {
        self.state.lock().remove_name(process);
    }

    /// Drops a closed process and its log.
    pub(crate) fn forget(&self, process: &Arc<Process>) {
        self.record_end(process, None);
        let mut state = self.state.lock();
        state.forget(process);
        state.shorten_ttl_if_empty(Instant::now());
    }

    /// Ends the session and its processes, and waits until the holder has done so.
    pub(crate) async fn end(&self) {
        self.state.lock().is_over = true;
        self.files.end();
        // Wait for a holder that is being created. Otherwise nothing would end it.
        let opening = self.opening.lock().await;
        let link = self.state.lock().link.clone();
        drop(opening);
        if let Some(link) = link {
            let ended = link.status(|req| ToHolder::End { req });
            if tokio::time::timeout(END_WITHIN, ended.get()).await.is_err() {
                tracing::warn!(
                    session = short_id(&self.id),
                    "the holder does not answer; it will end the session when it runs again"
                );
            }
        }
        self.record_ends();
        if let Some(core) = self.core.upgrade() {
            core.remove(&self.id);
        }
    }

    /// Writes audit records for process ends that caused no wake-up.
    fn record_ends(&self) {
        let processes: Vec<Arc<Process>> = self.state.lock().by_slot.values().cloned().collect();
        for process in processes {
            self.record_end(&process, None);
        }
    }

    /// Handles the end of the session's time-to-live.
    pub(crate) fn handle_expired(&self) {
        let attached = {
            let mut state = self.state.lock();
            state.is_over = true;
            state.attached.clone()
        };
        self.files.end();
        // A client may have attached while the session was expiring. Close its connection; its next resume gets
        // `sessionExpired`.
        if let Some(peer) = attached {
            peer.close(1001, "session has expired; connect again");
        }
        if let Some(core) = self.core.upgrade() {
            let ended = self.processes().iter().map(|process| process.id().to_owned()).collect();
            core.expire(&self.id, ended);
        }
    }

    /// Handles the loss of the holder, or its expected exit if the session is over.
    pub(crate) fn handle_link_ended(&self, reason: &io::Error) {
        let (is_over, processes) = {
            let state = self.state.lock();
            // Keep the processes in the table: the sweep forgets them in time, with or without a holder.
            (state.is_over, state.by_slot.clone())
        };
        if !is_over {
            tracing::error!(session = %short_id(&self.id), %reason, "lost the holder; killing its processes");
        }
        for process in processes.values() {
            process.handle_holder_lost();
            self.record_end(process, is_over.then_some("sessionEnded"));
        }
        if let Some(core) = self.core.upgrade().filter(|_| !is_over) {
            core.metrics.holders_lost.inc();
            core.kill_orphans(self.id.clone(), processes.into_values().collect());
        }
        let mut state = self.state.lock();
        for gate in state.processes.values().filter_map(ProcessEntry::gate) {
            gate.close();
        }
        state.processes.retain(|_, entry| entry.live().is_some());
    }

    /// Periodic work: records ends, withdraws overdue starts, forgets closed processes whose time is over or that have
    /// no name and no reader, and runs the session's clock if no holder does.
    pub(crate) fn sweep(self: &Arc<Self>, now: Instant, kept: Duration) {
        self.record_ends();
        let link = self.state.lock().link.clone();
        if let Some(link) = link {
            link.withdraw_overdue(self);
        }
        self.save_again();
        let mut state = self.state.lock();
        let attached = state.attached.is_some();
        let is_done = |process: &&Arc<Process>| match process.closed_for(now, attached) {
            None => false,
            Some(_) if state.is_named(process) && process.meta.auto_forget => {
                // Forget only after following readers have received the end and an attached owner has taken it. One
                // waker may be the owner's feed, any other is of a following reader.
                !process.retention().has_holds()
                    && process.log().waker_count() <= usize::from(attached)
                    && (process.is_taken() || !attached)
            }
            Some(closed_for) if state.is_named(process) => closed_for >= kept,
            // Without a name, see `SessionState::by_slot`.
            Some(_) => process.is_taken() && !process.retention().has_holds(),
        };
        let done: Vec<Arc<Process>> = state.by_slot.values().filter(is_done).cloned().collect();
        for process in &done {
            state.forget(process);
        }
        if done.iter().any(|process| process.meta.auto_forget) {
            state.shorten_ttl_if_empty(now);
        }
        state.by_slot.values().for_each(|process| process.log().unload_idle());
        // While the holder is alive, it runs the session's clock.
        let expired = state.users == 0
            && state.link.as_ref().is_none_or(|link| link.is_broken())
            && state
                .attachment
                .ttl
                .zip(state.detached_since)
                .is_some_and(|(ttl, since)| now.duration_since(since) >= ttl);
        // Set under the lock, so that no connection can attach to an expired session.
        state.is_over |= expired;
        drop(state);
        if expired {
            self.handle_expired();
        }
    }

    /// The error for a missing holder: it died, or the session is over.
    pub(crate) fn holder_lost_failure(&self) -> Failure {
        let is_over = self.state.lock().is_over;
        match self.core.upgrade().filter(|_| is_over) {
            Some(core) => core.gone_failure(&self.id),
            None => Failure::HolderLost { session: self.id.to_string() },
        }
    }
}

fn follow(process: &Arc<Process>, start: FollowStart, capabilities: PeerCapabilities) -> PumpCommand {
    PumpCommand::Follow(FollowCommand { process: process.clone(), role: FollowRole::Owner, start, capabilities })
}

/// The time-to-live as the holder expects it. A very long one is clamped, because `TTL_NONE` means unlimited.
fn ttl_ms(ttl: Option<Duration>) -> u64 {
    ttl.map_or(TTL_NONE, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(TTL_NONE - 1).min(TTL_NONE - 1))
}

/// Shortens a session id for logs, because an id is a capability. An id of less than 8 bytes is not shown at all.
pub(crate) fn short_id(id: &str) -> &str {
    id.get(..8).unwrap_or("")
}
