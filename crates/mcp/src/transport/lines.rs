//! Splits bytes into lines of limited length.

use std::collections::VecDeque;

/// A line exceeds the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineTooLong;

/// Splits a stream at its line feeds.
#[derive(Debug)]
pub(super) struct LineSplitter {
    /// The maximum length of a line in bytes, without its line ending.
    limit: usize,
    /// The current incomplete line. It has at most `limit + 1` bytes, because the last one may be the carriage return of the line ending.
    partial: Vec<u8>,
    /// Complete lines. At most those of one piece of output.
    complete: VecDeque<Vec<u8>>,
    /// No more input is accepted.
    is_over: bool,
}

impl LineSplitter {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, partial: Vec::new(), complete: VecDeque::new(), is_over: false }
    }

    /// Adds a piece of output. On an error, the lines before the overlong one are available; that line and everything after it are
    /// discarded.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<(), LineTooLong> {
        if self.is_over {
            return Err(LineTooLong);
        }
        while let Some(at) = bytes.iter().position(|byte| *byte == b'\n') {
            self.append(&bytes[..at])?;
            bytes = &bytes[at + 1..];
            let line = std::mem::take(&mut self.partial);
            let line = self.trimmed(line).ok_or(LineTooLong).inspect_err(|_| self.is_over = true)?;
            self.complete.push_back(line);
        }
        self.append(bytes)
    }

    /// The next complete line, without its line ending.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        self.complete.pop_front()
    }

    /// Ends the input. Returns the bytes after the last line feed, if they are within the limit. A second call returns `None`.
    pub(super) fn finish(&mut self) -> Option<Vec<u8>> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let rest = std::mem::take(&mut self.partial);
        self.trimmed(rest).filter(|rest| !rest.is_empty())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), LineTooLong> {
        // One byte more than the limit, because the last one may be the carriage return of the line ending.
        if self.partial.len() + bytes.len() > self.limit + 1 {
            self.partial = Vec::new();
            self.is_over = true;
            return Err(LineTooLong);
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    /// Removes one carriage return at the end of a line. Returns `None` if the line is still too long.
    fn trimmed(&self, mut line: Vec<u8>) -> Option<Vec<u8>> {
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        (line.len() <= self.limit).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &mut LineSplitter) -> Vec<String> {
        std::iter::from_fn(|| lines.next()).map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn lines_are_split_at_line_feeds_however_the_input_is_divided() {
        let text = b"one\ntwo\r\n\nfour\r\r\nfi";
        for size in 1..=text.len() {
            let mut lines = LineSplitter::new(8);
            let mut found = Vec::new();
            for piece in text.chunks(size) {
                lines.push(piece).unwrap();
                found.extend(all(&mut lines));
            }
            assert_eq!(found, ["one", "two", "", "four\r"], "pieces of {size}");
            assert_eq!(lines.finish(), Some(b"fi".to_vec()));
            assert_eq!(lines.finish(), None, "returned once");
        }
    }

    #[test]
    fn a_line_at_the_limit_is_accepted_with_either_ending() {
        let mut lines = LineSplitter::new(4);
        lines.push(b"abcd\nabcd\r\nabc").unwrap();
        assert_eq!(all(&mut lines), ["abcd", "abcd",]);
        lines.push(b"d").unwrap();
        assert_eq!(lines.finish(), Some(b"abcd".to_vec()));
    }

    #[test]
    fn lines_before_an_overlong_one_are_kept_and_everything_after_it_is_discarded() {
        let mut lines = LineSplitter::new(4);
        assert_eq!(lines.push(b"ok\nabcde\nlater\n"), Err(LineTooLong));
        assert_eq!(all(&mut lines), ["ok"]);
        assert_eq!(lines.push(b"more\n"), Err(LineTooLong));
        assert_eq!((lines.next(), lines.finish()), (None, None));
    }

    #[test]
    fn a_line_that_grows_beyond_the_limit_is_discarded_at_once() {
        let mut lines = LineSplitter::new(4);
        lines.push(b"abc").unwrap();
        lines.push(b"de").unwrap(); // The last byte could have been a carriage return.
        assert_eq!(lines.push(b"f"), Err(LineTooLong));
        assert!(lines.partial.is_empty() && lines.partial.capacity() == 0, "its memory is freed");
        assert_eq!(lines.finish(), None);
    }

    #[test]
    fn an_unterminated_line_above_the_limit_is_not_returned() {
        let mut lines = LineSplitter::new(4);
        lines.push(b"abcde").unwrap();
        assert_eq!(lines.finish(), None);
    }
}
