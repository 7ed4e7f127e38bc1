//! Copies bytes between our standard streams and a started MCP server, until the server has ended or must be ended.
//!
//! ```text
//!  Running ──client closes stdin or stdout, signal──▶ Closing ──1 s without output──▶ Terminating ──▶ given up
//!     │                                                  │  (at most 3 s; a signal)          │   (a signal)
//!     └──────────────── the server ends by itself ───────┴───────────────────────────────────┘
//! ```
//! Input and output are two futures of one task. So a client that does not read applies backpressure to the server but not to its own
//! requests, and a request to end is noticed even while either future waits. Every step has a timeout: an unreachable executor delays the
//! end but cannot prevent it.

use std::{
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{anyhow, bail};
use exec_server_client::{Client, Error, Event, Events, Exit, Generation, Process, protocol::process::Stream};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::oneshot,
    task::JoinSet,
    time::{self, Instant},
};

use super::stderr::StderrForwarder;
use crate::{
    signals::SignalStream,
    streams::{self, AtEof, InputEnd, InputMode},
};

/// How long the server may be silent after its stdin was closed before it is terminated. MCP clients send SIGTERM to us two seconds after
/// they close our stdin, and SIGKILL two seconds later. If SIGKILL came first, a server that ignores EOF would run until `--keep` is over.
const QUIET: Duration = Duration::from_secs(1);

/// The longest total time that the server gets to end by itself, even while it still writes.
const CLOSING: Duration = Duration::from_secs(3);

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(1);

/// Time after SIGKILL for the last output to arrive.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// How long a descendant of the ended server may keep its streams open before it is killed too.
const LINGER: Duration = Duration::from_secs(2);

/// Why the server is being ended.
#[derive(Debug)]
pub(super) enum EndReason {
    /// The MCP client closed our stdin.
    Input,
    /// Our stdout cannot be written: its reader closed it, or there is an error to report.
    Output(Option<io::Error>),
    /// We received the signal with this number.
    Signal(u8),
    /// Writing to the server's stdin failed, and the server did not end.
    Refused(io::Error),
}

impl From<InputEnd> for EndReason {
    fn from(ended: InputEnd) -> Self {
        match ended {
            // A read error counts as EOF.
            InputEnd::Eof | InputEnd::Detach | InputEnd::HungUp | InputEnd::Unreadable(_) => Self::Input,
            InputEnd::Closed(error) | InputEnd::Refused(error) => Self::Refused(error),
        }
    }
}

#[derive(Debug)]
pub(super) enum BridgeOutcome {
    NotStarted(Error),
    /// The server ended by itself.
    Ended(Exit),
    /// We ended the server, or gave up waiting; then the end of its session ends it.
    Stopped(EndReason),
}

/// The state of a running bridge.
pub(super) struct BridgeForwarder {
    process: Process,
    signals: SignalStream,
    /// Whether the executor can close the server's stdin.
    can_close_stdin: bool,
    /// Whether the executor can terminate the server with a grace period.
    has_grace: bool,
    generation: Generation,
    /// Requests whose results are ignored: ending a server that has already ended is not an error.
    calls: JoinSet<()>,
    /// Counts the events that the server produced.
    event_count: Arc<AtomicU64>,
}

/// The steps of ending the server; see the diagram above.
enum BridgeState {
    Running,
    /// `seen` is the number of events at the last check.
    Closing {
        reason: EndReason,
        check_at: Instant,
        until: Instant,
        seen: u64,
    },
    Terminating {
        reason: EndReason,
        until: Instant,
    },
}

impl BridgeForwarder {
    pub(super) fn new(client: &Client, process: Process, signals: SignalStream) -> Self {
        let server = client.server();
        Self {
            process,
            signals,
            can_close_stdin: server.capabilities.close_stdin,
            has_grace: server.capabilities.grace,
            generation: server.generation,
            calls: JoinSet::new(),
            event_count: Arc::default(),
        }
    }

    /// Runs to the end. An error means that the server is lost.
    pub(super) async fn run(self) -> anyhow::Result<BridgeOutcome> {
        let mut stderr = StderrForwarder::new();
        let outcome = self.forward_all(&mut stderr).await;
        // Also after an error: the last lines on stderr often explain the end.
        stderr.end().await;
        outcome
    }

    async fn forward_all(mut self, stderr: &mut StderrForwarder) -> anyhow::Result<BridgeOutcome> {
        let stdio = exec_server_rpc::stdio();
        let (closed, mut stdout_closed) = oneshot::channel();
        let event_count = Arc::clone(&self.event_count);
        let output = BridgeOutput { stdout: Some((stdio.writer, closed)), stderr, event_count, exit: None };
        let mut output = pin!(output.run(self.process.events()));
        let mode = InputMode { is_read: true, at_eof: AtEof::Report, has_keys: false, is_raw: false };
        let mut input = pin!(streams::forward(self.process.clone(), mode, self.generation));
        let mut state = BridgeState::Running;
        loop {
            let is_running = matches!(state, BridgeState::Running);
            let is_closing = matches!(state, BridgeState::Closing { .. });
            let deadline = state.deadline();
            // All branches are cancel-safe; `input` and `output` are dropped only when we give up. `output` is polled first, because the
            // end of the server explains any other failure.
            state = tokio::select! {
                biased;
                ended = &mut output => return state.conclude(ended),
                ended = &mut input, if is_running => self.close(ended.into()),
                Ok(error) = &mut stdout_closed, if is_running => self.close(EndReason::Output(error)),
                Some(_) = self.calls.join_next(), if is_closing => self.stdin_closed(state),
                number = self.signals.next_number() => match state {
                    BridgeState::Running => self.close(EndReason::Signal(number)),
                    BridgeState::Closing { reason, .. } => self.terminate(reason),
                    BridgeState::Terminating { reason, .. } => return Ok(BridgeOutcome::Stopped(reason)),
                },
                () = reached(deadline) => match state {
                    BridgeState::Running => BridgeState::Running,
                    BridgeState::Closing { reason, until, seen, .. } => self.check_progress(reason, until, seen),
                    BridgeState::Terminating { reason, .. } => return Ok(BridgeOutcome::Stopped(reason)),
                },
            };
        }
    }

    /// Closes the server's stdin, after everything that the client has sent.
    fn close(&mut self, reason: EndReason) -> BridgeState {
        if !self.can_close_stdin {
            return self.terminate(reason);
        }
        let process = self.process.clone();
        self.calls.spawn(async move {
            process.close_stdin().await.ok(); // It may have ended already.
        });
        let until = Instant::now() + CLOSING;
        BridgeState::Closing { reason, check_at: until, until, seen: 0 }
    }

    /// The server can now see EOF on its stdin. From now on it must produce output or it is terminated.
    fn stdin_closed(&self, state: BridgeState) -> BridgeState {
        match state {
            BridgeState::Closing { reason, until, .. } => {
                let check_at = until.min(Instant::now() + QUIET);
                BridgeState::Closing { reason, check_at, until, seen: self.event_count.load(Ordering::Relaxed) }
            }
            other => other,
        }
    }

    /// If the server has produced output since the last check, gives it more time; otherwise terminates it.
    fn check_progress(&mut self, reason: EndReason, until: Instant, seen: u64) -> BridgeState {
        let now = Instant::now();
        let event_count = self.event_count.load(Ordering::Relaxed);
        if event_count == seen || now >= until {
            return self.terminate(reason);
        }
        BridgeState::Closing { reason, check_at: until.min(now + QUIET), until, seen: event_count }
    }

    fn terminate(&mut self, reason: EndReason) -> BridgeState {
        let process = self.process.clone();
        let grace = self.has_grace.then_some(GRACE);
        self.calls.spawn(async move {
            process.terminate(grace).await.ok(); // It may have ended already.
        });
        BridgeState::Terminating { reason, until: Instant::now() + GRACE + LAST_OUTPUT }
    }
}

impl BridgeState {
    /// When the next timeout of this step is due.
    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Running => None,
            Self::Closing { check_at, .. } => Some(*check_at),
            Self::Terminating { until, .. } => Some(*until),
        }
    }

    /// Decides the result when the output has ended.
    fn conclude(self, ended: anyhow::Result<Exit>) -> anyhow::Result<BridgeOutcome> {
        match (self, ended) {
            (Self::Running | Self::Closing { .. }, Ok(exit)) => Ok(BridgeOutcome::Ended(exit)),
            (Self::Terminating { reason, .. }, Ok(_)) => Ok(BridgeOutcome::Stopped(reason)),
            // The server was lost while it ran, or a write was refused because the session is lost.
            (
                Self::Running
                | Self::Closing { reason: EndReason::Refused(_), .. }
                | Self::Terminating { reason: EndReason::Refused(_), .. },
                Err(error),
            ) => Err(error),
            // The server was being ended, and it is gone.
            (Self::Closing { reason, .. } | Self::Terminating { reason, .. }, Err(_)) => {
                Ok(BridgeOutcome::Stopped(reason))
            }
        }
    }
}

/// Waits until the deadline, or forever without one. Cancel-safe.
async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Copies the server's output to our standard streams. An event is taken from the executor only after the previous one was written.
struct BridgeOutput<'a, W> {
    /// Our stdout, and the channel that reports when it can no longer be written.
    stdout: Option<(W, oneshot::Sender<Option<io::Error>>)>,
    stderr: &'a mut StderrForwarder,
    event_count: Arc<AtomicU64>,
    /// How the server exited, and until when its streams may stay open.
    exit: Option<(Exit, Instant)>,
}

impl<W: AsyncWrite + Unpin> BridgeOutput<'_, W> {
    /// Writes all output until the server has ended. An error means that output is missing.
    async fn run(mut self, mut events: Events) -> anyhow::Result<Exit> {
        while let Some(event) = self.next(&mut events).await {
            // Output that is discarded is not a reason to wait longer.
            if self.stdout.is_some() {
                self.event_count.fetch_add(1, Ordering::Relaxed);
            }
            match event {
                Event::Output { stream: Stream::Stdout | Stream::Pty, bytes, .. } => self.write(&bytes).await,
                Event::Output { stream: Stream::Stderr, bytes, .. } => self.stderr.push(&bytes).await,
                Event::Gap { from_seq, to_seq, bytes } => match bytes {
                    // The bytes after the gap would be parsed as part of the wrong message.
                    Some(bytes) => bail!("{bytes} bytes of its output are missing"),
                    None => bail!("its output from {from_seq} to {to_seq} is missing"),
                },
                Event::Exited { exit, .. } => self.exit = Some((exit, Instant::now() + LINGER)),
                // Also an error after the exit: until `Closed`, the last output may be missing.
                Event::Failed(error) => return Err(error.into()),
                Event::Closed { .. } => break,
            }
        }
        self.exit.map(|(exit, _)| exit).ok_or_else(|| anyhow!("it closed without an exit code"))
    }

    /// The next event; `None` if we stop waiting for it.
    async fn next(&mut self, events: &mut Events) -> Option<Event> {
        let Some((_, until)) = &self.exit else { return events.next().await };
        // Check the deadline first: a descendant that writes all the time would never time out.
        let next = if Instant::now() < *until { time::timeout_at(*until, events.next()).await.ok() } else { None };
        if next.is_none() {
            report!("the MCP server has ended; killing the processes that it left behind");
        }
        next.flatten()
    }

    async fn write(&mut self, bytes: &[u8]) {
        let Some((stdout, _)) = &mut self.stdout else { return };
        let written = match stdout.write_all(bytes).await {
            Ok(()) => stdout.flush().await,
            Err(error) => Err(error),
        };
        if let Err(error) = written
            && let Some((_, closed)) = self.stdout.take()
        {
            // A closed reader is normal, so no error is reported for it; a full disk is an error. Some clients pass a socket as stdout,
            // which reports `ConnectionReset` instead of `BrokenPipe`.
            let is_gone = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
            let error = Some(error).filter(|_| !is_gone);
            closed.send(error).ok(); // The receiver may already be gone.
        }
    }
}
