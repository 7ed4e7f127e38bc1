//! Offers the executor as an MCP server, with tools that run commands and use files there, over stdio or streamable HTTP.
//!
//! ```text
//!  MCP client ──stdio──▶ rmcp ──▶ SessionHandler ──▶ tools ──▶ ServedExecutor ──▶ exec_server_client::Client ──▶ executor
//!             ──HTTP───▶ http (gate, bounds) ──▶ sessions ──▶ rmcp ──▶ SessionHandler …
//! ```
//!
//! Reading order: [`McpServer`] is shared by all sessions, [`executor`] is the executor, `process_sessions` has the executor sessions in which processes
//! run, `handler` is one MCP session, `tools` are the tools, and `http` and `sessions` serve streamable HTTP.
//!
//! Processes belong to the MCP session that started them. They run in an executor session that only this MCP session uses, so they end with
//! it at once, with everything that they started. A session over stdio ends at EOF; running calls then have five seconds to be answered. A
//! session over HTTP ends by DELETE, or after an idle time without requests and without open streams. [`McpServer::end`] ends all sessions.
//!
//! Does not read the environment.

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

/// How long running calls may take to finish when the server ends.
const END_WITHIN: Duration = Duration::from_secs(3);

/// Shared by all MCP sessions: the executor, the tools, and the signal that the server ends.
pub struct McpServer {
    executor: ServedExecutor,
    process_sessions: ProcessSessions,
    read_only: bool,
    tools: Vec<Tool>,
    instructions: String,
    /// Set once, when the server ends. Calls that wait for a process then stop waiting.
    ending: watch::Sender<bool>,
    calls: Arc<Semaphore>,
}

impl McpServer {
    /// Connects to the executor and finds out what can be offered.
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
    /// Returns also if the client disconnects before the handshake or begins with another message. Neither is an error of the server.
    pub async fn serve_streams(
        self: &Arc<Self>,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) {
        let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(limits::MESSAGE_BYTES);
        let handler = SessionHandler::new(Arc::clone(self), ClientTransport::Streams);
        let mut ending = self.ending.subscribe();
        // Before the handshake has completed, no service exists that could be ended. Dropping the future closes the streams.
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
        // The service is never dropped before it has ended, so it can answer running calls.
        tokio::select! {
            done = service.waiting() => tracing::debug!(?done, "the client's session ended"),
            () = watched => {}
        }
    }

    /// Ends every session. Running calls stop waiting and are answered first.
    pub fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Ends all executor sessions and everything in them. Call it after serving has ended.
    pub async fn close(&self) {
        self.process_sessions.end_all().await;
        self.executor.end().await;
    }

    /// Waits a limited time until all calls have finished.
    async fn wait_until_drained(&self) {
        // Ignore a timeout: the server ends in any case.
        time::timeout(END_WITHIN, self.calls.acquire_many(limits::CALLS)).await.ok();
    }
}

/// Waits until the flag is set. Cancel safe.
async fn until_set(over: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which counts as set.
    over.wait_for(|is_over| *is_over).await.ok();
}

/// The text about the executor that a model gets before the tools.
fn instructions(executor: &ServedExecutor, read_only: bool, has_root: bool) -> String {
    let base = executor.base.display();
    let mut text =
        format!("Tools for the machine of the executor `{}`. Relative paths begin at `{base}`.", executor.address);
    if has_root {
        text.push_str(" Nothing outside of that directory can be changed, and files outside of it cannot be read by the file tools.");
    }
    match read_only {
        true => text.push_str(" This server only reads: it starts no process and writes no file."),
        false => text.push_str(&format!(
            " Commands given as one text are run by `{} -c`. Use run_command for what ends by itself, start_process for servers, \
             watchers and interactive programs; processes end with this session.",
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
