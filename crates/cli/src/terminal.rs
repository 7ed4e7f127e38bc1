//! Our own terminal while a program has one on the other side: raw, and given back as it was.
//!
//! What it was is kept for the whole process, because it is given back from wherever the program ends: in order, by a panic,
//! or when it is suspended. Must not know where keys go.

use std::{
    io::{self, IsTerminal as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use exec_server_protocol::process::Size;
use rustix::termios::{self, OptionalActions, Termios};

/// The modes to give back; `None` while the terminal is not ours.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Ends what a full-screen program may have begun: the other screen, a hidden cursor, colours, mouse reports, pasting in brackets,
/// application keys.
const CALM: &[u8] =
    b"\x1b[?1049l\x1b[?25h\x1b[0m\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?1l\x1b>";

/// An empty screen to draw on.
const CLEAR: &[u8] = b"\x1b[0m\x1b[H\x1b[2J";

/// The program on the other side draws on the alternate screen, as editors do.
static ALTERNATE: AtomicBool = AtomicBool::new(false);

/// Standard input as a raw terminal; back to what it was when dropped.
pub(crate) struct Terminal(());

impl Terminal {
    /// Makes standard input raw; `None` when it is no terminal: then bytes come from somewhere that has no modes.
    pub(crate) fn open() -> anyhow::Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        make_raw()?;
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            give_back();
            default(info);
        }));
        Ok(Some(Self(())))
    }

    /// Lets others have it for a while.
    pub(crate) fn give_back(&self) {
        give_back();
    }

    /// Makes it raw again; whoever had it meanwhile may have changed it.
    pub(crate) fn take_again(&self) {
        // A terminal that is gone needs no modes.
        make_raw().ok();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Whether our terminal is raw now.
pub(crate) fn is_raw() -> bool {
    before().is_some()
}

/// Whether another program, such as ssh, reads a password from our terminal now: it has switched the echo off.
pub(crate) fn is_asking() -> bool {
    let echoes = |modes: Termios| modes.local_modes.contains(termios::LocalModes::ECHO);
    !is_raw() && termios::tcgetattr(io::stdin()).is_ok_and(|modes| !echoes(modes))
}

/// Rows and columns of the first of our standard streams that is a terminal.
pub(crate) fn size() -> Option<Size> {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let of = |fd: BorrowedFd<'_>| {
        let size = termios::tcgetwinsize(fd).ok()?;
        (size.ws_row > 0 && size.ws_col > 0).then_some(Size { rows: size.ws_row, cols: size.ws_col })
    };
    of(stdin.as_fd()).or_else(|| of(stdout.as_fd())).or_else(|| of(stderr.as_fd()))
}

/// An empty screen, where standard output is one.
pub(crate) fn clear() {
    write(CLEAR);
}

/// Ends what a program that goes on without us has begun on our screen.
pub(crate) fn calm() {
    write(CALM);
}

/// Notes which screen the program draws on.
pub(crate) fn set_alternate(is_alternate: bool) {
    ALTERNATE.store(is_alternate, Ordering::Relaxed);
}

/// Whether the program draws on the alternate screen, as far as is known.
pub(crate) fn is_alternate() -> bool {
    ALTERNATE.load(Ordering::Relaxed)
}

/// Shows a line of ours on the last row, and leaves the cursor to the program. `is_shown`: there is one already.
///
/// A program on the alternate screen draws again afterwards. What a shell has printed is drawn by nobody again, so the screen
/// moves up by a row first and nothing is covered.
pub(crate) fn show_status(text: &str, is_shown: bool) {
    let Some(Size { rows, cols }) = size() else { return };
    let text: String = text.chars().take(usize::from(cols).saturating_sub(1)).collect();
    let (scroll, back) = if is_shown || is_alternate() { ("", "") } else { ("\n", "\x1b[A") };
    let line = format!("\x1b7\x1b[{rows};1H{scroll}\x1b[0;7m{text}\x1b[0m\x1b[K\x1b8{back}");
    write(line.as_bytes());
}

/// Empties the last row.
pub(crate) fn hide_status() {
    if let Some(Size { rows, .. }) = size() {
        write(format!("\x1b7\x1b[{rows};1H\x1b[0m\x1b[2K\x1b8").as_bytes());
    }
}

fn write(sequence: &[u8]) {
    let mut stdout = io::stdout();
    if stdout.is_terminal() {
        // A terminal that is gone shows nothing.
        stdout.write_all(sequence).and_then(|()| stdout.flush()).ok();
    }
}

fn make_raw() -> anyhow::Result<()> {
    let stdin = io::stdin();
    let mut before = before();
    let now = termios::tcgetattr(&stdin).context("read the modes of the terminal")?;
    let mut raw = before.get_or_insert(now).clone();
    raw.make_raw();
    // Not flushed: what was typed while the program was being started is for it.
    let made = termios::tcsetattr(&stdin, OptionalActions::Now, &raw);
    if made.is_err() {
        *before = None;
    }
    made.context("make the terminal raw")
}

fn give_back() {
    if let Some(modes) = before().take() {
        // The terminal may be gone: nothing to give back. Not drained: one that is held with Ctrl-S would keep us for ever.
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok();
    }
}

fn before() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}
