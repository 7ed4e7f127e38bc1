//! A server's process beside its messages: what it says on its standard error, how it ended, and its end.
//!
//! Owns the order of what is sent, and the steps of ending. Must not know what messages mean.

use std::{
    fmt, io,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use exec_server_client::{Error, Event, Events, Process, protocol::process as wire};
use rmcp::{RoleClient, service::TxJsonRpcMessage};
use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::JoinSet,
    time,
};

use super::{
    CLOSE_GRACE, Ended, GONE_WITHIN, Log, STDERR_LINE_BYTES,
    lines::{Lines, TooLong},
    lock,
};

/// The room for messages on their way, in KiB: less than the line of a process's input has, so that joining it never waits.
const ROOM_KIB: u32 = 4 << 10;

/// What a message takes of it at least: that line has 256 places.
const MESSAGE_KIB: u32 = ROOM_KIB / 256;

/// What is quoted of a line that is no message.
const NOISE_CHARS: usize = 200;

/// A server's process, for everything but its messages. Outlives its transport; with the last of both the process is ended.
pub struct Child {
    pub(super) name: String,
    pub(super) process: Process,
    log: Arc<Log>,
    /// Lines of the log from before this process.
    log_before: u64,
    noise: Mutex<Noise>,
    ended: watch::Sender<Option<Ended>>,
    room: Semaphore,
    /// What a transport that was dropped has not heard.
    pub(super) tail: Mutex<Option<Tail>>,
    /// Ends what an exited process left behind.
    pub(super) tasks: Mutex<JoinSet<()>>,
}

/// Where the reading of a process is.
pub(super) struct Tail {
    pub(super) events: Events,
    err: Lines,
}

#[derive(Debug, Default)]
struct Noise {
    skipped: u64,
    first: Option<String>,
}

impl Child {
    pub(super) fn new(name: String, process: Process, log: Arc<Log>) -> Self {
        Self {
            name,
            process,
            log_before: log.total(),
            log,
            noise: Mutex::default(),
            ended: watch::Sender::new(None),
            room: Semaphore::new(ROOM_KIB as usize),
            tail: Mutex::new(None),
            tasks: Mutex::default(),
        }
    }

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
                let count = noise.skipped;
                talk = format!(
                    "lines on its stdout that were no messages (logs belong on stderr): {count}, the first: {first}"
                );
            }
        }
        let quote = self.log.quote(self.log_before);
        if !talk.is_empty() && !quote.is_empty() {
            talk.push('\n');
        }
        talk + &quote
    }

    /// Hears what it still says, within this time, when its transport is gone. True if it has closed.
    ///
    /// A send to a server that exits fails before its exit is heard, and a client then drops its transport.
    pub async fn hear_out(&self, within: Duration) -> bool {
        let Some(mut tail) = lock(&self.tail).take() else { return self.process.closed().is_some() };
        let is_over = time::timeout(within, tail.drain(self)).await.is_ok();
        *lock(&self.tail) = Some(tail);
        // What it left behind may hold its streams for longer.
        if let Some(exit) = self.process.exit().filter(|_| !is_over) {
            self.tell_end(Ended::Exited(Some(Box::new(exit))));
        }
        is_over
    }

    /// Ends it when its transport is gone: closes its input, waits, terminates, and waits; bounded in time.
    pub async fn end(&self) {
        let tail = lock(&self.tail).take();
        let over = async {
            match tail {
                Some(mut tail) => tail.drain(self).await,
                None => drop(self.process.wait().await),
            }
        };
        self.end_when(true, over).await;
    }

    /// Says how its stream ended; the first word counts.
    pub(super) fn tell_end(&self, ended: Ended) {
        self.ended.send_if_modified(|told| told.is_none() && told.replace(ended).is_none());
    }

    /// A line of its standard error.
    fn hear(&self, line: &[u8]) {
        tracing::info!(server = self.name, line = %String::from_utf8_lossy(line), "stderr");
        self.log.add(line);
    }

    /// Ends it; `over` is ready once it has closed.
    pub(super) async fn end_when(&self, is_gentle: bool, over: impl Future<Output = ()>) {
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
    pub(super) async fn forget(&self) {
        if self.process.closed().is_some() {
            // A server that cannot, or that is gone, keeps it a little longer.
            time::timeout(GONE_WITHIN, self.process.forget()).await.ok();
        }
    }

    pub(super) fn skip(&self, line: &[u8], why: &str) {
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
    pub(super) async fn send(&self, turn: Turn, message: &TxJsonRpcMessage<RoleClient>) -> io::Result<()> {
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

impl Tail {
    pub(super) fn new(process: &Process) -> Self {
        Self { events: process.events(), err: Lines::new(STDERR_LINE_BYTES) }
    }

    /// Takes a piece of standard error.
    pub(super) fn take(&mut self, child: &Child, bytes: &[u8]) -> Result<(), TooLong> {
        let pushed = self.err.push(bytes);
        while let Some(line) = self.err.next() {
            child.hear(&line);
        }
        pushed
    }

    /// No more of it comes.
    pub(super) fn finish(&mut self, child: &Child) {
        if let Some(line) = self.err.finish() {
            child.hear(&line);
        }
    }

    /// Reads to the end, and keeps only what is logged. Cancel safe.
    pub(super) async fn drain(&mut self, child: &Child) {
        let ended = loop {
            match self.events.next().await {
                // It is being ended: what is too long is not heard, and that is all.
                Some(Event::Output { stream: wire::Stream::Stderr, bytes, .. }) => {
                    self.take(child, &bytes).unwrap_or(())
                }
                Some(Event::Output { .. } | Event::Gap { .. } | Event::Exited { .. }) => {}
                Some(Event::Closed { .. }) => break Ended::Exited(child.process.exit().map(Box::new)),
                Some(Event::Failed(error)) => break Ended::Lost(error),
                None => break Ended::Closed,
            }
        };
        self.finish(child);
        child.tell_end(ended);
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("name", &self.name).field("process", &self.process).finish_non_exhaustive()
    }
}

/// The place of a message in the order of sends.
pub(super) struct Turn {
    pub(super) before: Option<oneshot::Receiver<()>>,
    pub(super) after: oneshot::Sender<()>,
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

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, what)
}
