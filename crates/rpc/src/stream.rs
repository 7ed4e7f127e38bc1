//! A byte stream in two halves, whatever carries it.
//!
//! Owns the conversion from sockets and the in-memory pair; knows no framing.

use std::fmt;

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use crate::TcpProbe;

/// A connected byte stream, ready for a [`Receiver`](crate::Receiver) and an [`Outbox`](crate::Outbox).
pub struct Stream {
    /// The receiving half.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// The sending half.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// What the kernel knows of the peer; TCP only.
    pub probe: Option<TcpProbe>,
    /// Bytes read past the handshake; they come before those of `reader`.
    pub leftover: BytesMut,
    /// Nobody stands between the two ends who could read what passes: both are on this host, or it is encrypted.
    pub is_private: bool,
}

impl Stream {
    /// Makes a stream of two halves, without a probe and with nothing left over; not taken to be private.
    pub fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        Self { reader, writer, probe: None, leftover: BytesMut::new(), is_private: false }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("probe", &self.probe)
            .field("leftover", &self.leftover.len())
            .finish_non_exhaustive()
    }
}

impl From<UnixStream> for Stream {
    fn from(socket: UnixStream) -> Self {
        let (reader, writer) = socket.into_split();
        Self { is_private: true, ..Self::new(reader, writer) }
    }
}

/// Makes two ends of an in-memory stream that buffers `capacity` bytes in each direction.
///
/// The other end sees the end of the stream when both halves of this one are dropped, or its writer is shut down.
pub fn memory(capacity: usize) -> (Stream, Stream) {
    let (left, right) = tokio::io::duplex(capacity);
    let (left_reader, left_writer) = tokio::io::split(left);
    let (right_reader, right_writer) = tokio::io::split(right);
    (Stream::new(left_reader, left_writer), Stream::new(right_reader, right_writer))
}
