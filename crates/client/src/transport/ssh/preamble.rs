//! Skips text that a remote shell prints before the server starts: greetings of a profile, or the refusal of an account.
//!
//! Every message of the server begins with `{` at the start of a line, so all lines before the first such line are not the server's. They
//! are added to the stderr tail of ssh, where they may explain why there is no server.

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

use crate::transport::tail::Tail;

/// Limit for the skipped bytes. A shell that prints more will not start a server.
const SKIPPED_MAX: usize = 64 * 1024;

/// The size of one read while skipping.
const READ_BYTES: usize = 4 * 1024;

/// A reader that begins with the first message.
pub(super) struct Skipping<R> {
    reader: R,
    state: State,
    tail: Arc<Tail>,
    /// Set when the first message arrives.
    heard: Arc<AtomicBool>,
}

enum State {
    /// The first message was not found yet.
    Looking { skipped: usize, is_line_start: bool },
    /// The first message was found. Contains bytes that were already read, which come before those of the reader.
    Found(BytesMut),
}

impl<R: AsyncRead + Unpin> Skipping<R> {
    pub(super) fn new(reader: R, tail: Arc<Tail>, heard: Arc<AtomicBool>) -> Self {
        Self { reader, state: State::Looking { skipped: 0, is_line_start: true }, tail, heard }
    }

    /// Reads once and searches for the first message. Returns false at EOF.
    fn poll_look(&mut self, cx: &mut Context<'_>, skipped: usize, is_line_start: bool) -> Poll<io::Result<bool>> {
        let mut room = [0; READ_BYTES];
        let mut buf = ReadBuf::new(&mut room);
        ready!(Pin::new(&mut self.reader).poll_read(cx, &mut buf))?;
        let bytes = buf.filled();
        let at = match bytes {
            [b'{', ..] if is_line_start => Some(0),
            _ => bytes.windows(2).position(|pair| pair == b"\n{").map(|at| at + 1),
        };
        self.tail.feed(&bytes[..at.unwrap_or(bytes.len())]);
        let skipped = skipped + at.unwrap_or(bytes.len());
        if skipped > SKIPPED_MAX {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the shell there prints without end")));
        }
        self.state = match (at, bytes.last()) {
            (Some(at), _) => {
                self.heard.store(true, Ordering::Relaxed);
                State::Found(BytesMut::from(&bytes[at..]))
            }
            (None, Some(last)) => State::Looking { skipped, is_line_start: *last == b'\n' },
            (None, None) => return Poll::Ready(Ok(false)),
        };
        Poll::Ready(Ok(true))
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Skipping<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                State::Looking { skipped, is_line_start } => {
                    let (skipped, is_line_start) = (*skipped, *is_line_start);
                    if !ready!(self.poll_look(cx, skipped, is_line_start))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                State::Found(held) if held.is_empty() => return Pin::new(&mut self.reader).poll_read(cx, buf),
                State::Found(held) => {
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
        let (tail, heard) = (Arc::new(Tail::new()), Arc::new(AtomicBool::new(false)));
        let mut skipping = Skipping::new(&mut reader, Arc::clone(&tail), Arc::clone(&heard));
        let mut text = String::new();
        let read = skipping.read_to_string(&mut text).await.map(|_| text);
        (read, tail.text(), heard.load(Ordering::Relaxed))
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
            let (got, tail, heard) = check(pieces).await;
            assert_eq!((got.unwrap().as_str(), tail.as_str(), heard), (read, words, true), "{pieces:?}");
        }
    }

    #[tokio::test]
    async fn a_shell_that_never_gets_there_is_not_read_for_ever() {
        let (got, tail, heard) = check(&["This account is not available.\n"]).await;
        assert_eq!((got.unwrap().as_str(), tail.as_str(), heard), ("", "This account is not available.", false));
        let (got, _, heard) = check(&["y\n".repeat(SKIPPED_MAX).as_str()]).await;
        assert_eq!((got.unwrap_err().kind(), heard), (io::ErrorKind::InvalidData, false));
    }
}
