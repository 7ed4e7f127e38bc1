//! Text for people and programs: the only writes to stdout and stderr, none of which can end the program.
//! Must not know what is said.

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use crate::{codes, terminal};

/// One line of data on stdout, flushed; a reader that left is not our trouble.
pub(crate) fn line(text: &str) {
    // Nobody is there to be told.
    data(format!("{text}\n").as_bytes()).ok();
}

/// Data on stdout, flushed.
pub(crate) fn data(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// One line of talk on stderr.
pub(crate) fn talk(text: impl Display) {
    // A raw terminal does not go back to the first column by itself.
    let line = if terminal::is_raw() { format!("{text}\n").replace('\n', "\r\n") } else { format!("{text}\n") };
    // In one piece, because the program's own output may come between two. As above.
    io::stderr().write_all(line.as_bytes()).ok();
}

/// One dim line on stderr, where that is a terminal: what is going on, for a person who waits.
pub(crate) fn dim(text: impl Display) {
    if io::stderr().is_terminal() {
        // As above.
        io::stderr().write_all(format!("\x1b[2m{text}\x1b[0m\n").as_bytes()).ok();
    }
}

/// An error with everything that led to it, on one line.
pub(crate) fn error(error: &anyhow::Error) {
    talk(format_args!("exec-server: {error:#}"));
}

/// Says why the program ends, and how.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    self::error(error);
    ExitCode::from(codes::of_error(error))
}
