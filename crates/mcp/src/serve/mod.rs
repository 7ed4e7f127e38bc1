//! Offers the executor as an MCP server, with tools that run commands and use files there, over stdio or streamable HTTP.
//!
//! ```text
//!  MCP client ──stdio──▶ rmcp ──▶ SessionHandler ──▶ tools ──▶ ServedExecutor ──▶ exec_server_client::Client ──▶ executor
//!             ──HTTP───▶ http (gate, bounds) ──▶ sessions ──▶ rmcp ──▶ SessionHandler …
//! ```
//!
//! Reading order: [`McpServer`] is shared by all MCP sessions. [`executor`] wraps the executor, and `process_sessions` has the executor
//! sessions in which processes run. `handler` is one MCP session, and `tools` has the tools. `http` and `sessions` serve streamable HTTP.
//!
//! Processes belong to the MCP session that started them. They run in an executor session that only this MCP session uses. When the MCP
//! session ends, they are killed with everything that they started. A session over stdio ends at EOF; rmcp then gives running calls five
//! seconds to be answered. A session over HTTP ends by DELETE, or after an idle time without requests and without open streams.
//! [`McpServer::end`] ends all sessions.
//!
//! This module does not read the environment.

pub mod executor;
mod handler;
pub mod http;
pub mod limits;
mod process_sessions;
mod sessions;
mod text;
mod tools;

use std::{sync::Arc, time::Duration};

use rmcp::{
    ServiceExt as _,
    model::Tool,
    service::{RunningService, ServerInitializeError},
    transport::async_rw::AsyncRwTransport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Semaphore, watch},
    time,
};

pub use executor::{ExecutorSession, OpenSession, ServeConfig, ServeError};

use self::{
    executor::ServedExecutor,
    handler::{ClientTransport, SessionHandler},
    process_sessions::ProcessSessions,
};

/// How long running calls may take to finish when the server shuts down.
const END_WITHIN: Duration = Duration::from_secs(3);

/// Shared by all MCP sessions: the executor, the tools, and the shutdown signal.
pub struct McpServer {
    executor: ServedExecutor,
    process_sessions: ProcessSessions,
    read_only: bool,
    tools: Vec<Tool>,
    instructions: String,
    /// Set once, when the server shuts down. Calls that wait for a process then stop waiting.
    ending: watch::Sender<bool>,
    /// One permit for each call that may still begin.
    calls: Arc<Semaphore>,
}

impl McpServer {
    /// Connects to the executor and finds out what it supports.
    pub async fn new(config: ServeConfig) -> Result<Arc<Self>, ServeError> {
        let read_only = config.read_only;
        let has_root = config.root.is_some();
        let executor = ServedExecutor::connect(config).await?;
        Ok(Arc::new(Self {
            tools: tools::offered(read_only),
            instructions: instructions(&executor, read_only, has_root),
            executor,
            process_sessions: ProcessSessions::default(),
            read_only,
            ending: watch::Sender::new(false),
            calls: Arc::new(Semaphore::new(limits::CALLS as usize)),
        }))
    }

    /// Serves one client on stdio, until EOF or until [`end`](Self::end).
    ///
    /// Also returns if the client disconnects before the handshake, or if its first message is not `initialize`. Neither is an error of the
    /// server.
    pub async fn serve_streams(
        self: &Arc<Self>,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) {
        let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(limits::MESSAGE_BYTES);
        let handler = SessionHandler::new(Arc::clone(self), ClientTransport::Streams);
        let mut ending = self.ending.subscribe();
        // Until the handshake has completed, there is no service to cancel. Dropping the future closes the streams.
        let begun = tokio::select! {
            begun = handler.serve(transport) => begun,
            () = until_set(&mut ending) => return,
        };
        match begun {
            Ok(service) => self.serve_session(service).await,
            Err(ServerInitializeError::ConnectionClosed(_)) => {}
            Err(error) => tracing::warn!(%error, "the client did not begin an MCP session"),
        }
    }

    async fn serve_session(&self, service: RunningService<rmcp::RoleServer, SessionHandler>) {
        let mut ending = self.ending.subscribe();
        let stop = service.cancellation_token();
        let watched = async {
            until_set(&mut ending).await;
            self.wait_until_drained().await;
            stop.cancel();
            std::future::pending::<()>().await
        };
        // `watched` never completes, so this waits until the service has ended and running calls are answered.
        tokio::select! {
            done = service.waiting() => tracing::debug!(?done, "the client's session ended"),
            () = watched => {}
        }
    }

    /// Starts the shutdown: running calls stop waiting and are answered, then every session ends.
    pub fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Ends all executor sessions and everything in them. Call this when `serve_streams` or `http::serve` has returned.
    pub async fn close(&self) {
        self.process_sessions.end_all().await;
        self.executor.end().await;
    }

    /// Waits a limited time until all calls have finished.
    async fn wait_until_drained(&self) {
        // Ignore a timeout: the shutdown continues anyway.
        time::timeout(END_WITHIN, self.calls.acquire_many(limits::CALLS)).await.ok();
    }
}

/// Waits until the flag is set. Cancel safe.
async fn until_set(flag: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which counts as set.
    flag.wait_for(|is_set| *is_set).await.ok();
}

/// The server's instructions: what a model should know about the executor before it uses the tools.
fn instructions(executor: &ServedExecutor, read_only: bool, has_root: bool) -> String {
    let base = executor.base.display();
    let mut text = format!(
        "The tools work on the machine of the executor `{}`. Relative paths start at `{base}`.",
        executor.address
    );
    if has_root {
        text.push_str(
            " Nothing outside of that directory can be changed, and the file tools cannot read files outside of it.",
        );
    }
    match read_only {
        true => text.push_str(" This server is read-only: it cannot start processes or write files."),
        false => text.push_str(&format!(
            " A command given as one string is run by `{} -c`. Use run_command for commands that end by themselves, and start_process for \
             servers, watchers and interactive programs. Processes are killed when this session ends.",
            executor.shell
        )),
    }
    text
}

impl std::fmt::Debug for McpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("McpServer").field("address", &self.executor.address).finish_non_exhaustive()
    }
}
