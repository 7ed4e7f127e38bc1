//! The control channel between a server and a holder: its vocabulary.
//!
//! Owns the message types of both directions, their fixed little-endian layout (`codec`) and the two calls that
//! move them with their descriptors (`socket`). It must not know what a message makes a holder or a server do.
//!
//! One message is one `SOCK_SEQPACKET` datagram of at most [`MESSAGE_MAX`] bytes: a layout byte, a kind byte, then
//! the fields in order. What does not fit (a long argument list, a big opaque record) travels in a sealed memfd;
//! [`send`] and [`recv`] do that unasked. A received message is either whole or an error, never partly believed.
//!
//! ```text
//! server                         holder
//!   Hello{secret, epoch}  ─────▶                      (socketpair end, or a connection to DIR/sock)
//!          ◀──────  Welcome (control memfd, eventfd), then for each slot: Process, its Segments; Ready
//!   Attach, Start, Write …  ───▶
//!          ◀──────  Started, Segment (memfd), Written, Done, Spilled, Dropped … Expired
//!          ◀──────  Archived, where the server has said AllowArchive; Leave ends the holder
//! ```
//!
//! Segments. `Segment` lends memory to the server. `Release` says that the events in it were taken: it leaves the
//! log. `Return` says that no mapping of it is left in the server: only then is the memory used again. Both are sent
//! for a released segment, in any order; for a spilled or a dropped one `Return` alone. A segment whose `Return` never
//! comes is freed by the holder and not reused.

mod codec;
mod socket;
mod words;

use exec_server_process::Size;

pub use codec::DecodeError;
pub(crate) use socket::recv_or_leave;
pub use socket::{Datagram, is_shortage, recv, recv_raw, send, send_raw};

/// The layout this build speaks.
pub const VERSION: u32 = 1;

/// The oldest layout this build still speaks: the release before (N and N-1).
pub const OLDEST_VERSION: u32 = 1;

/// What a holder says in `Welcome` from which on it confines as this release promises. `StartConfined` came with 2, an IPC namespace for
/// each process with 3; neither changed another message, so the layout stays.
pub const SANDBOXES: u32 = 3;

/// What a holder says in `Welcome` from which on it takes a digest in `Write`, and answers with [`WriteStatus::Cut`].
pub const DIGESTS: u32 = 4;

/// What a holder says in `Welcome` from which on it takes `Followed` and `Used`.
pub const FOLLOWERS: u32 = 5;

/// What a holder says in `Welcome` from which on it takes `Withdraw`; again without a change of any other message.
pub const WITHDRAWALS: u32 = 6;

/// The same for [`ToHolder::AllowArchive`]: the holder can leave a session whose processes have closed to its files.
pub const ARCHIVES: u32 = 7;

/// Largest datagram, 60 KiB: a `SOCK_SEQPACKET` message is one contiguous kernel allocation, which fails from 256 KiB on.
pub const MESSAGE_MAX: usize = 60 * 1024;

/// Largest part of a stdin write, 56 KiB: [`MESSAGE_MAX`] less the fields around it, rounded down.
pub const PART_MAX: usize = 56 * 1024;

/// Largest message in a memfd, 16 MiB: above the kernel's own limit for arguments and environment (6 MiB).
pub const LARGE_MAX: usize = 16 * 1024 * 1024;

/// Descriptors in one message at most.
pub const FDS_MAX: usize = 4;

/// The error number of a start that was withdrawn before it was begun: ECANCELED.
pub const WITHDRAWN: i32 = 125;

/// `ttl_ms` that means: a detached session never expires.
pub const TTL_NONE: u64 = u64::MAX;

/// What a server says to a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHolder<'a> {
    /// First message on a connection; with the right secret and a higher epoch it makes this connection the controller.
    Hello {
        /// Layout of the sender.
        version: u32,
        /// The secret the holder was created with.
        secret: [u8; 32],
        /// Must be above the epoch of the last controller; the first is at least 1.
        epoch: u64,
    },
    /// A client is attached: the session's clock stands still, full logs block their children.
    Attach,
    /// No client is attached any more: the clock runs, full logs spill to disk.
    Detach {
        /// Time to live from now on, [`TTL_NONE`] for ever; also in force when the controller is lost later.
        ttl_ms: u64,
    },
    /// Changes the time to live in force without attaching or detaching.
    SetTtl {
        /// As in `Detach`.
        ttl_ms: u64,
    },
    /// Ends the session this long after the server is gone, whatever its time to live says; [`TTL_NONE`] for no such limit. Forgotten when
    /// another server comes. No answer. Only a server with a state directory of its own run says it, and its holders are of its build.
    SetOrphanTtl {
        /// As in `Detach`.
        ttl_ms: u64,
    },
    /// Starts a process. Answer: `Started` or `StartFailed`.
    Start {
        /// Names the answer.
        req: u32,
        /// What to start.
        spec: StartSpec,
    },
    /// The same in a sandbox, whose parts come as descriptors; known to holders from [`SANDBOXES`] on.
    StartConfined {
        /// Names the answer.
        req: u32,
        /// Which descriptors come with it.
        kit: u8,
        /// What to start.
        spec: StartSpec,
    },
    /// Takes a start back that was not answered in time. One that was not begun is answered with `StartFailed` and [`WITHDRAWN`]; one that
    /// was is answered as any other. Known to holders from [`WITHDRAWALS`] on.
    Withdraw {
        /// The start.
        req: u32,
    },
    /// One part of a stdin write, sent after the `Written` of the part before. Answer: `Written`.
    Write {
        /// Names the answer.
        req: u32,
        /// The process.
        slot: u32,
        /// Identity of the whole write for exactly-once; absent = at most once.
        key: Option<[u8; 16]>,
        /// Digest of the whole write, for holders from [`DIGESTS`] on; means nothing without a key.
        digest: Option<u32>,
        /// Length of the whole write.
        total: u64,
        /// Where in the whole write this part begins.
        offset: u64,
        /// The part, at most [`PART_MAX`] bytes.
        data: &'a [u8],
    },
    /// Closes stdin behind the writes before it. Answer: `Done`.
    CloseStdin {
        /// Names the answer.
        req: u32,
        /// The process.
        slot: u32,
    },
    /// Signals the process group. Answer: `Done`.
    Signal {
        /// Names the answer.
        req: u32,
        /// The process.
        slot: u32,
        /// Signal number.
        signal: i32,
    },
    /// Sets the terminal's size. Answer: `Done`.
    Resize {
        /// Names the answer.
        req: u32,
        /// The process.
        slot: u32,
        /// Rows.
        rows: u16,
        /// Columns.
        cols: u16,
    },
    /// Ends a process. Answer: `Done` at once, with the state found; exit and close are events of the log.
    Terminate {
        /// Names the answer.
        req: u32,
        /// The process.
        slot: u32,
        /// Absent: SIGKILL to the whole tree at once; present: SIGTERM to the group, and the tree is killed after it.
        grace_ms: Option<u32>,
    },
    /// Changes the memory cap of a process. No answer.
    Cap {
        /// The process.
        slot: u32,
        /// Bytes of memory segments, rounded up to at least one.
        bytes: u64,
    },
    /// The events of this segment were taken; it leaves the log (a disk file is removed). No answer.
    Release {
        /// The process.
        slot: u32,
        /// The segment.
        segment: u64,
    },
    /// Every reader that follows this log has taken it up to here, from its first retained event on. Where its child would wait for the disk and no
    /// client is attached, segments up to there are dropped instead, and counted. Zero: no reader follows. Replaces what was said before and
    /// ends with the controller. No answer. From [`FOLLOWERS`] on.
    Followed {
        /// The process.
        slot: u32,
        /// The last event that all of them have taken.
        seq: u64,
    },
    /// Other sessions use this one, or used it just now. The clock of a detached session stands still while they do, and starts anew when
    /// they end. Ends with the controller. No answer. From [`FOLLOWERS`] on.
    Used {
        /// They go on using it.
        is_going_on: bool,
    },
    /// No mapping of this segment is left in the server. No answer.
    Return {
        /// The segment.
        segment: u64,
    },
    /// Drops a closed process: its log, its files, its slot; counts as `Release` of its segments. Answer: `Done`.
    Forget {
        /// Names the answer.
        req: u32,
        /// The process.
        slot: u32,
    },
    /// Ends the session: everything is killed and removed, the holder exits. Answer: `Done`, then end of file.
    End {
        /// Names the answer.
        req: u32,
    },
    /// This server serves the files of a session without its holder: the holder may say `Archived`. Known to holders from [`ARCHIVES`]
    /// on. No answer.
    AllowArchive,
    /// The server serves the files from now on. Answer: end of file, or `Staying` where the holder has become busy since it said
    /// `Archived`.
    Leave,
}

/// A process to start. All strings are bytes as the kernel takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartSpec {
    /// Program and arguments; the program is searched in the `PATH` of `env`.
    pub argv: Vec<Vec<u8>>,
    /// Replaces `argv[0]` as the program sees it.
    pub arg0: Option<Vec<u8>>,
    /// `NAME=VALUE`, the complete environment.
    pub env: Vec<Vec<u8>>,
    /// Working directory, absolute.
    pub cwd: Vec<u8>,
    /// Terminal of this size instead of pipes.
    pub tty: Option<Size>,
    /// Without a terminal: a writable stdin instead of the null device.
    pub pipe_stdin: bool,
    /// Kills the process this long after its start.
    pub timeout_ms: Option<u64>,
    /// Kills the process after this long without output.
    pub idle_timeout_ms: Option<u64>,
    /// What happens when the log is full.
    pub overflow: Overflow,
    /// Bytes of memory segments before the child is not read any more (attached) or is spilled (detached).
    pub cap_bytes: u64,
    /// Opaque to the holder, given back in `Process` at adoption.
    pub meta: Vec<u8>,
}

/// What a full log does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The child waits until a reader has taken something.
    #[default]
    Block,
    /// The oldest segment is given up and counted.
    DropOldest,
}

/// What a holder says to its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromHolder {
    /// The sender is the controller now. Descriptors: control memfd, eventfd.
    Welcome {
        /// Layout of the holder.
        version: u32,
        /// The epoch of this controller.
        epoch: u64,
        /// The time to live in force, [`TTL_NONE`] for ever.
        ttl_ms: u64,
        /// How long the session has been detached.
        detached_ms: u64,
        /// The opaque record given at creation.
        info: Vec<u8>,
    },
    /// The secret was right but this connection may not control; it is closed after this.
    Refused {
        /// Layout of the holder.
        version: u32,
        /// Epoch of the last controller; a new one must be above it.
        epoch: u64,
    },
    /// At adoption: a process of the session. Descriptor: its pidfd if it is running and a real child.
    Process(Box<ProcessInfo>),
    /// A segment of a log, in order. Descriptor: its memfd unless `on_disk`.
    Segment(SegmentInfo),
    /// The adoption is complete; live messages follow.
    Ready,
    /// The process runs. Descriptor: its pidfd if it is a real child.
    Started {
        /// The request.
        req: u32,
        /// Its slot in the control page and name in later messages.
        slot: u32,
        /// Process id.
        pid: u32,
    },
    /// The process could not be started.
    StartFailed {
        /// The request.
        req: u32,
        /// What failed.
        stage: Stage,
        /// The system's error number, 0 where the input itself is at fault.
        errno: i32,
        /// The object: program, directory or resource, as bytes.
        detail: Vec<u8>,
    },
    /// The part is in the kernel, or never will be.
    Written {
        /// The request.
        req: u32,
        /// What became of it.
        status: WriteStatus,
        /// Bytes of the whole write that have entered the child's stdin.
        done: u64,
    },
    /// The answer to every other request.
    Done {
        /// The request.
        req: u32,
        /// What became of it.
        status: Status,
    },
    /// The segment is on disk now (file `disk_name(slot, segment)`); give its memory back with `Return`.
    Spilled {
        /// The process.
        slot: u32,
        /// The segment.
        segment: u64,
    },
    /// The segment was given up by the overflow policy; give its memory back with `Return`.
    Dropped {
        /// The process.
        slot: u32,
        /// The segment.
        segment: u64,
    },
    /// The memory of this segment was freed; a mapping that is kept for its reuse (`memfd_of`) has no use any more.
    Retired {
        /// The last segment in that memory.
        segment: u64,
    },
    /// The session's time to live has passed; everything is killed and end of file follows.
    Expired,
    /// Every process has closed and every log is complete on disk: the holder ends when the server says `Leave`.
    Archived,
    /// The answer to a `Leave` that came too late: the holder goes on.
    Staying,
}

/// One process at adoption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its slot.
    pub slot: u32,
    /// Process id of the leader, also after its end.
    pub pid: u32,
    /// Has a terminal.
    pub tty: bool,
    /// Stdin takes writes.
    pub stdin_open: bool,
    /// The leader has not been reaped.
    pub running: bool,
    /// Memory cap in force.
    pub cap_bytes: u64,
    /// Overflow policy.
    pub overflow: Overflow,
    /// The opaque record of its start.
    pub meta: Vec<u8>,
}

/// One segment of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The process.
    pub slot: u32,
    /// Its name, never used twice in a holder.
    pub id: u64,
    /// Number of its first event.
    pub base_seq: u64,
    /// Output bytes before it.
    pub base_offset: u64,
    /// It is a file in the session's directory, not memory.
    pub on_disk: bool,
    /// Nothing will be appended to it.
    pub sealed: bool,
}

/// Where a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The request itself: no program, a NUL byte.
    Input,
    /// Slots, descriptors, memory, process limits.
    Resources,
    /// The working directory.
    Cwd,
    /// The program could not be executed.
    Exec,
    /// The child could not be confined.
    Sandbox,
}

/// What became of a part of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStatus {
    /// All of the part is in the kernel.
    Accepted,
    /// There is no stdin, or no longer; `done` says how much of the write went in.
    StdinClosed,
    /// No such slot.
    UnknownProcess,
    /// As `Accepted`, but the terminal dropped some of it: a line in canonical mode was too long.
    Cut,
    /// The key is known with another total or digest, or the part does not continue at `done`.
    Mismatch,
    /// Another part is in hand already; send this one after its answer.
    Busy,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done; for `Terminate`: it was running.
    Ok,
    /// The process has exited.
    NotRunning,
    /// The process has exited, and others that held its streams were killed.
    StreamsHeld,
    /// No such slot.
    UnknownProcess,
    /// `Resize` without a terminal.
    NotATerminal,
    /// `CloseStdin` where there is no stdin any more.
    StdinClosed,
    /// `CloseStdin` on a terminal in raw mode: an EOF character would be data.
    RawMode,
    /// `Forget` of a process that is not closed.
    NotClosed,
    /// The system refused, with this error number.
    Failed(i32),
}
