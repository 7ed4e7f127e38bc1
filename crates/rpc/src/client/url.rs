//! Opens the URL of a server: `ws://host:port/path?query` or `unix:///path?query`.
//!
//! Knows addresses and the upgrade, not what the query says. Errors never repeat the URL: its query holds the token.

use std::{ffi::OsString, io, os::unix::ffi::OsStringExt as _};

use tokio::net::{TcpStream, UnixStream};

use crate::{
    Framing, Role, Stream,
    handshake::{self, HandshakeError},
};

/// Why a server could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL has another form than `ws://host:port/` or `unix:///path`.
    #[error("url is not understood: {what}")]
    InvalidUrl {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The address does not answer.
    #[error("connect to `{address}`")]
    Unreachable {
        /// Host and port, or the socket's path.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The server does not speak WebSocket to us.
    #[error("upgrade the connection")]
    Handshake(#[from] HandshakeError),
}

/// Connects and upgrades; inbound messages may have `max` bytes. Has no deadline of its own.
///
/// In a `unix:` path `%XX` stands for a byte, so that a path may hold a question mark.
pub async fn open(url: &str, max: usize) -> Result<(Stream, Framing), ConnectError> {
    let url = url.split_once('#').map_or(url, |(url, _)| url);
    let framing = Framing::WebSocket { role: Role::Client, max };
    if let Some(rest) = url.strip_prefix("ws://") {
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = split_authority(authority)?;
        let socket = TcpStream::connect((host, port))
            .await
            .map_err(|source| ConnectError::Unreachable { address: authority.to_owned(), source })?;
        return Ok((handshake::connect(socket.into(), authority, &origin_form(target), &[]).await?, framing));
    }
    if let Some(rest) = url.strip_prefix("unix://") {
        let (path, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        if !path.starts_with('/') {
            return Err(ConnectError::InvalidUrl { what: "path of the socket is not absolute" });
        }
        let path = OsString::from_vec(percent_decode(path)?);
        let socket = UnixStream::connect(&path)
            .await
            .map_err(|source| ConnectError::Unreachable { address: path.to_string_lossy().into_owned(), source })?;
        return Ok((handshake::connect(socket.into(), "localhost", &origin_form(query), &[]).await?, framing));
    }
    Err(ConnectError::InvalidUrl { what: "scheme is neither `ws` nor `unix`" })
}

/// Splits `host:port`; an IPv6 address stands in brackets and the port is 80 if absent.
fn split_authority(authority: &str) -> Result<(&str, u16), ConnectError> {
    if authority.contains('@') {
        return Err(ConnectError::InvalidUrl { what: "user in the authority" });
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or(ConnectError::InvalidUrl { what: "bracket is not closed" })?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if host.is_empty() {
        return Err(ConnectError::InvalidUrl { what: "host is empty" });
    }
    match port.strip_prefix(':') {
        Some(port) => match port.parse() {
            Ok(port) => Ok((host, port)),
            Err(_) => Err(ConnectError::InvalidUrl { what: "port is not a number below 65536" }),
        },
        None if port.is_empty() => Ok((host, 80)),
        None => Err(ConnectError::InvalidUrl { what: "text after the bracket" }),
    }
}

/// Makes the target of a request line: it always starts with a slash.
fn origin_form(target: &str) -> String {
    if target.starts_with('/') { target.to_owned() } else { format!("/{target}") }
}

fn percent_decode(text: &str) -> Result<Vec<u8>, ConnectError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(ConnectError::InvalidUrl { what: "`%` without two hexadecimal digits" });
        };
        bytes.push((high * 16 + low) as u8);
        rest = &tail[2..];
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_give_host_and_port() {
        for (authority, expected) in [
            ("127.0.0.1:8080", Some(("127.0.0.1", 8080))),
            ("example.org", Some(("example.org", 80))),
            ("[::1]:9", Some(("::1", 9))),
            ("[::1]", Some(("::1", 80))),
            ("", None),
            (":80", None),
            ("host:", None),
            ("host:65536", None),
            ("[::1", None),
            ("[::1]9", None),
            ("user@host:1", None),
        ] {
            assert_eq!(split_authority(authority).ok(), expected, "{authority}");
        }
    }

    #[test]
    fn percent_escapes_stand_for_bytes() {
        assert_eq!(percent_decode("/a%3Fb%ff").unwrap(), b"/a?b\xff");
        assert!(percent_decode("/a%3").is_err());
        assert!(percent_decode("/a%zz").is_err());
    }

    #[tokio::test]
    async fn urls_of_other_forms_are_refused_without_repeating_the_token() {
        for url in ["http://h/?token=secret", "unix://relative?token=secret", "ws://:1/?token=secret"] {
            let error = open(url, 1024).await.unwrap_err();
            assert!(matches!(error, ConnectError::InvalidUrl { .. }), "{url}");
            assert!(!format!("{error:?} {error}").contains("secret"));
        }
    }
}
