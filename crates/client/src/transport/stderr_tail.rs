//! Logs the stderr of a program line by line, and keeps its end for error messages.
//!
//! Memory is bounded, however much the program writes. Control characters are replaced in text that is shown to people, because the text
//! may come from another machine.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::{io::AsyncReadExt as _, net::unix::pipe, sync::watch};

/// Bytes of text that are kept: enough for any error message of ssh, including warnings.
const TAIL_BYTES: usize = 4 * 1024;

/// Longest line that is kept and logged. The rest of a longer line is dropped.
const LINE_BYTES: usize = 1024;

/// Lines that go into an error message.
const SHOWN_LINES: usize = 6;

/// The size of one read of stderr.
const READ_BYTES: usize = 4 * 1024;

/// The last output of a program. Filled by the reader of its stderr, and for ssh also by the reader of its stdout.
#[derive(Debug)]
pub(super) struct StderrTail {
    state: Mutex<TailLines>,
    /// True once stderr has reached EOF.
    finished_tx: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct TailLines {
    /// Complete lines without line ends, at most `TAIL_BYTES` together.
    lines: VecDeque<String>,
    bytes: usize,
    /// The incomplete last line, at most `LINE_BYTES`.
    partial: Vec<u8>,
}

impl StderrTail {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), finished_tx: watch::Sender::new(false) }
    }

    /// Appends bytes.
    pub(super) fn append(&self, bytes: &[u8]) {
        let mut state = self.state.lock();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, is_end) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            let room = LINE_BYTES - state.partial.len();
            state.partial.extend_from_slice(&text[..text.len().min(room)]);
            if is_end {
                state.end_line();
            }
        }
    }

    /// The last `SHOWN_LINES` lines, joined into one; empty if there are none. Ends the incomplete last line, as `last` does.
    pub(super) fn text(&self) -> String {
        let mut state = self.state.lock();
        state.end_line();
        let skipped = state.lines.len().saturating_sub(SHOWN_LINES);
        let lines: Vec<&str> = state.lines.iter().skip(skipped).map(String::as_str).collect();
        lines.join("; ")
    }

    /// The last line.
    pub(super) fn last(&self) -> Option<String> {
        let mut state = self.state.lock();
        state.end_line();
        state.lines.back().cloned()
    }

    /// Reads stderr to its end.
    pub(super) async fn drain(&self, mut stderr: pipe::Receiver) {
        let mut buf = [0; READ_BYTES];
        while let Ok(count @ 1..) = stderr.read(&mut buf).await {
            self.append(&buf[..count]);
        }
        self.finished_tx.send_replace(true);
    }

    /// Waits until stderr has reached EOF.
    pub(super) async fn finished(&self) {
        // Cannot fail: the sender is a field of `self`.
        self.finished_tx.subscribe().wait_for(|finished| *finished).await.ok();
    }
}

impl TailLines {
    /// Turns the incomplete line into a complete one, unless it is blank.
    fn end_line(&mut self) {
        let text = String::from_utf8_lossy(&self.partial).trim().replace(char::is_control, "?");
        self.partial.clear();
        if text.is_empty() {
            return;
        }
        tracing::debug!(target: "exec_server_client::transport::stderr", "{text}");
        self.bytes += text.len();
        self.lines.push_back(text);
        while self.bytes > TAIL_BYTES
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_without_control_characters() {
        let tail = StderrTail::new();
        assert_eq!((tail.text(), tail.last()), (String::new(), None));
        for piece in ["one\ntw", "o\r\n\n  \n", "\x1b[2Jthree\x07\n", "fo", "ur"] {
            tail.append(piece.as_bytes());
        }
        assert_eq!(tail.text(), "one; two; ?[2Jthree?; four");
        assert_eq!(tail.last().as_deref(), Some("four"));
    }

    #[test]
    fn a_flood_leaves_only_its_end() {
        let tail = StderrTail::new();
        tail.append(&vec![b'x'; 1 << 20]);
        tail.append(b"\n");
        assert_eq!(tail.last().map(|line| line.len()), Some(LINE_BYTES));
        for number in 0..100_000 {
            tail.append(format!("line {number}\n").as_bytes());
        }
        tail.append(&[0xff; 3]);
        let text = tail.text();
        assert!(text.starts_with("line 99995; ") && text.ends_with("line 99999; \u{fffd}\u{fffd}\u{fffd}"), "{text}");
        assert!(tail.state.lock().bytes <= TAIL_BYTES);
    }
}
