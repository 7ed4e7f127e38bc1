//! Carries bytes between our standard streams and a started MCP server until it has ended, or is to be ended.
//!
//! ```text
//!  Running ──client closes stdin or stdout, signal──▶ Closing ──a second without a word──▶ Terminating ──▶ given up
//!     │                                                  │  (three at most; a signal)          │   (a signal)
//!     └──────────────── the server ends by itself ───────┴──────────────────────────────────────┘
//! ```
//! Input and output are two futures of one task, so that a client that does not read holds back the server and not its own
//! requests, and an end is heeded whatever either of them waits for. Every step has a time: an executor that cannot be reached
//! delays the end and does not prevent it. Must not know how the server was started.

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
use exec_server_client::{Client, Event, Events, Exit, Process, protocol::process::Stream};
use rustix::event::{self, PollFd, PollFlags, Timespec};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::oneshot,
    task::JoinSet,
    time::{self, Instant},
};

use super::{signal, talk::Talk};
use crate::{say, signals::Signals};

/// One read: what a pipe holds.
const INPUT_BYTES: usize = 64 << 10;

/// How long a server may be silent after its input was closed before it is ended. MCP clients send us SIGTERM two seconds after they
/// closed our input, and SIGKILL two seconds later, which would leave a server that heeds nothing to `--keep`.
const QUIET: Duration = Duration::from_secs(1);

/// How long it may take in all to end by itself, however much it still has to say.
const CLOSING: Duration = Duration::from_secs(3);

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(1);

/// After SIGKILL, for what was still written to arrive.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long something that the server left behind may keep its streams open before that is ended, too.
const LINGER: Duration = Duration::from_secs(2);

/// How often it is looked for the end of our input while the server takes none of it.
const LOOK: Duration = Duration::from_millis(500);

/// Why a server was to be ended.
#[derive(Debug)]
pub(super) enum Why {
    /// The MCP client closed our standard input.
    Input,
    /// Our standard output takes no more: closed by its reader, or an error worth a word.
    Output(Option<io::Error>),
    /// A signal with this number.
    Signal(u8),
    /// The server takes no more input, and did not end.
    Refused(io::Error),
}

/// How the carrying ended.
#[derive(Debug)]
pub(super) enum Carried {
    /// The server ended by itself.
    Ended(Exit),
    /// We ended it, or are about to with its session.
    Asked(Why),
}

/// Everything there is to carry.
pub(super) struct Carry {
    process: Process,
    signals: Signals,
    /// Whether the executor can close the server's input, and end it gently.
    can_close: bool,
    can_wait: bool,
    /// Calls whose answers nobody needs: to end what has ended is no trouble.
    calls: JoinSet<()>,
    /// Counts signs of life of the server.
    alive: Arc<AtomicU64>,
}

/// How far the end has come.
enum Step {
    Running,
    Closing { why: Why, look: Instant, until: Instant, seen: u64 },
    Terminating { why: Why, until: Instant },
}

impl Carry {
    pub(super) fn new(client: &Client, process: Process, signals: Signals) -> Self {
        let capabilities = client.server().capabilities;
        Self {
            process,
            signals,
            can_close: capabilities.close_stdin,
            can_wait: capabilities.grace,
            calls: JoinSet::new(),
            alive: Arc::default(),
        }
    }

    /// Carries. An error means that the server is lost.
    pub(super) async fn run(self) -> anyhow::Result<Carried> {
        let mut talk = Talk::new();
        let carried = self.carry(&mut talk).await;
        // However it ended: what the server said last often tells why.
        talk.end().await;
        carried
    }

    async fn carry(mut self, talk: &mut Talk) -> anyhow::Result<Carried> {
        let stdio = exec_server_rpc::stdio();
        let (closed, mut stdout_closed) = oneshot::channel();
        let output = Output { stdout: Some((stdio.writer, closed)), talk, alive: Arc::clone(&self.alive), exit: None };
        let mut output = pin!(output.run(self.process.events()));
        let mut input = pin!(forward(self.process.clone(), stdio.reader));
        let mut step = Step::Running;
        loop {
            let (is_running, is_closing) = (matches!(step, Step::Running), matches!(step, Step::Closing { .. }));
            let at = step.at();
            // All are cancel safe, and input and output are dropped only to give up. Output first: that a server ended by itself
            // explains whatever else came of it.
            step = tokio::select! {
                biased;
                ended = &mut output => return step.conclude(ended),
                why = &mut input, if is_running => self.close(why),
                Ok(error) = &mut stdout_closed, if is_running => self.close(Why::Output(error)),
                Some(_) = self.calls.join_next(), if is_closing => self.closed(step),
                number = signal(&mut self.signals) => match step {
                    Step::Running => self.close(Why::Signal(number)),
                    Step::Closing { why, .. } => self.terminate(why),
                    Step::Terminating { why, .. } => return Ok(Carried::Asked(why)),
                },
                () = reached(at) => match step {
                    Step::Running => Step::Running,
                    Step::Closing { why, until, seen, .. } => self.look(why, until, seen),
                    Step::Terminating { why, .. } => return Ok(Carried::Asked(why)),
                },
            };
        }
    }

    /// Tells the server by the end of its input, behind everything that the client has sent.
    fn close(&mut self, why: Why) -> Step {
        if !self.can_close {
            return self.terminate(why);
        }
        let process = self.process.clone();
        self.calls.spawn(async move {
            process.close_stdin().await.ok(); // It may have ended.
        });
        let until = Instant::now() + CLOSING;
        Step::Closing { why, look: until, until, seen: 0 }
    }

    /// The server can read the end of its input: from now on it is to say something, or to go.
    fn closed(&self, step: Step) -> Step {
        match step {
            Step::Closing { why, until, .. } => {
                let look = until.min(Instant::now() + QUIET);
                Step::Closing { why, look, until, seen: self.alive.load(Ordering::Relaxed) }
            }
            other => other,
        }
    }

    /// Whether the server had something to say since the last look; then it may go on for a while.
    fn look(&mut self, why: Why, until: Instant, seen: u64) -> Step {
        let (now, alive) = (Instant::now(), self.alive.load(Ordering::Relaxed));
        if alive == seen || now >= until {
            return self.terminate(why);
        }
        Step::Closing { why, look: until.min(now + QUIET), until, seen: alive }
    }

    fn terminate(&mut self, why: Why) -> Step {
        let (process, grace) = (self.process.clone(), self.can_wait.then_some(GRACE));
        self.calls.spawn(async move {
            process.terminate(grace).await.ok(); // It may have ended.
        });
        Step::Terminating { why, until: Instant::now() + GRACE + LAST_WORDS }
    }
}

impl Step {
    /// When there is something to do by itself.
    fn at(&self) -> Option<Instant> {
        match self {
            Self::Running => None,
            Self::Closing { look, .. } => Some(*look),
            Self::Terminating { until, .. } => Some(*until),
        }
    }

    /// What it means that the output has ended now.
    fn conclude(self, ended: anyhow::Result<Exit>) -> anyhow::Result<Carried> {
        match (self, ended) {
            (Self::Running | Self::Closing { .. }, Ok(exit)) => Ok(Carried::Ended(exit)),
            (Self::Terminating { why, .. }, Ok(_)) => Ok(Carried::Asked(why)),
            // A message that was refused because the session is lost.
            (Self::Running | Self::Closing { why: Why::Refused(_), .. }, Err(error)) => Err(error),
            (Self::Terminating { why: Why::Refused(_), .. }, Err(error)) => Err(error),
            // It was to end, and is gone.
            (Self::Closing { why, .. } | Self::Terminating { why, .. }, Err(_)) => Ok(Carried::Asked(why)),
        }
    }
}

/// Waits for a time; for ever where there is none. Cancel safe.
async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Carries our input until it ends, or the server takes no more of it.
async fn forward(process: Process, mut from: impl AsyncRead + Unpin) -> Why {
    let mut to = process.stdin();
    let mut buf = vec![0; INPUT_BYTES];
    // Whether the server has all that was read; until then its refusal is listened for, too.
    let mut is_settled = true;
    loop {
        // Both are cancel safe.
        let read = tokio::select! {
            settled = to.flush(), if !is_settled => {
                if let Err(error) = settled {
                    return Why::Refused(error);
                }
                is_settled = true;
                continue;
            }
            read = from.read(&mut buf) => read,
        };
        match read {
            // An input that cannot be read has ended.
            Ok(0) | Err(_) => return Why::Input,
            Ok(count) => {
                // A server that does not read holds us here, and the end of our input would be seen behind what is never taken.
                let written = tokio::select! {
                    biased;
                    written = to.write_all(&buf[..count]) => written,
                    () = hung_up() => return Why::Input,
                };
                if let Err(error) = written {
                    return Why::Refused(error);
                }
                is_settled = false;
            }
        }
    }
}

/// Waits until nobody is left who could write to our standard input, whatever is still in it; at first for as long as a server
/// that reads may take for a piece. Cancel safe.
async fn hung_up() {
    let mut pause = QUIET;
    loop {
        time::sleep(pause).await;
        pause = LOOK;
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::RDHUP)];
        let seen = event::poll(&mut polled, Some(&Timespec::default()));
        // `HUP` is told unasked. What cannot be looked at is no end.
        if seen.is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP) {
            return;
        }
    }
}

/// What the server says, on its way to our standard streams; taken from the executor only when it is written.
struct Output<'a, W> {
    /// Standard output, and whom to tell that it takes no more.
    stdout: Option<(W, oneshot::Sender<Option<io::Error>>)>,
    talk: &'a mut Talk,
    alive: Arc<AtomicU64>,
    /// How the server ended, and how long its streams may stay open after it.
    exit: Option<(Exit, Instant)>,
}

impl<W: AsyncWrite + Unpin> Output<'_, W> {
    /// Writes everything until the server has ended. An error means that something is missing, or all that follows.
    async fn run(mut self, mut events: Events) -> anyhow::Result<Exit> {
        loop {
            let Some(event) = self.next(&mut events).await else { break };
            // Said to nobody, it is no reason to wait.
            if self.stdout.is_some() {
                self.alive.fetch_add(1, Ordering::Relaxed);
            }
            match event {
                Event::Output { stream: Stream::Stdout | Stream::Pty, bytes, .. } => self.write(&bytes).await,
                Event::Output { stream: Stream::Stderr, bytes, .. } => self.talk.push(&bytes).await,
                Event::Gap { from_seq, to_seq, bytes } => match bytes {
                    // What follows would be read as part of a message that it does not belong to.
                    Some(bytes) => bail!("{bytes} bytes of its output are missing"),
                    None => bail!("its output from {from_seq} to {to_seq} is missing"),
                },
                Event::Exited { exit, .. } => self.exit = Some((exit, Instant::now() + LINGER)),
                // Also after its exit: what it wrote last may be missing until it has closed.
                Event::Failed(error) => return Err(error.into()),
                Event::Closed { .. } => break,
            }
        }
        self.exit.map(|(exit, _)| exit).ok_or_else(|| anyhow!("it closed without an exit code"))
    }

    /// The next event; none where it is not waited for any longer.
    async fn next(&mut self, events: &mut Events) -> Option<Event> {
        let Some((_, until)) = &self.exit else { return events.next().await };
        // Looked at first: something that writes and writes would always be in time.
        let next = if Instant::now() < *until { time::timeout_at(*until, events.next()).await.ok() } else { None };
        if next.is_none() {
            say::talk("exec-server: the MCP server has ended; what it started and left behind is ended, too");
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
            // A reader that has gone is no news; a full disk is. Some clients give us a socket, which may say it in its own way.
            let is_gone = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
            let error = Some(error).filter(|_| !is_gone);
            closed.send(error).ok(); // Whoever listened is about to give up.
        }
    }
}
