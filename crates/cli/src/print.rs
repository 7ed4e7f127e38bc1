//! Writes messages, text and JSON to stdout and stderr. A failed write is an error or is ignored; it never panics as
//! `println!` does. Messages and JSON are always escaped with `printable`, text on stdout only if stdout is a terminal.
//! [`put`] writes bytes unchanged.

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Context as _;
use exec_server_client::{Error, environment::EnvironmentError};

use crate::{
    codes,
    display::{self, Palette},
    printable, terminal,
};

/// Prints a message on stderr. The prefix tells it apart from the stderr of a program that we run.
macro_rules! report {
    ($($text:tt)*) => { $crate::print::message(format_args!("exec-server: {}", format_args!($($text)*))) };
}

/// Prints a message on stderr, without a prefix.
macro_rules! message {
    ($($text:tt)*) => { $crate::print::message(format_args!($($text)*)) };
}

/// Like `report`, for a message that `-q` suppresses: nothing failed, and no data is missing.
macro_rules! notice {
    ($($text:tt)*) => {
        if !$crate::print::is_quiet() {
            report!($($text)*);
        }
    };
}

/// Writes one line to stdout and flushes.
pub(crate) fn line(line: &str) -> anyhow::Result<()> {
    text(&format!("{line}\n"))
}

/// Writes text to stdout and flushes. On a terminal, control characters are escaped, except colours.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    if io::stdout().is_terminal() { put(printable::clean_coloured(text).as_bytes()) } else { put(text.as_bytes()) }
}

/// Writes JSON to stdout and flushes.
pub(crate) fn json(text: &str) -> anyhow::Result<()> {
    put(printable::clean_json(text).as_bytes())
}

/// Writes bytes of a program or a file to stdout unchanged, and flushes.
pub(crate) fn put(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).context("write standard output")
}

/// Writes a message to stderr. The macros above call this.
pub(crate) fn message(text: impl Display) {
    write_message(&printable::clean_lines(&text.to_string()));
}

/// Writes one dim line of progress information to stderr, with our prefix, if stderr is a terminal and `-q` is not set.
pub(crate) fn dim(text: impl Display) {
    if io::stderr().is_terminal() && !is_quiet() {
        let line = printable::clean(&format!("exec-server: {text}"));
        write_message(&Palette::of_stderr().paint(display::DIM, &line));
    }
}

/// Set by `-q`: notices are not printed.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Writes an error with its whole chain of causes on one line.
pub(crate) fn error(error: &anyhow::Error) {
    let causes: Vec<String> = error.chain().map(describe).collect();
    report!("{}", causes.join(": "));
}

/// Turns the error of a write to a closed stdout into its exit code.
pub(crate) fn or_closed_pipe(done: anyhow::Result<u8>) -> anyhow::Result<u8> {
    match done {
        Err(error) if is_closed_pipe(&error) => Ok(codes::CLOSED_PIPE),
        done => done,
    }
}

/// Whether the reader of our stdout has gone.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints the error and returns the exit code for it.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    self::error(error);
    ExitCode::from(codes::of_error(error))
}

/// Formats one cause. Newlines are kept only in errors that were created on this machine: a server could use a newline to print lines that
/// look like ours.
fn describe(cause: &(dyn std::error::Error + 'static)) -> String {
    let is_ours = match cause.downcast_ref::<Error>() {
        Some(error) => matches!(error, Error::Spawn { .. } | Error::Connect { .. }),
        None => cause.is::<EnvironmentError>(),
    };
    let text = cause.to_string();
    if is_ours { printable::clean_lines(&text) } else { printable::clean(&text) }
}

fn write_message(text: &str) {
    // In raw mode a newline does not return to the first column.
    let line = if terminal::is_raw() { format!("{text}\n").replace('\n', "\r\n") } else { format!("{text}\n") };
    // Write with one call, because the output of the program may come in between. There is nowhere left to report an error.
    io::stderr().write_all(line.as_bytes()).ok();
}
