//! Skips text that a remote shell prints before the server starts: greetings of a profile, or the refusal of an account.
//!
//! Every message of the server begins with `{` at the start of a line, so no line before the first such line comes from the server. The
//! skipped lines are added to the stderr tail of ssh, because they may explain why there is no server.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use crate::transport::stderr_tail::StderrTail;

/// Limit for the skipped bytes. A shell that prints more will not start a server.
const SKIPPED_MAX: usize = 64 * 1024;

/// The size of one read while skipping.
const READ_BYTES: usize = 4 * 1024;

/// A reader that begins with the first message.
pub(super) struct PreambleSkipper<R> {
    reader: R,
    state: PreambleState,
    tail: Arc<StderrTail>,
    /// Set when the first message arrives.
    has_answered: Arc<AtomicBool>,
}

enum PreambleState {
    /// The first message was not found yet.
    Searching { skipped: usize, is_line_start: bool },
    /// The first message was found. Contains bytes that were already read, which come before those of the reader.
    Found(BytesMut),
}

impl<R: AsyncRead + Unpin> PreambleSkipper<R> {
    pub(super) fn new(reader: R, tail: Arc<StderrTail>, has_answered: Arc<AtomicBool>) -> Self {
        Self { reader, state: PreambleState::Searching { skipped: 0, is_line_start: true }, tail, has_answered }
    }

    /// Reads once and searches for the first message. Returns false at EOF.
    fn poll_search(&mut self, cx: &mut Context<'_>, skipped: usize, is_line_start: bool) -> Poll<io::Result<bool>> {
        let mut room = [0; READ_BYTES];
        let mut buf = ReadBuf::new(&mut room);
        ready!(Pin::new(&mut self.reader).poll_read(cx, &mut buf))?;
        let bytes = buf.filled();
        let at = match bytes {
            [b'{', ..] if is_line_start => Some(0),
            _ => bytes.windows(2).position(|pair| pair == b"\n{").map(|at| at + 1),
        };
        self.tail.append(&bytes[..at.unwrap_or(bytes.len())]);
        let skipped = skipped + at.unwrap_or(bytes.len());
        if skipped > SKIPPED_MAX {
            let text = "the remote shell printed more than 64 KiB, and no message of the server";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        self.state = match (at, bytes.last()) {
            (Some(at), _) => {
                self.has_answered.store(true, Ordering::Relaxed);
                PreambleState::Found(BytesMut::from(&bytes[at..]))
            }
            (None, Some(last)) => PreambleState::Searching { skipped, is_line_start: *last == b'\n' },
            (None, None) => return Poll::Ready(Ok(false)),
        };
        Poll::Ready(Ok(true))
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for PreambleSkipper<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                PreambleState::Searching { skipped, is_line_start } => {
                    let (skipped, is_line_start) = (*skipped, *is_line_start);
                    if !ready!(self.poll_search(cx, skipped, is_line_start))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                PreambleState::Found(held) if held.is_empty() => return Pin::new(&mut self.reader).poll_read(cx, buf),
                PreambleState::Found(held) => {
                    let count = held.len().min(buf.remaining());
                    buf.put_slice(&held[..count]);
                    held.advance(count);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Returns the bytes read from these pieces, the text of the tail, and whether a message was found.
    async fn check(pieces: &[&str]) -> (io::Result<String>, String, bool) {
        let mut reader = piecewise(pieces);
        let (tail, has_answered) = (Arc::new(StderrTail::new()), Arc::new(AtomicBool::new(false)));
        let mut skipping = PreambleSkipper::new(&mut reader, Arc::clone(&tail), Arc::clone(&has_answered));
        let mut text = String::new();
        let read = skipping.read_to_string(&mut text).await.map(|_| text);
        (read, tail.text(), has_answered.load(Ordering::Relaxed))
    }

    /// A reader that returns one piece per read.
    fn piecewise<'a>(pieces: &'a [&str]) -> impl AsyncRead + Unpin + 'a {
        let start: Box<dyn AsyncRead + Unpin> = Box::new(&b""[..]);
        pieces.iter().fold(start, |before, piece| Box::new(before.chain(piece.as_bytes())))
    }

    #[tokio::test]
    async fn only_the_lines_before_the_first_message_are_skipped() {
        for (pieces, read, words) in [
            (&["{\"a\":1}\n", "x\n{\"b\"}\n"][..], "{\"a\":1}\nx\n{\"b\"}\n", ""),
            (&["Welcome {you}!\n", "\n{\"a\":1}\n"], "{\"a\":1}\n", "Welcome {you}!"),
            (&["no line end", "\n", "{", "}\n"], "{}\n", "no line end"),
            (&["a\n{\"b\":", "2}\n"], "{\"b\":2}\n", "a"),
        ] {
            let (got, tail, has_answered) = check(pieces).await;
            assert_eq!((got.unwrap().as_str(), tail.as_str(), has_answered), (read, words, true), "{pieces:?}");
        }
    }

    #[tokio::test]
    async fn skipping_ends_at_eof_or_at_its_limit() {
        let (got, tail, has_answered) = check(&["This account is not available.\n"]).await;
        assert_eq!((got.unwrap().as_str(), tail.as_str(), has_answered), ("", "This account is not available.", false));
        let (got, _, has_answered) = check(&["y\n".repeat(SKIPPED_MAX).as_str()]).await;
        assert_eq!((got.unwrap_err().kind(), has_answered), (io::ErrorKind::InvalidData, false));
    }
}
