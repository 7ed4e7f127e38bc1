//! Every bound of the wire in one place. It must not know who enforces them.

use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Bytes of one incoming message or WebSocket frame: 64 MiB of raw bytes are 85.4 MiB of base64, and some room for
/// the envelope. Growing it grows the largest buffer a connection may hold.
pub const MESSAGE_BYTES: usize = 96 * MIB;

/// Bytes of incoming messages that all connections of a server together may hold: five of the largest. Less than two would
/// close whoever sends one.
pub const INCOMING_BYTES: usize = 512 * MIB;

/// Nesting of one message, the outermost object counted. The params then nest at most 127 deep, which is as deep as
/// the typed decoder goes; growing it makes valid messages fail there.
pub const DEPTH: usize = 128;

/// JSON values in one message (every scalar, array and object counts one): 2^18, as the reference head has it. It
/// bounds the memory of decoding at about 20 MiB whatever the message's size.
pub const VALUES: usize = 1 << 18;

/// Raw bytes in one `process/output`: one log record. In base64 that is 87,384 bytes of text.
pub const CHUNK_BYTES: usize = 64 * KIB;

/// Raw bytes in one answer to `process/read`: 8 MiB, in base64 10.7 MiB, below the 16 MiB frame at which a reference
/// client gives up.
pub const READ_BYTES: usize = 8 * MIB;

/// Bytes of one outgoing WebSocket frame; longer messages leave in fragments of this size.
pub const FRAME_OUT_BYTES: usize = 8 * MIB;

/// Unacknowledged output bytes after which a client that announced `ack` should send `process/ack`: four log
/// segments. The log of a process is let go by whole segments, so that less would not free more.
pub const ACK_WINDOW_BYTES: u64 = 4 * MIB as u64;

/// Starts of one connection that run at once.
pub const STARTS_RUNNING: usize = 64;

/// Starts of one connection that wait for others; beyond it the answer is `overloaded`.
pub const STARTS_WAITING: usize = 1024;

/// Bytes of the requests of one connection that wait: for a slot, a full stdin, a slow disk. Beyond it the answer is `overloaded`.
pub const REQUESTS_WAITING_BYTES: usize = 64 * MIB;

/// Write ids remembered per process.
pub const REMEMBERED_WRITES: usize = 4096;

/// Sessions of one server; each that has processes is a small process of its own.
pub const SESSIONS: usize = 4096;

/// Running processes of one session: with the closed ones that are kept they fit a holder's table.
pub const RUNNING_PROCESSES: usize = 2048;

/// Closed processes kept per session; those whose output was not taken are never counted out.
pub const CLOSED_PROCESSES: usize = 1024;

/// Bytes of the name of a process, which every message about it carries.
pub const PROCESS_ID_BYTES: usize = KIB;

/// Bytes of program and arguments that are kept of a process for `process/list` and for the next server, each argument counted with 4
/// more. Of what is longer the beginning is kept; the program itself gets all of it.
pub const KEPT_ARGV_BYTES: usize = 32 * KIB;

/// Bytes of text in one answer to `process/list`: below the 16 MiB frame at which a reference client gives up.
pub const LIST_BYTES: usize = 8 * MIB;

/// How long a closed process stays readable.
pub const CLOSED_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// How long after `process/closed` a reference client's process id stays taken.
pub const CLOSED_ID_TAKEN: Duration = Duration::from_secs(30);

/// How long the session of a client that announced nothing waits for its return.
pub const REFERENCE_TTL: Duration = Duration::from_secs(10 * 60);

/// How long the session of a client with our capabilities waits for its return.
pub const SESSION_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The most that `ttlMs` can ask for, unless the server is told otherwise.
pub const SESSION_TTL_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Silence of the old connection after which a resume is granted without `takeover`.
pub const TAKEOVER_SILENCE: Duration = Duration::from_secs(2);

/// How long pushes to a resumed client that announced nothing wait for its first `process/read`.
pub const CATCH_UP_WAIT: Duration = Duration::from_secs(1);

/// Length at which an error text that quotes the peer's input is cut, in bytes: a refused 90 MiB string must not
/// come back as a 90 MiB answer.
pub const ERROR_TEXT_BYTES: usize = 512;

/// Output bytes that stay readable behind what was taken, whoever took it: one segment.
pub const READABLE_BYTES: u64 = MIB as u64;

/// Output bytes that a peer without `ack` may still have to read: kept behind what was sent to it for a resume, and the most
/// that is pushed beyond its last `process/read`.
pub const UNREAD_BYTES: u64 = 16 * MIB as u64;

/// The longest a `process/read` waits, whatever it asks for: a day.
pub const READ_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads of one connection that wait for output.
pub const READS_WAITING: usize = 1024;

/// Answers that wait for a peer that does not read them; beyond it the peer is not read either.
pub const ANSWERS_WAITING: usize = 8192;

/// Bytes of answers that wait for a peer that does not read them.
pub const ANSWERS_WAITING_BYTES: usize = 64 * MIB;

/// Requests of one connection that have not been answered; beyond it the answer is `overloaded`. Those that steer (terminate,
/// signal, close, status) have as many again.
pub const REQUESTS_UNANSWERED: usize = 8 * STARTS_WAITING;

/// Raw bytes of a file that one `fs/readFile` or `fs/writeFile` carries: what fits a message of [`MESSAGE_BYTES`] in base64.
pub const FILE_BYTES: usize = 64 * MIB;

/// Raw bytes of one `fs/readBlock` or `fs/writeBlock`, as the reference has it.
pub const BLOCK_BYTES: usize = MIB;

/// Files of one session that are open for reading, and as many drafts again; the reference has it for a connection.
pub const OPEN_FILES: usize = 128;

/// Bytes of the name of an open file.
pub const HANDLE_ID_BYTES: usize = 32;

/// Entries of a directory in one answer, and of a walk.
pub const DIRECTORY_ENTRIES: usize = 50_000;

/// File operations of all sessions that run at once, each on a thread; others wait.
pub const FILE_JOBS: usize = 64;

/// The same of one session, so that a disk that hangs for one leaves threads to the others.
pub const FILE_JOBS_OF_SESSION: usize = 16;

/// Bytes of files that all requests together hold between disk and answer, as bytes and as text: seven of the largest.
pub const FILE_READING_BYTES: usize = 1024 * MIB;

/// The same of one session: one of the largest and some, so that one that reads slowly leaves room to the others.
pub const FILE_READING_BYTES_OF_SESSION: usize = 192 * MIB;

/// Levels that a walk goes down.
pub const WALK_DEPTH: u64 = 64;

/// Directories that a walk looks into.
pub const WALK_DIRECTORIES: u64 = 10_000;

/// Bytes of a walk's answer, counted as 64 and its text for each item.
pub const WALK_BYTES: usize = 4 * MIB;

/// Searches and globs of one connection that are under way, each a thread; beyond it the answer is `tooManyHandles`.
pub const SEARCHES: usize = 8;

/// Watches of one connection, each a thread.
pub const WATCHES: usize = 16;

/// Searches of all connections of a server, and as many watches: they bound its threads.
pub const SEARCHES_OF_SERVER: usize = 128;

/// Matching lines of a search, where it does not say how many.
pub const SEARCH_MATCHES: u64 = 1000;

/// Matching lines that a search may ask for.
pub const SEARCH_MATCHES_MAX: u64 = 1_000_000;

/// Bytes of a line that are told, where a search does not say how many.
pub const SEARCH_LINE_BYTES: u64 = KIB as u64;

/// Bytes of a line that a search may ask for.
pub const SEARCH_LINE_BYTES_MAX: u64 = 64 * KIB as u64;

/// Files that are larger are passed over, where a search does not say which.
pub const SEARCH_FILE_BYTES: u64 = 1024 * MIB as u64;

/// Lines of context on either side.
pub const SEARCH_CONTEXT: u64 = 100;

/// Bytes of the results of one `fs/search` or `fs/glob`, counted as 64 and its text for each.
pub const SEARCH_BYTES: usize = 4 * MIB;

/// Bytes of the results of a search that is told in pages.
pub const SEARCH_PAGED_BYTES: usize = 256 * MIB;

/// Bytes of one page, or a line more. Two of them and what is being sent is all that a search keeps for a slow reader.
pub const SEARCH_PAGE_BYTES: usize = 128 * KIB;

/// Paths of one `fs/glob`, where it does not say how many.
pub const GLOB_RESULTS: u64 = 1000;

/// Entries that a search or a glob looks at.
pub const SCAN_ENTRIES: u64 = 1_000_000;

/// Levels that a search or a glob goes down, where it does not say how many.
pub const SCAN_DEPTH: u64 = 64;

/// Levels that it may ask for: each holds a descriptor.
pub const SCAN_DEPTH_MAX: u64 = 256;

/// How long a search or a glob may take, where it does not say how long.
pub const SCAN_TIME: Duration = Duration::from_secs(60);

/// How long it may ask for.
pub const SCAN_TIME_MAX: Duration = Duration::from_secs(600);

/// Directories of one watch, where it does not say how many.
pub const WATCHED_DIRECTORIES: u64 = 8192;

/// Directories that a watch may ask for; the host has a bound of its own for all.
pub const WATCHED_DIRECTORIES_MAX: u64 = 65_536;

/// Changes in one answer.
pub const WATCH_CHANGES: u64 = 4096;

/// How long changes are gathered after the first one, where it is not said.
pub const WATCH_SETTLE: Duration = Duration::from_millis(50);

/// How long may be asked for.
pub const WATCH_SETTLE_MAX: Duration = Duration::from_secs(10);

/// Entries of a sandbox: each costs a look at its path, some a mount.
pub const SANDBOX_ENTRIES: usize = 2000;

/// Patterns among them: each is a search.
pub const SANDBOX_PATTERNS: usize = 64;

/// Project roots of a sandbox: an entry about them is one for each.
pub const SANDBOX_ROOTS: usize = 64;

/// HTTP requests of one connection that are under way, streams included; beyond it the answer is `overloaded`.
pub const HTTP_REQUESTS: usize = 64;

/// The same of all connections of a server: each holds a descriptor or more.
pub const HTTP_REQUESTS_OF_SERVER: usize = 512;

/// Raw bytes of a body in the answer to `http/request`: in base64 21.4 MiB. Larger ones are streamed.
pub const HTTP_BODY_BYTES: usize = 16 * MIB;

/// Bytes of bodies that the requests of one connection hold on their way into an answer, as bytes and as text: two of the largest and some.
pub const HTTP_READING_BYTES: usize = 96 * MIB;

/// The same of all connections.
pub const HTTP_READING_BYTES_OF_SERVER: usize = 512 * MIB;

/// Raw bytes of a body in one `http/request/bodyDelta`, as the reference has it. This server sends less, [`CHUNK_BYTES`].
pub const HTTP_DELTA_BYTES: usize = MIB;

/// Pieces of streamed bodies of one connection that wait for its socket: 1 MiB. Beyond it bodies are not read.
pub const HTTP_DELTAS_WAITING: usize = 16;

/// Headers of one HTTP request, and of its answer.
pub const HTTP_HEADERS: usize = 256;

/// Bytes of their names and values.
pub const HTTP_HEADER_BYTES: usize = 64 * KIB;

/// Bytes of the URL of an HTTP request.
pub const HTTP_URL_BYTES: usize = 16 * KIB;

/// Bytes of the name of an HTTP request.
pub const HTTP_REQUEST_ID_BYTES: usize = 256;

/// Redirects that one HTTP request follows.
pub const HTTP_REDIRECTS: usize = 10;

/// Pieces of one streamed body that a client keeps for a reader that does not take them; beyond it the stream fails.
pub const HTTP_PIECES_KEPT: usize = 256;

/// Bytes of all streamed bodies that a client keeps so.
pub const HTTP_BYTES_KEPT: usize = 16 * MIB;
