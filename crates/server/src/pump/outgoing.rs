//! The queue of a connection's pump: answers, commands, and the keys of feeds and reads whose logs have grown.
//!
//! Bounds: the connection stops reading requests while [`limits::ANSWERS_WAITING`] answers and commands or
//! [`limits::ANSWERS_WAITING_BYTES`] of answers are queued. HTTP bodies are not read further while
//! [`limits::HTTP_DELTAS_WAITING`] of their pieces are queued. Of the pongs only the latest are kept. The key of a feed
//! or read is queued at most once.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use exec_server_protocol::{
    ProcessId, limits, message,
    message::RequestId,
    method::{Family, Method},
};
use exec_server_rpc::EncodedMessage;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    task::unconstrained,
    time::Instant,
};
use tracing::Span;

use super::{channels::Channels, feed::FollowCommand, read::ReadCommand};
use crate::{compat::Dialect, error::Failure, incoming::IncomingBudget, metrics::Metrics, process::Process};

/// The queue of the pump. Everything that sends a message on the connection puts it here.
pub(crate) struct OutgoingQueue {
    pub(crate) metrics: Arc<Metrics>,
    state: Mutex<QueueState>,
    pub(super) changed: Notify,
    /// Notified when the pump takes the queued items. A connection that has paused reading waits for it, and so do
    /// handlers with large answers.
    drained: Notify,
    requests: RequestLoad,
    /// One permit for each piece of an HTTP body that may be queued.
    delta_permits: Arc<Semaphore>,
    /// Channel numbers for binary frames.
    pub(crate) channels: Channels,
}

#[derive(Default)]
struct QueueState {
    items: OutgoingItems,
    /// The pump is writing to the socket, so a silent peer may just be slow.
    is_flushing: bool,
    /// The pump has ended. Items that are added now are dropped.
    is_shut: bool,
}

/// The unanswered requests of a connection.
struct RequestLoad {
    counts: Mutex<RequestCounts>,
    /// The server's budget, in which the counted bytes count as well.
    incoming: Arc<IncomingBudget>,
    /// One permit for each start that may run concurrently. Other starts wait in arrival order.
    start_permits: Semaphore,
}

#[derive(Default)]
struct RequestCounts {
    unanswered: usize,
    /// Bytes of these requests, as far as they are counted.
    bytes: usize,
    /// Starts that wait for a permit.
    starts_waiting: usize,
}

#[derive(Default)]
pub(super) struct OutgoingItems {
    pub(super) answers: VecDeque<EncodedMessage>,
    answer_bytes: usize,
    /// Pieces of HTTP bodies, each with its permit, which is returned when the piece is in a batch.
    pub(super) deltas: VecDeque<(Vec<u8>, OwnedSemaphorePermit)>,
    pub(super) pongs: VecDeque<Bytes>,
    pub(super) commands: VecDeque<PumpCommand>,
    /// Keys of feeds and reads whose log has grown.
    pub(super) ready: VecDeque<u64>,
    pub(super) ping: bool,
    pub(super) close: Option<(u16, &'static str)>,
}

/// An instruction to the pump. Executed in order.
pub(crate) enum PumpCommand {
    /// Push the events of a process from now on.
    Follow(FollowCommand),
    /// Stop pushing a process.
    Unfollow(Arc<Process>),
    /// The peer has taken everything up to `seq`.
    Ack { session: Arc<str>, process: ProcessId, seq: u64 },
    /// Answer a `process/read`, now or when there is output.
    Read(ReadCommand),
    /// Another connection has taken over the session: end all its feeds and fail all its reads.
    Superseded { session: Arc<str> },
}

/// Pongs that may be queued. Beyond that the oldest are dropped: RFC 6455 requires only an answer to the latest ping.
const PONGS_WAITING: usize = 16;

impl OutgoingQueue {
    /// Creates a queue. Its requests count in the server's budget `incoming`. At most `concurrent_starts` starts run at
    /// once.
    pub(crate) fn new(incoming: Arc<IncomingBudget>, metrics: Arc<Metrics>, concurrent_starts: usize) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            state: Mutex::default(),
            changed: Notify::new(),
            drained: Notify::new(),
            requests: RequestLoad {
                counts: Mutex::default(),
                incoming,
                start_permits: Semaphore::new(concurrent_starts),
            },
            delta_permits: Arc::new(Semaphore::new(limits::HTTP_DELTAS_WAITING)),
            channels: Channels::default(),
        })
    }

    /// Adds to the queued items and wakes the pump, unless the pump has ended.
    fn enqueue(&self, add: impl FnOnce(&mut OutgoingItems)) {
        let mut state = self.state.lock();
        if state.is_shut {
            drop(state); // Unlock first: `add` owns the item, and dropping a command can re-enter this queue.
            return drop(add);
        }
        add(&mut state.items);
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn enqueue_answer(&self, message: EncodedMessage) {
        self.enqueue(|items| {
            items.answer_bytes += message.head.len() + message.attached.as_ref().map_or(0, Bytes::len);
            items.answers.push_back(message);
        });
    }

    /// Waits until a piece of an HTTP body may be queued. First come, first served, so that no body starves another.
    pub(crate) async fn reserve_delta(&self) -> OwnedSemaphorePermit {
        self.delta_permits.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Queues a piece of an HTTP body. It is sent after the answers.
    pub(crate) fn enqueue_delta(&self, message: Vec<u8>, permit: OwnedSemaphorePermit) {
        self.enqueue(|items| items.deltas.push_back((message, permit)));
    }

    pub(crate) fn enqueue_command(&self, command: PumpCommand) {
        self.enqueue(|items| items.commands.push_back(command));
    }

    /// Called when the pump has ended: drops the queued items and accepts no more. This breaks a reference cycle: a
    /// process with a waiting write refers to this queue, whose items may refer to the process.
    pub(super) fn shut_down(&self) {
        let mut state = self.state.lock();
        state.is_shut = true;
        let rest = std::mem::take(&mut state.items);
        drop(state);
        drop(rest);
        self.channels.close_all();
        self.drained.notify_waiters();
    }

    pub(crate) fn enqueue_pong(&self, payload: Bytes) {
        self.enqueue(|items| {
            items.pongs.push_back(payload);
            if items.pongs.len() > PONGS_WAITING {
                items.pongs.pop_front();
            }
        });
    }

    pub(crate) fn enqueue_ping(&self) {
        self.enqueue(|items| items.ping = true);
    }

    /// Makes the pump send what is queued and a close frame, and then end. The first reason wins.
    pub(crate) fn close(&self, code: u16, reason: &'static str) {
        self.enqueue(|items| _ = items.close.get_or_insert((code, reason)));
    }

    pub(super) fn take(&self) -> OutgoingItems {
        let items = std::mem::take(&mut self.state.lock().items);
        self.drained.notify_waiters();
        items
    }

    /// Waits until the pump has taken enough answers and commands. The connection waits here before it reads the next
    /// message, so a peer that sends requests and never reads the answers cannot make the queue grow.
    pub(crate) async fn wait_for_room(&self) {
        loop {
            // Created before the check: from then on it does not miss a `notify_waiters`.
            let drained = self.drained.notified();
            {
                let items = &self.state.lock().items;
                let waiting = items.answers.len() + items.commands.len();
                if items.answer_bytes < limits::ANSWERS_WAITING_BYTES && waiting < limits::ANSWERS_WAITING {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Number of this connection's requests without an answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.requests.counts.lock().unanswered
    }

    /// Fails if too many starts are waiting. Reserves nothing.
    pub(crate) fn check_starts_waiting(&self) -> Result<(), Failure> {
        if self.requests.counts.lock().starts_waiting >= limits::STARTS_WAITING {
            return Err(Failure::Overloaded { what: "waiting starts on this connection" });
        }
        Ok(())
    }

    pub(crate) fn is_flushing(&self) -> bool {
        self.state.lock().is_flushing
    }

    pub(super) fn set_flushing(&self, is_flushing: bool) {
        self.state.lock().is_flushing = is_flushing;
    }
}

/// Wakes one feed or read when the log of its process grows. Its key is in the queue at most once.
pub(crate) struct FeedWaker {
    key: u64,
    outgoing: Arc<OutgoingQueue>,
    queued: AtomicBool,
}

impl FeedWaker {
    pub(crate) fn new(key: u64, outgoing: Arc<OutgoingQueue>) -> Arc<Self> {
        Arc::new(Self { key, outgoing, queued: AtomicBool::new(false) })
    }

    pub(crate) fn wake(&self) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.outgoing.enqueue(|items| items.ready.push_back(self.key));
        }
    }

    /// Resets the flag. Call it before reading the log, so that events after the read wake again.
    pub(crate) fn reset(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

/// Where the answer of one request goes. The methods that answer consume it, so a request is answered at most once.
/// Dropping it releases what the request holds.
pub(crate) struct Reply {
    pub(crate) id: RequestId,
    pub(crate) outgoing: Arc<OutgoingQueue>,
    pub(crate) dialect: Dialect,
    details: Box<RequestDetails>,
}

struct RequestDetails {
    method: Method,
    received_at: Instant,
    /// The tracing span of this request.
    span: Span,
    /// Bytes of this request that are counted.
    counted_bytes: usize,
    start_permit: StartPermit,
}

/// Whether a request waits for, or holds, one of the connection's start permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartPermit {
    None,
    Awaited,
    Held,
}

impl Reply {
    pub(crate) fn new(id: RequestId, outgoing: Arc<OutgoingQueue>, method: Method, span: Span) -> Self {
        outgoing.requests.counts.lock().unanswered += 1;
        let dialect = if method.info().family == Family::Command { Dialect::Command } else { Dialect::Process };
        let details = RequestDetails {
            method,
            received_at: Instant::now(),
            span,
            counted_bytes: 0,
            start_permit: StartPermit::None,
        };
        Self { id, outgoing, dialect, details: Box::new(details) }
    }

    /// The tracing span of this request.
    pub(crate) fn span(&self) -> &Span {
        &self.details.span
    }

    /// Waits for one of the connection's start permits in arrival order, and keeps it until this request is answered.
    pub(crate) async fn take_start_permit(mut self) -> Self {
        // Permits are forgotten, because they would borrow the queue. Dropping this reply returns them.
        let requests = &self.outgoing.requests;
        if requests.start_permits.try_acquire().map(SemaphorePermit::forget).is_err() {
            self.details.start_permit = StartPermit::Awaited;
            requests.counts.lock().starts_waiting += 1;
            // Exempt from Tokio's coop budget: with an exhausted budget, `acquire` stays pending although it has its
            // permit, and a later start could begin first.
            let acquired = unconstrained(requests.start_permits.acquire()).await;
            acquired.expect("the semaphore is never closed").forget();
            requests.counts.lock().starts_waiting -= 1;
        }
        self.details.start_permit = StartPermit::Held;
        self
    }

    /// Counts `bytes` of this request until it is answered. Fails beyond the bounds of the connection or the server.
    pub(crate) fn count_bytes(mut self, bytes: usize) -> Result<Self, (Self, Failure)> {
        if !self.outgoing.requests.incoming.reserve(bytes) {
            return Err((self, Failure::Overloaded { what: "bytes of requests on all connections" }));
        }
        let total = {
            let mut counts = self.outgoing.requests.counts.lock();
            counts.bytes += bytes;
            counts.bytes
        };
        self.details.counted_bytes += bytes;
        // On this connection, a request of any size is allowed while no other bytes are counted. A refused request
        // stays counted until its reply is dropped, which releases both counts.
        if total > bytes && total > limits::REQUESTS_WAITING_BYTES {
            return Err((self, Failure::Overloaded { what: "bytes of requests on this connection" }));
        }
        Ok(self)
    }

    pub(crate) fn result(self, result: &impl Serialize) {
        let mut message = Vec::new();
        message::encode_result(&mut message, &self.id, result);
        self.outgoing.enqueue_answer(EncodedMessage::text(message));
    }

    /// Answers with attached bytes. Only for a peer that understands them.
    pub(crate) fn result_attached(self, result: &impl Serialize, attached: Bytes) {
        let mut head = Vec::new();
        message::attach(&mut head, |out| message::encode_result(out, &self.id, result));
        self.outgoing.enqueue_answer(EncodedMessage { head, attached: Some(attached) });
    }

    pub(crate) fn fail(self, failure: &Failure) {
        let mut message = Vec::new();
        encode_failure(&mut message, &self.id, failure);
        self.outgoing.metrics.failed(failure.kind());
        tracing::debug!(parent: &self.details.span, kind = failure.kind().as_str(), "refused");
        self.outgoing.enqueue_answer(EncodedMessage::text(message));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let RequestDetails { method, received_at, span, counted_bytes, start_permit } = &*self.details;
        let took = received_at.elapsed();
        self.outgoing.metrics.answered(*method, took);
        tracing::debug!(parent: span, took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX), "answered");
        let requests = &self.outgoing.requests;
        {
            let mut counts = requests.counts.lock();
            counts.bytes -= counted_bytes;
            counts.unanswered -= 1;
            counts.starts_waiting -= usize::from(*start_permit == StartPermit::Awaited);
        }
        requests.incoming.release(*counted_bytes);
        if *start_permit == StartPermit::Held {
            requests.start_permits.add_permits(1);
        }
    }
}

/// Encodes an error answer: code and text for every peer, and the stable kind for peers that branch on it.
pub(crate) fn encode_failure(out: &mut Vec<u8>, id: &RequestId, failure: &Failure) {
    let mut text = failure.to_string();
    // The text may repeat a name that the peer sent and that is as long as a message.
    text.truncate(text.floor_char_boundary(limits::ERROR_TEXT_BYTES));
    message::encode_error(out, id, failure.code(), failure.kind(), &text);
}
