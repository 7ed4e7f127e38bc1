//! Forwards the stderr of the MCP server to ours, without delaying the messages on stdout.
//!
//! A task writes the pieces from a bounded queue. If our stderr is not read and the queue is full, the server is held back for a moment.
//! After that its stderr is dropped and counted: an unread log must not stop a server that is in use.

use std::time::Duration;

use tokio::{
    io::{AsyncWriteExt as _, Stderr},
    sync::mpsc,
    task::JoinSet,
    time,
};

/// Capacity of the queue. Each piece is one output event, at most 64 KiB.
const WAITING: usize = 64;

/// How long a full queue holds the server back.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long writing the rest may take at the end.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// The sending side of the queue.
pub(super) struct StderrForwarder {
    queue: mpsc::Sender<Vec<u8>>,
    /// Bytes dropped since the last piece that was queued.
    missing: u64,
    writer: JoinSet<()>,
}

impl StderrForwarder {
    pub(super) fn new() -> Self {
        let (queue, pieces) = mpsc::channel(WAITING);
        let mut writer = JoinSet::new();
        writer.spawn(write(pieces, tokio::io::stderr()));
        Self { queue, missing: 0, writer }
    }

    /// Queues the bytes, or drops them if the queue stays full.
    pub(super) async fn push(&mut self, bytes: &[u8]) {
        // After a drop, do not wait again until the queue has room.
        let patience = if self.missing == 0 { PATIENCE } else { Duration::ZERO };
        match time::timeout(patience, self.queue.reserve()).await {
            Ok(Ok(room)) => {
                let mut piece = Vec::new();
                if self.missing > 0 {
                    let missing = std::mem::take(&mut self.missing);
                    piece = format!("\nexec-server: {missing} bytes of the server's stderr were dropped here\n").into();
                }
                piece.extend_from_slice(bytes);
                room.send(piece);
            }
            // The writer has ended because our stderr is closed. Programs normally continue without stderr, and so do we.
            Ok(Err(_)) => {}
            Err(_) => self.missing = self.missing.saturating_add(bytes.len() as u64),
        }
    }

    /// Waits until everything is written, up to a short timeout.
    pub(super) async fn end(mut self) {
        drop(self.queue);
        time::timeout(LAST_WITHIN, self.writer.join_next()).await.ok();
    }
}

async fn write(mut pieces: mpsc::Receiver<Vec<u8>>, mut stderr: Stderr) {
    while let Some(piece) = pieces.recv().await {
        if stderr.write_all(&piece).await.is_err() || stderr.flush().await.is_err() {
            return;
        }
    }
}
