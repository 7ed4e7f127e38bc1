//! The errors of the client, distinguished by what the caller should do next.
//!
//! Every error is cheap to clone, because one broken link fails many calls. The texts say what was attempted and never contain a token.
//! Retries are decided elsewhere, by the session.

use std::{io, time::Duration};

use exec_server_protocol::{SessionId, failure};

/// The prefix of the text of every [`Error::Disconnected`]. Programs written for older clients compare it.
pub const DISCONNECTED: &str = "exec-server transport disconnected";

/// Why a call or a connection failed. Branch on `Error::kind`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program that connects to a server could not be started, or ended before it answered. Or this program cannot start local
    /// processes.
    #[error("start `{program}`: {reason}")]
    Spawn {
        /// The program that was started.
        program: String,
        /// The message of the system or of the program, with the next step if it is known.
        reason: String,
    },
    /// The server could not be reached.
    #[error("connect to {address}: {reason}")]
    Connect {
        /// The address, without a token.
        address: String,
        /// Whether another attempt can succeed.
        failure: ConnectFailure,
        /// The message of the system or of the peer.
        reason: String,
    },
    /// The server could not be reached in time.
    #[error("connect to {address}: no connection within {within:?}")]
    ConnectTimeout {
        /// The address, without a token.
        address: String,
        /// The timeout.
        within: Duration,
    },
    /// The server was reached, but did not answer `initialize` in time.
    #[error("initialize: no answer from {address} within {within:?}; is it an exec-server?")]
    InitializeTimeout {
        /// The address, without a token.
        address: String,
        /// The timeout.
        within: Duration,
    },
    /// The server rejected the token, or requires one.
    #[error("connect to {address}: token missing or rejected (401); set `--token-file` or `EXEC_SERVER_TOKEN`")]
    Unauthorized {
        /// The address, without a token.
        address: String,
    },
    /// The connection broke or was closed. The call was not sent, or repeating it is harmless.
    #[error("{DISCONNECTED}{}", reason_suffix(reason))]
    Disconnected {
        /// Why the connection broke or was closed, if known.
        reason: Option<String>,
    },
    /// The session is gone: expired, ended, or never known to this server. Its processes are gone with it. Or another client has taken the
    /// session over; its processes then run on.
    #[error("session {session_id} is lost: {reason}")]
    SessionLost {
        /// The id of the lost session.
        session_id: SessionId,
        /// The server's message, or a text of this client after a takeover.
        reason: String,
    },
    /// The connection broke during the call, or the answer did not arrive within [`Builder::call_timeout`](crate::Builder::call_timeout).
    /// The call may or may not have taken effect.
    #[error("{method}: no answer arrived, the outcome is unknown{}", reason_suffix(reason))]
    UnknownOutcome {
        /// The method that was called.
        method: &'static str,
        /// Why the connection broke, if known, or the timeout.
        reason: Option<String>,
    },
    /// The server refused a write to a process and accepted a later one, so the input has a hole. No further writes are sent.
    #[error("an earlier write to the process was refused and its bytes are missing: {reason}")]
    InputBroken {
        /// The server's answer to the refused write.
        reason: String,
    },
    /// The server's answer does not match the method's result type.
    #[error("{method}: the answer cannot be read: {reason}")]
    Decode {
        /// The method or notification.
        method: String,
        /// The decode error.
        reason: String,
    },
    /// A peer violated the protocol, or the server does not support the request.
    #[error("{0}")]
    Protocol(String),
    /// The server answered with an error.
    #[error("{message}")]
    Server {
        /// The JSON-RPC error code.
        code: i64,
        /// The stable failure kind to branch on, if the server sends one that this client knows.
        kind: Option<failure::Kind>,
        /// The text for people.
        message: String,
    },
}

/// Whether another attempt to connect can succeed; see [`Error::Connect`].
///
/// It applies to first connections only. An established session retries after each of these failures until its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// A retry cannot help: the address, the token or the certificates must be changed first.
    Permanent,
    /// Nothing is listening, or the peer closes the connection at once. A server that is just starting looks like this.
    NotListening,
    /// The host is unknown or cannot be reached.
    Unreachable,
    /// The server, or a proxy in front of it, reports that it cannot serve now.
    Busy,
}

/// The kind of an [`Error`], to branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// See [`Error::Spawn`].
    Spawn,
    /// See [`Error::Connect`].
    Connect,
    /// See [`Error::ConnectTimeout`].
    ConnectTimeout,
    /// See [`Error::InitializeTimeout`].
    InitializeTimeout,
    /// See [`Error::Unauthorized`].
    Unauthorized,
    /// See [`Error::Disconnected`].
    Disconnected,
    /// See [`Error::SessionLost`].
    SessionLost,
    /// See [`Error::UnknownOutcome`].
    UnknownOutcome,
    /// See [`Error::InputBroken`].
    InputBroken,
    /// See [`Error::Decode`].
    Decode,
    /// See [`Error::Protocol`].
    Protocol,
    /// See [`Error::Server`].
    Server,
}

impl Error {
    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Spawn { .. } => ErrorKind::Spawn,
            Self::Connect { .. } => ErrorKind::Connect,
            Self::ConnectTimeout { .. } => ErrorKind::ConnectTimeout,
            Self::InitializeTimeout { .. } => ErrorKind::InitializeTimeout,
            Self::Unauthorized { .. } => ErrorKind::Unauthorized,
            Self::Disconnected { .. } => ErrorKind::Disconnected,
            Self::SessionLost { .. } => ErrorKind::SessionLost,
            Self::UnknownOutcome { .. } => ErrorKind::UnknownOutcome,
            Self::InputBroken { .. } => ErrorKind::InputBroken,
            Self::Decode { .. } => ErrorKind::Decode,
            Self::Protocol(_) => ErrorKind::Protocol,
            Self::Server { .. } => ErrorKind::Server,
        }
    }

    /// The server's stable failure kind, if the server reported this error.
    #[must_use]
    pub fn server_kind(&self) -> Option<failure::Kind> {
        match self {
            Self::Server { kind, .. } => *kind,
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::ConnectTimeout { .. } | Error::InitializeTimeout { .. } => io::ErrorKind::TimedOut,
            Error::Unauthorized { .. } => io::ErrorKind::PermissionDenied,
            Error::Disconnected { .. } | Error::SessionLost { .. } | Error::UnknownOutcome { .. } => {
                io::ErrorKind::BrokenPipe
            }
            Error::InputBroken { .. } | Error::Decode { .. } | Error::Protocol(_) => io::ErrorKind::InvalidData,
            Error::Spawn { .. } | Error::Connect { .. } | Error::Server { .. } => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// The reason after a colon; empty if there is none.
fn reason_suffix(reason: &Option<String>) -> String {
    reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// Formats an error and its sources in one line: first the attempted operation, then the causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
