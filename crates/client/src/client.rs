//! The `Client` and its `Builder`: connect, start, attach to and list processes, query the host, end the session.
//!
//! A [`Client`] is a session, not a socket: it stays the same through every reconnect. Clones of the client and the handles of its
//! processes share the session. The connection closes when the last of them is dropped and its cleanup is done. The server keeps the
//! session until its time-to-live is over.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use exec_server_protocol::{
    Empty, ProcessId, SessionId, environment,
    failure::{self, Kind},
    http::CancelParams,
    initialize::Ttl,
    process as wire,
};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    task::JoinSet,
};

use crate::{
    Request,
    backoff::Backoff,
    compat::{self, command},
    error::Error,
    process::{self, Process, ProcessShared, log::EventLog, recovery, start::Start, stdin_queue::StdinQueue},
    requests,
    routes::{EventSource, Routes},
    server_link,
    session::{ConnectionState, EarlyRequest, EarlyStart, ProcessKey, ServerDescription, Session, SessionOptions},
    transport::{Connect, Dialer, Launch, Target, Tls, Token},
};

/// A session with a server. Cheap to clone; all clones share the session.
#[derive(Clone)]
pub struct Client {
    pub(crate) handle: Arc<SessionHandle>,
}

/// Keeps the connection open. Clients and process handles share it.
pub(crate) struct SessionHandle {
    pub(crate) session: Arc<Session>,
    /// The task that reconnects the session. It is aborted when the last handle is dropped.
    _keeper: JoinSet<()>,
}

/// Options for a handle to a process that exists already; see [`Client::attach`].
#[derive(Debug, Clone)]
pub struct Attach {
    /// The session of the process; `None` means the client's own session.
    pub session_id: Option<SessionId>,
    /// Report only events after this sequence number.
    pub after: u64,
    /// Keep output until this reader has consumed it, and block the process if its output gets too far ahead of the
    /// reader. Without `hold`, a slow reader sees gaps. Has no effect on a process of the client's own session.
    pub hold: bool,
}

impl Default for Attach {
    fn default() -> Self {
        Self { session_id: None, after: 0, hold: true }
    }
}

/// A start whose route exists.
struct RequestedStart {
    params: wire::StartParams,
    key: ProcessKey,
    log: Arc<EventLog>,
    terminate_on_drop: bool,
    keeps_write_ids: bool,
}

impl Client {
    fn new(session: Arc<Session>, keeper: JoinSet<()>) -> Self {
        Self { handle: Arc::new(SessionHandle { session, _keeper: keeper }) }
    }

    /// Connects to `ws://`, `wss://`, `unix://`, `stdio:` or `ssh://`, with the defaults of [`Builder`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Starts a program that serves on its stdin and stdout, and connects to it. The program ends with the client.
    pub async fn spawn(launch: Launch) -> Result<Self, Error> {
        Self::builder().spawn(launch).await
    }

    /// Returns a builder with all settings at their defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The id of the session; `None` on a server without sessions. Store it to return to the session later with [`Builder::resume`].
    #[must_use]
    pub fn session_id(&self) -> Option<SessionId> {
        self.session().peer.session_id.clone()
    }

    /// The state of the connection to the server.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.watch_state().borrow().clone()
    }

    /// A receiver that reports each change of the `state`.
    #[must_use]
    pub fn watch_state(&self) -> watch::Receiver<ConnectionState> {
        self.session().state()
    }

    /// The server's generation, version and capabilities, as announced in the handshake.
    #[must_use]
    pub fn server(&self) -> ServerDescription {
        self.session().peer.server.clone()
    }

    /// The address of the server, without its token.
    #[must_use]
    pub fn address(&self) -> String {
        self.session().address()
    }

    /// Starts a process exactly once, even if the connection is cut during the call.
    ///
    /// Dropping this future cancels the start: if the server started the process, the client terminates it in the background. The client
    /// does the same if the start fails without an answer from the server.
    pub async fn start(&self, start: Start) -> Result<Process, Error> {
        let session = self.session();
        let Start { id, mut params, terminate_on_drop } = start;
        self.check(&params)?;
        params.process_id = id.unwrap_or_else(|| ProcessId::from(crate::random_word()));
        // A current server fills in the same directory as `working_directory`, without a request.
        if params.cwd.is_some() || !session.generation().has_default_directory() {
            params.cwd = Some(session.working_directory(params.cwd.take()).await?);
        }
        let keeps_write_ids = session.keeps_write_ids().await?;
        let key = ProcessKey { session_id: None, process_id: params.process_id.clone() };
        // Add the route before the request is sent: the first events can arrive before the answer.
        let Some(log) = session.routes.add(key.clone(), EventSource::Starting, 0) else {
            return Err(refused(Kind::DuplicateProcess, format!("process {} already exists", key.process_id)));
        };
        self.finish_start(RequestedStart { params, key, log, terminate_on_drop, keeps_write_ids }, None).await
    }

    /// Sends a start whose route exists, unless `early` was sent already, and waits for the answer.
    async fn finish_start(&self, start: RequestedStart, early: Option<EarlyRequest>) -> Result<Process, Error> {
        let session = self.session();
        let RequestedStart { params, key, log, terminate_on_drop, keeps_write_ids } = start;
        let is_tty = params.tty;
        let mut starting = RouteGuard { handle: &self.handle, key: &key, log: &log, may_be_running: true };
        let started = if session.generation().has_process_methods() {
            self.start_once(params, &key, early).await
        } else {
            command::start(session, params).await
        };
        // After an answer, successful or not, no start is in flight. After other errors, such as an unknown outcome, the process may run.
        let is_answered = matches!(&started, Ok(_) | Err(Error::Server { .. }));
        starting.may_be_running = !is_answered;
        let started = started?;
        // Disarm the guard: the handle owns the route from here on.
        std::mem::forget(starting);
        session.routes.confirm(&key);
        Ok(Process::new(ProcessShared {
            handle: Arc::clone(&self.handle),
            input: self.stdin_queue(&key, keeps_write_ids),
            key,
            log,
            is_tty,
            pid: started.pid,
            sandbox: started.sandbox,
            terminate_on_drop,
        }))
    }

    async fn start_once(
        &self,
        params: wire::StartParams,
        key: &ProcessKey,
        early: Option<EarlyRequest>,
    ) -> Result<wire::StartResult, Error> {
        let sent = self.session().send_again::<requests::ProcessStart>(&params, early).await?;
        let is_repeated = sent.is_repeated;
        match sent.result::<requests::ProcessStart>() {
            // The first attempt succeeded, but its answer was lost with the connection.
            Err(Error::Server { kind, message, .. }) if is_repeated && compat::is_duplicate_start(kind, &message) => {
                let info = recovery::find_process(self.session(), key).await.ok().flatten();
                let pid = info.and_then(|info| info.pid);
                Ok(wire::StartResult { process_id: params.process_id, sandbox_type: None, sandbox: None, pid })
            }
            answer => answer,
        }
    }

    fn stdin_queue(&self, key: &ProcessKey, keeps_write_ids: bool) -> Arc<StdinQueue> {
        let has_process_methods = self.session().generation().has_process_methods();
        Arc::new(StdinQueue::new(key.clone(), has_process_methods, keeps_write_ids))
    }

    /// Refuses options that this server would silently ignore.
    fn check(&self, start: &wire::StartParams) -> Result<(), Error> {
        let capabilities = &self.session().peer.server.capabilities;
        let has_timeout = start.timeout_ms.is_some() || start.idle_timeout_ms.is_some();
        let drops_oldest = start.overflow == Some(wire::Overflow::DropOldest);
        let lacking = [
            (has_timeout, capabilities.timeouts, "end a process after a timeout"),
            (start.auto_forget, capabilities.auto_forget, "forget a process when it has ended"),
            (drops_oldest, capabilities.overflow, "drop the oldest output"),
        ];
        match lacking.iter().find(|(is_wanted, is_served, _)| *is_wanted && !is_served) {
            None => Ok(()),
            Some((_, _, what)) => Err(self.session().cannot(what)),
        }
    }

    /// Creates a handle to a process that exists already: a process of this session after a [`Builder::resume`], or a process of another
    /// session.
    pub async fn attach(&self, id: &ProcessId, options: Attach) -> Result<Process, Error> {
        let session = self.session();
        let session_id = options.session_id.filter(|id| Some(id) != session.peer.session_id.as_ref());
        let key = ProcessKey { session_id, process_id: id.clone() };
        let generation = session.generation();
        if !generation.can_attach(key.session_id.is_none()) {
            return Err(session.cannot("attach to this process"));
        }
        // These calls come before the route is added, so that their errors leave no route behind.
        let keeps_write_ids = session.keeps_write_ids().await?;
        let info = if generation.lists_processes() { recovery::find_process(session, &key).await? } else { None };
        if generation.lists_processes() && info.is_none() {
            return Err(refused(Kind::UnknownProcess, format!("unknown process id {id}")));
        }
        // Notifications about a process of the own session may have gone to an earlier client of this session, so its log is filled by
        // reads.
        let source = match (&key.session_id, options.hold) {
            (None, _) => EventSource::Polled,
            (Some(_), true) => EventSource::Pushed,
            (Some(_), false) => EventSource::Observed,
        };
        let Some(log) = session.routes.add(key.clone(), source, options.after) else {
            return Err(Error::Protocol(format!("this client already has a handle to process {id}")));
        };
        if let Some(info) = &info {
            recovery::record_end(&log, info, options.after, source);
        }
        let attaching = RouteGuard { handle: &self.handle, key: &key, log: &log, may_be_running: false };
        if source != EventSource::Polled {
            let ProcessKey { process_id, session_id } = key.clone();
            let (after_seq, hold) = (Some(options.after), options.hold);
            let params = wire::SubscribeParams { process_id, session_id, after_seq, hold, from_seq: None };
            session.call::<requests::ProcessSubscribe>(&params).await?;
        } else {
            session.spawn(recovery::poll_events(Arc::downgrade(session), key.clone(), Arc::downgrade(&log)));
        }
        // Disarm the guard, as in `start`.
        std::mem::forget(attaching);
        Ok(Process::new(ProcessShared {
            handle: Arc::clone(&self.handle),
            input: self.stdin_queue(&key, keeps_write_ids),
            key,
            log,
            is_tty: info.as_ref().is_some_and(|info| info.tty),
            pid: info.and_then(|info| info.pid),
            sandbox: None,
            terminate_on_drop: false,
        }))
    }

    /// Lists the processes of this session, or of every session of the same principal.
    pub async fn list(&self, scope: wire::Scope) -> Result<Vec<wire::ProcessInfo>, Error> {
        Ok(self.listing(scope).await?.processes)
    }

    /// Like [`list`](Self::list), and also returns the sessions whose processes a restarted server cannot list yet.
    pub async fn listing(&self, scope: wire::Scope) -> Result<wire::ListResult, Error> {
        recovery::list_processes(self.session(), scope).await
    }

    /// Information about the server's host.
    pub async fn environment_info(&self) -> Result<environment::InfoResult, Error> {
        self.request::<requests::EnvironmentInfo>(&Empty {}).await
    }

    /// Whether the server is ready.
    pub async fn environment_status(&self) -> Result<environment::StatusResult, Error> {
        self.request::<requests::EnvironmentStatus>(&Empty {}).await
    }

    /// Calls any method of the protocol, typed; see [`requests`]. An interrupted call is repeated if that is harmless.
    pub async fn request<M: Request>(&self, params: &M::Params<'_>) -> Result<M::Result, Error> {
        self.session().call::<M>(params).await
    }

    /// Ends the session: the server kills every process of the session. Every handle of the session fails afterwards.
    pub async fn end_session(&self) -> Result<(), Error> {
        self.session().end().await
    }

    /// Closes the connection cleanly, after sending the acknowledgements that are due. Every handle of the session fails afterwards. The
    /// server keeps the session for its time-to-live.
    pub async fn close(self) {
        self.session().close().await;
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.handle.session
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.address())
            .field("session_id", &self.session_id())
            .finish_non_exhaustive()
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.session.abandon();
    }
}

impl SessionHandle {
    /// Terminates a process in the background.
    pub(crate) fn terminate_in_background(self: &Arc<Self>, key: ProcessKey) {
        let handle = Arc::clone(self);
        spawn_cleanup(&self.session, async move {
            if let Err(error) = process::terminate(&handle.session, &key, None).await {
                tracing::warn!(process = key.process_id.as_str(), %error, "could not terminate the process");
            }
        });
    }

    /// Cancels an HTTP request in the background.
    pub(crate) fn cancel_http(self: &Arc<Self>, request_id: &str) {
        if self.session.peer.server.capabilities.http_cancel && self.session.lost().is_none() {
            self.release::<requests::HttpCancel>(CancelParams { request_id: request_id.to_owned() });
        }
    }

    /// Releases something on the server in the background: an open file, a subscription, an HTTP request.
    pub(crate) fn release<M: Request + 'static>(self: &Arc<Self>, params: M::Params<'static>) {
        let handle = Arc::clone(self);
        spawn_cleanup(&self.session, async move {
            // The error is ignored: the server releases the resource with the connection or the session at the latest.
            handle.session.call::<M>(&params).await.ok();
        });
    }
}

/// Runs cleanup work in a task of its own, because the handle whose drop causes it may be the last one. The work keeps the connection open
/// until it is done. It ends at the latest when the client gives up reconnecting, or when another connection takes the session over.
fn spawn_cleanup(session: &Session, work: impl Future<Output = ()> + Send + 'static) {
    // Outside of a runtime no task can be spawned, so nothing is cleaned up.
    if let Ok(runtime) = Handle::try_current() {
        let links = session.link_waiter();
        // Boxed, so that `spawn` is compiled once and not for each future type.
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            tokio::select! {
                () = work => {}
                () = links.wait_until_taken() => {}
            }
        });
        runtime.spawn(work);
    }
}

/// The error with which a server would refuse the request.
fn refused(kind: Kind, message: String) -> Error {
    Error::Server { code: failure::INVALID_REQUEST, kind: Some(kind), message }
}

/// Guard of a route whose process handle is not created yet. If it is dropped, it removes the route, and cancels a start that was
/// requested.
struct RouteGuard<'a> {
    handle: &'a Arc<SessionHandle>,
    key: &'a ProcessKey,
    log: &'a Arc<EventLog>,
    /// Whether the process may exist on the server and must be terminated.
    may_be_running: bool,
}

impl Drop for RouteGuard<'_> {
    fn drop(&mut self) {
        self.handle.session.routes.remove(self.key, self.log);
        if self.may_be_running {
            self.handle.terminate_in_background(self.key.clone());
        }
    }
}

/// Configures and connects a [`Client`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    options: SessionOptions,
    token: Option<Token>,
    tls: Tls,
    insecure_plaintext: bool,
}

impl Default for Builder {
    fn default() -> Self {
        let options = SessionOptions {
            name: "exec-server-client".to_owned(),
            connect_timeout: Duration::from_secs(10),
            initialize_timeout: Duration::from_secs(10),
            ..SessionOptions::default()
        };
        Self { options, token: None, tls: Tls::default(), insecure_plaintext: false }
    }
}

impl Builder {
    setters! {
        /// Sets the name of this client for the server's log.
        name(name: impl Into<String>) => options.name = name.into();

        /// Authenticates with this token. It overrides a token in the URL.
        token(token: Token) => token = Some(token);

        /// Allows sending the token to a `ws://` server on another machine, where it can be read on the network.
        insecure_plaintext(allow: bool) => insecure_plaintext = allow;

        /// Sets which certificate authorities to trust, and the client certificate, for `wss://`.
        tls(tls: Tls) => tls = tls;

        /// Timeout for one attempt to connect. Default: 10 s.
        connect_timeout(within: Duration) => options.connect_timeout = within;

        /// Timeout for the server's answer to `initialize`. Default: 10 s. Until an `ssh://` server has answered once, 120 s are added,
        /// for a password prompt.
        initialize_timeout(within: Duration) => options.initialize_timeout = within;

        /// Retries the first connection for this long if another attempt can succeed. Default: one attempt only, except while the server is
        /// still adopting the session to resume. Permanent failures are never retried; see [`ConnectFailure`](crate::ConnectFailure).
        connect_retry_for(within: Duration) => options.connect_retry_for = within;

        /// Reports an absent server early, without the full [`connect_retry_for`](Self::connect_retry_for). If nothing is listening, one
        /// more attempt is made after `pause`. If the host is unknown or unreachable, no further attempt is made. A busy server is still
        /// retried for the full time. `None`, the default, retries in all three cases.
        startup_grace(pause: Option<Duration>) => options.startup_grace = pause;

        /// Reports a connection that is open but silent for this long as [`ConnectionState::Stalled`]. Default: never. The client pings a
        /// silent server every second, which costs a few bytes. Servers without acknowledgements are not watched.
        report_stall_after(silent: Duration) => options.report_stall_after = Some(silent);

        /// How long the server keeps the session while the client is disconnected. Default: the server's 24 hours.
        ttl(ttl: Ttl) => options.ttl = Some(ttl);

        /// Resumes an existing session instead of creating one.
        resume(session_id: SessionId) => options.resume = Some(session_id);

        /// Takes the resumed session over if another connection is still attached to it.
        takeover(take: bool) => options.takeover = take;

        /// How long the client tries to reconnect before the session counts as lost. Default: as long as the server keeps the session.
        recover_for(within: Duration) => options.recover_for = Some(within);

        /// Sets the pauses between attempts to reconnect.
        backoff(backoff: Backoff) => options.backoff = backoff;

        /// Makes calls fail at once while the connection is cut, instead of waiting for a reconnect.
        fail_fast(fail: bool) => options.fail_fast = fail;

        /// A random text of 16 to 128 letters, digits, `-` and `_`, used only once. It lets [`open_and_start`](Self::open_and_start) send the start
        /// together with the handshake, except over ssh and other programs. Set it only for a server that announced the capability `session_key` on an earlier connection. If the
        /// server does not have the capability any longer, the client connects once more without the key.
        session_key(key: impl Into<String>) => options.session_key = Some(key.into());

        /// Sets a timeout for every call. Default: none. Writes to stdin have no timeout.
        call_timeout(within: Duration) => options.call_timeout = Some(within);
    }

    /// Connects to a URL.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        self.dial(url.parse()?).await
    }

    /// Starts a program and connects to it; see [`Client::spawn`].
    pub async fn spawn(self, launch: Launch) -> Result<Client, Error> {
        self.dial(Target::from(launch)).await
    }

    async fn dial(self, target: Target) -> Result<Client, Error> {
        let Self { token, tls, insecure_plaintext, .. } = self.clone();
        self.open(Dialer { target, token, tls, insecure_plaintext }).await
    }

    /// Connects over a custom transport.
    pub async fn open(self, connect: impl Connect) -> Result<Client, Error> {
        let opened = Session::open(Box::new(connect), self.options, Arc::default(), None).await?;
        Ok(Client::new(opened.session, opened.keeper))
    }

    /// Connects over a custom transport and starts a process, exactly once. With a [`session_key`](Self::session_key), the start is sent together
    /// with the handshake, which saves a round trip. The first error is that of the connection, the second that of the start.
    ///
    /// If the connection breaks before the answer, the client connects again for as long as it would to an established session, because the
    /// process may be running. If it gives up, the error is [`Error::UnknownOutcome`]. Dropping this future ends the session as soon as the server
    /// can be reached. `is_sent` becomes true just before the start is sent, so that a caller can tell whether the process may be running.
    pub async fn open_and_start(
        self,
        connect: impl Connect,
        start: Start,
        is_sent: Arc<AtomicBool>,
    ) -> Result<(Client, Result<Process, Error>), Error> {
        let Some(session_key) = self.options.session_key.clone().filter(|_| self.options.resume.is_none()) else {
            let client = self.open(connect).await?;
            is_sent.store(true, Ordering::Relaxed);
            let process = client.start(start).await;
            return Ok((client, process));
        };
        // A server that knows session keys also knows every option of a start that `Client::check` is about, and the default directory.
        let Start { id, mut params, terminate_on_drop } = start.clone();
        params.process_id = id.unwrap_or_else(|| ProcessId::from(crate::random_word()));
        let start = Start { id: Some(params.process_id.clone()), ..start };
        let key = ProcessKey { session_id: None, process_id: params.process_id.clone() };
        let routes = Arc::new(Routes::before_handshake());
        let log = routes.add(key.clone(), EventSource::Starting, 0).expect("the table of routes is new");
        let encoded = server_link::encode(requests::ProcessStart::NAME, &params)?;
        let early = EarlyStart { session_key, params: encoded, is_sent: Arc::clone(&is_sent) };
        let opening = Session::open(Box::new(connect), self.options, Arc::clone(&routes), Some(early));
        let (opened_tx, opened_rx) = oneshot::channel();
        // A task of its own, so that a dropped caller does not leave the process running. Like cleanup work, it ends at the latest when the client
        // gives up reconnecting.
        Handle::current().spawn(async move {
            if let Err(Ok(opened)) = opened_tx.send(opening.await) {
                opened.session.end().await.ok(); // Nothing is left that could report the error.
            }
        });
        let opened = opened_rx.await.map_err(|_| Error::Disconnected { reason: None })??;
        let client = Client::new(opened.session, opened.keeper);
        let process = if opened.started.is_some() {
            let start = RequestedStart { params, key, log, terminate_on_drop, keeps_write_ids: true };
            client.finish_start(start, opened.started).await
        } else {
            routes.remove(&key, &log);
            is_sent.store(true, Ordering::Relaxed);
            client.start(start).await
        };
        Ok((client, process))
    }
}
