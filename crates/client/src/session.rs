//! One session with a server, over any number of consecutive connections.
//!
//! ```text
//!  open ──▶ Up ──link ends──▶ Down ──resumed──▶ Up
//!                              │
//!                              └──refused, or too late──▶ Lost   (final)
//! ```
//! [`Session::close`], [`Session::end`] and [`Session::abandon`] also lead to `Lost`.
//!
//! A `Session` owns the current link, the routes from process names to logs, and one task, the keeper, that reconnects. Calls go through
//! `Session::send_payload`, which decides what is sent again. There are three exceptions with rules of their own: writes to stdin, streamed
//! HTTP responses, and the end of the session.
//!
//! Failure paths: an interrupted call is sent again if that is harmless; otherwise it fails with an unknown outcome. If the server no
//! longer knows the session, every process and every later call fails with the same reason.

use std::{
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use exec_server_protocol::{
    ProcessId, SessionId,
    capabilities::ServerCapabilities,
    environment,
    failure::Kind,
    initialize::{InitializeResult, ServerInfo, Ttl},
    limits,
    method::{Method, Notification, RepeatRule},
    process::ProcessParams,
};
use exec_server_rpc::client::SentRequest;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::{
    sync::{Notify, OnceCell, watch},
    task::JoinSet,
    time::{self, Instant},
};

use crate::{
    Request,
    backoff::Backoff,
    compat::Generation,
    error::{Error, chain},
    fs::FileCalls,
    http::BodyStreams,
    link_state::{LinkState, LinkStatus, LinkWaiter},
    notifications::NotificationRouter,
    process::{log::FlowPolicy, recovery},
    requests,
    routes::Routes,
    server_link::{self, CallPayload, DialError, DialRequest, DialedLink, EarlyAttempt, ServerLink},
    transport::Connect,
};

mod adopting;
mod first_connect;
mod link_upkeep;
mod reconnect_state;
mod stall;

pub(crate) use self::adopting::is_adopting;
use self::{first_connect::FirstConnect, reconnect_state::ReconnectState};

/// Upper bound for durations that the caller sets, about 100 years. A much larger one would overflow `Instant`.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How long the client tries to resume a session that another connection has taken over. The resume succeeds if that connection was a
/// delayed attempt of this client (a ghost), because the server detaches a connection that stays silent. It fails if another client took
/// the session over. These attempts do not ask for a takeover: otherwise two clients would take the session from each other endlessly.
const TAKEN_RECOVERY: Duration = limits::TAKEOVER_SILENCE.saturating_mul(2);

/// The settings of [`Builder`](crate::Builder).
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionOptions {
    pub(crate) name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) initialize_timeout: Duration,
    pub(crate) connect_retry_for: Duration,
    pub(crate) startup_grace: Option<Duration>,
    pub(crate) report_stall_after: Option<Duration>,
    pub(crate) ttl: Option<Ttl>,
    pub(crate) resume: Option<SessionId>,
    pub(crate) takeover: bool,
    pub(crate) recover_for: Option<Duration>,
    pub(crate) backoff: Backoff,
    pub(crate) fail_fast: bool,
    pub(crate) call_timeout: Option<Duration>,
    pub(crate) session_key: Option<String>,
}

/// The state of the connection between a session and its server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ConnectionState {
    /// The client is connected, and calls are served.
    Connected,
    /// The connection is open but silent. Calls wait; processes keep running. Reported only with
    /// [`Builder::report_stall_after`](crate::Builder::report_stall_after).
    Stalled {
        /// Nothing was received for at least this long.
        silent: Duration,
    },
    /// The connection was cut and the client is reconnecting. Calls wait, unless [`Builder::fail_fast`](crate::Builder::fail_fast) is set;
    /// processes keep running.
    Recovering {
        /// Why the connection was cut, or that the server is still adopting the session.
        reason: String,
    },
    /// The client has lost or closed the session, and every handle fails. This state is final.
    Lost {
        /// Why the session was lost.
        error: Error,
    },
}

/// The server's generation, version and capabilities, as announced in the handshake.
#[derive(Debug, Clone)]
pub struct ServerDescription {
    /// The generation of the protocol that the server speaks.
    pub generation: Generation,
    /// Name and version of the server, if it reports them.
    pub info: Option<ServerInfo>,
    /// The server's features beyond those of older servers. All off for a server that announces nothing.
    pub capabilities: ServerCapabilities,
    /// The time-to-live that the server granted to the session; `None` if the server does not report it.
    pub session_ttl: Option<Ttl>,
}

/// The server, and the session that it created or resumed, as reported by the first successful `initialize`.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) session_id: Option<SessionId>,
    pub(crate) server: ServerDescription,
}

/// A start to send together with the first handshake; see [`Builder::session_key`](crate::Builder::session_key).
pub(crate) struct EarlyStart {
    pub(crate) session_key: String,
    /// The params of `process/start`.
    pub(crate) params: Box<RawValue>,
    /// Set before the start is sent for the first time.
    pub(crate) is_sent: Arc<AtomicBool>,
}

impl EarlyStart {
    fn attempt(&self, number: u64) -> EarlyAttempt<'_> {
        EarlyAttempt { session_key: &self.session_key, number, start: &self.params, is_sent: &self.is_sent }
    }
}

/// A request that was sent before [`Session::send_payload`] was called.
pub(crate) struct EarlyRequest {
    link: Arc<ServerLink>,
    request: SentRequest,
    is_repeated: bool,
}

/// A session that was just opened.
pub(crate) struct OpenedSession {
    pub(crate) session: Arc<Session>,
    pub(crate) keeper: JoinSet<()>,
    /// The start that was sent with the handshake. `None` if the server no longer knows session keys, or if a program such as ssh carries
    /// the connection.
    pub(crate) started: Option<EarlyRequest>,
}

/// A call that was answered.
pub(crate) struct Sent {
    /// The result and the bytes that are attached to it, or the server's error.
    answer: Result<(Box<RawValue>, Option<Bytes>), Error>,
    /// Whether the request was sent more than once.
    pub(crate) is_repeated: bool,
}

impl Sent {
    /// The result, with attached bytes as base64 in it.
    pub(crate) fn result<M: Request>(self) -> Result<M::Result, Error> {
        let (mut result, attached) = self.with_attached::<M>()?;
        if let Some(bytes) = attached {
            M::put_attached(&mut result, &bytes);
        }
        Ok(result)
    }

    /// The result, and the bytes that are attached to it.
    pub(crate) fn with_attached<M: Request>(self) -> Result<(M::Result, Option<Bytes>), Error> {
        let (answer, attached) = self.answer?;
        Ok((server_link::decode(M::NAME, &answer)?, attached))
    }
}

/// See the module documentation.
pub(crate) struct Session {
    connect: Box<dyn Connect>,
    pub(crate) options: SessionOptions,
    pub(crate) peer: Peer,
    link_state: LinkState,
    pub(crate) routes: Arc<Routes>,
    /// The bodies of HTTP responses.
    pub(crate) streams: Arc<BodyStreams>,
    /// Notified when a log or a response body has something to acknowledge.
    pub(crate) acks: Arc<Notify>,
    /// Background work, such as sending stdin and reading the events of attached processes. Aborted with the session.
    tasks: Mutex<JoinSet<()>>,
    /// Held from the request to end the session until its answer has been handled.
    ending: tokio::sync::Mutex<()>,
    /// The result of `environment/info`, requested once.
    pub(crate) info: OnceCell<Option<environment::InfoResult>>,
    /// The room for calls about files.
    pub(crate) file_calls: FileCalls,
}

impl Session {
    /// Connects for the first time and starts the keeper task. `early` is sent together with the handshake.
    pub(crate) async fn open(
        connect: Box<dyn Connect>,
        options: SessionOptions,
        routes: Arc<Routes>,
        mut early: Option<EarlyStart>,
    ) -> Result<OpenedSession, Error> {
        let (streams, acks) = (Arc::new(BodyStreams::default()), Arc::new(Notify::new()));
        let mut first_connect = FirstConnect::new(&options);
        let mut has_ghost = false;
        let mut attempts = 0;
        let DialedLink { link, result, started } = loop {
            let router = NotificationRouter::new(Arc::clone(&routes), Arc::clone(&streams), Arc::clone(&acks));
            let resume = options.resume.clone();
            attempts += 1;
            let early_attempt = early.as_ref().map(|early| early.attempt(attempts));
            let request =
                DialRequest { options: &options, resume, takeover: options.takeover, epoch: 1, early: early_attempt };
            match server_link::dial(&*connect, request, router).await {
                Ok(opened) => break opened,
                Err(dial_error) => {
                    if early.is_some() && first_connect.has_no_session_keys(&dial_error) {
                        early = None;
                        continue;
                    }
                    let within = adopting::resume_within(&options, &dial_error.error);
                    let Some(pause) = first_connect.pause_after(&dial_error, within) else {
                        return Err(first_connect.explain(dial_error.error));
                    };
                    // An attempt that resumes can take the session from this client if it reaches the server late. An attempt that creates
                    // a session cannot.
                    has_ghost |= options.resume.is_some() && dial_error.may_come_late();
                    time::sleep(pause).await;
                }
            }
        };
        let peer = Peer::new(result)?;
        if let Some(asked) = &options.resume {
            check_resumed(peer.session_id.as_ref(), asked)?;
        }
        routes.set_flow_policy(peer.flow_policy(), peer.session_id.clone());
        let link = Arc::new(link);
        if started.is_none() {
            // The server has attached the session by now. If this notification fails, the keeper reconnects as usual.
            link.notify(Notification::Initialized, &exec_server_protocol::Empty {}).await.ok();
        }
        let is_repeated = first_connect.may_have_started();
        let started = started.map(|request| EarlyRequest { link: Arc::clone(&link), request, is_repeated });
        let session = Arc::new(Self {
            connect,
            options,
            peer,
            link_state: LinkState::new(Arc::clone(&link)),
            routes,
            streams,
            acks,
            tasks: Mutex::new(JoinSet::new()),
            ending: tokio::sync::Mutex::new(()),
            info: OnceCell::new(),
            file_calls: FileCalls::default(),
        });
        let mut keeper = JoinSet::new();
        keeper.spawn(Arc::clone(&session).keep_connected(link, has_ghost));
        Ok(OpenedSession { session, keeper, started })
    }

    /// The address of the server, without its token.
    pub(crate) fn address(&self) -> String {
        self.connect.address()
    }

    pub(crate) fn generation(&self) -> Generation {
        self.peer.server.generation
    }

    pub(crate) fn state(&self) -> watch::Receiver<ConnectionState> {
        self.link_state.subscribe()
    }

    /// The reason why the session is lost, if it is.
    pub(crate) fn lost(&self) -> Option<Error> {
        if let LinkStatus::Lost(error) = self.link_state.get() { Some(error) } else { None }
    }

    /// The error for a request that this server does not support.
    pub(crate) fn cannot(&self, what: &str) -> Error {
        Error::Protocol(format!("the server at {} cannot {what}", self.address()))
    }

    /// Calls a method, typed, over as many links as it takes.
    pub(crate) async fn call<M: Request>(&self, params: &M::Params<'_>) -> Result<M::Result, Error> {
        self.send::<M>(params).await?.result::<M>()
    }

    /// Like [`call`](Self::call), and also returns how the call was sent.
    pub(crate) async fn send<M: Request>(&self, params: &M::Params<'_>) -> Result<Sent, Error> {
        self.send_again::<M>(params, None).await
    }

    /// Like [`send`](Self::send). If `early` is given, this call was already sent on that link, so it is sent again only after a cut.
    pub(crate) async fn send_again<M: Request>(
        &self,
        params: &M::Params<'_>,
        early: Option<EarlyRequest>,
    ) -> Result<Sent, Error> {
        let params = server_link::encode(M::NAME, params)?;
        self.send_payload(M::METHOD, CallPayload::Params(&params), early).await
    }

    /// Like [`call`](Self::call), with bytes attached to the request. A server that does not accept attached bytes gets them in the params,
    /// as base64.
    pub(crate) async fn call_with<M: Request>(
        &self,
        params: &(impl Fn(String) -> M::Params<'static> + Sync),
        bytes: &Bytes,
    ) -> Result<M::Result, Error> {
        let params = |text| server_link::encode(M::NAME, &params(text));
        let payload = CallPayload::WithBytes { bytes, params: &params };
        self.send_payload(M::METHOD, payload, None).await?.result::<M>()
    }

    /// Applies the caller's `call_timeout`.
    pub(crate) async fn with_call_timeout<T>(
        &self,
        method: &'static str,
        calling: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(within) = self.options.call_timeout else { return calling.await };
        time::timeout(within, calling).await.unwrap_or_else(|_| {
            let reason = Some(format!("no answer within {within:?}"));
            Err(Error::UnknownOutcome { method, reason })
        })
    }

    /// Sends a call, and sends it again on the next link if that is harmless. It is not generic, so that it is compiled once and not for
    /// each method.
    async fn send_payload(
        &self,
        method: Method,
        payload: CallPayload<'_>,
        early: Option<EarlyRequest>,
    ) -> Result<Sent, Error> {
        let (name, repeat) = (method.name(), method.info().repeat);
        let calling = async {
            let mut after = 0;
            let mut is_repeated = early.as_ref().is_some_and(|early| early.is_repeated);
            let mut early = early;
            let links = self.link_waiter();
            loop {
                let (link, sent) = match early.take() {
                    Some(early) => (early.link, Ok(early.request)),
                    None => {
                        let link = links.after(after).await?;
                        let sent = link.send_payload(method, payload).await;
                        (link, sent)
                    }
                };
                after = link.epoch;
                let sent = match sent {
                    Ok(sent) => sent,
                    // The call was never sent, so sending it on the next link is safe for every method.
                    Err(Error::Disconnected { .. }) => continue,
                    Err(error) => return Err(error),
                };
                match sent.attached_answer().await.map_err(|error| link.error(name, error)) {
                    Err(Error::Disconnected { .. }) if repeat == RepeatRule::Harmless => is_repeated = true,
                    Err(Error::Disconnected { reason }) => return Err(Error::UnknownOutcome { method: name, reason }),
                    answer => return Ok(Sent { answer, is_repeated }),
                }
            }
        };
        self.with_call_timeout(name, calling).await
    }

    /// Access to the current link and to those that follow it.
    pub(crate) fn link_waiter(&self) -> LinkWaiter {
        self.link_state.waiter(self.options.fail_fast)
    }

    /// Closes the connection cleanly. The server keeps the session.
    pub(crate) async fn close(&self) {
        let status = self.link_state.get();
        // Mark the session as lost first, so that the keeper does not reconnect when the link ends.
        self.mark_lost(Error::Disconnected { reason: Some("the client was closed".to_owned()) });
        if let LinkStatus::Up(link) = status {
            // Errors are ignored: without these acknowledgements, the server only keeps some output longer.
            time::timeout(server_link::CLOSE_WITHIN, self.send_acks(&link)).await.ok();
            link.end().await;
        }
    }

    /// Asks the server to end the session and all of its processes, over as many links as it takes, then closes the connection.
    pub(crate) async fn end(&self) -> Result<(), Error> {
        if let Some(link) = self.with_call_timeout(requests::SessionEnd::NAME, self.request_end()).await? {
            link.end().await;
        }
        Ok(())
    }

    /// Returns the link that is still open, if any.
    async fn request_end(&self) -> Result<Option<Arc<ServerLink>>, Error> {
        let mut after = 0;
        let links = self.link_waiter();
        loop {
            let link = match links.after(after).await {
                Ok(link) => link,
                // The session is gone, normally because it was ended over the previous link, whose answer was lost.
                Err(Error::SessionLost { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            after = link.epoch;
            // The keeper waits for this lock: the server closes the connection after its answer, and the keeper must not treat that as a
            // cut.
            let _answering = self.ending.lock().await;
            match link.call::<requests::SessionEnd>(&exec_server_protocol::Empty {}).await {
                Ok(_) => {
                    self.mark_lost(Error::Disconnected { reason: Some("the session was ended".to_owned()) });
                    return Ok(Some(link));
                }
                Err(Error::Disconnected { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Spawns a task that belongs to the session and is aborted with it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        // Boxed, so that `spawn` is compiled once and not for each future type.
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
        tasks.spawn(work);
    }

    /// The keeper task: maintains the current link, and reconnects when it ends.
    async fn keep_connected(self: Arc<Self>, mut link: Arc<ServerLink>, has_ghost: bool) {
        let mut reconnect = ReconnectState::new(&self.options.backoff, has_ghost);
        loop {
            let since = Instant::now();
            let closed = self.maintain_link(&link).await;
            // An HTTP body ends with its link. Its reader has to repeat the request.
            self.streams.fail(link.epoch, &Error::Disconnected { reason: Some(chain(&*closed)) });
            let epoch = link.epoch + 1;
            drop(link);
            // Waits for `request_end`, which marks the session as lost before it releases the lock.
            drop(self.ending.lock().await);
            if self.lost().is_some() {
                return;
            }
            let reason = chain(&*closed);
            reconnect.handle_end(since.elapsed(), &closed);
            if reconnect.is_hopeless() {
                self.mark_lost(Error::Protocol(format!("the server repeatedly violated the protocol: {reason}")));
                return;
            }
            let is_taken = self.generation().reports_takeover() && reconnect.detect_takeover(&closed);
            tracing::info!(server = self.connect.address(), reason, "connection lost");
            self.link_state.set(LinkStatus::Down { reason: reason.clone(), is_taken });
            if is_taken {
                // Let cleanup tasks (`spawn_cleanup` in `client.rs`) see this and stop before an attempt is made. If one of them holds the
                // last handle, this keeper is aborted here and the session is not resumed.
                tokio::task::yield_now().await;
            }
            let Some(next) = self.recover(epoch, reason, is_taken, &mut reconnect).await else { return };
            link = next;
        }
    }

    /// Reconnects, or gives the session up.
    ///
    /// The first attempt is made at once, unless several links in a row were short. The pause after a failed attempt grows, and starts over
    /// only after a link that lasted. If another client has taken the session over (`is_taken`), the attempts do not ask for a takeover.
    /// `epoch` is that of the next link, and `reason` says why the last one ended.
    async fn recover(
        &self,
        epoch: u64,
        reason: String,
        is_taken: bool,
        reconnect: &mut ReconnectState,
    ) -> Option<Arc<ServerLink>> {
        let Some(session_id) = self.peer.session_id.clone().filter(|_| self.connect.can_reconnect()) else {
            self.mark_lost(Error::Disconnected { reason: Some(reason) });
            return None;
        };
        let within = if is_taken { self.recover_for().min(TAKEN_RECOVERY) } else { self.recover_for() };
        let until = Instant::now() + within.min(FOREVER);
        // Report an adoption only once: its text contains a count of seconds, so each attempt would report a change.
        let mut is_adopting_reported = false;
        if let Some(pause) = reconnect.pause_after_short_links() {
            time::sleep(pause).await;
        }
        loop {
            if self.lost().is_some() {
                return None;
            }
            let error = match time::timeout_at(until, self.resume(&session_id, epoch, !is_taken)).await {
                Ok(Ok(link)) => return Some(link),
                Ok(Err(dial_error)) => {
                    reconnect.handle_dial_error(&dial_error);
                    if !dial_error.is_worth_retrying || reconnect.is_hopeless() {
                        self.mark_lost(dial_error.error);
                        return None;
                    }
                    if is_adopting(&dial_error.error) && !std::mem::replace(&mut is_adopting_reported, true) {
                        self.link_state.set(LinkStatus::Down { reason: dial_error.error.to_string(), is_taken });
                    }
                    dial_error.error
                }
                Err(_) => Error::Disconnected { reason: Some(reason.clone()) },
            };
            if self.lost().is_some() {
                return None;
            }
            let pause = reconnect.backoff.pause();
            if Instant::now() + pause >= until {
                self.mark_lost(if error.server_kind() == Some(Kind::SessionAttached) && is_taken {
                    Error::SessionLost { session_id, reason: "another connection has taken it over".to_owned() }
                } else {
                    Error::Disconnected { reason: Some(format!("{reason}; not restored within {within:?}: {error}")) }
                });
                return None;
            }
            time::sleep(pause).await;
        }
    }

    /// One attempt to resume the session and to fetch the events that were missed.
    async fn resume(&self, session_id: &SessionId, epoch: u64, takeover: bool) -> Result<Arc<ServerLink>, DialError> {
        let router =
            NotificationRouter::new(Arc::clone(&self.routes), Arc::clone(&self.streams), Arc::clone(&self.acks));
        // Normally take over, because the server may not have noticed yet that the previous connection of this client is gone.
        let takeover = takeover && self.peer.server.capabilities.takeover;
        let resume = Some(session_id.clone());
        let request = DialRequest { options: &self.options, resume, takeover, epoch, early: None };
        let DialedLink { link, result, .. } = server_link::dial(&*self.connect, request, router).await?;
        let link = Arc::new(link);
        check_resumed(result.session_id.as_ref(), session_id).map_err(DialError::permanent)?;
        // The server may not have received the last acknowledgements.
        for log in self.routes.logs() {
            log.renew_ack();
        }
        if let Err(error) = self.finish_resume(&link).await {
            return Err(link.explain_broken_link(error).await);
        }
        if self.lost().is_some() {
            return Err(DialError::permanent(Error::Disconnected { reason: None }));
        }
        self.link_state.set(LinkStatus::Up(Arc::clone(&link)));
        self.acks.notify_one();
        Ok(link)
    }

    /// Finishes the handshake and fetches the missed events. An error means that the link is gone again.
    async fn finish_resume(&self, link: &ServerLink) -> Result<(), Error> {
        link.notify(Notification::Initialized, &exec_server_protocol::Empty {}).await?;
        link.run_with_pings(recovery::catch_up(self, link)).await
    }

    /// How long the client tries to reconnect: the caller's setting, or as long as the server keeps the session.
    fn recover_for(&self) -> Duration {
        self.options.recover_for.unwrap_or_else(|| self.generation().session_ttl(self.options.ttl))
    }

    /// Called when the last handle is dropped: marks the session as lost and aborts all background work.
    pub(crate) fn abandon(&self) {
        self.link_state
            .set(LinkStatus::Lost(Error::Disconnected { reason: Some("the last handle was dropped".to_owned()) }));
        self.tasks.lock().abort_all();
    }

    /// Gives the session up: every later call, every log and every HTTP body fails with this error.
    pub(crate) fn mark_lost(&self, error: Error) {
        self.link_state.set(LinkStatus::Lost(error.clone()));
        // `u64::MAX`: the bodies of all links.
        self.streams.fail(u64::MAX, &error);
        for log in self.routes.logs() {
            log.fail(error.clone());
        }
    }
}

/// Whether the server has resumed the session that the client asked for.
fn check_resumed(given: Option<&SessionId>, asked: &SessionId) -> Result<(), Error> {
    if given == Some(asked) {
        return Ok(());
    }
    Err(Error::Protocol(format!("the server answered with another session than {asked}")))
}

impl Peer {
    fn new(result: InitializeResult) -> Result<Self, Error> {
        let generation = Generation::of(&result)?;
        let capabilities = result.capabilities.unwrap_or_default();
        let server = ServerDescription { generation, info: result.server, capabilities, session_ttl: result.ttl_ms };
        Ok(Self { session_id: result.session_id, server })
    }

    /// How events of the session's own processes are sent.
    pub(crate) fn flow_policy(&self) -> FlowPolicy {
        self.server.generation.flow_policy(&self.server.capabilities)
    }
}

/// Identifies a process: its name, and its session if that is not the client's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessKey {
    pub(crate) process_id: ProcessId,
    /// `None` means the client's own session.
    pub(crate) session_id: Option<SessionId>,
}

impl ProcessKey {
    pub(crate) fn params(&self) -> ProcessParams {
        ProcessParams { process_id: self.process_id.clone(), session_id: self.session_id.clone() }
    }
}
