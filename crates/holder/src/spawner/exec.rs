//! Starts the spawner as a separate program. A library needs this if its host program already has threads: a fork of
//! such a program would copy locks that no thread ever releases.
//!
//! [`exec_spawner`] starts a program by path, with [`ARGUMENT`] and a socket on its stdin. [`serve_stdin`] is the other
//! side, run by that program. The spawner sends a greeting with the version of its request layout (`LAYOUT`) and its
//! pid. So the library notices a foreign program, or another release of ours, before it sends a request.
//!
//! ```text
//! library ── exec ──▶ program --spawner ── fork ──▶ spawner
//!    │ wait ◀──────── exits at once                   │
//!    └──────────── socket: greeting, then requests ───┘
//! ```
//!
//! The program exits as soon as it has forked the spawner, and `exec_spawner` waits for it: a library cannot ask its
//! host to reap a child.
//!
//! Failure path: if the program is missing, is not ours, or hangs, the error says which, and the program has been
//! killed and waited for.

use std::{
    ffi::OsStr,
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    net::{AddressFamily, SocketType, sockopt},
};

use super::{SpawnerHandle, fork_serving, holder_request::LAYOUT, socket_pair};
use crate::{control, title};

/// The first argument of a program that is to become a spawner.
pub const ARGUMENT: &str = "--spawner";

/// Prefix of the greeting. `LAYOUT` and the pid follow, four bytes each.
const GREETING: &[u8] = b"exec-server spawner ";

/// Time limit for the greeting: far longer than an exec on a busy machine takes.
const GREETING_WITHIN_S: i64 = 10;

/// How much of a failed program's stderr an error shows.
const STDERR_MAX: usize = 1024;

/// Why a program did not become a spawner.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The program could not be started.
    #[error("start `{}`", program.display())]
    Start { program: PathBuf, source: io::Error },
    /// The program exited without a greeting, or sent something else.
    #[error("`{}` is not an exec-server: {}", program.display(), ForeignProgram(*status, stderr_text))]
    NotOurs {
        program: PathBuf,
        /// The exit status, if the program closed the socket without a greeting. SIGKILL may be ours: it is sent after
        /// the EOF.
        status: Option<ExitStatus>,
        /// The beginning of its output on stderr.
        stderr_text: String,
    },
    /// The program sent nothing within the time limit.
    #[error("`{}` did not become a spawner within {GREETING_WITHIN_S} s", program.display())]
    Silent { program: PathBuf },
    /// The program is an exec-server of another release.
    #[error(
        "`{}` accepts spawner requests of layout {theirs}, but this program sends layout {ours}; \
         install the same release of both",
        program.display()
    )]
    Layout { program: PathBuf, theirs: u32, ours: u32 },
    /// Stdin is not the socket that [`exec_spawner`] passes.
    #[error("standard input is not a spawner's socket; only programs that embed exec-server may use `{ARGUMENT}`")]
    NotASocket,
    /// The spawner could not be forked.
    #[error("fork the spawner")]
    Fork { source: io::Error },
}

/// Describes in an error message how a program that is not a spawner behaved.
struct ForeignProgram<'a>(Option<ExitStatus>, &'a str);

impl std::fmt::Display for ForeignProgram<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(status) => write!(f, "it ended ({status})")?,
            None => write!(f, "it did not send a spawner's greeting")?,
        }
        if !self.1.is_empty() {
            write!(f, "; its stderr: {}", self.1)?;
        }
        Ok(())
    }
}

/// Starts the spawner by the path of a program that calls [`serve_stdin`], such as `exec-server`. A path without a
/// slash is relative to the working directory. Blocks until the spawner runs, and leaves no child that must be reaped.
pub fn exec_spawner(program: &Path) -> Result<SpawnerHandle, ExecError> {
    exec_spawner_for(program, None)
}

/// Like [`exec_spawner`], with one more argument for the program, such as the path of the state directory. The program
/// ignores this argument. It appears in `ps`, to show which server the spawner and its holders belong to.
pub fn exec_spawner_for(program: &Path, served: Option<&OsStr>) -> Result<SpawnerHandle, ExecError> {
    let failed = |source| ExecError::Start { program: program.to_owned(), source };
    // The program starts in `/`, where a relative path would mean something else.
    let path = std::path::absolute(program).map_err(failed)?;
    let (ours, theirs) = socket_pair().map_err(failed)?;
    let mut child = start(&path, served, theirs).map_err(failed)?;
    let greeting = read_greeting(&ours);
    if !matches!(greeting, Ok(GreetingOutcome::Received { .. })) {
        // `kill` fails if the program has exited and the host has reaped it.
        child.kill().ok();
    }
    // `wait` fails if the host ignores SIGCHLD or reaps all children. The program has exited in any case.
    let status = child.wait().ok();
    match greeting.map_err(failed)? {
        GreetingOutcome::Received { layout, pid } if layout == u32::from(LAYOUT) => {
            Ok(SpawnerHandle { socket: ours, pid })
        }
        GreetingOutcome::Received { layout: theirs, .. } => {
            Err(ExecError::Layout { program: path, theirs, ours: LAYOUT.into() })
        }
        GreetingOutcome::Eof => {
            Err(ExecError::NotOurs { program: path, status, stderr_text: read_stderr(child.stderr.take()) })
        }
        GreetingOutcome::Other => {
            Err(ExecError::NotOurs { program: path, status: None, stderr_text: read_stderr(child.stderr.take()) })
        }
        GreetingOutcome::TimedOut => Err(ExecError::Silent { program: path }),
    }
}

/// The entry point of a program whose first argument is [`ARGUMENT`]. Call it first in `main`, before any thread
/// exists. It forks the spawner, which serves the socket on stdin, and returns at once, so that the program can exit.
pub fn serve_stdin() -> Result<(), ExecError> {
    let stdin = rustix::stdio::stdin();
    let is_ours = sockopt::socket_domain(stdin) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(stdin) == Ok(SocketType::SEQPACKET);
    if !is_ours {
        return Err(ExecError::NotASocket);
    }
    let socket = rustix::io::fcntl_dupfd_cloexec(stdin, 3).map_err(|errno| ExecError::Fork { source: errno.into() })?;
    fork_serving(socket, send_greeting).map_err(|source| ExecError::Fork { source })?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "this is how the one process that starts all others is started")]
fn start(program: &Path, served: Option<&OsStr>, socket: OwnedFd) -> io::Result<Child> {
    Command::new(program)
        .arg(OsStr::new(ARGUMENT))
        .args(served)
        // Clear the environment, which may contain secrets of the host. Holders do not need it, but would expose it to
        // every process that may inspect them.
        .env_clear()
        .env(title::TITLE_ROOM.0, title::TITLE_ROOM.1)
        .current_dir("/")
        .stdin(socket)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}

/// The result of waiting for a greeting.
enum GreetingOutcome {
    Received { layout: u32, pid: i32 },
    Other,
    Eof,
    TimedOut,
}

fn send_greeting(socket: &OwnedFd) -> io::Result<()> {
    let mut message = GREETING.to_vec();
    message.extend_from_slice(&u32::from(LAYOUT).to_le_bytes());
    message.extend_from_slice(&rustix::process::getpid().as_raw_nonzero().get().to_le_bytes());
    control::send_raw(socket, &message, &[])
}

fn read_greeting(socket: &OwnedFd) -> io::Result<GreetingOutcome> {
    let within = Timespec { tv_sec: GREETING_WITHIN_S, tv_nsec: 0 };
    // EINTR restarts the timeout, which is harmless.
    let wait = || rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&within));
    if rustix::io::retry_on_intr(wait)? == 0 {
        return Ok(GreetingOutcome::TimedOut);
    }
    let mut buf = Vec::new();
    let Some(datagram) = control::recv_raw(socket, &mut buf)? else { return Ok(GreetingOutcome::Eof) };
    let fields = datagram.bytes(&buf).strip_prefix(GREETING).and_then(<[u8]>::split_first_chunk::<4>);
    let Some((layout, pid)) = fields else { return Ok(GreetingOutcome::Other) };
    let Ok(pid) = <[u8; 4]>::try_from(pid) else { return Ok(GreetingOutcome::Other) };
    Ok(GreetingOutcome::Received { layout: u32::from_le_bytes(*layout), pid: i32::from_le_bytes(pid) })
}

/// Reads what is available on stderr, as one line. Does not wait for EOF: another process may still hold the other end.
fn read_stderr(stderr: Option<ChildStderr>) -> String {
    let Some(mut stderr) = stderr else { return String::new() };
    let mut bytes = vec![0; STDERR_MAX];
    let read = rustix::io::ioctl_fionbio(&stderr, true).map_err(io::Error::from).and_then(|()| stderr.read(&mut bytes));
    bytes.truncate(read.unwrap_or(0));
    String::from_utf8_lossy(&bytes).trim().replace('\n', "; ")
}
