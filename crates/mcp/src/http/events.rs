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

/// How many bytes the parser currently buffers.
struct EventSize {
    most: usize,
    /// Bytes of the finished lines of the current event.
    event: usize,
    /// Bytes of the current line.
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

    fn measure(&mut self, bytes: &[u8]) -> Result<(), EventError> {
        for byte in bytes {
            let is_after_return = std::mem::replace(&mut self.is_after_return, *byte == b'\r');
            match byte {
                b'\n' if is_after_return => {}
                b'\n' | b'\r' => match std::mem::take(&mut self.line) {
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
    fn events_that_fit_follow_each_other_however_their_lines_end() {
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
    fn all_that_is_kept_of_an_unfinished_line_counts() {
        assert!(fits(&["data:12345"]) && !fits(&["data:123456"]));
        assert!(fits(&[":345678901"]) && !fits(&[":345", "6789", "012"]), "a comment that does not end");
        assert!(fits(&[":3456789\n", ":3456789\r", ":3456789\r\n", "data:12345\n"]), "a comment that did is forgotten");
        assert!(!fits(&["data:12\n:4567"]), "and counts beside the event while it is read");
    }
}
