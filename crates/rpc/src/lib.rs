//! Moves messages between two peers and knows no method.
//!
//! Owns the byte level: streams ([`Stream`]), framing in both directions ([`Receiver`], [`Outbox`]), the client half of
//! the WebSocket upgrade ([`handshake`]), the parts of a URL ([`url`]), calls that wait for an answer ([`calls`]), buffers
//! for large messages ([`pool`]) and a minimal client ([`client`]).
//! It must not know what a message means: no method, no session, no process.

use std::{fmt, io};

mod frame;
mod outbox;
mod receiver;
mod stdio;
mod stream;
mod sys;
mod tcp;

pub mod calls;
pub mod client;
pub mod handshake;
pub mod pool;
pub mod url;

pub use outbox::{Message, Outbox};
pub use receiver::{Inbound, Receiver};
pub use stdio::stdio;
pub use stream::{Stream, memory};
pub use sys::register;
pub use tcp::TcpProbe;

/// How a message of bytes begins on lines; no text in UTF-8 does. Four bytes of length follow, the lowest first, and the message.
pub const LINES_MARK: u8 = 0xc0;

/// The mark and the length.
const LINES_HEAD: usize = 5;

/// Says how messages are told apart on a byte stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// One message a line, LF-terminated; blank lines are skipped and a CR before the LF is stripped. Messages of bytes come behind
    /// [`LINES_MARK`] and their length instead.
    Lines {
        /// Largest inbound payload in bytes, line end or mark and length excluded.
        max: usize,
    },
    /// RFC 6455 frames, after the upgrade.
    WebSocket {
        /// Which end of the connection this is: it decides who masks.
        role: Role,
        /// Largest inbound message in bytes, also the largest inbound frame.
        max: usize,
    },
}

impl Framing {
    /// Returns the largest inbound message in bytes.
    pub fn max(&self) -> usize {
        match *self {
            Self::Lines { max } | Self::WebSocket { max, .. } => max,
        }
    }
}

/// The end of a WebSocket connection: a client masks what it sends, a server must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Accepted the connection; requires masked frames.
    Server,
    /// Opened the connection; requires unmasked frames.
    Client,
}

/// Why no further message will come from the peer.
#[derive(Debug)]
pub enum Closed {
    /// The stream ended between two messages.
    Eof,
    /// The peer sent a close frame.
    Peer {
        /// The status of the close frame; 1005 if it carried none.
        code: u16,
        /// The text of the close frame, often empty.
        reason: String,
    },
    /// A message or frame was larger than the limit.
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The peer broke the framing.
    Protocol(&'static str),
    /// A line was not UTF-8.
    InvalidUtf8,
    /// The stream failed, or ended inside a frame.
    Io(io::Error),
}

impl Closed {
    /// Returns the WebSocket status that tells the peer why we close; `None` where it cannot be told any more.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Eof | Self::Io(_) => None,
            // A close is answered with its own code; 1005 must never be sent, 1000 stands for it.
            Self::Peer { code: 1005, .. } => Some(1000),
            Self::Peer { code, .. } => Some(*code),
            Self::TooLarge { .. } => Some(1009),
            Self::Protocol(_) => Some(1002),
            Self::InvalidUtf8 => Some(1007),
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eof => write!(f, "peer closed the stream"),
            Self::Peer { code, reason } if reason.is_empty() => write!(f, "peer closed with `{code}`"),
            Self::Peer { code, reason } => write!(f, "peer closed with `{code}`: {reason}"),
            Self::TooLarge { limit } => write!(f, "message is larger than `{limit}` bytes"),
            Self::Protocol(what) => write!(f, "framing broken by the peer: {what}"),
            Self::InvalidUtf8 => write!(f, "line is not UTF-8"),
            Self::Io(_) => write!(f, "stream failed"),
        }
    }
}

impl std::error::Error for Closed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(source) => Some(source),
            Self::Eof | Self::Peer { .. } | Self::TooLarge { .. } | Self::Protocol(_) | Self::InvalidUtf8 => None,
        }
    }
}
