//! What can go wrong between a caller and a server, told apart by what the caller should do next.
//!
//! Every error is cheap to clone, because one broken link ends many calls. Texts say what was tried; they never repeat a
//! token. It must not decide what is retried: that is the session's business.

use std::{fmt, io, time::Duration};

use exec_server_protocol::{SessionId, failure};

/// The prefix of every text about a broken connection; peers of older generations compare it.
pub const DISCONNECTED: &str = "exec-server transport disconnected";

/// Why a call or a connection failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program that speaks for a server could not be started, or ended before it answered.
    #[error("start `{program}`: {reason}")]
    Spawn {
        /// What was started.
        program: String,
        /// What the system, or the program, said; with the next step where we know one.
        reason: String,
    },
    /// The server could not be reached.
    #[error("connect to {address}: {reason}")]
    Connect {
        /// Where, without any token.
        address: String,
        /// What another attempt could change.
        failure: ConnectFailure,
        /// What the system or the other side said.
        reason: String,
    },
    /// The server was not reached in time.
    #[error("connect to {address}: no connection within {within:?}")]
    ConnectTimeout {
        /// Where, without any token.
        address: String,
        /// The time that was given.
        within: Duration,
    },
    /// The server was reached, but did not answer `initialize` in time.
    #[error("initialize: no answer from {address} within {within:?}; is it an exec-server?")]
    InitializeTimeout {
        /// Where, without any token.
        address: String,
        /// The time that was given.
        within: Duration,
    },
    /// The server does not let us in.
    #[error("connect to {address}: token missing or rejected (401); set `--token-file` or `EXEC_SERVER_TOKEN`")]
    Unauthorized {
        /// Where, without any token.
        address: String,
    },
    /// The connection broke, and the call had no effect that could be in doubt, or none that matters.
    #[error("{DISCONNECTED}{}", Reason(reason))]
    Disconnected {
        /// Why, where it is known.
        reason: Option<String>,
    },
    /// The session is gone: expired, ended, or never known to this server. Its processes are gone with it.
    #[error("session {session_id} is lost: {reason}")]
    SessionLost {
        /// The session.
        session_id: SessionId,
        /// What the server said.
        reason: String,
    },
    /// The connection broke while the call was under way: it may or may not have had its effect.
    #[error("{method}: the connection broke before the answer, the outcome is unknown{}", Reason(reason))]
    UnknownOutcome {
        /// The method.
        method: &'static str,
        /// Why the connection broke.
        reason: Option<String>,
    },
    /// A write to a process did not go in and one behind it did, so its input has a hole: nothing more is written to it.
    #[error("an earlier write to the process was refused and its bytes are missing: {reason}")]
    InputBroken {
        /// What the server said to the write that is missing.
        reason: String,
    },
    /// The server's answer does not have the shape that the method promises.
    #[error("{method}: the answer cannot be read: {reason}")]
    Decode {
        /// The method or notification.
        method: String,
        /// What is wrong with it.
        reason: String,
    },
    /// One side broke a rule of the protocol, or the server cannot do what was asked.
    #[error("{0}")]
    Protocol(String),
    /// The server answered with an error.
    #[error("{message}")]
    Server {
        /// The code.
        code: i64,
        /// The stable word, where the server has it and we know it.
        kind: Option<failure::Kind>,
        /// The text for people.
        message: String,
    },
}

/// What another attempt to connect could change; see [`Error::Connect`].
///
/// It decides about first connections only. A session that was established retries all of them until its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// Nothing: the address, the token or the certificates must be changed first.
    Permanent,
    /// Nothing listens there, or it hangs up at once. A server that is just starting looks like this.
    NotListening,
    /// The host is unknown or cannot be reached.
    Unreachable,
    /// The server, or a proxy in front of it, says that it cannot serve now.
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

    /// The server's stable word for it, where it is the server's error.
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

/// A reason behind a colon, or nothing.
struct Reason<'a>(&'a Option<String>);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// A chain of errors in one line: what was tried, then why.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
