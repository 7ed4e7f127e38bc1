//! A program whose stdin and stdout carry a connection, from its start to its end.
//!
//! ```text
//! dropped ── has exited ──────────────────────────────────────────┐
//!    └─ EOF_GRACE ── SIGTERM ── TERM_GRACE ── SIGKILL ────────────┴── rest of its group killed ── reaped
//! ```
//!
//! The owner drops the [`RunningProgram`] together with the stream. Without the stream, the program reads EOF on stdin.
//! A separate thread takes the steps after that, for a few seconds at most. A drop therefore does not block, and the
//! steps also work while the runtime shuts down.
//!
//! With [`EndScope::Group`], the pid of the program is also the id of its process group. Until the program is reaped, the kernel does not
//! reuse this id. The group is therefore signalled before the program is reaped. With [`EndScope::Leader`], only the program is signalled.
//! If the thread cannot be created, the program is killed at once.

use std::{
    fmt, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use exec_server_protocol::limits;
use exec_server_rpc::{ByteStream, Framing};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::unix::pipe,
    sync::oneshot,
    task::JoinSet,
    time::{self, Instant},
};

use super::{BoxFuture, Carrier, Connection, stderr_tail::StderrTail};
use crate::error::Error;

/// From EOF on stdin to SIGTERM. A server needs this time to end its processes.
const EOF_GRACE: Duration = Duration::from_secs(1);

/// From SIGTERM to SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// How long a program may take to exit after EOF on its stdout. If it takes longer, its exit does not explain the end of the connection.
const EXIT_WITHIN: Duration = Duration::from_secs(1);

/// How long to wait for the end of stderr after the exit. A child that the program left behind may hold stderr open indefinitely.
const STDERR_WITHIN: Duration = Duration::from_millis(200);

/// Which processes are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndScope {
    /// The program leads its own process group, and the whole group is ended.
    Group,
    /// The program stays in this program's process group, so that it can prompt on the terminal. Only the program itself is ended.
    Leader,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramExit {
    Code(i32),
    Signal(i32),
}

/// A running program. Dropping it ends the program without waiting.
#[derive(Debug)]
pub(super) struct RunningProgram {
    /// Taken by the first call that ends the program.
    ending: Option<EndingProgram>,
    /// A pidfd, readable once the program has exited.
    exited: AsyncFd<OwnedFd>,
    /// The end of the program's stderr.
    pub(super) tail: Arc<StderrTail>,
    /// Reads stderr until this value is dropped. `EndingProgram` reads the rest.
    _draining: JoinSet<()>,
}

/// Starts a program with pipes for stdin, stdout and stderr. Must be called inside a tokio runtime.
pub(super) fn spawn(mut command: Command, scope: EndScope) -> io::Result<(ByteStream, RunningProgram)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if scope == EndScope::Group {
        command.process_group(0);
    }
    let mut child = command.spawn()?;
    let (stdin, stdout, stderr) = match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
        (Some(stdin), Some(stdout), Some(stderr)) => {
            (OwnedFd::from(stdin), OwnedFd::from(stdout), OwnedFd::from(stderr))
        }
        _ => unreachable!("all three are pipes"),
    };
    let pidfd = match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            // For a child of this program, `pidfd_open` normally fails only for lack of fds.
            child.kill().ok();
            child.wait()?;
            return Err(error.into());
        }
    };
    let tail = Arc::new(StderrTail::new());
    let spare_stderr = stderr.try_clone();
    // From here on, an early return drops `ending`, which kills the program.
    let mut ending = EndingProgram { child, pidfd, scope, stderr: None, tail: Arc::clone(&tail) };
    ending.stderr = Some(spare_stderr?);
    let exited = exec_server_rpc::register(ending.pidfd.try_clone()?, Interest::READABLE)?;
    // These calls also make this program's ends of the pipes nonblocking. The other ends are separate open file descriptions and stay
    // blocking.
    let stream = ByteStream::new(pipe::Receiver::from_owned_fd(stdout)?, pipe::Sender::from_owned_fd(stdin)?);
    let stderr = pipe::Receiver::from_owned_fd(stderr)?;
    let mut draining = JoinSet::new();
    let stderr_tail = Arc::clone(&tail);
    draining.spawn(async move { stderr_tail.drain(stderr).await });
    Ok((stream, RunningProgram { ending: Some(ending), exited, tail, _draining: draining }))
}

/// Ends a program together with its connection. `explain` converts an exit before the server's first answer.
struct ProgramCarrier<E> {
    running: RunningProgram,
    explain: E,
}

/// A connection over the stdin and stdout of a program. `explain` converts an exit before the server's first answer.
pub(super) fn connection(
    stream: ByteStream,
    running: RunningProgram,
    explain: impl Fn(&RunningProgram, ProgramExit) -> Error + Send + Sync + 'static,
) -> Connection {
    let framing = Framing::Lines { max: limits::MESSAGE_BYTES };
    Connection { stream, framing, carrier: Some(Box::new(ProgramCarrier { running, explain })) }
}

impl<E: Fn(&RunningProgram, ProgramExit) -> Error + Send + Sync> Carrier for ProgramCarrier<E> {
    fn explain(&self) -> BoxFuture<'_, Option<Error>> {
        Box::pin(async { Some((self.explain)(&self.running, self.running.exit().await?)) })
    }

    fn end(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.running.end())
    }
}

impl RunningProgram {
    /// Waits up to `EXIT_WITHIN` for the program to exit, and returns how it ended; `None` if it still runs. Call it after EOF on the
    /// program's stdout.
    pub(super) async fn exit(&self) -> Option<ProgramExit> {
        // Keep the readiness, so that this function can be called again.
        time::timeout(EXIT_WITHIN, self.exited.readable()).await.ok()?.ok()?.retain_ready();
        time::timeout(STDERR_WITHIN, self.tail.finished()).await.ok(); // On a timeout, the text received so far is enough.
        // `NOWAIT` does not reap the program: its pid must stay reserved until the end.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::PidFd(self.exited.get_ref().as_fd()), options).ok()??;
        let signal = status.terminating_signal().map(ProgramExit::Signal);
        status.exit_status().map(ProgramExit::Code).or(signal)
    }

    /// The exit and the end of stderr, as the end of a sentence.
    pub(super) fn describe_exit(&self, exit: ProgramExit) -> String {
        let words = self.tail.text();
        if words.is_empty() { format!(" ({exit})") } else { format!(" ({exit}): {words}") }
    }

    /// Ends the program and waits until it is reaped.
    pub(super) async fn end(&mut self) {
        if let Some(done_rx) = self.start_ending() {
            done_rx.await.ok(); // The sender is dropped when the thread ends, whatever happened there.
        }
    }

    /// Starts the thread that ends the program. Returns `None` if there is no thread to wait for: the program has been ended before, has
    /// exited, or was killed because the thread could not be created.
    fn start_ending(&mut self) -> Option<oneshot::Receiver<()>> {
        let ending = self.ending.take()?;
        if ending.has_exited() {
            // Dropping `ending` kills the rest of the group and reaps the program.
            return None;
        }
        let (done_tx, done_rx) = oneshot::channel();
        let name = "exec-server-end".to_owned();
        let started = thread::Builder::new().name(name).spawn(move || {
            ending.run();
            done_tx.send(()).ok(); // After a drop there is no receiver.
        });
        // If the thread could not be created, the closure was dropped, which killed the program.
        started.ok().map(|_| done_rx)
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.start_ending();
    }
}

/// A program that is being ended. Dropping it kills and reaps the program.
#[derive(Debug)]
struct EndingProgram {
    child: Child,
    pidfd: OwnedFd,
    scope: EndScope,
    /// stderr, held open and read until the end, so that a write to it does not fail or block while the program shuts down.
    stderr: Option<OwnedFd>,
    tail: Arc<StderrTail>,
}

impl EndingProgram {
    /// Takes the steps described in the module documentation; dropping `self` takes the last two. Blocks.
    fn run(mut self) {
        for (grace, signal) in [(EOF_GRACE, Signal::TERM), (TERM_GRACE, Signal::KILL)] {
            if self.exits_within(grace) {
                return;
            }
            self.signal(signal);
        }
    }

    fn exits_within(&mut self, grace: Duration) -> bool {
        let end = Instant::now() + grace;
        while !self.has_exited() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.wait(left).is_err() {
                return false;
            }
        }
        true
    }

    /// Waits for the exit or for output on stderr, and reads that output.
    fn wait(&mut self, most: Duration) -> rustix::io::Result<()> {
        // The cast is safe: `most` is never more than a few seconds.
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
        fds.extend(self.stderr.iter().map(|stderr| PollFd::new(stderr, PollFlags::IN)));
        match rustix::event::poll(&mut fds, Some(&most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let has_output = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if has_output && let Some(stderr) = &self.stderr {
            let mut buf = [0; 4096];
            match rustix::io::read(stderr, &mut buf) {
                Ok(count @ 1..) => self.tail.append(&buf[..count]),
                // The reader in the runtime may have been faster.
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Ok(0) | Err(_) => self.stderr = None,
            }
        }
        Ok(())
    }

    fn has_exited(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
    }

    fn signal(&self, signal: Signal) {
        let sent = match self.scope {
            EndScope::Group => rustix::process::kill_process_group(Pid::from_child(&self.child), signal),
            EndScope::Leader => rustix::process::pidfd_send_signal(&self.pidfd, signal),
        };
        sent.ok(); // An error means that the program, or the last process of its group, is gone already.
    }
}

impl Drop for EndingProgram {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().ok(); // Fails only if other code in this program reaps all children. The program is gone in that case, too.
    }
}

impl fmt::Display for ProgramExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
