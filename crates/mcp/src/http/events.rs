//! The events of a streamed body, of which none is larger than it may be. Must not know what they say.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use exec_server_client::{Error, http::Body};
use futures_util::{Stream, StreamExt as _, stream::BoxStream};
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::{Sse, SseStream};

/// The events of a body.
pub(super) fn events(
    body: Body,
    most: usize,
    unwanted: impl Future<Output = ()> + Send + 'static,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let bounded = Bounded { body, size: Size { most, event: 0, line: Line::Empty }, is_over: false };
    SseStream::from_bytes_stream(bounded).take_until(unwanted).boxed()
}

/// A stream of events of which none is larger than it may be.
struct Bounded {
    body: Body,
    size: Size,
    is_over: bool,
}

/// How large the event that is being read is.
struct Size {
    most: usize,
    event: usize,
    line: Line,
}

/// What the line that is being read is like so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Empty,
    Data,
    /// A sign of life, which is kept nowhere.
    Comment,
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
    fn add(&mut self, bytes: &[u8]) -> Result<(), EventError> {
        for byte in bytes {
            match (*byte, self.line) {
                // Carriage returns end a line together with what follows them.
                (b'\r', _) => {}
                (b'\n', Line::Empty) => self.event = 0,
                (b'\n', _) => self.line = Line::Empty,
                (b':', Line::Empty) => self.line = Line::Comment,
                (_, Line::Comment) => {}
                (_, Line::Empty | Line::Data) => {
                    self.line = Line::Data;
                    self.event += 1;
                }
            }
            if self.event > self.most {
                return Err(EventError::TooLarge { most: self.most });
            }
        }
        Ok(())
    }
}

impl Stream for Bounded {
    type Item = Result<Bytes, EventError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let Poll::Ready(next) = self.body.poll_next_unpin(cx) else { return Poll::Pending };
        let item =
            next.map(|piece| piece.map_err(EventError::from).and_then(|piece| self.size.add(&piece).map(|()| piece)));
        self.is_over = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }
}

#[cfg(test)]
mod tests {
    use super::{EventError, Line, Size};

    #[test]
    fn an_event_is_measured_by_its_lines_and_signs_of_life_by_nothing() {
        let mut size = Size { most: 10, event: 0, line: Line::Empty };
        for part in ["data: a", "bc\n\n", ": a long sign of life\n\n", "data: abc\r\n\r\n", "a\n", "b\n", "cdefghij\n"] {
            size.add(part.as_bytes()).unwrap();
        }
        assert!(matches!(size.add(b"k"), Err(EventError::TooLarge { most: 10 })));
    }
}
