//! The envelope: reading and writing messages of "JSON-RPC lite". It must not know any method.
//!
//! Classification is the strict one of H: `method` and `id` make a request, `method` alone a notification, `result`
//! a response, anything else must be an error. A member of a wrong type makes the message malformed, never another kind.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    failure::{ErrorData, Kind},
    limits, scan,
};

pub use scan::ScanError;

/// The id that answers a message whose own id could not be read.
pub const MALFORMED_ID: RequestId = RequestId::Number(-1);

/// A request's id, echoed unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum RequestId {
    /// An integer.
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

/// The W3C context of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Trace {
    /// The header of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The header of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

/// The caller's place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent<'a> {
    /// The trace, 32 hexadecimal digits.
    pub trace_id: &'a str,
    /// The caller's span, 16 of them.
    pub span_id: &'a str,
}

impl Trace {
    /// What `traceparent` says, by the rules of W3C Trace Context; `None` for one that is not valid, which is to be ignored.
    #[must_use]
    pub fn parent(&self) -> Option<TraceParent<'_>> {
        let mut parts = self.traceparent.as_deref()?.split('-');
        let mut hex = |digits: usize| {
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            parts.next().filter(|part| part.len() == digits && part.bytes().all(is_hex))
        };
        let (version, trace_id, span_id, _flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let is_zero = |id: &str| id.bytes().all(|byte| byte == b'0');
        // Later versions may have more parts; this one has not.
        let is_valid = version != "ff" && (version != "00" || parts.next().is_none());
        (is_valid && !is_zero(trace_id) && !is_zero(span_id)).then_some(TraceParent { trace_id, span_id })
    }
}

/// A message that came in; params borrow from it. Missing and null params are both `None`.
#[derive(Debug, Clone)]
pub enum Incoming<'a> {
    /// Wants an answer.
    Request {
        /// To be echoed.
        id: RequestId,
        /// The method's name.
        method: Cow<'a, str>,
        /// Its params.
        params: Option<&'a RawValue>,
        /// The caller's trace.
        trace: Option<Trace>,
    },
    /// Wants none.
    Notification {
        /// The notification's name.
        method: Cow<'a, str>,
        /// Its params.
        params: Option<&'a RawValue>,
    },
    /// An answer.
    Response {
        /// The request's.
        id: RequestId,
        /// The result, perhaps null.
        result: &'a RawValue,
    },
    /// An answer that says what went wrong.
    Error {
        /// The request's.
        id: RequestId,
        /// What went wrong.
        error: ErrorObject<'a>,
    },
}

/// The `error` member of a message that came in.
#[derive(Debug, Clone, Deserialize)]
pub struct ErrorObject<'a> {
    /// The code.
    pub code: i64,
    /// The text for people.
    #[serde(borrow)]
    pub message: Cow<'a, str>,
    /// Whatever the peer adds.
    #[serde(borrow, default)]
    pub data: Option<&'a RawValue>,
}

impl ErrorObject<'_> {
    /// The failure kind in `data`, where the peer is one of ours and the kind is known here.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        let data: ErrorData = serde_json::from_str(self.data?.get()).ok()?;
        Some(data.kind)
    }
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not UTF-8.
    #[error("the message is not UTF-8 at byte {at}")]
    Utf8 {
        /// The first byte that is not.
        at: usize,
    },
    /// Not JSON within the bounds.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A member of the envelope has a wrong type.
    #[error("the member `{member}` has a wrong type")]
    Member {
        /// Its name.
        member: &'static str,
    },
    /// Neither request nor notification nor answer.
    #[error("the message lacks the member `{member}`")]
    Missing {
        /// The name of the member without which it is nothing.
        member: &'static str,
    },
}

/// Params that do not fit their method; the text is cut where it quotes much input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ParamsError {
    text: String,
}

/// The dialect in which a message may have bytes attached.
pub const ATTACHED: &str = "attached";

/// How a message with bytes attached begins; no JSON does.
const ATTACHED_MARK: u8 = 0x80;

/// The mark, and the length of the JSON in four bytes, the lowest first.
const ATTACHED_HEAD: usize = 5;

/// Appends what comes before attached bytes: the mark, and a message, which `write` appends.
pub fn attach(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.push(ATTACHED_MARK);
    out.extend([0; ATTACHED_HEAD - 1]);
    write(out);
    let json = u32::try_from(out.len() - begin - ATTACHED_HEAD).expect("the JSON beside attached bytes is small");
    out[begin + 1..begin + ATTACHED_HEAD].copy_from_slice(&json.to_le_bytes());
}

/// Takes a message apart: its JSON, and the bytes attached to it.
#[must_use]
pub fn detach(message: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some((head, rest)) = message.split_first_chunk::<ATTACHED_HEAD>() else { return (message, None) };
    let [ATTACHED_MARK, a, b, c, d] = *head else { return (message, None) };
    // One that says more than there is has no JSON, which is what its reader will say.
    let json = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    rest.split_at_checked(json).map_or((message, None), |(json, attached)| (json, Some(attached)))
}

/// Reads one message.
pub fn decode(bytes: &[u8]) -> Result<Incoming<'_>, DecodeError> {
    // Before the pass over the whole message: what cannot be an object is refused by its first byte.
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
                Some(params) => Some(raw(params, "params")?),
            };
            let Some(id) = id else {
                return Ok(Incoming::Notification { method, params });
            };
            let id = request_id(id)?;
            let trace = part(&members.trace).map_or(Ok(None), serde_json::from_str);
            let trace = trace.map_err(|_| DecodeError::Member { member: "trace" })?;
            Ok(Incoming::Request { id, method, params, trace })
        }
        (None, Some(result)) => {
            let id = request_id(id.ok_or(DecodeError::Missing { member: "id" })?)?;
            Ok(Incoming::Response { id, result: raw(result, "result")? })
        }
        (None, None) => {
            let error = part(&members.error).ok_or(DecodeError::Missing { member: "method" })?;
            let id = request_id(id.ok_or(DecodeError::Missing { member: "id" })?)?;
            let wrong = DecodeError::Member { member: "error" };
            if !error.starts_with('{') {
                return Err(wrong);
            }
            let error = serde_json::from_str(error).map_err(|_| wrong)?;
            Ok(Incoming::Error { id, error })
        }
    }
}

/// Reads the params of a method: missing ones count as `{}`, and they are an object or null.
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

/// Appends `{"id":…,"result":`; the result follows, then [`end_result`].
pub fn begin_result(out: &mut Vec<u8>, id: &RequestId) {
    out.extend_from_slice(b"{\"id\":");
    write_json(out, id);
    out.extend_from_slice(b",\"result\":");
}

/// Appends what closes a result.
pub fn end_result(out: &mut Vec<u8>) {
    out.push(b'}');
}

/// Appends a whole answer.
pub fn encode_result<T: Serialize + ?Sized>(out: &mut Vec<u8>, id: &RequestId, result: &T) {
    begin_result(out, id);
    write_json(out, result);
    end_result(out);
}

/// Appends an error answer; `code` is [`Kind::code`] unless a rule of an older generation says otherwise.
pub fn encode_error(out: &mut Vec<u8>, id: &RequestId, code: i64, kind: Kind, message: &str) {
    #[derive(Serialize)]
    struct Wire<'a> {
        id: &'a RequestId,
        error: Body<'a>,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        code: i64,
        message: &'a str,
        data: ErrorData,
    }
    let error = Body { code, message, data: ErrorData { kind } };
    write_json(out, &Wire { id, error });
}

/// Appends a notification.
pub fn encode_notification<T: Serialize + ?Sized>(out: &mut Vec<u8>, method: &str, params: &T) {
    #[derive(Serialize)]
    struct Wire<'a, T: ?Sized> {
        method: &'a str,
        params: &'a T,
    }
    write_json(out, &Wire { method, params });
}

/// Appends a request.
pub fn encode_request<T: Serialize + ?Sized>(out: &mut Vec<u8>, id: &RequestId, method: &str, params: &T) {
    #[derive(Serialize)]
    struct Wire<'a, T: ?Sized> {
        id: &'a RequestId,
        method: &'a str,
        params: &'a T,
    }
    write_json(out, &Wire { id, method, params });
}

/// Appends any of our values as JSON.
pub(crate) fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("wire types have string keys and a vector takes every byte");
}

fn raw<'a>(text: &'a str, member: &'static str) -> Result<&'a RawValue, DecodeError> {
    serde_json::from_str(text).map_err(|_| DecodeError::Member { member })
}

fn request_id(text: &str) -> Result<RequestId, DecodeError> {
    let wrong = DecodeError::Member { member: "id" };
    match text.as_bytes().first() {
        Some(b'"') => string(text).map(|text| RequestId::Text(text.into_owned())).ok_or(wrong),
        // `-0` would come back as `0`; an id is echoed unchanged or not taken.
        _ if text == "-0" => Err(wrong),
        _ => text.parse().map(RequestId::Number).map_err(|_| wrong),
    }
}

/// The string that a JSON text is; a copy only where it has escapes.
fn string(text: &str) -> Option<Cow<'_, str>> {
    let inside = text.strip_prefix('"')?.strip_suffix('"')?;
    if inside.contains('\\') { serde_json::from_str(text).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inside)) }
}
