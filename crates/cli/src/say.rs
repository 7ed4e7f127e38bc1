//! Text for people and programs: the only writes to stdout and stderr, none of which can end the program.
//! Must not know what is said.

use std::{
    fmt::Display,
    io::{self, Write as _},
    process::ExitCode,
};

use crate::TROUBLE;

/// One line of data on stdout, flushed; a reader that left is not our trouble.
pub(crate) fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    // Nobody is there to be told.
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).ok();
}

/// One line of talk on stderr.
pub(crate) fn talk(text: impl Display) {
    // As above.
    writeln!(io::stderr(), "{text}").ok();
}

/// An error with everything that led to it, on one line.
pub(crate) fn error(error: &anyhow::Error) {
    talk(format_args!("exec-server: {error:#}"));
}

/// Says why the program ends, and how.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    self::error(error);
    ExitCode::from(TROUBLE)
}
