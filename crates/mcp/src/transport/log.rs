//! Keeps the last lines that a server wrote to stderr, in bounded memory, across restarts.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// How many lines and bytes are kept.
const LINES: usize = 1000;
const BYTES: usize = 256 << 10; // 256 KiB

/// How many bytes of one line are kept.
const LINE_BYTES: usize = 8 << 10; // 8 KiB

/// How many lines an error quotes, and how many characters of each.
const QUOTED_LINES: usize = 10;
const QUOTED_CHARS: usize = 300;

/// The last stderr lines of a server.
#[derive(Debug, Default)]
pub struct StderrLog {
    kept: Mutex<LogLines>,
}

#[derive(Debug, Default)]
struct LogLines {
    lines: VecDeque<String>,
    bytes: usize,
    /// How many lines were ever added. The last of them is the last in `lines`.
    total: u64,
}

impl StderrLog {
    /// The kept lines, oldest first.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.kept.lock().lines.iter().cloned().collect()
    }

    /// How many lines were ever added.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.kept.lock().total
    }

    /// Adds a line. Invalid UTF-8 is replaced.
    pub(crate) fn add(&self, line: &[u8]) {
        let is_cut = line.len() > LINE_BYTES;
        let mut text = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES)]).into_owned();
        if is_cut {
            text.push('…');
        }
        let mut kept = self.kept.lock();
        kept.bytes += text.len();
        kept.lines.push_back(text);
        kept.total += 1;
        while kept.lines.len() > LINES || kept.bytes > BYTES {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.len();
        }
    }

    /// Formats the last lines for an error message, but none of the first `seen` lines ever added. Empty if no other line was added.
    pub(crate) fn quote(&self, seen: u64) -> String {
        let kept = self.kept.lock();
        let new = usize::try_from(kept.total.saturating_sub(seen)).unwrap_or(usize::MAX);
        let count = new.min(QUOTED_LINES).min(kept.lines.len());
        let last = kept.lines.iter().skip(kept.lines.len() - count);
        let mut text = String::new();
        for line in last {
            text.push_str(if text.is_empty() { "its last lines on stderr:\n  " } else { "\n  " });
            let quoted = line.chars().take(QUOTED_CHARS);
            text.extend(quoted.map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_the_last_lines_in_bounded_memory() {
        let log = StderrLog::default();
        for n in 0..5000 {
            log.add(format!("line {n}").as_bytes());
        }
        assert_eq!((log.total(), log.lines().len()), (5000, LINES));
        assert_eq!(log.lines().last().map(String::as_str), Some("line 4999"));
        for _ in 0..100 {
            log.add(&vec![b'x'; 1 << 20]);
        }
        assert!(log.lines().iter().map(String::len).sum::<usize>() <= BYTES);
    }

    #[test]
    fn only_new_lines_are_quoted_and_control_characters_are_replaced() {
        let log = StderrLog::default();
        assert_eq!(log.quote(0), "");
        log.add(b"old");
        let seen = log.total();
        assert_eq!(log.quote(seen), "");
        log.add(b"new \x1b[2J\xff");
        assert_eq!(log.quote(seen), "its last lines on stderr:\n  new \u{fffd}[2J\u{fffd}");
        for n in 0..50 {
            log.add(format!("{n}").as_bytes());
        }
        assert_eq!(log.quote(seen).lines().count(), 1 + QUOTED_LINES);
    }
}
