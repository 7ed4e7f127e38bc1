//! Parses the SSE events of a response and bounds their size. The bound is applied before the parser, because the parser buffers an
//! unfinished line, even a comment, without limit. `EventSize` splits lines by the same rules as the parser.

use exec_server_client::{Error, http::Body};
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::{Sse, SseStream};

/// The events of a body, each of at most `most` bytes.
pub(super) fn events(
    body: Body,
    most: usize,
    until_closed: impl Future<Output = ()> + Send + 'static,
) -> BoxStream<'static, Result<Sse, SseError>> {
    // Ends with the first error.
    let bounded = stream::try_unfold((body, EventSize::new(most)), |(mut body, mut size)| async move {
        let Some(piece) = body.next().await.transpose()? else { return Ok::<_, EventError>(None) };
        size.measure(&piece)?;
        Ok(Some((piece, (body, size))))
    });
    SseStream::from_bytes_stream(bounded).take_until(until_closed).boxed()
}

/// Computes how many bytes the parser currently buffers.
struct EventSize {
    most: usize,
    /// Bytes of the finished lines of the current event.
    event: usize,
    /// Bytes of the current line, which is unfinished.
    line: usize,
    /// The current line is a comment (a keep-alive). The parser discards it when the line ends.
    is_comment: bool,
    /// The last byte was `\r`, so a `\n` that follows belongs to the same line end.
    is_after_return: bool,
}

#[derive(Debug, thiserror::Error)]
enum EventError {
    #[error("an event has more than {most} bytes")]
    TooLarge { most: usize },
    #[error(transparent)]
    Body(#[from] Error),
}

impl EventSize {
    fn new(most: usize) -> Self {
        Self { most, event: 0, line: 0, is_comment: false, is_after_return: false }
    }

    /// Adds a piece of the body. Fails if the current event exceeds the limit.
    fn measure(&mut self, bytes: &[u8]) -> Result<(), EventError> {
        for byte in bytes {
            let is_after_return = std::mem::replace(&mut self.is_after_return, *byte == b'\r');
            match byte {
                b'\n' if is_after_return => {}
                b'\n' | b'\r' => match std::mem::take(&mut self.line) {
                    // An empty line ends the event.
                    0 => self.event = 0,
                    _ if self.is_comment => {}
                    line => self.event += line,
                },
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
}

#[cfg(test)]
mod tests {
    use super::EventSize;

    /// Whether these pieces, read in order, fit a limit of ten bytes per event.
    fn fits(pieces: &[&str]) -> bool {
        let mut size = EventSize::new(10);
        pieces.iter().all(|piece| size.measure(piece.as_bytes()).is_ok())
    }

    #[test]
    fn each_event_is_measured_separately_with_any_line_ending() {
        for end in ["\n", "\r", "\r\n"] {
            let event = format!("data:{end}id:12{end}{end}");
            assert!(fits(&[&event, &event, &event]), "{end:?}");
            assert!(!fits(&[&format!("data:{end}id:123{end}x")]), "{end:?}: an event of several lines");
        }
        assert!(fits(&["data:12345\r", "\n\r", "\ndata:12345\r\n\r\n"]), "a line end in two pieces is one");
        // The `\r` ended the line. The `\n` after it belongs to the same line end and is not an empty line, so the event continues.
        assert!(!fits(&["data:12345\r", "\n", "d"]));
    }

    #[test]
    fn an_unfinished_line_counts_even_if_it_is_a_comment() {
        assert!(fits(&["data:12345"]) && !fits(&["data:123456"]));
        assert!(fits(&[":345678901"]) && !fits(&[":345", "6789", "012"]), "a comment that does not end");
        assert!(
            fits(&[":3456789\n", ":3456789\r", ":3456789\r\n", "data:12345\n"]),
            "a finished comment does not count"
        );
        assert!(!fits(&["data:12\n:4567"]), "an unfinished comment counts together with the event");
    }
}
