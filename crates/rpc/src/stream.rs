//! A byte stream in two halves, independent of its transport.
//!
//! Converts Unix sockets and the in-memory pair to this form. The module `tcp` converts TCP sockets.

use std::fmt;

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use crate::TcpProbe;

/// A connected byte stream, ready for a [`Receiver`](crate::Receiver) and an [`Outbox`](crate::Outbox).
pub struct ByteStream {
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// Information about the peer: from the kernel for TCP, or from a transport that has its own.
    pub probe: Option<TcpProbe>,
    /// Bytes that the handshake has read past its end. They come before those of `reader`.
    pub leftover: BytesMut,
    /// Whether no third party can read the stream: both ends are on this host, or it is encrypted.
    pub is_private: bool,
}

impl ByteStream {
    /// Creates a stream from two halves, without a probe or leftover bytes, and not private.
    pub fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        Self { reader, writer, probe: None, leftover: BytesMut::new(), is_private: false }
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream")
            .field("probe", &self.probe)
            .field("leftover", &self.leftover.len())
            .finish_non_exhaustive()
    }
}

impl From<UnixStream> for ByteStream {
    fn from(socket: UnixStream) -> Self {
        let (reader, writer) = socket.into_split();
        Self { is_private: true, ..Self::new(reader, writer) }
    }
}

/// Creates two ends of an in-memory stream that buffers `capacity` bytes in each direction.
///
/// The other end sees EOF when both halves of this end are dropped, or when its writer is shut down.
pub fn memory(capacity: usize) -> (ByteStream, ByteStream) {
    let (left, right) = tokio::io::duplex(capacity);
    let (left_reader, left_writer) = tokio::io::split(left);
    let (right_reader, right_writer) = tokio::io::split(right);
    (ByteStream::new(left_reader, left_writer), ByteStream::new(right_reader, right_writer))
}
