//! What lives as long as the server: its configuration, the session table, and the tasks that serve connections.
//!
//! Knows neither sockets nor HTTP: a connection arrives here as a byte stream with a principal, which only the doors
//! (or an embedding program, for itself) can hand over.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use exec_server_holder::roll::Enrolled;
use exec_server_log::Recovered;
use exec_server_protocol::limits;
use exec_server_rpc::{Framing, Stream};
use exec_server_sandbox::{BuildError, Built, Script};
use tokio::{io::AsyncWriteExt as _, sync::Notify, task::JoinSet, time::Instant};

use crate::{
    access::Grant,
    connection::{self, Peer},
    dispatch::Call,
    error::Failure,
    fetch::Fetcher,
    files::Pool,
    incoming::Incoming,
    metrics::Metrics,
    own_files::OwnFiles,
    process::{Process, lock},
    sandbox::Sandboxes,
    seekers::Places,
    session::{Attachment, Claim, Session, short},
};

mod adoption;
mod config;
mod gone;
mod guesses;
mod hook;
mod idle;
mod ids;
mod report;

pub use config::Config;
pub use hook::Hook;
pub use idle::Visit;
pub use ids::SessionIds;

pub(crate) use self::adoption::HELD_FOR;
use self::{adoption::Pending, gone::Gone};

/// Who a connection speaks for. Sessions belong to a principal, and only that principal resumes them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The owner of the server: its own token, the owner's uid on a Unix socket, and stdio.
    pub fn owner() -> Self {
        Self("owner".into())
    }

    /// A principal by name, as a holder's record gives it back after a restart.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name, as written into records and logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A byte stream whose peer has proven who it is. The dispatcher takes nothing else.
pub struct Authenticated {
    /// The bytes, both ways, with what was read past a handshake.
    pub(crate) stream: Stream,
    /// How messages are cut out of the bytes.
    pub(crate) framing: Framing,
    /// Who speaks, and what it may do.
    pub(crate) grant: Grant,
    /// For logs and for the prefix of the malformed-message answer, such as `exec-server websocket 127.0.0.1:4000`.
    pub(crate) label: String,
    /// Plain stdio keeps the reference's rule: the end of the stream ends the session and its processes.
    pub(crate) ends_session: bool,
}

impl Authenticated {
    /// Vouches for a stream. Called by the doors after their checks, and by a program that embeds the server for its own use.
    pub fn vouch(stream: Stream, framing: Framing, grant: Grant, label: impl Into<String>) -> Self {
        Self { stream, framing, grant, label: label.into(), ends_session: false }
    }

    /// Says that a live server has taken the connection: one blank line, which every peer of newline framing skips. Without it
    /// a peer cannot tell that it waits in front of a server that is ending.
    pub(crate) async fn greet(&mut self) -> io::Result<()> {
        self.stream.writer.write_all(b"\n").await?;
        self.stream.writer.flush().await
    }

    /// The end of this connection also ends its session, as for a plain stdio listener.
    pub fn ending_its_session(mut self) -> Self {
        self.ends_session = true;
        self
    }
}

/// What a scan of the state directory finds under a session's name.
pub enum Found {
    /// A holder that answers on its socket; the server adopts it.
    Holder {
        /// The connection to its control socket.
        controller: OwnedFd,
        /// The secret it expects in the first message.
        secret: [u8; 32],
    },
    /// A holder that lives and takes no connection now: stopped, or drowned. It is asked again.
    Silent,
    /// A session that had no process when the last server ended: its record.
    Record(Vec<u8>),
    /// A session whose time ran out: what its holder wrote about it.
    Expired(String),
    /// A holder that is gone, and what it had on disk: the server offers that for reading. Everything, where it left the session to
    /// its files.
    Remains(Remains),
    /// A holder that is gone without a word, with nothing on disk.
    Dead,
}

/// What a dead holder left on disk.
pub struct Remains {
    /// The session's record.
    pub record: Vec<u8>,
    /// Its processes, and what can be read of the log of each.
    pub logs: Vec<(Enrolled, Recovered)>,
    /// The session's clock, where the holder left it to its files.
    pub clock: Option<LeftClock>,
}

/// The clock of a session without a holder.
#[derive(Clone, Copy, Debug)]
pub struct LeftClock {
    /// Time to live while detached; absent = for ever.
    pub ttl: Option<Duration>,
    /// How long it has been detached; absent where it was attached when its server ended.
    pub detached_for: Option<Duration>,
}

/// What is to be on disk of a session without a holder.
#[derive(Clone, Debug)]
pub struct ArchiveFiles {
    /// Time to live while detached, [`exec_server_holder::wire::TTL_NONE`] for ever.
    pub ttl_ms: u64,
    /// How long it has been detached; absent while a client is attached.
    pub detached_for: Option<Duration>,
    /// Its processes. Without any, nothing but the session's record is to be left.
    pub processes: Vec<Enrolled>,
    /// The names of the segments that are retained; all others go.
    pub segments: BTreeSet<String>,
}

/// Where holders come from and where sessions leave their traces. Real: the spawner and the state directory. Simulated: scripted children.
pub trait Holders: Send + Sync + 'static {
    /// Makes the holder of a new session and returns the controlling end of its socket together with the secret.
    fn create(&self, session: &str, info: &[u8]) -> io::Result<(OwnedFd, [u8; 32])>;
    /// Everything that earlier servers left under this state directory.
    fn scan(&self) -> io::Result<Vec<(String, Found)>>;
    /// What is there of one session; `None` where nothing is left.
    fn look(&self, session: &str) -> io::Result<Option<Found>>;
    /// The record of a session, also of one that has a holder; `None` where it was never written.
    fn read_record(&self, _session: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Keeps the record of a session that has no holder yet.
    fn write_record(&self, session: &str, record: &[u8]) -> io::Result<()>;
    /// Reads a spilled segment (blocking; called off the runtime's threads).
    fn open_segment(&self, session: &str, name: &str) -> io::Result<std::fs::File>;
    /// Removes a spilled segment that nobody needs any more and whose holder is gone.
    fn remove_segment(&self, session: &str, name: &str) -> io::Result<()>;
    /// Writes the files of a session without a holder, and removes those that are not needed (blocking; called off the runtime's
    /// threads).
    fn write_archive(&self, _session: &str, _files: &ArchiveFiles) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Removes whatever is left of a session.
    fn remove(&self, session: &str) -> io::Result<()>;
    /// A holder that was asked for was never made, or died before it said a word, or could not be heard: the session is as if
    /// nobody had asked, and the holder, should it live, ends when it loses its link.
    fn unmake(&self, _session: &str) {}
    /// Ends whatever the dead holder of a session has left running (blocking; called off the runtime's threads).
    fn bury(&self, _session: &str) {}
    /// Whether holders can be made; asked once a second.
    fn is_well(&self) -> bool {
        true
    }
    /// Whether what the next server would need is still on disk; asked once a second.
    fn is_state_there(&self) -> bool {
        true
    }
    /// The placeholders that earlier servers made and could not take away (blocking).
    fn placeholders(&self) -> Vec<PathBuf> {
        Vec::new()
    }
    /// Keeps the paths of placeholders for the next server, before they are made (blocking).
    fn keep_placeholders(&self, _paths: &[PathBuf]) -> io::Result<()> {
        Ok(())
    }
    /// Makes it so that they can again (blocking; called off the runtime's threads).
    fn mend(&self) {}
    /// Makes a view of the files for a sandbox (blocking; called off the runtime's threads).
    fn view(&self, _script: &Script) -> Result<Built, BuildError> {
        let source = io::ErrorKind::Unsupported.into();
        Err(BuildError { what: "make a view of the files".to_owned(), source })
    }
    /// What no sandbox ever shows: where the secrets of sessions are.
    fn hidden(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// Sessions that are remembered after their end, so that a late client hears why.
const GONE_REMEMBERED: usize = 1024;

/// Everything that lives as long as the server.
pub struct Core {
    pub(crate) config: Config,
    pub(crate) holders: Arc<dyn Holders>,
    /// What all connections together may hold of messages that came in.
    pub(crate) incoming: Arc<Incoming>,
    /// Threads and memory for file work.
    pub(crate) files: Pool,
    /// Places for searches and watches.
    pub(crate) seekers: Places,
    /// What HTTP requests are made with.
    pub(crate) fetcher: Fetcher,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// What only the owner reaches by file methods; absent where the server has no files of its own.
    pub(crate) own_files: Option<Arc<OwnFiles>>,
    sessions: Mutex<BTreeMap<Arc<str>, Arc<Session>>>,
    /// Sessions whose holders have not been adopted yet.
    pending: Pending,
    /// The state directory was removed or replaced while the server runs.
    state_lost: AtomicBool,
    /// Sessions that a late client may still ask for, and why they are gone.
    gone: Mutex<BTreeMap<String, Gone>>,
    peers: Mutex<BTreeMap<u64, Arc<Peer>>>,
    /// Told when a connection has ended.
    peer_gone: Notify,
    next_peer: AtomicU64,
    draining: AtomicBool,
    /// How many were let in and are not gone; see `idle`.
    visits: Mutex<usize>,
    /// Who has asked for sessions that are not there.
    guesses: Mutex<guesses::Guesses>,
    /// Links and the sweep. Ended when the core is dropped.
    tasks: Mutex<JoinSet<()>>,
}

impl Core {
    /// A core without sessions; [`Core::adopt`] finds those of earlier servers.
    pub fn new(mut config: Config, holders: Arc<dyn Holders>) -> Arc<Self> {
        config.memory_cap_bytes = config.memory_cap_bytes.max(Config::LEAST_CAP_BYTES);
        config.ack_window_bytes = config.ack_window_bytes.min(config.widest_window_bytes());
        let hidden: Vec<PathBuf> = holders.hidden().into_iter().chain(config.hidden.iter().cloned()).collect();
        let own_paths: Vec<PathBuf> = hidden.iter().chain(&config.owner_only).cloned().collect();
        let own_files = (!own_paths.is_empty()).then(|| Arc::new(OwnFiles::new(own_paths)));
        let tmpdir = config.environment.iter().find(|(name, _)| name == "TMPDIR").map(|(_, dir)| PathBuf::from(dir));
        Arc::new(Self {
            sandboxes: Arc::new(Sandboxes::new(holders.clone(), hidden, tmpdir)),
            own_files,
            incoming: Arc::new(Incoming::new(config.incoming_bytes)),
            files: Pool::new(config.before_file_work.clone()),
            seekers: Places::default(),
            fetcher: Fetcher::new(&config.environment),
            config,
            holders,
            metrics: Arc::default(),
            sessions: Mutex::default(),
            gone: Mutex::default(),
            pending: Pending::default(),
            state_lost: AtomicBool::new(false),
            peers: Mutex::default(),
            peer_gone: Notify::new(),
            next_peer: AtomicU64::new(1),
            draining: AtomicBool::new(false),
            visits: Mutex::default(),
            guesses: Mutex::default(),
            tasks: Mutex::default(),
        })
    }

    /// Serves a connection until it ends.
    pub async fn serve(self: &Arc<Self>, connection: Authenticated) {
        let id = self.next_peer.fetch_add(1, Ordering::Relaxed);
        connection::serve(self.clone(), connection, id).await;
    }

    /// Says goodbye to every connection and waits until they are gone, at most until the deadline. Sessions and holders stay.
    pub async fn drain(&self, within: Duration) {
        self.draining.store(true, Ordering::Release);
        for peer in lock(&self.peers).values() {
            peer.goodbye(1001, "server is shutting down; connect again");
        }
        let gone = async {
            loop {
                let changed = self.peer_gone.notified();
                if lock(&self.peers).is_empty() {
                    return;
                }
                changed.await;
            }
        };
        // Whoever has not gone by then is cut off by the end of the program.
        tokio::time::timeout(within, gone).await.unwrap_or(());
    }

    /// Ends every session and its processes, and waits for it.
    pub async fn end_all(&self) {
        let sessions: Vec<Arc<Session>> = lock(&self.sessions).values().cloned().collect();
        let mut ends = JoinSet::new();
        for session in sessions {
            ends.spawn(async move { session.end().await });
        }
        ends.join_all().await;
    }

    /// Ends what a dead holder left running. The walk over the host's processes is no work for the runtime's threads.
    pub(crate) fn kill_orphans(&self, session: Arc<str>, processes: Vec<Arc<Process>>) {
        let holders = self.holders.clone();
        self.spawn(async move {
            let kill = move || {
                holders.bury(&session);
                let leaders: Vec<_> = processes.iter().filter_map(|process| process.leader()).collect();
                exec_server_holder::kill_orphans(leaders.iter().map(|(leader, pid)| (leader.as_fd(), *pid)));
            };
            tokio::task::spawn_blocking(kill).await.unwrap_or(());
        });
    }

    /// Nothing new is started.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Gives a task an owner: this core.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        // Those that have ended are let go here, so that the set does not grow with every session.
        while tasks.try_join_next().is_some() {}
        // One type of task, so that the runtime's part is not compiled again for each.
        let task: Call = Box::pin(task);
        tasks.spawn(task);
    }

    pub(crate) fn connected(&self, peer: &Arc<Peer>) {
        self.metrics.connections.inc();
        lock(&self.peers).insert(peer.id, peer.clone());
        if self.is_draining() {
            peer.goodbye(1001, "server is shutting down; connect again");
        }
    }

    pub(crate) fn disconnected(&self, peer: &Peer) {
        lock(&self.peers).remove(&peer.id);
        self.peer_gone.notify_waiters();
    }

    /// Makes a session and puts its record on disk, so that a restart does not forget it.
    pub(crate) async fn new_session(
        self: &Arc<Self>,
        principal: Principal,
        attachment: Attachment,
    ) -> Result<Arc<Session>, Failure> {
        let session = self.bare_session(principal, attachment)?;
        let (holders, id, record) = (self.holders.clone(), session.id.clone(), session.record());
        let written = tokio::task::spawn_blocking(move || holders.write_record(&id, &record)).await;
        match written.map_err(io::Error::other).flatten() {
            Ok(()) => {}
            // It works all the same until the server ends; a full disk is no reason to refuse it.
            Err(error) => tracing::error!(session = short(&session.id), %error, "record of the session not written"),
        }
        // Known only now: whoever ends it finds its record to remove.
        lock(&self.sessions).insert(session.id.clone(), session.clone());
        Ok(session)
    }

    fn bare_session(self: &Arc<Self>, principal: Principal, attachment: Attachment) -> Result<Arc<Session>, Failure> {
        if self.is_draining() {
            return Err(Failure::Draining);
        }
        // Looked at without being reserved: a few that come at once may go beyond it, by no more than their number.
        if lock(&self.sessions).len() >= self.config.sessions_max {
            return Err(Failure::TooMany { what: "sessions of this server", most: self.config.sessions_max });
        }
        self.metrics.sessions.inc();
        let id = self.config.session_ids.make();
        Ok(Session::new(id, principal, Arc::downgrade(self), attachment, None))
    }

    /// V0: a session for a connection that never asked for one. It ends with the connection, so nothing of it is recorded.
    pub(crate) fn implicit_session(
        self: &Arc<Self>,
        principal: Principal,
        peer: Arc<Peer>,
    ) -> Result<Arc<Session>, Failure> {
        let attachment = Attachment { ttl: Some(limits::REFERENCE_TTL), is_ttl_asked: false, reference: true };
        let session = self.bare_session(principal, attachment)?;
        lock(&self.sessions).insert(session.id.clone(), session.clone());
        session.attach(peer, attachment, Claim::Any)?;
        Ok(session)
    }

    /// A session by id, for its own principal only: to others it is unknown.
    pub(crate) fn session(&self, id: &str, principal: &Principal) -> Result<Arc<Session>, Failure> {
        // Before the table: a session enters the table first and leaves the pending ones then, so that one of the two has it.
        if let Some(waited) = self.pending.waited(id, principal) {
            return Err(Failure::SessionAdopting { id: id.to_owned(), waited });
        }
        if let Some(session) = lock(&self.sessions).get(id).filter(|session| session.principal == *principal) {
            return Ok(session.clone());
        }
        Err(self.why_gone(id))
    }

    /// What became of a session that is not there.
    pub(crate) fn why_gone(&self, id: &str) -> Failure {
        match lock(&self.gone).get(id) {
            Some(gone) => gone.failure(id),
            None => Failure::UnknownSession { id: id.chars().take(64).collect() },
        }
    }

    /// Counts a wrong try for a session and says how long its answer waits.
    pub(crate) fn wrong_try(&self, principal: &Principal, tries: u32) -> Duration {
        lock(&self.guesses).wait(principal, tries, Instant::now())
    }

    pub(crate) fn sessions_of(&self, principal: &Principal) -> Vec<Arc<Session>> {
        lock(&self.sessions).values().filter(|session| session.principal == *principal).cloned().collect()
    }

    /// The session is over: its name is free, and nothing of it stays on disk.
    pub(crate) fn remove(&self, id: &str) {
        lock(&self.sessions).remove(id);
        match self.holders.remove(id) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // The holder removed its directory itself.
            Err(error) => tracing::warn!(session = short(id), %error, "what was left of the session stays"),
        }
    }

    pub(crate) fn expire(&self, id: &str, processes: Vec<String>) {
        tracing::info!(session = short(id), processes = processes.len(), "session expired");
        self.metrics.expired.inc();
        self.remember_gone(id, Gone::expired_now(processes));
        self.remove(id);
    }

    fn remember_gone(&self, id: &str, why: Gone) {
        let mut gone = lock(&self.gone);
        while gone.len() >= GONE_REMEMBERED {
            gone.pop_first();
        }
        gone.insert(id.to_owned(), why);
    }

    fn sweep(&self, now: Instant) {
        let sessions: Vec<Arc<Session>> = lock(&self.sessions).values().cloned().collect();
        for session in sessions {
            session.sweep(now, self.config.closed_kept);
        }
    }
}
