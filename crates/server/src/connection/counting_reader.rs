//! The read half of a connection's socket. Notes when bytes arrive and counts them.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, ReadBuf};

use super::Peer;
use crate::{core::Core, incoming::BudgetShare};

/// A large message that arrives slowly counts as a sign of life before it is complete.
pub(super) struct CountingReader {
    pub(super) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(super) peer: Arc<Peer>,
    pub(super) core: Arc<Core>,
    pub(super) share: Arc<BudgetShare>,
}

impl AsyncRead for CountingReader {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.reader).poll_read(cx, buf);
        let received = buf.filled().len() - before;
        if received > 0 {
            self.peer.note_received();
            self.core.incoming.grow(&self.share, received);
            self.peer.outgoing.metrics.received_bytes.add(received as u64);
        }
        polled
    }
}
