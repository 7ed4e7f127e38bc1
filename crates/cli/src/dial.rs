//! The user's own server: how it is found, started in the background, and dialled.
//!
//! It has a socket for this in its state directory, which speaks newline JSON. It greets with one blank line: until that has
//! come, the server behind the socket may be one that is just ending, and another is started in its place.
//! Must not know what is said over it.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use exec_server_client::{
    ConnectFailure, Error,
    transport::{BoxFuture, Connect, Connection},
};
use exec_server_protocol::limits;
use exec_server_rpc::Framing;
use tokio::{
    io::AsyncReadExt as _,
    net::UnixStream,
    time::{self, Instant},
};

use crate::args;

/// From the first look to a server that answers. A start takes a few milliseconds; adopting many sessions takes longer.
const READY_WITHIN: Duration = Duration::from_secs(15);

/// How often a starting server is tried.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// A server that does not come up is started this often: one may lose the lock to another that is ending.
const STARTS_MAX: u32 = 3;

/// How long the server stays when nobody is connected and nothing runs. The next one is up in milliseconds.
const IDLE: &str = "60s";

/// Directories below the home directory that users install programs into.
const LOGIN_DIRECTORIES: [&str; 3] = [".local/bin", "bin", ".cargo/bin"];

/// The user's own server as something that the client library connects to; started where none runs.
#[derive(Debug)]
pub(crate) struct PerUser {
    /// Its state directory.
    dir: PathBuf,
}

impl PerUser {
    /// The server of this state directory.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }
}

impl Connect for PerUser {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>> {
        Box::pin(async {
            // `dial` has waited for a server that is starting, so nothing is left to wait for.
            let failed = |error: anyhow::Error| Error::Connect {
                address: self.address(),
                failure: ConnectFailure::Permanent,
                reason: format!("{error:#}"),
            };
            let socket = dial(&self.dir).await.map_err(failed)?;
            let framing = Framing::Lines { max: limits::MESSAGE_BYTES };
            Ok(Connection { stream: socket.into(), framing, carrier: None })
        })
    }

    fn address(&self) -> String {
        format!("the server of `{}`", self.dir.display())
    }
}

/// Connects to the server of a state directory, and starts it where none runs.
pub(crate) async fn dial(dir: &Path) -> anyhow::Result<UnixStream> {
    let hint = format!("try `exec-server serve --state-dir {}` to see why", dir.display());
    let end = Instant::now() + READY_WITHIN;
    let (mut server, mut starts): (Option<Child>, u32) = (None, 0);
    loop {
        let Ok(found) = time::timeout_at(end, knock(dir)).await else {
            bail!("the server of `{}` was not ready within {READY_WITHIN:?}; {hint}", dir.display());
        };
        if let Some(socket) = found? {
            return Ok(socket);
        }
        let ended = match &mut server {
            Some(server) => server.try_wait().context("look at the server")?,
            None => None,
        };
        // A directory in use belongs to a server that is about to answer, or about to end: worth waiting for. One of ours that ended
        // may have met it.
        if (server.is_none() || ended.is_some()) && !is_locked(dir) {
            if let Some(status) = ended.filter(|_| starts >= STARTS_MAX) {
                return Err(anyhow!("the server started in the background ended with {status}; {hint}"));
            }
            server = Some(start(dir)?);
            starts += 1;
        }
        time::sleep_until(end.min(Instant::now() + TRY_EVERY)).await;
    }
}

/// Whether the server of a state directory runs, or its sessions have processes that the next one would find. If neither,
/// there is nothing to be shown, and no reason to start one.
pub(crate) fn has_something(dir: &Path) -> anyhow::Result<bool> {
    if is_locked(dir) {
        return Ok(true);
    }
    let boot = fs::read("/proc/sys/kernel/random/boot_id").context("read the id of this boot")?;
    if fs::read(dir.join("boot")).ok() != Some(boot) {
        // Never used, or not since the machine was started: no process is left.
        return Ok(false);
    }
    let Ok(sessions) = fs::read_dir(dir.join("sessions")) else { return Ok(false) };
    Ok(sessions.filter_map(Result::ok).any(|session| session.path().join("sock").exists()))
}

/// Connects and waits for the greeting; `None` when no living server is there.
async fn knock(dir: &Path) -> anyhow::Result<Option<UnixStream>> {
    // Through the open directory: its path may be longer than a socket address.
    let open = match File::open(dir) {
        Ok(open) => open,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("open `{}`", dir.display())),
    };
    let path = PathBuf::from(format!("/proc/self/fd/{}/dial.sock", open.as_raw_fd()));
    let mut socket = match UnixStream::connect(&path).await {
        Ok(socket) => socket,
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("connect to the server of `{}`", dir.display())),
    };
    match socket.read_u8().await {
        Ok(b'\n') => Ok(Some(socket)),
        Ok(_) => bail!("the server of `{}` is not of this version; end it and try again", dir.display()),
        Err(error) if is_nobody(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("hear the server of `{}`", dir.display())),
    }
}

/// Nobody listens there, or whoever did has gone.
fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset | UnexpectedEof)
}

/// Whether a server holds the state directory: then it is starting, serving or ending.
pub(crate) fn is_locked(dir: &Path) -> bool {
    let Ok(lock) = File::open(dir.join("lock")) else { return false };
    let free = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared);
    free == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Our `PATH` and, behind it, the directories that a login shell usually adds: sshd starts commands without a profile.
fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let below_home = home.iter().flat_map(|home| LOGIN_DIRECTORIES.map(|dir| home.join(dir)));
    for dir in below_home.chain([PathBuf::from("/usr/local/bin")]) {
        if !directories.contains(&dir) {
            directories.push(dir);
        }
    }
    // A home with a colon in its name cannot stand in a PATH.
    std::env::join_paths(directories).unwrap_or(path)
}

fn start(dir: &Path) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("find our own program")?;
    let mut listen = OsString::from("unix://");
    listen.push(dir.join("exec-server.sock"));
    #[expect(clippy::disallowed_methods, reason = "our own program, which becomes a session of its own by itself")]
    let mut command = Command::new(program);
    command
        // First, where it is looked for before the arguments are parsed.
        .args(["serve", args::DETACHED, "--exit-when-idle", IDLE])
        // It is nobody else's: what its user left running ends when the user ends it.
        .args(["--session-ttl", "none", "--state-dir"])
        .arg(dir)
        .arg("--listen")
        .arg(listen)
        .env("PATH", search_path())
        // Where a login begins, as over ssh.
        .current_dir(std::env::home_dir().filter(|home| home.is_dir()).unwrap_or_else(|| PathBuf::from("/")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().context("start a server in the background")
}
