//! All limits of the protocol and of the server's queues. Some are only defaults, which flags of `serve` change.

use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Largest incoming message or WebSocket frame, in bytes. 64 MiB of raw bytes are 85.4 MiB of base64; the rest is room for the envelope. A
/// larger value increases the largest buffer that a connection may hold.
pub const MESSAGE_BYTES: usize = 96 * MIB;

/// Bytes of incoming messages that all connections of a server may hold together: five messages of the largest size. With less than two, a
/// single client that sends one such message would be disconnected.
pub const INCOMING_BYTES: usize = 512 * MIB;

/// Maximum nesting depth of a message, including the outermost object. Params are then at most 127 levels deep, which is the limit of the
/// typed decoder. With a larger value, messages that pass this check would fail in the decoder.
pub const DEPTH: usize = 128;

/// Maximum number of JSON values in a message: every scalar, array and object counts as one. 2^18, as in the reference. It limits the
/// memory of decoding to about 20 MiB for a message of any size.
pub const VALUES: usize = 1 << 18;

/// Maximum raw bytes in one `process/output`, which is one log record. In base64 these are 87,384 bytes of text.
pub const CHUNK_BYTES: usize = 64 * KIB;

/// Maximum raw bytes of output in one result of `process/read`: 8 MiB, in base64 10.7 MiB. This is below 16 MiB, the largest frame that a
/// client of the reference accepts.
pub const READ_BYTES: usize = 8 * MIB;

/// Maximum bytes of an outgoing WebSocket frame. A longer message is sent in fragments of this size. A reference peer drops the connection
/// at a frame above 16 MiB.
pub const FRAME_OUT_BYTES: usize = 8 * MIB;

/// Flow-control window of a client with the capability `ack`: unacknowledged output bytes per process. 16 MiB are 320 MB/s at a round trip
/// of 50 ms. A larger window would increase the memory that a slow reader holds on both sides.
pub const ACK_WINDOW_BYTES: u64 = 16 * MIB as u64;

/// Bytes of output of a process that the server keeps in memory by default: the window, the last MiB that stays readable, which may begin
/// anywhere in a segment, and two segments that the process can fill while the window is closed.
pub const MEMORY_PER_PROCESS: u64 = ACK_WINDOW_BYTES + 4 * MIB as u64;

/// Starts of one connection that run at the same time.
pub const STARTS_RUNNING: usize = 64;

/// Starts of one connection that wait for a running one to finish. Further starts get the error `overloaded`.
pub const STARTS_WAITING: usize = 1024;

/// Bytes of the requests of one connection that wait: for their turn, for room in a full stdin or for a slow disk. Further requests get the
/// error `overloaded`.
pub const REQUESTS_WAITING_BYTES: usize = 64 * MIB;

/// Number of write ids that the server remembers per process.
pub const REMEMBERED_WRITES: usize = 4096;

/// Sessions of one server. Each session with running processes has its own holder process.
pub const SESSIONS: usize = 4096;

/// Running processes of one session. Together with the closed processes that are kept, they fit the process table of a holder.
pub const RUNNING_PROCESSES: usize = 2048;

/// Closed processes kept per session. A process whose output was not taken is never removed to meet this limit.
pub const CLOSED_PROCESSES: usize = 1024;

/// Maximum bytes of a process id. Every message about the process carries it.
pub const PROCESS_ID_BYTES: usize = KIB;

/// Bytes of program and arguments that the server keeps per process for `process/list` and for the next server. Each argument counts 4
/// bytes extra. Of a longer command line only the beginning is kept; the program itself gets all of it.
pub const KEPT_ARGV_BYTES: usize = 32 * KIB;

/// Maximum bytes of text in one result of `process/list`. Below 16 MiB, the largest frame that a client of the reference accepts.
pub const LIST_BYTES: usize = 8 * MIB;

/// Minimum and maximum bytes of a `sessionKey`. 16 letters and digits have 82 random bits or more, so two clients do not choose the same.
pub const SESSION_KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=128;

/// Ended sessions with a `sessionKey` that a server remembers, so that a late attempt of their clients does not create them again.
pub const ENDED_KEYS: usize = 32_768;

/// How long an ended session with a `sessionKey` is remembered.
pub const ENDED_KEY_KEPT: Duration = Duration::from_secs(10 * 60);

/// How long an attached session keeps a closed process after its client got all output. A resume restarts the time.
pub const CLOSED_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// For a client without capabilities: how long a process id stays in use after `process/closed`.
pub const CLOSED_ID_TAKEN: Duration = Duration::from_secs(30);

/// Default time-to-live of a detached session whose client announced no capability.
pub const REFERENCE_TTL: Duration = Duration::from_secs(10 * 60);

/// Default time-to-live of a detached session whose client announced capabilities.
pub const SESSION_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Default maximum of `ttlMs`. The server's operator can change it.
pub const SESSION_TTL_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A resume without `takeover` succeeds if the connection that is attached stays silent for this long.
pub const TAKEOVER_SILENCE: Duration = Duration::from_secs(2);

/// After a resume without the capability `ack`: how long the server waits for the client's first `process/read` of a process before it pushes
/// events.
pub const CATCH_UP_WAIT: Duration = Duration::from_secs(1);

/// Error texts that quote the peer's input are cut to this many bytes. Otherwise a refused string of 90 MiB would come back as an answer of
/// 90 MiB.
pub const ERROR_TEXT_BYTES: usize = 512;

/// Bytes that an event counts in a log beside its output. Limits that depend on the room in a log include them, because small events fill a
/// log with little output.
pub const EVENT_OVERHEAD: u64 = 32;

/// The part of a log that stays readable after it was taken: one log segment. Each event counts [`EVENT_OVERHEAD`] more than its output.
pub const READABLE_BYTES: u64 = MIB as u64;

/// For a client without `ack`. Output that was already sent is kept up to this size for a resume. A polling client is pushed at most this
/// much beyond its last `process/read`. Each event counts [`EVENT_OVERHEAD`] more than its output.
pub const UNREAD_BYTES: u64 = 16 * MIB as u64;

/// Maximum of `waitMs` of `process/read`: one day.
pub const READ_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Requests `process/read` of one connection that wait for output.
pub const READS_WAITING: usize = 1024;

/// Answers queued for a peer that does not read them. At this limit the server stops reading from the peer.
pub const ANSWERS_WAITING: usize = 8192;

/// Bytes of answers queued for a peer that does not read them.
pub const ANSWERS_WAITING_BYTES: usize = 64 * MIB;

/// Unanswered requests of one connection. Further requests get the error `overloaded`. Control requests
/// ([`Class::Control`](crate::method::Class::Control)) are refused only at twice this number.
pub const REQUESTS_UNANSWERED: usize = 8 * STARTS_WAITING;

/// Maximum raw bytes of a file in one `fs/readFile` or `fs/writeFile`. Its base64 fits into [`MESSAGE_BYTES`].
pub const FILE_BYTES: usize = 64 * MIB;

/// Maximum raw bytes of one `fs/readBlock` or `fs/writeBlock`, as in the reference.
pub const BLOCK_BYTES: usize = MIB;

/// Files that one session may have open for reading, and separately the drafts that it may have open. The reference has this limit per
/// connection.
pub const OPEN_FILES: usize = 128;

/// Maximum bytes of a `handleId`.
pub const HANDLE_ID_BYTES: usize = 32;

/// Maximum entries in one result of `fs/readDirectory` without `details`, of `fs/walk` or of `fs/glob`.
pub const DIRECTORY_ENTRIES: usize = 50_000;

/// File operations of all sessions that run at the same time, and so the maximum number of their threads. Others wait.
pub const FILE_JOBS: usize = 64;

/// File operations of one session that run at the same time. Less than `FILE_JOBS`, so that a disk that hangs for one session leaves
/// threads for the others.
pub const FILE_JOBS_OF_SESSION: usize = 16;

/// Bytes of files that all requests hold between disk and answer, as raw bytes and as base64: room for six files of the
/// largest size.
pub const FILE_READING_BYTES: usize = 1024 * MIB;

/// Bytes of files that the requests of one session hold between disk and answer: a little more than one file of the largest size. A session
/// that reads slowly leaves room for the others.
pub const FILE_READING_BYTES_OF_SESSION: usize = 192 * MIB;

/// Maximum `maxDepth` of `fs/walk`.
pub const WALK_DEPTH: u64 = 64;

/// Maximum `maxDirectories` of `fs/walk`.
pub const WALK_DIRECTORIES: u64 = 10_000;

/// Maximum size of the result of `fs/walk`: each item counts 64 bytes plus its text.
pub const WALK_BYTES: usize = 4 * MIB;

/// Searches and globs in progress on one connection, each on its own thread. Further ones get the error `tooManyHandles`.
pub const SEARCHES: usize = 8;

/// Watches of one connection, each on its own thread.
pub const WATCHES: usize = 16;

/// Searches of all connections of a server, and separately the watches. It limits the number of threads.
pub const SEARCHES_OF_SERVER: usize = 128;

/// Default of `maxMatches` of `fs/search`.
pub const SEARCH_MATCHES: u64 = 1000;

/// Maximum of `maxMatches` of `fs/search`.
pub const SEARCH_MATCHES_MAX: u64 = 1_000_000;

/// Default of `maxLineBytes` of `fs/search`.
pub const SEARCH_LINE_BYTES: u64 = KIB as u64;

/// Maximum of `maxLineBytes` of `fs/search`.
pub const SEARCH_LINE_BYTES_MAX: u64 = 64 * KIB as u64;

/// Default of `maxFileBytes` of `fs/search`. Larger files are skipped.
pub const SEARCH_FILE_BYTES: u64 = 1024 * MIB as u64;

/// Maximum of `before` and `after` of `fs/search`: lines of context on each side of a match.
pub const SEARCH_CONTEXT: u64 = 100;

/// Maximum bytes of results in one answer of `fs/search` or `fs/glob`: each result counts 64 bytes plus its text.
pub const SEARCH_BYTES: usize = 4 * MIB;

/// Maximum bytes of results of a search with `pages`, over all pages.
pub const SEARCH_PAGED_BYTES: usize = 256 * MIB;

/// Size of one page of a search in bytes; the last line may exceed it. For a slow reader a search keeps at most two pages and the one that
/// is being sent.
pub const SEARCH_PAGE_BYTES: usize = 128 * KIB;

/// Default of `maxResults` of `fs/glob`.
pub const GLOB_RESULTS: u64 = 1000;

/// Maximum of `maxEntries` of a search or a glob.
pub const SCAN_ENTRIES: u64 = 1_000_000;

/// Default of `maxDepth` of a search or a glob.
pub const SCAN_DEPTH: u64 = 64;

/// Maximum of `maxDepth` of a search or a glob. Each level holds an open file descriptor.
pub const SCAN_DEPTH_MAX: u64 = 256;

/// Default of `timeoutMs` of a search or a glob.
pub const SCAN_TIME: Duration = Duration::from_secs(60);

/// Maximum of `timeoutMs` of a search or a glob.
pub const SCAN_TIME_MAX: Duration = Duration::from_secs(600);

/// Default of `maxDirectories` of `fs/watch`.
pub const WATCHED_DIRECTORIES: u64 = 8192;

/// Maximum of `maxDirectories` of `fs/watch`. The host has its own limit for all watches together.
pub const WATCHED_DIRECTORIES_MAX: u64 = 65_536;

/// Maximum of `maxChanges` of `fs/watchNext`.
pub const WATCH_CHANGES: u64 = 4096;

/// Default of `settleMs` of `fs/watchNext`: how long changes are collected after the first one.
pub const WATCH_SETTLE: Duration = Duration::from_millis(50);

/// Maximum of `settleMs` of `fs/watchNext`.
pub const WATCH_SETTLE_MAX: Duration = Duration::from_secs(10);

/// Maximum entries of a sandbox. Each entry costs a lookup of its path, and some cost a mount.
pub const SANDBOX_ENTRIES: usize = 2000;

/// Maximum glob patterns among the entries of a sandbox. Each pattern costs a directory scan.
pub const SANDBOX_PATTERNS: usize = 64;

/// Maximum `workspaceRoots` of a sandbox. An entry about the project roots is expanded to one entry for each root.
pub const SANDBOX_ROOTS: usize = 64;

/// HTTP requests in progress on one connection, including streams. Further ones get the error `overloaded`.
pub const HTTP_REQUESTS: usize = 64;

/// HTTP requests in progress on all connections of a server. Each holds at least one file descriptor.
pub const HTTP_REQUESTS_OF_SERVER: usize = 512;

/// Maximum raw bytes of a body in the result of `http/request`: in base64 21.4 MiB. A larger body must be streamed.
pub const HTTP_BODY_BYTES: usize = 16 * MIB;

/// Bytes of bodies that the requests of one connection hold until their answer is sent, as raw bytes and as base64: a little more than two
/// bodies of the largest size.
pub const HTTP_READING_BYTES: usize = 96 * MIB;

/// Bytes of bodies that the requests of all connections hold until their answer is sent.
pub const HTTP_READING_BYTES_OF_SERVER: usize = 512 * MIB;

/// Maximum raw bytes in one `http/request/bodyDelta`, as in the reference. This server sends at most [`CHUNK_BYTES`].
pub const HTTP_DELTA_BYTES: usize = MIB;

/// Pieces of streamed bodies of one connection that wait for its socket, 1 MiB in total. At this limit the server stops reading bodies.
pub const HTTP_DELTAS_WAITING: usize = 16;

/// Maximum headers of an HTTP request, and of its response.
pub const HTTP_HEADERS: usize = 256;

/// Maximum bytes of the names and values of all headers of an HTTP request, and of its response.
pub const HTTP_HEADER_BYTES: usize = 64 * KIB;

/// Maximum bytes of the URL of an HTTP request.
pub const HTTP_URL_BYTES: usize = 16 * KIB;

/// Maximum bytes of the `requestId` of an HTTP request.
pub const HTTP_REQUEST_ID_BYTES: usize = 256;

/// Maximum redirects that one HTTP request follows.
pub const HTTP_REDIRECTS: usize = 10;

/// Pieces of one streamed body that a client buffers for a reader that does not consume them. Beyond this limit the stream fails.
pub const HTTP_PIECES_KEPT: usize = 256;

/// Bytes of all streamed bodies that a client buffers for readers that do not consume them.
pub const HTTP_BYTES_KEPT: usize = 16 * MIB;
