//! Tracks the length of the unfinished line in a terminal's canonical mode, to detect input that the terminal drops.
//!
//! The kernel keeps [`LINE_BYTES`] of a line and silently drops the rest, up to the end of the line: the write that
//! brought the bytes still succeeds. So this module counts the bytes as they are written. It does not handle word erase
//! (VWERASE), so such a line counts as longer than it is.

use rustix::termios::{InputModes, LocalModes, SpecialCodeIndex, Termios};

/// How many bytes of a line the kernel keeps besides the line end: `N_TTY_BUF_SIZE` - 1.
const LINE_BYTES: usize = 4095;

/// Number of bytes after the last line end.
#[derive(Default)]
pub(crate) struct UnfinishedLine {
    bytes: usize,
}

impl UnfinishedLine {
    /// Counts bytes that were written in these terminal modes. Returns whether the terminal dropped some of them.
    pub(crate) fn add(&mut self, modes: &Termios, bytes: &[u8]) -> bool {
        if !modes.local_modes.contains(LocalModes::ICANON) {
            self.bytes = 0;
            return false;
        }
        let is = |byte: u8, index| byte != 0 && modes.special_codes[index] == byte;
        let is_return_an_end =
            modes.input_modes.contains(InputModes::ICRNL) && !modes.input_modes.contains(InputModes::IGNCR);
        let has_signals =
            modes.local_modes.contains(LocalModes::ISIG) && !modes.local_modes.contains(LocalModes::NOFLSH);
        let mut is_cut = false;
        for &byte in bytes {
            let is_end = byte == b'\n'
                || (byte == b'\r' && is_return_an_end)
                || is(byte, SpecialCodeIndex::VEOL)
                || is(byte, SpecialCodeIndex::VEOL2)
                || is(byte, SpecialCodeIndex::VEOF);
            let is_flush = has_signals
                && (is(byte, SpecialCodeIndex::VINTR)
                    || is(byte, SpecialCodeIndex::VQUIT)
                    || is(byte, SpecialCodeIndex::VSUSP));
            if is_end || is_flush || is(byte, SpecialCodeIndex::VKILL) {
                self.bytes = 0;
            } else if is(byte, SpecialCodeIndex::VERASE) {
                self.bytes = self.bytes.saturating_sub(1);
            } else {
                self.bytes += 1;
                is_cut |= self.bytes > LINE_BYTES;
            }
        }
        is_cut
    }
}
