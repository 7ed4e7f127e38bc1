//! Our own terminal while a program has one on the other side: raw, and given back as it was.
//! Must not know where keys go.

use std::{
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
};

use anyhow::Context as _;
use rustix::termios::{self, OptionalActions, Termios};

/// Standard input as a raw terminal; back to what it was when dropped.
pub(super) struct Terminal {
    before: Termios,
}

impl Terminal {
    /// Makes standard input raw; `None` when it is no terminal: then bytes come from somewhere that has no modes.
    pub(super) fn open() -> anyhow::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = termios::tcgetattr(&stdin).context("read the modes of the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(&stdin, OptionalActions::Flush, &raw).context("make the terminal raw")?;
        Ok(Some(Self { before }))
    }

    /// Rows and columns.
    pub(super) fn size(&self) -> Option<(u16, u16)> {
        size()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The terminal may be gone: nothing to give back.
        termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before).ok();
    }
}

/// Rows and columns of the terminal on standard input.
pub(super) fn size() -> Option<(u16, u16)> {
    let size = termios::tcgetwinsize(io::stdin().as_fd()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}
