//! Exit codes of all commands.

use exec_server_client::{ErrorKind, Exit};
use exec_server_protocol::{failure::Kind, process::Cause};

use crate::{args::UsageError, ids::ProcessLookupError};

/// The given id names no process, several processes, or for `forget` a process that still runs.
pub(crate) const NO_PROCESS: u8 = 1;
/// The user answered no to a question.
pub(crate) const NOT_DONE: u8 = 1;
/// `cp` or `fs` failed for at least one path, or a watched path was removed.
pub(crate) const FILES_FAILED: u8 = 1;
/// An MCP tool failed, does not exist or is disabled.
pub(crate) const TOOL_FAILED: u8 = 1;
/// The MCP server cannot be used, or no MCP server has that name.
pub(crate) const NOT_USABLE: u8 = 1;
/// Wrong command line; the code that clap uses.
pub(crate) const USAGE: u8 = 2;
/// A time limit ended the program; the code that `timeout(1)` uses.
pub(crate) const TIMED_OUT: u8 = 124;
/// These three are the codes of a shell for a program that cannot be executed, does not exist, or was killed by SIGPIPE.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;
pub(crate) const CLOSED_PIPE: u8 = 128 + 13;
/// An error of exec-server itself, in every command. Few programs use this code, so callers of `run` can tell it from the program's own.
pub(crate) const TROUBLE: u8 = 255;

/// The exit code for a process that has ended.
pub(crate) fn of_exit(exit: &Exit) -> u8 {
    match exit.cause {
        Some(Cause::Timeout | Cause::IdleTimeout) => TIMED_OUT,
        Some(Cause::Lost) => TROUBLE,
        // Keep the low eight bits, as wait(2) does. For a process that signal n killed, the code is already 128 + n.
        Some(Cause::Exit | Cause::Signal | Cause::Terminated | Cause::Oom) | None => {
            u8::try_from(exit.code & 0xff).unwrap_or(TROUBLE)
        }
    }
}

/// The exit code for a command that a signal ended.
pub(crate) fn of_signal(number: u8) -> u8 {
    128_u8.saturating_add(number)
}

/// The exit code for a program that could not be started.
pub(crate) fn of_start(error: &exec_server_client::Error) -> u8 {
    match error.server_kind() {
        Some(Kind::ProgramNotFound) => NOT_FOUND,
        Some(Kind::PermissionDenied | Kind::SpawnFailed) => NOT_EXECUTABLE,
        _ => TROUBLE,
    }
}

/// The exit code for a command that failed.
pub(crate) fn of_error(error: &anyhow::Error) -> u8 {
    if error.is::<ProcessLookupError>() {
        return NO_PROCESS;
    }
    if error.is::<UsageError>() { USAGE } else { TROUBLE }
}

/// Whether the error means that the server no longer has the process or its session.
pub(crate) fn is_gone(error: &exec_server_client::Error) -> bool {
    error.kind() == ErrorKind::Server
        && matches!(
            error.server_kind(),
            Some(Kind::UnknownProcess | Kind::UnknownSession | Kind::SessionExpired | Kind::HolderLost)
        )
}
