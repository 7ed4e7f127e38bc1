//! The holder of one session as a state machine. Its caller runs it in turns: each turn handles ready events and due
//! deadlines. Only the last turn blocks: it waits for the disk jobs.
//!
//! Defines the order within a turn: first the controller's commands, then children, then deadlines. The commands are in
//! [`dispatch`](crate::dispatch), the life of one process in [`process`](crate::process). The caller passes the current
//! time; this module reads no clock.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use exec_server_log::LogWriter;
use exec_server_process::IgnoredSignals;
use exec_server_session::{Lease, LeaseState, Ttl};

use crate::{
    ChildRestrictions, ChildSpawner, HolderConfig, HolderLimits,
    adoption::Adoption,
    archive_file::LeaseClock,
    archiving::ArchiveProgress,
    context::SessionContext,
    control::{ARCHIVES, CommandStatus, FromHolder, OLDEST_VERSION, TTL_NONE, VERSION},
    controller_listener::{AuthenticatedConnection, ControllerListener},
    manifest::{self, ManifestEntry},
    poller::{EventFlags, PollInterest, Poller, ReadyEvent},
    process::{Process, ProcessFd, ProcessPhase},
    process_end,
    reap::{self, DeadChild},
    session_end::{EndReason, SessionEnd},
    spawn_batch::PendingStart,
};

/// Maximum number of commands per turn, so that a flood of commands does not starve the children.
const COMMANDS_MAX: usize = 64;

/// Maximum number of commands read from a controller that has disconnected: more than a socket can hold.
const LAST_COMMANDS_MAX: usize = 4096;

/// While child events are handled, a waiting reader is woken once per this many events.
const WAKE_EVENTS: usize = 8;

// Epoll tokens of `Holder::poller`.
const CONTROLLER: u64 = 1;
const LISTENER: u64 = 2;
const CHILDREN: u64 = 3;
const SPILL: u64 = 4;
const SIGNALS: u64 = 5;

/// All state of one session's holder.
pub struct Holder<S: ChildSpawner> {
    poller: Poller,
    pub(crate) cx: SessionContext,
    /// Registration of `cx.children` in `poller`.
    children: PollInterest,
    /// Registration of the spill thread's eventfd in `poller`.
    spill: PollInterest,
    pub(crate) listener: ControllerListener,
    /// Present while the holder sends its whole state to a new controller.
    adoption: Option<Adoption>,
    pub(crate) lease: Lease,
    pub(crate) processes: BTreeMap<u32, Process>,
    pub(crate) spawner: S,
    /// Start requests collected while `receive_commands` reads commands. Empty again when `receive_commands` returns.
    pub(crate) pending_starts: Vec<PendingStart>,
    /// Earliest deadline of a process when the deadlines were last collected. May be too early, never too late.
    next_process_deadline: Option<u64>,
    pub(crate) ending: Option<SessionEnd>,
    /// A signalfd for SIGCHLD. Only if this OS process serves nothing but this holder ([`HolderConfig::exclusive`]).
    signals: Option<OwnedFd>,
    /// A child has died that may be a stray, that is, a descendant that is not a leader.
    has_dead_children: bool,
    /// How long the session may outlive its server.
    pub(crate) orphan_ttl: Ttl,
    /// When `orphan_ttl` runs out. Set only while no server is connected.
    orphan_ends_at: Option<u64>,
    /// Progress towards an archived session, which needs no holder.
    pub(crate) archiving: ArchiveProgress,
    /// The session is archived and needs no holder from now on. The holder ends with this turn.
    pub(crate) is_leaving: bool,
    pub(crate) limits: HolderLimits,
    pub(crate) dir: OwnedFd,
    info: Vec<u8>,
    pub(crate) nofile: Option<(u64, u64)>,
    /// The signals that this process ignores. Read once, because a holder never changes them. `None` if the process
    /// also serves something else, which may change them.
    pub(crate) ignored: Option<IgnoredSignals>,
    pub(crate) confine: ChildRestrictions,
    buf: Vec<u8>,
    /// Kept between turns to avoid an allocation.
    ready: Vec<ReadyEvent>,
    /// `wait` has filled `ready`, so this turn need not poll again.
    has_waited: bool,
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnResult {
    /// The next turn must run at this time at the latest.
    pub next_deadline_ns: Option<u64>,
    /// The holder is done. Drop it.
    pub ended: bool,
}

impl<S: ChildSpawner> Holder<S> {
    /// Creates the holder of a session. `controller` is a connected `SOCK_SEQPACKET` socket whose peer may send
    /// `Hello`.
    pub fn new(config: HolderConfig, controller: OwnedFd, spawner: S, now_ns: u64) -> io::Result<Self> {
        let poller = Poller::new()?;
        let mut cx = SessionContext::new(&config, now_ns)?;
        let mut listener = ControllerListener::open(&config.dir, config.secret, &poller, LISTENER)?;
        listener.add_pending(controller, &poller, now_ns);
        let signals = config.exclusive.then(reap::child_signals).transpose()?;
        if let Some(signals) = &signals {
            poller.set(&mut PollInterest::default(), signals.as_fd(), SIGNALS, EventFlags::IN)?;
        }
        let processes = restore(&config.dir, &mut cx)?;
        Ok(Self {
            poller,
            cx,
            children: PollInterest::default(),
            spill: PollInterest::default(),
            listener,
            adoption: None,
            lease: Lease::new(ttl(config.limits.ttl_ms), now_ns),
            processes,
            spawner,
            pending_starts: Vec::new(),
            next_process_deadline: None,
            ending: None,
            signals,
            has_dead_children: false,
            orphan_ttl: Ttl::None,
            orphan_ends_at: None,
            archiving: ArchiveProgress::default(),
            is_leaving: false,
            limits: config.limits,
            dir: config.dir,
            info: config.info,
            nofile: config.nofile,
            ignored: config.exclusive.then(IgnoredSignals::now),
            confine: config.confine,
            buf: Vec::new(),
            ready: Vec::new(),
            has_waited: false,
        })
    }

    /// The epoll fd. Readable when a turn has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Blocks until a turn has something to do or the timeout expires. May return early.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.poller.wait(&mut self.ready, timeout);
        self.has_waited = true;
    }

    /// Blocks until all disk jobs are done. For a simulation, whose clock does not advance while the spill thread
    /// works.
    pub fn wait_for_disk(&self) {
        self.cx.spill.wait();
    }

    /// Runs one turn: handles ready events and due deadlines. `now_ns` must not go backwards.
    pub fn turn(&mut self, now_ns: u64) -> TurnResult {
        self.cx.now_ns = now_ns;
        if !std::mem::take(&mut self.has_waited) {
            self.poller.ready(&mut self.ready);
        }
        // One bit per token.
        let ready_tokens = self.ready.iter().fold(0_u64, |all, event| all | (1 << event.token));
        let is_ready = |token: u64| ready_tokens & (1 << token) != 0;
        if is_ready(CONTROLLER) || self.cx.controller.is_recv_delayed() {
            self.cx.controller.flush();
            self.receive_commands(COMMANDS_MAX, Self::may_work);
        }
        if is_ready(LISTENER) || self.listener.deadline_ns().is_some_and(|at| now_ns >= at) {
            self.handle_listener();
        }
        if self.ending.is_none() && self.may_work() {
            if is_ready(SPILL) {
                self.handle_spilled();
            }
            if is_ready(CHILDREN) {
                self.handle_children();
            }
            self.handle_deadlines();
        }
        if is_ready(SIGNALS) {
            self.handle_child_signal();
        }
        if self.has_dead_children {
            self.reap_strays();
        }
        self.finish(now_ns)
    }

    /// Ends a turn: handles expiry, adoption, a lost controller and the end of the session, then decides what to watch
    /// next.
    fn finish(&mut self, now_ns: u64) -> TurnResult {
        if std::mem::take(&mut self.cx.has_kills) {
            process_end::kill_due(self.processes.values_mut(), &mut self.cx);
        }
        let is_orphan_ttl_over = self.orphan_ends_at.is_some_and(|at| now_ns >= at);
        if self.ending.is_none() && (self.lease.poll_expired(now_ns) || is_orphan_ttl_over) {
            if self.is_abandoned() {
                // Nothing was started here and the secret is gone. This holder must not end the session, which may
                // have another holder by now.
                self.end(EndReason::Abandoned);
            } else {
                self.cx.send(&FromHolder::Expired);
                self.end(EndReason::Expiry);
            }
        }
        // If the kernel is short of fds or memory, messages wait. No event reports the end of the shortage, so try again in
        // every turn.
        if self.cx.controller.deadline_ns(now_ns).is_some() {
            self.cx.controller.flush();
        }
        if let Some(adoption) = &mut self.adoption
            && adoption.turn(&self.processes, &mut self.cx)
        {
            self.adoption = None;
        }
        if self.cx.controller.is_lost() {
            // Handle what the lost controller sent before it disconnected, even if messages to it are still queued: its
            // commands may contain `End`.
            self.receive_commands(LAST_COMMANDS_MAX, |_| true);
        }
        if self.cx.controller.take_lost() {
            self.handle_controller_loss();
            if self.is_abandoned() {
                self.end(EndReason::Abandoned);
            }
        }
        self.cx.wake_reader();
        self.cx.recycle_cgroups();
        self.is_leaving = self.is_leaving || self.archive();
        self.submit_disk_jobs();
        self.cx.trim();
        if self.is_leaving && self.ending.is_none() {
            self.leave();
            return TurnResult { next_deadline_ns: None, ended: true };
        }
        if self.is_end_complete(now_ns) {
            return TurnResult { next_deadline_ns: None, ended: true };
        }
        if std::mem::take(&mut self.cx.has_new_deadline) {
            self.next_process_deadline = self.processes.values().filter_map(Process::deadline_ns).min();
        }
        self.watch();
        TurnResult { next_deadline_ns: self.deadline_ns(), ended: false }
    }

    /// Starts to end the session.
    pub(crate) fn end(&mut self, reason: EndReason) {
        if self.ending.is_none() {
            // Kill all processes in one step where the host supports it; then the holder only has to reap them. The
            // control group belongs to the session, so an abandoned holder may share it with its successor. It must
            // kill only its own processes.
            if reason != EndReason::Abandoned {
                self.cx.cgroups.kill_all();
            }
            self.ending = Some(SessionEnd::begin(reason, &self.processes, self.cx.now_ns));
        }
    }

    /// Applies a change between attached and detached: every process applies its overflow policy again.
    pub(crate) fn handle_attachment(&mut self) {
        self.cx.is_attached = self.lease.is_attached() && self.cx.controller.is_connected();
        for process in self.processes.values_mut() {
            process.reconsider(&mut self.cx);
        }
    }

    /// Executes up to `max` commands of the controller, while `may_continue` allows it.
    fn receive_commands(&mut self, max: usize, may_continue: impl Fn(&Self) -> bool) {
        let mut buf = std::mem::take(&mut self.buf);
        for _ in 0..max {
            if !may_continue(self) || self.ending.is_some() || self.is_leaving {
                break;
            }
            let Some(mut datagram) = self.cx.controller.recv(&mut buf) else { break };
            let fds = std::mem::take(&mut datagram.fds);
            let comes_alone = self.dispatch(datagram.bytes(&buf), fds);
            // If there is another command all the same, epoll reports it in the next turn. A lost controller has no next
            // turn.
            if comes_alone && !self.cx.controller.is_lost() {
                break;
            }
        }
        self.spawn_pending();
        self.buf = buf;
    }

    /// Whether no server will ever connect: the server that created this holder could not use it and removed or
    /// replaced its secret, and nothing has been started here.
    fn is_abandoned(&self) -> bool {
        self.processes.values().all(|process| process.is_restored) && !self.listener.is_secret_in(&self.dir)
    }

    fn handle_listener(&mut self) {
        for AuthenticatedConnection { socket, version, epoch } in
            self.listener.turn(&self.poller, &mut self.buf, self.cx.now_ns)
        {
            let is_supported = (OLDEST_VERSION..=VERSION).contains(&version);
            if !is_supported || epoch <= self.cx.controller.epoch() || self.ending.is_some() {
                let refused = FromHolder::Refused { version: VERSION, epoch: self.cx.controller.epoch() };
                let mut message = Vec::new();
                refused.encode(&mut message);
                // An error does not matter: the peer also sees the EOF that follows.
                crate::control::send_raw(&socket, &message, &[]).ok();
                continue;
            }
            self.cx.controller.mark_lost();
            if self.cx.controller.take_lost() {
                self.handle_controller_loss();
            }
            self.archiving.handle_new_controller();
            self.orphan_ttl = Ttl::None;
            self.orphan_ends_at = None;
            let is_first = self.cx.controller.epoch() == 0;
            self.cx.controller.replace(socket, epoch);
            self.send_welcome(epoch);
            if is_first {
                // This is the server that created the holder. Attach now: otherwise the time to live could run out
                // before the server's first `Attach` or `Detach`.
                self.attach();
            }
        }
    }

    fn send_welcome(&mut self, epoch: u64) {
        let LeaseClock { ttl_ms, detached_ns: since_ns } = self.lease_clock();
        let detached_for_ns = since_ns.map_or(0, |since_ns| self.cx.now_ns.saturating_sub(since_ns));
        let welcome = FromHolder::Welcome {
            // Announces the newest optional feature of this holder. The message layout itself is still `VERSION`.
            version: ARCHIVES,
            epoch,
            ttl_ms,
            detached_ms: detached_for_ns / 1_000_000,
            info: self.info.clone(),
        };
        self.cx.controller.send(&welcome, &self.cx.shared_fds());
        self.adoption = Some(Adoption::new(self.cx.now_ns));
    }

    /// The time to live of the session, and since when it has been detached.
    pub(crate) fn lease_clock(&self) -> LeaseClock {
        let detached_ns = match self.lease.state() {
            LeaseState::Detached { since_ns } => Some(since_ns),
            LeaseState::Attached { .. } | LeaseState::Expired => None,
        };
        let ttl_ms = match self.lease.ttl() {
            Ttl::Nanos(ns) => ns / 1_000_000,
            Ttl::None => TTL_NONE,
        };
        LeaseClock { ttl_ms, detached_ns }
    }

    /// Handles the loss of the controller: detaches the session, and the current time to live runs.
    fn handle_controller_loss(&mut self) {
        self.adoption = None;
        // Write the current log positions to the manifest: if this holder is killed before a server connects, the next
        // server can learn them only from there.
        self.cx.is_manifest_stale = true;
        self.cx.lent_segments.handle_controller_loss();
        if let Ttl::Nanos(ns) = self.orphan_ttl {
            self.orphan_ends_at = Some(self.cx.now_ns.saturating_add(ns));
        }
        self.lease.handle_detach(self.cx.controller.epoch(), self.cx.now_ns);
        if self.lease.is_used() {
            self.lease.handle_unused(self.cx.now_ns);
        }
        for process in self.processes.values_mut() {
            process.input.handle_controller_loss();
            // The followers of this log reconnect through the next server, which then sends `Followed` again.
            process.followed_seq = 0;
        }
        self.handle_attachment();
    }

    fn handle_spilled(&mut self) {
        // Call `take_outcome` first: it resets the eventfd. In the other order, the wake-up for an archive job that
        // finishes between the two calls would be lost.
        let outcome = self.cx.spill.take_outcome(self.cx.now_ns);
        if let Some(is_written) = self.cx.spill.take_archived() {
            self.handle_archive_written(is_written);
        }
        let Some(outcome) = outcome else { return };
        match (outcome.result, self.processes.get_mut(&outcome.slot)) {
            (Ok(()), Some(process)) => process.handle_spilled(outcome.id, &mut self.cx),
            (Ok(()), None) => self.cx.spill.unlink(outcome.slot, outcome.id),
            // Writes now pause until the retry time, and the `reconsider` calls below report the full disk as the
            // reason for blocked children. The manifest before this segment may not have been written either, so it is
            // due again.
            (Err(_), _) => self.cx.is_manifest_stale = true,
        }
        // Continue after the slot that was just served, so that one busy process does not keep the disk from the
        // others.
        let (before, after): (Vec<u32>, Vec<u32>) = self.processes.keys().partition(|slot| **slot <= outcome.slot);
        for slot in after.into_iter().chain(before) {
            if let Some(process) = self.processes.get_mut(&slot) {
                process.reconsider(&mut self.cx);
            }
        }
    }

    /// Hands the disk jobs of this turn to the spill thread, with a new manifest of the processes if the last one is
    /// stale.
    fn submit_disk_jobs(&mut self) {
        let is_due = self.cx.spill.needs_manifest(self.cx.is_manifest_stale);
        let manifest = is_due.then(|| self.encode_manifest());
        self.cx.is_manifest_stale &= !is_due;
        self.cx.spill.submit(manifest);
    }

    /// Encodes the current manifest of the processes.
    pub(crate) fn encode_manifest(&self) -> String {
        let processes: Vec<ManifestEntry> =
            self.processes.values().map(|process| process.manifest_entry(&self.cx)).collect();
        manifest::encode(&processes)
    }

    /// Prepares the exit of the holder without the end of its session: waits until all disk jobs are done.
    fn leave(&mut self) {
        self.cx.cgroups.remove();
        self.cx.spill.shut_down();
        self.cx.controller.flush();
    }

    fn handle_children(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        self.cx.children.ready(&mut ready);
        for (count, ReadyEvent { token, flags }) in ready.drain(..).enumerate() {
            if self.cx.controller.is_congested() {
                break;
            }
            // Collect wake-ups over a few events, so that an exit and the ends of its streams cause one wake-up. Do not
            // collect over more events: each may be a large amount of output.
            if count % WAKE_EVENTS == WAKE_EVENTS - 1 {
                self.cx.wake_reader();
            }
            let Some((slot, source)) = ProcessFd::from_token(token) else { continue };
            let Some(process) = self.processes.get_mut(&slot) else { continue };
            match source {
                ProcessFd::Exit => process.handle_exit(&mut self.cx),
                ProcessFd::Stdin => process.write_pending(&mut self.cx),
                ProcessFd::First | ProcessFd::Second => {
                    if flags.contains(EventFlags::OUT) {
                        process.write_pending(&mut self.cx);
                    }
                    if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                        process.handle_readable(usize::from(source == ProcessFd::Second), flags, &mut self.cx);
                    }
                }
            }
        }
        self.ready = ready;
    }

    fn handle_deadlines(&mut self) {
        let now_ns = self.cx.now_ns;
        if self.cx.spill.poll_pause_over(now_ns) {
            // Nothing attached or detached, but every process must apply its overflow policy again.
            self.handle_attachment();
        }
        if self.next_process_deadline.is_some_and(|at| now_ns >= at) {
            for process in self.processes.values_mut() {
                process.handle_deadline(&mut self.cx);
            }
            self.cx.has_new_deadline = true;
        }
    }

    fn handle_child_signal(&mut self) {
        if let Some(signals) = &self.signals {
            // One read of 128 bytes (`signalfd_siginfo`) consumes one signal. A further signal only causes another
            // check.
            rustix::io::read(signals, &mut [0; 128]).ok();
            self.has_dead_children = true;
        }
    }

    fn reap_strays(&mut self) {
        let classify = |pid: i32| {
            let mut leaders = self.processes.values().filter(|process| process.is_unreaped());
            match leaders.find(|process| process.pid == pid.unsigned_abs()).map(|process| process.phase) {
                // The next turn handles this exit, or the first turn in which the controller accepts messages again.
                Some(ProcessPhase::Running) => DeadChild::Leader,
                // The exit was handled, but the leader stays unreaped until its tail can be read.
                Some(ProcessPhase::Draining | ProcessPhase::Exited | ProcessPhase::Closed) => DeadChild::BlockedLeader,
                None => DeadChild::Stray,
            }
        };
        self.has_dead_children = reap::reap_strays(classify);
    }

    fn is_end_complete(&mut self, now_ns: u64) -> bool {
        let Some(ending) = &mut self.ending else { return false };
        if !ending.kill_and_reap(&mut self.processes, self.cx.is_exclusive, now_ns) {
            return false;
        }
        if ending.reason != EndReason::Abandoned {
            self.cx.cgroups.remove();
        }
        self.cx.spill.shut_down();
        ending.remove_session_files(&self.dir);
        if let EndReason::Command { req } = ending.reason {
            self.cx.send_done(Some(req), CommandStatus::Ok);
        }
        self.cx.controller.flush();
        true
    }

    /// Whether work that produces messages may run.
    pub(crate) fn may_work(&self) -> bool {
        self.adoption.is_none() && !self.cx.controller.is_congested()
    }

    fn watch(&mut self) {
        let may_work = self.may_work() && self.ending.is_none();
        self.cx.controller.watch(&self.poller, CONTROLLER, may_work);
        let events = if may_work { EventFlags::IN } else { EventFlags::empty() };
        // On ENOMEM the next turn tries again.
        self.poller.set(&mut self.children, self.cx.children.as_fd(), CHILDREN, events).ok();
        self.poller.set(&mut self.spill, self.cx.spill.event_fd(), SPILL, events).ok();
    }

    fn deadline_ns(&self) -> Option<u64> {
        let adoption = self.adoption.as_ref().map(Adoption::deadline_ns);
        let ending = self.ending.as_ref().map(SessionEnd::deadline_ns);
        // Count only deadlines that the next turn will act on. A past deadline that no turn clears would make the
        // caller spin without waiting.
        let is_ending = self.ending.is_some();
        let may_work = self.may_work() && !is_ending;
        let expiry = [self.lease.deadline_ns(), self.orphan_ends_at].map(|at| at.filter(|_| !is_ending));
        let archive = self.archiving.deadline_ns();
        let work = [self.next_process_deadline, self.cx.spill.deadline_ns(), archive].map(|at| at.filter(|_| may_work));
        let others = [adoption, ending, self.listener.deadline_ns(), self.cx.deadline_ns()];
        expiry.into_iter().chain(work).chain(others).flatten().min()
    }
}

/// Restores the processes of an archived session. All are closed and have complete logs on disk. A process whose files
/// are incomplete is left out; the server sees that it is missing.
fn restore(dir: &OwnedFd, cx: &mut SessionContext) -> io::Result<BTreeMap<u32, Process>> {
    let mut processes = BTreeMap::new();
    if LeaseClock::read(dir)?.is_none() {
        return Ok(processes);
    }
    for entry in manifest::read(dir)?.unwrap_or_default() {
        let recovered = exec_server_log::survey(dir.as_fd(), entry.slot)?;
        let slot = entry.slot;
        if let Some(writer) = LogWriter::restore(&cx.control, slot, &entry.status, &recovered) {
            cx.spill.take_over(writer.disk_segments());
            processes.insert(slot, Process::restore(entry, writer));
        }
    }
    // The manifest on disk already lists the restored processes. Without any, write a new one.
    cx.is_manifest_stale = processes.is_empty();
    Ok(processes)
}

/// Decodes a time to live from a control message.
pub(crate) fn ttl(ms: u64) -> Ttl {
    if ms == TTL_NONE { Ttl::None } else { Ttl::Nanos(ms.saturating_mul(1_000_000)) }
}
