//! Sends stdin to a process, in order and exactly once, over as many links as it takes.
//!
//! This file contains the queue of writes. A task in `serving` sends them and settles the first one when its answer arrives. The task
//! exists only while the queue is not empty.
//!
//! Failure paths: a lost session fails the whole queue. If the server refused a write and accepted a later one, the stream has a hole. All
//! later writes then fail for good.

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

/// Limits of the queue: enough to fill a link with a latency of a fifth of a second at 50 MB/s.
const WAITING_BYTES: usize = 8 << 20;
const WAITING: usize = 256;

/// The result of a write.
pub(crate) type Written = Result<wire::WriteStatus, Error>;
/// The result of a request to close stdin.
pub(crate) type Closed = Result<wire::CloseStdinStatus, Error>;

/// The stdin queue of one process. It does not hold the session, so that a write that never ends does not keep the connection open.
#[derive(Debug)]
pub(crate) struct Input {
    key: Key,
    generation: Generation,
    /// Whether the server remembers write ids, so that a write may be sent twice.
    keeps_write_ids: bool,
    /// Prefix of the write ids, which keeps them distinct from those of other clients.
    nonce: String,
    state: Mutex<State>,
    /// Notified when an item was added to the queue.
    joined: Notify,
}

#[derive(Debug, Default)]
struct State {
    line: VecDeque<Item>,
    bytes: usize,
    next_id: u64,
    is_served: bool,
    /// Why nothing more can be written.
    broken: Option<Error>,
    /// Callers that wait for room in the queue.
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

    /// Queues a write as soon as there is room. The returned flag is true if the caller must start the serving task.
    pub(super) fn poll_write(&self, cx: &Context<'_>, bytes: &Bytes) -> Poll<(oneshot::Receiver<Written>, bool)> {
        let mut state = self.lock();
        // An empty queue accepts a write of any size.
        let is_full =
            !state.line.is_empty() && (state.bytes + bytes.len() > WAITING_BYTES || state.line.len() >= WAITING);
        if is_full {
            // A caller may poll repeatedly while it waits: register its waker only once.
            if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.wakers.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let (reply, written) = oneshot::channel();
        if let Some(error) = &state.broken {
            reply.send(Err(error.clone())).ok(); // Cannot fail: `written` is held here.
            return Poll::Ready((written, false));
        }
        let id = state.next_id;
        state.next_id += 1;
        state.bytes += bytes.len();
        state.line.push_back(Item { what: What::Write { id, bytes: bytes.clone() }, reply: Reply::Write(reply) });
        Poll::Ready((written, self.wake_or_serve(state)))
    }

    /// Queues a request to close stdin. The returned flag is true if the caller must start the serving task.
    pub(super) fn close(&self) -> (oneshot::Receiver<Closed>, bool) {
        let mut state = self.lock();
        let (reply, closed) = oneshot::channel();
        if let Some(error) = &state.broken {
            reply.send(Err(error.clone())).ok(); // Cannot fail: `closed` is held here.
            return (closed, false);
        }
        state.line.push_back(Item { what: What::Close, reply: Reply::Close(reply) });
        (closed, self.wake_or_serve(state))
    }

    /// Wakes the serving task. Returns true if none is running, so that the caller must start it.
    fn wake_or_serve(&self, mut state: MutexGuard<'_, State>) -> bool {
        let must_serve = !std::mem::replace(&mut state.is_served, true);
        drop(state);
        self.joined.notify_one();
        must_serve
    }

    /// The item at index `at`, if there is one.
    fn peek(&self, at: usize) -> Option<What> {
        self.lock().line.get(at).map(|item| item.what.clone())
    }

    /// Removes the first item and reports its outcome to the caller.
    fn settle(&self, outcome: Result<Outcome, Error>) {
        let mut state = self.lock();
        let Some(item) = state.line.pop_front() else { return };
        state.bytes -= item.what.len();
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        // Errors are ignored: the caller may have stopped waiting.
        match (item.reply, outcome) {
            (Reply::Write(reply), Ok(Outcome::Write(status))) => reply.send(Ok(status)).ok().unwrap_or(()),
            (Reply::Write(reply), Err(error)) => reply.send(Err(error)).ok().unwrap_or(()),
            (Reply::Close(reply), Ok(Outcome::Close(status))) => reply.send(Ok(status)).ok().unwrap_or(()),
            (Reply::Close(reply), Err(error)) => reply.send(Err(error)).ok().unwrap_or(()),
            // Unreachable: `outcome` decodes an answer by the type of its item.
            (Reply::Write(_), Ok(Outcome::Close(_))) | (Reply::Close(_), Ok(Outcome::Write(_))) => {}
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Fails the whole queue, and every later write, because an earlier write was refused.
    fn break_off(&self, refused: &Error) {
        let error = Error::InputBroken { reason: refused.to_string() };
        // Set this first, so that no further item is queued.
        self.lock().broken = Some(error.clone());
        while self.peek(0).is_some() {
            self.settle(Err(error.clone()));
        }
    }

    /// Whether the task may end because the queue is empty. The next caller then starts another task.
    fn is_done(&self) -> bool {
        let mut state = self.lock();
        if state.line.is_empty() {
            state.is_served = false;
        }
        !state.is_served
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Poisoning is harmless: no code under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server's answer to an item.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Write(wire::WriteStatus),
    Close(wire::CloseStdinStatus),
}

impl Outcome {
    /// Whether the item took effect on the stream.
    fn is_taken(self) -> bool {
        matches!(self, Self::Write(wire::WriteStatus::Accepted) | Self::Close(wire::CloseStdinStatus::Accepted))
    }
}
