//! Another client that knows a session's id. It takes the session and stays silent, or sends requests before its handshake.

use serde_json::{Value, json};

use crate::{
    context::WorldContext,
    link::{LinkQuality, SimLink},
    trace::violation,
    wire::{MessageHandler, WireConnection},
};

/// A connection that is only kept open.
pub struct Rival {
    _wire: WireConnection,
    pub link: SimLink,
}

struct RivalListener {
    context: WorldContext,
    /// The error kind that each request must be answered with, in order. `None` for requests that must succeed.
    expected: Vec<Option<&'static str>>,
}

impl MessageHandler for RivalListener {
    fn on_message(&self, _: u32, message: Value) {
        let Some(number) = message["id"].as_u64().and_then(|id| usize::try_from(id).ok()) else { return };
        let (kind, expected) = (message["error"]["data"]["kind"].as_str(), self.expected.get(number - 1));
        self.context.trace.line(format_args!("rival: request {number} answered {}", kind.unwrap_or("well")));
        // The session may have ended, or the server may be draining, before the rival connected.
        let is_fine = |kind: &str| ["sessionExpired", "unknownSession", "holderLost", "draining"].contains(&kind);
        if expected != Some(&kind) && !kind.is_some_and(is_fine) {
            let (trace, due) = (&self.context.trace, expected);
            violation!(trace, Answered, "rival: request {number} answered {kind:?}, due {due:?}");
        }
    }

    fn on_ping(&self, _: u32) {}

    fn on_end(&self, _: u32, why: &str) {
        self.context.trace.line(format_args!("rival ended: {why}"));
    }
}

impl Rival {
    /// Takes a session from the attached connection.
    pub fn take(
        session: &str,
        context: &WorldContext,
        accept: impl FnOnce(exec_server_rpc::ByteStream) -> bool,
    ) -> Self {
        context.trace.line(format_args!("rival takes session {session}"));
        let requests =
            [("initialize", json!({"clientName": "rival", "resumeSessionId": session, "takeover": true}), None)];
        Self::send_requests(requests.to_vec(), context, accept)
    }

    /// Sends requests before the handshake, and invalid handshakes.
    pub fn send_early(context: &WorldContext, accept: impl FnOnce(exec_server_rpc::ByteStream) -> bool) -> Self {
        context.trace.line(format_args!("rival speaks out of turn"));
        let requests = [
            ("process/list", json!({}), Some("notInitialized")),
            ("initialize", json!({"clientName": 5}), Some("invalidParams")),
            ("initialize", json!({"clientName": "rival", "resumeSessionId": "nobody's"}), Some("unknownSession")),
            ("environment/status", json!({}), Some("notInitialized")),
            ("session/end", json!({}), Some("notInitialized")),
        ];
        Self::send_requests(requests.to_vec(), context, accept)
    }

    fn send_requests(
        requests: Vec<(&'static str, Value, Option<&'static str>)>,
        context: &WorldContext,
        accept: impl FnOnce(exec_server_rpc::ByteStream) -> bool,
    ) -> Self {
        let (link, ours, theirs) = SimLink::new(LinkQuality::GOOD);
        accept(theirs);
        let expected = requests.iter().map(|(_, _, kind)| *kind).collect();
        let wire = WireConnection::new(1, ours, RivalListener { context: context.clone(), expected });
        for (number, (method, params, _)) in requests.into_iter().enumerate() {
            context.trace.sent(method);
            wire.send(&json!({"id": number + 1, "method": method, "params": params}));
        }
        Self { _wire: wire, link }
    }
}
