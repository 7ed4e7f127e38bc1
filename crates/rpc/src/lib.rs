//! Moves messages between two peers, without interpreting them: it handles no method, session or process.
//!
//! It has the byte streams ([`ByteStream`]), the framing in both directions ([`Receiver`], [`Outbox`]), the client half
//! of the WebSocket upgrade ([`handshake`]), URL parsing ([`url`]), calls that wait for an answer ([`calls`]), buffers
//! for large messages ([`pool`]) and a minimal client ([`client`]).

use std::io;

mod frame;
mod outbox;
mod receiver;
mod standard_input;
mod standard_output;
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
pub use standard_input::StandardInput;
pub use standard_output::StandardOutput;
pub use stdio::stdio;
pub use stream::{ByteStream, memory};
pub use sys::{keep_freed_memory, register};
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
        /// The role of this side. It determines which side masks its frames.
        role: WebSocketRole,
        /// Largest inbound message in bytes, also the largest inbound frame.
        max: usize,
    },
}

/// One side of a WebSocket connection. A client must mask its frames, a server must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebSocketRole {
    /// Accepted the connection; requires masked frames.
    Server,
    /// Opened the connection; requires unmasked frames.
    Client,
}

/// Why no more messages will come from the peer.
#[derive(Debug, thiserror::Error)]
pub enum CloseReason {
    /// The stream ended between two messages, or this end closed it.
    #[error("peer closed the stream")]
    Eof,
    /// The peer sent a close frame.
    #[error("peer closed with `{code}`{}{reason}", if reason.is_empty() { "" } else { ": " })]
    Peer {
        /// The status code of the close frame, 1005 if it has none.
        code: u16,
        /// The reason text of the close frame, often empty.
        reason: String,
    },
    /// A message or frame was larger than the limit.
    #[error("message is larger than `{limit}` bytes")]
    TooLarge { limit: usize },
    /// The peer violated the framing.
    #[error("framing broken by the peer: {0}")]
    Protocol(&'static str),
    /// A line was not UTF-8.
    #[error("line is not UTF-8")]
    InvalidUtf8,
    /// The stream failed, or ended inside a frame.
    #[error("stream failed")]
    Io(#[source] io::Error),
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
