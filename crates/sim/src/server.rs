//! The server of a world: the real core, which can crash and start again on the same holders.
//!
//! Owns the core and its connections. Dropping both is a crash: no close frame, no detach, only closed file descriptors. All clients share
//! it.

use exec_server_protocol::limits;
use exec_server_rpc::{Framing, WebSocketRole};
use exec_server_server::{
    access::Grant,
    core::{Authenticated, Config, Core},
};
use tokio::task::JoinSet;

use crate::{holders::Holders, prelude::*};

/// The time-to-live of every session while it is detached.
pub const SESSION_TTL: Duration = Duration::from_millis(SESSION_TTL_MS);
pub const SESSION_TTL_MS: u64 = 120_000;

/// A server that may be up or down.
pub struct Server {
    config: Config,
    holders: Arc<Holders>,
    trace: Trace,
    state: Mutex<ServerState>,
}

#[derive(Default)]
struct ServerState {
    core: Option<Arc<Core>>,
    connections: JoinSet<()>,
    /// How many servers have started.
    lives: u32,
}

impl Server {
    /// A server that is not running.
    pub fn new(config: Config, holders: Arc<Holders>, trace: Trace) -> Arc<Self> {
        Arc::new(Self { config, holders, trace, state: Mutex::default() })
    }

    /// Whether the server is running.
    pub fn is_up(&self) -> bool {
        self.state.lock().core.is_some()
    }

    /// How many servers have started, including the current one.
    pub fn lives(&self) -> u32 {
        self.state.lock().lives
    }

    /// Starts a server and adopts the existing holders.
    pub async fn start(&self) -> io::Result<()> {
        let core = Core::new(self.config.clone(), self.holders.clone());
        let adopted = core.adopt().await;
        let mut state = self.state.lock();
        state.core = Some(core);
        state.lives += 1;
        adopted
    }

    /// Drains the server, as in a planned restart.
    pub async fn drain(&self) {
        let core = self.state.lock().core.clone();
        if let Some(core) = core {
            core.drain(Duration::from_secs(5)).await;
        }
    }

    /// Crashes the server.
    pub async fn crash(&self) {
        // Take the core first, so that no new connection is accepted while the existing ones are aborted.
        let (core, mut connections) = {
            let mut state = self.state.lock();
            (state.core.take(), std::mem::take(&mut state.connections))
        };
        connections.shutdown().await;
        if let Some(core) = core
            && Arc::into_inner(core).is_none()
        {
            violation!(self.trace, Health, "somebody keeps the core of a server that has ended");
        }
    }

    /// Serves a connection. If the server is not running, drops the connection and returns false.
    pub fn accept(&self, stream: ByteStream) -> bool {
        let mut state = self.state.lock();
        while let Some(ended) = state.connections.try_join_next() {
            if ended.is_err() {
                violation!(self.trace, Health, "a connection's task panicked");
            }
        }
        let Some(core) = state.core.clone() else { return false };
        let framing = Framing::WebSocket { role: WebSocketRole::Server, max: limits::MESSAGE_BYTES };
        let connection = Authenticated::vouch(stream, framing, Grant::owner(), "simulated");
        state.connections.spawn(async move { core.serve(connection).await });
        true
    }
}
