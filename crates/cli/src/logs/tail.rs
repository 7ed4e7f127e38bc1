//! Finds where the last lines of a log begin.
//!
//! The protocol can only read forward. So the log is read in windows. Each window reaches to the end of the log and is `GROWTH` times as
//! large as the one before, so all earlier windows together are at most a seventh of the last one. Only positions of line ends are kept,
//! not the text.

use std::{collections::VecDeque, time::Duration};

use anyhow::anyhow;
use exec_server_client::Process;

use super::READ_BYTES;

/// Number of events in the first window.
const FIRST_WINDOW: u64 = 64;

/// The factor by which the next window is larger.
const GROWTH: u64 = 8;

/// A position in a log: after event `after`, and `skip` bytes into the next event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) after: u64,
    pub(super) skip: usize,
}

/// Finds the beginning of the last `lines` lines, looking only at events after `since` up to `last`.
pub(super) async fn find(process: &Process, since: u64, last: u64, lines: usize) -> anyhow::Result<LogPosition> {
    if lines == 0 {
        return Ok(LogPosition { after: last.max(since), skip: 0 });
    }
    let mut window = FIRST_WINDOW;
    loop {
        let after = last.saturating_sub(window).max(since);
        let mut ends = LineEnds::new(lines);
        scan(process, after, last, &mut ends).await?;
        match ends.beginning() {
            Some(beginning) => return Ok(beginning),
            None if after == since => return Ok(LogPosition { after: since, skip: 0 }),
            None => window = window.saturating_mul(GROWTH),
        }
    }
}

async fn scan(process: &Process, mut after: u64, last: u64, ends: &mut LineEnds) -> anyhow::Result<()> {
    while after < last {
        let read = process.read(after, Some(READ_BYTES), Duration::ZERO).await?;
        for chunk in read.chunks.iter().take_while(|chunk| chunk.seq <= last) {
            ends.add(chunk.seq, &chunk.bytes);
        }
        let next = read.next_seq.saturating_sub(1);
        if next <= after {
            return Err(anyhow!("the server sent nothing after number {after} of {last}"));
        }
        after = next;
    }
    Ok(())
}

/// The last line ends in a part of a log.
struct LineEnds {
    lines: usize,
    /// For each line end, the event and the offset after it. One more than `lines` is kept, because the last line end may be the end of
    /// the log.
    positions: VecDeque<(u64, usize)>,
    /// Whether the log ends with a line end.
    is_at_end: bool,
}

impl LineEnds {
    fn new(lines: usize) -> Self {
        Self { lines, positions: VecDeque::new(), is_at_end: false }
    }

    fn add(&mut self, seq: u64, bytes: &[u8]) {
        for (offset, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            self.positions.push_back((seq, offset + 1));
            if self.positions.len() > self.lines.saturating_add(1) {
                self.positions.pop_front();
            }
        }
        if let Some(byte) = bytes.last() {
            self.is_at_end = *byte == b'\n';
        }
    }

    /// `None` if there are too few line ends: the first of the requested lines may begin before this part.
    fn beginning(&self) -> Option<LogPosition> {
        let needed = self.lines + usize::from(self.is_at_end);
        let (seq, skip) = *self.positions.get(self.positions.len().checked_sub(needed)?)?;
        Some(LogPosition { after: seq - 1, skip })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(chunks: &[&str], lines: usize) -> Option<String> {
        let mut ends = LineEnds::new(lines);
        for (at, chunk) in chunks.iter().enumerate() {
            ends.add(at as u64 + 1, chunk.as_bytes());
        }
        let LogPosition { after, skip } = ends.beginning()?;
        Some(chunks[usize::try_from(after).expect("small")..].concat()[skip..].to_owned())
    }

    #[test]
    fn the_last_lines_begin_after_a_line_end() {
        let whole = ["a\nb", "b\n", "c\nd\n"];
        assert_eq!(tail(&whole, 1).as_deref(), Some("d\n"));
        assert_eq!(tail(&whole, 2).as_deref(), Some("c\nd\n"));
        assert_eq!(tail(&whole, 3).as_deref(), Some("bb\nc\nd\n"));
        assert_eq!(tail(&whole, 4), None, "the first line may have begun earlier");
        let open = ["a\n", "b\nc"];
        assert_eq!(tail(&open, 1).as_deref(), Some("c"));
        assert_eq!(tail(&open, 2).as_deref(), Some("b\nc"));
        assert_eq!(tail(&open, 3), None);
        assert_eq!(tail(&[], 1), None);
    }
}
