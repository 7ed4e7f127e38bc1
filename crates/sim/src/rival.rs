//! Another client that knows a session's id. It takes the session and stays silent, or sends requests before its handshake.

use crate::{
    prelude::*,
    wire::{Arrival, WireConnection},
};

/// A connection that is only kept open.
pub struct Rival {
    _wire: WireConnection,
}

/// A request, and the error kind that it must be answered with. `None` for a request that must succeed.
type Request = (&'static str, Value, Option<&'static str>);

impl Rival {
    /// Takes a session from the attached connection.
    pub fn take(session: &str, context: &WorldContext, server: &Server) -> Self {
        context.trace.line(format_args!("rival takes session {session}"));
        let params = json!({"clientName": "rival", "resumeSessionId": session, "takeover": true});
        Self::send_requests(vec![("initialize", params, None)], context, server)
    }

    /// Sends requests before the handshake, and invalid handshakes.
    pub fn send_early(context: &WorldContext, server: &Server) -> Self {
        context.trace.line(format_args!("rival speaks out of turn"));
        let requests = vec![
            ("process/list", json!({}), Some("notInitialized")),
            ("initialize", json!({"clientName": 5}), Some("invalidParams")),
            ("initialize", json!({"clientName": "rival", "resumeSessionId": "nobody's"}), Some("unknownSession")),
            ("environment/status", json!({}), Some("notInitialized")),
            ("session/end", json!({}), Some("notInitialized")),
        ];
        Self::send_requests(requests, context, server)
    }

    fn send_requests(requests: Vec<Request>, context: &WorldContext, server: &Server) -> Self {
        let (_, ours, theirs) = SimLink::new(LinkQuality::GOOD);
        server.accept(theirs);
        let expected: Vec<_> = requests.iter().map(|(_, _, kind)| *kind).collect();
        let trace = context.trace.clone();
        let wire = WireConnection::new(ours, move |arrival| match arrival {
            Arrival::Message(message) => check_answer(&trace, &expected, &message),
            Arrival::Ping => {}
            Arrival::End(why) => trace.line(format_args!("rival ended: {why}")),
        });
        for (number, (method, params, _)) in requests.into_iter().enumerate() {
            context.trace.sent(method);
            wire.send(&json!({"id": number + 1, "method": method, "params": params}));
        }
        Self { _wire: wire }
    }
}

/// Checks an answer against the error kinds that are due, in the order of the requests.
fn check_answer(trace: &Trace, expected: &[Option<&'static str>], message: &Value) {
    let Some(number) = message["id"].as_u64().and_then(|id| usize::try_from(id).ok()) else { return };
    let (kind, due) = (message["error"]["data"]["kind"].as_str(), expected.get(number - 1));
    trace.line(format_args!("rival: request {number} answered {}", kind.unwrap_or("well")));
    // The session may have ended, or the server may be draining, before the rival connected.
    let is_fine = |kind: &str| ["sessionExpired", "unknownSession", "holderLost", "draining"].contains(&kind);
    if due != Some(&kind) && !kind.is_some_and(is_fine) {
        violation!(trace, Answered, "rival: request {number} answered {kind:?}, due {due:?}");
    }
}
