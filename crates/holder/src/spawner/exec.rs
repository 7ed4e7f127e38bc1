//! The spawner as a program of its own, for a library inside a program that has threads already: forking that one would copy
//! locks that nobody ever opens again.
//!
//! Owns both ends of the way there: [`exec_spawner`] starts a program by path with [`ARGUMENT`] and a socket on its standard
//! input; [`serve_stdin`] is what that program does then. The spawner introduces itself once with its layout and its id, so that
//! another program, or another release of ours, is told apart from it before anything is asked of it.
//!
//! ```text
//! library ── exec ──▶ program --spawner ── fork ──▶ spawner
//!    │ wait ◀──────── ends at once                    │
//!    └──────────── socket: introduction, then requests ┘
//! ```
//!
//! The program ends as soon as it has forked the spawner and is waited for here: a library cannot ask its host to reap.
//!
//! Failure paths: the program is missing, is something else, or hangs: an error that says which, and the program is gone.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::request::LAYOUT;
use super::{SpawnerHandle, fork_serving, pair};
use crate::{title, wire};

/// The first and only argument of a program that is to be a spawner.
pub const ARGUMENT: &str = "--spawner";

/// What an introduction starts with; the layout and the process id follow, four bytes each.
const GREETING: &[u8] = b"exec-server spawner ";

/// How long a program may take to introduce itself: far above an exec on a busy machine.
const GREETING_WITHIN_S: i64 = 10;

/// How much of a failed program's standard error is told on.
const SAID_MAX: usize = 1024;

/// Why a program did not become a spawner.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// It could not be started.
    #[error("start `{}`", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It ended, or said something else, instead of introducing itself.
    #[error("`{}` is not an exec-server: {}", program.display(), Ended(*status, said))]
    NotOurs {
        /// The program.
        program: PathBuf,
        /// How it ended, where it did by itself.
        status: Option<ExitStatus>,
        /// What it left on standard error, cut short.
        said: String,
    },
    /// It did nothing within the time.
    #[error("`{}` did not become a spawner within {GREETING_WITHIN_S} s", program.display())]
    Silent {
        /// The program.
        program: PathBuf,
    },
    /// It is an exec-server of another release.
    #[error("`{}` speaks layout {theirs}, this program {ours}; use the release that it was built with", program.display())]
    Layout {
        /// The program.
        program: PathBuf,
        /// Its layout.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// Standard input is not what [`exec_spawner`] puts there.
    #[error(
        "standard input is not a spawner's socket; `{ARGUMENT}` is for programs that embed exec-server, not for people"
    )]
    NotASocket,
    /// The spawner could not be forked.
    #[error("fork the spawner")]
    Fork {
        /// What the system said.
        source: io::Error,
    },
}

/// How a program that is no spawner behaved, for people.
struct Ended<'a>(Option<ExitStatus>, &'a str);

impl std::fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(status) => write!(f, "it ended with {status}")?,
            None => write!(f, "it said something else")?,
        }
        if !self.1.is_empty() {
            write!(f, ", saying: {}", self.1)?;
        }
        Ok(())
    }
}

/// Starts the spawner by the path of a program that calls [`serve_stdin`], such as `exec-server`; a path without a slash is
/// one in the working directory. Blocks until the spawner is there, and leaves no child that must be reaped.
pub fn exec_spawner(program: &Path) -> Result<SpawnerHandle, ExecError> {
    exec_spawner_for(program, None)
}

/// The same with one more argument, which nobody reads but people who look at `ps`: whom the spawner and its holders serve.
pub fn exec_spawner_for(program: &Path, whom: Option<&OsStr>) -> Result<SpawnerHandle, ExecError> {
    let failed = |source| ExecError::Start { program: program.to_owned(), source };
    // The program starts in `/`, where its own relative path would mean something else.
    let path = std::path::absolute(program).map_err(failed)?;
    let (ours, theirs) = pair().map_err(failed)?;
    let mut child = start(&path, whom, theirs).map_err(failed)?;
    let greeted = read_greeting(&ours);
    if !matches!(greeted, Ok(Greeting::Is { .. })) {
        // Already gone is fine.
        child.kill().ok();
    }
    // A host that ignores SIGCHLD, or reaps all, was faster: gone it is in any case.
    let status = child.wait().ok();
    match greeted.map_err(failed)? {
        Greeting::Is { layout, pid } if layout == LAYOUT => Ok(SpawnerHandle { socket: ours, pid }),
        Greeting::Is { layout: theirs, .. } => Err(ExecError::Layout { program: path, theirs, ours: LAYOUT }),
        Greeting::Ended => Err(ExecError::NotOurs { program: path, status, said: said(child.stderr.take()) }),
        Greeting::Other => Err(ExecError::NotOurs { program: path, status: None, said: said(child.stderr.take()) }),
        Greeting::Silence => Err(ExecError::Silent { program: path }),
    }
}

/// What a program does whose first argument is [`ARGUMENT`], before anything else and before any thread exists: it forks the
/// spawner on its standard input and returns at once, to end.
pub fn serve_stdin() -> Result<(), ExecError> {
    let stdin = rustix::stdio::stdin();
    let is_ours = sockopt::socket_domain(stdin) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(stdin) == Ok(SocketType::SEQPACKET);
    if !is_ours {
        return Err(ExecError::NotASocket);
    }
    let socket = rustix::io::fcntl_dupfd_cloexec(stdin, 3).map_err(|errno| ExecError::Fork { source: errno.into() })?;
    fork_serving(socket, introduce).map_err(|source| ExecError::Fork { source })?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "this is how the one process that starts all others is started")]
fn start(program: &Path, whom: Option<&OsStr>, socket: OwnedFd) -> io::Result<Child> {
    Command::new(program)
        .arg(OsStr::new(ARGUMENT))
        .args(whom)
        // Holders show it to everyone who may look at them, and need nothing of it: the host's secrets stay with the host.
        .env_clear()
        .env(title::ROOM.0, title::ROOM.1)
        .current_dir("/")
        .stdin(socket)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}

/// What came, or did not, instead of or as an introduction.
enum Greeting {
    Is { layout: u32, pid: i32 },
    Other,
    Ended,
    Silence,
}

fn introduce(socket: &OwnedFd) -> io::Result<()> {
    let mut message = GREETING.to_vec();
    message.extend_from_slice(&LAYOUT.to_le_bytes());
    message.extend_from_slice(&rustix::process::getpid().as_raw_nonzero().get().to_le_bytes());
    wire::send_raw(socket, &message, &[])
}

fn read_greeting(socket: &OwnedFd) -> io::Result<Greeting> {
    let within = Timespec { tv_sec: GREETING_WITHIN_S, tv_nsec: 0 };
    // A signal in between starts the time anew, which harms nobody.
    let wait = || rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&within));
    if rustix::io::retry_on_intr(wait)? == 0 {
        return Ok(Greeting::Silence);
    }
    let mut buf = Vec::new();
    let Some(datagram) = wire::recv_raw(socket, &mut buf)? else { return Ok(Greeting::Ended) };
    let fields = datagram.bytes(&buf).strip_prefix(GREETING).and_then(<[u8]>::split_first_chunk::<4>);
    let Some((layout, pid)) = fields else { return Ok(Greeting::Other) };
    let Ok(pid) = <[u8; 4]>::try_from(pid) else { return Ok(Greeting::Other) };
    Ok(Greeting::Is { layout: u32::from_le_bytes(*layout), pid: i32::from_le_bytes(pid) })
}

/// What is there to be read, in one line; never waits, since somebody may still hold the other end.
fn said(stderr: Option<ChildStderr>) -> String {
    let Some(mut stderr) = stderr else { return String::new() };
    let mut bytes = vec![0; SAID_MAX];
    let read = rustix::io::ioctl_fionbio(&stderr, true).map_err(io::Error::from).and_then(|()| stderr.read(&mut bytes));
    bytes.truncate(read.unwrap_or(0));
    String::from_utf8_lossy(&bytes).trim().replace('\n', "; ")
}
