//! The server's connection to a session's holder: sends requests, matches replies, and forwards the holder's wake-ups
//! to the processes.
//!
//! Sending never blocks: messages that the socket does not accept are queued in order and sent later. The queue has no
//! limit of its own. It holds requests that wait for a reply, and small messages about segments, readers and the
//! session's clock. After the handshake, only the link's task receives.
//!
//! Failure path: EOF or an error on receive ends the link. Then every waiting request is answered. Unless the holder
//! left on request, every process that has not closed gets a synthetic end.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use exec_server_holder::control::{self, AnnouncedSegment, CommandStatus, FromHolder, StartSpec, ToHolder};
use exec_server_log::{ControlBlock, SegmentInfo, SegmentLocation};
use exec_server_protocol::process::CloseStdinStatus;
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Notify, oneshot, watch},
};

use crate::{
    core::Holders,
    descriptors::ReservedFd,
    error::Failure,
    metrics::Metrics,
    process::{CountedOutput, Process, ProcessInit, ProcessMeta},
    pump::Reply,
    sandbox::ProcessSandbox,
    session::{Session, StartGate, short_id},
};

mod mapping_cache;
mod starts;

pub(crate) use self::mapping_cache::LentMapping;
use self::mapping_cache::MappingCache;

pub(crate) struct HolderLink {
    /// The id of the holder's session.
    session: Arc<str>,
    /// The session itself, set when the link starts running.
    live_session: OnceLock<Weak<Session>>,
    holders: Arc<dyn Holders>,
    pub(crate) metrics: Arc<Metrics>,
    /// `None` if the link was created without a live holder.
    socket: Option<AsyncFd<OwnedFd>>,
    /// Encoded messages that the socket has not accepted yet, oldest first.
    unsent: Mutex<VecDeque<HolderMessage>>,
    /// Notified when a message is added to `unsent`.
    unsent_added: Notify,
    waiters: Mutex<ReplyWaiters>,
    /// Set by the holder's `Welcome`.
    setup: OnceLock<HolderSetup>,
    /// Mappings of the holder's memory that no log uses now.
    mappings: Arc<MappingCache>,
    /// Whether the holder is about to exit because the session is archived.
    departure: watch::Sender<HolderDeparture>,
    /// The session is archived: its files contain everything that its last holder had.
    is_archive: bool,
}

/// The exit of a holder that archives its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HolderDeparture {
    /// The holder stays.
    No,
    /// The server has sent `Leave`, and the holder has not answered.
    Asked,
    /// The link to the holder has ended, for any reason.
    Done,
}

/// The processes of a holder by slot number. Owned by the task of the link.
pub(crate) type ProcessSlots = BTreeMap<u32, Arc<Process>>;

/// An encoded message, and the sandbox whose fds are sent with it.
struct HolderMessage {
    /// The request number, if the message has a reply.
    req: Option<u32>,
    bytes: Vec<u8>,
    confined: Option<Arc<ProcessSandbox>>,
}

impl HolderMessage {
    fn send(&self, socket: &OwnedFd) -> io::Result<()> {
        let fds = self.confined.as_ref().map(|confined| confined.parts.kit.parts().1).unwrap_or_default();
        control::send_raw(socket, &self.bytes, &fds)
    }
}

/// The part of a holder's `Welcome` that the link needs as long as it lives.
struct HolderSetup {
    control: Arc<ControlBlock>,
    feature_level: u32,
}

#[derive(Default)]
struct ReplyWaiters {
    /// The link has ended, or never had a holder. No waiter can be added.
    is_closed: bool,
    next: u32,
    waiting: BTreeMap<u32, ReplyWaiter>,
}

/// The recipient of a holder's reply. The references are weak because sessions and processes own their link.
pub(crate) enum ReplyWaiter {
    Start {
        meta: ProcessMeta,
        gate: StartGate,
        /// `None` once the start was withdrawn: it was answered with an error because the holder did not reply in time.
        /// The holder may still start the process.
        reply: Option<Reply>,
        /// The sandbox of the start, to explain a failure.
        confined: Option<Arc<ProcessSandbox>>,
        /// Kept free for the pidfd of the leader.
        reserved: ReservedFd,
        session: Weak<Session>,
        /// Number of sweeps that have found the start pending. Sweeps are counted instead of time: a server that was
        /// itself stopped must not mistake its own pause for the holder's silence.
        sweeps: u32,
        /// The search path for a program name without a slash. Named in the error if the program is not found.
        search_path: Option<String>,
    },
    /// The front of this process's stdin queue.
    Stdin(Weak<Process>),
    /// The process in this slot was forgotten.
    Forget { slot: u32 },
    /// The reply is a status.
    Done(oneshot::Sender<CommandStatus>),
}

/// Delay before a retry when the host is short of fds or memory.
const SHORT_OF_RESOURCES: Duration = Duration::from_millis(100);

/// How `recv` treats EMFILE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FdShortage {
    /// Wait until an fd is available. Until then the holder's messages stay in the socket.
    Wait,
    /// Return an error: the holder is new and has started nothing, and a client waits for an answer.
    Fail,
}

/// Whether a retry can succeed: the socket is full, or the host is short of fds or memory.
pub(crate) fn is_temporary(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || control::is_shortage(error)
}

/// A status that the holder will send. The request is already sent; dropping this only ignores the reply.
pub(crate) struct PendingStatus(oneshot::Receiver<CommandStatus>);

impl PendingStatus {
    /// `None` if there is no holder, or if it died before it replied.
    pub(crate) async fn get(self) -> Option<CommandStatus> {
        self.0.await.ok()
    }
}

/// The contents of a holder's `Welcome`.
pub(crate) struct HolderWelcome {
    pub(crate) info: Vec<u8>,
    pub(crate) ttl_ms: u64,
    pub(crate) detached_ms: u64,
    wakeup: AsyncFd<OwnedFd>,
}

impl HolderLink {
    pub(crate) fn new(
        session: Arc<str>,
        holders: Arc<dyn Holders>,
        metrics: Arc<Metrics>,
        socket: OwnedFd,
    ) -> io::Result<Arc<Self>> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = exec_server_rpc::register(socket, Interest::READABLE)?;
        Ok(Arc::new(Self::with_socket(session, holders, metrics, Some(socket))))
    }

    fn with_socket(
        session: Arc<str>,
        holders: Arc<dyn Holders>,
        metrics: Arc<Metrics>,
        socket: Option<AsyncFd<OwnedFd>>,
    ) -> Self {
        Self {
            session,
            live_session: OnceLock::new(),
            holders,
            metrics,
            unsent: Mutex::default(),
            unsent_added: Notify::new(),
            waiters: Mutex::new(ReplyWaiters { is_closed: socket.is_none(), ..ReplyWaiters::default() }),
            socket,
            setup: OnceLock::new(),
            mappings: Arc::default(),
            departure: watch::Sender::new(HolderDeparture::No),
            is_archive: false,
        }
    }

    /// Creates a link for a holder that died before this server could adopt it. Nothing is sent on the link. It gives
    /// access to the spilled output.
    pub(crate) fn without_holder(session: Arc<str>, holders: Arc<dyn Holders>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self::with_socket(session, holders, metrics, None))
    }

    /// Creates a link for an archived session, whose files this server maintains. The link uses neither an fd nor a
    /// mapping.
    pub(crate) fn archive(holders: Arc<dyn Holders>, metrics: Arc<Metrics>, session: &Arc<Session>) -> Arc<Self> {
        let link = Self { is_archive: true, ..Self::with_socket(session.id.clone(), holders, metrics, None) };
        link.live_session.set(Arc::downgrade(session)).ok(); // Always succeeds: the link is new.
        Arc::new(link)
    }

    /// Whether this link stands for the files of an archived session.
    pub(crate) fn is_archive(&self) -> bool {
        self.is_archive
    }

    /// Sends `Leave`, unless it was already sent or a request waits for its reply.
    pub(crate) fn request_leave(&self) {
        if self.waiters.lock().waiting.is_empty() && !self.is_departing() {
            self.departure.send_replace(HolderDeparture::Asked);
            self.send(&ToHolder::Leave);
        }
    }

    /// Whether `Leave` was sent and the holder has neither declined nor exited.
    pub(crate) fn is_departing(&self) -> bool {
        *self.departure.borrow() == HolderDeparture::Asked
    }

    /// Returns when the holder has declined to leave or its link has ended.
    pub(crate) async fn departure_decided(&self) {
        let mut departure = self.departure.subscribe();
        // The sender is in `self`, so the wait cannot fail.
        departure.wait_for(|departure| *departure != HolderDeparture::Asked).await.ok();
    }

    fn socket(&self) -> io::Result<&AsyncFd<OwnedFd>> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Returns to the holder a segment that no reader needs. Without a live holder, removes the segment's file. For an
    /// archived session, the next update of its files does so.
    pub(crate) fn release(&self, slot: u32, segment: u64) {
        if !self.is_broken() {
            self.send(&ToHolder::Release { slot, segment });
            return self.send(&ToHolder::Return { segment });
        }
        if self.is_archive {
            return self.save_archive();
        }
        let name = exec_server_log::disk_name(slot, segment);
        if let Err(error) = self.holders.remove_segment(&self.session, &name) {
            tracing::warn!(session = short_id(&self.session), name, %error, "cannot remove spilled output; it stays until the session ends");
        }
    }

    /// Schedules an update of the session's files, if the session is archived. Called after a process was forgotten or
    /// output was taken.
    pub(crate) fn save_archive(&self) {
        if let Some(session) = self.live_session.get().and_then(Weak::upgrade).filter(|_| self.is_archive) {
            session.save_later();
        }
    }

    /// Sends a message that has no reply.
    pub(crate) fn send(&self, message: &ToHolder<'_>) {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        if let Err(error) = self.send_or_queue(HolderMessage { req: None, bytes: encoded, confined: None }) {
            // The receiving side sees the same error and cleans up.
            tracing::debug!(session = short_id(&self.session), %error, "message to the holder not sent");
        }
    }

    /// Requests the start of a process, in a sandbox if one is given.
    pub(crate) fn start(&self, waiter: ReplyWaiter, spec: StartSpec, confined: Option<Arc<ProcessSandbox>>) {
        let kit = confined.as_ref().map(|confined| confined.parts.kit.parts().0);
        // If this fails, the waiter has been answered.
        self.request(waiter, confined, |req| match kit {
            Some(kit) => ToHolder::StartConfined { req, kit, spec },
            None => ToHolder::Start { req, spec },
        });
    }

    /// Whether the holder's feature level is at least `since`.
    pub(crate) fn supports(&self, since: u32) -> bool {
        self.setup.get().is_some_and(|setup| setup.feature_level >= since)
    }

    /// Sends a request whose reply goes to `waiter`, with the fds of `confined`. If it cannot be sent, fails the waiter
    /// and returns false. If the holder has died and the link does not know it yet, returns true, and the end of the
    /// link fails the waiter.
    pub(crate) fn request<'a>(
        &self,
        waiter: ReplyWaiter,
        confined: Option<Arc<ProcessSandbox>>,
        message: impl FnOnce(u32) -> ToHolder<'a>,
    ) -> bool {
        let mut waiters = self.waiters.lock();
        if waiters.is_closed {
            drop(waiters);
            waiter.fail(io::ErrorKind::BrokenPipe.into());
            return false;
        }
        waiters.next = waiters.next.wrapping_add(1);
        let req = waiters.next;
        waiters.waiting.insert(req, waiter);
        drop(waiters);
        let mut bytes = Vec::new();
        message(req).encode(&mut bytes);
        // If the link ended in between, `end` has already answered the waiter.
        if let Err(error) = self.send_or_queue(HolderMessage { req: Some(req), bytes, confined })
            && let Some(waiter) = self.take_waiter(req)
        {
            waiter.fail(error);
            return false;
        }
        true
    }

    /// Sends a message now or queues it. An error means that it will never be sent.
    fn send_or_queue(&self, message: HolderMessage) -> io::Result<()> {
        if message.bytes.len() > control::LARGE_MAX {
            return Err(Errno::MSGSIZE.into());
        }
        if self.is_broken() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut unsent = self.unsent.lock();
        if unsent.is_empty() {
            match message.send(self.socket()?.get_ref()) {
                Ok(()) => return Ok(()),
                // The holder is dead. Report nothing here: its last messages are still in the socket and may tell why.
                // The waiter is answered when the link ends.
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    return Ok(());
                }
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
        unsent.push_back(message);
        drop(unsent);
        self.unsent_added.notify_one();
        Ok(())
    }

    /// Sends a request whose reply is a status.
    pub(crate) fn status(&self, message: impl FnOnce(u32) -> ToHolder<'static>) -> PendingStatus {
        let (tx, rx) = oneshot::channel();
        self.request(ReplyWaiter::Done(tx), None, message);
        PendingStatus(rx)
    }

    /// Tells the holder that the process in this slot was forgotten, so that the holder may reuse the slot.
    pub(crate) fn forget(&self, slot: u32) {
        // Fails only if there is no holder to tell.
        self.request(ReplyWaiter::Forget { slot }, None, |req| ToHolder::Forget { req, slot });
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.waiters.lock().is_closed
    }

    /// The error for requests that a broken link did not accept.
    pub(crate) fn broken_failure(&self) -> Failure {
        match self.live_session.get().and_then(Weak::upgrade) {
            Some(session) => session.holder_lost_failure(),
            None => Failure::HolderLost { session: self.session.to_string() },
        }
    }

    pub(crate) fn open_segment(&self, name: &str) -> io::Result<File> {
        self.holders.open_segment(&self.session, name)
    }

    /// Sends the hello and receives the holder's state and its processes, up to `Ready`.
    pub(crate) async fn hello(
        self: &Arc<Self>,
        secret: [u8; 32],
        epoch: u64,
        shortage: FdShortage,
    ) -> io::Result<(HolderWelcome, ProcessSlots)> {
        self.send(&ToHolder::Hello { version: control::VERSION, secret, epoch });
        let mut welcome = None;
        let mut slots = ProcessSlots::new();
        loop {
            let (message, mut fds) = self.recv(shortage).await?;
            match message {
                FromHolder::Welcome { version: level, info, ttl_ms, detached_ms, .. } if fds.len() == 2 => {
                    if level >= control::ARCHIVES {
                        self.send(&ToHolder::AllowArchive);
                    }
                    // The fds are the control block and the eventfd.
                    let wakeup = exec_server_rpc::register(fds.remove(1), Interest::READABLE)?;
                    let control = ControlBlock::open(fds.remove(0)).map_err(io::Error::other)?;
                    // Ignores a second `Welcome` on the same link.
                    self.setup.set(HolderSetup { control: Arc::new(control), feature_level: level }).ok();
                    welcome = Some(HolderWelcome { info, ttl_ms, detached_ms, wakeup });
                }
                FromHolder::Process(info) => {
                    let control = self.control()?;
                    let before = control.status(info.slot);
                    let init = ProcessInit {
                        session: self.session.clone(),
                        meta: serde_json::from_slice(&info.meta).map_err(io::Error::other)?,
                        pid: info.pid,
                        slot: info.slot,
                        leader: fds.pop(),
                        counted: CountedOutput { written: before.written, dropped: before.dropped },
                    };
                    slots.insert(info.slot, Arc::new(Process::new(init, self.clone(), control)));
                }
                FromHolder::Segment(info) => {
                    if let Some(process) = slots.get(&info.slot) {
                        push_segment(process, &self.mappings, &info, fds.pop())?;
                    }
                }
                FromHolder::Ready => {
                    let welcome = welcome.ok_or_else(|| io::Error::other("the holder sent `Ready` before `Welcome`"));
                    return Ok((welcome?, slots));
                }
                FromHolder::Refused { version, epoch } => {
                    return Err(io::Error::other(format!(
                        "the holder refused this server: its message layout is {version}, and its last server had epoch {epoch}"
                    )));
                }
                other => {
                    return Err(io::Error::other(format!(
                        "unexpected message from the holder before `Ready`: {other:?}"
                    )));
                }
            }
        }
    }

    fn control(&self) -> io::Result<Arc<ControlBlock>> {
        let setup = self.setup.get().ok_or_else(|| io::Error::other("the holder has not sent `Welcome`"))?;
        Ok(setup.control.clone())
    }

    /// Receives one message. Cancel safe: a message leaves the socket only when it is returned.
    async fn recv(&self, shortage: FdShortage) -> io::Result<(FromHolder, Vec<OwnedFd>)> {
        let socket = self.socket()?;
        loop {
            let mut ready = socket.readable().await?;
            match control::recv(socket.get_ref()) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if shortage == FdShortage::Wait && Errno::from_io_error(&error) == Some(Errno::MFILE) => {
                    tracing::warn!(session = short_id(&self.session), %error, "no free fd to receive a message from the holder; trying again");
                    tokio::time::sleep(SHORT_OF_RESOURCES).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Serves the link until the holder closes it.
    pub(crate) async fn run(self: Arc<Self>, session: Arc<Session>, welcome: HolderWelcome) {
        self.live_session.set(Arc::downgrade(&session)).ok(); // A link runs once, so it was not set before.
        // A copy that only this task uses, so that finding the log to wake takes no lock of the session.
        let mut slots = session.by_slot();
        let ended = loop {
            self.wake_dirty(&session, &slots);
            // Every branch is cancel safe: they wait only for readiness and notifications.
            tokio::select! {
                biased;
                message = self.recv(FdShortage::Wait) => match message {
                    Ok((message, fds)) => self.handle(&session, &mut slots, message, fds),
                    Err(error) => break error,
                },
                ready = welcome.wakeup.readable() => {
                    // The eventfd is not read: Tokio registers it edge-triggered, so each write of the holder is a new
                    // event. Its counter does not overflow in centuries.
                    if let Ok(mut ready) = ready {
                        ready.clear_ready();
                    }
                }
                () = self.flush_unsent() => {}
            }
        };
        self.end(&session, &ended);
    }

    /// Wakes the processes whose logs have grown, until no dirty flag is left and the session's wake-up is armed.
    fn wake_dirty(&self, session: &Session, slots: &ProcessSlots) {
        let Some(HolderSetup { control, .. }) = self.setup.get() else { return };
        loop {
            control.take_dirty(|slot| {
                if let Some(process) = slots.get(&slot) {
                    process.log().wake();
                    session.record_end(process, None);
                }
            });
            if !control.arm() {
                return;
            }
        }
    }

    /// Sends queued messages when the socket has room. It watches for writability only while the queue is not empty:
    /// otherwise every message that the holder reads would wake a thread here.
    async fn flush_unsent(&self) {
        if self.unsent.lock().is_empty() {
            self.unsent_added.notified().await;
        }
        // A second fd, because epoll accepts each fd only once and the socket's first fd is registered for reading.
        let copy = self.socket().and_then(|socket| socket.get_ref().try_clone());
        let Ok(room) = copy.and_then(|fd| exec_server_rpc::register(fd, Interest::WRITABLE)) else {
            // No fd to watch the socket with. Retry by time, because possibly no message arrives that would wake this
            // task.
            tokio::time::sleep(SHORT_OF_RESOURCES).await;
            self.flush_some().ok(); // What is left is sent by the next call of this function.
            return;
        };
        while let Ok(mut ready) = room.writable().await {
            match self.flush_some() {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(_) => tokio::time::sleep(SHORT_OF_RESOURCES).await,
            }
        }
    }

    /// Sends queued messages. Fails if some must stay queued for now: the socket's buffer is full (`WouldBlock`), or
    /// the host is short of fds or memory.
    fn flush_some(&self) -> io::Result<()> {
        let mut unsent = self.unsent.lock();
        let Ok(socket) = self.socket() else { return Ok(()) };
        while let Some(message) = unsent.front() {
            match message.send(socket.get_ref()) {
                Err(error) if is_temporary(&error) => return Err(error),
                // Sent, or impossible to send. In the second case the receiving side sees the end of the link.
                Ok(()) | Err(_) => drop(unsent.pop_front()),
            }
        }
        Ok(())
    }

    fn take_waiter(&self, req: u32) -> Option<ReplyWaiter> {
        self.waiters.lock().waiting.remove(&req)
    }

    fn handle(
        self: &Arc<Self>,
        session: &Arc<Session>,
        slots: &mut ProcessSlots,
        message: FromHolder,
        mut fds: Vec<OwnedFd>,
    ) {
        match message {
            FromHolder::Started { req, slot, pid } => {
                if let Some(process) = self.handle_started(session, req, slot, pid, fds.pop()) {
                    slots.insert(slot, process);
                }
            }
            FromHolder::StartFailed { req, stage, errno, detail } => {
                self.handle_start_failed(session, req, stage, errno, &detail);
            }
            FromHolder::Written { req, status, done } => {
                if let Some(ReplyWaiter::Stdin(process)) = self.take_waiter(req)
                    && let Some(process) = process.upgrade()
                {
                    process.handle_written(status, done);
                }
            }
            FromHolder::Done { req, status } => match self.take_waiter(req) {
                Some(ReplyWaiter::Stdin(process)) => {
                    if let Some(process) = process.upgrade() {
                        process.handle_stdin_closed(close_status(status));
                    }
                }
                Some(ReplyWaiter::Done(done)) => done.send(status).unwrap_or(()), // Fails if the caller has left.
                // The holder replies before it uses the slot again, so this removes the right process.
                Some(ReplyWaiter::Forget { slot }) => drop(slots.remove(&slot)),
                Some(ReplyWaiter::Start { .. }) | None => {}
            },
            FromHolder::Segment(info) => {
                // The shared status can show the end of a log before the message about its last segment arrives, so the
                // process may already be forgotten.
                if let Some(process) = slots.get(&info.slot).filter(|process| !process.log().is_forgotten())
                    && let Err(error) = push_segment(process, &self.mappings, &info, fds.pop())
                {
                    tracing::error!(session = short_id(&self.session), slot = info.slot, %error, "cannot map a segment of the log");
                }
            }
            FromHolder::Spilled { slot, segment } => {
                self.metrics.spilled_segments.inc();
                if let Some(process) = slots.get(&slot) {
                    process.handle_spilled(segment);
                }
            }
            FromHolder::Dropped { slot, segment } => {
                if let Some(process) = slots.get(&slot) {
                    process.handle_dropped(segment);
                }
            }
            FromHolder::Retired { segment } => self.mappings.retire(segment),
            FromHolder::Expired => session.handle_expired(),
            FromHolder::Archived => session.handle_archived(self),
            FromHolder::Staying => drop(self.departure.send_replace(HolderDeparture::No)),
            FromHolder::Welcome { .. } | FromHolder::Refused { .. } | FromHolder::Process(_) | FromHolder::Ready => {
                tracing::warn!(
                    session = short_id(&self.session),
                    "the holder repeated a message of the handshake; ignoring it"
                );
            }
        }
    }

    fn end(&self, session: &Arc<Session>, reason: &io::Error) {
        // Close and take under one lock: no waiter can be added in between.
        let waiting = {
            let mut waiters = self.waiters.lock();
            waiters.is_closed = true;
            std::mem::take(&mut waiters.waiting)
        };
        if self.is_departing() {
            session.handle_left();
        } else {
            session.handle_link_ended(reason);
        }
        waiting.into_values().for_each(|waiter| waiter.fail(io::ErrorKind::BrokenPipe.into()));
        self.departure.send_replace(HolderDeparture::Done);
    }
}

impl ReplyWaiter {
    /// Answers a pending start because the holder is dead (`BrokenPipe`) or the request could not be sent. Only drops
    /// the other kinds of waiters.
    fn fail(self, error: io::Error) {
        // `Process::fail_stdin` answers stdin operations. The caller who waits for a status sees its sender dropped.
        let Self::Start { meta, gate, reply, session, .. } = self else { return };
        let session = session.upgrade();
        if let Some(session) = &session {
            session.handle_start_failed(&meta.process_id, &gate);
        }
        if let Some(reply) = reply {
            reply.fail(&match session {
                // Only while the server ends: the sender of the request holds the session.
                None => Failure::Draining,
                Some(session) if error.kind() == io::ErrorKind::BrokenPipe => session.holder_lost_failure(),
                Some(_) => Failure::Resources { program: meta.program(), source: error },
            });
        }
    }
}

fn push_segment(
    process: &Process,
    mappings: &Arc<MappingCache>,
    info: &AnnouncedSegment,
    fd: Option<OwnedFd>,
) -> io::Result<()> {
    let (location, mapping) = match (info.on_disk, fd) {
        (true, _) => (SegmentLocation::Disk, None),
        (false, Some(fd)) => (SegmentLocation::Memory, Some(mappings.map(info, fd)?)),
        (false, None) => return Err(io::Error::other("memory segment without its descriptor")),
    };
    let AnnouncedSegment { id, base_seq, base_offset, sealed, .. } = *info;
    process.log().push(SegmentInfo { id, base_seq, base_offset, location, sealed }, mapping);
    Ok(())
}

fn close_status(status: CommandStatus) -> CloseStdinStatus {
    match status {
        CommandStatus::RawMode => CloseStdinStatus::RawMode,
        CommandStatus::UnknownProcess => CloseStdinStatus::UnknownProcess,
        CommandStatus::StdinClosed | CommandStatus::NotRunning | CommandStatus::StreamsHeld => {
            CloseStdinStatus::StdinClosed
        }
        // The wire has no status for a close that the holder tried and that failed (`Failed`). `NotATerminal` and
        // `NotClosed` do not occur: they never answer `CloseStdin`.
        CommandStatus::Ok | CommandStatus::NotATerminal | CommandStatus::NotClosed | CommandStatus::Failed(_) => {
            CloseStdinStatus::Accepted
        }
    }
}
