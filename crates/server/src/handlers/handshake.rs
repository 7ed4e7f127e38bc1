//! `initialize`: creates or resumes a session, and learns the peer's capabilities.

use std::{borrow::Cow, sync::Arc, time::Duration};

use exec_server_protocol::{
    SessionId,
    capabilities::ClientCapabilities,
    frame,
    initialize::{InitializeParams, InitializeResult, ServerInfo, Ttl},
    message,
};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::{
    audit::AuditRecord,
    compat::ClientRules,
    connection::{Connection, HandshakeStage, Peer},
    error::Failure,
    pump::{PeerCapabilities, Reply},
    session::{AttachClaim, Attachment, Session, short_id},
};

/// Longest delay of the answer that a session is unknown. If the throttle asks for more, the connection is closed
/// instead after this time.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How often the server checks whether the attached peer has answered.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Handles `initialize`. The connection handles its next message only after this returns.
pub(crate) async fn initialize(connection: &mut Connection, params: Option<&RawValue>, reply: Reply) {
    match establish(connection, params).await {
        Ok((session, resumed)) => {
            let server =
                ServerInfo { name: Cow::Borrowed("exec-server"), version: Cow::Borrowed(env!("CARGO_PKG_VERSION")) };
            let mut result = InitializeResult::new(SessionId::new(session.id.clone()), server);
            if let Some(capabilities) = &mut result.capabilities {
                capabilities.ack_window_bytes = connection.core.config.ack_window_bytes;
                // Newline framing offers only the binary dialect, which includes attached bytes.
                if !connection.has_frames {
                    capabilities.dialects.retain(|dialect| dialect == frame::BINARY);
                }
            }
            // Succeeds: `establish` has decoded the same text.
            let params = message::params::<InitializeParams>(params).ok();
            // A client of the reference does not know `ttlMs`. It sends neither `ttlMs` nor capabilities.
            let is_ttl_reported = params.is_some_and(|params| params.ttl_ms.is_some() || params.capabilities.is_some());
            result.ttl_ms = is_ttl_reported.then(|| {
                session.ttl().map_or(Ttl::Unlimited, |ttl| Ttl::Ms(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
            });
            let event = if resumed { "session.resume" } else { "session.new" };
            connection.record(AuditRecord { session: session.audit_record(event).session, ..AuditRecord::of(event) });
            connection.stage = HandshakeStage::Initialized { session, resumed };
            reply.result(&result);
        }
        Err(failure) => refuse(connection, params, &failure, reply).await,
    }
}

/// Refuses the handshake. If the session does not exist or belongs to another principal, the throttle may delay the
/// answer; see `guess_throttle`.
async fn refuse(connection: &mut Connection, params: Option<&RawValue>, failure: &Failure, reply: Reply) {
    let asked = message::params::<InitializeParams>(params).ok().and_then(|params| params.resume_session_id);
    let session = asked.map(|id| short_id(id.as_str()).to_owned());
    let reason = Some(failure.kind().as_str().to_owned());
    connection.record(AuditRecord { session, reason, ..AuditRecord::of("session.refuse") });
    if !matches!(failure, Failure::UnknownSession { .. }) {
        return reply.fail(failure);
    }
    connection.wrong_tries += 1;
    let wait = connection.core.count_wrong_try(connection.grant.principal(), connection.wrong_tries);
    connection.wait_for(std::future::pending(), wait.min(LONGEST_WAIT)).await;
    if wait > LONGEST_WAIT {
        // Close without an answer: this principal has tried too many unknown session ids.
        return connection.peer.close(1013, "too many unknown session ids; try again later");
    }
    reply.fail(failure);
}

async fn establish(connection: &mut Connection, params: Option<&RawValue>) -> Result<(Arc<Session>, bool), Failure> {
    let implicit = match &connection.stage {
        HandshakeStage::Fresh => None,
        HandshakeStage::Implicit(session) => Some(session.clone()),
        HandshakeStage::Initialized { .. } | HandshakeStage::Confirmed(_) => return Err(Failure::AlreadyInitialized),
    };
    let params: InitializeParams =
        message::params(params).map_err(|error| Failure::InvalidParams { reason: error.to_string() })?;
    let capabilities = params.capabilities.clone().unwrap_or_default();
    let attachment = attachment(&params, &capabilities, connection.core.config.session_ttl_max);
    let named = match (&params.session_key, &params.resume_session_id) {
        (Some(key), _) => {
            if params.attempt == 0 {
                let reason = "`sessionKey` needs `attempt`, which begins at 1".to_owned();
                return Err(Failure::InvalidParams { reason });
            }
            let principal = connection.grant.principal().clone();
            Some(connection.core.keyed_session(&principal, key, attachment).await?)
        }
        (None, Some(id)) => Some((find_session(connection, id.as_str(), attachment.rules).await?, true)),
        (None, None) => None,
    };
    let (session, resumed, claim) = match (named, implicit) {
        (Some((session, resumed)), implicit) => {
            let old = session.attached().filter(|old| old.id != connection.peer.id);
            let claim =
                if params.takeover { AttachClaim::Any } else { AttachClaim::From(old.as_ref().map(|old| old.id)) };
            if let Some(old) = old.filter(|_| !params.takeover)
                && is_answering(&session, &old, connection.core.config.takeover_after).await
            {
                return Err(Failure::SessionAttached { id: session.id.to_string() });
            }
            if let Some(implicit) = implicit.filter(|implicit| implicit.id != session.id) {
                // The client does not know the id of its implicit session, so that session could never be resumed.
                implicit.end().await;
            }
            (session, resumed, claim)
        }
        (None, Some(session)) => (session, false, AttachClaim::Any),
        (None, None) => {
            let (id, principal) = (connection.core.new_session_id(), connection.grant.principal().clone());
            (connection.core.new_session(id, principal, attachment).await?, false, AttachClaim::Any)
        }
    };
    let speaks = |dialect: &str| capabilities.dialects.iter().any(|word| word == dialect);
    let binary = speaks(frame::BINARY);
    connection.peer.set_capabilities(PeerCapabilities {
        ack: capabilities.ack,
        gap: capabilities.gap,
        concurrent: capabilities.concurrent,
        attached: binary || (connection.has_frames && speaks(message::ATTACHED)),
        binary,
        ack_window_bytes: connection.core.config.ack_window_bytes,
    });
    session.attach(connection.peer.clone(), attachment, claim, params.session_key.map(|_| params.attempt))?;
    if resumed {
        connection.core.metrics.resumed.inc();
    }
    Ok((session, resumed))
}

/// Finds the session to resume. While it is being adopted, a client gets a retryable error. For a client of the
/// reference, the request waits for the holder first, at most for [`ClientRules::adoption_wait`].
async fn find_session(connection: &mut Connection, id: &str, rules: ClientRules) -> Result<Arc<Session>, Failure> {
    let core = connection.core.clone();
    let principal = connection.grant.principal().clone();
    match (core.session(id, &principal), rules.adoption_wait()) {
        (Err(Failure::SessionAdopting { .. }), Some(wait)) => {
            connection.wait_for(core.session_settled(id), wait).await;
            core.session(id, &principal)
        }
        (found, _) => found,
    }
}

/// The session settings: the requested time-to-live, else the default of this kind of client, never above the
/// server's bound.
fn attachment(params: &InitializeParams, capabilities: &ClientCapabilities, max: Option<Duration>) -> Attachment {
    let rules = ClientRules::of(capabilities);
    let asked = match params.ttl_ms {
        Some(Ttl::Ms(ms)) => Some(Duration::from_millis(ms)),
        Some(Ttl::Unlimited) => None,
        None => Some(rules.default_ttl()),
    };
    let ttl = match (asked, max) {
        (Some(asked), Some(max)) => Some(asked.min(max)),
        (asked, max) => asked.or(max),
    };
    Attachment { ttl, is_ttl_asked: params.ttl_ms.is_some(), rules }
}

/// Pings the attached connection. Returns true if anything is received from it in time and it is still attached.
async fn is_answering(session: &Session, peer: &Peer, within: Duration) -> bool {
    let asked = Instant::now();
    let deadline = asked + within;
    peer.outgoing.enqueue_ping();
    let has_session = || session.attached().is_some_and(|attached| attached.id == peer.id);
    // Poll: a signal from the read path would cost work for every message, and this is rare.
    while Instant::now() < deadline && has_session() {
        tokio::time::sleep(CHECK_EVERY).await;
        if peer.last_received() > asked && has_session() {
            return true;
        }
    }
    false
}
