//! Exit codes: the one place that knows what each number means to a shell.
//! Must not know how a process was watched.

use exec_server_client::{ErrorKind, Exit};
use exec_server_protocol::{failure::Kind, process::Cause};

use crate::{args::Wrong, ids::NoProcess};

/// There is no such process.
pub(crate) const NO_PROCESS: u8 = 1;
/// The person at the terminal said no.
pub(crate) const NOT_DONE: u8 = 1;
/// Not everything was copied.
pub(crate) const NOT_COPIED: u8 = 1;
/// A tool of an MCP server failed.
pub(crate) const TOOL_FAILED: u8 = 1;
/// An MCP server cannot be used, or there is none of that name.
pub(crate) const NOT_USABLE: u8 = 1;
/// The command line is wrong, as clap says it.
pub(crate) const USAGE: u8 = 2;
/// A time limit ended the program, as `timeout` says it.
pub(crate) const TIMED_OUT: u8 = 124;
/// What a shell says of a program that cannot be executed, one that is not there, and one that a closed pipe ended.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;
pub(crate) const CLOSED_PIPE: u8 = 128 + 13;
/// Trouble of ours, whatever the command; `run` cannot confuse it with most programs' own codes.
pub(crate) const TROUBLE: u8 = 255;

/// The code of a process that has ended.
pub(crate) fn of_exit(exit: &Exit) -> u8 {
    match exit.cause {
        Some(Cause::Timeout | Cause::IdleTimeout) => TIMED_OUT,
        Some(Cause::Lost) => TROUBLE,
        // Codes have eight bits, and 128+n fits for every signal.
        Some(Cause::Exit | Cause::Signal | Cause::Terminated | Cause::Oom) | None => {
            u8::try_from(exit.code & 0xff).unwrap_or(TROUBLE)
        }
    }
}

/// The code of a command that a signal ended.
pub(crate) fn of_signal(number: u8) -> u8 {
    128_u8.saturating_add(number)
}

/// The code when a program could not be started.
pub(crate) fn of_start(error: &exec_server_client::Error) -> u8 {
    match error.server_kind() {
        Some(Kind::ProgramNotFound) => NOT_FOUND,
        Some(Kind::PermissionDenied | Kind::SpawnFailed) => NOT_EXECUTABLE,
        _ => TROUBLE,
    }
}

/// The code of a command that failed.
pub(crate) fn of_error(error: &anyhow::Error) -> u8 {
    match () {
        () if error.is::<NoProcess>() => NO_PROCESS,
        () if error.is::<Wrong>() => USAGE,
        () => TROUBLE,
    }
}

/// Whether the server knows no such process any more: it went between two calls.
pub(crate) fn is_gone(error: &exec_server_client::Error) -> bool {
    error.kind() == ErrorKind::Server
        && matches!(
            error.server_kind(),
            Some(Kind::UnknownProcess | Kind::UnknownSession | Kind::SessionExpired | Kind::HolderLost)
        )
}
