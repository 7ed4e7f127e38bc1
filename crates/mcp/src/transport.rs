//! The transport of an MCP client to a server on stdio. The process may run anywhere; the transport survives cut links and restarts of the
//! executor.
//!
//! ```text
//!  rmcp ── send ─────▶ one JSON and a line feed ──▶ Process::write        (in order, exactly once)
//!  rmcp ◀─ receive ─── decode ◀── lines ◀── stdout ◀─┐
//!                                 log   ◀── stderr ◀─┴── Events           (each once, gaps reported)
//! ```
//! The client library delivers each byte exactly once, so nothing is resent or deduplicated here.
//!
//! | event | effect |
//! |---|---|
//! | a line that is not a message | skipped and counted; the first one is quoted if the server fails |
//! | the process exits, and all its streams end (*closed*) | a last line without a line feed is delivered, then the stream of messages ends |
//! | the process exits, but leftover processes hold its streams open | after [`EXIT_GRACE`] the leftover processes are terminated |
//! | a line longer than [`STDOUT_LINE_BYTES`] or [`STDERR_LINE_BYTES`] | earlier lines are delivered, then the stream and the process end |
//! | lost output | the stream ends, because a message may be missing |
//! | the session is lost | the stream ends |
//!
//! An executor reports that a process has closed, but not the end of a single stream. So a server that closes its stdout and keeps running
//! looks like one that never answers, and callers need a timeout.
//!
//! Closing the transport closes the server's stdin, waits, and then terminates the server and everything that it started: SIGTERM, a grace
//! period, SIGKILL. If the transport and all [`ServerProcess`] handles are dropped without that, the process is terminated in the
//! background.

mod child;
mod decode;
mod lines;
mod log;

use std::{fmt, io, sync::Arc, time::Duration};

use exec_server_client::{Error, Event, Exit, Process, protocol::process as wire};
use futures_util::future::OptionFuture;
use rmcp::{
    RoleClient,
    model::ProgressToken,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde::Deserialize;
use tokio::{
    sync::oneshot,
    time::{self, Instant},
};

use self::{
    child::OutputTail,
    decode::{DecodedLine, ResultForm, decode},
    lines::{LineSplitter, LineTooLong},
};

pub use child::ServerProcess;
pub use log::StderrLog;

/// The longest line that a server may write to stdout: the largest message.
pub const STDOUT_LINE_BYTES: usize = 8 << 20; // 8 MiB

/// The longest line that a server may write to stderr.
pub const STDERR_LINE_BYTES: usize = 1 << 20; // 1 MiB

/// How long leftover processes may hold the streams after the server has exited. Long enough for the last output of a helper process.
pub const EXIT_GRACE: Duration = Duration::from_secs(2);

/// How long a server may take to exit after its stdin was closed, and again after SIGTERM.
pub const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// How long to wait for the report that a killed process has closed, and for the answer to `forget`. The executor may be unreachable.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The method with which a server asks the user.
pub(crate) const ELICIT: &str = "elicitation/create";

/// Why the stream of a server ended.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StreamEnd {
    /// The process ended.
    #[error("it {}", exit_text(.0.as_deref()))]
    Exited(Option<Box<Exit>>),
    /// The server wrote a line above the limit.
    #[error("it wrote a line of more than {} MiB on its {stream}", limit >> 20)]
    LineTooLong {
        /// `stdout` or `stderr`.
        stream: &'static str,
        /// In bytes.
        limit: usize,
    },
    /// Output was lost, and it may have contained a message.
    #[error("output was lost ({}), and a message may have been in it", byte_count(*bytes))]
    Gap {
        /// How many bytes, if known.
        bytes: Option<u64>,
    },
    /// The session with the executor is lost, so no more output can arrive.
    #[error("its output can no longer be read: {0}")]
    Lost(Error),
    /// The transport was closed on this side.
    #[error("it was ended by this side")]
    Closed,
}

/// A progress notification.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Identifies the request.
    #[serde(rename = "progressToken")]
    pub(crate) token: ProgressToken,
    pub progress: f64,
    /// The final value of `progress`, if known.
    pub total: Option<f64>,
    /// A description of the current step.
    pub message: Option<String>,
}

/// The transport. See the module documentation.
pub struct StdioTransport {
    child: Arc<ServerProcess>,
    /// `None` only after drop.
    output_tail: Option<OutputTail>,
    out: LineSplitter,
    /// A last line without a line feed, once the stream has ended.
    last_line: Option<Vec<u8>>,
    /// A result has arrived. The first one is that of the handshake.
    had_result: bool,
    /// Receives progress notifications. If set, results are delivered unparsed.
    on_progress: Option<Box<dyn Fn(Progress) + Send + Sync>>,
    /// Resolves when the previous `send` has enqueued its message or was dropped.
    turn: Option<oneshot::Receiver<()>>,
    /// Set when the process exits: leftover processes may still hold its streams open.
    leftovers: Option<LeftoverDeadline>,
    /// Why the stream ends. Set before the last lines have been delivered.
    ending: Option<StreamEnd>,
}

/// What to do about leftover processes that hold the streams, and when.
enum LeftoverDeadline {
    Terminate(Instant),
    /// They were terminated: stop waiting for the close.
    GiveUp(Instant),
}

impl StdioTransport {
    /// Creates a transport for a process that was just started. Lines on its stderr are added to the log.
    #[must_use]
    pub fn new(name: impl Into<String>, process: Process, log: Arc<StderrLog>) -> Self {
        let output_tail = OutputTail::new(&process);
        let child = ServerProcess::new(name.into(), process, log);
        Self {
            child: Arc::new(child),
            output_tail: Some(output_tail),
            out: LineSplitter::new(STDOUT_LINE_BYTES),
            last_line: None,
            had_result: false,
            on_progress: None,
            turn: None,
            leftovers: None,
            ending: None,
        }
    }

    /// Delivers results unparsed, and progress notifications to this function, in order and before any message that follows them.
    #[must_use]
    pub fn raw(mut self, on_progress: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Box::new(on_progress));
        self
    }

    /// The process, for everything except messages.
    #[must_use]
    pub fn child(&self) -> &Arc<ServerProcess> {
        &self.child
    }

    /// The next message; `None` when the stream has ended, see [`ServerProcess::ended`]. Cancel safe.
    async fn next(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            while let Some(line) = self.out.next().or_else(|| self.last_line.take()) {
                if let Some(message) = self.read(&line) {
                    return Some(message);
                }
            }
            if let Some(ended) = &self.ending {
                self.child.set_end(ended.clone());
                return None;
            }
            self.step().await;
        }
    }

    /// Waits for one event. Cancel safe: a received event is handled before the next wait.
    async fn step(&mut self) {
        let until = match self.leftovers {
            Some(LeftoverDeadline::Terminate(at) | LeftoverDeadline::GiveUp(at)) => Some(at),
            None => None,
        };
        // Check the deadline first. Otherwise a leftover process that writes continuously would always win over the timer.
        if until.is_some_and(|at| Instant::now() >= at) {
            return self.handle_overdue();
        }
        let Some(output_tail) = &mut self.output_tail else { return };
        tokio::select! {
            biased;
            event = output_tail.events.next() => self.handle(event),
            Some(()) = OptionFuture::from(until.map(time::sleep_until)) => self.handle_overdue(),
        }
    }

    fn handle(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Output { stream: wire::Stream::Stderr, bytes, .. }) => {
                let pushed = self.output_tail.as_mut().map(|tail| tail.push(&self.child, &bytes));
                if let Some(Err(LineTooLong)) = pushed {
                    self.ending = Some(StreamEnd::LineTooLong { stream: "stderr", limit: STDERR_LINE_BYTES });
                }
            }
            Some(Event::Output { stream: wire::Stream::Stdout | wire::Stream::Pty, bytes, .. }) => {
                if let Err(LineTooLong) = self.out.push(&bytes) {
                    self.ending = Some(StreamEnd::LineTooLong { stream: "stdout", limit: STDOUT_LINE_BYTES });
                }
            }
            Some(Event::Gap { bytes, .. }) => self.ending = Some(StreamEnd::Gap { bytes }),
            Some(Event::Exited { .. }) => {
                self.leftovers = Some(LeftoverDeadline::Terminate(Instant::now() + EXIT_GRACE))
            }
            Some(Event::Closed { .. }) => self.finish(StreamEnd::Exited(self.child.process.exit().map(Box::new))),
            Some(Event::Failed(error)) => self.finish(StreamEnd::Lost(error)),
            None => self.finish(StreamEnd::Lost(Error::Disconnected { reason: None })),
        }
    }

    /// The deadline has passed, and leftover processes still hold the streams.
    fn handle_overdue(&mut self) {
        if matches!(self.leftovers, Some(LeftoverDeadline::GiveUp(_))) {
            return self.finish(StreamEnd::Exited(self.child.process.exit().map(Box::new)));
        }
        tracing::info!(server = self.child.name, "the server has exited; terminating processes that it left running");
        self.leftovers = Some(LeftoverDeadline::GiveUp(Instant::now() + GONE_WITHIN));
        let process = self.child.process.clone();
        self.child.tasks.lock().spawn(async move {
            if let Err(error) = process.terminate(None).await {
                tracing::debug!(%error, "could not terminate the leftover processes");
            }
        });
    }

    /// Handles the end of all output.
    fn finish(&mut self, ended: StreamEnd) {
        if let Some(output_tail) = &mut self.output_tail {
            output_tail.finish(&self.child);
        }
        self.last_line = self.out.finish();
        self.ending = Some(ended);
    }

    /// Decodes a line. Returns `None` if it is not a message for rmcp.
    fn read(&mut self, line: &[u8]) -> Option<RxJsonRpcMessage<RoleClient>> {
        if line.is_empty() {
            return None;
        }
        let results = if self.on_progress.is_some() { ResultForm::Raw } else { ResultForm::Typed };
        match decode(line, results, !self.had_result) {
            DecodedLine::Message(message) => {
                self.had_result |= matches!(*message, RxJsonRpcMessage::<RoleClient>::Response(_));
                Some(*message)
            }
            DecodedLine::Progress(progress) => {
                if let Some(callback) = &self.on_progress {
                    callback(progress);
                }
                None
            }
            DecodedLine::Noise(why) => {
                self.child.skip(line, &why);
                None
            }
        }
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = io::Error;

    fn name() -> std::borrow::Cow<'static, str> {
        "stdio".into()
    }

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        // Messages are sent in the order of these calls, not in the order in which the futures are first polled.
        let (after, next) = oneshot::channel();
        let before = self.turn.replace(next);
        let child = Arc::clone(&self.child);
        async move { child.send(before, after, &item).await }
    }

    fn receive(&mut self) -> impl Future<Output = Option<RxJsonRpcMessage<RoleClient>>> + Send {
        self.next()
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        let child = Arc::clone(&self.child);
        match &self.ending {
            Some(StreamEnd::Exited(_) | StreamEnd::Lost(_)) if child.process.closed().is_some() => {
                child.forget().await;
            }
            // The session is lost, and its processes with it.
            Some(StreamEnd::Lost(_)) => {}
            ending => {
                // After an overlong line or lost output, terminate at once instead of closing stdin and waiting.
                let closes_stdin_first = !matches!(ending, Some(StreamEnd::LineTooLong { .. } | StreamEnd::Gap { .. }));
                child.set_end(ending.clone().unwrap_or(StreamEnd::Closed));
                if let Some(output_tail) = &mut self.output_tail {
                    child.end_when(closes_stdin_first, output_tail.drain(&child)).await;
                }
            }
        }
        child.set_end(StreamEnd::Closed);
        Ok(())
    }
}

impl Drop for StdioTransport {
    fn drop(&mut self) {
        // A remaining handle of the `ServerProcess` can still read the output.
        *self.child.output_tail.lock() = self.output_tail.take();
    }
}

impl fmt::Debug for StdioTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdioTransport")
            .field("child", &self.child)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

/// How a process ended, as the text after "it".
fn exit_text(exit: Option<&Exit>) -> String {
    match exit {
        Some(Exit { signal: Some(signal), .. }) => format!("was ended by {signal}"),
        Some(Exit { code, .. }) => format!("exited with code {code}"),
        None => "ended".to_owned(),
    }
}

fn byte_count(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "some bytes".to_owned(), |bytes| format!("{bytes} bytes"))
}
