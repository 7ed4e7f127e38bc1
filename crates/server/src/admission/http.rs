//! The part of HTTP/1.1 that admission needs: read one request head, write one response, then close or upgrade. `check`
//! decides what the response is.

use std::{borrow::Cow, fmt::Write as _, io, time::Duration};

use bytes::BytesMut;
use httparse::{Header, Status};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time,
};

use super::check::RequestVerdict;

/// Largest request head. A larger one is answered with 431.
const HEAD_MAX_BYTES: usize = 8 << 10;

/// Most headers in a request. Browsers send about twenty.
const HEADERS_MAX: usize = 64;

/// How long to wait for a peer to read its response before the socket is closed.
const LINGER: Duration = Duration::from_secs(1);

/// The parts of a request that admission looks at.
pub(super) struct HttpRequest<'a> {
    pub(super) method: &'a str,
    /// As sent. May contain the token, so never log it.
    pub(super) target: &'a str,
    /// The x of HTTP/1.x: 0 or 1.
    pub(super) minor_version: u8,
    pub(super) headers: &'a [Header<'a>],
}

/// A response after which the connection is closed (101: upgraded).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpResponse {
    status: u16,
    reason: &'static str,
    /// Complete header lines, in addition to those that every response has.
    headers: Cow<'static, str>,
    body: Cow<'static, str>,
    content_type: &'static str,
}

impl<'a> HttpRequest<'a> {
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }

    /// Whether a comma-separated header has an element, ignoring case.
    pub(super) fn has_element(&self, name: &str, element: &str) -> bool {
        self.values(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(element.as_bytes()))
    }

    pub(super) fn path(&self) -> &'a str {
        self.target.split_once('?').map_or(self.target, |(path, _)| path)
    }

    /// The query, or an empty string.
    pub(super) fn query(&self) -> &'a str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }
}

impl HttpResponse {
    pub(super) const BAD_REQUEST: Self = Self::fixed(400, "Bad Request", "");
    /// Does not reveal what was wrong: whether there was a token, or how close it was.
    pub(super) const UNAUTHORIZED: Self = Self::fixed(401, "Unauthorized", "WWW-Authenticate: Bearer\r\n");
    pub(super) const FORBIDDEN: Self = Self::fixed(403, "Forbidden", "");
    pub(super) const NOT_FOUND: Self = Self::fixed(404, "Not Found", "");
    pub(super) const UPGRADE_REQUIRED: Self =
        Self::fixed(426, "Upgrade Required", "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n");
    const TOO_LARGE: Self = Self::fixed(431, "Request Header Fields Too Large", "");
    pub(super) const BUSY: Self = Self::fixed(503, "Service Unavailable", "Retry-After: 1\r\n");

    pub(super) fn ok() -> Self {
        Self { body: Cow::Borrowed("ok"), ..Self::fixed(200, "OK", "") }
    }

    /// The metrics page, not to be cached.
    pub(super) fn metrics(page: String) -> Self {
        let content_type = "text/plain; version=0.0.4; charset=utf-8";
        Self { body: Cow::Owned(page), content_type, ..Self::fixed(200, "OK", "Cache-Control: no-store\r\n") }
    }

    pub(super) fn method_not_allowed(allow: &str) -> Self {
        Self { headers: format!("Allow: {allow}\r\n").into(), ..Self::fixed(405, "Method Not Allowed", "") }
    }

    /// Replaces the response for a source that was refused too often.
    pub(super) fn too_many(again_in: Duration) -> Self {
        let seconds = again_in.as_millis().div_ceil(1000);
        Self { headers: format!("Retry-After: {seconds}\r\n").into(), ..Self::fixed(429, "Too Many Requests", "") }
    }

    /// Whether the refusal is the client's fault and counts against its source.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.status, 400 | 401 | 403 | 431)
    }

    pub(super) fn switching(accept: &str) -> Self {
        let headers = format!("Upgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n");
        Self { headers: headers.into(), ..Self::fixed(101, "Switching Protocols", "") }
    }

    /// The response to HEAD.
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
            // Writing to a `String` does not fail.
            write!(text, "Connection: close\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n", body.len())
                .ok();
        }
        text.push_str("\r\n");
        text.push_str(body);
        text.into_bytes()
    }

    const fn fixed(status: u16, reason: &'static str, headers: &'static str) -> Self {
        let headers = Cow::Borrowed(headers);
        Self { status, reason, headers, body: Cow::Borrowed(""), content_type: "text/plain" }
    }
}

/// Reads until `buf` contains a whole head and returns the head's size. Otherwise returns the response to send, or
/// `None` if the peer closed the connection or the socket failed: then no response is possible.
pub(super) async fn read_head(
    socket: &mut (impl AsyncRead + Unpin),
    buf: &mut BytesMut,
) -> Result<usize, Option<HttpResponse>> {
    buf.reserve(1 << 10);
    loop {
        let room = HEAD_MAX_BYTES - buf.len();
        if room == 0 {
            return Err(Some(HttpResponse::TOO_LARGE));
        }
        let before = buf.len();
        // Never read past the bound, so that the bytes after the head are bounded too.
        match socket.take(room as u64).read_buf(buf).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Err(None),
        }
        // A head ends with a newline. Without a new one, parsing again is useless.
        if buf[before..].contains(&b'\n')
            && let Some(size) = head_size(buf)?
        {
            return Ok(size);
        }
    }
}

/// Parses a whole head and passes the request to `decide`.
pub(super) fn with_request(head: &[u8], decide: impl FnOnce(&HttpRequest<'_>) -> RequestVerdict) -> RequestVerdict {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let complete = matches!(parsed.parse(head), Ok(Status::Complete(_)));
    let (true, Some(method), Some(target), Some(minor_version)) =
        (complete, parsed.method, parsed.path, parsed.version)
    else {
        return RequestVerdict::Answer(HttpResponse::BAD_REQUEST);
    };
    decide(&HttpRequest { method, target, minor_version, headers: parsed.headers })
}

/// Sends a response, and reads what the peer still sends, so that the socket can be closed without losing the response.
pub(super) async fn answer_and_close(socket: &mut (impl AsyncRead + AsyncWrite + Unpin), response: &HttpResponse) {
    let answered: io::Result<()> = async {
        socket.write_all(&response.encode()).await?;
        // With TLS, this also flushes.
        socket.shutdown().await
    }
    .await;
    if answered.is_err() {
        return;
    }
    // Closing a socket with unread input sends a RST, and the peer may lose the response. So read the rest first, at
    // most 64 KiB of it.
    let mut sink = [0; 1 << 10];
    let drained = async {
        for _ in 0..64 {
            match socket.read(&mut sink).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
    };
    // Done or timed out: the socket is closed in both cases.
    time::timeout(LINGER, drained).await.ok();
}

fn head_size(buf: &[u8]) -> Result<Option<usize>, HttpResponse> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    match httparse::Request::new(&mut headers).parse(buf) {
        Ok(Status::Complete(size)) => Ok(Some(size)),
        Ok(Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(HttpResponse::TOO_LARGE),
        Err(_) => Err(HttpResponse::BAD_REQUEST),
    }
}
