//! A byte stream that arrives in slices of a given size, and a loop that drives a receiver to the end of it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::BytesMut;
use exec_server_rpc::{CloseReason, Framing, InboundFrame, Receiver};
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, ReadBuf};

struct SlicedSource {
    bytes: Vec<u8>,
    at: usize,
    slice: usize,
    is_pending: bool,
}

impl AsyncRead for SlicedSource {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Return `Pending` every other time, so that `receive` cancels and restarts `recv` between any two slices.
        self.is_pending = !self.is_pending;
        if self.is_pending {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let len = self.slice.min(buf.remaining()).min(self.bytes.len() - self.at);
        buf.put_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        Poll::Ready(Ok(()))
    }
}

/// Returns everything that a receiver makes of the bytes. Every `recv` that would wait is cancelled and started again.
pub(crate) fn receive(framing: Framing, bytes: &[u8], slice: usize) -> (Vec<InboundFrame>, CloseReason) {
    let source = SlicedSource { bytes: bytes.to_vec(), at: 0, slice: slice.max(1), is_pending: false };
    let mut receiver = Receiver::new(framing, Box::new(source), BytesMut::new());
    let mut received = Vec::new();
    loop {
        match receiver.recv().now_or_never() {
            None => {}
            Some(Ok(inbound)) => received.push(inbound),
            Some(Err(closed)) => return (received, closed),
        }
    }
}
