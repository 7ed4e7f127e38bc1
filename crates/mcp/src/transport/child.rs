//! The process of a server: its stderr, how it ended, how to end it, and the queue of messages to it. `transport` reads the messages from
//! it.

use std::{fmt, io, pin::pin, sync::Arc, task::Poll, time::Duration};

use exec_server_client::{Error, Event, Events, Process, protocol::process as wire};
use parking_lot::Mutex;
use rmcp::{RoleClient, service::TxJsonRpcMessage};
use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::JoinSet,
    time,
};

use super::{
    CLOSE_GRACE, GONE_WITHIN, STDERR_LINE_BYTES, StderrLog, StreamEnd,
    lines::{LineSplitter, LineTooLong},
};

/// Budget for messages that are being written, in KiB. It is smaller than the stdin queue of a process, so there is always room to enqueue.
const ROOM_KIB: u32 = 4 << 10;

/// The minimum charge per message, so that at most 256 messages are in the stdin queue, which has as many slots.
const MESSAGE_KIB: u32 = ROOM_KIB / 256;

/// How many characters are quoted of a line that is not a message.
const NOISE_CHARS: usize = 200;

/// The process of a server, for everything except messages. Can outlive the transport. The process is terminated when both are dropped.
pub struct ServerProcess {
    pub(super) name: String,
    pub(super) process: Process,
    log: Arc<StderrLog>,
    /// How many lines the log had before this process.
    log_before: u64,
    skipped_lines: Mutex<SkippedLines>,
    ended: watch::Sender<Option<StreamEnd>>,
    /// The budget for messages, in KiB.
    room: Semaphore,
    /// The unread output of a dropped transport.
    pub(super) output_tail: Mutex<Option<OutputTail>>,
    /// Tasks that terminate leftover processes after an exit.
    pub(super) tasks: Mutex<JoinSet<()>>,
}

/// The output of a process that was not read yet, and the current line of stderr.
pub(super) struct OutputTail {
    pub(super) events: Events,
    err: LineSplitter,
}

#[derive(Debug, Default)]
struct SkippedLines {
    count: u64,
    /// The first skipped line, with the reason.
    first: Option<String>,
}

impl ServerProcess {
    pub(super) fn new(name: String, process: Process, log: Arc<StderrLog>) -> Self {
        Self {
            name,
            process,
            log_before: log.total(),
            log,
            skipped_lines: Mutex::default(),
            ended: watch::Sender::new(None),
            room: Semaphore::new(ROOM_KIB as usize),
            output_tail: Mutex::new(None),
            tasks: Mutex::default(),
        }
    }

    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The lines that the server wrote to stderr.
    #[must_use]
    pub fn log(&self) -> &StderrLog {
        &self.log
    }

    /// How many lines on stdout were not messages.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped_lines.lock().count
    }

    /// Why the stream of messages ended, once it has. All messages before the end have been received by then, unless the transport was closed
    /// or dropped.
    #[must_use]
    pub fn ended(&self) -> watch::Receiver<Option<StreamEnd>> {
        self.ended.subscribe()
    }

    /// Recent output for an error message: lines on stdout that were not messages, and the last lines on stderr.
    #[must_use]
    pub fn recent_output(&self) -> String {
        let skipped_lines = self.skipped_lines.lock();
        let noise = skipped_lines.first.as_ref().map(|first| {
            let count = skipped_lines.count;
            format!("lines on its stdout that are not messages (logs belong on stderr): {count}, the first: {first}")
        });
        drop(skipped_lines);
        let quote = Some(self.log.quote(self.log_before)).filter(|quote| !quote.is_empty());
        noise.into_iter().chain(quote).collect::<Vec<_>>().join("\n")
    }

    /// Reads the remaining output for at most this time, after the transport was dropped. Returns true if the process has closed.
    ///
    /// Needed when a server exits: sending a message to it can fail before the exit is reported, and then the MCP client drops the
    /// transport.
    pub async fn drain_output(&self, within: Duration) -> bool {
        let Some(mut output_tail) = self.output_tail.lock().take() else { return self.process.closed().is_some() };
        let is_closed = time::timeout(within, output_tail.drain(self)).await.is_ok();
        *self.output_tail.lock() = Some(output_tail);
        // Leftover processes may hold the streams open for longer. Report the exit without waiting for them.
        if let Some(exit) = self.process.exit().filter(|_| !is_closed) {
            self.set_end(StreamEnd::Exited(Some(Box::new(exit))));
        }
        is_closed
    }

    /// Ends the process after the transport was dropped: closes its stdin, waits, terminates it, and waits. Takes a bounded time.
    pub async fn end(&self) {
        let output_tail = self.output_tail.lock().take();
        let closed = async {
            match output_tail {
                Some(mut output_tail) => output_tail.drain(self).await,
                None => drop(self.process.wait().await),
            }
        };
        self.end_when(true, closed).await;
    }

    /// Records why the stream ended. Only the first call has an effect.
    pub(super) fn set_end(&self, ended: StreamEnd) {
        // `replace` returns the old value, here `None`, so the closure returns true.
        self.ended.send_if_modified(|known| known.is_none() && known.replace(ended).is_none());
    }

    /// Logs a line of stderr.
    fn log_line(&self, line: &[u8]) {
        tracing::info!(server = self.name, line = %String::from_utf8_lossy(line), "stderr");
        self.log.add(line);
    }

    /// Ends the process. With `closes_stdin_first`, closes its stdin, waits, and terminates it only if it has not
    /// closed by then. Otherwise terminates it at once. `closed` must resolve when the process has closed.
    pub(super) async fn end_when(&self, closes_stdin_first: bool, closed: impl Future<Output = ()>) {
        let mut closed = pin!(closed);
        if closes_stdin_first {
            // Resolves only if stdin cannot be closed. Then waiting for an exit is useless.
            let eof = async {
                if self.process.close_stdin().await.is_ok() {
                    std::future::pending::<()>().await;
                }
            };
            let ending = async {
                tokio::select! {
                    biased;
                    () = &mut closed => true,
                    () = eof => false,
                }
            };
            if time::timeout(CLOSE_GRACE, ending).await.unwrap_or(false) {
                return self.forget().await;
            }
        }
        let within = CLOSE_GRACE + GONE_WITHIN;
        if time::timeout(within, async { tokio::join!(self.terminate(), closed) }).await.is_err() {
            tracing::warn!(server = self.name, "the server has not ended in time; the executor continues to end it");
        } else {
            self.forget().await;
        }
    }

    /// Terminates the process and everything that it started.
    async fn terminate(&self) {
        let result = match self.process.terminate(Some(CLOSE_GRACE)).await {
            // This executor does not support a grace period.
            Err(Error::Protocol(_)) => self.process.terminate(None).await,
            other => other,
        };
        if let Err(error) = result {
            tracing::debug!(server = self.name, %error, "could not terminate the process");
        }
    }

    /// Tells the executor to discard the output of the closed process.
    pub(super) async fn forget(&self) {
        if self.process.closed().is_some() {
            // Ignore a timeout: an executor that does not answer keeps the output until the session ends, at the latest.
            time::timeout(GONE_WITHIN, self.process.forget()).await.ok();
        }
    }

    /// Counts and logs a line on stdout that is not a message. Only the first one is logged as a warning.
    pub(super) fn skip(&self, line: &[u8], why: &str) {
        // A character has at most four bytes.
        let text = String::from_utf8_lossy(&line[..line.len().min(4 * NOISE_CHARS)]);
        let shown: String =
            text.chars().take(NOISE_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        let mut skipped_lines = self.skipped_lines.lock();
        skipped_lines.count += 1;
        if skipped_lines.first.is_none() {
            skipped_lines.first = Some(format!("`{shown}` ({why})"));
            tracing::warn!(server = self.name, line = shown, why, "skipped a line on stdout that is not a message");
        } else {
            tracing::debug!(server = self.name, line = shown, why, "skipped a line on stdout that is not a message");
        }
    }

    /// Sends one message. Waits for `before`, which resolves when the previous message is enqueued, and resolves `after` when this one is.
    pub(super) async fn send(
        &self,
        before: Option<oneshot::Receiver<()>>,
        after: oneshot::Sender<()>,
        message: &TxJsonRpcMessage<RoleClient>,
    ) -> io::Result<()> {
        let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
        line.push(b'\n');
        if let Some(before) = before {
            // An error means that the earlier send was dropped.
            before.await.ok();
        }
        // A message that is larger than the budget takes all of the budget. Then no other message is enqueued until
        // this one is written.
        let units = u32::try_from(line.len() >> 10).unwrap_or(u32::MAX).clamp(MESSAGE_KIB, ROOM_KIB);
        let room = self.room.acquire_many(units).await.map_err(io::Error::other)?;
        let mut write = pin!(self.process.write(line));
        // The first poll enqueues the write, because there is room. So the next message may be enqueued before this write completes.
        let first = std::future::poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await;
        // Fails only if no later send is waiting.
        after.send(()).ok();
        let written = match first {
            Poll::Ready(written) => written,
            Poll::Pending => write.await,
        };
        drop(room);
        match written? {
            wire::WriteStatus::Accepted => Ok(()),
            wire::WriteStatus::StdinClosed => Err(broken("its standard input is closed")),
            wire::WriteStatus::UnknownProcess => Err(broken("its process no longer exists")),
            wire::WriteStatus::Starting => Err(io::Error::new(io::ErrorKind::WouldBlock, "it is still starting")),
        }
    }
}

impl OutputTail {
    pub(super) fn new(process: &Process) -> Self {
        Self { events: process.events(), err: LineSplitter::new(STDERR_LINE_BYTES) }
    }

    /// Adds a piece of stderr and logs its complete lines.
    pub(super) fn push(&mut self, child: &ServerProcess, bytes: &[u8]) -> Result<(), LineTooLong> {
        let pushed = self.err.push(bytes);
        while let Some(line) = self.err.next() {
            child.log_line(&line);
        }
        pushed
    }

    /// Logs the last line if it has no line feed.
    pub(super) fn finish(&mut self, child: &ServerProcess) {
        if let Some(line) = self.err.finish() {
            child.log_line(&line);
        }
    }

    /// Reads to the end. Only stderr is logged, everything else is discarded. Cancel safe.
    pub(super) async fn drain(&mut self, child: &ServerProcess) {
        let ended = loop {
            match self.events.next().await {
                // The process is ending, so an overlong line is only dropped.
                Some(Event::Output { stream: wire::Stream::Stderr, bytes, .. }) => {
                    self.push(child, &bytes).unwrap_or(())
                }
                Some(Event::Output { .. } | Event::Gap { .. } | Event::Exited { .. }) => {}
                Some(Event::Closed { .. }) => break StreamEnd::Exited(child.process.exit().map(Box::new)),
                Some(Event::Failed(error)) => break StreamEnd::Lost(error),
                None => break StreamEnd::Closed,
            }
        };
        self.finish(child);
        child.set_end(ended);
    }
}

impl fmt::Debug for ServerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerProcess")
            .field("name", &self.name)
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, what)
}
