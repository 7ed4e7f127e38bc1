//! A process on the server, as its user holds it: a log that outlives every connection, a line for its input, and calls.
//!
//! `log` keeps events, `cursor` reads them, `input` carries stdin, `recovery` gets back what was missed, `io` dresses it all
//! as byte streams. This file is the handle.

use std::{future::poll_fn, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_server_protocol::{ProcessId, SessionId, base64, command, process as wire, sandbox::AppliedSandbox};
use tokio::sync::watch;

use crate::{
    client::Handle,
    error::Error,
    requests,
    session::{Generation, Key, Session},
};

pub(crate) mod cursor;
pub(crate) mod event;
pub(crate) mod input;
pub(crate) mod io;
pub(crate) mod log;
pub(crate) mod recovery;
pub(crate) mod start;

use event::{Exit, Totals};
use log::Log;

pub use cursor::Events;
pub use io::{Output, Stdin};

/// A process on a server. Clones are the same process; dropping them all ends nothing.
///
/// While a handle is there its output is kept: a process whose events nobody takes is held back once the server's memory for
/// it is full, as a program is that writes into a full pipe. [`wait`](Self::wait) takes and discards.
#[derive(Clone)]
pub struct Process {
    shared: Arc<Shared>,
}

/// What all clones of a handle share.
pub(crate) struct Shared {
    handle: Arc<Handle>,
    pub(crate) key: Key,
    pub(crate) log: Arc<Log>,
    pub(crate) input: Arc<input::Input>,
    is_tty: bool,
    pid: Option<u32>,
    sandbox: Option<AppliedSandbox>,
    terminate_on_drop: bool,
}

/// What a server has of a process's output; see [`Process::read`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The output, in order.
    pub chunks: Vec<Chunk>,
    /// The number to go on with: `after` of the next read, plus one.
    pub next_seq: u64,
    /// Whether the process ended.
    pub exited: bool,
    /// Its exit status, or 128 + n after signal n.
    pub exit_code: Option<i32>,
    /// Whether it ended and all of its output is told.
    pub closed: bool,
    /// Why nothing more can be learned of it.
    pub failure: Option<String>,
    /// Whether a sandbox denied it something.
    pub sandbox_denied: bool,
    /// What was asked for and is gone.
    pub gap: Option<wire::Gap>,
    /// Why the process waits for its output to be taken.
    pub blocked: Option<wire::Blocked>,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its number.
    pub seq: u64,
    /// Where it was written.
    pub stream: wire::Stream,
    /// What was written.
    pub bytes: Bytes,
}

/// How a handle came to be.
pub(crate) struct Origin {
    pub(crate) key: Key,
    pub(crate) log: Arc<Log>,
    pub(crate) is_tty: bool,
    pub(crate) pid: Option<u32>,
    pub(crate) sandbox: Option<AppliedSandbox>,
    /// The server is of generation H, which keeps write ids.
    pub(crate) is_h: bool,
    pub(crate) terminate_on_drop: bool,
}

impl Process {
    pub(crate) fn new(handle: Arc<Handle>, origin: Origin) -> Self {
        let generation = handle.session().peer.server.generation;
        let keeps_write_ids = generation == Generation::Current || origin.is_h;
        let input = input::Input::new(origin.key.clone(), generation, keeps_write_ids);
        let shared = Shared {
            handle,
            key: origin.key,
            log: origin.log,
            input: Arc::new(input),
            is_tty: origin.is_tty,
            pid: origin.pid,
            sandbox: origin.sandbox,
            terminate_on_drop: origin.terminate_on_drop,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The name of the process.
    #[must_use]
    pub fn id(&self) -> &ProcessId {
        &self.shared.key.process_id
    }

    /// The session it belongs to; none on a V0 server.
    #[must_use]
    pub fn session_id(&self) -> Option<SessionId> {
        self.shared.key.session_id.clone().or_else(|| self.shared.session().peer.session_id.clone())
    }

    /// The process id of the far operating system, where the server tells it.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.shared.pid
    }

    /// The sandbox that the server applied when it started the process.
    ///
    /// `None` without a sandbox, for a process that was attached, and where the connection broke before the reply to the start.
    #[must_use]
    pub fn sandbox(&self) -> Option<AppliedSandbox> {
        self.shared.sandbox
    }

    /// Whether it runs on a terminal.
    #[must_use]
    pub fn is_tty(&self) -> bool {
        self.shared.is_tty
    }

    /// Whether it has ended, as far as was heard.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        self.exit().is_some()
    }

    /// How it ended.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.shared.log.exit()
    }

    /// What it wrote in all, once it has ended and everything was heard.
    #[must_use]
    pub fn closed(&self) -> Option<Totals> {
        self.shared.log.closed()
    }

    /// Why nothing more can be heard of it.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        self.shared.log.failed()
    }

    /// The highest number heard of, watched: changes whenever there is news.
    #[must_use]
    pub fn wake(&self) -> watch::Receiver<u64> {
        self.shared.log.wake()
    }

    /// Every event from the first on, replayed and live alike.
    #[must_use]
    pub fn events(&self) -> Events {
        self.events_after(0)
    }

    /// Every event after number `seq`.
    #[must_use]
    pub fn events_after(&self, seq: u64) -> Events {
        Events::new(Arc::clone(&self.shared), seq)
    }

    /// Writes to standard input; returns when the process's pipe or terminal has every byte.
    ///
    /// Exactly once and in order, through reconnects and restarts of the server. Dropping the future takes nothing back.
    /// What the server has no room for is sent again until it has. Where a write did not go in and one that was made behind
    /// it did, this one fails with the server's reason and every later one with [`Error::InputBroken`].
    /// On a reference server of generation S, which knows no write ids, a write that a cut interrupted ends with
    /// [`Error::UnknownOutcome`].
    pub async fn write(&self, bytes: impl Into<Bytes>) -> Result<wire::WriteStatus, Error> {
        let bytes = bytes.into();
        let (written, must_serve) = poll_fn(|cx| self.shared.input.poll_write(cx, &bytes)).await;
        self.shared.serve_input(must_serve);
        written.await.unwrap_or(Err(Error::Disconnected { reason: None }))
    }

    /// Closes standard input behind everything written before; on a terminal sends the end-of-file character.
    pub async fn close_stdin(&self) -> Result<wire::CloseStdinStatus, Error> {
        self.shared.require(|capabilities| capabilities.close_stdin, "close stdin")?;
        let (closed, must_serve) = self.shared.input.close();
        self.shared.serve_input(must_serve);
        closed.await.unwrap_or(Err(Error::Disconnected { reason: None }))
    }

    /// Asks the server for output after number `after`, at most `max` bytes (one piece at least), waiting up to `wait` for news.
    ///
    /// Takes nothing away and acknowledges nothing. Once the session is lost, the answer is made here: no output, closed,
    /// and why.
    pub async fn read(&self, after: u64, max: Option<u64>, wait: Duration) -> Result<Read, Error> {
        if self.shared.generation() == Generation::V0 {
            let text = "this server speaks exec-server.v0, which cannot read back: follow the events instead";
            return Err(Error::Protocol(text.to_owned()));
        }
        let params = wire::ReadParams {
            process_id: self.shared.key.process_id.clone(),
            session_id: self.shared.key.session_id.clone(),
            after_seq: Some(after),
            max_bytes: max,
            wait_ms: Some(millis(wait)),
            from_seq: None,
        };
        match self.shared.session().call::<requests::ProcessRead>(&params).await {
            Ok(read) => Read::new(read),
            Err(error) => match self.shared.session().lost() {
                Some(lost) => Ok(Read::lost(self.shared.log.wake().borrow().saturating_add(1), &lost)),
                None => Err(error),
            },
        }
    }

    /// Waits until the process has ended and everything it wrote was heard.
    ///
    /// Where nobody reads its events beside this, its output is discarded, so that it cannot block.
    pub async fn wait(&self) -> Result<Exit, Error> {
        let waiting = Waiting::new(&self.shared);
        let mut wake = self.shared.log.wake();
        loop {
            wake.mark_unchanged();
            if self.shared.log.closed().is_some() {
                drop(waiting);
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

    /// Sends a signal to the process group: any POSIX name on a current server, `interrupt` on an older one.
    pub async fn signal(&self, name: &str) -> Result<(), Error> {
        self.shared.refuse_v0("send signals")?;
        let params = wire::SignalParams {
            process_id: self.shared.key.process_id.clone(),
            session_id: self.shared.key.session_id.clone(),
            signal: name.to_owned(),
        };
        self.shared.session().call::<requests::ProcessSignal>(&params).await.map(drop)
    }

    /// Sets the size of its terminal.
    pub async fn resize(&self, size: wire::Size) -> Result<(), Error> {
        self.shared.require(|capabilities| capabilities.resize, "resize a terminal")?;
        let params = wire::ResizeParams {
            process_id: self.shared.key.process_id.clone(),
            session_id: self.shared.key.session_id.clone(),
            rows: size.rows,
            cols: size.cols,
        };
        self.shared.session().call::<requests::ProcessResize>(&params).await.map(drop)
    }

    /// Ends the process and everything it started: at once, or after SIGTERM and a grace period. True if it ran.
    pub async fn terminate(&self, grace: Option<Duration>) -> Result<bool, Error> {
        if grace.is_some() {
            self.shared.require(|capabilities| capabilities.grace, "terminate with a grace period")?;
        }
        self.shared.terminate(grace).await
    }

    /// Drops a closed process and its log from the server; its name is free at once.
    pub async fn forget(&self) -> Result<(), Error> {
        self.shared.require(|capabilities| capabilities.forget, "forget a process")?;
        let mut is_repeated = false;
        let params = self.shared.params();
        match self.shared.session().call_noting::<requests::ProcessForget>(&params, &mut is_repeated).await {
            // Forgotten on the link before.
            Err(error)
                if is_repeated && error.server_kind() == Some(exec_server_protocol::failure::Kind::UnknownProcess) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Its standard input as a writer; shutting it down closes the input.
    #[must_use]
    pub fn stdin(&self) -> Stdin {
        Stdin::new(Arc::clone(&self.shared))
    }

    /// Its standard output, or its terminal, as a reader from the first byte on.
    #[must_use]
    pub fn stdout(&self) -> Output {
        Output::new(self.events(), &[wire::Stream::Stdout, wire::Stream::Pty])
    }

    /// Its standard error as a reader from the first byte on.
    ///
    /// Read it beside [`stdout`](Self::stdout), not after: what one reader has not passed holds the process back.
    #[must_use]
    pub fn stderr(&self) -> Output {
        Output::new(self.events(), &[wire::Stream::Stderr])
    }
}

impl Shared {
    pub(crate) fn session(&self) -> &Session {
        self.handle.session()
    }

    pub(crate) fn generation(&self) -> Generation {
        self.session().peer.server.generation
    }

    pub(crate) fn params(&self) -> wire::ProcessParams {
        wire::ProcessParams { process_id: self.key.process_id.clone(), session_id: self.key.session_id.clone() }
    }

    fn require(
        &self,
        has: impl Fn(&exec_server_protocol::capabilities::ServerCapabilities) -> bool,
        what: &str,
    ) -> Result<(), Error> {
        if has(&self.session().peer.server.capabilities) {
            return Ok(());
        }
        Err(Error::Protocol(format!("the server at {} cannot {what}", self.session().address())))
    }

    fn refuse_v0(&self, what: &str) -> Result<(), Error> {
        match self.generation() {
            Generation::V0 => Err(Error::Protocol(format!(
                "the server at {} speaks exec-server.v0 and cannot {what}",
                self.session().address()
            ))),
            Generation::Reference | Generation::Current => Ok(()),
        }
    }

    fn serve_input(&self, must_serve: bool) {
        if must_serve {
            self.session().spawn(input::serve(Arc::clone(&self.input), self.session().links()));
        }
    }

    async fn terminate(&self, grace: Option<Duration>) -> Result<bool, Error> {
        terminate(self.session(), &self.key, grace).await
    }
}

/// Ends a process by name.
pub(crate) async fn terminate(session: &Session, key: &Key, grace: Option<Duration>) -> Result<bool, Error> {
    if session.peer.server.generation == Generation::V0 {
        let params = command::TerminateParams { process_id: key.process_id.clone() };
        return session.call::<requests::CommandExecTerminate>(&params).await.map(|result| result.running);
    }
    let params = wire::TerminateParams {
        process_id: key.process_id.clone(),
        session_id: key.session_id.clone(),
        grace_ms: grace.map(millis),
    };
    session.call::<requests::ProcessTerminate>(&params).await.map(|result| result.running)
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.session().routes.remove(&self.key, &self.log);
        // Nobody is left to read: whoever fills it, and waits for room, stops.
        self.log.fail(Error::Disconnected { reason: None });
        if self.terminate_on_drop && self.log.closed().is_none() {
            self.handle.clean_up(self.key.clone());
        } else if self.key.session_id.is_some() {
            self.handle.unsubscribe(self.params());
        }
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("id", self.id()).field("pid", &self.pid()).finish_non_exhaustive()
    }
}

impl Read {
    fn new(read: wire::ReadResult) -> Result<Self, Error> {
        let unreadable =
            |_| Error::Decode { method: "process/read".to_owned(), reason: "chunk is not base64".to_owned() };
        let chunk = |chunk: wire::ReadChunk| {
            let bytes = base64::decode(&chunk.chunk).map_err(unreadable)?.into();
            Ok(Chunk { seq: chunk.seq, stream: chunk.stream, bytes })
        };
        let end = read.end;
        Ok(Self {
            chunks: read.chunks.into_iter().map(chunk).collect::<Result<_, Error>>()?,
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

    /// The answer for a process of a lost session.
    fn lost(next_seq: u64, error: &Error) -> Self {
        Self {
            chunks: Vec::new(),
            next_seq,
            exited: true,
            exit_code: None,
            closed: true,
            failure: Some(error.to_string()),
            sandbox_denied: false,
            gap: None,
            blocked: None,
        }
    }
}

/// A caller that waits and reads nothing.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.log.begin_wait();
        shared.session().acks.notify_one();
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.log.end_wait();
        self.0.session().acks.notify_one();
    }
}

/// Milliseconds for the wire; a part of one counts as one.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
