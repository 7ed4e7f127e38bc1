//! Runs one server: start, ready, crash, restart, end. One task does it, and while it runs, only that task changes the server's status.
//!
//! Failure paths: if the first start fails, the server has failed and is not retried, so that a configuration mistake is seen at once. A
//! server that crashes after it was ready is restarted after a pause, until it has crashed too often in a row. An unreachable executor does
//! not count as a crash of its servers: once a server was ready, its executor is retried without limit. A server that requires
//! authentication is not restarted.

use std::{pin::pin, sync::Arc, time::Duration};

use exec_server_client::{self as client, Client, ConnectionState, transport::BoxFuture};
use futures_util::future::OptionFuture;
use parking_lot::Mutex;
use rmcp::model::{ServerPeerInfo, Tool};
use tokio::{
    sync::{broadcast, watch},
    time::{self, Instant},
};

use super::{
    Restarts,
    connection::ServerConnection,
    error::Error,
    handler::ConnectionEnd,
    list,
    start::{self, ManagerContext, ReadyServer},
    state::{ServerStatus, ServerUpdate},
};
use crate::{
    config::ServerConfig,
    transport::{ServerProcess, StderrLog, StreamEnd},
};

/// Time limit for the end of a connection. Each step of the end has a shorter limit of its own.
const END_WITHIN: Duration = Duration::from_secs(20);

/// Which servers a start applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartMode {
    /// Only a server that was never started.
    First,
    /// Also a server that has failed or required authentication.
    AfterFailure,
}

/// One server of a manager.
pub(super) struct ManagedServer {
    pub(super) name: String,
    pub(super) config: ServerConfig,
    /// The server's stderr, across restarts.
    pub(super) log: Arc<StderrLog>,
    status: watch::Sender<ServerStatus>,
    updates: broadcast::Sender<ServerUpdate>,
    last_connection: Mutex<LastConnection>,
    /// Held by a call that must not overlap with others.
    turn: tokio::sync::Mutex<()>,
}

/// The data of the last connection. It stays available during a restart.
#[derive(Default)]
struct LastConnection {
    /// The last connection. It may have ended already.
    connection: Option<Arc<ServerConnection>>,
    /// All tools, in the order of the server's list.
    tools: Option<Vec<Tool>>,
    /// Why the executor could not be used at the last attempt, while attempts continue.
    host_error: Option<String>,
}

impl ManagedServer {
    pub(super) fn new(name: &str, config: ServerConfig, updates: broadcast::Sender<ServerUpdate>) -> Self {
        let status = if config.enabled { ServerStatus::NotStarted } else { ServerStatus::Disabled };
        Self {
            name: name.to_owned(),
            config,
            log: Arc::default(),
            status: watch::Sender::new(status),
            updates,
            last_connection: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn status(&self) -> ServerStatus {
        self.status.borrow().clone()
    }

    /// Changes the status to `Starting`. Returns false if the server must not be started. If this returns true, the caller must start the
    /// task that calls [`run`](Self::run).
    pub(super) fn begin(&self, mode: StartMode) -> bool {
        self.status.send_if_modified(|status| {
            let has_failed =
                matches!(status, ServerStatus::Failed { .. } | ServerStatus::AuthenticationRequired { .. });
            let begins = *status == ServerStatus::NotStarted || (mode == StartMode::AfterFailure && has_failed);
            if begins {
                *status = ServerStatus::Starting { restarts: 0 };
                self.publish(ServerUpdate::Server { name: self.name.clone(), status: status.clone() });
            }
            begins
        })
    }

    /// The server's information from the handshake.
    pub(super) fn info(&self) -> Option<ServerPeerInfo> {
        self.last_connection.lock().connection.as_ref()?.info.as_deref().cloned()
    }

    /// Waits while the server is starting. Returns at once for a server that was never started.
    pub(super) async fn wait_while_starting(&self) -> ServerStatus {
        let mut status = self.status.subscribe();
        let settled = status.wait_for(|status| !matches!(status, ServerStatus::Starting { .. })).await;
        // An error cannot happen: `self` owns the sender.
        settled.map_or(ServerStatus::Cancelled, |status| status.clone())
    }

    /// The offered tools. During a restart these are the tools from before the restart. Otherwise waits for a server that is starting, and
    /// returns `None` if it does not become ready.
    pub(super) async fn known_tools(&self) -> Option<Vec<Tool>> {
        let is_restarting = matches!(self.status(), ServerStatus::Starting { restarts } if restarts > 0);
        if !is_restarting && self.wait_while_starting().await != ServerStatus::Ready {
            return None;
        }
        let is_offered = |tool: &&Tool| self.config.tools.allows(&tool.name);
        Some(self.last_connection.lock().tools.as_ref()?.iter().filter(is_offered).cloned().collect())
    }

    /// The connection of a ready server. Waits while the server is starting or about to be restarted. While a restart waits for an
    /// unreachable executor, the wait is limited to the startup timeout, counted from this call.
    pub(super) async fn ready(&self) -> Result<Arc<ServerConnection>, Error> {
        let server = || self.name.clone();
        let until = Instant::now() + self.config.startup_timeout;
        let mut status = self.status.subscribe();
        loop {
            match &*status.borrow_and_update() {
                ServerStatus::Ready => {
                    let connection = self.last_connection.lock().connection.clone();
                    // A connection that has ended is about to be replaced.
                    if let Some(connection) = connection.filter(|found| found.shared.end.borrow().is_none()) {
                        return Ok(connection);
                    }
                }
                ServerStatus::NotStarted | ServerStatus::Starting { .. } => {}
                ServerStatus::AuthenticationRequired { reason } => {
                    return Err(Error::AuthenticationRequired { server: server(), reason: reason.clone() });
                }
                ServerStatus::Failed { reason } => {
                    return Err(Error::Failed { server: server(), reason: reason.clone() });
                }
                ServerStatus::Cancelled => return Err(Error::Cancelled { server: server() }),
                ServerStatus::Disabled => return Err(Error::Disabled { server: server() }),
            }
            let host_error = self.last_connection.lock().host_error.clone();
            let changed = match host_error {
                None => status.changed().await,
                Some(host_error) => match time::timeout_at(until, status.changed()).await {
                    Ok(changed) => changed,
                    Err(_) => {
                        let reason = format!("its executor is unreachable, and is retried: {host_error}");
                        return Err(Error::Failed { server: server(), reason });
                    }
                },
            };
            if changed.is_err() {
                return Err(Error::Cancelled { server: server() });
            }
        }
    }

    /// Waits for the turn of a call. Returns `None` at once if the call may overlap with others.
    pub(super) async fn turn(&self, tool: &str) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let only_reads = |found: &Tool| {
            found.name == tool && found.annotations.as_ref().and_then(|all| all.read_only_hint) == Some(true)
        };
        let may_overlap = self.config.supports_parallel_tool_calls
            || self.last_connection.lock().tools.as_ref().is_some_and(|tools| tools.iter().any(only_reads));
        if may_overlap { None } else { Some(self.turn.lock().await) }
    }

    /// Marks a server as cancelled if it is not started or still starting.
    pub(super) fn set_cancelled(&self) {
        if !self.status().is_settled() {
            self.set(ServerStatus::Cancelled);
        }
    }

    /// Runs the server from its first start to its end. Called in its own task.
    pub(super) async fn run(self: Arc<Self>, context: Arc<ManagerContext>, stop: watch::Receiver<bool>) {
        let mut guard = FinalStatusGuard(Some(&self));
        let status = self.run_until_final(&context, stop).await;
        // Disarm the guard before `set`: as soon as the final status is set, another task may start the server again and own the status.
        guard.0 = None;
        self.set(status);
    }

    /// The loop of [`run`](Self::run). Returns the final status.
    async fn run_until_final(
        self: &Arc<Self>,
        context: &ManagerContext,
        mut stop: watch::Receiver<bool>,
    ) -> ServerStatus {
        let restarts = context.settings.restarts;
        let mut attempts = AttemptCounts::default();
        loop {
            let mut child = None;
            let started = tokio::select! {
                biased;
                () = stopped(&mut stop) => Err(Error::Cancelled { server: self.name.clone() }),
                started = start::start(self, context, &mut child) => started,
            };
            let crash = match started {
                Ok(ready_server) => match self.run_ready(ready_server, &mut attempts, restarts, &mut stop).await {
                    Some(crash) => crash,
                    None => return ServerStatus::Cancelled,
                },
                Err(error) => {
                    if let Some(child) = child {
                        child.end().await;
                    }
                    match error {
                        Error::Cancelled { .. } => return ServerStatus::Cancelled,
                        Error::AuthenticationRequired { reason, .. } => {
                            return ServerStatus::AuthenticationRequired { reason };
                        }
                        error if !attempts.was_ready => return ServerStatus::Failed { reason: error.to_string() },
                        error => attempts.count(ServerCrash::new(error.to_string(), error.is_of_host()), restarts),
                    }
                }
            };
            if let Some(reason) = crash.authentication_reason {
                return ServerStatus::AuthenticationRequired { reason };
            }
            if crash.is_final {
                let crashes = attempts.crashes;
                let reason = format!("it crashed {crashes} times in a row; the last time: {}", crash.reason);
                return ServerStatus::Failed { reason };
            }
            self.last_connection.lock().host_error = crash.is_of_host.then(|| crash.reason.clone());
            // After the crash of a ready server, `run_ready` has set this status already.
            if self.status() != attempts.status() {
                self.set(attempts.status());
            }
            let pause = pause(restarts, attempts.in_a_row());
            tracing::warn!(server = self.name, reason = crash.reason, ?pause, "restarting the server after a pause");
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return ServerStatus::Cancelled,
                () = time::sleep(pause) => {}
            }
        }
    }

    /// Sets the server to ready and waits until its connection ends. Returns `None` if the manager requested the end.
    async fn run_ready(
        self: &Arc<Self>,
        ready_server: ReadyServer,
        attempts: &mut AttemptCounts,
        restarts: Restarts,
        stop: &mut watch::Receiver<bool>,
    ) -> Option<ServerCrash> {
        let ReadyServer { running, connection, tools, child, client } = ready_server;
        let shared = Arc::clone(&connection.shared);
        *self.last_connection.lock() =
            LastConnection { connection: Some(Arc::clone(&connection)), tools: Some(tools), host_error: None };
        attempts.was_ready = true;
        self.set(ServerStatus::Ready);
        let since = Instant::now();
        let token = running.cancellation_token();
        let mut done = pin!(running.waiting());
        // Polled in the same `select!`: a server that does not answer `tools/list` must not delay the handling of its end.
        let mut refreshing: Option<BoxFuture<'_, ()>> = None;
        // `done` must not be polled again after it has completed.
        let mut is_done = false;
        let crash = loop {
            let is_refreshing = refreshing.is_some();
            // All arms are cancel safe.
            tokio::select! {
                biased;
                () = stopped(stop) => break None,
                Some(ended) = OptionFuture::from(child.as_deref().map(start::wait_for_end)) => {
                    let is_of_host = matches!(ended, StreamEnd::Lost(_));
                    break Some(ServerCrash::new(with_output(&ended.to_string(), child.as_deref()), is_of_host));
                }
                Some(error) = OptionFuture::from(client.as_ref().map(lost)) => {
                    break Some(ServerCrash::new(format!("its executor is lost: {error}"), true));
                }
                reason = shared.refused() => break Some(ServerCrash::refused(reason)),
                _ = &mut done => {
                    is_done = true;
                    break Some(ServerCrash::new(with_output("its connection ended", child.as_deref()), false));
                }
                Some(()) = OptionFuture::from(refreshing.as_mut()) => refreshing = None,
                // If the tools change again while they are listed, `Notify` stores the notification for the next refresh.
                () = shared.tools_changed.notified(), if !is_refreshing => {
                    refreshing = Some(Box::pin(self.refresh_tools(&connection)));
                }
            }
        };
        drop(refreshing);
        let crash = crash.map(|crash| {
            if since.elapsed() >= restarts.settled {
                attempts.crashes = 0;
            }
            // The server was ready, so its executor was reachable.
            attempts.host_failures = 0;
            attempts.count(crash, restarts)
        });
        // End waiting requests before the connection is closed, because closing can take several seconds.
        match &crash {
            Some(ServerCrash { reason, is_final, .. }) => {
                shared.set_end(ConnectionEnd::Crashed { reason: reason.clone(), is_restarted: !is_final });
                self.publish(ServerUpdate::Crashed { name: self.name.clone(), reason: reason.clone() });
                if !is_final {
                    self.set(attempts.status());
                }
            }
            None => shared.set_end(ConnectionEnd::Ended),
        }
        token.cancel();
        if !is_done && time::timeout(END_WITHIN, done).await.is_err() {
            tracing::warn!(server = self.name, "the connection to the server did not end in time");
        }
        crash
    }

    /// Lists the tools again.
    async fn refresh_tools(&self, connection: &ServerConnection) {
        match list::list(connection, list::TOOLS, self.config.startup_timeout).await {
            Ok(tools) => self.last_connection.lock().tools = Some(tools),
            Err(error) => tracing::warn!(server = self.name, %error, "the tools changed, but cannot be listed"),
        }
    }

    fn set(&self, status: ServerStatus) {
        // Change the status and send the update under one lock. A subscriber that gets the update sees the new status, and after a
        // change of the status the update is already in the queue.
        self.status.send_modify(|current| {
            current.clone_from(&status);
            self.publish(ServerUpdate::Server { name: self.name.clone(), status });
        });
    }

    fn publish(&self, update: ServerUpdate) {
        // Fails only without subscribers.
        self.updates.send(update).ok();
    }
}

/// Why a server's connection ended unexpectedly.
struct ServerCrash {
    reason: String,
    /// The executor is the cause, not the server.
    is_of_host: bool,
    /// Set if the server requires authentication: the reason, and how to provide a token.
    authentication_reason: Option<String>,
    /// The server is not restarted.
    is_final: bool,
}

impl ServerCrash {
    fn new(reason: String, is_of_host: bool) -> Self {
        Self { reason, is_of_host, authentication_reason: None, is_final: false }
    }

    fn refused(reason: String) -> Self {
        Self {
            reason: format!("it requires authentication: {reason}"),
            is_of_host: false,
            authentication_reason: Some(reason),
            is_final: true,
        }
    }
}

/// Counts failed attempts and crashes in a row.
#[derive(Debug, Clone, Copy, Default)]
struct AttemptCounts {
    /// The server was ready once, so its configuration is correct.
    was_ready: bool,
    /// Crashes of the server itself. `Restarts::most` limits them.
    crashes: u32,
    /// Failures of its executor. These are not limited.
    host_failures: u32,
}

impl AttemptCounts {
    /// Counts a crash, and marks it as final if the limit is exceeded.
    fn count(&mut self, mut crash: ServerCrash, restarts: Restarts) -> ServerCrash {
        let count = if crash.is_of_host { &mut self.host_failures } else { &mut self.crashes };
        *count = count.saturating_add(1);
        crash.is_final |= !crash.is_of_host && self.crashes > restarts.most;
        crash
    }

    fn in_a_row(self) -> u32 {
        self.crashes.saturating_add(self.host_failures)
    }

    fn status(self) -> ServerStatus {
        ServerStatus::Starting { restarts: self.in_a_row() }
    }
}

/// Sets a final status if the server's task panics or is aborted. Otherwise the status would stay `Starting` or `Ready`.
struct FinalStatusGuard<'a>(Option<&'a ManagedServer>);

impl Drop for FinalStatusGuard<'_> {
    fn drop(&mut self) {
        let Some(server) = self.0 else { return };
        server.set(if std::thread::panicking() {
            ServerStatus::Failed {
                reason: "internal error: the task that runs it has panicked; see the log".to_owned(),
            }
        } else {
            ServerStatus::Cancelled
        });
    }
}

fn pause(restarts: Restarts, crashes: u32) -> Duration {
    // The exponent is bounded, so that the shift cannot overflow.
    let doubled = restarts.first_pause.saturating_mul(1 << crashes.saturating_sub(1).min(16));
    doubled.min(restarts.longest_pause)
}

/// Appends the recent output of a process, if there is any, to a text.
fn with_output(text: &str, child: Option<&ServerProcess>) -> String {
    let recent_output = child.map(ServerProcess::recent_output).unwrap_or_default();
    if recent_output.is_empty() { text.to_owned() } else { format!("{text}\n{recent_output}") }
}

/// Waits until the session with the executor is lost.
async fn lost(client: &Client) -> client::Error {
    let mut state = client.watch_state();
    match state.wait_for(|state| matches!(state, ConnectionState::Lost { .. })).await.as_deref() {
        Ok(ConnectionState::Lost { error }) => error.clone(),
        // Cannot happen: we own a client, so the sender of its state exists.
        Ok(_) | Err(_) => client::Error::Disconnected { reason: None },
    }
}

/// Waits for the signal to stop. Cancel safe.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the manager was dropped, which also means stop.
    stop.wait_for(|stop| *stop).await.ok();
}

#[cfg(test)]
mod tests {
    use std::{io, path::Path};

    use rmcp::{
        RoleClient, ServiceExt as _,
        service::{RxJsonRpcMessage, TxJsonRpcMessage},
        transport::Transport,
    };
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        config::{Config, Format},
        manager::handler::{ConnectionHandler, ConnectionShared},
    };

    type Message = Option<RxJsonRpcMessage<RoleClient>>;

    /// A transport that answers the handshake and ends when the test sends `None`.
    struct Scripted {
        messages_tx: mpsc::Sender<Message>,
        messages: mpsc::Receiver<Message>,
    }

    impl Transport<RoleClient> for Scripted {
        type Error = io::Error;

        fn send(
            &mut self,
            item: TxJsonRpcMessage<RoleClient>,
        ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
            let item = serde_json::to_value(&item).expect("JSON");
            if item["method"] == "initialize" {
                let result = json!({"protocolVersion": "2025-06-18", "capabilities": {},
                    "serverInfo": {"name": "scripted", "version": "1"}});
                let answer = json!({"jsonrpc": "2.0", "id": item["id"], "result": result});
                self.messages_tx.try_send(Some(serde_json::from_value(answer).expect("a message"))).expect("we listen");
            }
            std::future::ready(Ok(()))
        }

        async fn receive(&mut self) -> Message {
            self.messages.recv().await.flatten()
        }

        async fn close(&mut self) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    fn server() -> Arc<ManagedServer> {
        let text = "[mcp_servers.t]\ncommand = 't'\n";
        let mut config = Config::parse(text, Path::new("t.toml"), Format::Toml).expect("a configuration");
        let config = config.servers.remove("t").expect("a server");
        Arc::new(ManagedServer::new("t", config, broadcast::Sender::new(16)))
    }

    /// A ready server, and the sender that ends its connection.
    async fn start_ready(server: &ManagedServer) -> (ReadyServer, mpsc::Sender<Message>) {
        let (messages_tx, messages) = mpsc::channel(8);
        let shared = Arc::<ConnectionShared>::default();
        let handler = ConnectionHandler {
            server: "t".to_owned(),
            client_name: "test".to_owned(),
            elicit: None,
            shared: Arc::clone(&shared),
        };
        let running =
            handler.serve(Scripted { messages_tx: messages_tx.clone(), messages }).await.expect("a handshake");
        let connection = Arc::new(ServerConnection::new(server, running.peer().clone(), shared));
        (ReadyServer { running, connection, tools: Vec::new(), child: None, client: None }, messages_tx)
    }

    #[tokio::test]
    async fn a_connection_that_ends_by_itself_is_reported_as_a_crash() {
        let server = server();
        let (ready_server, messages_tx) = start_ready(&server).await;
        let (_stop, mut stopped) = watch::channel(false);
        messages_tx.try_send(None).expect("it listens");
        let mut attempts = AttemptCounts::default();
        let crash = server
            .run_ready(ready_server, &mut attempts, Restarts::default(), &mut stopped)
            .await
            .expect("nothing requested the end");
        assert_eq!((crash.reason.as_str(), crash.is_final), ("its connection ended", false));
        assert_eq!(server.status(), ServerStatus::Starting { restarts: 1 });
    }

    #[tokio::test]
    async fn a_ready_server_that_then_requires_authentication_is_not_restarted() {
        let server = server();
        let (ready_server, _messages_tx) = start_ready(&server).await;
        let (_stop, mut stopped) = watch::channel(false);
        ready_server.connection.shared.refuse("who are you");
        let mut attempts = AttemptCounts::default();
        let crash = server
            .run_ready(ready_server, &mut attempts, Restarts::default(), &mut stopped)
            .await
            .expect("nothing requested the end");
        assert_eq!((crash.authentication_reason.as_deref(), crash.is_final), (Some("who are you"), true));
    }

    #[test]
    fn an_unreachable_executor_is_not_a_crash_of_its_servers() {
        let restarts = Restarts { most: 2, ..Restarts::default() };
        let mut attempts = AttemptCounts::default();
        for _ in 0..100 {
            assert!(!attempts.count(ServerCrash::new("gone".to_owned(), true), restarts).is_final);
        }
        assert_eq!(pause(restarts, attempts.in_a_row()), restarts.longest_pause);
        let ends: Vec<bool> =
            (0..3).map(|_| attempts.count(ServerCrash::new("own".to_owned(), false), restarts).is_final).collect();
        assert_eq!(ends, [false, false, true]);
    }

    #[test]
    fn a_task_that_is_aborted_or_panics_leaves_a_final_status() {
        let server = server();
        assert!(server.begin(StartMode::First));
        drop(FinalStatusGuard(Some(&server)));
        assert_eq!(server.status(), ServerStatus::Cancelled);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = FinalStatusGuard(Some(&server));
            std::panic::resume_unwind(Box::new("a test"));
        }));
        assert!(panicked.is_err() && matches!(server.status(), ServerStatus::Failed { .. }), "{:?}", server.status());
    }
}
