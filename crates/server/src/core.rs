//! Owns everything that lives as long as the server: the configuration, the session table, and the background tasks.
//!
//! Does not depend on how clients connect. A connection arrives here as an authenticated byte stream (`Authenticated`),
//! which `admission`, the stdio listener or an embedding program creates.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use exec_server_holder::manifest::ManifestEntry;
use exec_server_log::RecoveredLog;
use exec_server_rpc::{ByteStream, Framing};
use exec_server_sandbox::{BuildError, BuiltView, ViewScript};
use parking_lot::Mutex;
use tokio::{io::AsyncWriteExt as _, sync::Notify, task::JoinSet, time::Instant};

use crate::{
    access::Grant,
    compat,
    connection::{self, Peer},
    dispatch::RequestFuture,
    error::Failure,
    fetch::Fetcher,
    file_tasks::FileTaskSlots,
    files::FilePool,
    incoming::IncomingBudget,
    metrics::Metrics,
    own_files::OwnFiles,
    process::Process,
    sandbox::Sandboxes,
    session::{AttachClaim, Attachment, Session, short_id},
};

mod adoption;
mod config;
mod gone_reason;
mod guess_throttle;
mod idle;
mod report;
mod session_keys;

pub use config::Config;
pub use idle::Visit;

use self::{adoption::PendingSessions, gone_reason::GoneReason, session_keys::KeyedSessions};

/// The identity that a connection acts for. A session belongs to one principal, and only that principal can resume it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The owner of the server: a peer with the server's own token, with the owner's uid on a Unix socket, on stdio, or
    /// without a certificate on a listener that requires no authentication.
    pub fn owner() -> Self {
        Self("owner".into())
    }

    /// A principal by name, for example from a session record after a restart.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// The name as written into records and logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An authenticated byte stream. The core accepts nothing else.
pub struct Authenticated {
    /// Both directions. The reader starts with any bytes that the handshake read too far.
    pub(crate) stream: ByteStream,
    pub(crate) framing: Framing,
    /// The principal and its permissions.
    pub(crate) grant: Grant,
    /// Names the peer in logs, in audit records and in the answer to a malformed message, for example `exec-server
    /// websocket 127.0.0.1:4000`.
    pub(crate) label: String,
    /// The end of the stream ends the session and its processes. Set for stdio if no later server will find the state
    /// directory.
    pub(crate) ends_session: bool,
}

impl Authenticated {
    /// Declares a stream authenticated. Called by `admission` after its checks, by the stdio listener, whose peer
    /// started the server, and by a program that embeds the server for its own use.
    pub fn vouch(stream: ByteStream, framing: Framing, grant: Grant, label: impl Into<String>) -> Self {
        Self { stream, framing, grant, label: label.into(), ends_session: false }
    }

    /// Confirms that a live server has accepted the connection: sends one blank line, which every peer with newline
    /// framing skips. A peer that gets no blank line may be queued at a server that is shutting down.
    pub(crate) async fn greet(&mut self) -> io::Result<()> {
        self.stream.writer.write_all(b"\n").await?;
        self.stream.writer.flush().await
    }

    /// Makes the end of this connection also end its session.
    pub fn ending_its_session(mut self) -> Self {
        self.ends_session = true;
        self
    }
}

/// The state that was found on disk for one session.
pub enum FoundSession {
    /// A holder that accepts connections on its socket. The server adopts it.
    Holder {
        /// Connection to the holder's control socket.
        controller: OwnedFd,
        /// The secret that the holder expects in the first message.
        secret: [u8; 32],
    },
    /// A holder that is alive but does not accept a connection now (it is stopped or overloaded), or a session whose
    /// files cannot be read now. The server tries again.
    Silent,
    /// The record of a session that had no process when the last server ended.
    Record(Vec<u8>),
    /// A session whose time-to-live ran out: the tombstone that its holder wrote.
    Expired(String),
    /// A dead holder that left files, which the server makes readable. They are complete if the holder archived the
    /// session before it exited.
    DeadHolder(DeadHolder),
    /// Nothing usable is left: the holder died without a tombstone or output on disk, or the session has no record.
    Lost,
}

/// The files that a dead holder left.
pub struct DeadHolder {
    /// The session record.
    pub record: Vec<u8>,
    /// The processes, each with the readable part of its log.
    pub logs: Vec<(ManifestEntry, RecoveredLog)>,
    /// The session's clock, if the holder archived the session.
    pub clock: Option<SavedClock>,
}

/// The clock of a session, as its holder reports it or as it was saved in the files of an archived session.
#[derive(Clone, Copy, Debug)]
pub struct SavedClock {
    /// Time-to-live while detached; `None` = unlimited.
    pub ttl: Option<Duration>,
    /// How long the session has been detached; `None` if a client was attached when its server ended.
    pub detached_for: Option<Duration>,
}

/// The files that a session without a holder should have on disk.
#[derive(Clone, Debug)]
pub struct ArchiveFiles {
    /// Time-to-live while detached; [`exec_server_holder::control::TTL_NONE`] = unlimited.
    pub ttl_ms: u64,
    /// How long the session has been detached; `None` while a client is attached.
    pub detached_for: Option<Duration>,
    /// The processes to keep. If empty, only the session record stays.
    pub processes: Vec<ManifestEntry>,
    /// File names of the segments to keep. All other segment files are removed.
    pub segments: BTreeSet<String>,
}

/// Creates holders and stores session state. The real implementation uses the spawner and the state directory; the
/// simulation uses scripted children.
pub trait Holders: Send + Sync + 'static {
    /// Creates the holder of a session. The holder keeps `record`, the session record, for the next server. Returns the
    /// controlling end of the holder's socket, and the secret.
    fn create(&self, session: &str, record: &[u8]) -> io::Result<(OwnedFd, [u8; 32])>;
    /// Finds everything that earlier servers left in this state directory.
    fn scan(&self) -> io::Result<Vec<(String, FoundSession)>>;
    /// Finds what is left of one session; `None` if nothing is.
    fn inspect(&self, session: &str) -> io::Result<Option<FoundSession>>;
    /// Reads the record of a session, whether or not it has a holder; `None` if the record was never written.
    fn read_record(&self, _session: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Writes the record of a session that has no holder yet.
    fn write_record(&self, session: &str, record: &[u8]) -> io::Result<()>;
    /// Opens a spilled segment (blocking; never called on an async worker thread).
    fn open_segment(&self, session: &str, name: &str) -> io::Result<std::fs::File>;
    /// Removes a spilled segment that no reader needs and whose holder has exited.
    fn remove_segment(&self, session: &str, name: &str) -> io::Result<()>;
    /// Writes the files of a session without a holder, and removes files that `files` does not name (blocking; never
    /// called on an async worker thread).
    fn write_archive(&self, _session: &str, _files: &ArchiveFiles) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Removes everything that is left of a session.
    fn remove(&self, session: &str) -> io::Result<()>;
    /// Undoes `create`: the holder was not made, died before it answered the hello, or failed the handshake. The
    /// session is then as if `create` had not been called. Removes or replaces the secret: a holder that is still alive
    /// exits when it loses its link and does not find its own secret.
    fn undo_create(&self, _session: &str) {}
    /// Kills the processes in the cgroup of a session whose holder died, and removes the cgroup. Does nothing if the
    /// session has no cgroup (blocking; never called on an async worker thread).
    fn kill_cgroup(&self, _session: &str) {}
    /// Whether new holders can be created. Checked once a second.
    fn can_create_holders(&self) -> bool {
        true
    }
    /// Whether the state directory, which the next server needs, is still in place. Checked once a second.
    fn is_state_there(&self) -> bool {
        true
    }
    /// The placeholders that earlier servers created and could not remove (blocking).
    fn placeholders(&self) -> Vec<PathBuf> {
        Vec::new()
    }
    /// Replaces the list of placeholders that the next server removes (blocking). Called before placeholders are
    /// created, and after some were removed.
    fn keep_placeholders(&self, _paths: &[PathBuf]) -> io::Result<()> {
        Ok(())
    }
    /// Restores the ability to create holders after `can_create_holders` returned false (blocking; never called on an
    /// async worker thread).
    fn repair(&self) {}
    /// Creates a view of the files for a sandbox (blocking; never called on an async worker thread).
    fn view(&self, _script: &ViewScript) -> Result<BuiltView, BuildError> {
        let source = io::ErrorKind::Unsupported.into();
        Err(BuildError { what: "make a view of the files".to_owned(), source })
    }
    /// Paths that no sandbox ever shows: the directories that contain the secrets of sessions.
    fn hidden(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// Number of ended sessions that are remembered, so that a client that resumes late learns the reason.
const GONE_REMEMBERED: usize = 1024;

/// Everything that lives as long as the server.
pub struct Core {
    pub(crate) config: Config,
    pub(crate) holders: Arc<dyn Holders>,
    /// Bounds the bytes of received messages that all connections together may hold.
    pub(crate) incoming: Arc<IncomingBudget>,
    /// Threads and memory for file operations.
    pub(crate) files: FilePool,
    /// Slots for searches and watches.
    pub(crate) file_tasks: FileTaskSlots,
    /// Makes the HTTP requests.
    pub(crate) fetcher: Fetcher,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// The server's own files. Only the owner may access them with file methods, and only outside a sandbox. `None` if
    /// the server has none.
    pub(crate) own_files: Option<Arc<OwnFiles>>,
    sessions: Mutex<BTreeMap<Arc<str>, Arc<Session>>>,
    /// Sessions whose holders have not been adopted yet.
    pending: PendingSessions,
    /// The state directory was removed or replaced while the server runs.
    state_lost: AtomicBool,
    /// Ended sessions that a late client may still ask for, with the reason.
    gone: Mutex<BTreeMap<String, GoneReason>>,
    /// Sessions that clients name by keys of their own.
    keyed: KeyedSessions,
    peers: PeerTable,
    draining: AtomicBool,
    /// Number of live `Visit`s; see `idle`.
    visits: Mutex<usize>,
    /// Throttles requests for sessions that do not exist.
    guess_throttle: Mutex<guess_throttle::GuessThrottle>,
    /// The tasks of `spawn`, for example holder links, adoptions and the sweep. Aborted when the core is dropped.
    tasks: Mutex<JoinSet<()>>,
}

/// The connections of the server.
#[derive(Default)]
struct PeerTable {
    by_id: Mutex<BTreeMap<u64, Arc<Peer>>>,
    /// Notified when a connection has ended.
    removed: Notify,
    /// The id of the latest connection.
    last_id: AtomicU64,
}

impl Core {
    /// Creates a core without sessions. [`Core::adopt`] finds the sessions of earlier servers.
    pub fn new(mut config: Config, holders: Arc<dyn Holders>) -> Arc<Self> {
        config.memory_cap_bytes = config.memory_cap_bytes.max(Config::LEAST_CAP_BYTES);
        // Taken output keeps up to two segments: the last MiB stays readable, and may begin anywhere in a segment. The
        // window must fit into the rest. Otherwise the log could be full before the client, which acknowledges once per
        // quarter of the window, has enough to acknowledge.
        config.ack_window_bytes = config.ack_window_bytes.min(config.memory_cap_bytes - (2 << 20));
        let hidden: Vec<PathBuf> = holders.hidden().into_iter().chain(config.hidden.iter().cloned()).collect();
        let own_paths: Vec<PathBuf> = hidden.iter().chain(&config.owner_only).cloned().collect();
        let own_files = (!own_paths.is_empty()).then(|| Arc::new(OwnFiles::new(own_paths)));
        let tmpdir = config.environment.iter().find(|(name, _)| name == "TMPDIR").map(|(_, dir)| PathBuf::from(dir));
        Arc::new(Self {
            sandboxes: Arc::new(Sandboxes::new(holders.clone(), hidden, tmpdir)),
            own_files,
            incoming: Arc::new(IncomingBudget::new(config.incoming_bytes)),
            files: FilePool::new(config.before_file_work.clone()),
            file_tasks: FileTaskSlots::of_server(),
            fetcher: Fetcher::new(&config.environment),
            config,
            holders,
            metrics: Arc::default(),
            sessions: Mutex::default(),
            gone: Mutex::default(),
            keyed: KeyedSessions::default(),
            pending: PendingSessions::default(),
            state_lost: AtomicBool::new(false),
            peers: PeerTable::default(),
            draining: AtomicBool::new(false),
            visits: Mutex::default(),
            guess_throttle: Mutex::default(),
            tasks: Mutex::default(),
        })
    }

    /// Serves a connection until it ends.
    pub async fn serve(self: &Arc<Self>, connection: Authenticated) {
        let id = self.peers.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        connection::serve(self.clone(), connection, id).await;
    }

    /// Sends a close frame to every connection and waits until all have ended, at most for `within`. Sessions and
    /// holders stay.
    pub async fn drain(&self, within: Duration) {
        self.draining.store(true, Ordering::Release);
        for peer in self.peers.by_id.lock().values() {
            peer.close(1001, "server is shutting down; connect again");
        }
        let gone = async {
            loop {
                // Created before the check, so that a notification between the two is not missed.
                let changed = self.peers.removed.notified();
                if self.peers.by_id.lock().is_empty() {
                    return;
                }
                changed.await;
            }
        };
        // If a connection is still open after the timeout, the caller aborts its task.
        tokio::time::timeout(within, gone).await.unwrap_or(());
    }

    /// Ends every session and its processes, and waits for completion.
    pub async fn end_all(&self) {
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let mut ends = JoinSet::new();
        for session in sessions {
            ends.spawn(async move { session.end().await });
        }
        ends.join_all().await;
    }

    /// Kills what a dead holder left running: the session's cgroup, and also the process groups and POSIX sessions of
    /// the leaders, because there may be no cgroup. Runs on a blocking thread because it walks all processes of the
    /// host.
    pub(crate) fn kill_orphans(&self, session: Arc<str>, processes: Vec<Arc<Process>>) {
        let holders = self.holders.clone();
        self.spawn(async move {
            let kill = move || {
                holders.kill_cgroup(&session);
                let leaders: Vec<_> = processes.iter().filter_map(|process| process.leader()).collect();
                exec_server_holder::kill_orphans(leaders.iter().map(|(leader, pid)| (leader.as_fd(), *pid)));
            };
            tokio::task::spawn_blocking(kill).await.unwrap_or(()); // A panic in the job was already printed.
        });
    }

    /// Whether the server is shutting down. No new session or process starts.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Spawns a task that this core owns.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        // Reap finished tasks, so that the set does not grow with every session.
        while tasks.try_join_next().is_some() {}
        // Box to one type, so that the runtime's generic code is not compiled again for each task.
        let task: RequestFuture = Box::pin(task);
        tasks.spawn(task);
    }

    pub(crate) fn register_peer(&self, peer: &Arc<Peer>) {
        self.metrics.connections.inc();
        self.peers.by_id.lock().insert(peer.id, peer.clone());
        if self.is_draining() {
            peer.close(1001, "server is shutting down; connect again");
        }
    }

    pub(crate) fn remove_peer(&self, peer: &Peer) {
        self.peers.by_id.lock().remove(&peer.id);
        self.peers.removed.notify_waiters();
    }

    /// Creates a session and writes its record to disk, so that the session survives a restart.
    pub(crate) async fn new_session(
        self: &Arc<Self>,
        id: String,
        principal: Principal,
        attachment: Attachment,
    ) -> Result<Arc<Session>, Failure> {
        let session = self.bare_session(id, principal, attachment)?;
        let (holders, id, record) = (self.holders.clone(), session.id.clone(), session.record());
        let written = tokio::task::spawn_blocking(move || holders.write_record(&id, &record)).await;
        if let Err(error) = written.map_err(io::Error::other).flatten() {
            // Not fatal: the session works until the server ends, and a full disk should not make it fail.
            tracing::error!(session = short_id(&session.id), %error, "cannot write the record of the session; unless a process is started in it, the session will not survive a restart of the server");
        }
        // Insert only after the record is written: a request that ends the session then finds the record and removes
        // it.
        self.sessions.lock().insert(session.id.clone(), session.clone());
        Ok(session)
    }

    fn bare_session(
        self: &Arc<Self>,
        id: String,
        principal: Principal,
        attachment: Attachment,
    ) -> Result<Arc<Session>, Failure> {
        if self.is_draining() {
            return Err(Failure::Draining);
        }
        // The check reserves nothing, so concurrent requests can exceed the bound by at most their number.
        if self.sessions.lock().len() >= self.config.sessions_max {
            return Err(Failure::TooMany { what: "sessions of this server", most: self.config.sessions_max });
        }
        self.metrics.sessions.inc();
        // `None`: not detached. The connection that asked for the session attaches next.
        Ok(Session::new(id.into(), principal, Arc::downgrade(self), attachment, None))
    }

    /// The id for a session that its client does not name.
    pub(crate) fn new_session_id(&self) -> String {
        (self.config.session_ids)()
    }

    /// Creates the implicit session of a connection that calls `command/*` without a handshake. Without a later
    /// `initialize`, the session ends with the connection, so it has no record.
    pub(crate) fn implicit_session(
        self: &Arc<Self>,
        principal: Principal,
        peer: Arc<Peer>,
    ) -> Result<Arc<Session>, Failure> {
        let attachment = compat::implicit_attachment();
        let session = self.bare_session(self.new_session_id(), principal, attachment)?;
        self.sessions.lock().insert(session.id.clone(), session.clone());
        session.attach(peer, attachment, AttachClaim::Any, None)?;
        Ok(session)
    }

    /// Finds a session by id. A session of another principal is reported as unknown.
    pub(crate) fn session(&self, id: &str, principal: &Principal) -> Result<Arc<Session>, Failure> {
        // Check the pending sessions first: an adopted session enters the table before it leaves the pending set, so
        // one of the two checks always finds it.
        if let Some(waited) = self.pending.pending_for(id, principal) {
            return Err(Failure::SessionAdopting { id: id.to_owned(), waited });
        }
        if let Some(session) = self.sessions.lock().get(id).filter(|session| session.principal == *principal) {
            return Ok(session.clone());
        }
        Err(self.gone_failure(id))
    }

    /// The error for a session that does not exist, with the reason if it is remembered.
    pub(crate) fn gone_failure(&self, id: &str) -> Failure {
        match self.gone.lock().get(id) {
            Some(gone) => gone.failure(id),
            // The id came from the peer and may be as long as a message.
            None => Failure::UnknownSession { id: id.chars().take(64).collect() },
        }
    }

    /// Counts a request for a session that does not exist, the `tries`-th on its connection, and returns how long to
    /// delay its answer.
    pub(crate) fn count_wrong_try(&self, principal: &Principal, tries: u32) -> Duration {
        self.guess_throttle.lock().delay(principal, tries, Instant::now())
    }

    pub(crate) fn sessions_of(&self, principal: &Principal) -> Vec<Arc<Session>> {
        self.sessions.lock().values().filter(|session| session.principal == *principal).cloned().collect()
    }

    /// Removes an ended session from the table and from disk.
    pub(crate) fn remove(&self, id: &str) {
        // Before the removal from the table, so that the session is always found in one of the two.
        self.remember_ended(id);
        self.sessions.lock().remove(id);
        match self.holders.remove(id) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // The holder has removed its directory itself.
            Err(error) => tracing::warn!(session = short_id(id), %error, "cannot remove the files of the session"),
        }
    }

    /// Removes an expired session. `processes` are the ids of its processes, for a client that asks later.
    pub(crate) fn expire(&self, id: &str, processes: Vec<String>) {
        tracing::info!(session = short_id(id), processes = processes.len(), "session expired");
        self.metrics.expired.inc();
        self.remember_gone(id, GoneReason::expired_now(processes));
        self.remove(id);
    }

    fn remember_gone(&self, id: &str, why: GoneReason) {
        let mut gone = self.gone.lock();
        while gone.len() >= GONE_REMEMBERED {
            // Removes an arbitrary entry: the map is ordered by id, and ids are random.
            gone.pop_first();
        }
        gone.insert(id.to_owned(), why);
    }
}
