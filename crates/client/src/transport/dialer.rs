//! Connects to a [`Target`], and explains each failure together with what to do about it.
//!
//! A failure on which a caller can act has its own error variant; all others are texts. No error contains a token.

use std::{io, path::Path, time::Duration};

use exec_server_protocol::limits;
use exec_server_rpc::{
    ByteStream, Framing, WebSocketRole,
    handshake::{self, HandshakeError},
};
use tokio::net::lookup_host;
use zeroize::Zeroizing;

use super::{
    BoxFuture, Connect, Connection, net,
    target::{Target, TargetError, Transport, UnixSocket, WebSocket},
    tls::{self, Tls},
    token::Token,
};
use crate::error::{
    ConnectFailure::{self, Busy, NotListening, Permanent, Unreachable},
    Error, chain,
};

/// Opens connections to a [`Target`].
#[derive(Debug, Clone)]
pub struct Dialer {
    /// The server to connect to.
    pub target: Target,
    /// The token for the server. It overrides the token of the target. Programs, including ssh, do not get a token.
    pub token: Option<Token>,
    /// TLS settings for `wss://`.
    pub tls: Tls,
    /// Allows sending the token to a `ws://` server beyond loopback, where it can be read on the network.
    pub insecure_plaintext: bool,
}

impl Dialer {
    /// Creates a dialer that uses the token of the target and trusts the system's certificate authorities.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self { target, token: None, tls: Tls::default(), insecure_plaintext: false }
    }

    async fn web_socket(&self, socket: &WebSocket) -> Result<Connection, Error> {
        let host = &socket.host;
        let resolved = lookup_host((host.as_str(), socket.port)).await;
        let unknown = |error| self.failed(Unreachable, format!("host `{host}` is not found; check the name ({error})"));
        let mut addresses: Vec<_> = resolved.map_err(unknown)?.collect();
        let has_token = self.token.as_ref().or(self.target.token()).is_some();
        if !socket.is_tls && has_token && !self.insecure_plaintext {
            let is_resolved = !addresses.is_empty();
            // Check this before connecting, so that no connection to another machine is opened.
            addresses.retain(|address| address.ip().to_canonical().is_loopback());
            if is_resolved && addresses.is_empty() {
                // A `TargetError` is permanent, so the client does not retry.
                return Err(TargetError::new(
                    "the server is not on this machine, and `ws://` sends the token unencrypted; use `wss://` or \
                     `ssh://`, or allow it with `--insecure-plaintext`",
                )
                .into());
            }
        }
        let tcp = net::tcp(addresses).await.map_err(|error| self.unreachable(&error))?;
        let mut stream = ByteStream::from(tcp);
        if socket.is_tls {
            let secured = tls::secure(&self.tls, stream, host).await;
            stream = secured.map_err(|error| self.failed(error.failure(), chain(&error)))?;
        }
        self.upgrade(stream, &socket.authority, &socket.path_and_query).await
    }

    async fn unix_socket(&self, socket: &UnixSocket) -> Result<Connection, Error> {
        let stream = net::unix(&socket.path).await.map_err(|error| self.no_socket(&socket.path, &error))?;
        self.upgrade(stream.into(), "localhost", &socket.path_and_query).await
    }

    async fn upgrade(&self, stream: ByteStream, host: &str, path_and_query: &str) -> Result<Connection, Error> {
        let token = self.token.as_ref().or(self.target.token());
        let bearer = token.map(|token| Zeroizing::new(["Bearer ", token.reveal()].concat()));
        let headers: Vec<(&str, &str)> = bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
        let upgraded = handshake::connect(stream, host, path_and_query, &headers).await;
        let stream = upgraded.map_err(|error| self.not_upgraded(error))?;
        let framing = Framing::WebSocket { role: WebSocketRole::Client, max: limits::MESSAGE_BYTES };
        Ok(Connection { stream, framing, carrier: None })
    }

    fn failed(&self, failure: ConnectFailure, reason: impl Into<String>) -> Error {
        Error::Connect { address: self.address(), failure, reason: reason.into() }
    }

    fn unreachable(&self, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                self.failed(NotListening, "connection refused; is the server running, and is this its port?")
            }
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                self.failed(Unreachable, format!("{error}; is the machine up, and does a firewall let us through?"))
            }
            _ => self.failed(Unreachable, error.to_string()),
        }
    }

    fn no_socket(&self, path: &Path, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::NotFound => {
                let reason = format!("there is no socket `{}`; is the server running?", path.display());
                self.failed(NotListening, reason)
            }
            io::ErrorKind::ConnectionRefused => {
                self.failed(NotListening, "nothing is listening on this socket; is the server running?")
            }
            io::ErrorKind::PermissionDenied => {
                self.failed(Permanent, "permission denied; is it the server of another user?")
            }
            _ => self.failed(Permanent, error.to_string()),
        }
    }

    fn not_upgraded(&self, error: HandshakeError) -> Error {
        const IS_IT: &str = "is it an exec-server?";
        let is_tcp = matches!(self.target.transport, Transport::WebSocket(_));
        let failure = match &error {
            HandshakeError::Refused { status: 502..=504 } => Busy,
            HandshakeError::Io(error) if tls::refusal(error).is_none() => NotListening,
            _ => Permanent,
        };
        self.failed(failure, match error {
            HandshakeError::Refused { status: 401 } => return Error::Unauthorized { address: self.address() },
            HandshakeError::Refused { status: 403 } if is_tcp => {
                "answered HTTP 403: the server does not accept this host name; use its IP address, or allow the name \
                 there with `--allow-host`"
                    .to_owned()
            }
            HandshakeError::Refused { status: 403 } => "answered HTTP 403: the server belongs to another user".to_owned(),
            HandshakeError::Refused { status: status @ (301 | 302 | 303 | 307 | 308) } => {
                format!("answered HTTP {status}, which points elsewhere; give the final address")
            }
            HandshakeError::Refused { status: status @ (502 | 504) } => {
                format!("answered HTTP {status}: a proxy that has no server behind it")
            }
            HandshakeError::Refused { status: 503 } => "answered HTTP 503: it is busy, or shutting down".to_owned(),
            HandshakeError::Refused { status } => format!("answered HTTP {status}; {IS_IT}"),
            HandshakeError::InvalidResponse => {
                format!("the answer is not HTTP; {IS_IT} A TLS server needs `wss://`")
            }
            HandshakeError::NotUpgraded { header } => format!("the answer has a wrong or no `{header}`; {IS_IT}"),
            HandshakeError::Io(error) => match (tls::refusal(&error), error.kind()) {
                (Some(reason), _) => reason,
                (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
                    format!("it hung up on the upgrade to WebSocket; {IS_IT}")
                }
                (None, _) => error.to_string(),
            },
            error @ HandshakeError::InvalidRequest { .. } => chain(&error),
        })
    }
}

impl Connect for Dialer {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>> {
        match &self.target.transport {
            Transport::WebSocket(socket) => Box::pin(self.web_socket(socket)),
            Transport::Unix(socket) => Box::pin(self.unix_socket(socket)),
            Transport::Stdio(launch) => launch.connect(),
            Transport::Ssh(ssh) => ssh.connect(),
        }
    }

    fn address(&self) -> String {
        self.target.to_string()
    }

    fn patience(&self) -> Duration {
        if let Transport::Ssh(ssh) = &self.target.transport { ssh.patience() } else { Duration::ZERO }
    }
}
