//! A running program whose standard streams carry a connection, from its start to its end.
//!
//! ```text
//! dropped ── has exited ──────────────────────────────────────────┐
//!    └─ EOF_GRACE ── SIGTERM ── TERM_GRACE ── SIGKILL ────────────┴── rest of its group killed ── reaped
//! ```
//!
//! The end of its input is the stream's, which is dropped beside it. The steps of the end are taken by a thread of their
//! own, for seconds at most: whoever drops does not wait, and it works while the runtime goes away too. Until it is reaped
//! its number, which is also its group's, belongs to nobody else; hence the group is signalled before.
//!
//! Where even the thread cannot be had, it is killed at once. Must not know what is said over the streams.

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

use exec_server_rpc::Stream;
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

use super::tail::Tail;

/// From the end of its input to SIGTERM: a server has its processes to end first.
const EOF_GRACE: Duration = Duration::from_secs(1);

/// From SIGTERM to SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// How long a program may take to exit after the end of its output before the end is not its own fault.
const EXIT_WITHIN: Duration = Duration::from_secs(1);

/// How long its last words may take after its exit. Something that it left behind may hold standard error for ever.
const WORDS_WITHIN: Duration = Duration::from_millis(200);

/// Whom the end of a program concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// It leads a process group of its own, which ends with it.
    Group,
    /// It stays in our process group, so that it may ask questions on the terminal; only itself is ended.
    Leader,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    Code(i32),
    Signal(i32),
}

/// A program; dropping it ends the program, without waiting.
#[derive(Debug)]
pub(super) struct Running {
    /// Taken by the first call that ends it.
    ending: Option<Ending>,
    /// Readable once the program has exited.
    exited: AsyncFd<OwnedFd>,
    tail: Arc<Tail>,
    /// Reads standard error until the program is ended, which then does it itself.
    _draining: JoinSet<()>,
}

/// Starts a program with pipes to its standard streams; must be called inside a tokio runtime.
pub(super) fn spawn(mut command: Command, scope: Scope) -> io::Result<(Stream, Running)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if scope == Scope::Group {
        command.process_group(0);
    }
    let mut child = command.spawn()?;
    let (stdin, stdout, stderr) = match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
        (Some(stdin), Some(stdout), Some(stderr)) => {
            (OwnedFd::from(stdin), OwnedFd::from(stdout), OwnedFd::from(stderr))
        }
        _ => unreachable!("all three were asked for"),
    };
    let pid = Pid::from_child(&child);
    let opened = rustix::process::pidfd_open(pid, PidfdFlags::empty());
    let pidfd = match opened {
        Ok(pidfd) => pidfd,
        Err(error) => {
            // Of our own child only too many descriptors can be the reason.
            child.kill().ok();
            child.wait()?;
            return Err(error.into());
        }
    };
    let tail = Arc::new(Tail::new());
    let spare_stderr = stderr.try_clone();
    // From here on each `?` drops it, and so ends the program.
    let mut ending = Ending { child, pid, pidfd, scope, stderr: None, tail: Arc::clone(&tail) };
    ending.stderr = Some(spare_stderr?);
    let exited = exec_server_rpc::register(ending.pidfd.try_clone()?, Interest::READABLE)?;
    // These also make our ends nonblocking; those of the program are open files of their own.
    let stream = Stream::new(pipe::Receiver::from_owned_fd(stdout)?, pipe::Sender::from_owned_fd(stdin)?);
    let stderr = pipe::Receiver::from_owned_fd(stderr)?;
    let mut draining = JoinSet::new();
    let words = Arc::clone(&tail);
    draining.spawn(async move { words.drain(stderr).await });
    Ok((stream, Running { ending: Some(ending), exited, tail, _draining: draining }))
}

impl Running {
    /// How it ended, once its output has ended; `None` if it still runs a second later.
    pub(super) async fn exit(&self) -> Option<Exit> {
        // Readiness is kept, so that it may be asked again.
        time::timeout(EXIT_WITHIN, self.exited.readable()).await.ok()?.ok()?.retain_ready();
        time::timeout(WORDS_WITHIN, self.tail.finished()).await.ok(); // What came is enough.
        // Looked at and not reaped: the number must stay ours until the end.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::PidFd(self.exited.get_ref().as_fd()), options).ok()??;
        let signal = status.terminating_signal().map(Exit::Signal);
        status.exit_status().map(Exit::Code).or(signal)
    }

    /// What it said last.
    pub(super) fn tail(&self) -> &Arc<Tail> {
        &self.tail
    }

    /// The exit and the last words as the end of a sentence.
    pub(super) fn last_words(&self, exit: Exit) -> String {
        let words = self.tail.text();
        if words.is_empty() { format!(" ({exit})") } else { format!(" ({exit}): {words}") }
    }

    /// Ends it and waits until it is reaped.
    pub(super) async fn end(&mut self) {
        if let Some(done_rx) = self.start_ending() {
            done_rx.await.ok(); // The sender drops when the thread is through, whatever happened there.
        }
    }

    /// `None` if it is gone already.
    fn start_ending(&mut self) -> Option<oneshot::Receiver<()>> {
        let ending = self.ending.take()?;
        if ending.has_exited() {
            return None;
        }
        let (done_tx, done_rx) = oneshot::channel();
        let name = "exec-server-end".to_owned();
        let started = thread::Builder::new().name(name).spawn(move || {
            ending.run();
            done_tx.send(()).ok(); // Nobody waits after a drop.
        });
        // Without a thread the closure was dropped, and with it the program was killed.
        started.ok().map(|_| done_rx)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.start_ending();
    }
}

/// A program that is to be ended; killed and reaped when dropped.
#[derive(Debug)]
struct Ending {
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    scope: Scope,
    /// Standard error, held and read to the last so that the program can say what it wants on its way out.
    stderr: Option<OwnedFd>,
    tail: Arc<Tail>,
}

impl Ending {
    /// Takes the steps, blocking.
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

    /// Waits for the exit or for words, and takes those.
    fn wait(&mut self, most: Duration) -> rustix::io::Result<()> {
        // Never over three seconds.
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
        fds.extend(self.stderr.iter().map(|stderr| PollFd::new(stderr, PollFlags::IN)));
        match rustix::event::poll(&mut fds, Some(&most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let has_words = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if has_words && let Some(stderr) = &self.stderr {
            let mut buf = [0; 4096];
            match rustix::io::read(stderr, &mut buf) {
                Ok(count @ 1..) => self.tail.feed(&buf[..count]),
                // The runtime's reader may have been quicker.
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
            Scope::Group => rustix::process::kill_process_group(self.pid, signal),
            Scope::Leader => rustix::process::pidfd_send_signal(&self.pidfd, signal),
        };
        sent.ok(); // It, or the last of its group, is gone: that is what was wanted.
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().ok(); // Fails only if somebody else reaps our children; then it is gone, too.
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
