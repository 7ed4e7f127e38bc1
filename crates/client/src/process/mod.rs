//! The handle to a process on the server: a log that outlives every connection, a queue for stdin, and calls.
//!
//! `log` stores events, `cursor` reads them, `stdin_queue` sends stdin, `recovery` fetches missed events, and `io` adapts the streams to
//! `AsyncRead` and `AsyncWrite`. This file contains the handle.

use std::{future::poll_fn, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_server_protocol::{
    ProcessId, SessionId, base64, capabilities::ServerCapabilities, failure::Kind, process as wire,
    sandbox::AppliedSandbox,
};
use tokio::sync::watch;

use crate::{
    Request as _,
    client::SessionHandle,
    compat::command,
    error::Error,
    requests,
    session::{ProcessKey, Session},
};

pub(crate) mod cursor;
pub(crate) mod event;
pub(crate) mod io;
pub(crate) mod log;
pub(crate) mod recovery;
pub(crate) mod start;
pub(crate) mod stdin_queue;

use event::{Exit, Totals};
use log::EventLog;
use stdin_queue::StdinQueue;

pub use cursor::Events;
pub use io::{Output, Stdin};

/// A handle to a process on a server. Clones refer to the same process. Dropping all of them does not end the process,
/// unless it was started with [`Start::terminate_on_drop`](crate::Start::terminate_on_drop).
///
/// While a handle exists, output is kept for its readers. If the events are not consumed, the process blocks once the
/// server's memory for its output is full, like a program that writes to a full pipe. [`wait`](Self::wait) consumes and
/// discards output.
#[derive(Clone)]
pub struct Process {
    shared: Arc<ProcessShared>,
}

/// State that all clones of a handle share.
pub(crate) struct ProcessShared {
    pub(crate) handle: Arc<SessionHandle>,
    pub(crate) key: ProcessKey,
    pub(crate) log: Arc<EventLog>,
    pub(crate) input: Arc<StdinQueue>,
    pub(crate) is_tty: bool,
    pub(crate) pid: Option<u32>,
    pub(crate) sandbox: Option<AppliedSandbox>,
    pub(crate) terminate_on_drop: bool,
}

/// Output and status of a process, as stored on the server; see [`Process::read`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadResult {
    /// The output, in order.
    pub chunks: Vec<Chunk>,
    /// The sequence number after the last one of this read. Pass `next_seq - 1` as `after` to continue.
    pub next_seq: u64,
    /// Whether the process has exited.
    pub exited: bool,
    /// The exit status, or 128 + n after signal n, or -1 if the status is lost. `None` if `exited` is false, or if the
    /// session is lost.
    pub exit_code: Option<i32>,
    /// Whether the process has exited and all of its output has been reported.
    pub closed: bool,
    /// If the server has lost the holder process, or the session is lost: a text that says so.
    pub failure: Option<String>,
    /// Whether the sandbox is the likely reason why the process failed. A hint, not a proof.
    pub sandbox_denied: bool,
    /// The requested output that the server no longer has.
    pub gap: Option<wire::Gap>,
    /// Why the process is blocked until its output is consumed; `None` if it is not blocked.
    pub blocked: Option<wire::Blocked>,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The sequence number.
    pub seq: u64,
    /// The stream to which the process wrote.
    pub stream: wire::Stream,
    /// The output itself.
    pub bytes: Bytes,
}

impl Process {
    pub(crate) fn new(shared: ProcessShared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// The name of the process, unique in its session.
    #[must_use]
    pub fn id(&self) -> &ProcessId {
        &self.shared.key.process_id
    }

    /// The session of the process; `None` on a server without sessions.
    #[must_use]
    pub fn session_id(&self) -> Option<SessionId> {
        self.shared.key.session_id.clone().or_else(|| self.shared.session().peer.session_id.clone())
    }

    /// The process id in the server's operating system, if the server reports it.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.shared.pid
    }

    /// The sandbox that the server applied when it started the process.
    ///
    /// `None` if the process has no sandbox, if an older server does not report it, if the handle was created by
    /// attaching, or if the connection broke before the reply to the start.
    #[must_use]
    pub fn sandbox(&self) -> Option<AppliedSandbox> {
        self.shared.sandbox
    }

    /// Whether the process runs on a terminal. False after an attach on an older server, which does not report it.
    #[must_use]
    pub fn is_tty(&self) -> bool {
        self.shared.is_tty
    }

    /// Whether the process has exited, as far as this client has received events.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        self.exit().is_some()
    }

    /// The exit status, once it is known.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.shared.log.exit()
    }

    /// The totals of the process's output, once the process has ended and all events have arrived.
    #[must_use]
    pub fn closed(&self) -> Option<Totals> {
        self.shared.log.closed()
    }

    /// Why no further events of the process can be received, if the handle has failed.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        self.shared.log.failed()
    }

    /// A receiver of the highest sequence number received. It changes with every new event, and when the handle fails.
    #[must_use]
    pub fn wake(&self) -> watch::Receiver<u64> {
        self.shared.log.wake()
    }

    /// A cursor over every event from the first one on, replayed and live.
    #[must_use]
    pub fn events(&self) -> Events {
        self.events_after(0)
    }

    /// A cursor over every event after sequence number `seq`.
    #[must_use]
    pub fn events_after(&self, seq: u64) -> Events {
        Events::new(Arc::clone(&self.shared), seq)
    }

    /// Writes to stdin. Returns when every byte is in the pipe or terminal of the process.
    ///
    /// Bytes arrive exactly once and in order, through reconnects and restarts of the server. Dropping the future does not cancel the
    /// write. If the server has no room for a write, the client sends it again later. If the server refused a write and accepted a later
    /// one, the refused write fails with the server's error and all further writes fail with [`Error::InputBroken`]. Some older servers
    /// ignore write ids (see [`compat`](crate::compat)): there, a write that a cut interrupts fails with [`Error::UnknownOutcome`].
    pub async fn write(&self, bytes: impl Into<Bytes>) -> Result<wire::WriteStatus, Error> {
        let bytes = bytes.into();
        let (written, must_start_sender) = poll_fn(|cx| self.shared.input.poll_write(cx, &bytes)).await;
        self.shared.start_sender(must_start_sender);
        written.await.unwrap_or(Err(Error::Disconnected { reason: None }))
    }

    /// Closes stdin after all earlier writes. On a terminal, sends the end-of-file character.
    pub async fn close_stdin(&self) -> Result<wire::CloseStdinStatus, Error> {
        self.shared.require(|capabilities| capabilities.close_stdin, "close stdin")?;
        let (closed, must_start_sender) = self.shared.input.close();
        self.shared.start_sender(must_start_sender);
        closed.await.unwrap_or(Err(Error::Disconnected { reason: None }))
    }

    /// Asks the server for output after sequence number `after`. Returns at most `max` bytes, and from a current server
    /// at most 8 MiB, but never less than one piece if there is one. Waits up to `wait` for new output.
    ///
    /// Consumes and acknowledges nothing. If the session is lost, this returns an empty result that reports the process as exited and
    /// closed, with the reason in `failure`. With a server that cannot read output back (see [`compat`](crate::compat)), this fails with
    /// `Error::Protocol`.
    pub async fn read(&self, after: u64, max: Option<u64>, wait: Duration) -> Result<ReadResult, Error> {
        self.shared.session().require_process_methods("read back output; follow the events instead")?;
        let params = wire::ReadParams { max_bytes: max, ..recovery::read_params(&self.shared.key, after, wait) };
        match self.shared.session().call::<requests::ProcessRead>(&params).await {
            Ok(read) => ReadResult::new(read),
            Err(error) => match self.shared.session().lost() {
                Some(lost) => Ok(ReadResult::lost(self.shared.log.wake().borrow().saturating_add(1), &lost)),
                None => Err(error),
            },
        }
    }

    /// Waits until the process has ended and all of its events have arrived.
    ///
    /// If there is no other reader, the output is discarded, so that the process cannot block.
    pub async fn wait(&self) -> Result<Exit, Error> {
        let _waiting = WaitGuard::new(&self.shared);
        let mut wake = self.shared.log.wake();
        loop {
            // Mark before the checks, so that `changed` also returns for an event that arrives after them.
            wake.mark_unchanged();
            if self.shared.log.closed().is_some() {
                return self.exit().ok_or_else(|| Error::Protocol("the process closed without an exit".to_owned()));
            }
            if let Some(error) = self.shared.log.failed() {
                return Err(error);
            }
            if wake.changed().await.is_err() {
                return Err(Error::Disconnected { reason: None });
            }
        }
    }

    /// Sends a signal to the process group. A current server accepts any POSIX signal name. An older one accepts only
    /// `interrupt`, or no signal (see [`compat`](crate::compat)).
    pub async fn signal(&self, name: &str) -> Result<(), Error> {
        self.shared.session().require_process_methods("send signals")?;
        let ProcessKey { process_id, session_id } = self.shared.key.clone();
        let params = wire::SignalParams { process_id, session_id, signal: name.to_owned() };
        self.shared.session().call::<requests::ProcessSignal>(&params).await.map(drop)
    }

    /// Sets the size of the process's terminal.
    pub async fn resize(&self, size: wire::Size) -> Result<(), Error> {
        self.shared.require(|capabilities| capabilities.resize, "resize a terminal")?;
        let ProcessKey { process_id, session_id } = self.shared.key.clone();
        let params = wire::ResizeParams { process_id, session_id, rows: size.rows, cols: size.cols };
        self.shared.session().call::<requests::ProcessResize>(&params).await.map(drop)
    }

    /// Ends the process. With `None`, kills it and everything that it started. With a grace period, sends SIGTERM to the process group,
    /// and kills as with `None` if the process is not closed after that period. Returns whether the process was running.
    pub async fn terminate(&self, grace: Option<Duration>) -> Result<bool, Error> {
        if grace.is_some() {
            self.shared.require(|capabilities| capabilities.grace, "terminate with a grace period")?;
        }
        terminate(self.shared.session(), &self.shared.key, grace).await
    }

    /// Removes a closed process and its log from the server. Its name can be used again at once.
    pub async fn forget(&self) -> Result<(), Error> {
        self.shared.require(|capabilities| capabilities.forget, "forget a process")?;
        let sent = self.shared.session().send::<requests::ProcessForget>(&self.shared.key.params()).await?;
        let is_repeated = sent.is_repeated;
        match sent.result::<requests::ProcessForget>() {
            // The process was forgotten over the previous link, whose answer was lost.
            Err(error) if is_repeated && error.server_kind() == Some(Kind::UnknownProcess) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The stdin of the process as an `AsyncWrite`. `shutdown` closes stdin.
    #[must_use]
    pub fn stdin(&self) -> Stdin {
        Stdin::new(Arc::clone(&self.shared))
    }

    /// The stdout of the process, or the output of its terminal, as an `AsyncRead` from the first byte on.
    #[must_use]
    pub fn stdout(&self) -> Output {
        Output::new(self.events(), &[wire::Stream::Stdout, wire::Stream::Pty])
    }

    /// The stderr of the process as an `AsyncRead` from the first byte on.
    ///
    /// Read it concurrently with [`stdout`](Self::stdout), not after it: the process blocks on output that one of the readers has not read.
    #[must_use]
    pub fn stderr(&self) -> Output {
        Output::new(self.events(), &[wire::Stream::Stderr])
    }
}

impl ProcessShared {
    pub(crate) fn session(&self) -> &Session {
        &self.handle.session
    }

    fn require(&self, has: impl Fn(&ServerCapabilities) -> bool, what: &str) -> Result<(), Error> {
        let session = self.session();
        if has(&session.peer.server.capabilities) { Ok(()) } else { Err(session.cannot(what)) }
    }

    fn start_sender(&self, must_start_sender: bool) {
        if must_start_sender {
            self.session().spawn(stdin_queue::run_sender(Arc::clone(&self.input), self.session().link_waiter()));
        }
    }
}

/// Terminates a process by its key.
pub(crate) async fn terminate(session: &Session, key: &ProcessKey, grace: Option<Duration>) -> Result<bool, Error> {
    if !session.generation().has_process_methods() {
        return command::terminate(session, key.process_id.clone()).await;
    }
    let ProcessKey { process_id, session_id } = key.clone();
    let params = wire::TerminateParams { process_id, session_id, grace_ms: grace.map(millis) };
    session.call::<requests::ProcessTerminate>(&params).await.map(|result| result.running)
}

impl Drop for ProcessShared {
    fn drop(&mut self) {
        self.session().routes.remove(&self.key, &self.log);
        // No reader is left. The failure stops tasks that fill the log or wait for room in it.
        self.log.fail(Error::Disconnected { reason: None });
        if self.terminate_on_drop && self.log.closed().is_none() {
            self.handle.terminate_in_background(self.key.clone());
        } else if self.key.session_id.is_some() {
            self.handle.release::<requests::ProcessUnsubscribe>(self.key.params());
        }
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("id", self.id()).field("pid", &self.pid()).finish_non_exhaustive()
    }
}

impl ReadResult {
    fn new(read: wire::ReadResult) -> Result<Self, Error> {
        let chunk = |chunk: wire::ReadChunk| match base64::decode_owned(chunk.chunk) {
            Ok(bytes) => Ok(Chunk { seq: chunk.seq, stream: chunk.stream, bytes: bytes.into() }),
            Err(_) => {
                let reason = "chunk is not base64".to_owned();
                Err(Error::Decode { method: requests::ProcessRead::NAME.to_owned(), reason })
            }
        };
        let end = read.end;
        Ok(Self {
            chunks: read.chunks.into_iter().map(chunk).collect::<Result<_, _>>()?,
            next_seq: end.next_seq,
            exited: end.exited,
            exit_code: end.exit_code,
            closed: end.closed,
            failure: end.failure,
            sandbox_denied: end.sandbox_denied,
            gap: end.gap,
            blocked: end.blocked,
        })
    }

    /// The result of a read of a lost session's process.
    fn lost(next_seq: u64, error: &Error) -> Self {
        Self { next_seq, exited: true, closed: true, failure: Some(error.to_string()), ..Self::default() }
    }
}

/// Guard for a caller that waits for the end and reads no events. While it exists, output counts as consumed if no cursor reads it, so
/// acknowledgements can become due.
struct WaitGuard<'a>(&'a ProcessShared);

impl<'a> WaitGuard<'a> {
    fn new(shared: &'a ProcessShared) -> Self {
        shared.log.begin_wait();
        shared.session().acks.notify_one();
        Self(shared)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.log.end_wait();
        self.0.session().acks.notify_one();
    }
}

/// Milliseconds for the wire, rounded up.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
