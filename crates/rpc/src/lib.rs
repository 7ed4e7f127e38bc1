//! Moves messages between two peers, without interpreting them: it handles no method, session or process.
//!
//! It has the byte streams ([`ByteStream`]), the framing in both directions ([`Receiver`], [`Outbox`]), the client half
//! of the WebSocket upgrade ([`handshake`]), URL parsing ([`url`]), calls that wait for an answer ([`calls`]), buffers
//! for large messages ([`pool`]) and a minimal client ([`client`]).

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

pub use outbox::{EncodedMessage, Outbox};
pub use receiver::{InboundFrame, Receiver};
pub use stdio::stdio;
pub use stream::{ByteStream, memory};
pub use sys::register;
pub use tcp::TcpProbe;

/// First byte of a binary message in the [`Framing::Lines`] framing. No UTF-8 text begins with it. It is followed by
/// the length in four bytes, little-endian, and the message.
pub const LINES_MARK: u8 = 0xc0;

/// Size of the mark and the length.
const LINES_HEAD: usize = 5;

/// How a byte stream is divided into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// One message per line, terminated by LF. Blank lines are skipped, and a CR before the LF is removed. A binary
    /// message begins with [`LINES_MARK`] and its length instead.
    Lines {
        /// Largest inbound payload in bytes, without the line end or the mark and length.
        max: usize,
    },
    /// RFC 6455 frames, after the upgrade.
    WebSocket {
        /// This end of the connection. It determines which side masks its frames.
        role: WebSocketRole,
        /// Largest inbound message in bytes, also the largest inbound frame.
        max: usize,
    },
}

impl Framing {
    pub fn max(&self) -> usize {
        match *self {
            Self::Lines { max } | Self::WebSocket { max, .. } => max,
        }
    }
}

/// The end of a WebSocket connection. A client must mask its frames, a server must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebSocketRole {
    /// Accepted the connection; requires masked frames.
    Server,
    /// Opened the connection; requires unmasked frames.
    Client,
}

/// Why no more messages will come from the peer.
#[derive(Debug)]
pub enum CloseReason {
    /// The stream ended between two messages.
    Eof,
    /// The peer sent a close frame.
    Peer {
        /// The status code of the close frame, 1005 if it has none.
        code: u16,
        /// The reason text of the close frame, often empty.
        reason: String,
    },
    /// A message or frame was larger than the limit.
    TooLarge { limit: usize },
    /// The peer violated the framing.
    Protocol(&'static str),
    /// A line was not UTF-8.
    InvalidUtf8,
    /// The stream failed, or ended inside a frame.
    Io(io::Error),
}

impl CloseReason {
    /// Returns the WebSocket close code to send to the peer. `None` if the connection can no longer carry it.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Eof | Self::Io(_) => None,
            // A close frame is answered with the same code. 1005 must never be sent, so 1000 replaces it.
            Self::Peer { code: 1005, .. } => Some(1000),
            Self::Peer { code, .. } => Some(*code),
            Self::TooLarge { .. } => Some(1009),
            Self::Protocol(_) => Some(1002),
            Self::InvalidUtf8 => Some(1007),
        }
    }
}

impl fmt::Display for CloseReason {
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

impl std::error::Error for CloseReason {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(source) => Some(source),
            Self::Eof | Self::Peer { .. } | Self::TooLarge { .. } | Self::Protocol(_) | Self::InvalidUtf8 => None,
        }
    }
}
