//! Streams that transfer bytes in slices of chosen sizes, with a pending poll between any two slices. So a future can
//! be cancelled at every await, and the helpers do cancel it at each one.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::BytesMut;
use exec_server_rpc::{CloseReason, Framing, InboundFrame, Outbox, Receiver};
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Returns `bytes` in slices. The sizes in `sizes` repeat.
pub(crate) struct SlicedReader {
    bytes: VecDeque<u8>,
    sizes: SliceSizes,
}

/// Accepts bytes in slices. The sizes in `sizes` repeat.
pub(crate) struct SlicedWriter {
    pub(crate) bytes: Vec<u8>,
    sizes: SliceSizes,
}

struct SliceSizes {
    sizes: Vec<usize>,
    next: usize,
    is_pending: bool,
}

impl SliceSizes {
    fn new(sizes: &[usize]) -> Self {
        Self { sizes: sizes.to_vec(), next: 0, is_pending: false }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        self.is_pending = !self.is_pending;
        if self.is_pending {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.next += 1;
        Poll::Ready(self.sizes[(self.next - 1) % self.sizes.len()])
    }
}

impl SlicedReader {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>, sizes: &[usize]) -> Self {
        Self { bytes: bytes.into().into(), sizes: SliceSizes::new(sizes) }
    }

    pub(crate) fn receiver(self, framing: Framing) -> Receiver {
        Receiver::new(framing, Box::new(self), BytesMut::new())
    }
}

impl SlicedWriter {
    pub(crate) fn new(sizes: &[usize]) -> Self {
        Self { bytes: Vec::new(), sizes: SliceSizes::new(sizes) }
    }
}

impl AsyncRead for SlicedReader {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Poll::Ready(size) = self.sizes.poll(cx) else { return Poll::Pending };
        let size = size.min(buf.remaining()).min(self.bytes.len());
        let slice: Vec<u8> = self.bytes.drain(..size).collect();
        buf.put_slice(&slice);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SlicedWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Poll::Ready(size) = self.sizes.poll(cx) else { return Poll::Pending };
        let size = size.min(buf.len());
        self.bytes.extend_from_slice(&buf[..size]);
        Poll::Ready(Ok(size))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(size) = self.sizes.poll(cx) else { return Poll::Pending };
        let before = self.bytes.len();
        for buf in bufs {
            let left = size - (self.bytes.len() - before);
            self.bytes.extend_from_slice(&buf[..left.min(buf.len())]);
        }
        Poll::Ready(Ok(self.bytes.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls a new future each time, so every pending future is cancelled.
fn cancelling<T>(mut start: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(output) = start() {
            return output;
        }
    }
}

/// Receives one message, with a cancellation at every await.
pub(crate) fn recv(receiver: &mut Receiver) -> Result<InboundFrame, CloseReason> {
    cancelling(|| receiver.recv().now_or_never())
}

/// Receives until the connection is closed.
pub(crate) fn recv_all(receiver: &mut Receiver) -> (Vec<InboundFrame>, CloseReason) {
    let mut received = Vec::new();
    loop {
        match recv(receiver) {
            Ok(inbound) => received.push(inbound),
            Err(closed) => return (received, closed),
        }
    }
}

/// Receives everything that these bytes, read in slices, contain.
pub(crate) fn read_all(
    bytes: impl Into<Vec<u8>>,
    sizes: &[usize],
    framing: Framing,
) -> (Vec<InboundFrame>, CloseReason) {
    recv_all(&mut SlicedReader::new(bytes, sizes).receiver(framing))
}

/// Flushes everything, with a cancellation at every await.
pub(crate) fn flush(outbox: &mut Outbox, sink: &mut SlicedWriter) {
    cancelling(|| outbox.flush_to(sink).now_or_never()).unwrap();
}

/// Flushes for at most `polls` polls.
pub(crate) fn flush_some(outbox: &mut Outbox, sink: &mut SlicedWriter, polls: usize) {
    for _ in 0..polls {
        if let Some(result) = outbox.flush_to(sink).now_or_never() {
            return result.unwrap();
        }
    }
}
