//! Text for people and programs: the only writes to stdout and stderr, none of which can end the program. All text passes
//! `printable` here; only [`data`] is written as it is. Must not know what is said.

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use exec_server_client::{Error, environment::EnvironmentError};

use crate::{
    codes,
    display::{self, Palette},
    printable, terminal,
};

/// One line of text on stdout, flushed; a reader that left is not our trouble.
pub(crate) fn line(line: &str) {
    // Nobody is there to be told.
    text(&format!("{line}\n")).ok();
}

/// Text on stdout, flushed: as it is, but on a terminal nothing that steers it, except colours.
pub(crate) fn text(text: &str) -> io::Result<()> {
    if io::stdout().is_terminal() { data(printable::clean_coloured(text).as_bytes()) } else { data(text.as_bytes()) }
}

/// JSON on stdout, flushed.
pub(crate) fn json(text: &str) -> io::Result<()> {
    data(printable::clean_json(text).as_bytes())
}

/// Data on stdout as it is, flushed: the bytes of a program or of a file.
pub(crate) fn data(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Lines of talk on stderr.
pub(crate) fn talk(text: impl Display) {
    talk_with(&printable::clean_lines(&text.to_string()));
}

/// One dim line on stderr, where that is a terminal: what is going on, for a person who waits.
pub(crate) fn dim(text: impl Display) {
    if io::stderr().is_terminal() && !IS_QUIET.load(Ordering::Relaxed) {
        let line = printable::clean(&text.to_string());
        talk_with(&Palette::of_stderr().paint(display::DIM, &line));
    }
}

/// Whether notices are left out: `-q`.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// From now on notices are left out.
pub(crate) fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// One line of talk that a person who said `-q` does not want: nothing failed, and nothing is missing.
pub(crate) fn notice(text: impl Display) {
    if !IS_QUIET.load(Ordering::Relaxed) {
        talk(text);
    }
}

/// An error with everything that led to it, on one line.
pub(crate) fn error(error: &anyhow::Error) {
    let causes: Vec<String> = error.chain().map(describe).collect();
    talk(format_args!("exec-server: {}", causes.join(": ")));
}

/// Says why the program ends, and how.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    self::error(error);
    ExitCode::from(codes::of_error(error))
}

/// One cause. A line end in it could be a server's, which would let it speak in our name: only causes of this machine keep theirs.
fn describe(cause: &(dyn std::error::Error + 'static)) -> String {
    let is_ours = match cause.downcast_ref::<Error>() {
        Some(error) => matches!(error, Error::Spawn { .. } | Error::Connect { .. }),
        None => cause.is::<EnvironmentError>(),
    };
    let text = cause.to_string();
    if is_ours { printable::clean_lines(&text) } else { printable::clean(&text) }
}

fn talk_with(text: &str) {
    // A raw terminal does not go back to the first column by itself.
    let line = if terminal::is_raw() { format!("{text}\n").replace('\n', "\r\n") } else { format!("{text}\n") };
    // In one piece, because the program's own output may come between two. Nobody is there to be told of a failure.
    io::stderr().write_all(line.as_bytes()).ok();
}
