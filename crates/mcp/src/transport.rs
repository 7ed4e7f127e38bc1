//! An MCP server on its standard streams, as the transport of an MCP client: wherever the process runs, through cut links and
//! restarts of the executor.
//!
//! ```text
//!  rmcp ── send ─────▶ one JSON and a line feed ──▶ Process::write        (in order, exactly once)
//!  rmcp ◀─ receive ─── decode ◀── lines ◀── stdout ◀─┐
//!                                 log   ◀── stderr ◀─┴── Events           (each once, gaps told)
//! ```
//! The client library keeps the promise for bytes, so that there is nothing to repeat here and nothing to filter.
//!
//! | what happens | what it means |
//! |---|---|
//! | a line that is no message | skipped, counted, and quoted when the server fails |
//! | the process closes | a last line without its end is offered once, then the stream ends |
//! | the process exits, and something that it left behind holds its streams | [`EXIT_GRACE`] later all that is left is ended |
//! | a line above [`STDOUT_LINE_BYTES`] or [`STDERR_LINE_BYTES`] | lines before it are delivered, the stream ends, the process too |
//! | output that is gone | the stream ends: a message may be missing |
//! | the session is lost | the stream ends |
//!
//! An executor tells that a process has *closed*, not that it closed one of its streams: one that closes its standard output
//! and lives looks like one that never answers, and whoever asks it needs a time limit.
//!
//! Closing closes its standard input, waits, asks it to terminate, waits, and kills everything that it started. Dropping
//! without closing kills in the background.

mod decode;
mod lines;
mod log;

use std::{
    collections::VecDeque,
    fmt, io,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use exec_server_client::{Error, Event, Events, Exit, Process, protocol::process as wire};
use rmcp::{
    RoleClient,
    model::ProgressToken,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde::Deserialize;
use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::JoinSet,
    time::{self, Instant},
};

use self::{
    decode::{Decoded, decode},
    lines::{Lines, TooLong},
};

pub use decode::Results;
pub use log::Log;

/// The longest line that a server may write on its standard output: the largest message.
pub const STDOUT_LINE_BYTES: usize = 8 << 20; // 8 MiB

/// The longest line that a server may write on its standard error.
pub const STDERR_LINE_BYTES: usize = 1 << 20; // 1 MiB

/// How long what a server left behind may hold its streams after it exited: time for a last word of a helper.
pub const EXIT_GRACE: Duration = Duration::from_secs(2);

/// How long a server may take to end by itself once its input is closed, and again once it was asked to terminate.
pub const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// How long to wait for the word that a killed process is gone: the executor may be out of reach.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The room for messages on their way, in KiB: less than the line of a process's input has, so that joining it never waits.
const ROOM_KIB: u32 = 4 << 10;

/// What a message takes of it at least: that line has 256 places.
const MESSAGE_KIB: u32 = ROOM_KIB / 256;

/// What is quoted of a line that is no message.
const NOISE_CHARS: usize = 200;

/// The method by which a server asks the user.
pub(crate) const ELICIT: &str = "elicitation/create";

/// How the stream of a server ended.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The process ended.
    #[error("it {}", Exited(.0))]
    Exited(Option<Exit>),
    /// It wrote a line that is longer than a line may be.
    #[error("it wrote a line of more than {} MiB on its {stream}", limit >> 20)]
    LineTooLong {
        /// Where.
        stream: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
    /// Output is gone, and a message may have been in it.
    #[error("output of it is gone ({}), and a message may have been in it", Bytes(.bytes))]
    Gap {
        /// How much, where that is known.
        bytes: Option<u64>,
    },
    /// Nothing more can be heard of it.
    #[error("nothing more can be heard of it: {0}")]
    Lost(Error),
    /// We ended it.
    #[error("it was ended")]
    Closed,
}

/// A step of a request, as its server tells it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Which request.
    #[serde(rename = "progressToken")]
    pub(crate) token: ProgressToken,
    /// How far it is.
    pub progress: f64,
    /// How far it will go, where that is known.
    #[serde(default)]
    pub total: Option<f64>,
    /// In words.
    #[serde(default)]
    pub message: Option<String>,
}

/// A server's process, for everything but its messages. Outlives its transport; with the last of both the process is ended.
pub struct Child {
    name: String,
    process: Process,
    log: Arc<Log>,
    /// Lines of the log from before this process.
    log_before: u64,
    noise: Mutex<Noise>,
    ended: watch::Sender<Option<Ended>>,
    room: Arc<Semaphore>,
    /// Ends what an exited process left behind.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct Noise {
    skipped: u64,
    first: Option<String>,
}

impl Child {
    /// Its process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// What it wrote on its standard error.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Lines on its standard output that were no messages.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        lock(&self.noise).skipped
    }

    /// How its stream ended, once it has: every message before that was received.
    #[must_use]
    pub fn ended(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }

    /// What it said that was no message, for an error: lines on its standard output, and the last on its standard error.
    #[must_use]
    pub fn talk(&self) -> String {
        let mut talk = String::new();
        {
            let noise = lock(&self.noise);
            if let Some(first) = &noise.first {
                talk = format!(
                    "{} lines on its stdout were no messages (logs belong on stderr), the first: {first}",
                    noise.skipped
                );
            }
        }
        let quote = self.log.quote(self.log_before);
        if !talk.is_empty() && !quote.is_empty() {
            talk.push('\n');
        }
        talk + &quote
    }

    /// Ends it when its transport is gone: closes its input, waits, terminates, and waits; bounded in time.
    pub async fn end(&self) {
        self.end_when(true, async { drop(self.process.wait().await) }).await;
    }

    /// Ends it; `over` is ready once it has closed.
    async fn end_when(&self, is_gentle: bool, over: impl Future<Output = ()>) {
        let mut over = pin!(over);
        if is_gentle {
            // A server whose input cannot be closed will not end by that.
            let eof = async {
                if self.process.close_stdin().await.is_ok() {
                    std::future::pending::<()>().await;
                }
            };
            let ending = async {
                tokio::select! {
                    biased;
                    () = &mut over => true,
                    () = eof => false,
                }
            };
            if time::timeout(CLOSE_GRACE, ending).await.unwrap_or(false) {
                return self.forget().await;
            }
        }
        let within = CLOSE_GRACE + GONE_WITHIN;
        if time::timeout(within, async { tokio::join!(self.terminate(Some(CLOSE_GRACE)), over) }).await.is_err() {
            tracing::warn!(server = self.name, "it could not be seen to end; that goes on in the background");
        } else {
            self.forget().await;
        }
    }

    /// Ends the process and everything that it started.
    async fn terminate(&self, grace: Option<Duration>) {
        let result = match self.process.terminate(grace).await {
            // A server that knows no grace.
            Err(Error::Protocol(_)) if grace.is_some() => self.process.terminate(None).await,
            other => other,
        };
        if let Err(error) = result {
            tracing::debug!(server = self.name, %error, "terminate");
        }
    }

    /// Its output on the executor is of no use any more.
    async fn forget(&self) {
        if self.process.closed().is_some() {
            // A server that cannot, or that is gone, keeps it a little longer.
            time::timeout(GONE_WITHIN, self.process.forget()).await.ok();
        }
    }

    fn skip(&self, line: &[u8], why: &str) {
        let text = String::from_utf8_lossy(&line[..line.len().min(4 * NOISE_CHARS)]);
        let shown: String =
            text.chars().take(NOISE_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        let mut noise = lock(&self.noise);
        noise.skipped += 1;
        if noise.first.is_none() {
            noise.first = Some(format!("`{shown}` ({why})"));
            tracing::warn!(server = self.name, line = shown, why, "a line on stdout is no message, and is skipped");
        } else {
            tracing::debug!(server = self.name, line = shown, why, "a line on stdout is no message, and is skipped");
        }
    }

    /// Sends one message, after all whose turn came before.
    async fn send(&self, turn: Turn, message: &TxJsonRpcMessage<RoleClient>) -> io::Result<()> {
        let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
        line.push(b'\n');
        let turn = turn.wait().await;
        let units = u32::try_from(line.len() >> 10).unwrap_or(u32::MAX).clamp(MESSAGE_KIB, ROOM_KIB);
        let room = self.room.acquire_many(units).await.map_err(io::Error::other)?;
        let mut write = pin!(self.process.write(line));
        // With the first look it is in line, because there is room: the next message may follow before this one is there.
        let first = std::future::poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await;
        turn.pass();
        let written = match first {
            Poll::Ready(written) => written,
            Poll::Pending => write.await,
        };
        drop(room);
        match written? {
            wire::WriteStatus::Accepted => Ok(()),
            wire::WriteStatus::StdinClosed => Err(broken("it has closed its standard input")),
            wire::WriteStatus::UnknownProcess => Err(broken("its process is gone")),
            wire::WriteStatus::Starting => Err(io::Error::new(io::ErrorKind::WouldBlock, "it is still being started")),
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("name", &self.name).field("process", &self.process).finish_non_exhaustive()
    }
}

/// The place of a message in the order of sends.
struct Turn {
    before: Option<oneshot::Receiver<()>>,
    after: oneshot::Sender<()>,
}

impl Turn {
    /// Waits until all before it have passed, or were given up.
    async fn wait(mut self) -> Self {
        if let Some(before) = self.before.take() {
            // An error is one that was given up.
            before.await.ok();
        }
        self
    }

    fn pass(self) {
        // Nobody may be behind.
        self.after.send(()).ok();
    }
}

/// The transport. See the module.
pub struct Stdio {
    child: Arc<Child>,
    events: Events,
    out: Lines,
    err: Lines,
    /// Complete lines that are not read yet, once the stream has ended.
    rest: VecDeque<Vec<u8>>,
    results: Results,
    had_result: bool,
    on_progress: Option<Box<dyn Fn(Progress) + Send + Sync>>,
    /// Ends the turn of the send before.
    turn: Option<oneshot::Receiver<()>>,
    /// It has exited: what it left behind is ended then, or given up.
    exited: Option<Overdue>,
    ending: Option<Ended>,
}

enum Overdue {
    Terminate(Instant),
    GiveUp(Instant),
}

impl Stdio {
    /// Speaks with a process that was just started. Its lines on standard error are added to the log.
    #[must_use]
    pub fn new(name: impl Into<String>, process: Process, log: Arc<Log>) -> Self {
        let events = process.events();
        let child = Child {
            name: name.into(),
            process,
            log_before: log.total(),
            log,
            noise: Mutex::default(),
            ended: watch::Sender::new(None),
            room: Arc::new(Semaphore::new(ROOM_KIB as usize)),
            tasks: Mutex::default(),
        };
        Self {
            child: Arc::new(child),
            events,
            out: Lines::new(STDOUT_LINE_BYTES),
            err: Lines::new(STDERR_LINE_BYTES),
            rest: VecDeque::new(),
            results: Results::Typed,
            had_result: false,
            on_progress: None,
            turn: None,
            exited: None,
            ending: None,
        }
    }

    /// Hands results over as they came, and progress to this function, in order, before any message that follows it.
    #[must_use]
    pub fn raw(mut self, on_progress: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.results = Results::Raw;
        self.on_progress = Some(Box::new(on_progress));
        self
    }

    /// The process, for everything but messages.
    #[must_use]
    pub fn child(&self) -> &Arc<Child> {
        &self.child
    }

    /// The next message; `None` when the stream has ended, see [`Child::ended`]. Cancel safe.
    async fn next(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            while let Some(line) = self.out.next().or_else(|| self.rest.pop_front()) {
                if let Some(message) = self.read(&line) {
                    return Some(message);
                }
            }
            if let Some(ended) = &self.ending {
                let news = |told: &mut Option<Ended>| told.is_none() && told.replace(ended.clone()).is_none();
                self.child.ended.send_if_modified(news);
                return None;
            }
            self.step().await;
        }
    }

    /// Waits for one event. Cancel safe: an event that was returned is handled before the next wait.
    async fn step(&mut self) {
        let until = match self.exited {
            Some(Overdue::Terminate(at) | Overdue::GiveUp(at)) => Some(at),
            None => None,
        };
        let overdue = async {
            match until {
                Some(at) => time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            event = self.events.next() => self.handle(event),
            () = overdue => self.handle_overdue(),
        }
    }

    fn handle(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Output { stream: wire::Stream::Stderr, bytes, .. }) => self.take_stderr(&bytes),
            Some(Event::Output { stream: wire::Stream::Stdout | wire::Stream::Pty, bytes, .. }) => {
                if let Err(TooLong) = self.out.push(&bytes) {
                    self.ending = Some(Ended::LineTooLong { stream: "stdout", limit: STDOUT_LINE_BYTES });
                }
            }
            Some(Event::Gap { bytes, .. }) => self.ending = Some(Ended::Gap { bytes }),
            Some(Event::Exited { .. }) => self.exited = Some(Overdue::Terminate(Instant::now() + EXIT_GRACE)),
            Some(Event::Closed { .. }) => self.finish(Ended::Exited(self.child.process.exit())),
            Some(Event::Failed(error)) => self.finish(Ended::Lost(error)),
            None => self.finish(Ended::Lost(Error::Disconnected { reason: None })),
        }
    }

    /// What it left behind still holds its streams.
    fn handle_overdue(&mut self) {
        if matches!(self.exited, Some(Overdue::GiveUp(_))) {
            return self.finish(Ended::Exited(self.child.process.exit()));
        }
        tracing::info!(server = self.child.name, "it exited, and what it left behind is ended");
        self.exited = Some(Overdue::GiveUp(Instant::now() + GONE_WITHIN));
        let process = self.child.process.clone();
        lock(&self.child.tasks).spawn(async move {
            if let Err(error) = process.terminate(None).await {
                tracing::debug!(%error, "terminate");
            }
        });
    }

    fn take_stderr(&mut self, bytes: &[u8]) {
        let pushed = self.err.push(bytes);
        while let Some(line) = self.err.next() {
            self.tell(&line);
        }
        if let Err(TooLong) = pushed
            && self.ending.is_none()
        {
            self.ending = Some(Ended::LineTooLong { stream: "stderr", limit: STDERR_LINE_BYTES });
        }
    }

    fn tell(&self, line: &[u8]) {
        tracing::info!(server = self.child.name, line = %String::from_utf8_lossy(line), "stderr");
        self.child.log.add(line);
    }

    /// No more output comes.
    fn finish(&mut self, ended: Ended) {
        if let Some(line) = self.err.finish() {
            self.tell(&line);
        }
        while let Some(line) = self.out.next() {
            self.rest.push_back(line);
        }
        self.rest.extend(self.out.finish());
        self.ending = Some(ended);
    }

    fn read(&mut self, line: &[u8]) -> Option<RxJsonRpcMessage<RoleClient>> {
        if line.is_empty() {
            return None;
        }
        match decode(line, self.results, !self.had_result) {
            Decoded::Message(message) => {
                self.had_result |= matches!(*message, RxJsonRpcMessage::<RoleClient>::Response(_));
                Some(*message)
            }
            Decoded::Progress(progress) => {
                if let Some(tell) = &self.on_progress {
                    tell(progress);
                }
                None
            }
            Decoded::Noise(why) => {
                self.child.skip(line, &why);
                None
            }
        }
    }

    /// Reads to the end, and keeps only what is logged.
    async fn drain(&mut self) {
        // An exit alone is not the end, and what is left behind is about to be ended anyway.
        self.exited = None;
        loop {
            match self.events.next().await {
                Some(Event::Output { stream: wire::Stream::Stderr, bytes, .. }) => self.take_stderr(&bytes),
                Some(Event::Output { .. } | Event::Gap { .. } | Event::Exited { .. }) => {}
                Some(Event::Closed { .. } | Event::Failed(_)) | None => break,
            }
        }
        if let Some(line) = self.err.finish() {
            self.tell(&line);
        }
    }
}

impl Transport<RoleClient> for Stdio {
    type Error = io::Error;

    fn name() -> std::borrow::Cow<'static, str> {
        "stdio".into()
    }

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        // The order is that of these calls, not that in which the futures are looked at first.
        let (after, next) = oneshot::channel();
        let turn = Turn { before: self.turn.replace(next), after };
        let child = Arc::clone(&self.child);
        async move { child.send(turn, &item).await }
    }

    fn receive(&mut self) -> impl Future<Output = Option<RxJsonRpcMessage<RoleClient>>> + Send {
        self.next()
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        let child = Arc::clone(&self.child);
        match &self.ending {
            Some(Ended::Exited(_) | Ended::Lost(_) | Ended::Closed) if child.process.closed().is_some() => {
                child.forget().await;
            }
            Some(Ended::Lost(_)) => {}
            // It breaks the rules: it need not be asked.
            Some(Ended::LineTooLong { .. } | Ended::Gap { .. }) => child.end_when(false, self.drain()).await,
            Some(Ended::Exited(_) | Ended::Closed) | None => child.end_when(true, self.drain()).await,
        }
        let news = |told: &mut Option<Ended>| told.is_none() && told.replace(Ended::Closed).is_none();
        self.child.ended.send_if_modified(news);
        Ok(())
    }
}

impl fmt::Debug for Stdio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stdio").field("child", &self.child).field("ending", &self.ending).finish_non_exhaustive()
    }
}

/// How a process ended, behind "it".
struct Exited<'a>(&'a Option<Exit>);

impl fmt::Display for Exited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Exit { signal: Some(signal), .. }) => write!(f, "was ended by {signal}"),
            Some(Exit { code, .. }) => write!(f, "exited with code {code}"),
            None => f.write_str("ended"),
        }
    }
}

/// A number of bytes, where it is known.
struct Bytes<'a>(&'a Option<u64>);

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes} bytes"),
            None => f.write_str("some bytes"),
        }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, what)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can panic half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
