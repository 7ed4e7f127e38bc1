//! Settings of the core, with their defaults.

use std::{path::PathBuf, sync::Arc, time::Duration};

use exec_server_protocol::{limits, process::Overflow};
use exec_server_sandbox::FileUser;

use crate::audit::Audit;

/// Settings of the core: every timeout and bound that a test or a user may want to change.
#[derive(Clone)]
pub struct Config {
    /// Upper bound for a session's time-to-live while detached; `None` = no upper bound.
    pub session_ttl_max: Option<Duration>,
    /// How long a session outlives this server if the server is killed and the client did not ask for a time-to-live;
    /// `None` = no special limit. For a server whose state directory no later server will find.
    pub orphan_ttl: Option<Duration>,
    /// Number of starts of one connection that run concurrently (`--concurrent-requests`).
    pub concurrent_requests: usize,
    /// Interval of pings to an idle peer.
    pub ping_every: Duration,
    /// Silence after which a peer is considered dead: no byte received, and nothing acknowledged by its TCP.
    pub dead_after: Duration,
    /// How long the attached peer may take to answer a ping before a resume by another connection takes the session
    /// over.
    pub takeover_after: Duration,
    /// The server's own environment, for example the base of an `envPolicy`. The program reads it once and removes the
    /// variable with the token.
    pub environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    /// The server's working directory: the default directory of a start, reported by `environment/info`.
    pub cwd: Option<PathBuf>,
    /// Memory that the log of one process may use before the child blocks (attached) or the log spills to disk
    /// (detached). At least [`Config::LEAST_CAP_BYTES`].
    pub memory_cap_bytes: u64,
    /// How far output may run ahead of the last acknowledgement. At most `memory_cap_bytes` less two segments.
    pub ack_window_bytes: u64,
    /// Bytes of received messages that all connections together may hold. Beyond it the connection with the largest
    /// share is closed.
    pub incoming_bytes: usize,
    /// The audit log.
    pub audit: Audit,
    /// The overflow policy for starts that do not specify one.
    pub overflow: Overflow,
    /// Maximum number of sessions, attached or not. A new session beyond it is refused.
    pub sessions_max: usize,
    /// Maximum number of running processes per session. A start beyond it is refused.
    pub processes_max: usize,
    /// Number of closed processes kept per session. Beyond it the oldest one whose output was taken is forgotten. A
    /// process with untaken output is never forgotten for this reason.
    pub closed_processes: usize,
    /// How long a closed process stays readable. The time counts only while the session's client is attached and has
    /// all output. After an interruption it begins again.
    pub closed_kept: Duration,
    /// Called on the worker thread before each file operation. Lets the simulation run deterministically.
    pub before_file_work: Arc<dyn Fn() + Send + Sync>,
    /// Generates session ids, unique for the life of a state directory. An id is a capability, so anything but the
    /// default (UUIDs of version 4, with 122 random bits each) is only for tests and simulations.
    pub session_ids: Arc<dyn Fn() -> String + Send + Sync>,
    /// Files and directories, besides the state directory, that no sandbox ever shows: tokens, keys, sockets.
    pub hidden: Vec<PathBuf>,
    /// Files, besides the hidden ones, that only the owner may access by file methods but that a sandbox may show:
    /// certificates.
    pub owner_only: Vec<PathBuf>,
    /// The user that file methods act as (`--run-as`); `None` = the server's own user.
    pub file_user: Option<Arc<FileUser>>,
}

impl Config {
    /// Three segments: the one being written, and two that may be needed to keep the last MiB readable. With less, a
    /// child could block forever.
    pub const LEAST_CAP_BYTES: u64 = 3 << 20;

    /// The log's cap for a client that cannot acknowledge. The log keeps output that was already sent, because the
    /// client may read it again after a resume; this comes on top of the output not yet sent.
    pub(crate) fn unacked_cap_bytes(&self) -> u64 {
        limits::UNREAD_BYTES + (self.memory_cap_bytes / 4).max(Self::LEAST_CAP_BYTES)
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
            memory_cap_bytes: limits::MEMORY_PER_PROCESS,
            ack_window_bytes: limits::ACK_WINDOW_BYTES,
            incoming_bytes: limits::INCOMING_BYTES,
            audit: Audit::default(),
            overflow: Overflow::Block,
            sessions_max: limits::SESSIONS,
            processes_max: limits::RUNNING_PROCESSES,
            closed_processes: limits::CLOSED_PROCESSES,
            closed_kept: limits::CLOSED_KEPT,
            before_file_work: Arc::new(|| ()),
            session_ids: Arc::new(|| uuid::Uuid::new_v4().to_string()),
            hidden: Vec::new(),
            owner_only: Vec::new(),
            file_user: None,
        }
    }
}
