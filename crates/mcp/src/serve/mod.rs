//! The executor itself as an MCP server: tools that run commands and use files there, over standard streams or streamable HTTP.
//!
//! ```text
//!  MCP client ──stdio──▶ rmcp ──▶ Handler ──▶ tools ──▶ Place ──▶ exec_server_client::Client ──▶ executor
//!             ──HTTP───▶ http (gate, bounds) ──▶ sessions ──▶ rmcp ──▶ Handler …
//! ```
//!
//! Reading order: [`Server`] is what all sessions share, [`place`] the executor, `executors` the sessions there in which processes run, `handler`
//! one MCP session, `tools` what it offers, `http` and `sessions` the door of streamable HTTP.
//!
//! What a session starts belongs to it: its processes end with it, at once and with all that they started, because they run in a session with
//! the executor that is its own. A session over standard streams
//! ends with the end of input; calls that are under way then have five seconds to be answered. One over HTTP ends by DELETE, or when
//! for long enough nobody has sent a request and no stream is open. All end when the server is told to: [`Server::end`].
//!
//! Must not read the environment, and must not know who starts it.

mod executors;
mod handler;
pub mod http;
pub mod limits;
pub mod place;
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

pub use place::{Config, Open, Opened, ServeError};

use self::{
    executors::Executors,
    handler::{Handler, Over},
    place::Place,
};

/// How long calls that are under way may take to be answered when the server ends.
const END_WITHIN: Duration = Duration::from_secs(3);

/// What all MCP sessions share: the executor, the tools, and the word that it is over.
pub struct Server {
    place: Place,
    executors: Executors,
    read_only: bool,
    tools: Vec<Tool>,
    instructions: String,
    /// Says once that the server ends; whoever waits for a process stops waiting.
    ending: watch::Sender<bool>,
    calls: Arc<Semaphore>,
}

impl Server {
    /// Goes to the executor and looks what can be offered.
    pub async fn new(config: Config) -> Result<Arc<Self>, ServeError> {
        let (read_only, has_root) = (config.read_only, config.root.is_some());
        let place = Place::find(config).await?;
        Ok(Arc::new(Self {
            tools: tools::offered(read_only),
            instructions: instructions(&place, read_only, has_root),
            place,
            executors: Executors::default(),
            read_only,
            ending: watch::Sender::new(false),
            calls: Arc::new(Semaphore::new(limits::CALLS as usize)),
        }))
    }

    /// Serves one client on its standard streams, to the end of input or until [`end`](Self::end).
    ///
    /// A client that leaves before it has said anything, or that says something else first, is no error of ours and ends it.
    pub async fn serve_streams(
        self: &Arc<Self>,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) {
        let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(limits::MESSAGE_BYTES);
        let handler = Handler::new(Arc::clone(self), Over::Streams);
        let mut ending = self.ending.subscribe();
        // Before the handshake is through there is no service to end; dropping it closes the streams.
        let begun = tokio::select! {
            begun = handler.serve(transport) => begun,
            () = said(&mut ending) => return,
        };
        match begun {
            Ok(service) => self.attend(service).await,
            Err(ServerInitializeError::ConnectionClosed(_)) => {}
            Err(error) => tracing::warn!(%error, "the client did not begin an MCP session"),
        }
    }

    async fn attend(&self, service: RunningService<rmcp::RoleServer, Handler>) {
        let mut ending = self.ending.subscribe();
        let stop = service.cancellation_token();
        let watched = async {
            said(&mut ending).await;
            self.drained().await;
            stop.cancel();
            std::future::pending::<()>().await
        };
        // The service is never dropped before its end: it answers what is under way.
        tokio::select! {
            done = service.waiting() => tracing::debug!(?done, "the client's session ended"),
            () = watched => {}
        }
    }

    /// Ends every session: what is under way is told, then all stops.
    pub fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Leaves the executor: every session there is ended, with what is left in it. For when nothing is served any more.
    pub async fn close(&self) {
        self.executors.end_all().await;
        self.place.end().await;
    }

    /// Waits until no call is under way, for a while.
    async fn drained(&self) {
        // Elapsed or not: it is over.
        time::timeout(END_WITHIN, self.calls.acquire_many(limits::CALLS)).await.ok();
    }
}

/// Returns when it was said that something is over. Cancel safe.
async fn said(over: &mut watch::Receiver<bool>) {
    // An error means that nobody is left to say it: then it is over, too.
    over.wait_for(|is_over| *is_over).await.ok();
}

/// What a model is told of the executor before it sees the tools.
fn instructions(place: &Place, read_only: bool, has_root: bool) -> String {
    let base = place.base.display();
    let mut text =
        format!("Tools for the machine of the executor `{}`. Relative paths begin at `{base}`.", place.address);
    if has_root {
        text.push_str(" Nothing outside of that directory can be changed, and files outside of it cannot be read by the file tools.");
    }
    match read_only {
        true => text.push_str(" This server only reads: it starts no process and writes no file."),
        false => text.push_str(&format!(
            " Commands given as one text are run by `{} -c`. Use run_command for what ends by itself, start_process for servers, \
             watchers and interactive programs; processes end with this session.",
            place.shell
        )),
    }
    text
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.place.address).finish_non_exhaustive()
    }
}
