//! Settings of the core: every timeout and bound that a test or a user may want to change, with its default.

use std::{path::PathBuf, sync::Arc, time::Duration};

use exec_server_protocol::{limits, process::Overflow};
use exec_server_sandbox::FileUser;

use super::{Hook, SessionIds};
use crate::audit::Audit;

/// Settings of the core; every timeout and bound that a test or a user may want to change.
#[derive(Clone, Debug)]
pub struct Config {
    /// No session lives longer than this without a connection; `None` = no upper bound.
    pub session_ttl_max: Option<Duration>,
    /// How long sessions whose clients asked for no time to live stay after this server is killed; absent = as long as any. For a server
    /// whose state directory no other server will find.
    pub orphan_ttl: Option<Duration>,
    /// Starts of one connection that run at once.
    pub concurrent_requests: usize,
    /// How often an idle peer is pinged.
    pub ping_every: Duration,
    /// Silence (no byte in, nothing acknowledged by its TCP) after which a peer is dead.
    pub dead_after: Duration,
    /// How long the old peer of an attached session may take to answer a ping before it is handed over.
    pub takeover_after: Duration,
    /// The server's own environment, on which `envPolicy` is evaluated. Read once by the program, token names removed.
    pub environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    /// The server's working directory, for `environment/info`.
    pub cwd: Option<PathBuf>,
    /// Memory a process's log may hold before the child blocks (attached) or spills (detached); at least [`Config::LEAST_CAP_BYTES`].
    pub memory_cap_bytes: u64,
    /// How far output may run ahead of the last acknowledgement; at most the cap less the two segments of [`Config::LEAST_CAP_BYTES`]
    /// that need not be free.
    pub ack_window_bytes: u64,
    /// Bytes of incoming messages that all connections together may hold; beyond it the largest is closed.
    pub incoming_bytes: usize,
    /// Where it is recorded who does what.
    pub audit: Audit,
    /// What becomes of output that is not taken, where a start does not say.
    pub overflow: Overflow,
    /// Sessions at once, attached or not; a new one beyond it is refused.
    pub sessions_max: usize,
    /// Running processes of one session; a start beyond it is refused.
    pub processes_max: usize,
    /// Closed processes kept per session; those whose output was not taken are never counted out.
    pub closed_processes: usize,
    /// How long a closed process stays readable.
    pub closed_kept: Duration,
    /// Called on the thread of a file operation before it begins, by a program that must repeat itself.
    pub before_file_work: Hook,
    /// How sessions are named.
    pub session_ids: SessionIds,
    /// Files and directories that no sandbox ever shows, besides the state directory: tokens, keys, sockets.
    pub hidden: Vec<PathBuf>,
    /// Files that a sandbox may show and that only the owner touches by file methods, besides those that are hidden: certificates.
    pub owner_only: Vec<PathBuf>,
    /// The user that file methods act as (`--run-as`); the server's own where there is none.
    pub file_user: Option<Arc<FileUser>>,
}

impl Config {
    /// Three segments: one being written, and two that may be kept for the last readable MiB. Less would block a child for ever.
    pub const LEAST_CAP_BYTES: u64 = 3 << 20;

    /// The widest window in which no log stands still. A client acknowledges every quarter of it; were that more than what the readable
    /// MiB and a segment begun leave of the log, the log could be full with too little in it to acknowledge.
    pub(crate) fn widest_window_bytes(&self) -> u64 {
        self.memory_cap_bytes - (2 << 20)
    }

    /// The log's cap for a client that cannot acknowledge: what it may still have to read after a resume is kept beside what it was not sent yet.
    pub(crate) fn reference_cap_bytes(&self) -> u64 {
        limits::UNREAD_BYTES + self.memory_cap_bytes / 4
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            session_ttl_max: Some(limits::SESSION_TTL_MAX),
            orphan_ttl: None,
            concurrent_requests: limits::STARTS_RUNNING,
            ping_every: Duration::from_secs(15),
            dead_after: Duration::from_secs(30),
            takeover_after: limits::TAKEOVER_SILENCE,
            environment: Vec::new(),
            cwd: None,
            memory_cap_bytes: 16 << 20,
            ack_window_bytes: limits::ACK_WINDOW_BYTES,
            incoming_bytes: limits::INCOMING_BYTES,
            audit: Audit::default(),
            overflow: Overflow::Block,
            sessions_max: limits::SESSIONS,
            processes_max: limits::RUNNING_PROCESSES,
            closed_processes: limits::CLOSED_PROCESSES,
            closed_kept: limits::CLOSED_KEPT,
            before_file_work: Hook::default(),
            session_ids: SessionIds::default(),
            hidden: Vec::new(),
            owner_only: Vec::new(),
            file_user: None,
        }
    }
}
