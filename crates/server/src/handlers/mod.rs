//! What each method does. A handler begins its effect before its first await, so that effects keep the order of arrival, and ends in
//! exactly one answer.
//!
//! Knows sessions and processes; must not know framing, sockets or how events are pushed.

pub(crate) mod command;
pub(crate) mod environment;
pub(crate) mod process;
pub(crate) mod stdin;
pub(crate) mod subscription;

mod handshake;

use std::sync::Arc;

use exec_server_protocol::{SessionId, session as wire};

pub(crate) use self::handshake::initialize;
use crate::{connection::Peer, core::Core, error::Failure, process::Process, pump::Reply, session::Session};

/// What a request may use: it has passed the gates of its family.
pub(crate) struct Context {
    pub(crate) core: Arc<Core>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) session: Arc<Session>,
}

impl Context {
    /// The session a request is about: its own, or another one of the same principal.
    pub(crate) fn session(&self, id: Option<&SessionId>) -> Result<Arc<Session>, Failure> {
        match id {
            None => Ok(self.session.clone()),
            Some(id) if id.as_str() == &*self.session.id => Ok(self.session.clone()),
            Some(id) => self.core.session(id.as_str(), &self.session.principal),
        }
    }

    /// The process a request is about, after a start that is under way.
    pub(crate) async fn process(&self, session: Option<&SessionId>, id: &str) -> Result<Option<Arc<Process>>, Failure> {
        Ok(self.session(session)?.process(id).await)
    }

    /// The same, where an unknown process is a mistake.
    pub(crate) async fn known_process(&self, session: Option<&SessionId>, id: &str) -> Result<Arc<Process>, Failure> {
        self.process(session, id).await?.ok_or_else(|| Failure::UnknownProcess { id: id.to_owned() })
    }
}

/// `session/end`: ends the session and everything in it, and then the connection, which has nothing left to speak about.
pub(crate) async fn session_end(context: Context, _: wire::EndParams, reply: Reply) {
    let Context { core, peer, session } = context;
    // A connection that is cut meanwhile must not leave half an end behind: the core sees to it.
    core.spawn(async move {
        session.end().await;
        reply.result(&wire::EndResult {});
        peer.goodbye(1000, "session ended");
    });
}
