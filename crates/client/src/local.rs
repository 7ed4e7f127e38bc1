//! Runs the server core inside this program: the same core, holders and client as with a remote server, connected in memory instead of by a
//! socket.
//!
//! ```text
//! Client ◀── memory ──▶ Core ◀── control ──▶ holder ──▶ children
//!                         └── spawner: forked by `embed`, or the program `exec-server`
//! ```
//!
//! The processes that a client starts are not children of this program: a holder process owns them, and a spawner process forks holders. A
//! program provides a spawner in one of two ways. It calls [`embed`] as the first statement of its `main`, while it has no other thread. Or
//! it sets [`LocalConfig::program`] to the path of `exec-server`, at any time. A session has no holder until its first process is started.
//!
//! Failure paths: if the program provides no spawner, [`Local::start`] fails with an error that says what to do. If this program is killed,
//! its holders notice that their connection to it has closed. They end their processes when the session's time-to-live is over. The
//! time-to-live is short for a private state directory.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use exec_server_holder::{
    HolderLimits,
    spawner::{self, SpawnerHandle},
};
use exec_server_protocol::{SessionId, initialize::Ttl, limits};
use exec_server_rpc::{Framing, memory};
use exec_server_server::{
    access::Grant,
    core::{Authenticated, Config, Core},
    state_dir::{self, SpawnedHolders, SpawnedHoldersConfig, StateDir},
};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{
    Client, Error,
    error::chain,
    process::millis,
    transport::{BoxFuture, Connect, Connection, TOKEN_VARIABLE},
};

/// Size of the buffer between client and core: large enough for several chunks of output, so that the two do not wait for each other on
/// every message.
const PAIR_BYTES: usize = 1 << 20;

/// The session's time-to-live with a private state directory: how long processes run on after this program was killed. No later program can
/// resume the session, so this is short. It is not zero, because it also runs while the client of a living program reconnects.
const PRIVATE_TTL: Duration = Duration::from_secs(1);

/// Time-to-live of a new holder until the core has sent it the configured one. Long enough for a busy machine.
const FIRST_TTL_MS: u64 = 10_000;

/// The name of this back end in errors.
const NAME: &str = "local";

/// The error text for a missing spawner.
const NO_SPAWNER: &str = "no process spawner: call `exec_server_client::local::embed()` first in `main`, or set \
                          `LocalConfig::program` to the path of `exec-server`";

/// The spawner that [`embed`] forked.
static EMBEDDED: OnceLock<Arc<SpawnerHandle>> = OnceLock::new();

/// Prepares this program for local processes. Call it as the first statement of `main`, before any thread exists and before any secret is
/// read.
///
/// It forks the spawner, a small process that forks the holders of every [`Local`] in this program. The spawner exits when this program
/// exits. Further calls do nothing. If the program has other threads already, forking is unsafe and this returns an error; use
/// [`LocalConfig::program`] in that case.
///
/// ```no_run
/// fn main() -> std::io::Result<()> {
///     exec_server_client::local::embed()?;
///     // Create a runtime only after this, for example with `tokio::runtime::Runtime::new()`.
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
    // Cannot fail: the program has one thread, so no other call can have set it since the check above.
    EMBEDDED.set(spawner).ok();
    Ok(())
}

/// Settings of a [`Local`].
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The directory for the files of sessions, so that a later run of this program can resume them. It is locked while in use. `None`: a
    /// private directory, which is removed when the [`Local`] is ended or dropped.
    pub state_dir: Option<PathBuf>,
    /// The path of `exec-server`, for a program that cannot call [`embed`].
    pub program: Option<PathBuf>,
    /// The name of the client in the log of the embedded server.
    pub name: String,
    /// How long processes outlive this program. `None`: one second with a private state directory, otherwise the server's 24 hours.
    pub ttl: Option<Ttl>,
    /// The session to resume, from the given `state_dir`.
    pub resume: Option<SessionId>,
    /// The variables from which processes inherit. Default: the variables of this program. `EXEC_SERVER_TOKEN` is always removed.
    pub environment: Vec<(OsString, OsString)>,
    /// The working directory of processes that set none. Default: the working directory of this program.
    pub cwd: Option<PathBuf>,
    /// Memory that the output of one process may use before the process is blocked.
    pub memory_cap_bytes: u64,
    /// Disk space that the output of one process may use while no client is connected.
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
            disk_quota_bytes: HolderLimits::default().disk_quota_bytes,
        }
    }
}

/// A server inside this program, and a client of it.
///
/// End it with [`end`](Self::end). Dropping it disconnects the client; the processes then live until the session's
/// time-to-live is over.
#[derive(Debug)]
pub struct Local {
    client: Client,
    server: LocalServer,
    /// Removes the directory when dropped. Must be the last field, because fields are dropped in order: the client and the server go first.
    _private_dir: Option<PrivateDir>,
}

impl Local {
    /// Starts the server. A holder process is forked only when the first process is started.
    pub async fn start(config: LocalConfig) -> Result<Self, Error> {
        let setup = config.clone();
        // Creates directories and may start a program, which blocks.
        let opened = tokio::task::spawn_blocking(move || open(&setup)).await;
        let (state, spawner, private_dir) = opened.map_err(|error| failed(&error))??;
        let limits =
            HolderLimits { ttl_ms: FIRST_TTL_MS, disk_quota_bytes: config.disk_quota_bytes, ..HolderLimits::default() };
        let holders_config = SpawnedHoldersConfig { limits, ..SpawnedHoldersConfig::default() };
        let holders = SpawnedHolders::new(Arc::new(state), spawner, holders_config);
        let core = Core::new(core_config(&config), Arc::new(holders));
        core.adopt().await.map_err(|error| failed(&error))?;
        let server: LocalServer = Arc::new(Mutex::new(Some(ServingCore { core, links: JoinSet::new() })));
        let mut builder = Client::builder().name(config.name);
        if let Some(ttl) = config.ttl.or_else(|| private_dir.is_some().then(|| Ttl::Ms(millis(PRIVATE_TTL)))) {
            builder = builder.ttl(ttl);
        }
        if let Some(session_id) = config.resume {
            builder = builder.resume(session_id);
        }
        let client = builder.open(MemoryConnect(Arc::clone(&server))).await?;
        Ok(Self { client, server, _private_dir: private_dir })
    }

    /// The client of this server.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Ends every session with its processes, and removes the private directory. Returns when the processes are gone.
    pub async fn end(self) {
        let Some(ServingCore { core, mut links }) = self.server.lock().take() else { return };
        core.end_all().await;
        self.client.clone().close().await;
        links.shutdown().await;
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Dropping the core closes its connections to the holders. They then end their processes after the time-to-live.
        // Unlock first: the drop of the core must not run under the lock.
        let serving = self.server.lock().take();
        drop(serving);
    }
}

/// The server side. It exists until the [`Local`] ends, even if clones of the client remain.
type LocalServer = Arc<Mutex<Option<ServingCore>>>;

struct ServingCore {
    core: Arc<Core>,
    /// One task per connection. They are aborted with the set.
    links: JoinSet<()>,
}

impl std::fmt::Debug for ServingCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingCore").field("links", &self.links.len()).finish_non_exhaustive()
    }
}

/// Connects to a [`LocalServer`].
struct MemoryConnect(LocalServer);

impl Connect for MemoryConnect {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>> {
        Box::pin(async {
            let mut serving = self.0.lock();
            // `Disconnected` and not `Connect`, because the client retries after the latter.
            let ended = || Error::Disconnected { reason: Some("the local server has ended".to_owned()) };
            let ServingCore { core, links } = serving.as_mut().ok_or_else(ended)?;
            let (near, far) = memory(PAIR_BYTES);
            let framing = Framing::Lines { max: limits::MESSAGE_BYTES };
            let connection = Authenticated::vouch(far, framing, Grant::owner(), NAME);
            let core = Arc::clone(core);
            // Remove tasks that have ended, so that the set does not grow with every reconnect.
            while links.try_join_next().is_some() {}
            links.spawn(async move { core.serve(connection).await });
            Ok(Connection { stream: near, framing, carrier: None })
        })
    }

    fn address(&self) -> String {
        NAME.to_owned()
    }
}

/// A directory that is removed when this value is dropped.
#[derive(Debug)]
struct PrivateDir(PathBuf);

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // The error is ignored: the directory may be gone already, and a drop cannot report an error.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The blocking part of the start: opens the state directory and finds the spawner.
fn open(config: &LocalConfig) -> Result<(StateDir, Arc<SpawnerHandle>, Option<PrivateDir>), Error> {
    // Find the spawner first, so that an error leaves no directory behind.
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

/// The user's runtime directory, which other users cannot enter, or else the directory for temporary files.
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
    async fn a_start_without_a_spawner_says_how_to_provide_one() {
        let error = Local::start(LocalConfig::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Spawn);
        let text = error.to_string();
        for part in ["`exec_server_client::local::embed()`", "first in `main`", "`LocalConfig::program`"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn embed_refuses_a_program_with_several_threads() {
        let (stop_tx, stop_rx) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stop_rx.recv().is_err());
        let text = embed().unwrap_err().to_string();
        drop(stop_tx);
        assert!(thread.join().unwrap());
        assert!(text.contains("must come first in `main`") && text.contains("threads already"), "{text}");
    }

    #[tokio::test]
    async fn the_error_for_a_wrong_spawner_program_names_it() {
        let config = LocalConfig { program: Some("/bin/false".into()), ..LocalConfig::default() };
        let error = Local::start(config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Spawn);
        assert!(error.to_string().contains("`/bin/false` is not an exec-server"), "{error}");
    }

    #[test]
    fn children_do_not_inherit_the_token() {
        let environment = [("A", "1"), ("EXEC_SERVER_TOKEN", "s"), ("exec_server_token", "s")];
        let environment = environment.map(|(name, value)| (name.into(), value.into())).to_vec();
        let config = core_config(&LocalConfig { environment, ..LocalConfig::default() });
        assert_eq!(config.environment, [("A".into(), "1".into())]);
    }
}
