//! The inbound side of one connection: receives messages, preserves the order of their effects, and ends with its peer.
//!
//! The connection's task receives. It owns the pump, a separate task that sends. Reading does not stop because sending
//! is blocked. It stops only for a peer that sends requests without reading the answers. A request that must wait does
//! not delay the messages after it. The exception is `initialize`, which no later message may overtake.

use std::{
    future::poll_fn,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use exec_server_protocol::{
    Incoming, RequestId,
    frame::{self, WriteFrame},
    http, limits,
    message::{self, Trace},
    method::{Class, Method, Notification, Scope},
    process::{self, AckParams},
};
use exec_server_rpc::{EncodedMessage, Framing, InboundFrame, Receiver, TcpProbe};
use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};
use tracing::Instrument as _;

use crate::{
    access::{Grant, GrantEnd},
    audit::AuditRecord,
    compat,
    core::{Authenticated, Core},
    dispatch::{self, RequestFuture},
    error::Failure,
    fetch::Fetches,
    file_tasks::FileTasks,
    handlers,
    incoming::{BudgetShare, IncomingBudget},
    pump::{OutgoingQueue, PeerCapabilities, Pump, PumpCommand, Reply, encode_failure},
    session::Session,
    trace,
};

mod counting_reader;
#[cfg(test)]
mod tests;

use self::counting_reader::CountingReader;

/// How long a connection may take to close after the close was requested.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection may take to close after its grant has ended. The server notices the end within 250 ms, so the
/// connection is closed in less than a second.
const REVOKED_CLOSE_WITHIN: Duration = Duration::from_millis(500);

/// Close code for a peer whose grant has ended.
const ACCESS_ENDED: u16 = 4001;

/// Close code for a connection that is shed because received messages exceed the memory budget.
const TRY_AGAIN_LATER: u16 = 1013;

/// How long a peer may take to close its side after the close frame.
const LINGER: Duration = Duration::from_secs(1);

/// A request up to this size (4 KiB) does not count against the bounds on request bytes, unless it is for stdin.
const SMALL_BYTES: usize = 4 << 10;

/// The data of a binary write frame up to this size (64 KiB) is copied out of the receive buffer. A write may wait long
/// for its process. A slice would keep the whole buffer alive, but only the bytes of the request are counted.
const COPIED_BYTES: usize = 64 << 10;

/// The shared part of a connection: how to send to it, see whether it is alive, and end it.
pub(crate) struct Peer {
    pub(crate) id: u64,
    /// Names the peer in logs, in audit records and in the answer to a malformed message.
    pub(crate) label: Arc<str>,
    pub(crate) outgoing: Arc<OutgoingQueue>,
    /// Searches and watches, which end with the connection.
    pub(crate) file_tasks: FileTasks,
    /// HTTP requests that are under way.
    pub(crate) fetches: Arc<Fetches>,
    status: Mutex<PeerStatus>,
    created: Instant,
    /// When the last byte was received, in nanoseconds after `created`. Milliseconds are too coarse: a pong on the
    /// loopback takes less.
    last_received_ns: AtomicU64,
    ended: Notify,
}

/// How far the handshake of a connection has come, and whether it still holds its session.
#[derive(Default)]
struct PeerStatus {
    capabilities: PeerCapabilities,
    /// Events may be pushed: `initialized` was received, or the session is implicit.
    is_listening: bool,
    /// Another connection has taken over the session.
    is_superseded: bool,
}

impl Peer {
    pub(crate) fn capabilities(&self) -> PeerCapabilities {
        self.status.lock().capabilities
    }

    pub(crate) fn set_capabilities(&self, capabilities: PeerCapabilities) {
        self.status.lock().capabilities = capabilities;
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.status.lock().is_listening
    }

    /// Ends this connection because another one has taken over the session.
    pub(crate) fn supersede(&self, session: Arc<str>) {
        self.status.lock().is_superseded = true;
        self.outgoing.enqueue_command(PumpCommand::Superseded { session });
        self.close(1008, "session has been resumed by another connection");
    }

    /// Sends what is queued and a close frame, then ends, at the latest after [`CLOSE_WITHIN`].
    pub(crate) fn close(&self, code: u16, reason: &'static str) {
        self.outgoing.close(code, reason);
        self.ended.notify_one();
    }

    /// When the last byte was received.
    pub(crate) fn last_received(&self) -> Instant {
        self.created + Duration::from_nanos(self.last_received_ns.load(Ordering::Relaxed))
    }

    fn note_received(&self) {
        let ns = u64::try_from(self.created.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_received_ns.store(ns, Ordering::Relaxed);
    }
}

/// The handshake state of a connection.
pub(crate) enum HandshakeStage {
    Fresh,
    /// `command/*` without a handshake uses an implicit session, which ends with the connection. A later `initialize`
    /// without a session id makes it a normal session.
    Implicit(Arc<Session>),
    Initialized {
        session: Arc<Session>,
        resumed: bool,
    },
    Confirmed(Arc<Session>),
}

impl HandshakeStage {
    fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Fresh => None,
            Self::Implicit(session) | Self::Initialized { session, .. } | Self::Confirmed(session) => Some(session),
        }
    }
}

pub(crate) struct Connection {
    pub(crate) core: Arc<Core>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) grant: Grant,
    pub(crate) stage: HandshakeStage,
    /// Number of this connection's requests for sessions that do not exist.
    pub(crate) wrong_tries: u32,
    /// The end of this connection ends its session, too.
    ends_session: bool,
    /// How long the close may take.
    close_within: Duration,
    /// The framing is WebSocket: the peer may use the dialect `attached`, and a live peer answers pings.
    pub(crate) has_frames: bool,
    /// When the peer was last checked.
    last_check: Instant,
    /// Since when the checks have been uninterrupted. If the server itself was paused (a stopped process, a suspended
    /// machine), it must not mistake its own pause for silence of the peer.
    watched_since: Instant,
    tasks: FuturesUnordered<RequestFuture>,
    /// The connection's share of the server's budget for received messages.
    share: Arc<BudgetShare>,
}

/// Serves a connection until it ends. Then its session, if any, is detached or ended.
pub(crate) async fn serve(core: Arc<Core>, connection: Authenticated, id: u64) {
    let Authenticated { stream, framing, grant, label, ends_session } = connection;
    let peer = Arc::new(Peer {
        id,
        label: label.into(),
        outgoing: OutgoingQueue::new(core.incoming.clone(), core.metrics.clone(), core.config.concurrent_requests),
        file_tasks: FileTasks::default(),
        fetches: Arc::default(),
        status: Mutex::default(),
        created: Instant::now(),
        last_received_ns: AtomicU64::new(0),
        ended: Notify::new(),
    });
    core.register_peer(&peer);
    let share = core.incoming.join(id);
    let reader = Box::new(CountingReader {
        reader: stream.reader,
        peer: peer.clone(),
        core: core.clone(),
        share: share.clone(),
    });
    let mut receiver = Receiver::new(framing, reader, stream.leftover);
    let mut pump = JoinSet::new();
    pump.spawn(Pump::new(framing, stream.writer, peer.outgoing.clone()).run());
    let mut connection = Connection {
        core,
        peer,
        grant,
        stage: HandshakeStage::Fresh,
        wrong_tries: 0,
        ends_session,
        close_within: CLOSE_WITHIN,
        has_frames: matches!(framing, Framing::WebSocket { .. }),
        last_check: Instant::now(),
        watched_since: Instant::now(),
        tasks: FuturesUnordered::new(),
        share,
    };
    connection.record(AuditRecord::of("connection.open"));
    let code = connection.run(&mut receiver, &mut pump, stream.probe).await;
    connection.end(code, receiver, pump).await;
}

impl Connection {
    /// Handles messages until the connection ends. Returns the close code to send, if one is still to be sent.
    ///
    /// All branches are cancel safe. Tasks come first, so that a request that was woken takes effect before one that
    /// arrives now.
    async fn run(
        &mut self,
        receiver: &mut Receiver,
        pump: &mut JoinSet<io::Result<()>>,
        probe: Option<TcpProbe>,
    ) -> Option<u16> {
        // Several checks per ping interval: a quiet peer is pinged late by at most a third of the interval.
        let mut tick = tokio::time::interval(self.core.config.ping_every / 3);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let peer = self.peer.clone();
        let mut grant = self.grant.clone();
        let share = self.share.clone();
        loop {
            self.core.incoming.settle(&share, receiver.buffered());
            let inbound = async {
                peer.outgoing.wait_for_room().await;
                receiver.recv().await
            };
            tokio::select! {
                biased;
                Some(()) = self.tasks.next(), if !self.tasks.is_empty() => {}
                _ = pump.join_next() => return None,
                // `Peer::close` has queued the close frame.
                () = peer.ended.notified() => return None,
                why = grant.ended() => return self.handle_grant_end(why),
                () = share.shed.notified() => return Some(TRY_AGAIN_LATER),
                inbound = inbound => match inbound {
                    Ok(InboundFrame::Message(message)) => self.handle(message).await,
                    Ok(InboundFrame::Ping(payload)) => peer.outgoing.enqueue_pong(payload),
                    Ok(InboundFrame::Pong(_)) => {}
                    Err(closed) => {
                        tracing::debug!(peer = %self.peer.label, %closed, "connection ended");
                        // A peer that has closed its sending half may still read the answers.
                        return Some(closed.code().unwrap_or(1000));
                    }
                },
                // Ignore the returned instant: it is the time at which the tick was due, which may be long ago.
                _ = tick.tick() => if self.ping_or_find_dead(Instant::now(), probe.as_ref()) {
                    tracing::info!(peer = %self.peer.label, "no sign of life from the peer; dropping the connection and detaching its session");
                    self.core.metrics.dead_peers.inc();
                    return None;
                },
            }
        }
    }

    /// Ends the connection because its grant has ended. Nothing that the peer sent is handled from here on. Its session
    /// is detached as after any disconnect. Returns no close code, because the close frame is already queued.
    fn handle_grant_end(&mut self, why: GrantEnd) -> Option<u16> {
        tracing::warn!(peer = %self.peer.label, principal = %self.grant.principal(), reason = why.reason(), "connection cut");
        self.close_within = REVOKED_CLOSE_WITHIN;
        self.peer.outgoing.close(ACCESS_ENDED, why.reason());
        self.record(AuditRecord { reason: Some(why.as_str().to_owned()), ..AuditRecord::of("connection.cut") });
        None
    }

    /// Pings a quiet peer. Returns true if the peer is dead: for too long it has sent no byte, and its host no TCP
    /// acknowledgement. If the time of the last acknowledgement is unknown, a connection that is being written to
    /// counts as alive: its peer may just be slow.
    fn ping_or_find_dead(&mut self, now: Instant, probe: Option<&TcpProbe>) -> bool {
        if now.duration_since(self.last_check) >= self.core.config.ping_every {
            self.watched_since = now;
        }
        self.last_check = now;
        let silent = now.duration_since(self.peer.last_received());
        if silent >= self.core.config.ping_every && !self.peer.outgoing.is_flushing() {
            self.peer.outgoing.enqueue_ping();
        }
        let limit = self.core.config.dead_after;
        let watched_silent = silent.min(now.duration_since(self.watched_since));
        let is_tcp_silent = match probe.and_then(TcpProbe::last_ack_ms) {
            Some(ms) => Duration::from_millis(u64::from(ms)) >= limit,
            None => !self.peer.outgoing.is_flushing(),
        };
        // Newline framing has no ping, so silence says nothing about the peer.
        self.has_frames && watched_silent >= limit && is_tcp_silent
    }

    async fn end(mut self, code: Option<u16>, mut receiver: Receiver, mut pump: JoinSet<io::Result<()>>) {
        let now = Instant::now();
        // These tasks are not polled from here on. Drop them now, so that what they hold (a download, an fd) is freed
        // before the close frame.
        self.tasks.clear();
        self.peer.file_tasks.end();
        let ends_session = self.ends_session || matches!(self.stage, HandshakeStage::Implicit(_));
        match self.stage.session() {
            Some(session) if ends_session => session.end().await,
            Some(session) => session.detach(&self.peer, now),
            None => {}
        }
        // After the detach: a peer that sees the connection closed finds its session free.
        if let Some(code) = code {
            self.peer.outgoing.close(code, "");
        }
        // Read and discard what still arrives, both while the pump flushes and until the peer has closed its side.
        // Closing a socket with unread input resets the connection, and a peer that is still sending would lose the
        // server's last messages. After `LINGER` the socket is closed all the same.
        let closing = async {
            tokio::select! {
                biased;
                _ = pump.join_next() => {}
                () = discard(&mut receiver, &self.core.incoming, &self.share) => drop(pump.join_next().await),
            }
            tokio::time::timeout(LINGER, discard(&mut receiver, &self.core.incoming, &self.share)).await.unwrap_or(());
        };
        // Do not wait forever for a peer that does not read.
        if tokio::time::timeout(self.close_within, closing).await.is_err() {
            pump.shutdown().await;
        }
        self.core.incoming.leave(&self.share);
        self.core.remove_peer(&self.peer);
        self.record(AuditRecord::of("connection.close"));
    }

    /// Writes an audit record about this peer.
    pub(crate) fn record(&self, record: AuditRecord) {
        let principal = Some(self.grant.principal().to_string());
        let peer = Some(self.peer.label.to_string());
        self.core.config.audit.record(AuditRecord { principal, peer, ..record });
    }

    /// Waits for `until`, at most for `most`, unless the connection ends first.
    pub(crate) async fn wait_for(&mut self, until: impl Future<Output = ()>, most: Duration) {
        let mut grant = self.grant.clone();
        // All branches are cancel safe.
        tokio::select! {
            () = until => {}
            () = tokio::time::sleep(most) => {}
            // Pass the notification on: the main loop waits for it, too.
            () = self.peer.ended.notified() => self.peer.ended.notify_one(),
            _ = grant.ended() => {}
        }
    }

    /// Splits a message into its JSON and its attached bytes, if the peer may attach bytes.
    fn split_attached<'a>(&self, bytes: &'a Bytes) -> (&'a [u8], Option<Bytes>) {
        match message::detach(bytes) {
            (json, Some(attached)) if self.peer.capabilities().attached => (json, Some(bytes.slice_ref(attached))),
            _ => (bytes, None),
        }
    }

    async fn handle(&mut self, bytes: Bytes) {
        if bytes.first() == Some(&frame::WRITE_MARK) && self.peer.capabilities().binary {
            return self.handle_write(&bytes).await;
        }
        let (json, attached) = self.split_attached(&bytes);
        match message::decode(json) {
            Ok(Incoming::Request { id, method, params, trace }) => {
                let Some(found) = Method::find(&method) else {
                    return self.fail(&id, &self.unserved_failure(method.into_owned()));
                };
                if found == Method::Initialize {
                    let reply = self.reply(found, id, trace.as_ref());
                    let span = reply.span().clone();
                    return handlers::initialize(self, params, reply).instrument(span).await;
                }
                if let Err(failure) = self.check_unanswered(found) {
                    return self.fail(&id, &failure);
                }
                let reply = self.reply(found, id, trace.as_ref());
                let call = |context, reply| dispatch::call(context, params, attached, reply);
                self.begin(found, reply, bytes.len(), call).await;
            }
            Ok(Incoming::Notification { method, params }) => self.handle_notification(&method, params),
            // The server never sends requests, so no response is expected.
            Ok(Incoming::Response { .. } | Incoming::Error { .. }) => {}
            Err(error) => self.fail_malformed(&error),
        }
    }

    /// Answers a message that cannot be decoded. The text names framing and label, because peers compare the text.
    fn fail_malformed(&self, error: &dyn std::error::Error) {
        let failure = Failure::Malformed {
            is_websocket: self.has_frames,
            label: self.peer.label.to_string(),
            reason: error.to_string(),
        };
        self.fail(&message::MALFORMED_ID, &failure);
    }

    /// Handles a `process/write` that came as a binary frame.
    async fn handle_write(&mut self, bytes: &Bytes) {
        let (head, data) = match WriteFrame::decode(bytes) {
            Ok(decoded) => decoded,
            Err(error) => return self.fail_malformed(&error),
        };
        let id = RequestId::Number(head.id);
        let method = Method::ProcessWrite;
        if let Err(failure) = self.check_unanswered(method) {
            return self.fail(&id, &failure);
        }
        let reply = self.reply(method, id, None);
        let Some(process) = self.peer.outgoing.channels.find(head.channel) else {
            return reply.write("", process::WriteStatus::UnknownProcess, false);
        };
        let data = if data.len() <= COPIED_BYTES { Bytes::copy_from_slice(data) } else { bytes.slice_ref(data) };
        let frame = handlers::stdin::WriteFrame::new(process, head.write_id, data);
        let call = |_, reply| Some(Box::pin(handlers::stdin::write_frame(frame, reply)) as RequestFuture);
        self.begin(method, reply, bytes.len(), call).await;
    }

    /// The error for a method that is not served.
    fn unserved_failure(&self, method: String) -> Failure {
        let Some(family) = compat::family_of_unknown(&method) else { return Failure::UnknownMethod { method } };
        match self.stage {
            HandshakeStage::Fresh | HandshakeStage::Implicit(_) => Failure::NotInitialized { family },
            HandshakeStage::Initialized { .. } => Failure::NotConfirmed { family },
            HandshakeStage::Confirmed(_) => Failure::UnknownMethod { method },
        }
    }

    fn fail(&self, id: &RequestId, failure: &Failure) {
        let mut out = Vec::new();
        encode_failure(&mut out, id, failure);
        self.core.metrics.failed(failure.kind());
        self.peer.outgoing.enqueue_answer(EncodedMessage::text(out));
    }

    /// Fails if the connection has too many unanswered requests. Control requests have a higher bound, so that they
    /// still get through.
    fn check_unanswered(&self, method: Method) -> Result<(), Failure> {
        let most = match method.info().class {
            Class::Inline => return Ok(()),
            Class::Ordered => limits::REQUESTS_UNANSWERED,
            Class::Control => 2 * limits::REQUESTS_UNANSWERED,
        };
        if self.peer.outgoing.unanswered() >= most {
            return Err(Failure::Overloaded { what: "unanswered requests on this connection" });
        }
        Ok(())
    }

    /// Polls a request once, immediately, so that effects begin in arrival order. If it is not done, it becomes a task.
    async fn begin(
        &mut self,
        method: Method,
        reply: Reply,
        bytes: usize,
        call: impl FnOnce(handlers::RequestContext, Reply) -> Option<RequestFuture>,
    ) {
        // A request may keep all its bytes until it is answered. The bytes of small requests are not counted, because
        // their number is bounded. stdin is always counted: after a large write was refused, a later small one must not
        // be accepted.
        let info = method.info();
        let reply = match info.class {
            Class::Ordered if bytes > SMALL_BYTES || info.scope == Some(Scope::Stdin) => match reply.count_bytes(bytes)
            {
                Ok(reply) => reply,
                Err((reply, failure)) => return reply.fail(&failure),
            },
            Class::Ordered | Class::Control | Class::Inline => reply,
        };
        let context = match self.context(method) {
            Ok(context) => context,
            Err(failure) => return reply.fail(&failure),
        };
        // The only place where the scope of a method is checked: no handler gets a request whose principal lacks it.
        if let Some(scope) = self.grant.missing_scope(info) {
            let principal = self.grant.principal().to_string();
            let method = info.name;
            let reason = Some(format!("lacks {}", scope.as_str()));
            self.record(AuditRecord { method: Some(method), reason, ..AuditRecord::of("request.deny") });
            return reply.fail(&Failure::LacksScope { principal, method, scope: scope.as_str() });
        }
        let span = reply.span().clone();
        let Some(call) = call(context, reply) else { return };
        let mut call: RequestFuture = Box::pin(call.instrument(span));
        if poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_pending() {
            self.tasks.push(call);
        }
    }

    /// Creates the reply of a request, with its tracing span.
    fn reply(&self, method: Method, id: RequestId, trace: Option<&Trace>) -> Reply {
        let session = self.stage.session().map(|session| &*session.id);
        let span = trace::request(self.peer.id, self.grant.principal(), session, method.name(), &id, trace);
        Reply::new(id, self.peer.outgoing.clone(), method, span)
    }

    /// Builds the handler's context after the gates: `initialize` received, session not taken over, `initialized`
    /// received. The first `command/*` request of a connection without a handshake creates the implicit session.
    fn context(&mut self, method: Method) -> Result<handlers::RequestContext, Failure> {
        let session = match (&self.stage, method.info().family.gate_word()) {
            (HandshakeStage::Fresh, None) => {
                let session = self.core.implicit_session(self.grant.principal().clone(), self.peer.clone())?;
                self.peer.status.lock().is_listening = true;
                self.stage = HandshakeStage::Implicit(session.clone());
                session
            }
            (HandshakeStage::Fresh | HandshakeStage::Implicit(_), Some(family)) => {
                return Err(Failure::NotInitialized { family });
            }
            (HandshakeStage::Initialized { .. } | HandshakeStage::Confirmed(_), Some(_))
                if self.peer.status.lock().is_superseded =>
            {
                return Err(Failure::Superseded);
            }
            (HandshakeStage::Initialized { .. }, Some(family)) => return Err(Failure::NotConfirmed { family }),
            (
                HandshakeStage::Implicit(session)
                | HandshakeStage::Initialized { session, .. }
                | HandshakeStage::Confirmed(session),
                _,
            ) => session.clone(),
        };
        let (core, peer, grant) = (self.core.clone(), self.peer.clone(), self.grant.clone());
        Ok(handlers::RequestContext { method, core, peer, grant, session })
    }

    fn handle_notification(&mut self, method: &str, params: Option<&RawValue>) {
        match Notification::find(method) {
            Some(Notification::Initialized) => self.handle_initialized(),
            Some(Notification::ProcessAck) => {
                // An invalid or unknown acknowledgement has no effect and gets no answer.
                if let (HandshakeStage::Confirmed(own), Ok(ack)) = (&self.stage, message::params::<AckParams>(params)) {
                    let session = ack.session_id.map_or_else(|| own.id.clone(), |id| id.as_str().into());
                    let command = PumpCommand::Ack { session, process: ack.process_id, seq: ack.seq };
                    self.peer.outgoing.enqueue_command(command);
                }
            }
            Some(Notification::HttpAck) => {
                // As for `process/ack`: no effect if it is invalid or unknown.
                if let (HandshakeStage::Confirmed(_), Ok(ack)) =
                    (&self.stage, message::params::<http::AckParams>(params))
                {
                    self.peer.fetches.ack(&ack.request_id, ack.seq);
                }
            }
            _ => self.fail(&message::MALFORMED_ID, &Failure::UnknownNotification { method: method.to_owned() }),
        }
    }

    /// Handles `initialized`: starts pushing events. A repeated one has no effect. Before `initialize` it is answered
    /// with an error, but the connection stays.
    fn handle_initialized(&mut self) {
        match &self.stage {
            HandshakeStage::Initialized { session, resumed } if !self.peer.status.lock().is_superseded => {
                self.peer.status.lock().is_listening = true;
                session.follow_all(&self.peer, *resumed, Instant::now());
                self.stage = HandshakeStage::Confirmed(session.clone());
            }
            HandshakeStage::Confirmed(_) | HandshakeStage::Initialized { .. } => {}
            HandshakeStage::Fresh | HandshakeStage::Implicit(_) => {
                self.fail(&message::MALFORMED_ID, &Failure::NotInitialized { family: "session" });
            }
        }
    }
}

/// Reads and discards messages until the peer closes. If the connection was shed for lack of memory, nothing is
/// buffered.
async fn discard(receiver: &mut Receiver, budget: &IncomingBudget, share: &BudgetShare) {
    if share.is_shed() {
        return receiver.drain().await;
    }
    while receiver.recv().await.is_ok() {
        budget.settle(share, receiver.buffered());
    }
}
