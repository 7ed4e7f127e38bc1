//! The events of an answer, none larger than it may be. The bound stands before the parser, which keeps an unfinished line, a comment's too,
//! however long it gets; lines end here where they end there. Must not know what an event says.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use exec_server_client::{Error, http::Body};
use futures_util::{Stream, StreamExt as _, stream::BoxStream};
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::{Sse, SseStream};

/// The events of a body, of at most so many bytes each.
pub(super) fn events(
    body: Body,
    most: usize,
    unwanted: impl Future<Output = ()> + Send + 'static,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let bounded = Bounded { body, size: Size::new(most), is_over: false };
    SseStream::from_bytes_stream(bounded).take_until(unwanted).boxed()
}

/// A body that ends with an error where an event would not fit.
struct Bounded {
    body: Body,
    size: Size,
    is_over: bool,
}

/// What the parser keeps.
struct Size {
    most: usize,
    /// Bytes of the finished lines of the event that is being read.
    event: usize,
    /// Bytes of the line that is being read.
    line: usize,
    /// The line is a sign of life, of which nothing is kept when it is finished.
    is_comment: bool,
    /// The last byte was a carriage return: a line feed behind it belongs to it.
    is_after_return: bool,
}

/// An event that would not fit.
#[derive(Debug, thiserror::Error)]
enum EventError {
    #[error("an event has more than {most} bytes")]
    TooLarge { most: usize },
    #[error(transparent)]
    Body(#[from] Error),
}

impl Size {
    fn new(most: usize) -> Self {
        Self { most, event: 0, line: 0, is_comment: false, is_after_return: false }
    }

    fn measure(&mut self, bytes: &[u8]) -> Result<(), EventError> {
        for byte in bytes {
            let is_after_return = std::mem::replace(&mut self.is_after_return, *byte == b'\r');
            match byte {
                b'\n' if is_after_return => {}
                b'\n' | b'\r' => self.end_line(),
                _ => {
                    self.is_comment = if self.line == 0 { *byte == b':' } else { self.is_comment };
                    self.line += 1;
                }
            }
            if self.event + self.line > self.most {
                return Err(EventError::TooLarge { most: self.most });
            }
        }
        Ok(())
    }

    fn end_line(&mut self) {
        match std::mem::take(&mut self.line) {
            0 => self.event = 0,
            _ if self.is_comment => {}
            line => self.event += line,
        }
    }
}

impl Stream for Bounded {
    type Item = Result<Bytes, EventError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let Poll::Ready(next) = self.body.poll_next_unpin(cx) else { return Poll::Pending };
        let item = next
            .map(|piece| piece.map_err(EventError::from).and_then(|piece| self.size.measure(&piece).map(|()| piece)));
        self.is_over = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    /// Whether these pieces, one after another, fit ten bytes for each event.
    fn fits(pieces: &[&str]) -> bool {
        let mut size = Size::new(10);
        pieces.iter().all(|piece| size.measure(piece.as_bytes()).is_ok())
    }

    #[test]
    fn events_that_fit_follow_each_other_however_their_lines_end() {
        for end in ["\n", "\r", "\r\n"] {
            let event = format!("data:{end}id:12{end}{end}");
            assert!(fits(&[&event, &event, &event]), "{end:?}");
            assert!(!fits(&[&format!("data:{end}id:123{end}x")]), "{end:?}: an event of several lines");
        }
        assert!(fits(&["data:12345\r", "\n\r", "\ndata:12345\r\n\r\n"]), "a line end in two pieces is one");
        // The return ended the line, and the event with it: the line feed behind it is no line of its own.
        assert!(!fits(&["data:12345\r", "\n", "d"]));
    }

    #[test]
    fn all_that_is_kept_of_an_unfinished_line_counts() {
        assert!(fits(&["data:12345"]) && !fits(&["data:123456"]));
        assert!(fits(&[":345678901"]) && !fits(&[":345", "6789", "012"]), "a comment that does not end");
        assert!(fits(&[":3456789\n", ":3456789\r", ":3456789\r\n", "data:12345\n"]), "a comment that did is forgotten");
        assert!(!fits(&["data:12\n:4567"]), "and counts beside the event while it is read");
    }
}
