//! The way in: connect, start and find processes, ask about the host, leave.
//!
//! A [`Client`] is a session, not a socket: it stays the same through every reconnect. Clones share it, and so do the handles
//! of its processes; the connection ends when the last of them is dropped, the session when its time-to-live is over.

use std::{pin::Pin, sync::Arc, time::Duration};

use exec_server_protocol::{
    Empty, ProcessId, SessionId, command, environment,
    failure::{self, Kind},
    fs::CloseParams,
    http::CancelParams,
    initialize::Ttl,
    path::{Form, PathArg},
    process as wire,
    sandbox::AppliedSandbox,
};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    backoff::Backoff,
    error::Error,
    process::{self, Origin, Process, log::Log, recovery, start::Start},
    requests::{self, Method},
    routes::Feed,
    session::{Generation, Key, Options, ServerDescription, Session, State},
    transport::{Connect, Dialer, Launch, Target, Tls, Token},
};

/// A session with a server.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

/// What keeps the connection: shared by clients and process handles.
pub(crate) struct Handle {
    session: Arc<Session>,
    /// The task that keeps the link; ends with the last handle.
    _keeper: JoinSet<()>,
}

/// How to look at a process that is there already; see [`Client::attach`].
#[derive(Debug, Clone)]
pub struct Attach {
    /// Its session, if that is not the client's own.
    pub session_id: Option<SessionId>,
    /// Only events after this number.
    pub after: u64,
    /// Keep its output until this reader has it, and hold the process back for it; without, a slow reader sees gaps.
    pub hold: bool,
}

impl Default for Attach {
    fn default() -> Self {
        Self { session_id: None, after: 0, hold: true }
    }
}

impl Client {
    /// Connects to `ws://`, `wss://`, `unix://`, `stdio:` or `ssh://`, with the defaults of [`Builder`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Starts a program that serves on its standard streams, and speaks with it; it ends with the client.
    pub async fn spawn(launch: Launch) -> Result<Self, Error> {
        Self::builder().spawn(launch).await
    }

    /// Everything that can be set.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The session; none on a V0 server. Keep it to come back with [`Builder::resume`].
    #[must_use]
    pub fn session_id(&self) -> Option<SessionId> {
        self.session().peer.session_id.clone()
    }

    /// How it stands with the server.
    #[must_use]
    pub fn state(&self) -> State {
        self.watch_state().borrow().clone()
    }

    /// The state, watched.
    #[must_use]
    pub fn watch_state(&self) -> watch::Receiver<State> {
        self.session().state()
    }

    /// What is known of the server.
    #[must_use]
    pub fn server(&self) -> ServerDescription {
        self.session().peer.server.clone()
    }

    /// Where the server is, without a token.
    #[must_use]
    pub fn address(&self) -> String {
        self.session().address()
    }

    /// Starts a process, once, whatever becomes of the connection meanwhile.
    ///
    /// A caller that drops this future calls the start off: a process that came to be is ended in the background.
    pub async fn start(&self, start: Start) -> Result<Process, Error> {
        let session = self.session();
        self.check(&start)?;
        let process_id = start.id.clone().unwrap_or_else(|| ProcessId::from(crate::random_word()));
        let is_reference = session.peer.server.generation == Generation::Reference;
        // A reference server tells by its answer of which generation it is.
        let info = if start.cwd.is_none() || is_reference { self.info().await? } else { None };
        let cwd = cwd(&start, info.as_ref(), session.peer.server.generation);
        let key = Key { session_id: None, process_id: process_id.clone() };
        // Listened for before it is asked for: its first words may come before the answer.
        let Some(log) = session.routes.add(key.clone(), Feed::Starting, 0) else {
            return Err(Error::Server {
                code: failure::INVALID_REQUEST,
                kind: Some(Kind::DuplicateProcess),
                message: format!("process {process_id} already exists"),
            });
        };
        let mut starting = Starting { handle: &self.handle, key: &key, log: &log, is_asked: true };
        let started = match session.peer.server.generation {
            Generation::V0 => self.start_v0(&start, process_id, cwd).await,
            Generation::Reference | Generation::Current => self.start_once(&start, &key, cwd).await,
        };
        // Answered: whatever it was, nothing is under way any more. An unknown outcome is not an answer.
        starting.is_asked = matches!(&started, Err(error) if !matches!(error, Error::Server { .. }));
        let Started { pid, sandbox } = started?;
        std::mem::forget(starting);
        session.routes.confirm(&key);
        let is_h = is_reference && info.is_some();
        let terminate_on_drop = start.terminate_on_drop;
        let origin = Origin { key, log, is_tty: start.tty, pid, sandbox, is_h, terminate_on_drop };
        Ok(Process::new(Arc::clone(&self.handle), origin))
    }

    async fn start_once(&self, start: &Start, key: &Key, cwd: PathArg) -> Result<Started, Error> {
        let mut is_repeated = false;
        let params = start.params(key.process_id.clone(), cwd);
        match self.session().call_noting::<requests::ProcessStart>(&params, &mut is_repeated).await {
            Ok(result) => Ok(Started { pid: result.pid, sandbox: result.sandbox }),
            // The first time worked, and its answer was lost with the link.
            Err(Error::Server { kind, message, .. }) if is_repeated && is_duplicate(kind, &message) => {
                let info = recovery::find(self.session(), key).await.ok().flatten();
                Ok(Started { pid: info.and_then(|info| info.pid), sandbox: None })
            }
            Err(error) => Err(error),
        }
    }

    async fn start_v0(&self, start: &Start, process_id: ProcessId, cwd: PathArg) -> Result<Started, Error> {
        let params = command::ExecParams {
            process_id,
            argv: start.argv.clone(),
            cwd,
            env: start.env.clone(),
            tty: start.tty,
            arg0: start.arg0.clone(),
            output_bytes_cap: None,
        };
        let pid = self.session().call::<requests::CommandExec>(&params).await?.pid;
        Ok(Started { pid, sandbox: None })
    }

    /// Refuses what this server would silently ignore.
    fn check(&self, start: &Start) -> Result<(), Error> {
        let capabilities = &self.session().peer.server.capabilities;
        let lacking = [
            (
                start.timeout.is_some() || start.idle_timeout.is_some(),
                capabilities.timeouts,
                "end a process after a time",
            ),
            (start.auto_forget, capabilities.auto_forget, "forget a process at its end"),
            (start.overflow == Some(wire::Overflow::DropOldest), capabilities.overflow, "drop the oldest output"),
        ];
        match lacking.iter().find(|(is_wanted, is_served, _)| *is_wanted && !is_served) {
            None => Ok(()),
            Some((_, _, what)) => Err(Error::Protocol(format!("the server at {} cannot {what}", self.address()))),
        }
    }

    /// What the host says of itself, asked once; none from a server that does not know the question.
    pub(crate) async fn info(&self) -> Result<Option<environment::InfoResult>, Error> {
        let session = self.session();
        if session.peer.server.generation == Generation::V0 {
            return Ok(None);
        }
        let asked =
            session.info.get_or_try_init(async || match session.call::<requests::EnvironmentInfo>(&Empty {}).await {
                Ok(info) => Ok(Some(info)),
                Err(Error::Server { code: failure::METHOD_NOT_FOUND, .. }) => Ok(None),
                Err(error) => Err(error),
            });
        asked.await.cloned()
    }

    /// Takes hold of a process that is there already: of this session after a [`Builder::resume`], or of another session.
    pub async fn attach(&self, id: &ProcessId, options: Attach) -> Result<Process, Error> {
        let session = self.session();
        let session_id = options.session_id.filter(|id| Some(id) != session.peer.session_id.as_ref());
        let key = Key { session_id, process_id: id.clone() };
        let is_current = session.peer.server.generation == Generation::Current;
        if !is_current && (key.session_id.is_some() || session.peer.server.generation == Generation::V0) {
            return Err(Error::Protocol(format!("the server at {} cannot show processes of others", self.address())));
        }
        let info = if is_current { recovery::find(session, &key).await? } else { None };
        if is_current && info.is_none() {
            return Err(Error::Server {
                code: failure::INVALID_REQUEST,
                kind: Some(Kind::UnknownProcess),
                message: format!("unknown process id {id}"),
            });
        }
        let feed = match (&key.session_id, options.hold) {
            (None, _) => Feed::Polled,
            (Some(_), true) => Feed::Pushed,
            (Some(_), false) => Feed::Observed,
        };
        let Some(log) = session.routes.add(key.clone(), feed, options.after) else {
            return Err(Error::Protocol(format!("this client has a handle of process {id} already")));
        };
        if let Some(info) = &info {
            recovery::learn_end(&log, info, options.after, feed);
        }
        let attaching = Starting { handle: &self.handle, key: &key, log: &log, is_asked: false };
        if feed != Feed::Polled {
            let params = wire::SubscribeParams {
                process_id: id.clone(),
                session_id: key.session_id.clone(),
                after_seq: Some(options.after),
                hold: options.hold,
                from_seq: None,
            };
            session.call::<requests::ProcessSubscribe>(&params).await?;
        } else {
            session.spawn(recovery::poll(Arc::downgrade(session), key.clone(), Arc::downgrade(&log)));
        }
        std::mem::forget(attaching);
        let is_h = session.peer.server.generation == Generation::Reference && self.info().await?.is_some();
        let origin = Origin {
            key,
            log,
            is_tty: info.as_ref().is_some_and(|info| info.tty),
            pid: info.and_then(|info| info.pid),
            sandbox: None,
            is_h,
            terminate_on_drop: false,
        };
        Ok(Process::new(Arc::clone(&self.handle), origin))
    }

    /// The processes of this session, or of every session of the same principal.
    pub async fn list(&self, scope: wire::Scope) -> Result<Vec<wire::ProcessInfo>, Error> {
        Ok(self.listing(scope).await?.processes)
    }

    /// As [`list`](Self::list), with the sessions whose processes a restarted server cannot list yet.
    pub async fn listing(&self, scope: wire::Scope) -> Result<wire::ListResult, Error> {
        recovery::list(self.session(), scope).await
    }

    /// What the far host says of itself.
    pub async fn environment_info(&self) -> Result<environment::InfoResult, Error> {
        self.request::<requests::EnvironmentInfo>(&Empty {}).await
    }

    /// Whether the server is ready.
    pub async fn environment_status(&self) -> Result<environment::StatusResult, Error> {
        self.request::<requests::EnvironmentStatus>(&Empty {}).await
    }

    /// Any method of the wire, typed; see [`requests`]. Interrupted calls are repeated where that is harmless.
    pub async fn request<M: Method>(&self, params: &M::Params) -> Result<M::Result, Error> {
        self.session().call::<M>(params).await
    }

    /// Ends the session: every process of it is killed. Every handle of it fails from then on.
    pub async fn end_session(&self) -> Result<(), Error> {
        self.session().end().await
    }

    /// Leaves in order: what was taken is acknowledged, the connection closed. The session waits for its time-to-live.
    pub async fn close(self) {
        self.session().close().await;
    }

    /// Closes a file that nobody reads or writes any more, in the background.
    pub(crate) fn close_file(&self, params: CloseParams) {
        let client = self.clone();
        behind(self.session(), async move {
            // It ends with the session at the latest.
            client.request::<requests::FsClose>(&params).await.ok();
        });
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
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

impl Drop for Handle {
    fn drop(&mut self) {
        self.session.abandon();
    }
}

impl Handle {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Ends a process that nobody waits for, in the background.
    pub(crate) fn clean_up(self: &Arc<Self>, key: Key) {
        let handle = Arc::clone(self);
        behind(&self.session, async move {
            if let Err(error) = process::terminate(&handle.session, &key, None).await {
                tracing::warn!(process = key.process_id.as_str(), %error, "a process could not be ended");
            }
        });
    }

    /// Calls an HTTP request off that nobody waits for any more, in the background.
    pub(crate) fn cancel_http(self: &Arc<Self>, request_id: &str) {
        if !self.session.peer.server.capabilities.http_cancel || self.session.lost().is_some() {
            return;
        }
        let (handle, params) = (Arc::clone(self), CancelParams { request_id: request_id.to_owned() });
        behind(&self.session, async move {
            // It ends with the connection at the latest.
            handle.session.call::<requests::HttpCancel>(&params).await.ok();
        });
    }

    /// Ends a subscription, in the background.
    pub(crate) fn unsubscribe(self: &Arc<Self>, params: wire::ProcessParams) {
        let handle = Arc::clone(self);
        behind(&self.session, async move {
            // It ends with the connection at the latest.
            handle.session.call::<requests::ProcessUnsubscribe>(&params).await.ok();
        });
    }
}

/// Runs work that outlives the last handle, because it is what the last handle leaves to be done. It holds the connection
/// until then, and is bounded by the time that a cut may last; whoever takes the session takes that over too.
fn behind(session: &Session, work: impl Future<Output = ()> + Send + 'static) {
    // Outside of a runtime there is no connection either.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let mut taken = session.taken.subscribe();
        // One type of task, so that the runtime's part is not compiled again for each.
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            tokio::select! {
                () = work => {}
                _ = taken.wait_for(|is_taken| *is_taken) => {}
            }
        });
        runtime.spawn(work);
    }
}

/// What the reply to a start says.
struct Started {
    pid: Option<u32>,
    sandbox: Option<AppliedSandbox>,
}

/// A start that was asked for; dropped before its answer, it is called off.
struct Starting<'a> {
    handle: &'a Arc<Handle>,
    key: &'a Key,
    log: &'a Arc<Log>,
    /// Whether the server may know of it.
    is_asked: bool,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.handle.session.routes.remove(self.key, self.log);
        if self.is_asked {
            self.handle.clean_up(self.key.clone());
        }
    }
}

/// Whether a second start was refused because of the first. Older servers say it in words alone.
fn is_duplicate(kind: Option<Kind>, message: &str) -> bool {
    kind == Some(Kind::DuplicateProcess) || (kind.is_none() && message.ends_with("already exists"))
}

/// The working directory in the form that the server reads: URIs, but native paths before generation H.
fn cwd(start: &Start, info: Option<&environment::InfoResult>, generation: Generation) -> PathArg {
    let own = || info.and_then(|info| info.cwd.clone()).map_or_else(|| PathArg::new("file:///"), PathArg::new);
    let cwd = start.cwd.clone().unwrap_or_else(own);
    let takes_uris = generation == Generation::Current || info.is_some();
    match (takes_uris, cwd.resolve()) {
        (false, Ok(path)) => PathArg::new(Form::Native.write(&path)),
        (true, _) | (false, Err(_)) => cwd,
    }
}

/// Sets up a [`Client`].
#[derive(Debug, Clone)]
pub struct Builder {
    options: Options,
    token: Option<Token>,
    tls: Tls,
    insecure_plaintext: bool,
}

impl Default for Builder {
    fn default() -> Self {
        let options = Options {
            name: "exec-server-client".to_owned(),
            connect_timeout: Duration::from_secs(10),
            initialize_timeout: Duration::from_secs(10),
            connect_retry_for: Duration::ZERO,
            startup_grace: None,
            report_stall_after: None,
            ttl: None,
            resume: None,
            takeover: false,
            recover_for: None,
            backoff: Backoff::default(),
            fail_fast: false,
            call_timeout: None,
        };
        Self { options, token: None, tls: Tls::default(), insecure_plaintext: false }
    }
}

impl Builder {
    /// Says who connects, for the server's log.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// Shows this token, in place of one in the URL.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Shows the token also to a `ws://` server on another machine, where everybody on the way can read it.
    #[must_use]
    pub fn insecure_plaintext(mut self, allow: bool) -> Self {
        self.insecure_plaintext = allow;
        self
    }

    /// Sets whom to trust, and as whom to come, over `wss://`.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Time for one attempt to connect; 10 s unless set.
    #[must_use]
    pub fn connect_timeout(mut self, within: Duration) -> Self {
        self.options.connect_timeout = within;
        self
    }

    /// Time for the server's answer to `initialize`; 10 s unless set.
    #[must_use]
    pub fn initialize_timeout(mut self, within: Duration) -> Self {
        self.options.initialize_timeout = within;
        self
    }

    /// Tries the first connection again for so long where another attempt may succeed; it is tried once unless set.
    /// Permanent failures are never tried again; see [`ConnectFailure`](crate::ConnectFailure).
    #[must_use]
    pub fn connect_retry_for(mut self, within: Duration) -> Self {
        self.options.connect_retry_for = within;
        self
    }

    /// Reports a server that is not there without waiting for it: where nothing listens, one more attempt is made after
    /// `pause`, and none where the host is unknown or unreachable. A busy server is still retried for
    /// [`connect_retry_for`](Self::connect_retry_for). `None` retries all three; that is the default.
    #[must_use]
    pub fn startup_grace(mut self, pause: Option<Duration>) -> Self {
        self.options.startup_grace = pause;
        self
    }

    /// Reports a link that is open and silent for so long as [`State::Stalled`]; never unless set. A silent server is asked
    /// for a sign of life every second, which costs a few bytes. Servers of the reference are not watched.
    #[must_use]
    pub fn report_stall_after(mut self, silent: Duration) -> Self {
        self.options.report_stall_after = Some(silent);
        self
    }

    /// How long the session waits for us when the link is cut; the server's 24 hours unless set.
    #[must_use]
    pub fn ttl(mut self, ttl: Ttl) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Returns to a session instead of making one.
    #[must_use]
    pub fn resume(mut self, session_id: SessionId) -> Self {
        self.options.resume = Some(session_id);
        self
    }

    /// Takes the session to resume from a connection that still has it.
    #[must_use]
    pub fn takeover(mut self, take: bool) -> Self {
        self.options.takeover = take;
        self
    }

    /// How long a cut link is mended before the session counts as lost; as long as it lives on the server unless set.
    #[must_use]
    pub fn recover_for(mut self, within: Duration) -> Self {
        self.options.recover_for = Some(within);
        self
    }

    /// Sets the pauses between attempts to mend the link.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.options.backoff = backoff;
        self
    }

    /// Lets calls fail at once while the link is cut, instead of waiting for it.
    #[must_use]
    pub fn fail_fast(mut self, fail: bool) -> Self {
        self.options.fail_fast = fail;
        self
    }

    /// Gives every call a deadline; there is none unless set. Writes of stdin have none.
    #[must_use]
    pub fn call_timeout(mut self, within: Duration) -> Self {
        self.options.call_timeout = Some(within);
        self
    }

    /// Connects to a URL.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        let target: Target = url.parse()?;
        self.dial(target).await
    }

    /// Starts a program and speaks with it; see [`Client::spawn`].
    pub async fn spawn(self, launch: Launch) -> Result<Client, Error> {
        self.dial(Target::from(launch)).await
    }

    async fn dial(self, target: Target) -> Result<Client, Error> {
        let dialer = Dialer {
            target,
            token: self.token.clone(),
            tls: self.tls.clone(),
            insecure_plaintext: self.insecure_plaintext,
        };
        self.open(dialer).await
    }

    /// Connects by a way of one's own.
    pub async fn open(self, connect: impl Connect) -> Result<Client, Error> {
        let (session, keeper) = Session::open(Box::new(connect), self.options).await?;
        Ok(Client { handle: Arc::new(Handle { session, _keeper: keeper }) })
    }
}
