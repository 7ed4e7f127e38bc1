//! The life of one server: started, ready, crashed, started again, ended. One task has it, and is the only one that changes
//! its state.
//!
//! Failure paths: a first start that fails is final, so that a mistake in a configuration is seen at once. A server that was
//! ready and crashes is started again after a pause; too many crashes in a row are final. Must not know what is asked of it.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_server_client::{self as client, Client, State, transport::BoxFuture};
use rmcp::model::{ServerPeerInfo, Tool};
use tokio::{
    sync::{Mutex as Turns, MutexGuard as Turn, broadcast, watch},
    time::{self, Instant},
};

use super::{
    Restarts,
    connection::Connection,
    error::Error,
    handler::Over,
    list,
    start::{self, Context, Life},
    state::{Status, Update},
};
use crate::{
    config::ServerConfig,
    transport::{Child, Ended, Log},
};

/// How long the end of a connection may take; its own steps are bounded below that.
const END_WITHIN: Duration = Duration::from_secs(20);

/// One server.
pub(super) struct Server {
    pub(super) name: String,
    pub(super) config: ServerConfig,
    /// Its standard error, through all its lives.
    pub(super) log: Arc<Log>,
    status: watch::Sender<Status>,
    updates: broadcast::Sender<Update>,
    known: Mutex<Known>,
    /// Whose calls run one after another.
    turns: Turns<()>,
}

/// What is known of a server, also while it is started again.
#[derive(Default)]
struct Known {
    /// The last connection, which may be over.
    connection: Option<Arc<Connection>>,
    /// All its tools, in the order of its list.
    tools: Option<Vec<Tool>>,
}

impl Server {
    pub(super) fn new(name: &str, config: ServerConfig, updates: broadcast::Sender<Update>) -> Self {
        let status = if config.enabled { Status::NotStarted } else { Status::Disabled };
        Self {
            name: name.to_owned(),
            config,
            log: Arc::default(),
            status: watch::Sender::new(status),
            updates,
            known: Mutex::default(),
            turns: Turns::new(()),
        }
    }

    pub(super) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Says that it is about to be started; false if it was, or must not be. With `again`, one that has failed may be, too.
    pub(super) fn begin(&self, again: bool) -> bool {
        self.status.send_if_modified(|status| {
            let has_failed = matches!(status, Status::Failed { .. } | Status::AuthenticationRequired { .. });
            let begins = *status == Status::NotStarted || (again && has_failed);
            if begins {
                *status = Status::Starting { restarts: 0 };
                self.tell(Update::Server { name: self.name.clone(), status: status.clone() });
            }
            begins
        })
    }

    /// What it said of itself.
    pub(super) fn info(&self) -> Option<ServerPeerInfo> {
        self.known().connection.as_ref()?.info().cloned()
    }

    /// Waits until it is not starting. One that nobody has started is settled, too.
    pub(super) async fn settled(&self) -> Status {
        let mut status = self.status.subscribe();
        let settled = status.wait_for(|status| !matches!(status, Status::Starting { .. })).await;
        // The sender is ours.
        settled.map_or(Status::Cancelled, |status| status.clone())
    }

    /// The tools that it offers: those of the last time while it is started again; else waits for it to be ready.
    pub(super) async fn known_tools(&self) -> Option<Vec<Tool>> {
        let offered =
            |tools: &Vec<Tool>| tools.iter().filter(|tool| self.config.tools.allows(&tool.name)).cloned().collect();
        match self.status() {
            Status::Starting { restarts } if restarts > 0 => self.known().tools.as_ref().map(offered),
            _ if self.settled().await == Status::Ready => self.known().tools.as_ref().map(offered),
            _ => None,
        }
    }

    /// The connection of a server that is ready; waits for one that is starting, or is about to be started again.
    pub(super) async fn ready(&self) -> Result<Arc<Connection>, Error> {
        let server = || self.name.clone();
        let mut status = self.status.subscribe();
        loop {
            match &*status.borrow_and_update() {
                Status::Ready => {
                    let connection = self.known().connection.clone();
                    // One that is over is about to be replaced.
                    if let Some(connection) = connection.filter(|found| found.board().over().borrow().is_none()) {
                        return Ok(connection);
                    }
                }
                Status::NotStarted | Status::Starting { .. } => {}
                Status::AuthenticationRequired { reason } => {
                    return Err(Error::AuthenticationRequired { server: server(), reason: reason.clone() });
                }
                Status::Failed { reason } => return Err(Error::Failed { server: server(), reason: reason.clone() }),
                Status::Cancelled => return Err(Error::Cancelled { server: server() }),
                Status::Disabled => return Err(Error::Disabled { server: server() }),
            }
            if status.changed().await.is_err() {
                return Err(Error::Cancelled { server: server() });
            }
        }
    }

    /// Waits for the turn of a call; none is needed where calls may overlap.
    pub(super) async fn turn(&self, tool: &str) -> Option<Turn<'_, ()>> {
        let only_reads = |found: &Tool| {
            found.name == tool && found.annotations.as_ref().and_then(|all| all.read_only_hint) == Some(true)
        };
        let is_free = self.config.supports_parallel_tool_calls
            || self.known().tools.as_ref().is_some_and(|tools| tools.iter().any(only_reads));
        if is_free { None } else { Some(self.turns.lock().await) }
    }

    /// Marks one that was never started, or never got ready, as called off.
    pub(super) fn set_cancelled(&self) {
        if !self.status().is_settled() {
            self.set(Status::Cancelled);
        }
    }

    /// The life, from its first start to its end.
    pub(super) async fn run(self: Arc<Self>, context: Arc<Context>, mut stop: watch::Receiver<bool>) {
        let restarts = context.settings.restarts;
        // Crashes in a row.
        let mut crashes = 0;
        loop {
            let mut child = None;
            let started = tokio::select! {
                biased;
                () = stopped(&mut stop) => None,
                started = start::start(&self, &context, &mut child) => Some(started),
            };
            let crash = match started {
                Some(Ok(life)) => match self.live(life, &mut crashes, restarts, &mut stop).await {
                    Some(crash) => crash,
                    None => return self.set(Status::Cancelled),
                },
                Some(Err(error)) => {
                    end(child).await;
                    if crashes == 0 {
                        return self.set(failure(&error));
                    }
                    crashes += 1;
                    Crash { reason: error.to_string(), is_final: crashes > restarts.most }
                }
                None => {
                    end(child).await;
                    return self.set(Status::Cancelled);
                }
            };
            if crash.is_final {
                let reason = format!("it crashed {crashes} times in a row; the last time: {}", crash.reason);
                return self.set(Status::Failed { reason });
            }
            if self.status() != (Status::Starting { restarts: crashes }) {
                self.set(Status::Starting { restarts: crashes });
            }
            let pause = pause(restarts, crashes);
            tracing::warn!(server = self.name, reason = crash.reason, ?pause, "it crashed, and is started again");
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return self.set(Status::Cancelled),
                () = time::sleep(pause) => {}
            }
        }
    }

    /// From ready to the end of the connection; none if that was asked for.
    async fn live(
        self: &Arc<Self>,
        life: Life,
        crashes: &mut u32,
        restarts: Restarts,
        stop: &mut watch::Receiver<bool>,
    ) -> Option<Crash> {
        let Life { running, connection, tools, child, client } = life;
        let board = Arc::clone(connection.board());
        *self.known() = Known { connection: Some(Arc::clone(&connection)), tools: Some(tools) };
        self.set(Status::Ready);
        let since = Instant::now();
        let token = running.cancellation_token();
        let mut done = pin!(running.waiting());
        // Beside everything else: a server that does not answer must not hold up its end.
        let mut renewing: Option<BoxFuture<'_, ()>> = None;
        let reason = loop {
            let renewed = async {
                match &mut renewing {
                    Some(renewing) => renewing.await,
                    None => std::future::pending().await,
                }
            };
            // All are cancel safe.
            tokio::select! {
                biased;
                () = stopped(stop) => break None,
                ended = ended(child.as_deref()) => break Some(reason(&ended.to_string(), child.as_deref())),
                error = lost(client.as_ref()) => break Some(format!("its executor is lost: {error}")),
                _ = &mut done => break Some(reason("its connection ended", child.as_deref())),
                () = renewed => renewing = None,
                () = board.tools_changed.notified() => renewing = Some(Box::pin(self.renew(&connection))),
            }
        };
        drop(renewing);
        let crash = reason.map(|reason| {
            *crashes = if since.elapsed() >= restarts.settled { 1 } else { *crashes + 1 };
            Crash { reason, is_final: *crashes > restarts.most }
        });
        // Before the end itself, which may take its time: whoever waits for an answer gets none.
        match &crash {
            Some(Crash { reason, is_final }) => {
                board.end(Over::Crashed { reason: reason.clone(), is_restarted: !is_final });
                self.tell(Update::Crashed { name: self.name.clone(), reason: reason.clone() });
                if !is_final {
                    self.set(Status::Starting { restarts: *crashes });
                }
            }
            None => board.end(Over::Ended),
        }
        token.cancel();
        if time::timeout(END_WITHIN, done).await.is_err() {
            tracing::warn!(server = self.name, "its connection did not end in time");
        }
        crash
    }

    /// Lists the tools again.
    async fn renew(&self, connection: &Connection) {
        match list::list(connection, list::TOOLS, self.config.startup_timeout).await {
            Ok(tools) => self.known().tools = Some(tools),
            Err(error) => tracing::warn!(server = self.name, %error, "its tools changed, but cannot be listed"),
        }
    }

    fn set(&self, status: Status) {
        // Under one lock: who sees the state has been told of it, and who is told sees it.
        self.status.send_modify(|current| {
            current.clone_from(&status);
            self.tell(Update::Server { name: self.name.clone(), status });
        });
    }

    fn tell(&self, update: Update) {
        // Nobody may have subscribed.
        self.updates.send(update).ok();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // No code under the lock can panic half-way through a change.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a server is gone, and whether that was once too often.
struct Crash {
    reason: String,
    is_final: bool,
}

/// What a failed first start means.
fn failure(error: &Error) -> Status {
    match error {
        Error::AuthenticationRequired { reason, .. } => Status::AuthenticationRequired { reason: reason.clone() },
        other => Status::Failed { reason: other.to_string() },
    }
}

fn pause(restarts: Restarts, crashes: u32) -> Duration {
    let doubled = restarts.first_pause.saturating_mul(1 << crashes.saturating_sub(1).min(16));
    doubled.min(restarts.longest_pause)
}

fn reason(how: &str, child: Option<&Child>) -> String {
    let talk = child.map(Child::talk).unwrap_or_default();
    if talk.is_empty() { how.to_owned() } else { format!("{how}\n{talk}") }
}

/// Ends the process of an attempt that came to nothing.
async fn end(child: Option<Arc<Child>>) {
    if let Some(child) = child {
        child.end().await;
    }
}

/// Waits until a process is over; for ever where there is none.
async fn ended(child: Option<&Child>) -> Ended {
    match child {
        Some(child) => start::over(&mut child.ended()).await,
        None => std::future::pending().await,
    }
}

/// Waits until the session with an executor is lost; for ever where there is none.
async fn lost(client: Option<&Client>) -> client::Error {
    let Some(client) = client else { return std::future::pending().await };
    let mut state = client.watch_state();
    match state.wait_for(|state| matches!(state, State::Lost { .. })).await.as_deref() {
        Ok(State::Lost { error }) => error.clone(),
        // The client is ours, and so the state is there.
        Ok(_) | Err(_) => client::Error::Disconnected { reason: None },
    }
}

/// Waits for the word to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A manager that is gone has stopped.
    stop.wait_for(|stop| *stop).await.ok();
}
