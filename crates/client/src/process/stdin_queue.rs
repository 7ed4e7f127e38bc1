//! Sends stdin to a process, in order and exactly once, over as many links as it takes.
//!
//! This file contains the queue of writes. A task, the sender, sends them and completes the first one when its answer arrives. The task
//! exists only while the queue is not empty.
//!
//! Failure paths: a lost session fails the whole queue. If the server refused a write and accepted a later one, the input has a hole. All
//! further writes then fail.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use exec_server_protocol::process as wire;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use crate::{error::Error, session::ProcessKey};

mod sender;

pub(super) use sender::run_sender;

/// Limit for the bytes in the queue: a sixth of a second at 50 MB/s. A single write may be larger.
const WAITING_BYTES: usize = 8 << 20;

/// Limit for the writes in the queue.
const WAITING: usize = 256;

/// The result of a write.
pub(crate) type WriteReply = Result<wire::WriteStatus, Error>;
/// The result of a request to close stdin.
pub(crate) type CloseReply = Result<wire::CloseStdinStatus, Error>;

/// The stdin queue of one process. It has no reference to the session, so that a write that never ends does not keep the connection open.
#[derive(Debug)]
pub(crate) struct StdinQueue {
    key: ProcessKey,
    /// Whether writes are sent as `process/write`. Otherwise as `command/exec/write`.
    has_process_methods: bool,
    /// Whether the server remembers write ids, so that a write may be sent twice.
    keeps_write_ids: bool,
    /// Prefix of the write ids, which keeps them distinct from those of other clients.
    nonce: String,
    state: Mutex<StdinQueueState>,
    /// Notified when an item was added to the queue.
    item_added: Notify,
}

#[derive(Debug, Default)]
struct StdinQueueState {
    queue: VecDeque<QueuedItem>,
    /// Bytes of the queued writes.
    bytes: usize,
    next_id: u64,
    has_sender: bool,
    /// Why nothing more can be written.
    broken: Option<Error>,
    /// Callers that wait for room in the queue.
    wakers: Vec<Waker>,
}

#[derive(Debug)]
struct QueuedItem {
    item: StdinItem,
    reply: ItemReply,
}

#[derive(Debug, Clone)]
enum StdinItem {
    Write { id: u64, bytes: Bytes },
    Close,
}

impl StdinItem {
    fn len(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Close => 0,
        }
    }
}

#[derive(Debug)]
enum ItemReply {
    Write(oneshot::Sender<WriteReply>),
    Close(oneshot::Sender<CloseReply>),
}

impl StdinQueue {
    pub(crate) fn new(key: ProcessKey, has_process_methods: bool, keeps_write_ids: bool) -> Self {
        Self {
            key,
            has_process_methods,
            keeps_write_ids,
            nonce: crate::random_word(),
            state: Mutex::default(),
            item_added: Notify::new(),
        }
    }

    /// Queues a write as soon as there is room. The returned flag is true if the caller must start the sender.
    pub(super) fn poll_write(&self, cx: &Context<'_>, bytes: &Bytes) -> Poll<(oneshot::Receiver<WriteReply>, bool)> {
        let mut state = self.state.lock();
        // An empty queue accepts a write of any size.
        let is_full =
            !state.queue.is_empty() && (state.bytes + bytes.len() > WAITING_BYTES || state.queue.len() >= WAITING);
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
        state.queue.push_back(QueuedItem {
            item: StdinItem::Write { id, bytes: bytes.clone() },
            reply: ItemReply::Write(reply),
        });
        Poll::Ready((written, self.wake_sender(state)))
    }

    /// Queues a request to close stdin. The returned flag is true if the caller must start the sender.
    pub(super) fn close(&self) -> (oneshot::Receiver<CloseReply>, bool) {
        let mut state = self.state.lock();
        let (reply, closed) = oneshot::channel();
        if let Some(error) = &state.broken {
            reply.send(Err(error.clone())).ok(); // Cannot fail: `closed` is held here.
            return (closed, false);
        }
        state.queue.push_back(QueuedItem { item: StdinItem::Close, reply: ItemReply::Close(reply) });
        (closed, self.wake_sender(state))
    }

    /// Wakes the sender. Returns true if none is running, so that the caller must start it.
    fn wake_sender(&self, mut state: MutexGuard<'_, StdinQueueState>) -> bool {
        let must_start_sender = !std::mem::replace(&mut state.has_sender, true);
        drop(state);
        self.item_added.notify_one();
        must_start_sender
    }

    /// The item at index `at`, if there is one.
    fn peek(&self, at: usize) -> Option<StdinItem> {
        self.state.lock().queue.get(at).map(|queued| queued.item.clone())
    }

    /// Removes the first item and reports its outcome to the caller.
    fn complete_first(&self, outcome: Result<ItemOutcome, Error>) {
        let mut state = self.state.lock();
        let Some(queued) = state.queue.pop_front() else { return };
        state.bytes -= queued.item.len();
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        // Errors are ignored: the caller may have stopped waiting.
        match (queued.reply, outcome) {
            (ItemReply::Write(reply), Ok(ItemOutcome::Write(status))) => reply.send(Ok(status)).unwrap_or(()),
            (ItemReply::Write(reply), Err(error)) => reply.send(Err(error)).unwrap_or(()),
            (ItemReply::Close(reply), Ok(ItemOutcome::Close(status))) => reply.send(Ok(status)).unwrap_or(()),
            (ItemReply::Close(reply), Err(error)) => reply.send(Err(error)).unwrap_or(()),
            // Unreachable: `outcome` decodes an answer by the type of its item.
            (ItemReply::Write(_), Ok(ItemOutcome::Close(_))) | (ItemReply::Close(_), Ok(ItemOutcome::Write(_))) => {}
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Fails the whole queue, and every later write, because an earlier write was refused.
    fn fail_all(&self, refused: &Error) {
        let error = Error::InputBroken { reason: refused.to_string() };
        // Set this first, so that no further item is queued.
        self.state.lock().broken = Some(error.clone());
        while self.peek(0).is_some() {
            self.complete_first(Err(error.clone()));
        }
    }

    /// Unregisters the sender if the queue is empty. Returns true if it did; the sender must then end, and the next caller starts another.
    fn finish_if_empty(&self) -> bool {
        let mut state = self.state.lock();
        if state.queue.is_empty() {
            state.has_sender = false;
        }
        !state.has_sender
    }
}

/// The server's answer to an item.
#[derive(Debug, Clone, Copy)]
enum ItemOutcome {
    Write(wire::WriteStatus),
    Close(wire::CloseStdinStatus),
}

impl ItemOutcome {
    /// Whether the item took effect on the stream.
    fn is_taken(self) -> bool {
        matches!(self, Self::Write(wire::WriteStatus::Accepted) | Self::Close(wire::CloseStdinStatus::Accepted))
    }
}
