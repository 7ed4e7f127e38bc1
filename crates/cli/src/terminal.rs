//! Puts our own terminal into raw mode while a program has a terminal on the other side, and restores it.
//!
//! The previous modes are kept in a static, because several places restore them: the normal end of this command, a panic, and a suspend.

use std::{
    io::{self, IsTerminal as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Context as _;
use exec_server_protocol::process::Size;
use parking_lot::Mutex;
use rustix::termios::{self, OptionalActions, Termios};

/// The modes to restore; `None` while the terminal is not in raw mode.
static PREVIOUS_MODES: Mutex<Option<Termios>> = Mutex::new(None);

/// Resets what a full-screen program may have changed: alternate screen, hidden cursor, colours, mouse reports, bracketed paste,
/// application keys.
const RESET_SCREEN: &[u8] =
    b"\x1b[?1049l\x1b[?25h\x1b[0m\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?1l\x1b>";

/// Clears the screen.
const CLEAR: &[u8] = b"\x1b[0m\x1b[H\x1b[2J";

/// Whether the program on the other side draws on the alternate screen, as editors do.
static ALTERNATE: AtomicBool = AtomicBool::new(false);

/// Stdin as a raw terminal. Dropping this restores the previous modes.
pub(crate) struct Terminal(());

impl Terminal {
    /// Puts stdin into raw mode; `None` if stdin is not a terminal.
    pub(crate) fn open() -> anyhow::Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        make_raw()?;
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            default(info);
        }));
        Ok(Some(Self(())))
    }

    /// Returns to raw mode after other programs used the terminal and may have changed its modes.
    pub(crate) fn make_raw_again(&self) {
        // Ignore the error: the terminal may have gone.
        make_raw().ok();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Whether our terminal is in raw mode.
pub(crate) fn is_raw() -> bool {
    PREVIOUS_MODES.lock().is_some()
}

/// Whether another program, such as ssh, is reading a password from our terminal: then echo is off.
pub(crate) fn is_reading_password() -> bool {
    let echoes = |modes: Termios| modes.local_modes.contains(termios::LocalModes::ECHO);
    !is_raw() && termios::tcgetattr(io::stdin()).is_ok_and(|modes| !echoes(modes))
}

/// Rows and columns of the first standard stream that is a terminal.
pub(crate) fn size() -> Option<Size> {
    let stdin = io::stdin();
    let stdout = io::stdout();
    let stderr = io::stderr();
    let of = |fd: BorrowedFd<'_>| {
        let size = termios::tcgetwinsize(fd).ok()?;
        (size.ws_row > 0 && size.ws_col > 0).then_some(Size { rows: size.ws_row, cols: size.ws_col })
    };
    of(stdin.as_fd()).or_else(|| of(stdout.as_fd())).or_else(|| of(stderr.as_fd()))
}

/// Clears the screen if stdout is a terminal.
pub(crate) fn clear() {
    write(CLEAR);
}

/// Resets what a program that continues without us has changed on our screen.
pub(crate) fn reset_screen() {
    write(RESET_SCREEN);
}

/// Records which screen the program draws on.
pub(crate) fn set_alternate(is_alternate: bool) {
    ALTERNATE.store(is_alternate, Ordering::Relaxed);
}

/// Whether the program draws on the alternate screen, as far as is known.
pub(crate) fn is_alternate() -> bool {
    ALTERNATE.load(Ordering::Relaxed)
}

/// Shows a line on the last row and restores the cursor. `is_shown`: a line is already there.
///
/// A program on the alternate screen redraws later. On the normal screen, the covered text would be lost, so the screen is first scrolled
/// up by one row.
pub(crate) fn show_status(text: &str, is_shown: bool) {
    let Some(Size { rows, cols }) = size() else { return };
    let text: String = text.chars().take(usize::from(cols).saturating_sub(1)).collect();
    let (scroll, back) = if is_shown || is_alternate() { ("", "") } else { ("\n", "\x1b[A") };
    let line = format!("\x1b7\x1b[{rows};1H{scroll}\x1b[0;7m{text}\x1b[0m\x1b[K\x1b8{back}");
    write(line.as_bytes());
}

/// Clears the last row.
pub(crate) fn hide_status() {
    if let Some(Size { rows, .. }) = size() {
        write(format!("\x1b7\x1b[{rows};1H\x1b[0m\x1b[2K\x1b8").as_bytes());
    }
}

fn write(sequence: &[u8]) {
    let mut stdout = io::stdout();
    if stdout.is_terminal() {
        // If the terminal has gone, there is nothing to show.
        stdout.write_all(sequence).and_then(|()| stdout.flush()).ok();
    }
}

fn make_raw() -> anyhow::Result<()> {
    let stdin = io::stdin();
    let mut previous = PREVIOUS_MODES.lock();
    let now = termios::tcgetattr(&stdin).context("read the modes of the terminal")?;
    // If the terminal is already raw, keep the modes that were saved before.
    let mut raw = previous.get_or_insert(now).clone();
    raw.make_raw();
    // `Now` does not flush the input: keys typed while the program was being started are meant for it.
    let made = termios::tcsetattr(&stdin, OptionalActions::Now, &raw);
    if made.is_err() {
        *previous = None;
    }
    made.context("make the terminal raw")
}

/// Restores the modes, at the end or for a while, such as during a suspend. Does nothing if the terminal is not raw.
pub(crate) fn restore() {
    if let Some(modes) = PREVIOUS_MODES.lock().take() {
        // Ignore the error, because the terminal may have gone. Do not drain: output stopped with Ctrl-S would block us forever.
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok();
    }
}
