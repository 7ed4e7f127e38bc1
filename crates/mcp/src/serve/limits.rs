//! What a client of the server can run into, in one place; the README's table of limits is made from it. Must not enforce anything.

use std::time::Duration;

/// Bytes of one message from a client, over either transport: a file of some size as the argument of `write_file`.
pub const MESSAGE_BYTES: usize = 16 << 20;

/// Calls of all sessions that are under way at once; beyond it the answer is an error.
pub const CALLS: u32 = 1024;

/// The same of one session.
pub const CALLS_OF_SESSION: usize = 64;

/// Sessions over HTTP at once.
pub const SESSIONS: usize = 64;

/// Connections at once; others wait to be accepted. A client has about three.
pub const CONNECTIONS: usize = 256;

/// Of these, such as have not shown a token yet; beyond it the oldest goes.
pub const STRANGERS: usize = 64;

/// Bytes of a request's head, as at the door of `serve`.
pub const HEAD_BYTES: usize = 8 << 10;

/// Headers of a request.
pub const HEADERS: usize = 64;

/// For the head of a request, the first or the next on the same connection.
pub const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// For the body of a request.
pub const BODY_WITHIN: Duration = Duration::from_secs(60);

/// Bytes of a command and its arguments: what an operating system takes.
pub const COMMAND_BYTES: usize = 128 << 10;

/// Processes of one session, those that have ended included.
pub const PROCESSES: usize = 64;

/// How long a command may be allowed to take, in milliseconds: a day.
pub const TIMEOUT_MS: u64 = 86_400_000;

/// Bytes of output that may be asked for, of each stream of a command, or of a process in one answer; more would fill the
/// context of every model.
pub const OUTPUT_BYTES: u64 = 1 << 20;

/// How long an answer about output may be waited for, in milliseconds: less than most clients wait for theirs is up to them.
pub const WAIT_MS: u64 = 300_000;

/// Lines of a file that may be asked for.
pub const LINES: u64 = 20_000;

/// Bytes of a line of a file that are shown.
pub const LINE_BYTES: usize = 2000;

/// Bytes of lines in one answer, of a file or of a search.
pub const ANSWER_BYTES: usize = 256 << 10;

/// Entries of a directory that may be asked for.
pub const ENTRIES: u64 = 10_000;

/// Bytes of a file that can be edited, before and after.
pub const EDITED_BYTES: u64 = 16 << 20;

/// Matches of a search that may be asked for.
pub const RESULTS: u64 = 5000;

/// Bytes of a line that was found that are returned.
pub const FOUND_LINE_BYTES: u64 = 400;

/// How long a search may take, in milliseconds.
pub const SEARCH_MS: u64 = 30_000;
