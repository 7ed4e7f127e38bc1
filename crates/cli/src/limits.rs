//! The list of all limits, each with its default, its flag, and the behaviour when it is reached.
//!
//! The help texts, defaults and ranges of the flags, `serve --print-config` and the table in `docs/reference/limits.md` are generated
//! from this list. The limits of `mcp serve`, which has no such flags, are only in that table (see `tests`). This module enforces
//! nothing; the other crates do, from the configuration that the flags produce.

use std::{fmt, time::Duration};

use exec_server_holder as holder;
use exec_server_protocol::limits as wire;
use exec_server_server::core::Config;

use crate::confine;

pub(crate) struct Limit {
    /// The resource that is bounded.
    pub(crate) name: &'static str,
    /// The flag of `serve` that sets it, without the dashes.
    pub(crate) flag: Option<&'static str>,
    /// The value without the flag.
    pub(crate) default: LimitValue,
    /// The range that the flag accepts; `None` if the flag has a parser with its own rules.
    pub(crate) range: Option<(LimitValue, LimitValue)>,
    /// The behaviour when the limit is reached.
    pub(crate) when_reached: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitValue {
    Bytes(u64),
    Time(Duration),
    Count(u64),
    Unbounded,
}

use LimitValue::{Bytes, Count, Time, Unbounded};

/// A table of limits: name, default, flag and range => the behaviour when the limit is reached. A flag without a range has a parser with
/// its own rules.
macro_rules! limits {
    ($($name:literal: $default:expr $(, $flag:literal $(, $range:expr)?)? => $when_reached:literal;)*) => {
        vec![$(fixed($name, $default, $when_reached)$(.set_by($flag)$(.within($range))?)?),*]
    };
}

/// All limits, those of processes first.
pub(crate) fn all() -> Vec<Limit> {
    let core = Config::default();
    let holder = holder::HolderLimits::default();
    limits! {
        // Processes
        "output of a process in memory": Bytes(core.memory_cap_bytes),
            "memory-per-process", (Bytes(Config::LEAST_CAP_BYTES), Bytes(64 << 30)) =>
            "while its session has a connection, the process blocks, or with `dropOldest` loses its oldest output; otherwise output goes to disk. For a client without the capability `ack`, the limit is 16MiB plus a quarter of this value, at least 3MiB";
        "output of a process on disk": Bytes(holder.disk_quota_bytes),
            "disk-per-process", (Bytes(0), Bytes(1 << 50)) =>
            "the process blocks, or with `dropOldest` its oldest output is dropped and reported as a gap";
        "free space left on the disk": Bytes(holder.free_floor_bytes),
            "disk-floor", (Bytes(0), Bytes(1 << 50)) =>
            "output stays in memory, so the process blocks, or with `dropOldest` loses its oldest output; retried every second. The default is at most 5% of the disk";
        "name of a process": Bytes(wire::PROCESS_ID_BYTES as u64) => "`invalidParams`";
        "program and arguments kept of a process": Bytes(wire::KEPT_ARGV_BYTES as u64) =>
            "the process gets all of them; `process/list` has the beginning and the full length. A start beyond the limits of the kernel is `invalidParams`";
        "processes in one answer": Bytes(wire::LIST_BYTES as u64) =>
            "`process/list` continues with `nextCursor`; `ps` requests all parts";
        "closed processes kept in a session after the client has taken all their output": Count(core.closed_processes as u64),
            "closed-processes", (Count(1), Count(CLOSED_MAX)) =>
            "the oldest of them is forgotten; processes with output that was not taken do not count and are kept";
        "time a closed process is kept": Time(core.closed_kept),
            "closed-for", (Time(Duration::from_secs(1)), Time(YEAR)) =>
            "it is forgotten. The time begins when the attached client has all output of the process, and begins again at each resume. It does not run while the session is detached";
        "running processes of a session": Count(core.processes_max as u64),
            "max-processes", (Count(1), Count(RUNNING_MAX)) =>
            "`resourcesExhausted`";
        "processes and threads of one command and all it starts": Count(confine::PIDS_MAX), "max-pids" =>
            "fork fails, and the exit reports it (`limitsHit`). Needs a cgroup; without one, a number other than the default becomes RLIMIT_NPROC, which counts all processes of the user and does not apply to root";
        "memory of one command and all it starts": Unbounded, "max-memory" =>
            "one of them is killed, and the exit reports it (`oom`, `limitsHit`). Needs a cgroup; without one it becomes RLIMIT_DATA of each process";
        "write ids remembered for a process": Count(wire::REMEMBERED_WRITES as u64) => "the oldest is forgotten";

        // Sessions
        "sessions": Count(core.sessions_max as u64),
            "max-sessions", (Count(1), Count(1 << 20)) =>
            "`resourcesExhausted`; existing sessions can be resumed";
        "ended sessions with a `sessionKey` that are remembered": Count(wire::ENDED_KEYS as u64) =>
            "the oldest is forgotten. Each is remembered for 10 minutes, so that a late attempt of its client starts nothing";
        "longest time of a session without a connection": Time(wire::SESSION_TTL_MAX), "session-ttl" =>
            "it ends, with its processes. A client that requests no time gets 24h, or 10m if it announced no capability";
        "time for the old connection to answer a ping when its session is resumed": Time(core.takeover_after),
            "takeover-after", (Time(Duration::from_millis(100)), Time(Duration::from_secs(600))) =>
            "the resume gets the session; with `takeover` it does not wait";

        // Connections
        "silence before a peer is pinged": Time(core.ping_every),
            "ping-every", (Time(Duration::from_millis(30)), Time(Duration::from_secs(3600))) =>
            "the server sends a ping";
        "silence before a peer is dead": Time(core.dead_after),
            "dead-after", (Time(Duration::from_millis(100)), Time(Duration::from_secs(4 * 3600))) =>
            "the connection is dropped, and its session is detached";
        "starts of a connection that run at once": Count(wire::STARTS_RUNNING as u64), "concurrent-requests" =>
            "further starts wait; other requests are not limited by this flag. A value above 1024 means 1024";
        "starts of a connection that wait": Count(wire::STARTS_WAITING as u64) => "`overloaded`";
        "bytes of requests that wait": Bytes(wire::REQUESTS_WAITING_BYTES as u64) => "`overloaded`";
        "requests of a connection that are not answered": Count(wire::REQUESTS_UNANSWERED as u64) =>
            "`overloaded`; control requests have the same limit again";
        "reads of a connection that wait": Count(wire::READS_WAITING as u64) => "`overloaded`";
        "bytes of answers that a peer does not read": Bytes(wire::ANSWERS_WAITING_BYTES as u64) =>
            "the server stops reading from the peer; also at 8192 answers";
        "bytes of incoming messages, of all connections": Bytes(core.incoming_bytes as u64),
            "incoming-memory", (Bytes(256 << 20), Bytes(1 << 40)) =>
            "the connection that holds the most bytes is closed with code 1013, and its client may reconnect; requests that would have to wait are `overloaded`";
        "output ahead of the last acknowledgement": Bytes(core.ack_window_bytes),
            "ack-window", (Bytes(64 << 10), Bytes(1 << 30)) =>
            "the server sends no more output of the process until the client acknowledges. The window is at most `--memory-per-process` less 2MiB; a larger value is reduced to that";

        // Messages
        "a message": Bytes(wire::MESSAGE_BYTES as u64) => "close 1009, or `malformed` on lines";
        "depth of a message": Count(wire::DEPTH as u64) => "`malformed`";
        "values in a message": Count(wire::VALUES as u64) => "`malformed`";
        "output in one answer to `process/read`": Bytes(wire::READ_BYTES as u64) => "the rest is for the next read";
        "entries of a sandbox": Count(wire::SANDBOX_ENTRIES as u64) => "`invalidParams`";
        "patterns of a sandbox": Count(wire::SANDBOX_PATTERNS as u64) => "`invalidParams`";
        "`workspaceRoots` of a sandbox": Count(wire::SANDBOX_ROOTS as u64) => "`invalidParams`";

        // Files
        "bytes of a file in one `fs/readFile` or `fs/writeFile`": Bytes(wire::FILE_BYTES as u64) =>
            "`fileTooLarge`; a file of any size goes in blocks, as `cp`, `fs cat` and the library do by themselves";
        "bytes of one `fs/readBlock` or `fs/writeBlock`": Bytes(wire::BLOCK_BYTES as u64) => "`invalidParams`";
        "files of a session that are open for reading, and as many drafts": Count(wire::OPEN_FILES as u64) =>
            "`tooManyHandles`";
        "entries of a directory in one answer, and of `fs/walk`": Count(wire::DIRECTORY_ENTRIES as u64) =>
            "a listing without `details` is an error, with `details` it has pages of 16384; a walk is truncated and marked so";
        "paths of one `fs/glob`, and so of `fs tree`": Count(wire::DIRECTORY_ENTRIES as u64) =>
            "it is truncated and marked so, also at 4MiB of them; the default is 1000";
        "levels of `fs/walk`": Count(wire::WALK_DEPTH) => "it is truncated and marked so";
        "directories of `fs/walk`": Count(wire::WALK_DIRECTORIES) => "it is truncated and marked so";
        "bytes of an answer to `fs/walk`": Bytes(wire::WALK_BYTES as u64) => "it is truncated and marked so";
        "file operations at once, of all sessions": Count(wire::FILE_JOBS as u64) => "others wait";
        "file operations at once, of a session": Count(wire::FILE_JOBS_OF_SESSION as u64) => "others wait";
        "bytes of files between disk and answer, of all sessions": Bytes(wire::FILE_READING_BYTES as u64) =>
            "reads wait";
        "bytes of files between disk and answer, of a session": Bytes(wire::FILE_READING_BYTES_OF_SESSION as u64) =>
            "reads wait";

        // Searches and watches
        "searches of a connection": Count(wire::SEARCHES as u64) => "`tooManyHandles`";
        "watches of a connection": Count(wire::WATCHES as u64) => "`tooManyHandles`";
        "searches of all connections, and as many watches": Count(wire::SEARCHES_OF_SERVER as u64) =>
            "`tooManyHandles`";
        "matching lines of a search": Count(wire::SEARCH_MATCHES_MAX) =>
            "it is truncated and marked so; the default is 1000";
        "bytes of what a search finds, in pages": Bytes(wire::SEARCH_PAGED_BYTES as u64) =>
            "it is truncated and marked so; without pages at 4MiB";
        "entries that a search looks at": Count(wire::SCAN_ENTRIES) => "it is truncated and marked so";
        "levels of a search": Count(wire::SCAN_DEPTH_MAX) => "it is truncated and marked so; the default is 64";
        "time of a search": Time(wire::SCAN_TIME_MAX) => "it is truncated and marked so; the default is 1m";
        "directories of a watch": Count(wire::WATCHED_DIRECTORIES_MAX) =>
            "further directories are not watched, and the watch reports their number; the default is 8192";
        "changes in one answer of a watch": Count(wire::WATCH_CHANGES) =>
            "the rest is for the next one; at 16384 waiting changes, `overflow`";

        // HTTP requests
        "HTTP requests of a connection that are under way": Count(wire::HTTP_REQUESTS as u64) =>
            "`overloaded`; streamed bodies count until their end";
        "HTTP requests of all connections": Count(wire::HTTP_REQUESTS_OF_SERVER as u64) =>
            "`overloaded`; one principal may have a quarter of them, 128";
        "bytes of a body in an answer to `http/request`": Bytes(wire::HTTP_BODY_BYTES as u64) =>
            "`httpTooLarge`; a streamed body may have any size";
        "bytes of bodies on their way into answers to `http/request`, of a connection": Bytes(wire::HTTP_READING_BYTES as u64) =>
            "others wait";
        "bytes of bodies on their way into answers to `http/request`, of all connections": Bytes(wire::HTTP_READING_BYTES_OF_SERVER as u64) => "others wait";
        "pieces of streamed bodies that wait for the socket of a connection": Count(wire::HTTP_DELTAS_WAITING as u64) =>
            "the server stops reading bodies until the peer takes them";
        "headers of an HTTP request, and of its answer": Count(wire::HTTP_HEADERS as u64) =>
            "`invalidParams`; an answer with more is `httpTooLarge`";
        "bytes of the headers of an HTTP request, and of its answer": Bytes(wire::HTTP_HEADER_BYTES as u64) =>
            "`invalidParams`; an answer with more is `httpTooLarge`";
        "bytes of the URL of an HTTP request": Bytes(wire::HTTP_URL_BYTES as u64) => "`invalidParams`";
        "bytes of the `requestId` of an HTTP request": Bytes(wire::HTTP_REQUEST_ID_BYTES as u64) => "`invalidParams`";
        "redirects that an HTTP request follows": Count(wire::HTTP_REDIRECTS as u64) => "`httpFailed`";

        // Admission
        "descriptors that new work leaves free": Count(64) =>
            "a start is `resourcesExhausted`; at half of this number a new connection is closed. The limit is at most a quarter of the descriptors that the server may open";
        "a request head": Bytes(8 << 10) => "431";
        "time for TLS, head and answer": Time(Duration::from_secs(10)) => "the connection is closed";
        "connections that have not proven who they are": Count(64) =>
            "a new connection replaces the oldest one of the address that has the most";
        "failures of an address, each within a minute of the one before": Count(100) =>
            "further failures are answered 429 after 50ms to 5s, and the address may have 8 connections that have not proven who they are; a correct token is still accepted at once";
    }
}

const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);

/// A holder has 4096 slots. These maxima add up to that number, so a session can have both at once.
const CLOSED_MAX: u64 = 2048;
const RUNNING_MAX: u64 = 2048;

const fn fixed(name: &'static str, default: LimitValue, when_reached: &'static str) -> Limit {
    Limit { name, flag: None, default, range: None, when_reached }
}

impl Limit {
    fn set_by(self, flag: &'static str) -> Self {
        Self { flag: Some(flag), ..self }
    }

    fn within(self, range: (LimitValue, LimitValue)) -> Self {
        Self { range: Some(range), ..self }
    }

    /// The help text of the flag.
    pub(crate) fn help(&self) -> String {
        let name = capitalized(self.name);
        let when_reached = self.when_reached;
        match self.range {
            Some((least, most)) => format!("{name}, {least} to {most}. At the limit: {when_reached}"),
            None => format!("{name}. At the limit: {when_reached}"),
        }
    }
}

/// Writes the value as the flags accept it, in the largest unit that is exact.
impl fmt::Display for LimitValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SIZES: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        const TIMES: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
        let (value, units, least) = match self {
            Count(count) => return write!(f, "{count}"),
            Unbounded => return f.write_str("none"),
            Bytes(bytes) => (*bytes, SIZES, "B"),
            Time(time) => (u64::try_from(time.as_millis()).unwrap_or(u64::MAX), TIMES, "ms"),
        };
        // Use days only from two days on: people say 24h, not 1d.
        let fits = |(size, unit): &&(u64, &str)| value > 0 && value % size == 0 && (*unit != "d" || value > *size);
        match units.iter().find(fits) {
            Some((size, unit)) => write!(f, "{}{unit}", value / size),
            None => write!(f, "{value}{least}"),
        }
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests;
