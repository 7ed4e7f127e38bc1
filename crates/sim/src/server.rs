//! The server of a world: the real core, which can end without a word and begin again on the same holders.
//!
//! Owns the core and its connections, so that dropping both is a crash: no goodbye, no detach, only closed descriptors.

use std::{io, sync::Arc};

use exec_server_protocol::limits;
use exec_server_rpc::{Framing, Role, Stream};
use exec_server_server::{
    access::Grant,
    core::{Authenticated, Config, Core},
};
use tokio::task::JoinSet;

use crate::{holders::Holders, stage::Stage};

/// A server that may be up or down.
pub struct Server {
    config: Config,
    holders: Arc<Holders>,
    core: Option<Arc<Core>>,
    connections: JoinSet<()>,
}

impl Server {
    /// A server that is down.
    pub fn new(config: Config, holders: Arc<Holders>) -> Self {
        Self { config, holders, core: None, connections: JoinSet::new() }
    }

    /// Whether it serves.
    pub fn is_up(&self) -> bool {
        self.core.is_some()
    }

    /// Begins to serve, and adopts what is there. Scripts stand still meanwhile: the scan runs on another thread.
    pub async fn begin(&mut self, stage: &Stage) -> io::Result<()> {
        let core = Core::new(self.config.clone(), self.holders.clone());
        stage.freeze(true);
        // Two milliseconds of simulated time pass only when everything that could run has run.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        let adopted = core.adopt().await;
        stage.freeze(false);
        self.core = Some(core);
        adopted
    }

    /// Says goodbye to everybody first, as at a restart by hand.
    pub async fn drain(&mut self) {
        if let Some(core) = &self.core {
            core.drain(std::time::Duration::from_secs(5)).await;
        }
    }

    /// Ends without a word.
    pub async fn crash(&mut self, stage: &Stage) {
        self.connections.shutdown().await;
        if let Some(core) = self.core.take()
            && Arc::into_inner(core).is_none()
        {
            stage.trace.fail(format_args!("somebody keeps the core of a server that has ended"));
        }
    }

    /// Serves a connection; refused, by dropping it, while the server is down.
    pub fn accept(&mut self, stream: Stream, stage: &Stage) {
        while let Some(ended) = self.connections.try_join_next() {
            if ended.is_err() {
                stage.trace.fail(format_args!("a connection's task panicked"));
            }
        }
        if let Some(core) = self.core.clone() {
            let framing = Framing::WebSocket { role: Role::Server, max: limits::MESSAGE_BYTES };
            let connection = Authenticated::vouch(stream, framing, Grant::owner(), "simulated");
            self.connections.spawn(async move { core.serve(connection).await });
        }
    }
}
