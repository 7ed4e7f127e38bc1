//! `exec-server dial-stdio`: carries bytes between our standard streams and the server of a state directory.
//!
//! The server has a socket for this in its state directory, which speaks newline JSON, so that nothing here reads a message.
//! Our end of file only detaches the session: that is what a broken ssh looks like. Must not know the wire.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use tokio::{
    io::{AsyncWriteExt as _, copy},
    net::UnixStream,
    time::{self, Instant},
};

use crate::{args, place, runtime};

/// From the first look to a server that answers. A start takes a few milliseconds; adopting many sessions takes longer.
const READY_WITHIN: Duration = Duration::from_secs(15);

/// How often a starting server is tried.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// Connects, starts the server where none runs, and carries until either side ends.
pub(crate) fn run(args: &args::DialStdio) -> anyhow::Result<ExitCode> {
    let dir = place::of_user(args.state_dir.as_deref())?;
    let runtime = runtime::new().context("start the runtime")?;
    let ended = runtime.block_on(async {
        let socket = dial(&dir).await?;
        carry(socket).await
    });
    // Standard input may be read by a thread that nobody can interrupt.
    runtime.shutdown_background();
    ended.map(|()| ExitCode::SUCCESS)
}

async fn dial(dir: &Path) -> anyhow::Result<UnixStream> {
    if let Some(socket) = connect(dir).await? {
        return Ok(socket);
    }
    let mut server = start(dir)?;
    let end = Instant::now() + READY_WITHIN;
    loop {
        if let Some(socket) = connect(dir).await? {
            return Ok(socket);
        }
        let hint = format!("try `exec-server serve --state-dir {}` to see why", dir.display());
        // Another `dial-stdio` may have been first: then ours ends at the lock, and the other's is about to answer.
        let ended = server.try_wait().context("look at the server")?;
        if Instant::now() >= end {
            return Err(match ended {
                Some(status) => anyhow!("the server started in the background ended with {status}\n{hint}"),
                None => anyhow!("the server in the background was not ready within {READY_WITHIN:?}\n{hint}"),
            });
        }
        if let Some(status) = ended
            && !is_locked(dir)
        {
            return Err(anyhow!("the server started in the background ended with {status}\n{hint}"));
        }
        time::sleep(TRY_EVERY).await;
    }
}

/// `None` when nobody listens there yet.
async fn connect(dir: &Path) -> anyhow::Result<Option<UnixStream>> {
    // Through the open directory: its path may be longer than a socket address.
    let open = match std::fs::File::open(dir) {
        Ok(open) => open,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("open `{}`", dir.display())),
    };
    let path = PathBuf::from(format!("/proc/self/fd/{}/dial.sock", std::os::fd::AsRawFd::as_raw_fd(&open)));
    match UnixStream::connect(&path).await {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("connect to the server of `{}`", dir.display())),
    }
}

/// Whether a server holds the state directory: then it is starting or ending, and worth waiting for.
fn is_locked(dir: &Path) -> bool {
    let Ok(lock) = std::fs::File::open(dir.join("lock")) else { return false };
    let free = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared);
    free == Err(rustix::io::Errno::WOULDBLOCK)
}

fn start(dir: &Path) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("find our own program")?;
    let mut listen = std::ffi::OsString::from("unix://");
    listen.push(dir.join("exec-server.sock"));
    #[expect(clippy::disallowed_methods, reason = "our own program, which becomes a session of its own by itself")]
    let mut command = Command::new(program);
    command
        // First, where it is looked for before the arguments are parsed.
        .args(["serve", args::DETACHED, "--state-dir"])
        .arg(dir)
        .arg("--listen")
        .arg(listen)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().context("start a server in the background")
}

/// Ends when the server closed and everything of it is written, or when our input ended and the server closed its side.
async fn carry(socket: UnixStream) -> anyhow::Result<()> {
    let stdio = exec_server_rpc::stdio();
    let (mut stdin, mut stdout) = (stdio.reader, stdio.writer);
    let (mut from_server, mut to_server) = socket.into_split();
    let up = async {
        let copied = copy(&mut stdin, &mut to_server).await;
        // The server may be gone already.
        to_server.shutdown().await.ok();
        copied
    };
    let down = async {
        let copied = copy(&mut from_server, &mut stdout).await;
        stdout.flush().await.and(copied)
    };
    tokio::pin!(up, down);
    // `up` is polled again after it lost, `down` never loses: both are whole.
    tokio::select! {
        copied = &mut down => finish(copied, "carry from the server"),
        copied = &mut up => {
            finish(copied, "carry to the server")?;
            finish(down.await, "carry from the server")
        }
    }
}

/// A peer that left is an end, not an error.
fn finish(copied: io::Result<u64>, what: &'static str) -> anyhow::Result<()> {
    match copied {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
        Err(error) => Err(error).context(what),
    }
}
