//! This machine as a server: the same core, holders and client as everywhere, without a socket in between.
//!
//! ```text
//! Client ◀── memory ──▶ Core ◀── control ──▶ holder ──▶ children
//!                         └── spawner: forked by the hook, or a program of its own
//! ```
//!
//! Children are never ours: a holder owns them, and a spawner makes holders. A program gives this library a spawner in one of
//! two ways: [`embed`], the first thing in its `main`, where no thread exists yet; or [`LocalConfig::program`], the path of
//! `exec-server`, at any time. Neither costs anything until the first process is started.
//!
//! Failure paths: the hook was forgotten: [`Local::start`] says what to do. This program is killed: its holders see that and end their
//! processes when the session's time-to-live is over, which is short for a private state directory.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use exec_server_holder::{
    Limits,
    spawner::{self, SpawnerHandle},
};
use exec_server_protocol::{SessionId, initialize::Ttl, limits};
use exec_server_rpc::{Framing, memory};
use exec_server_server::{
    access::Grant,
    core::{Authenticated, Config, Core},
    state_dir::{self, Spawned, SpawnedConfig, StateDir},
};
use tokio::task::JoinSet;

use crate::{
    Client, Error,
    error::chain,
    process::millis,
    transport::{BoxFuture, Connect, Connection, TOKEN_VARIABLE},
};

/// Bytes on their way between client and core: some chunks, so that neither waits for the other's every turn.
const PAIR_BYTES: usize = 1 << 20;

/// How long the processes of a private [`Local`] outlive a program that was killed: long enough to mend a connection inside
/// of it, short enough to leave nothing behind.
const PRIVATE_TTL: Duration = Duration::from_secs(1);

/// Until a new holder was told its time-to-live, it waits this long for its first word: more than a busy machine needs.
const FIRST_TTL_MS: u64 = 10_000;

/// What this back end is called in errors.
const NAME: &str = "local";

/// What to do about a missing spawner.
const NO_SPAWNER: &str = "there is nothing to start processes with: call `exec_server_client::local::embed()` first in \
                          `main`, or give the path of `exec-server` as `LocalConfig::program`";

static EMBEDDED: OnceLock<Arc<SpawnerHandle>> = OnceLock::new();

/// The hook: call it first in `main`, before any thread exists and before any secret is read.
///
/// It forks a small process that makes the owners of this program's processes, for every [`Local`]; it ends with this
/// program. Calling it again does nothing. Where threads exist already, which no fork survives in good order, it is an error;
/// use [`LocalConfig::program`] then.
///
/// ```no_run
/// fn main() -> std::io::Result<()> {
///     exec_server_client::local::embed()?;
///     // Only now a runtime, such as `tokio::runtime::Runtime::new()`.
///     Ok(())
/// }
/// ```
pub fn embed() -> io::Result<()> {
    if EMBEDDED.get().is_some() {
        return Ok(());
    }
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!(
            "`embed()` must come first in `main`: this program has {threads} threads already; \
             move the call up, or use `LocalConfig::program`"
        )));
    }
    let spawner = Arc::new(spawner::fork_spawner()?);
    // One thread only: nobody can have been faster.
    EMBEDDED.set(spawner).ok();
    Ok(())
}

/// Settings of a [`Local`].
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Where sessions leave their traces, so that they can be resumed when this program comes back; locked while in use.
    /// Absent: a private one, removed at the end.
    pub state_dir: Option<PathBuf>,
    /// The path of `exec-server`, for a program that cannot call [`embed`].
    pub program: Option<PathBuf>,
    /// Who starts processes, for the log.
    pub name: String,
    /// How long processes outlive this program. Absent: a second in a private state directory, else the server's 24 hours.
    pub ttl: Option<Ttl>,
    /// The session to come back to, in a state directory of its own.
    pub resume: Option<SessionId>,
    /// What processes inherit from; this program's own variables unless set, and never our token.
    pub environment: Vec<(OsString, OsString)>,
    /// Where processes run that name no directory; this program's own unless set.
    pub cwd: Option<PathBuf>,
    /// Memory that the output of one process may fill before it is held back.
    pub memory_cap_bytes: u64,
    /// Disk that the output of one process may fill while nobody is connected.
    pub disk_quota_bytes: u64,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            state_dir: None,
            program: None,
            name: "exec-server-local".to_owned(),
            ttl: None,
            resume: None,
            environment: std::env::vars_os().collect(),
            cwd: std::env::current_dir().ok(),
            memory_cap_bytes: Config::default().memory_cap_bytes,
            disk_quota_bytes: Limits::default().disk_quota_bytes,
        }
    }
}

/// A server inside this program, and a client of it.
///
/// End it with [`end`](Self::end). Dropping it cuts the client off and leaves its processes to their time-to-live.
#[derive(Debug)]
pub struct Local {
    client: Client,
    host: Arc<Host>,
    /// Removed with this value, and last: fields are dropped in order.
    _private_dir: Option<PrivateDir>,
}

impl Local {
    /// Starts the server; a process is made only when the first one is asked for.
    pub async fn start(config: LocalConfig) -> Result<Self, Error> {
        let setup = config.clone();
        // Directories, and perhaps a program: all of it blocks.
        let opened = tokio::task::spawn_blocking(move || open(&setup)).await;
        let (state, spawner, private_dir) = opened.map_err(|error| failed(&error))??;
        let limits = Limits { ttl_ms: FIRST_TTL_MS, disk_quota_bytes: config.disk_quota_bytes, ..Limits::default() };
        let holders = Spawned::new(Arc::new(state), spawner, SpawnedConfig { limits, ..SpawnedConfig::default() });
        let core = Core::new(core_config(&config), Arc::new(holders));
        core.adopt().await.map_err(|error| failed(&error))?;
        let host = Arc::new(Host { serving: Mutex::new(Some(Serving { core, links: JoinSet::new() })) });
        let mut builder = Client::builder().name(config.name);
        if let Some(ttl) = config.ttl.or_else(|| private_dir.is_some().then(|| Ttl::Ms(millis(PRIVATE_TTL)))) {
            builder = builder.ttl(ttl);
        }
        if let Some(session_id) = config.resume {
            builder = builder.resume(session_id);
        }
        let client = builder.open(InMemory(Arc::clone(&host))).await?;
        Ok(Self { client, host, _private_dir: private_dir })
    }

    /// The session with it.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Ends every session of it with its processes, and removes its private directory. Returns when they are gone.
    pub async fn end(self) {
        let Some(Serving { core, mut links }) = self.host.take() else { return };
        core.end_all().await;
        self.client.clone().close().await;
        links.shutdown().await;
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // With the core go the connections to the holders; what that means to them is their time-to-live's business.
        drop(self.host.take());
    }
}

/// The server's side: there until the [`Local`] ends, whoever still has a client.
#[derive(Debug)]
struct Host {
    serving: Mutex<Option<Serving>>,
}

struct Serving {
    core: Arc<Core>,
    /// One task a connection; they end with the set.
    links: JoinSet<()>,
}

impl Host {
    fn lock(&self) -> MutexGuard<'_, Option<Serving>> {
        // No code under the lock can panic half-way through a change.
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Serving> {
        self.lock().take()
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("links", &self.links.len()).finish_non_exhaustive()
    }
}

/// Connects to a [`Host`].
struct InMemory(Arc<Host>);

impl Connect for InMemory {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>> {
        Box::pin(async {
            let mut serving = self.0.lock();
            // Not worth trying again, unlike a server that cannot be reached.
            let ended = || Error::Disconnected { reason: Some("the local server has ended".to_owned()) };
            let Serving { core, links } = serving.as_mut().ok_or_else(ended)?;
            let (near, far) = memory(PAIR_BYTES);
            let framing = Framing::Lines { max: limits::MESSAGE_BYTES };
            let connection = Authenticated::vouch(far, framing, Grant::owner(), NAME);
            let core = Arc::clone(core);
            // Those that have ended are let go here, so that the set does not grow with every reconnect.
            while links.try_join_next().is_some() {}
            links.spawn(async move { core.serve(connection).await });
            Ok(Connection { stream: near, framing, carrier: None })
        })
    }

    fn address(&self) -> String {
        NAME.to_owned()
    }
}

/// A directory that is removed with this value.
#[derive(Debug)]
struct PrivateDir(PathBuf);

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // It may be gone by itself, and nobody could be told.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// What blocks: the state directory and the spawner.
fn open(config: &LocalConfig) -> Result<(StateDir, Arc<SpawnerHandle>, Option<PrivateDir>), Error> {
    // Before the directory, so that an error leaves none behind.
    let spawner = find_spawner(config.program.as_deref())?;
    let (path, private_dir) = match &config.state_dir {
        Some(given) => (std::path::absolute(given).map_err(|error| failed(&error))?, None),
        None => {
            let made = state_dir::private_dir(&private_base()).map_err(|error| failed(&error))?;
            (made.clone(), Some(PrivateDir(made)))
        }
    };
    let state = StateDir::open(&path).map_err(|error| failed(&error))?;
    Ok((state, spawner, private_dir))
}

fn find_spawner(program: Option<&Path>) -> Result<Arc<SpawnerHandle>, Error> {
    match (program, EMBEDDED.get()) {
        (Some(program), _) => spawner::exec_spawner(program).map(Arc::new).map_err(|error| failed(&error)),
        (None, Some(embedded)) => Ok(Arc::clone(embedded)),
        (None, None) => Err(Error::Spawn { program: NAME.to_owned(), reason: NO_SPAWNER.to_owned() }),
    }
}

/// The user's runtime directory, which nobody else can enter; else the temporary one.
fn private_base() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|dir| dir.is_absolute() && dir.is_dir()).unwrap_or_else(std::env::temp_dir)
}

fn core_config(config: &LocalConfig) -> Config {
    let is_secret = |name: &OsString| name.eq_ignore_ascii_case(TOKEN_VARIABLE);
    Config {
        environment: config.environment.iter().filter(|(name, _)| !is_secret(name)).cloned().collect(),
        cwd: config.cwd.clone(),
        memory_cap_bytes: config.memory_cap_bytes,
        ..Config::default()
    }
}

fn failed(error: &dyn std::error::Error) -> Error {
    Error::Spawn { program: NAME.to_owned(), reason: chain(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[tokio::test]
    async fn a_forgotten_hook_is_an_error_that_says_what_to_do() {
        let error = Local::start(LocalConfig::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Spawn);
        let text = error.to_string();
        for part in ["`exec_server_client::local::embed()`", "first in `main`", "`LocalConfig::program`"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_hook_that_comes_too_late_is_an_error_that_says_so() {
        let (stop_tx, stop_rx) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stop_rx.recv().is_err());
        let text = embed().unwrap_err().to_string();
        drop(stop_tx);
        assert!(thread.join().unwrap());
        assert!(text.contains("must come first in `main`") && text.contains("threads already"), "{text}");
    }

    #[tokio::test]
    async fn a_program_that_is_no_exec_server_is_told_by_its_name() {
        let config = LocalConfig { program: Some("/bin/false".into()), ..LocalConfig::default() };
        let error = Local::start(config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Spawn);
        assert!(error.to_string().contains("`/bin/false` is not an exec-server"), "{error}");
    }

    #[test]
    fn the_token_is_no_childs_business() {
        let environment = [("A", "1"), ("EXEC_SERVER_TOKEN", "s"), ("exec_server_token", "s")];
        let environment = environment.map(|(name, value)| (name.into(), value.into())).to_vec();
        let config = core_config(&LocalConfig { environment, ..LocalConfig::default() });
        assert_eq!(config.environment, [("A".into(), "1".into())]);
    }
}
