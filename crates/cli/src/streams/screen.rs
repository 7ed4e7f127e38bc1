//! Tracks whether a program draws on the normal or the alternate screen, from the escape sequences in its output.

use crate::terminal;

/// How many bytes at the end of the output are kept, because a sequence may continue in the next bytes. A sequence that is longer than
/// this can be missed if it is split.
const SEQUENCE_MAX: usize = 16;

/// Finds screen switches in the output of a program, also if a sequence is split between two pieces.
#[derive(Debug, Default)]
pub(super) struct ScreenTracker {
    /// The end of the previous bytes, which may be the beginning of a sequence.
    tail: Vec<u8>,
}

impl ScreenTracker {
    /// Processes the next bytes of the program's output.
    pub(super) fn track(&mut self, bytes: &[u8]) {
        if self.tail.is_empty() && !bytes.contains(&0x1b) {
            return;
        }
        self.tail.extend_from_slice(bytes);
        if let Some(is_alternate) = last_switch(&self.tail) {
            terminal::set_alternate(is_alternate);
        }
        let kept = self.tail.len().saturating_sub(SEQUENCE_MAX);
        self.tail.drain(..kept);
        if !self.tail.contains(&0x1b) {
            self.tail.clear();
        }
    }
}

/// The last screen switch in these bytes, if there is one; true for the alternate screen.
fn last_switch(bytes: &[u8]) -> Option<bool> {
    let mut last = None;
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == 0x1b) {
        let Some(body) = bytes[at + 1..].strip_prefix(b"[?") else { continue };
        let Some(end) = body.iter().position(|byte| !byte.is_ascii_digit() && *byte != b';') else { continue };
        let switches = body[..end].split(|byte| *byte == b';').any(|mode| matches!(mode, b"47" | b"1047" | b"1049"));
        match body[end] {
            b'h' if switches => last = Some(true),
            b'l' if switches => last = Some(false),
            _ => {}
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_switch_counts_and_other_modes_do_not() {
        assert_eq!(last_switch(b"text\x1b[31m\x1b[?25l"), None);
        assert_eq!(last_switch(b"\x1b[?1049h\x1b[?25l"), Some(true));
        assert_eq!(last_switch(b"\x1b[?1049h..\x1b[?47l"), Some(false));
        assert_eq!(last_switch(b"\x1b[?25;1049h"), Some(true));
        assert_eq!(last_switch(b"\x1b[?1049"), None);
    }

    #[test]
    fn a_sequence_may_come_in_pieces() {
        let mut tracker = ScreenTracker::default();
        for piece in [&b"much text before it \x1b"[..], b"[?10", b"49h and much text behind it"] {
            tracker.track(piece);
        }
        assert!(terminal::is_alternate());
        tracker.track(b"\x1b[?1049l");
        assert!(!terminal::is_alternate());
    }
}
