//! Opens the URL of a server: `ws://host:port/path?query` or `unix:///path?query`.
//!
//! The query is passed on unchanged. Errors never contain the URL, because its query holds the token.

use std::{ffi::OsString, io, os::unix::ffi::OsStringExt as _};

use tokio::net::{TcpStream, UnixStream};

use crate::{
    ByteStream, Framing, WebSocketRole,
    handshake::{self, HandshakeError},
    url::{self, InvalidUrl},
};

/// Why a server could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL is not of the form `ws://host:port/` or `unix:///path`.
    #[error("url is not understood: {what}")]
    InvalidUrl { what: &'static str },
    #[error("connect to `{address}`")]
    Unreachable {
        /// Host and port, or the path of the socket.
        address: String,
        source: io::Error,
    },
    /// The WebSocket upgrade failed.
    #[error("upgrade the connection")]
    Handshake(#[from] HandshakeError),
}

/// Connects and upgrades, without a timeout. `max` is the largest inbound message in bytes.
///
/// In a `unix:` path, `%XX` stands for one byte, so that a path can contain a question mark.
pub async fn open(url: &str, max: usize) -> Result<(ByteStream, Framing), ConnectError> {
    let url = url.split_once('#').map_or(url, |(url, _)| url);
    let framing = Framing::WebSocket { role: WebSocketRole::Client, max };
    if let Some(rest) = url.strip_prefix("ws://") {
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = url::split_authority(authority, 80)?;
        let socket = TcpStream::connect((host, port))
            .await
            .map_err(|source| ConnectError::Unreachable { address: authority.to_owned(), source })?;
        return Ok((handshake::connect(socket.into(), authority, &url::origin_form(target), &[]).await?, framing));
    }
    if let Some(rest) = url.strip_prefix("unix://") {
        let (path, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        if !path.starts_with('/') {
            return Err(ConnectError::InvalidUrl { what: "path of the socket is not absolute" });
        }
        let path = OsString::from_vec(url::percent_decode(path)?);
        let socket = UnixStream::connect(&path)
            .await
            .map_err(|source| ConnectError::Unreachable { address: path.to_string_lossy().into_owned(), source })?;
        return Ok((handshake::connect(socket.into(), "localhost", &url::origin_form(query), &[]).await?, framing));
    }
    Err(ConnectError::InvalidUrl { what: "scheme is neither `ws` nor `unix`" })
}

impl From<InvalidUrl> for ConnectError {
    fn from(InvalidUrl { what }: InvalidUrl) -> Self {
        Self::InvalidUrl { what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn urls_of_other_forms_are_refused_without_repeating_the_token() {
        for url in ["http://h/?token=secret", "unix://relative?token=secret", "ws://:1/?token=secret"] {
            let error = open(url, 1024).await.unwrap_err();
            assert!(matches!(error, ConnectError::InvalidUrl { .. }), "{url}");
            assert!(!format!("{error:?} {error}").contains("secret"));
        }
    }
}
