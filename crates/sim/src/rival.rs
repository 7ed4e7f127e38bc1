//! Another client that knows a session's id. It takes the session and stays silent, or sends requests before its handshake.

use serde_json::{Value, json};

use crate::{
    link::{Link, Quality},
    stage::Stage,
    trace::Invariant,
    wire::{Ear, Wire},
};

/// A connection that is only kept open.
pub struct Rival {
    _wire: Wire,
    pub link: Link,
}

struct Listener {
    stage: Stage,
    /// The error kind that each request must be answered with, in order. `None` for requests that must succeed.
    expected: Vec<Option<&'static str>>,
}

impl Ear for Listener {
    fn heard(&self, _: u32, message: Value) {
        let Some(number) = message["id"].as_u64().and_then(|id| usize::try_from(id).ok()) else { return };
        let (kind, expected) = (message["error"]["data"]["kind"].as_str(), self.expected.get(number - 1));
        self.stage.trace.line(format_args!("rival: request {number} answered {}", kind.unwrap_or("well")));
        // The session may have ended, or the server may be draining, before the rival connected.
        let is_fine = |kind: &str| ["sessionExpired", "unknownSession", "holderLost", "draining"].contains(&kind);
        if expected != Some(&kind) && !kind.is_some_and(is_fine) {
            let (trace, due) = (&self.stage.trace, expected);
            trace.fail(Invariant::Answered, format_args!("rival: request {number} answered {kind:?}, due {due:?}"));
        }
    }

    fn pinged(&self, _: u32) {}

    fn ended(&self, _: u32, why: &str) {
        self.stage.trace.line(format_args!("rival ended: {why}"));
    }
}

impl Rival {
    /// Takes a session from the attached connection.
    pub fn take(session: &str, stage: &Stage, accept: impl FnOnce(exec_server_rpc::Stream) -> bool) -> Self {
        stage.trace.line(format_args!("rival takes session {session}"));
        let asks = [("initialize", json!({"clientName": "rival", "resumeSessionId": session, "takeover": true}), None)];
        Self::speak(asks.to_vec(), stage, accept)
    }

    /// Sends requests before the handshake, and invalid handshakes.
    pub fn blunder(stage: &Stage, accept: impl FnOnce(exec_server_rpc::Stream) -> bool) -> Self {
        stage.trace.line(format_args!("rival speaks out of turn"));
        let asks = [
            ("process/list", json!({}), Some("notInitialized")),
            ("initialize", json!({"clientName": 5}), Some("invalidParams")),
            ("initialize", json!({"clientName": "rival", "resumeSessionId": "nobody's"}), Some("unknownSession")),
            ("environment/status", json!({}), Some("notInitialized")),
            ("session/end", json!({}), Some("notInitialized")),
        ];
        Self::speak(asks.to_vec(), stage, accept)
    }

    fn speak(
        asks: Vec<(&'static str, Value, Option<&'static str>)>,
        stage: &Stage,
        accept: impl FnOnce(exec_server_rpc::Stream) -> bool,
    ) -> Self {
        let (link, ours, theirs) = Link::new(Quality::GOOD);
        accept(theirs);
        let expected = asks.iter().map(|(_, _, kind)| *kind).collect();
        let wire = Wire::new(1, ours, Listener { stage: stage.clone(), expected });
        for (number, (method, params, _)) in asks.into_iter().enumerate() {
            stage.trace.sent(method);
            wire.send(&json!({"id": number + 1, "method": method, "params": params}));
        }
        Self { _wire: wire, link }
    }
}
