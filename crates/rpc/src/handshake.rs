//! The WebSocket upgrade: the key computation of both ends and the client's half of the exchange.
//!
//! Of HTTP it implements only one request head and one response head. The server's half of the exchange is in the
//! server's listener.

use std::io;

use bytes::{Buf as _, BytesMut};
use sha1::{Digest as _, Sha1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::ByteStream;

/// Largest accepted response head: 8 KiB. It is read before the peer has proved that it speaks WebSocket.
const HEAD_MAX: usize = 8 * 1024;

/// Maximum number of headers in a response. The parser rejects more.
const HEADERS_MAX: usize = 64;

/// The constant of RFC 6455 section 1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Why an upgrade failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// A part of the request contains a control character or a space that would end the part early, or the path does
    /// not start with a slash.
    #[error("host, path or header is not valid in the upgrade request: `{part}`")]
    InvalidRequest {
        /// The host, the path or the name of a header.
        part: String,
    },
    /// The stream failed, or ended before the response was complete.
    #[error("exchange the upgrade request and response")]
    Io(#[from] io::Error),
    /// The response is not HTTP, or its head is over 8 KiB or has more than 64 headers.
    #[error("response is not an HTTP/1.1 head of at most 8 KiB")]
    InvalidResponse,
    /// The server answered with a status other than 101.
    #[error("server refused the upgrade with status `{status}`")]
    Refused { status: u16 },
    /// The response has status 101, but a header of the upgrade is missing or wrong.
    #[error("upgrade header is missing or wrong: `{header}`")]
    NotUpgraded { header: &'static str },
}

/// Returns the `Sec-WebSocket-Accept` value for a `Sec-WebSocket-Key`.
pub fn accept_key(key: &str) -> String {
    let digest = Sha1::new().chain_update(key.as_bytes()).chain_update(GUID).finalize();
    base64_simd::STANDARD.encode_to_string(digest)
}

/// Upgrades a new connection to WebSocket as the client, without a timeout. Bytes read past the response head are in
/// `leftover` of the returned stream.
///
/// `headers` are added to those of the upgrade.
pub async fn connect(
    mut stream: ByteStream,
    host: &str,
    path_and_query: &str,
    headers: &[(&str, &str)],
) -> Result<ByteStream, HandshakeError> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(io::Error::from)?;
    let key = base64_simd::STANDARD.encode_to_string(nonce);
    let request = request(host, path_and_query, &key, headers)?;
    stream.writer.write_all(request.as_bytes()).await?;
    stream.writer.flush().await?;

    let mut head = std::mem::take(&mut stream.leftover);
    loop {
        if let Some(size) = check_response(&head, &accept_key(&key))? {
            head.advance(size);
            // Copy the rest, because the receiver would keep the whole allocation of the head alive.
            stream.leftover = BytesMut::from(&head[..]);
            return Ok(stream);
        }
        if head.len() >= HEAD_MAX {
            return Err(HandshakeError::InvalidResponse);
        }
        head.reserve(HEAD_MAX - head.len());
        if stream.reader.read_buf(&mut head).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

fn request(host: &str, path: &str, key: &str, headers: &[(&str, &str)]) -> Result<String, HandshakeError> {
    let plain = |text: &str| !text.bytes().any(|byte| byte.is_ascii_control());
    let one_word = |text: &str| plain(text) && !text.contains(' ');
    for (part, is_valid) in [(host, one_word(host)), (path, one_word(path) && path.starts_with('/'))] {
        if !is_valid {
            return Err(HandshakeError::InvalidRequest { part: part.escape_debug().to_string() });
        }
    }
    let mut request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    );
    for (name, value) in headers {
        if !one_word(name) || !plain(value) {
            // The value may be a secret, so the error contains only the name.
            return Err(HandshakeError::InvalidRequest { part: name.escape_debug().to_string() });
        }
        request.extend([name, ": ", value, "\r\n"]);
    }
    request.push_str("\r\n");
    Ok(request)
}

/// Returns the size of the response head once it is complete and confirms the upgrade.
fn check_response(bytes: &[u8], accept: &str) -> Result<Option<usize>, HandshakeError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let size = match response.parse(bytes) {
        Ok(httparse::Status::Complete(size)) => size,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(HandshakeError::InvalidResponse),
    };
    let status = response.code.unwrap_or_default();
    if status != 101 {
        return Err(HandshakeError::Refused { status });
    }
    let has = |name: &str, fits: &dyn Fn(&str) -> bool| {
        let mut values = response.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        values
            .any(|header| std::str::from_utf8(header.value).is_ok_and(|value| value.split(',').any(|v| fits(v.trim()))))
    };
    for (header, expected) in [("Upgrade", "websocket"), ("Connection", "upgrade")] {
        if !has(header, &|value| value.eq_ignore_ascii_case(expected)) {
            return Err(HandshakeError::NotUpgraded { header });
        }
    }
    if !has("Sec-WebSocket-Accept", &|value| value == accept) {
        return Err(HandshakeError::NotUpgraded { header: "Sec-WebSocket-Accept" });
    }
    // The request offers no extension. An active extension would change the frames.
    if has("Sec-WebSocket-Extensions", &|value| !value.is_empty()) {
        return Err(HandshakeError::NotUpgraded { header: "Sec-WebSocket-Extensions" });
    }
    Ok(Some(size))
}
