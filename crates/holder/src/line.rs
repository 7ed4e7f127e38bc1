//! How long the line is that a terminal collects in canonical mode.
//!
//! The kernel keeps [`LINE_BYTES`] of a line and drops what comes behind them, up to the end of the line, while the write that brought
//! them succeeds. So the bytes are counted on their way in. Erasing a word is not understood: such a line counts as longer than it is.

use rustix::termios::{InputModes, LocalModes, SpecialCodeIndex, Termios};

/// What the kernel keeps of a line beside its end: `N_TTY_BUF_SIZE` less one.
const LINE_BYTES: usize = 4095;

/// The bytes behind the last end of a line.
#[derive(Default)]
pub(crate) struct UnfinishedLine {
    bytes: usize,
}

impl UnfinishedLine {
    /// Counts bytes that were written in these modes; says whether the terminal dropped some of them.
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
