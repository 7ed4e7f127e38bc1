//! Implements the methods. The connection polls a handler once before it handles the next message. The handler begins
//! its effect in this poll, or queues for it, so that effects keep arrival order. Each request gets exactly one answer.
//!
//! Handlers work with sessions and processes. They do not depend on framing, on sockets or on how events are pushed.

pub(crate) mod environment;
pub(crate) mod files;
pub(crate) mod http;
pub(crate) mod list;
pub(crate) mod process;
pub(crate) mod sizes;
pub(crate) mod stdin;

mod handshake;
pub(crate) mod permitted;

use std::sync::Arc;

use exec_server_protocol::{SessionId, failure::Kind, method::Method, session as wire};
use tokio::time::Instant;

pub(crate) use self::handshake::initialize;
use crate::{
    access::Grant,
    audit::AuditRecord,
    connection::Peer,
    core::Core,
    error::Failure,
    process::Process,
    pump::{PumpCommand, Reply},
    session::{Session, SessionUse},
};

/// Everything that a handler can use. The connection has checked that the handshake is done, if the method needs one,
/// and that the principal has the method's scope.
pub(crate) struct RequestContext {
    pub(crate) method: Method,
    pub(crate) core: Arc<Core>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) grant: Grant,
    pub(crate) session: Arc<Session>,
}

impl RequestContext {
    /// Records that a start was refused because the principal lacks a permission. Other refusals are not recorded.
    pub(crate) fn record_if_forbidden(&self, failure: &Failure) {
        if failure.kind() == Kind::Forbidden {
            self.record_refusal(failure.to_string(), None);
        }
    }

    /// Records that this request was refused. `target` is the target of an HTTP request.
    pub(crate) fn record_refusal(&self, reason: String, target: Option<String>) {
        let method = Some(self.method.name());
        let reason = Some(reason);
        self.record(&self.session, None, AuditRecord { method, reason, target, ..AuditRecord::of("request.deny") });
    }

    /// Records what this request does to a session or to one of its processes.
    pub(crate) fn record(&self, session: &Session, process: Option<&str>, record: AuditRecord) {
        self.core.config.audit.record(self.with_origin(session, process, record));
    }

    /// Records what this request is about to do. In strict mode, waits until the record is on disk.
    pub(crate) async fn record_first(&self, record: AuditRecord) -> Result<(), Failure> {
        let audit = &self.core.config.audit;
        let record = self.with_origin(&self.session, None, record);
        if !audit.is_strict() {
            audit.record(record);
            return Ok(());
        }
        if audit.commit(record).await { Ok(()) } else { Err(Failure::AuditUnavailable) }
    }

    /// Adds the requesting principal and peer, the session and the process to the record.
    fn with_origin(&self, session: &Session, process: Option<&str>, record: AuditRecord) -> AuditRecord {
        AuditRecord {
            principal: Some(self.grant.principal().to_string()),
            peer: Some(self.peer.label.to_string()),
            session: session.audit_record("").session,
            process: process.map(str::to_owned),
            ..record
        }
    }

    /// The session that a request names, which must be of the same principal. Its clock restarts. Without a name, the
    /// session of the connection.
    pub(crate) fn session(&self, id: Option<&SessionId>) -> Result<Arc<Session>, Failure> {
        let Some(id) = id.filter(|id| id.as_str() != &*self.session.id) else { return Ok(self.session.clone()) };
        let session = self.core.session(id.as_str(), &self.session.principal)?;
        session.touch(Instant::now());
        Ok(session)
    }

    /// Keeps another session from expiring until the returned value is dropped. `None` for this request's own session
    /// and for one that does not exist.
    pub(crate) fn in_use(&self, id: Option<&SessionId>) -> Option<SessionUse> {
        let session = self.session(id).ok().filter(|session| session.id != self.session.id);
        session.map(|session| session.begin_use())
    }

    /// The process that a request is about. Waits for a pending start.
    pub(crate) async fn process(&self, session: Option<&SessionId>, id: &str) -> Result<Option<Arc<Process>>, Failure> {
        crate::trace::record_process(id);
        Ok(self.session(session)?.process(id).await)
    }

    /// Like `process`, but an unknown process is an error.
    pub(crate) async fn known_process(&self, session: Option<&SessionId>, id: &str) -> Result<Arc<Process>, Failure> {
        self.process(session, id).await?.ok_or_else(|| Failure::UnknownProcess { id: id.to_owned() })
    }
}

/// `session/end`: ends the session with all its processes, and then the connection.
pub(crate) async fn session_end(context: RequestContext, _: wire::EndParams, reply: Reply) {
    context.record(&context.session, None, AuditRecord::of("session.end"));
    let RequestContext { core, peer, session, .. } = context;
    // Stop pushing first: the feeds would report the end of the holder as a loss, although the client asked for it.
    for process in session.processes() {
        peer.outgoing.enqueue_command(PumpCommand::Unfollow(process));
    }
    // Runs as a task of the core: a disconnect must not leave the session half ended.
    core.spawn(async move {
        session.end().await;
        reply.result(&wire::EndResult {});
        peer.close(1000, "session ended");
    });
}
