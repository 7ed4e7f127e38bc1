//! The limits that a client of the server can reach, except those of `grace_ms` and `context`, which are beside their
//! tools. The other modules of `serve` enforce the limits. The table in `docs/reference/limits.md` is generated from
//! the limits here.

use std::time::Duration;

/// The largest message from a client in bytes, over either transport. Large enough for a sizeable file as the argument of `write_file`.
pub const MESSAGE_BYTES: usize = 16 << 20;

/// Concurrent calls of all sessions. Further calls fail.
pub const CALLS: u32 = 1024;

/// Concurrent calls of one session.
pub const CALLS_OF_SESSION: usize = 64;

/// Concurrent sessions over HTTP.
pub const SESSIONS: usize = 64;

/// Concurrent connections. Further ones wait to be accepted. A client needs about three.
pub const CONNECTIONS: usize = 256;

/// Concurrent connections that have not shown a token yet. If there are more, the oldest is closed.
pub const UNAUTHENTICATED: usize = 64;

/// The largest request head in bytes, the same as for `exec-server serve`.
pub const HEAD_BYTES: usize = 8 << 10;

/// The maximum number of headers of a request.
pub const HEADERS: usize = 64;

/// Time limit for the head of a request. On an open connection it also limits the pause before the next request.
pub const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Time limit for the body of a request.
pub const BODY_WITHIN: Duration = Duration::from_secs(60);

/// The maximum size of a command and its arguments in bytes. Linux limits each argument to this size.
pub const COMMAND_BYTES: usize = 128 << 10;

/// Processes of one session, including those that have exited.
pub const PROCESSES: usize = 64;

/// The longest timeout of a command, in milliseconds: one day.
pub const TIMEOUT_MS: u64 = 86_400_000;

/// The maximum output in bytes that a call can request, for each stream of a command or for one read of a process. More would fill the
/// context of any model.
pub const OUTPUT_BYTES: u64 = 1 << 20;

/// The longest time that a call may wait for output, in milliseconds. A client with a shorter timeout must ask for less.
pub const WAIT_MS: u64 = 300_000;

/// The maximum number of lines of a file in one call.
pub const LINES: u64 = 20_000;

/// The maximum number of bytes shown of one line of a file.
pub const LINE_BYTES: usize = 2000;

/// The maximum size of the lines in one answer in bytes. Applies to files and searches.
pub const ANSWER_BYTES: usize = 256 << 10;

/// The maximum number of directory entries in one call.
pub const ENTRIES: u64 = 10_000;

/// The largest file that can be edited in bytes, before and after the edit.
pub const EDITED_BYTES: u64 = 16 << 20;

/// The maximum number of search results in one call.
pub const RESULTS: u64 = 5000;

/// The maximum number of bytes returned of a matching line.
pub const FOUND_LINE_BYTES: u64 = 400;

/// Time limit of a search, in milliseconds.
pub const SEARCH_MS: u64 = 30_000;
