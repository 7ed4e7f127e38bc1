//! The tracing span of a request: the fields that every log line about the request carries, and its parent in the
//! client's trace.
//!
//! The span is always created, at any log level, so that a warning shows which request it belongs to. Without a
//! subscriber it costs a branch. It contains no secrets: a session is named by a prefix of its id. Names that a client
//! chose are truncated.

use std::fmt;

use exec_server_protocol::message::{RequestId, Trace};
use tracing::{Span, field::Empty};

use crate::{core::Principal, session::short_id};

/// Most characters of a name that a client chose.
const NAME_CHARS: usize = 64;

/// Creates the span of a request. With a valid `traceparent`, the span gets the trace id, the client's span id as its
/// parent, and a new span id.
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
        session = session.map(short_id),
        process = Empty,
        method,
        request = %truncated_id(id),
        trace_id = Empty,
        parent_span_id = Empty,
        span_id = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    if let Some(parent) = trace.and_then(Trace::parent) {
        let mut own = [0; 8];
        // Without random bytes the span has no id. The trace id and the parent are enough to correlate logs.
        if getrandom::fill(&mut own).is_ok() {
            span.record("span_id", format!("{:016x}", u64::from_be_bytes(own)));
        }
        span.record("trace_id", parent.trace_id);
        span.record("parent_span_id", parent.span_id);
    }
    span
}

/// Records the process that the current request is about.
pub(crate) fn record_process(process: &str) {
    let cut = process.char_indices().nth(NAME_CHARS).map_or(process, |(at, _)| &process[..at]);
    Span::current().record("process", cut);
}

/// A request id, truncated if it is long.
fn truncated_id(id: &RequestId) -> impl fmt::Display {
    fmt::from_fn(move |f| match id {
        RequestId::Number(number) => write!(f, "{number}"),
        RequestId::Text(text) => text.chars().take(NAME_CHARS).try_for_each(|c| write!(f, "{c}")),
    })
}
