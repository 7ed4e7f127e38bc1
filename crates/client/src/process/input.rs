//! Standard input of a process: in order and exactly once, through as many links as it takes.
//!
//! Writes wait in one line, which is here. A task sends them and settles the first as its answer comes; it is in `serving`,
//! and lives only while something waits.
//!
//! Failure paths: a lost session fails the whole line. A line is broken off for good where a write did not go in and one
//! behind it did: whoever went on would write to a stream with a hole.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use exec_server_protocol::process as wire;
use tokio::sync::{Notify, oneshot};

use crate::{
    error::Error,
    session::{Generation, Key},
};

mod serving;

pub(super) use serving::serve;

/// Bytes and writes that may wait: enough to fill a link that is a fifth of a second away at 50 MB/s.
const WAITING_BYTES: usize = 8 << 20;
const WAITING: usize = 256;

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
    /// Why nothing can be written any more.
    broken: Option<Error>,
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

impl What {
    fn len(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Close => 0,
        }
    }
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
        if let Some(error) = &state.broken {
            reply.send(Err(error.clone())).ok(); // The other end is held here.
            return Poll::Ready((written, false));
        }
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
        if let Some(error) = &state.broken {
            reply.send(Err(error.clone())).ok(); // The other end is held here.
            return (closed, false);
        }
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
        state.bytes -= item.what.len();
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

    /// Fails the whole line because a write before it was refused, now and from now on.
    fn break_off(&self, refused: &Error) {
        let error = Error::InputBroken { reason: refused.to_string() };
        // First of all, so that nobody joins any more.
        self.lock().broken = Some(error.clone());
        while self.peek(0).is_some() {
            self.settle(Err(error.clone()));
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

/// What the server did with an item.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Write(wire::WriteStatus),
    Close(wire::CloseStdinStatus),
}

impl Outcome {
    /// Whether it had its effect on the stream.
    fn is_taken(self) -> bool {
        matches!(self, Self::Write(wire::WriteStatus::Accepted) | Self::Close(wire::CloseStdinStatus::Accepted))
    }
}
