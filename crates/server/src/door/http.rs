//! As much HTTP/1.1 as a door needs: one request head in, one answer out, then close or upgrade.
//! Must not decide anything about a request.

use std::{borrow::Cow, fmt::Write as _, io, time::Duration};

use bytes::BytesMut;
use httparse::{Header, Status};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time,
};

use super::check::Verdict;

/// A request head; more is refused with 431.
const HEAD_MAX_BYTES: usize = 8 << 10;

/// Headers of a request; browsers send about twenty.
const HEADERS_MAX: usize = 64;

/// How long a refused peer may take to read its answer before the socket is closed under it.
const LINGER: Duration = Duration::from_secs(1);

/// A request as far as the door looks at it.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    /// As sent; the token may be in it.
    pub(super) target: &'a str,
    /// 0 or 1, of HTTP/1.x.
    pub(super) minor_version: u8,
    pub(super) headers: &'a [Header<'a>],
}

/// Why there is no request.
pub(super) enum HeadFailure {
    /// The peer left or the socket failed: nobody to answer.
    Gone,
    /// Not HTTP/1.x.
    Malformed,
    /// More than the bound.
    TooLarge,
}

/// An answer that ends the exchange.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    status: u16,
    reason: &'static str,
    /// Whole header lines besides those that every answer has.
    headers: String,
    body: Cow<'static, str>,
    content_type: &'static str,
}

impl<'a> Request<'a> {
    /// All values of a header, in order.
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }

    /// Whether a comma-separated header has an element, whatever its case.
    pub(super) fn has_element(&self, name: &str, element: &str) -> bool {
        self.values(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(element.as_bytes()))
    }

    /// The path, without the query.
    pub(super) fn path(&self) -> &'a str {
        self.target.split_once('?').map_or(self.target, |(path, _)| path)
    }

    /// The query, empty when there is none.
    pub(super) fn query(&self) -> &'a str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }
}

impl HeadFailure {
    /// What to answer; `None` when nobody is there.
    pub(super) fn response(&self) -> Option<Response> {
        match self {
            Self::Gone => None,
            Self::Malformed => Some(Response::bad_request()),
            Self::TooLarge => Some(Response::plain(431, "Request Header Fields Too Large")),
        }
    }
}

impl Response {
    pub(super) fn ok() -> Self {
        Self { body: Cow::Borrowed("ok"), ..Self::plain(200, "OK") }
    }

    /// The page of metrics; nobody on the way keeps it.
    pub(super) fn metrics(page: String) -> Self {
        let headers = "Cache-Control: no-store\r\n".to_owned();
        let content_type = "text/plain; version=0.0.4; charset=utf-8";
        Self { body: Cow::Owned(page), headers, content_type, ..Self::plain(200, "OK") }
    }

    pub(super) fn bad_request() -> Self {
        Self::plain(400, "Bad Request")
    }

    /// Says nothing about what was wrong: not whether a token was there, not whether it was close.
    pub(super) fn unauthorized() -> Self {
        Self { headers: "WWW-Authenticate: Bearer\r\n".to_owned(), ..Self::plain(401, "Unauthorized") }
    }

    pub(super) fn forbidden() -> Self {
        Self::plain(403, "Forbidden")
    }

    pub(super) fn not_found() -> Self {
        Self::plain(404, "Not Found")
    }

    pub(super) fn method_not_allowed(allow: &str) -> Self {
        Self { headers: format!("Allow: {allow}\r\n"), ..Self::plain(405, "Method Not Allowed") }
    }

    pub(super) fn upgrade_required() -> Self {
        let headers = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n".to_owned();
        Self { headers, ..Self::plain(426, "Upgrade Required") }
    }

    pub(super) fn busy() -> Self {
        Self { headers: "Retry-After: 1\r\n".to_owned(), ..Self::plain(503, "Service Unavailable") }
    }

    /// As a refusal, for those who were refused too often.
    pub(super) fn too_many(again_in: Duration) -> Self {
        let seconds = again_in.as_millis().div_ceil(1000);
        Self { headers: format!("Retry-After: {seconds}\r\n"), ..Self::plain(429, "Too Many Requests") }
    }

    /// Whether it was the peer's fault that it does not come in.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.status, 400 | 401 | 403 | 431)
    }

    pub(super) fn switching(accept: &str) -> Self {
        let headers = format!("Upgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n");
        Self { headers, ..Self::plain(101, "Switching Protocols") }
    }

    /// As the answer to HEAD.
    pub(super) fn without_body(self) -> Self {
        Self { body: Cow::Borrowed(""), ..self }
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { status, reason, headers, body, content_type } = self;
        let mut text = format!("HTTP/1.1 {status} {reason}\r\n{headers}");
        if *status == 101 {
            text.push_str("Connection: Upgrade\r\n");
        } else {
            // Writing to a string does not fail.
            write!(text, "Connection: close\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n", body.len())
                .ok();
        }
        text.push_str("\r\n");
        text.push_str(body);
        text.into_bytes()
    }

    fn plain(status: u16, reason: &'static str) -> Self {
        Self { status, reason, headers: String::new(), body: Cow::Borrowed(""), content_type: "text/plain" }
    }
}

/// Reads until a whole head is in `buf` and returns its size.
pub(super) async fn read_head(socket: &mut (impl AsyncRead + Unpin), buf: &mut BytesMut) -> Result<usize, HeadFailure> {
    buf.reserve(1 << 10);
    loop {
        let room = HEAD_MAX_BYTES - buf.len();
        if room == 0 {
            return Err(HeadFailure::TooLarge);
        }
        let before = buf.len();
        // Never past the bound, so that what follows a head is bounded too.
        match socket.take(room as u64).read_buf(buf).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Err(HeadFailure::Gone),
        }
        // A head ends with a line: without a new one there is nothing to parse again.
        if buf[before..].contains(&b'\n')
            && let Some(size) = head_size(buf)?
        {
            return Ok(size);
        }
    }
}

/// Parses a whole head and judges it.
pub(super) fn with_request(head: &[u8], judge: impl FnOnce(&Request<'_>) -> Verdict) -> Verdict {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let complete = matches!(parsed.parse(head), Ok(Status::Complete(_)));
    let (true, Some(method), Some(target), Some(minor_version)) =
        (complete, parsed.method, parsed.path, parsed.version)
    else {
        return Verdict::Answer(Response::bad_request());
    };
    judge(&Request { method, target, minor_version, headers: parsed.headers })
}

/// Writes an answer and closes in a way that lets the peer read it.
pub(super) async fn answer_and_close(socket: &mut (impl AsyncRead + AsyncWrite + Unpin), response: &Response) {
    let answered: io::Result<()> = async {
        socket.write_all(&response.encode()).await?;
        // Under TLS this also flushes.
        socket.shutdown().await
    }
    .await;
    if answered.is_err() {
        return;
    }
    // Closing with unread input would reset the connection and take the answer away from the peer again.
    let mut sink = [0; 1 << 10];
    let drained = async {
        for _ in 0..64 {
            match socket.read(&mut sink).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
    };
    // Elapsed or done: closed in any case.
    time::timeout(LINGER, drained).await.ok();
}

fn head_size(buf: &[u8]) -> Result<Option<usize>, HeadFailure> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    match httparse::Request::new(&mut headers).parse(buf) {
        Ok(Status::Complete(size)) => Ok(Some(size)),
        Ok(Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(HeadFailure::TooLarge),
        Err(_) => Err(HeadFailure::Malformed),
    }
}
