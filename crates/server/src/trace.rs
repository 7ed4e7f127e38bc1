//! The span of a request: what every line about it carries, and its place in the caller's trace.
//!
//! Always made, whatever is logged, so that a warning says whose request it belongs to; without a subscriber it costs a branch.
//! Must not hold anything that opens a door: a session is named by the beginning of its id, and what a peer made up is cut.

use std::fmt;

use exec_server_protocol::message::{RequestId, Trace};
use tracing::{Span, field::Empty};

use crate::{core::Principal, session::short};

/// Characters of a name that a peer made up.
const NAME_CHARS: usize = 64;

/// A request's span. A valid `traceparent` makes it a child: the id of the trace, the caller's span, and one of its own.
pub(crate) fn request(
    connection: u64,
    principal: &Principal,
    session: Option<&str>,
    method: &'static str,
    id: &RequestId,
    trace: Option<&Trace>,
) -> Span {
    let span = tracing::error_span!(
        "request",
        connection,
        %principal,
        session = session.map(short),
        process = Empty,
        method,
        request = %Cut(id),
        trace_id = Empty,
        parent_span_id = Empty,
        span_id = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    if let Some(parent) = trace.and_then(Trace::parent) {
        let mut own = [0; 8];
        // Without randomness the span has no name; its parent and its trace are what joins logs.
        if getrandom::fill(&mut own).is_ok() {
            span.record("span_id", format!("{:016x}", u64::from_be_bytes(own)));
        }
        span.record("trace_id", parent.trace_id);
        span.record("parent_span_id", parent.span_id);
    }
    span
}

/// Says which process the current request is about.
pub(crate) fn about(process: &str) {
    let cut = process.char_indices().nth(NAME_CHARS).map_or(process, |(at, _)| &process[..at]);
    Span::current().record("process", cut);
}

/// An id, cut where a peer made up a long one.
struct Cut<'a>(&'a RequestId);

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            RequestId::Number(number) => write!(f, "{number}"),
            RequestId::Text(text) => text.chars().take(NAME_CHARS).try_for_each(|c| write!(f, "{c}")),
        }
    }
}
