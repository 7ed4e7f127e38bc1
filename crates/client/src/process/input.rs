//! Standard input of a process: in order and exactly once, through as many links as it takes.
//!
//! Writes wait in one line. A task sends them, several at a time, and settles the first as its answer comes. When the link
//! is cut, everything that was not settled is sent again in the same order under the same ids: the server knows what it had.
//! The task lives only while something waits.
//!
//! Failure paths: a server that ignores ids cannot be asked twice, so what was under way there ends with an unknown outcome;
//! a lost session fails the whole line.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use exec_server_protocol::{base64, command, process as wire};
use exec_server_rpc::client::{CallError, Sent};
use futures_util::{StreamExt as _, stream::FuturesOrdered};
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot};

use crate::{
    error::Error,
    link::Link,
    links::Links,
    requests::{self, Method},
    session::{Generation, Key},
};

/// Bytes and writes that may wait: enough to fill a link that is a fifth of a second away at 50 MB/s.
const WAITING_BYTES: usize = 8 << 20;
const WAITING: usize = 256;

/// Writes on their way at once. The server holds what a process does not read, so this bounds both.
const UNDER_WAY: usize = 16;

/// What became of a write.
pub(crate) type Written = Result<wire::WriteStatus, Error>;
/// What became of a request to close.
pub(crate) type Closed = Result<wire::CloseStdinStatus, Error>;

/// The line of one process. It holds no session, so that a write which never ends keeps no connection.
#[derive(Debug)]
pub(crate) struct Input {
    key: Key,
    generation: Generation,
    /// Whether the server remembers write ids, so that a write may be sent twice.
    keeps_write_ids: bool,
    /// Makes the ids of our writes our own.
    nonce: String,
    state: Mutex<State>,
    /// Something joined the line.
    joined: Notify,
}

#[derive(Debug, Default)]
struct State {
    line: VecDeque<Item>,
    bytes: usize,
    next_id: u64,
    is_served: bool,
    /// Callers that wait for room.
    wakers: Vec<Waker>,
}

#[derive(Debug)]
struct Item {
    what: What,
    reply: Reply,
}

#[derive(Debug, Clone)]
enum What {
    Write { id: u64, bytes: Bytes },
    Close,
}

#[derive(Debug)]
enum Reply {
    Write(oneshot::Sender<Written>),
    Close(oneshot::Sender<Closed>),
}

impl Input {
    /// An empty line.
    pub(super) fn new(key: Key, generation: Generation, keeps_write_ids: bool) -> Self {
        Self {
            key,
            generation,
            keeps_write_ids,
            nonce: crate::random_word(),
            state: Mutex::default(),
            joined: Notify::new(),
        }
    }

    /// Joins the line as soon as there is room.
    pub(super) fn poll_write(&self, cx: &Context<'_>, bytes: &Bytes) -> Poll<(oneshot::Receiver<Written>, bool)> {
        let mut state = self.lock();
        // One write is always let in, whatever its size.
        let is_full =
            !state.line.is_empty() && (state.bytes + bytes.len() > WAITING_BYTES || state.line.len() >= WAITING);
        if is_full {
            // A caller may look again and again while it waits.
            if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.wakers.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let (reply, written) = oneshot::channel();
        let id = state.next_id;
        state.next_id += 1;
        state.bytes += bytes.len();
        state.line.push_back(Item { what: What::Write { id, bytes: bytes.clone() }, reply: Reply::Write(reply) });
        Poll::Ready((written, self.wake_or_serve(state)))
    }

    /// Joins the line with a request to close.
    pub(super) fn close(&self) -> (oneshot::Receiver<Closed>, bool) {
        let mut state = self.lock();
        let (reply, closed) = oneshot::channel();
        state.line.push_back(Item { what: What::Close, reply: Reply::Close(reply) });
        (closed, self.wake_or_serve(state))
    }

    /// True if the caller must start the task.
    fn wake_or_serve(&self, mut state: MutexGuard<'_, State>) -> bool {
        let must_serve = !std::mem::replace(&mut state.is_served, true);
        drop(state);
        self.joined.notify_one();
        must_serve
    }

    /// The item at `at`, if there is one.
    fn peek(&self, at: usize) -> Option<What> {
        self.lock().line.get(at).map(|item| item.what.clone())
    }

    /// Settles the first item.
    fn settle(&self, outcome: Result<Outcome, Error>) {
        let mut state = self.lock();
        let Some(item) = state.line.pop_front() else { return };
        if let What::Write { bytes, .. } = &item.what {
            state.bytes -= bytes.len();
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        // Whoever asked may have stopped waiting.
        match (item.reply, outcome) {
            (Reply::Write(reply), Ok(Outcome::Write(status))) => reply.send(Ok(status)).ok().unwrap_or(()),
            (Reply::Write(reply), Err(error)) => reply.send(Err(error)).ok().unwrap_or(()),
            (Reply::Close(reply), Ok(Outcome::Close(status))) => reply.send(Ok(status)).ok().unwrap_or(()),
            (Reply::Close(reply), Err(error)) => reply.send(Err(error)).ok().unwrap_or(()),
            // An answer has the shape of its question.
            (Reply::Write(_), Ok(Outcome::Close(_))) | (Reply::Close(_), Ok(Outcome::Write(_))) => {}
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Whether the task may end: nobody waits, and whoever joins next starts another.
    fn is_done(&self) -> bool {
        let mut state = self.lock();
        if state.line.is_empty() {
            state.is_served = false;
        }
        !state.is_served
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy)]
enum Outcome {
    Write(wire::WriteStatus),
    Close(wire::CloseStdinStatus),
}

/// Serves the line until it is empty.
pub(super) async fn serve(input: Arc<Input>, links: Links) {
    let mut after = 0;
    let mut is_repeated = false;
    while !input.is_done() {
        let link = match links.after(after).await {
            Ok(link) => link,
            Err(error) => {
                input.settle(Err(error));
                continue;
            }
        };
        after = link.epoch;
        // Once the line was left empty it is another task's: to ask again could find what that one serves.
        if serve_on(&input, &link, is_repeated).await == Served::All {
            return;
        }
        is_repeated = true;
    }
}

/// How far the line was served on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    /// To its end; whoever joins next starts another task.
    All,
    /// As far as the link lasted.
    Part,
}

/// Serves the line on one link until it is empty or the link is gone.
async fn serve_on(input: &Input, link: &Link, mut is_repeated: bool) -> Served {
    let mut answers = FuturesOrdered::new();
    let mut is_gone = false;
    loop {
        while !is_gone
            && answers.len() < UNDER_WAY
            && let Some(what) = input.peek(answers.len())
        {
            match send(input, link, &what).await {
                Ok(sent) => answers.push_back(sent.answer()),
                Err(error) => {
                    let error = link.error("process/write", error);
                    is_gone = matches!(error, Error::Disconnected { .. });
                    // Those before it may be answered yet.
                    if is_gone || !answers.is_empty() {
                        break;
                    }
                    input.settle(Err(error));
                }
            }
        }
        if answers.is_empty() {
            // Not by a look at the line: somebody may have joined it this moment.
            if is_gone {
                return Served::Part;
            }
            if input.is_done() {
                return Served::All;
            }
            continue;
        }
        // Both are cancel safe.
        let answer = tokio::select! {
            biased;
            answer = answers.next() => answer,
            () = input.joined.notified(), if answers.len() < UNDER_WAY => continue,
        };
        let Some(answer) = answer else { continue };
        match answer.map_err(|error| link.error("process/write", error)) {
            Ok(answer) => input.settle(outcome(input, &answer, is_repeated)),
            Err(Error::Disconnected { reason }) => {
                if !input.keeps_write_ids {
                    // It may have been written: to send it again could write it twice.
                    for _ in 0..=answers.len() {
                        let reason = reason.clone();
                        input.settle(Err(Error::UnknownOutcome { method: "process/write", reason }));
                    }
                }
                return Served::Part;
            }
            Err(error) => input.settle(Err(error)),
        }
        is_repeated &= !answers.is_empty();
    }
}

async fn send(input: &Input, link: &Link, what: &What) -> Result<Sent, CallError> {
    let key = &input.key;
    match what {
        What::Write { bytes, .. } if input.generation == Generation::V0 => {
            let chunk = base64::encode(bytes).into();
            let params = command::WriteParams { process_id: key.process_id.clone(), chunk };
            link.send(requests::CommandExecWrite::NAME, &params).await
        }
        What::Write { id, bytes } => {
            let write_id = format!("{}-{id}", input.nonce);
            if let Some(sent) = link.send_write(key, &write_id, bytes).await {
                return sent;
            }
            let params = wire::WriteParams {
                process_id: key.process_id.clone(),
                session_id: key.session_id.clone(),
                chunk: base64::encode(bytes).into(),
                write_id: Some(write_id),
            };
            link.send(requests::ProcessWrite::NAME, &params).await
        }
        What::Close => {
            let params = wire::ProcessParams { process_id: key.process_id.clone(), session_id: key.session_id.clone() };
            link.send(requests::ProcessCloseStdin::NAME, &params).await
        }
    }
}

fn outcome(input: &Input, answer: &RawValue, is_repeated: bool) -> Result<Outcome, Error> {
    let text = answer.get();
    let read = match input.peek(0) {
        Some(What::Write { .. }) if input.generation == Generation::V0 => {
            // Trouble is an error there, so an answer means yes.
            serde_json::from_str::<command::WriteResult>(text).map(|_| Outcome::Write(wire::WriteStatus::Accepted))
        }
        Some(What::Write { .. }) | None => {
            serde_json::from_str::<wire::WriteResult>(text).map(|result| Outcome::Write(result.status))
        }
        Some(What::Close) => serde_json::from_str::<wire::CloseStdinResult>(text).map(|result| {
            // Closed by ourselves, on the link before.
            let is_ours = is_repeated && result.status == wire::CloseStdinStatus::StdinClosed;
            Outcome::Close(if is_ours { wire::CloseStdinStatus::Accepted } else { result.status })
        }),
    };
    read.map_err(|error| Error::Decode { method: "process/write".to_owned(), reason: error.to_string() })
}
