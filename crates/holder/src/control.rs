//! The control protocol between a server and a holder.
//!
//! Contains the message types of both directions, their fixed little-endian layout (`codec`), and the functions that
//! send and receive them with their fds (`socket`). The effects of the messages are implemented elsewhere.
//!
//! One message is one `SOCK_SEQPACKET` datagram of at most [`MESSAGE_MAX`] bytes: a layout byte, a kind byte, then the
//! fields in order. A message that does not fit (long arguments, a large opaque record) travels in a sealed memfd;
//! [`send`] and [`recv`] handle this transparently. A message is either decoded completely or rejected.
//!
//! ```text
//! server                         holder
//!   Hello{secret, epoch}  ─────▶                      (socketpair end, or a connection to DIR/sock)
//!          ◀──────  Welcome (control block, eventfd), then for each slot: Process, its Segments; Ready
//!   Attach, Start, Write …  ───▶
//!          ◀──────  Started, Segment (memfd), Written, Done, Spilled, Dropped … Expired
//!          ◀──────  Archived, only after AllowArchive from the server
//!   Leave  ──────────────▶                            ends the holder
//! ```
//!
//! Life of a segment: `Segment` lends its memory to the server. `Release` says that its events have been taken, and
//! removes the segment from the log. `Return` says that the server no longer reads it; only then does the holder reuse
//! the memory. The server sends both for a released segment, in any order, and `Return` alone for a spilled or dropped
//! one. If `Return` never comes, the holder frees the memory and does not reuse it.

pub(crate) mod codec;
mod codes;
mod socket;

use exec_server_process::TerminalSize;

pub use codec::DecodeError;
pub(crate) use socket::recv_if_fds_fit;
pub use socket::{Datagram, is_shortage, recv, recv_raw, send, send_raw};

/// The message layout of this build.
pub const VERSION: u32 = 1;

/// The oldest layout that this build supports: that of the previous release (N and N-1).
pub const OLDEST_VERSION: u32 = 1;

/// Feature level in `Welcome` from which a holder confines processes as this release promises. Level 2 added
/// `StartConfined`, level 3 an IPC namespace per process. Neither changed another message, so the layout is the same.
pub const SANDBOXES: u32 = 3;

/// Feature level in `Welcome` from which a holder accepts a digest in `Write` and may answer [`WriteStatus::Cut`].
pub const DIGESTS: u32 = 4;

/// Feature level in `Welcome` from which a holder accepts `Followed` and `Used`.
pub const FOLLOWERS: u32 = 5;

/// Feature level in `Welcome` from which a holder accepts `Withdraw`. No other message changed.
pub const WITHDRAWALS: u32 = 6;

/// Feature level in `Welcome` from which a holder accepts [`ToHolder::AllowArchive`]: the holder can exit when all
/// processes of its session have closed, and leave the session to its files.
pub const ARCHIVES: u32 = 7;

/// Maximum size of a datagram, 60 KiB. The kernel rejects a datagram that exceeds the socket's send buffer (208 KiB by
/// default) with EMSGSIZE.
pub const MESSAGE_MAX: usize = 60 * 1024;

/// Maximum size of one part of a stdin write, 56 KiB: [`MESSAGE_MAX`] less the fields around it, rounded down.
pub const PART_MAX: usize = 56 * 1024;

/// Maximum size of a message in a memfd, 16 MiB: above the kernel's own limit for arguments and environment (6 MiB).
pub const LARGE_MAX: usize = 16 * 1024 * 1024;

/// Maximum number of fds in one message.
pub const FDS_MAX: usize = 4;

/// The errno of a start that was withdrawn before it was spawned: ECANCELED.
pub const WITHDRAWN: i32 = 125;

/// Value of `ttl_ms` for a detached session that never expires.
pub const TTL_NONE: u64 = u64::MAX;

/// A message from a server to a holder.
///
/// Fields that occur in many messages: `req` identifies the request and is repeated in the answer, `slot` identifies a
/// process, and `segment` is the id of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHolder<'a> {
    /// First message on a connection. With the right secret and a higher epoch, it makes this connection the
    /// controller.
    Hello {
        /// Layout of the sender.
        version: u32,
        /// The secret that the holder was created with.
        secret: [u8; 32],
        /// Must be higher than the epoch of the last controller. The first is at least 1.
        epoch: u64,
    },
    /// A client is attached: the lease clock stops, and a full log blocks its child.
    Attach,
    /// No client is attached: the lease clock runs, and a full log spills to disk.
    Detach {
        /// The new time to live, counted from the detach. [`TTL_NONE`]: no limit. Also applies when the controller is
        /// lost later.
        ttl_ms: u64,
    },
    /// Changes the time to live without attaching or detaching.
    SetTtl {
        /// As in `Detach`.
        ttl_ms: u64,
    },
    /// Limits how long the session outlives its server, in addition to the session's time to live. A new controller
    /// removes the limit. No answer. Needs no feature level: only a server whose state directory exists for a single
    /// run sends this message, and the holders of such a server are of the same build.
    SetOrphanTtl {
        /// From the loss of the server to the end of the session. [`TTL_NONE`]: no such limit.
        ttl_ms: u64,
    },
    /// Starts a process. Answer: `Started` or `StartFailed`.
    Start { req: u32, spec: StartSpec },
    /// Starts a process in a sandbox, whose parts come as fds. From [`SANDBOXES`] on.
    StartConfined {
        req: u32,
        /// Flags of [`Kit::parts`](exec_server_sandbox::Kit::parts): whether a user namespace fd is included, and
        /// whether the sandbox restricts files and the network.
        kit: u8,
        spec: StartSpec,
    },
    /// Cancels a start that was not answered in time. If it has not been spawned, the answer is `StartFailed` with
    /// [`WITHDRAWN`]. Otherwise the start is answered as usual. From [`WITHDRAWALS`] on.
    Withdraw { req: u32 },
    /// One part of a stdin write, sent after the `Written` of the previous part. Answer: `Written`.
    Write {
        req: u32,
        slot: u32,
        /// Identifies the whole write, for exactly-once delivery. `None`: at most once.
        key: Option<[u8; 16]>,
        /// Digest of the whole write. Compared only if there is a key. Its presence permits the answer
        /// [`WriteStatus::Cut`]. From [`DIGESTS`] on.
        digest: Option<u32>,
        /// Length of the whole write.
        total: u64,
        /// Position of this part in the whole write.
        offset: u64,
        /// The bytes of this part, at most [`PART_MAX`].
        data: &'a [u8],
    },
    /// Closes stdin after the writes before it. Answer: `Done`.
    CloseStdin { req: u32, slot: u32 },
    /// Sends a signal to the process group. Answer: `Done`.
    Signal { req: u32, slot: u32, signal: i32 },
    /// Sets the terminal's size. Answer: `Done`.
    Resize { req: u32, slot: u32, rows: u16, cols: u16 },
    /// Ends a process. Answer: `Done` at once, with the state that was found. Exit and close are events in the log.
    Terminate {
        req: u32,
        slot: u32,
        /// `None`: SIGKILL to the whole tree at once. Otherwise, SIGTERM to the group, and the tree is killed after
        /// this time. If the leader is dead, the rest of the tree is killed at once in both cases.
        grace_ms: Option<u32>,
    },
    /// Changes the memory cap of a process. No answer.
    Cap {
        slot: u32,
        /// Bytes of segments in memory, rounded up to at least one segment.
        bytes: u64,
    },
    /// The events of this segment have been taken: it leaves the log, and its disk file is removed. No answer.
    Release { slot: u32, segment: u64 },
    /// All readers that follow this log have taken its events up to `seq`. If no client is attached and the child would
    /// block because the quota or the disk is full, segments up to `seq` are dropped (and counted) instead. Replaces
    /// the previous value. The loss of the controller resets it to 0. No answer. From [`FOLLOWERS`] on.
    Followed {
        slot: u32,
        /// The last event that all of these readers have taken. 0: no reader has followed the log from its first
        /// retained event on.
        seq: u64,
    },
    /// Other sessions use this one, or did until now. The clock of a detached session stops during the use, and
    /// restarts from zero when the use ends. The loss of the controller ends the use. No answer. From [`FOLLOWERS`] on.
    Used {
        /// True while the use continues, false when it has ended.
        is_going_on: bool,
    },
    /// The server no longer reads this segment, so its memory may be reused. No answer.
    Return { segment: u64 },
    /// Removes a closed process: its log, its files and its slot. Counts as `Release` of its segments. Answer: `Done`.
    Forget { req: u32, slot: u32 },
    /// Ends the session: kills all processes, removes all files, and the holder exits. Answer: `Done`, then EOF.
    End { req: u32 },
    /// This server can serve the files of a session without a holder, so the holder may send `Archived`. No answer.
    /// From [`ARCHIVES`] on.
    AllowArchive,
    /// The server serves the files from now on. Answer: EOF, or `Staying` if the session has become busy since
    /// `Archived`.
    Leave,
}

/// A process to start. All strings are bytes as the kernel takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartSpec {
    /// Program and arguments. The program is searched in the `PATH` of `env`.
    pub argv: Vec<Vec<u8>>,
    /// Replaces `argv[0]` as the program sees it.
    pub arg0: Option<Vec<u8>>,
    /// The complete environment, as `NAME=VALUE`.
    pub env: Vec<Vec<u8>>,
    /// Working directory, absolute.
    pub cwd: Vec<u8>,
    /// Size of a terminal to use instead of pipes.
    pub tty: Option<TerminalSize>,
    /// Without a terminal: whether stdin is a pipe. Otherwise it is `/dev/null`.
    pub pipe_stdin: bool,
    /// Kills the process this long after its start.
    pub timeout_ms: Option<u64>,
    /// Kills the process after this long without output.
    pub idle_timeout_ms: Option<u64>,
    /// The policy for a full log.
    pub overflow: OverflowPolicy,
    /// Bytes of segments in memory before the child blocks (attached) or its output spills to disk (detached).
    pub cap_bytes: u64,
    /// Opaque to the holder. Sent back in `Process` at adoption.
    pub meta: Vec<u8>,
}

/// The policy for a full log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// The child waits until a reader has taken events.
    #[default]
    Block,
    /// The oldest segment is dropped and counted.
    DropOldest,
}

/// A message from a holder to its server.
///
/// `req` identifies the request that is answered. `slot` identifies a process, and `segment` is the id of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromHolder {
    /// The receiver is now the controller. Fds: the memfd of the control block, the eventfd.
    Welcome {
        /// Feature level of the holder, for example [`ARCHIVES`].
        version: u32,
        /// The epoch of this controller.
        epoch: u64,
        /// The current time to live. [`TTL_NONE`]: no limit.
        ttl_ms: u64,
        /// How long the session has been detached.
        detached_ms: u64,
        /// The opaque record that the holder was created with.
        info: Vec<u8>,
    },
    /// The secret was right, but this connection may not become the controller. The holder closes it after this
    /// message.
    Refused {
        /// Layout of the holder.
        version: u32,
        /// Epoch of the last controller. A new one must have a higher epoch.
        epoch: u64,
    },
    /// At adoption: a process of the session. Fd: its pidfd, if it runs and is a real child.
    Process(Box<ProcessInfo>),
    /// A segment of a log, in order. Fd: its memfd unless `on_disk`.
    Segment(AnnouncedSegment),
    /// The adoption is complete. Live messages follow.
    Ready,
    /// The process runs. Fd: its pidfd, if it is a real child.
    Started {
        req: u32,
        /// The slot in the control block. Identifies the process in later messages.
        slot: u32,
        pid: u32,
    },
    /// The process could not be started.
    StartFailed {
        req: u32,
        /// Where the start failed.
        stage: StartStage,
        /// The errno, or 0 if the request itself is invalid.
        errno: i32,
        /// The object that failed: program, directory or resource, as bytes.
        detail: Vec<u8>,
    },
    /// The answer to `Write`: the part has been written to the child's stdin, or will not be written.
    Written {
        req: u32,
        status: WriteStatus,
        /// Bytes of the whole write that have been written to the child's stdin.
        done: u64,
    },
    /// The answer to every other request.
    Done { req: u32, status: CommandStatus },
    /// The segment is now on disk, in the file `disk_name(slot, segment)`. The server should send `Return` for its
    /// memory.
    Spilled { slot: u32, segment: u64 },
    /// The overflow policy dropped the segment. The server should send `Return` for its memory.
    Dropped { slot: u32, segment: u64 },
    /// The memory of this segment has been freed. A mapping that the server keeps for reuse (`memfd_of`) is now
    /// useless.
    Retired {
        /// The last segment in that memory.
        segment: u64,
    },
    /// The session's time to live has passed. The holder kills all processes, and EOF follows.
    Expired,
    /// Every process has closed and every log is complete on disk. The holder exits when the server sends `Leave`.
    Archived,
    /// The answer to a `Leave` that came too late: the holder continues.
    Staying,
}

/// One process at adoption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    pub slot: u32,
    /// Pid of the leader, also after its end.
    pub pid: u32,
    /// The process has a terminal.
    pub tty: bool,
    /// Stdin accepts writes.
    pub stdin_open: bool,
    /// The leader has not been reaped.
    pub running: bool,
    /// The current memory cap.
    pub cap_bytes: u64,
    pub overflow: OverflowPolicy,
    /// The opaque record of the process's start.
    pub meta: Vec<u8>,
}

/// One segment of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncedSegment {
    pub slot: u32,
    /// The segment's id. Never reused by a holder.
    pub id: u64,
    /// Sequence number of the first event in it.
    pub base_seq: u64,
    /// Output bytes of the log before this segment.
    pub base_offset: u64,
    /// The segment is a file in the session's directory, not in memory.
    pub on_disk: bool,
    /// Nothing more will be appended.
    pub sealed: bool,
}

/// Where a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStage {
    /// The request itself is invalid: no program, or a NUL byte.
    Input,
    /// No slot, fd or memory was left, a process limit was reached, another step of the setup failed, or the start was
    /// withdrawn ([`WITHDRAWN`]).
    Resources,
    /// The working directory could not be entered.
    Cwd,
    /// The program could not be executed.
    Exec,
    /// The sandbox could not be applied.
    Sandbox,
}

/// The result of one part of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStatus {
    /// The whole part has been written to the child's stdin.
    Accepted,
    /// The process has no stdin, or its stdin is closed. `done` says how much of the write went in.
    StdinClosed,
    /// No process has this slot.
    UnknownProcess,
    /// Like `Accepted`, but the terminal dropped some bytes: a line in canonical mode was too long.
    Cut,
    /// The key was used with another total or digest, or the part begins after `done` or ends after `total`.
    Mismatch,
    /// Another part is being written. Send the refused part again after the answer to that part.
    Busy,
}

/// The result of a request, in `Done`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandStatus {
    /// Success. For `Terminate`: the process was running.
    Ok,
    /// The process has exited.
    NotRunning,
    /// The process has exited. Other processes that held its streams were killed.
    StreamsHeld,
    /// No process has this slot.
    UnknownProcess,
    /// `Resize` of a process without a terminal.
    NotATerminal,
    /// `CloseStdin` of a process without an open stdin, or after another `CloseStdin` that is still pending.
    StdinClosed,
    /// `CloseStdin` on a terminal in raw mode: an EOF character would be data there.
    RawMode,
    /// `Forget` of a process that has not closed.
    NotClosed,
    /// The kernel refused, with this errno.
    Failed(i32),
}
