//! The per-user server: how a command finds it, starts it in the background and connects to it.
//!
//! The server listens on `dial.sock` in its state directory and speaks newline-delimited JSON there. It greets each connection with a blank
//! line. If the connection ends before this greeting, the server is shutting down, and another one is started once it has exited.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
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
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::UnixStream,
    time::{self, Instant},
};

use crate::{args, runtime, state_location};

/// The time limit for the whole of `dial`. A start takes a few milliseconds; adopting many sessions takes longer.
const READY_WITHIN: Duration = Duration::from_secs(15);

/// The pause between two attempts to connect to a starting server.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// The number of starts before giving up. A new server exits if a server that is shutting down still holds the lock.
const STARTS_MAX: u32 = 3;

/// The server exits after this long without connections and running processes. Starting the next server takes
/// milliseconds.
const IDLE: &str = "60s";

/// Directories below the home directory into which users install programs.
const LOGIN_DIRECTORIES: [&str; 3] = [".local/bin", "bin", ".cargo/bin"];

/// A `Connect` for the user's own server, which is started if it does not run.
#[derive(Debug)]
pub(crate) struct PerUserConnect(
    /// The state directory of the server.
    pub(crate) PathBuf,
);

impl Connect for PerUserConnect {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>> {
        Box::pin(async {
            // `dial` has already waited for a starting server, so a retry would not help.
            let failed = |error: anyhow::Error| Error::Connect {
                address: self.address(),
                failure: ConnectFailure::Permanent,
                reason: format!("{error:#}"),
            };
            let socket = dial(&self.0).await.map_err(failed)?;
            let framing = Framing::Lines { max: limits::MESSAGE_BYTES };
            Ok(Connection { stream: socket.into(), framing, carrier: None })
        })
    }

    fn address(&self) -> String {
        format!("the server of `{}`", self.0.display())
    }
}

/// Connects to the server of a state directory. Starts it if it does not run.
pub(crate) async fn dial(dir: &Path) -> anyhow::Result<UnixStream> {
    let hint = format!("try `exec-server serve --state-dir {}` to see why", dir.display());
    let end = Instant::now() + READY_WITHIN;
    let mut server: Option<Child> = None;
    let mut starts: u32 = 0;
    loop {
        let Ok(found) = time::timeout_at(end, try_connect(dir)).await else {
            bail!("the server of `{}` was not ready within {READY_WITHIN:?}; {hint}", dir.display());
        };
        if let Some(socket) = found? {
            return Ok(socket);
        }
        let ended = server.as_mut().map(Child::try_wait).transpose().context("check the server process")?.flatten();
        // A locked directory belongs to a server that will answer soon or is shutting down: wait for it. A server that we started may have
        // exited because of that lock, so start another once the lock is free.
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

/// `exec-server dial-stdio`: copies bytes between our standard streams and the server of a state directory, which is started if it does not
/// run. No message is parsed here. EOF on our stdin only detaches the session, because a broken ssh connection looks the same.
pub(crate) fn run_stdio(args: &args::DialStdioArgs) -> anyhow::Result<ExitCode> {
    let dir = state_location::of_user(args.state_dir.as_deref())?;
    runtime::block_on(async { copy_stdio(dial(&dir).await?).await })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends when the server has closed its side and all its bytes are written. EOF on our stdin closes only our side.
async fn copy_stdio(socket: UnixStream) -> anyhow::Result<()> {
    let stdio = exec_server_rpc::stdio();
    let mut stdin = stdio.reader;
    let mut stdout = stdio.writer;
    let (mut from_server, mut to_server) = socket.into_split();
    let up = async {
        let copied = copy(&mut stdin, &mut to_server).await;
        // The server may have gone already, so ignore the error.
        to_server.shutdown().await.ok();
        copied
    };
    let down = async {
        let copied = copy(&mut from_server, &mut stdout).await;
        stdout.flush().await.and(copied)
    };
    tokio::pin!(up, down);
    // Cancel-safe: if `up` completes first, `down` is awaited to its end; if `down` completes first, `up` is no longer needed.
    tokio::select! {
        copied = &mut down => ignore_disconnect(copied, "copy from the server"),
        copied = &mut up => {
            ignore_disconnect(copied, "copy to the server")?;
            ignore_disconnect(down.await, "copy from the server")
        }
    }
}

/// A peer that disconnected is a normal end, not an error.
fn ignore_disconnect(copied: io::Result<u64>, what: &'static str) -> anyhow::Result<()> {
    match copied {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
        Err(error) => Err(error).context(what),
    }
}

/// Whether the server of a state directory runs, or left sessions with processes that the next server would adopt. If neither, there is
/// nothing to show and no reason to start a server.
pub(crate) fn is_in_use(dir: &Path) -> anyhow::Result<bool> {
    if is_locked(dir) {
        return Ok(true);
    }
    let boot = fs::read("/proc/sys/kernel/random/boot_id").context("read the id of this boot")?;
    if fs::read(dir.join("boot")).ok() != Some(boot) {
        // The directory was not used since this boot, so no process is left.
        return Ok(false);
    }
    let Ok(sessions) = fs::read_dir(dir.join("sessions")) else { return Ok(false) };
    Ok(sessions.filter_map(Result::ok).any(|session| session.path().join("sock").exists()))
}

/// Connects and waits for the greeting. Returns `None` if no running server answers.
async fn try_connect(dir: &Path) -> anyhow::Result<Option<UnixStream>> {
    // Connect through `/proc/self/fd`: the path of the directory may be too long for a socket address.
    let dir_fd = match File::open(dir) {
        Ok(dir_fd) => dir_fd,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("open `{}`", dir.display())),
    };
    let path = PathBuf::from(format!("/proc/self/fd/{}/dial.sock", dir_fd.as_raw_fd()));
    let mut socket = match UnixStream::connect(&path).await {
        Ok(socket) => socket,
        Err(error) if is_unanswered(&error) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("connect to the server of `{}`", dir.display())),
    };
    match socket.read_u8().await {
        Ok(b'\n') => Ok(Some(socket)),
        Ok(_) => bail!("the server of `{}` has another version; stop it and try again", dir.display()),
        Err(error) if is_unanswered(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read from the server of `{}`", dir.display())),
    }
}

/// Nothing listens on the socket, or the listener has just gone.
fn is_unanswered(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset | UnexpectedEof)
}

/// Whether a server holds the lock of the state directory: it is starting, serving or shutting down.
pub(crate) fn is_locked(dir: &Path) -> bool {
    let Ok(lock) = File::open(dir.join("lock")) else { return false };
    let locked = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared);
    locked == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Our `PATH`, followed by the directories that a login shell usually adds. sshd starts commands without reading a profile.
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
    // A home directory with a colon in its name cannot be in `PATH`.
    std::env::join_paths(directories).unwrap_or(path)
}

/// Starts a server for the state directory in the background.
fn start(dir: &Path) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("find our own program")?;
    let mut listen = OsString::from("unix://");
    listen.push(dir.join("exec-server.sock"));
    #[expect(clippy::disallowed_methods, reason = "our own program, which calls setsid itself")]
    let mut command = Command::new(program);
    command
        // `DETACHED` must follow `serve` directly: `args::is_detached` looks for it there before the arguments are parsed.
        .args(["serve", args::DETACHED, "--exit-when-idle", IDLE])
        // No other user shares this server, so processes left running stay until their user ends them.
        .args(["--session-ttl", "none", "--state-dir"])
        .arg(dir)
        .arg("--listen")
        .arg(listen)
        .env("PATH", search_path())
        // Start in the home directory, as a login over ssh does.
        .current_dir(std::env::home_dir().filter(|home| home.is_dir()).unwrap_or_else(|| PathBuf::from("/")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().context("start a server in the background")
}
