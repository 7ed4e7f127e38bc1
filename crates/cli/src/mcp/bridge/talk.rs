//! The server's standard error on its way to ours, beside the messages and never in their way.
//!
//! A bounded line of pieces, written by a task of its own. Where nobody reads our standard error, the server is held back for a
//! moment, and then what it says is dropped and counted: a log that nobody reads must not stop a server that somebody uses.
//! Must not know messages.

use std::time::Duration;

use tokio::{
    io::{AsyncWriteExt as _, Stderr},
    sync::mpsc,
    task::JoinSet,
    time,
};

/// Pieces that may wait; each is what the server wrote at once, tens of KiB at most.
const WAITING: usize = 64;

/// How long a full line holds the server back.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the last of it may take.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// The way out.
pub(super) struct Talk {
    line: mpsc::Sender<Piece>,
    /// Bytes that were dropped since the last piece.
    missing: u64,
    writer: JoinSet<()>,
}

struct Piece {
    missing: u64,
    bytes: Vec<u8>,
}

impl Talk {
    pub(super) fn new() -> Self {
        let (line, pieces) = mpsc::channel(WAITING);
        let mut writer = JoinSet::new();
        writer.spawn(write(pieces, tokio::io::stderr()));
        Self { line, missing: 0, writer }
    }

    /// Says it soon, or drops it.
    pub(super) async fn push(&mut self, bytes: &[u8]) {
        // Who has not read for so long is not waited for again until there is room.
        let patience = if self.missing == 0 { PATIENCE } else { Duration::ZERO };
        match time::timeout(patience, self.line.reserve()).await {
            Ok(Ok(room)) => room.send(Piece { missing: std::mem::take(&mut self.missing), bytes: bytes.to_vec() }),
            // Closed: a program goes on without its stderr, and so do we.
            Ok(Err(_)) => {}
            Err(_) => self.missing = self.missing.saturating_add(bytes.len() as u64),
        }
    }

    /// Waits until all is written, but not for long.
    pub(super) async fn end(mut self) {
        drop(self.line);
        time::timeout(LAST_WITHIN, self.writer.join_next()).await.ok();
    }
}

async fn write(mut pieces: mpsc::Receiver<Piece>, mut stderr: Stderr) {
    while let Some(Piece { missing, bytes }) = pieces.recv().await {
        if missing > 0 {
            let line = format!("\nexec-server: {missing} bytes of the server's standard error are missing here\n");
            if stderr.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
        if stderr.write_all(&bytes).await.is_err() || stderr.flush().await.is_err() {
            return;
        }
    }
}
