//! One session with a server, through as many connections as it takes.
//!
//! ```text
//!  open ──▶ Up ──link ends──▶ Down ──resumed──▶ Up
//!                              │
//!                              └──refused, or too late──▶ Lost   (never left again)
//! ```
//! Owns the link of the moment, the routes from process names to logs, and the one task that keeps the link. Every call goes
//! through [`Session::call`], which alone decides what is sent again.
//!
//! Failure paths: a call that was interrupted is sent again where that is harmless, else it ends with an unknown outcome;
//! a session that the server does not know any more fails every process, and every later call, with the same reason.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use exec_server_protocol::{
    ProcessId, SessionId,
    capabilities::ServerCapabilities,
    environment,
    failure::Kind,
    initialize::{InitializeResult, ServerInfo, Ttl},
    limits, method,
};
use serde_json::value::RawValue;
use tokio::{
    sync::{Notify, OnceCell, watch},
    task::JoinSet,
    time::{self, Instant},
};

use crate::{
    backoff::Backoff,
    error::{Error, chain},
    hearing::Ear,
    http::Streams,
    link::{self, Link, Plain, Refused, Sending, WithBytes},
    links::{Links, Standing, Status},
    process::{log::Discipline, recovery},
    requests::{self, Again, Method},
    routes::Routes,
    transport::Connect,
};

mod adopting;
mod attend;
mod first_connect;
mod mending;
mod stall;

pub(crate) use self::adopting::is_adopting;
use self::{first_connect::FirstConnect, mending::Mending};

/// How long a reference server's session can be resumed: 25 s, inside the 30 s of generation H.
const REFERENCE_RECOVERY: Duration = Duration::from_secs(25);

/// The largest window we believe: more would be a way to fill our memory.
const WINDOW_MAX: u64 = 16 << 20;

/// As long as anybody can mean by a time without end; more would overflow the clock.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How long a session that was taken from us is asked for: it comes back if the taker was a late ghost of our own, which the
/// server lets go after a silence. Somebody who lives has it to keep, or two clients would take it from each other for ever.
const TAKEN_RECOVERY: Duration = limits::TAKEOVER_SILENCE.saturating_mul(2);

/// What a caller can set; see [`Builder`](crate::Builder).
#[derive(Debug, Clone)]
pub(crate) struct Options {
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
}

/// The state of a session with its server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum State {
    /// Calls are served.
    Connected,
    /// The link is open and silent; calls wait, processes go on. Only with
    /// [`Builder::report_stall_after`](crate::Builder::report_stall_after).
    Stalled {
        /// For how long nothing has come, at least.
        silent: Duration,
    },
    /// The link is cut and is being mended; calls wait, processes go on.
    Recovering {
        /// Why the link was cut.
        reason: String,
    },
    /// The session is lost, and so is every handle of it.
    Lost {
        /// Why.
        error: Error,
    },
}

/// How much of the wire a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Generation {
    /// The first one: `command/exec`, no sessions, no reading back.
    V0,
    /// A server of the reference, without our additions.
    Reference,
    /// A server that acknowledges, and counts what it drops.
    Current,
}

/// What is known of a server.
#[derive(Debug, Clone)]
pub struct ServerDescription {
    /// How much of the wire it speaks.
    pub generation: Generation,
    /// Its name and version, where it says them.
    pub info: Option<ServerInfo>,
    /// What it adds to the reference; nothing is announced by the reference itself.
    pub capabilities: ServerCapabilities,
    /// How long it keeps the session without use, as it was granted; nothing from a server that does not say.
    pub session_ttl: Option<Ttl>,
}

/// What the first `initialize` told.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) session_id: Option<SessionId>,
    pub(crate) server: ServerDescription,
}

/// See the module.
pub(crate) struct Session {
    connect: Box<dyn Connect>,
    pub(crate) options: Options,
    pub(crate) peer: Peer,
    standing: Standing,
    state: watch::Sender<State>,
    /// Somebody else has the session, as far as is known.
    pub(crate) taken: watch::Sender<bool>,
    pub(crate) routes: Arc<Routes>,
    /// Bodies of HTTP answers.
    pub(crate) streams: Arc<Streams>,
    /// Logs have something to acknowledge.
    pub(crate) acks: Arc<Notify>,
    /// Background work: writes of stdin, cleaning up. Ends with the session.
    tasks: Mutex<JoinSet<()>>,
    /// Held while the session is asked to end and its answer has not been looked at.
    ending: tokio::sync::Mutex<()>,
    /// What the host says of itself, asked for once.
    pub(crate) info: OnceCell<Option<environment::InfoResult>>,
}

impl Session {
    /// Connects for the first time, and starts the keeper.
    pub(crate) async fn open(connect: Box<dyn Connect>, options: Options) -> Result<(Arc<Self>, JoinSet<()>), Error> {
        let routes = Arc::new(Routes::default());
        let (streams, acks) = (Arc::new(Streams::default()), Arc::new(Notify::new()));
        let mut first_connect = FirstConnect::new(&options);
        let mut has_ghost = false;
        let (link, result) = loop {
            let ear = Ear::new(Arc::clone(&routes), Arc::clone(&streams), Arc::clone(&acks));
            match link::dial(&*connect, &options, options.resume.clone(), options.takeover, ear, 1).await {
                Ok(opened) => break opened,
                Err(refused) => {
                    let within = adopting::resume_within(&options, &refused.error);
                    let Some(pause) = first_connect.pause_after(&refused, within) else { return Err(refused.error) };
                    // One that asked for a new session takes nothing from us when it comes late.
                    has_ghost |= options.resume.is_some() && refused.may_come_late();
                    time::sleep(pause).await;
                }
            }
        };
        let peer = Peer::new(result)?;
        if let (Some(asked), given) = (&options.resume, &peer.session_id)
            && given.as_ref() != Some(asked)
        {
            return Err(Error::Protocol(format!("the server answered with another session than {asked}")));
        }
        routes.set_discipline(peer.discipline(), peer.session_id.clone());
        let link = Arc::new(link);
        // The session is ours by now: a link that broke again is mended by the keeper, as at any other time.
        link.notify(method::INITIALIZED, &exec_server_protocol::Empty {}).await.ok();
        let session = Arc::new(Self {
            connect,
            options,
            peer,
            standing: Standing::new(Status::Up(Arc::clone(&link))),
            state: watch::Sender::new(State::Connected),
            taken: watch::Sender::new(false),
            routes,
            streams,
            acks,
            tasks: Mutex::new(JoinSet::new()),
            ending: tokio::sync::Mutex::new(()),
            info: OnceCell::new(),
        });
        let mut keeper = JoinSet::new();
        keeper.spawn(Arc::clone(&session).keep(link, has_ghost));
        Ok((session, keeper))
    }

    /// Where the server is, without a token.
    pub(crate) fn address(&self) -> String {
        self.connect.address()
    }

    pub(crate) fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Whether nothing can be hoped for any more, and why.
    pub(crate) fn lost(&self) -> Option<Error> {
        match self.standing.get() {
            Status::Lost(error) => Some(error),
            Status::Up(_) | Status::Down { .. } => None,
        }
    }

    /// The typed call of a method, through as many links as it takes.
    pub(crate) async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, Error> {
        self.call_noting::<M>(params, &mut false).await
    }

    /// As [`call`](Self::call); says whether the call was sent more than once.
    pub(crate) async fn call_noting<M: Method>(
        &self,
        params: &M::Params,
        is_repeated: &mut bool,
    ) -> Result<M::Result, Error> {
        let params = link::encode(M::NAME, params)?;
        let calling = self.call_any(M::NAME, M::AGAIN, Plain(&params), is_repeated);
        let (answer, attached) = self.bounded(M::NAME, calling).await?;
        let mut result = link::decode(M::NAME, &answer)?;
        if let Some(bytes) = attached {
            M::put_attached(&mut result, &bytes);
        }
        Ok(result)
    }

    /// As [`call`](Self::call), with the bytes attached to the answer.
    pub(crate) async fn call_attached<M: Method>(
        &self,
        params: &M::Params,
    ) -> Result<(M::Result, Option<Bytes>), Error> {
        let (params, mut is_repeated) = (link::encode(M::NAME, params)?, false);
        let calling = self.call_any(M::NAME, M::AGAIN, Plain(&params), &mut is_repeated);
        let (answer, attached) = self.bounded(M::NAME, calling).await?;
        Ok((link::decode(M::NAME, &answer)?, attached))
    }

    /// As [`call`](Self::call), with bytes that are in the params where a server does not take them attached.
    pub(crate) async fn call_with<M: Method>(
        &self,
        params: &(impl Fn(String) -> M::Params + Sync),
        bytes: &Bytes,
    ) -> Result<M::Result, Error> {
        let calling = async { self.call_any(M::NAME, M::AGAIN, WithBytes(params, bytes), &mut false).await };
        link::decode(M::NAME, &self.bounded(M::NAME, calling).await?.0)
    }

    /// A call within the time that the caller has given to calls.
    pub(crate) async fn bounded<T>(
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

    async fn call_any(
        &self,
        method: &'static str,
        again: Again,
        what: impl Sending,
        is_repeated: &mut bool,
    ) -> Result<(Box<RawValue>, Option<Bytes>), Error> {
        let mut after = 0;
        let links = self.links();
        loop {
            let link = links.after(after).await?;
            after = link.epoch;
            match what.send(&link, method).await {
                Ok(sent) => match sent.attached_answer().await.map_err(|error| link.error(method, error)) {
                    Err(Error::Disconnected { .. }) if again == Again::Harmless => *is_repeated = true,
                    Err(Error::Disconnected { reason }) => return Err(Error::UnknownOutcome { method, reason }),
                    other => return other,
                },
                // It was never sent: the next link will do, whatever the method.
                Err(error) => match link.error(method, error) {
                    Error::Disconnected { .. } => {}
                    other => return Err(other),
                },
            }
        }
    }

    /// The links of this session, one after the other.
    pub(crate) fn links(&self) -> Links {
        self.standing.links(self.options.fail_fast)
    }

    /// Ends the connection in order; the session stays with the server.
    pub(crate) async fn close(&self) {
        let link = match self.standing.get() {
            Status::Up(link) => Some(link),
            Status::Down { .. } | Status::Lost(_) => None,
        };
        self.lose(Error::Disconnected { reason: Some("closed by its user".to_owned()) });
        if let Some(link) = link {
            // The link may be gone, or the server hear nothing: then it keeps a little more.
            time::timeout(link::CLOSE_WITHIN, self.send_acks(&link)).await.ok();
            link.end().await;
        }
    }

    /// Asks the server to end the session and all in it, on as many links as it takes, and ends the connection.
    pub(crate) async fn end(&self) -> Result<(), Error> {
        if let Some(link) = self.bounded(requests::SessionEnd::NAME, self.ask_to_end()).await? {
            link.end().await;
        }
        Ok(())
    }

    /// Returns the link that is left over, if any.
    async fn ask_to_end(&self) -> Result<Option<Arc<Link>>, Error> {
        let mut after = 0;
        let links = self.links();
        loop {
            let link = match links.after(after).await {
                Ok(link) => link,
                // Ended on the link before, whose answer was lost.
                Err(Error::SessionLost { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            after = link.epoch;
            // Until the answer is looked at, the keeper waits: the server hangs up behind it, and that is no cut.
            let _answering = self.ending.lock().await;
            match link.call::<requests::SessionEnd>(&exec_server_protocol::Empty {}).await {
                Ok(_) => {
                    self.lose(Error::Disconnected { reason: Some("the session was ended".to_owned()) });
                    return Ok(Some(link));
                }
                Err(Error::Disconnected { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs work that belongs to the session and ends with it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        // One type of task, so that the runtime's part is not compiled again for each.
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
        tasks.spawn(work);
    }

    /// The life of the links.
    async fn keep(self: Arc<Self>, mut link: Arc<Link>, has_ghost: bool) {
        let mut mending = Mending::new(&self.options.backoff, has_ghost);
        loop {
            let since = Instant::now();
            let closed = self.attend(&link).await;
            // Bodies end with the link that they came by; whoever reads them has to begin anew.
            self.streams.fail(link.epoch, &Error::Disconnected { reason: Some(chain(&*closed)) });
            drop(link);
            drop(self.ending.lock().await);
            if self.lost().is_some() {
                return;
            }
            let reason = chain(&*closed);
            mending.handle_end(since.elapsed(), &closed);
            if mending.is_hopeless() {
                self.lose(Error::Protocol(format!("the server breaks the protocol again and again: {reason}")));
                return;
            }
            let by_another = self.peer.server.generation == Generation::Current && mending.is_taken(&closed);
            self.taken.send_replace(by_another);
            if by_another {
                // Who only has something left to be done leaves before an attempt is made.
                tokio::task::yield_now().await;
            }
            match self.recover(reason, by_another, &mut mending).await {
                Some(next) => link = next,
                None => return,
            }
            self.taken.send_replace(false);
        }
    }

    /// Mends the link, or gives the session up.
    ///
    /// The first attempt of a link that had settled is made at once; `backoff` goes on where links do not last. A session that
    /// somebody else has taken is not taken back.
    async fn recover(&self, reason: String, is_taken: bool, mending: &mut Mending) -> Option<Arc<Link>> {
        tracing::info!(server = self.connect.address(), reason, "connection lost");
        let epoch = match self.standing.get() {
            Status::Up(link) => link.epoch + 1,
            Status::Down { .. } | Status::Lost(_) => return None,
        };
        self.set(Status::Down { reason: reason.clone() });
        let Some(session_id) = self.peer.session_id.clone().filter(|_| self.connect.is_mendable()) else {
            self.lose(Error::Disconnected { reason: Some(reason) });
            return None;
        };
        let within = if is_taken { self.recover_for().min(TAKEN_RECOVERY) } else { self.recover_for() };
        let until = Instant::now() + within.min(FOREVER);
        // Once: its text counts the seconds.
        let mut is_adopting_told = false;
        loop {
            let error = match time::timeout_at(until, self.resume(&session_id, epoch, !is_taken)).await {
                Ok(Ok(link)) => return Some(link),
                Ok(Err(refused)) => {
                    mending.handle_refused(&refused);
                    if !refused.is_worth_retrying || mending.is_hopeless() {
                        self.lose(refused.error);
                        return None;
                    }
                    if is_adopting(&refused.error) && !std::mem::replace(&mut is_adopting_told, true) {
                        self.set(Status::Down { reason: refused.error.to_string() });
                    }
                    refused.error
                }
                Err(_) => Error::Disconnected { reason: Some(reason.clone()) },
            };
            if self.lost().is_some() {
                return None;
            }
            let pause = mending.pause();
            if Instant::now() + pause >= until {
                self.lose(if error.server_kind() == Some(Kind::SessionAttached) && is_taken {
                    Error::SessionLost { session_id, reason: "another connection has taken it".to_owned() }
                } else {
                    Error::Disconnected { reason: Some(format!("{reason}; not mended within {within:?}: {error}")) }
                });
                return None;
            }
            time::sleep(pause).await;
        }
    }

    /// One attempt to get the session back, and everything that was missed with it.
    async fn resume(&self, session_id: &SessionId, epoch: u64, takeover: bool) -> Result<Arc<Link>, Refused> {
        let ear = Ear::new(Arc::clone(&self.routes), Arc::clone(&self.streams), Arc::clone(&self.acks));
        let capabilities = &self.peer.server.capabilities;
        // Our own old connection may not have been missed by the server yet.
        let takeover = takeover && capabilities.takeover;
        let (link, result) =
            link::dial(&*self.connect, &self.options, Some(session_id.clone()), takeover, ear, epoch).await?;
        let link = Arc::new(link);
        if result.session_id.as_ref() != Some(session_id) {
            let text = format!("the server answered with another session than {session_id}");
            return Err(Refused::for_good(Error::Protocol(text)));
        }
        for log in self.routes.logs() {
            log.renew_ack();
        }
        if let Err(error) = self.take_up(&link).await {
            return Err(link.broken(error).await);
        }
        if self.lost().is_some() {
            return Err(Refused::for_good(Error::Disconnected { reason: None }));
        }
        self.set(Status::Up(Arc::clone(&link)));
        self.acks.notify_one();
        Ok(link)
    }

    /// The last word of the handshake, and what was missed. An error means that the link is gone again.
    async fn take_up(&self, link: &Link) -> Result<(), Error> {
        link.notify(method::INITIALIZED, &exec_server_protocol::Empty {}).await?;
        link.watched(recovery::catch_up(self, link)).await
    }

    /// How long a cut may last: what the caller says, else what the session lives without us.
    fn recover_for(&self) -> Duration {
        if let Some(given) = self.options.recover_for {
            return given;
        }
        match (self.peer.server.generation, self.options.ttl) {
            (Generation::V0, _) => Duration::ZERO,
            (Generation::Reference, _) => REFERENCE_RECOVERY,
            (Generation::Current, None) => limits::SESSION_TTL,
            (Generation::Current, Some(Ttl::Ms(ms))) => Duration::from_millis(ms),
            (Generation::Current, Some(Ttl::Unlimited)) => limits::SESSION_TTL_MAX,
        }
    }

    /// Ends with its last handle: nothing of it goes on by itself.
    pub(crate) fn abandon(&self) {
        self.set(Status::Lost(Error::Disconnected { reason: Some("nobody uses the client any more".to_owned()) }));
        lock(&self.tasks).abort_all();
    }

    /// Gives the session up: every call and every process ends with this error.
    pub(crate) fn lose(&self, error: Error) {
        self.set(Status::Lost(error.clone()));
        self.streams.fail(u64::MAX, &error);
        for log in self.routes.logs() {
            log.fail(error.clone());
        }
    }

    /// Lost is never left again.
    fn set(&self, status: Status) {
        let state = match &status {
            Status::Up(_) => State::Connected,
            Status::Down { reason } => State::Recovering { reason: reason.clone() },
            Status::Lost(error) => State::Lost { error: error.clone() },
        };
        if self.standing.set(status) {
            self.state.send_replace(state);
        }
    }
}

impl Peer {
    fn new(result: InitializeResult) -> Result<Self, Error> {
        let generation = match (&result.session_id, &result.capabilities) {
            (Some(_), Some(capabilities)) if capabilities.ack => Generation::Current,
            (Some(_), _) => Generation::Reference,
            (None, _) if result.protocol_version.is_some() => Generation::V0,
            (None, _) => {
                let reason = "neither a session nor a protocol version".to_owned();
                return Err(Error::Decode { method: requests::Initialize::NAME.to_owned(), reason });
            }
        };
        let capabilities = result.capabilities.unwrap_or_default();
        let server = ServerDescription { generation, info: result.server, capabilities, session_ttl: result.ttl_ms };
        Ok(Self { session_id: result.session_id, server })
    }

    /// What may be expected of this server's events.
    pub(crate) fn discipline(&self) -> Discipline {
        match self.server.generation {
            Generation::Current => {
                Discipline::Acked { window: self.server.capabilities.ack_window_bytes.clamp(1 << 16, WINDOW_MAX) }
            }
            Generation::V0 | Generation::Reference => Discipline::Reference,
        }
    }
}

/// The key of a process: its session where that is another one, and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) process_id: ProcessId,
    /// `None`: the client's own session.
    pub(crate) session_id: Option<SessionId>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can panic half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
