//! The message envelope ("JSON-RPC lite"): encoding and decoding of requests, notifications, results and errors. Does not depend on any
//! method.
//!
//! Messages are classified strictly, as in generation H. `method` with `id` is a request, and `method` without `id` is a notification. A
//! message with `result` is a response. Every other message must be an error. A member with a wrong type makes the message malformed; it
//! never turns it into another kind of message.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    failure::{ErrorData, Kind},
    limits, scan,
};

pub use scan::ScanError;

/// Id of the error that answers a malformed message, or a notification that the server refuses.
pub const MALFORMED_ID: RequestId = RequestId::Number(-1);

/// Id of a request. The answer carries it unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum RequestId {
    /// A signed 64-bit integer.
    Number(i64),
    /// A string.
    Text(String),
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// W3C trace context of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Trace {
    /// Value of the header `traceparent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Value of the header `tracestate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

/// Trace and span of the caller, parsed from `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent<'a> {
    /// Id of the trace, 32 hexadecimal digits.
    pub trace_id: &'a str,
    /// Id of the caller's span, 16 hexadecimal digits.
    pub span_id: &'a str,
}

impl Trace {
    /// Parses `traceparent` by the rules of W3C Trace Context. Returns `None` if it is not valid; the caller should then ignore it.
    #[must_use]
    pub fn parent(&self) -> Option<TraceParent<'_>> {
        let mut parts = self.traceparent.as_deref()?.split('-');
        let mut hex = |digits: usize| {
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            parts.next().filter(|part| part.len() == digits && part.bytes().all(is_hex))
        };
        let (version, trace_id, span_id, _flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let is_zero = |id: &str| id.bytes().all(|byte| byte == b'0');
        // Version 00 has exactly four parts. Later versions may append more.
        let is_valid = version != "ff" && (version != "00" || parts.next().is_none());
        (is_valid && !is_zero(trace_id) && !is_zero(span_id)).then_some(TraceParent { trace_id, span_id })
    }
}

/// A decoded message. Its params borrow from the message text. Missing params and null params are both `None`.
#[derive(Debug, Clone)]
pub enum Incoming<'a> {
    /// A request, which expects an answer.
    Request {
        /// Id to repeat in the answer.
        id: RequestId,
        /// Name of the method.
        method: Cow<'a, str>,
        /// Params of the method.
        params: Option<&'a RawValue>,
        /// Trace context of the caller.
        trace: Option<Trace>,
    },
    /// A notification, which gets no answer.
    Notification {
        /// Name of the notification.
        method: Cow<'a, str>,
        /// Params of the notification.
        params: Option<&'a RawValue>,
    },
    /// The result of a request.
    Response {
        /// Id of the request.
        id: RequestId,
        /// The result. It may be null.
        result: &'a RawValue,
    },
    /// The error of a request.
    Error {
        /// Id of the request.
        id: RequestId,
        /// The error.
        error: ErrorObject<'a>,
    },
}

/// The `error` member of a received message.
#[derive(Debug, Clone, Deserialize)]
pub struct ErrorObject<'a> {
    /// Error code.
    pub code: i64,
    /// Text for people.
    #[serde(borrow)]
    pub message: Cow<'a, str>,
    /// Additional data. Servers of this project send `{"kind": …}`.
    #[serde(borrow, default)]
    pub data: Option<&'a RawValue>,
}

impl ErrorObject<'_> {
    /// The error kind in `data`. `None` if the peer sends no kind or one that this release does not know.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        let data: ErrorData = serde_json::from_str(self.data?.get()).ok()?;
        Some(data.kind)
    }
}

/// Why bytes are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message is not UTF-8.
    #[error("the message is not UTF-8 at byte {at}")]
    Utf8 {
        /// Position of the first invalid byte.
        at: usize,
    },
    /// The message is not a JSON object, or exceeds a limit.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A member of the envelope has a wrong type.
    #[error("the member `{member}` has a wrong type")]
    Member {
        /// Name of the member.
        member: &'static str,
    },
    /// The message lacks `method`, `result` and `error`, or it is an answer without `id`.
    #[error("the message lacks the member `{member}`")]
    Missing {
        /// Name of the missing member.
        member: &'static str,
    },
}

/// The params do not fit the method. The text is cut to a maximum length, because it may quote the input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ParamsError {
    text: String,
}

/// Name of the dialect in which raw bytes can be attached to a message.
pub const ATTACHED: &str = "attached";

/// First byte of a message with attached bytes. No JSON text begins with it.
const ATTACHED_MARK: u8 = 0x80;

/// Length of the header: the mark and the length of the JSON as a little-endian `u32`.
const ATTACHED_HEAD: usize = 5;

/// Appends the header and the JSON message that `write` produces. The caller appends the attached bytes.
pub fn attach(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.push(ATTACHED_MARK);
    out.extend([0; ATTACHED_HEAD - 1]);
    write(out);
    let json = u32::try_from(out.len() - begin - ATTACHED_HEAD).expect("the JSON beside attached bytes is small");
    out[begin + 1..begin + ATTACHED_HEAD].copy_from_slice(&json.to_le_bytes());
}

/// Splits a message into its JSON and its attached bytes.
#[must_use]
pub fn detach(message: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some((head, rest)) = message.split_first_chunk::<ATTACHED_HEAD>() else { return (message, None) };
    let [ATTACHED_MARK, a, b, c, d] = *head else { return (message, None) };
    // If the length exceeds the message, return all of it as JSON: it starts with the mark, so the decoder refuses it.
    let json = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    rest.split_at_checked(json).map_or((message, None), |(json, attached)| (json, Some(attached)))
}

/// Decodes one message.
pub fn decode(bytes: &[u8]) -> Result<Incoming<'_>, DecodeError> {
    // Check the first byte before the pass over the whole message: a message that cannot be an object is refused at once.
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => {}
        Some(_) => return Err(ScanError::NotAnObject.into()),
        None => return Err(ScanError::End.into()),
    }
    let text = std::str::from_utf8(bytes).map_err(|error| DecodeError::Utf8 { at: error.valid_up_to() })?;
    let members = scan::scan(text)?;
    let part = |range: &Option<std::ops::Range<usize>>| range.clone().map(|range| &text[range]);
    let (id, params) = (part(&members.id), part(&members.params));
    match (part(&members.method), part(&members.result)) {
        (Some(method), _) => {
            let method = string(method).ok_or(DecodeError::Member { member: "method" })?;
            let params = match params {
                None | Some("null") => None,
                Some(params) => Some(parse(params, "params")?),
            };
            let Some(id) = id else { return Ok(Incoming::Notification { method, params }) };
            let id = request_id(id)?;
            let trace = part(&members.trace).map_or(Ok(None), |trace| parse(trace, "trace"))?;
            Ok(Incoming::Request { id, method, params, trace })
        }
        (None, Some(result)) => Ok(Incoming::Response { id: answered_id(id)?, result: parse(result, "result")? }),
        (None, None) => {
            let error = part(&members.error).ok_or(DecodeError::Missing { member: "method" })?;
            let id = answered_id(id)?;
            if !error.starts_with('{') {
                return Err(DecodeError::Member { member: "error" });
            }
            Ok(Incoming::Error { id, error: parse(error, "error")? })
        }
    }
}

/// Decodes the params of a method. Missing or null params count as `{}`. All other params must be an object.
pub fn params<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Result<T, ParamsError> {
    let text = params.map_or("{}", RawValue::get);
    if !text.starts_with('{') {
        return Err(ParamsError { text: "params must be an object".to_owned() });
    }
    serde_json::from_str(text).map_err(|error| {
        let mut text = error.to_string();
        text.truncate(text.floor_char_boundary(limits::ERROR_TEXT_BYTES));
        ParamsError { text }
    })
}

/// Appends `{"id":…,"result":`. The caller appends the result, then calls [`end_result`].
pub fn begin_result(out: &mut Vec<u8>, id: &RequestId) {
    out.extend_from_slice(b"{\"id\":");
    write_json(out, id);
    out.extend_from_slice(b",\"result\":");
}

/// Appends the end of a message that `begin_result` began.
pub fn end_result(out: &mut Vec<u8>) {
    out.push(b'}');
}

/// Appends a complete answer with a result.
pub fn encode_result<T: Serialize + ?Sized>(out: &mut Vec<u8>, id: &RequestId, result: &T) {
    begin_result(out, id);
    write_json(out, result);
    end_result(out);
}

/// Appends an answer with an error. `code` is [`Kind::code`], except where an older generation requires another code.
pub fn encode_error(out: &mut Vec<u8>, id: &RequestId, code: i64, kind: Kind, message: &str) {
    #[derive(Serialize)]
    struct ErrorMessage<'a> {
        id: &'a RequestId,
        error: ErrorBody<'a>,
    }
    #[derive(Serialize)]
    struct ErrorBody<'a> {
        code: i64,
        message: &'a str,
        data: ErrorData,
    }
    let error = ErrorBody { code, message, data: ErrorData { kind } };
    write_json(out, &ErrorMessage { id, error });
}

/// Appends a notification.
pub fn encode_notification<T: Serialize + ?Sized>(out: &mut Vec<u8>, method: &str, params: &T) {
    #[derive(Serialize)]
    struct NotificationMessage<'a, T: ?Sized> {
        method: &'a str,
        params: &'a T,
    }
    write_json(out, &NotificationMessage { method, params });
}

/// Appends a request.
pub fn encode_request<T: Serialize + ?Sized>(out: &mut Vec<u8>, id: &RequestId, method: &str, params: &T) {
    #[derive(Serialize)]
    struct RequestMessage<'a, T: ?Sized> {
        id: &'a RequestId,
        method: &'a str,
        params: &'a T,
    }
    write_json(out, &RequestMessage { id, method, params });
}

/// Appends a wire type as JSON.
pub(crate) fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("wire types have string keys and a vector takes every byte");
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str, member: &'static str) -> Result<T, DecodeError> {
    serde_json::from_str(text).map_err(|_| DecodeError::Member { member })
}

fn answered_id(id: Option<&str>) -> Result<RequestId, DecodeError> {
    request_id(id.ok_or(DecodeError::Missing { member: "id" })?)
}

fn request_id(text: &str) -> Result<RequestId, DecodeError> {
    let wrong = DecodeError::Member { member: "id" };
    match text.as_bytes().first() {
        Some(b'"') => string(text).map(|text| RequestId::Text(text.into_owned())).ok_or(wrong),
        // An id is echoed unchanged. `-0` would be echoed as `0`, so refuse it.
        _ if text == "-0" => Err(wrong),
        _ => text.parse().map(RequestId::Number).map_err(|_| wrong),
    }
}

/// Decodes a JSON string. Copies it only if it contains escapes.
fn string(text: &str) -> Option<Cow<'_, str>> {
    let inside = text.strip_prefix('"')?.strip_suffix('"')?;
    if inside.contains('\\') { serde_json::from_str(text).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inside)) }
}
