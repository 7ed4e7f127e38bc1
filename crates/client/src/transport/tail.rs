//! The last words of a program: its standard error goes to the log line by line, and the end of it is kept for an error.
//!
//! Bounded whatever the program writes. What is shown to people has no control characters: the text may come from
//! another machine.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{io::AsyncReadExt as _, net::unix::pipe, sync::watch};

/// Bytes of text kept: enough for the complaint of any ssh, its warnings included.
const KEPT_BYTES: usize = 4 * 1024;

/// Longest line that is kept and logged; the rest of a longer one is dropped.
const LINE_BYTES: usize = 1024;

/// Lines that go into an error text.
const SHOWN_LINES: usize = 6;

/// One read of standard error.
const READ_BYTES: usize = 4 * 1024;

/// What a program said last. Written by whoever reads its standard error, and for ssh by who reads its standard output.
#[derive(Debug)]
pub(super) struct Tail {
    state: Mutex<State>,
    /// Standard error has ended.
    finished_tx: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// Whole lines without their ends, at most `KEPT_BYTES` together.
    lines: VecDeque<String>,
    bytes: usize,
    /// The line that has not ended, at most `LINE_BYTES`.
    partial: Vec<u8>,
}

impl Tail {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), finished_tx: watch::Sender::new(false) }
    }

    /// Takes what came next.
    pub(super) fn feed(&self, bytes: &[u8]) {
        let mut state = self.lock();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, is_end) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            let room = LINE_BYTES - state.partial.len();
            state.partial.extend_from_slice(&text[..text.len().min(room)]);
            if is_end {
                state.end_line();
            }
        }
    }

    /// The last lines in one line, or nothing.
    pub(super) fn text(&self) -> String {
        let mut state = self.lock();
        state.end_line();
        let skipped = state.lines.len().saturating_sub(SHOWN_LINES);
        let lines: Vec<&str> = state.lines.iter().skip(skipped).map(String::as_str).collect();
        lines.join("; ")
    }

    /// The last line.
    pub(super) fn last(&self) -> Option<String> {
        let mut state = self.lock();
        state.end_line();
        state.lines.back().cloned()
    }

    /// Reads standard error to its end.
    pub(super) async fn drain(&self, mut stderr: pipe::Receiver) {
        let mut buf = [0; READ_BYTES];
        while let Ok(count @ 1..) = stderr.read(&mut buf).await {
            self.feed(&buf[..count]);
        }
        self.finished_tx.send_replace(true);
    }

    /// Waits until standard error has ended.
    pub(super) async fn finished(&self) {
        // The sender is ours, so that it cannot be gone.
        self.finished_tx.subscribe().wait_for(|finished| *finished).await.ok();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Turns what came since the last line end into a line, unless it is blank.
    fn end_line(&mut self) {
        let text = String::from_utf8_lossy(&self.partial).trim().replace(char::is_control, "?");
        self.partial.clear();
        if text.is_empty() {
            return;
        }
        tracing::debug!(target: "exec_server_client::transport::stderr", "{text}");
        self.bytes += text.len();
        self.lines.push_back(text);
        while self.bytes > KEPT_BYTES
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
    fn the_last_lines_are_kept_without_what_could_move_a_terminal() {
        let tail = Tail::new();
        assert_eq!((tail.text(), tail.last()), (String::new(), None));
        for piece in ["one\ntw", "o\r\n\n  \n", "\x1b[2Jthree\x07\n", "fo", "ur"] {
            tail.feed(piece.as_bytes());
        }
        assert_eq!(tail.text(), "one; two; ?[2Jthree?; four");
        assert_eq!(tail.last().as_deref(), Some("four"));
    }

    #[test]
    fn a_flood_leaves_only_its_end() {
        let tail = Tail::new();
        tail.feed(&vec![b'x'; 1 << 20]);
        tail.feed(b"\n");
        assert_eq!(tail.last().map(|line| line.len()), Some(LINE_BYTES));
        for number in 0..100_000 {
            tail.feed(format!("line {number}\n").as_bytes());
        }
        tail.feed(&[0xff; 3]);
        let text = tail.text();
        assert!(text.starts_with("line 99995; ") && text.ends_with("line 99999; \u{fffd}\u{fffd}\u{fffd}"), "{text}");
        assert!(tail.lock().bytes <= KEPT_BYTES);
    }
}
