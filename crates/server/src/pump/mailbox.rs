//! The inbox of a connection's pump: answers, orders, and notifications that a log has grown.
//!
//! Bounds: answers and orders are bounded by the requests that a connection may have in flight, and the connection
//! stops reading at [`limits::ANSWERS_WAITING_BYTES`]. Pieces of HTTP bodies are bounded by
//! [`limits::HTTP_DELTAS_WAITING`]; beyond it the bodies are not read. A notification is queued at most once per feed
//! or read.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use exec_server_protocol::{
    ProcessId, command, limits, message,
    message::RequestId,
    method::{Family, Method},
    process as wire,
};
use exec_server_rpc::EncodedMessage;
use serde::Serialize;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    task::unconstrained,
    time::Instant,
};
use tracing::Span;

use super::{channels::Channels, feed::Follow, read::ReadOrder};
use crate::{
    error::Failure,
    incoming::Incoming,
    metrics::Metrics,
    process::{Dialect, Process, lock},
};

/// The pump's inbox. Every sender of messages holds a reference.
pub(crate) struct Mailbox {
    pub(crate) metrics: Arc<Metrics>,
    mail: Mutex<Mail>,
    pub(super) bell: Notify,
    /// Notified when the pump takes the mail. A connection that has paused reading waits for it.
    drained: Notify,
    /// Bytes of this connection's waiting requests.
    parked: AtomicUsize,
    /// The same for all connections.
    incoming: Arc<Incoming>,
    /// Requests without an answer.
    outstanding: AtomicUsize,
    /// One slot for each start that may run concurrently. Other starts wait in arrival order.
    slots: Semaphore,
    /// Starts that wait for a slot.
    starts_waiting: AtomicUsize,
    /// The pump is writing to the socket, so a silent peer may just be slow.
    pub(super) flushing: AtomicBool,
    /// Slots for pieces of HTTP bodies.
    deltas: Arc<Semaphore>,
    /// Channel numbers for binary frames.
    pub(crate) channels: Channels,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            metrics: Arc::default(),
            mail: Mutex::default(),
            bell: Notify::new(),
            drained: Notify::new(),
            parked: AtomicUsize::new(0),
            incoming: Arc::default(),
            outstanding: AtomicUsize::new(0),
            slots: Semaphore::new(limits::STARTS_RUNNING),
            starts_waiting: AtomicUsize::new(0),
            flushing: AtomicBool::new(false),
            deltas: Arc::new(Semaphore::new(limits::HTTP_DELTAS_WAITING)),
            channels: Channels::default(),
        }
    }
}

#[derive(Default)]
pub(super) struct Mail {
    pub(super) answers: VecDeque<EncodedMessage>,
    answer_bytes: usize,
    /// Pieces of HTTP bodies, each with its slot.
    pub(super) deltas: VecDeque<Delta>,
    pub(super) pongs: VecDeque<Bytes>,
    pub(super) orders: VecDeque<Order>,
    /// Keys of feeds and reads whose log has grown.
    pub(super) ready: VecDeque<u64>,
    pub(super) ping: bool,
    pub(super) close: Option<(u16, &'static str)>,
    /// The pump has ended, so nothing is queued.
    is_shut: bool,
}

/// A piece of an HTTP body as a message, and its slot, which is freed when the piece is in a batch.
pub(super) struct Delta {
    pub(super) message: Vec<u8>,
    _place: DeltaPlace,
}

/// A slot for a piece of an HTTP body.
pub(crate) struct DeltaPlace {
    _permit: Option<OwnedSemaphorePermit>,
}

/// An instruction to the pump. Executed in order.
pub(crate) enum Order {
    /// Push the events of a process from now on.
    Follow(Follow),
    /// Stop pushing a process.
    Unfollow(Arc<Process>),
    /// The peer has taken everything up to `seq`.
    Ack { session: Arc<str>, process: ProcessId, seq: u64 },
    /// Answer a `process/read`, now or when there is output.
    Read(ReadOrder),
    /// Another connection has taken over the session: end all its feeds and fail all its reads.
    Superseded { session: Arc<str> },
}

/// Pongs that may be queued. More than that is a flood, and the oldest are dropped.
const PONGS_WAITING: usize = 16;

impl Mailbox {
    /// Creates a mailbox. Its waiting requests count in the server's budget `incoming`; `slots` starts may run
    /// concurrently.
    pub(crate) fn new(incoming: Arc<Incoming>, metrics: Arc<Metrics>, slots: usize) -> Arc<Self> {
        Arc::new(Self { incoming, metrics, slots: Semaphore::new(slots), ..Self::default() })
    }

    pub(crate) fn answer(&self, message: EncodedMessage) {
        let mut mail = lock(&self.mail);
        if !mail.is_shut {
            mail.answer_bytes += message.len();
            mail.answers.push_back(message);
        }
        drop(mail);
        self.bell.notify_one();
    }

    /// Waits for a slot for a piece of an HTTP body. First come, first served, so that no body starves another.
    pub(crate) async fn place_for_delta(&self) -> DeltaPlace {
        // The semaphore is never closed.
        DeltaPlace { _permit: self.deltas.clone().acquire_owned().await.ok() }
    }

    /// Queues a piece of an HTTP body. It is sent after the answers.
    pub(crate) fn delta(&self, message: Vec<u8>, place: DeltaPlace) {
        let mut mail = lock(&self.mail);
        if !mail.is_shut {
            mail.deltas.push_back(Delta { message, _place: place });
        }
        drop(mail);
        self.bell.notify_one();
    }

    pub(crate) fn order(&self, order: Order) {
        let mut mail = lock(&self.mail);
        if mail.is_shut {
            drop(mail); // Unlock first: dropping the order can re-enter this mailbox.
            return drop(order);
        }
        mail.orders.push_back(order);
        drop(mail);
        self.bell.notify_one();
    }

    /// Called when the pump has ended: drops the queued mail and accepts no more. This breaks a reference cycle: a
    /// process with a waiting write refers to this mailbox, whose mail may refer to the process.
    pub(super) fn shut(&self) {
        let shut = Mail { is_shut: true, ..Mail::default() };
        let rest = std::mem::replace(&mut *lock(&self.mail), shut);
        drop(rest);
        self.channels.close_all();
        self.tell_drained();
    }

    /// Wakes a task that waits for room, and one that is about to wait.
    fn tell_drained(&self) {
        self.drained.notify_waiters();
        self.drained.notify_one();
    }

    pub(crate) fn pong(&self, payload: Bytes) {
        let mut mail = lock(&self.mail);
        mail.pongs.push_back(payload);
        if mail.pongs.len() > PONGS_WAITING {
            mail.pongs.pop_front();
        }
        drop(mail);
        self.bell.notify_one();
    }

    pub(crate) fn ping(&self) {
        lock(&self.mail).ping = true;
        self.bell.notify_one();
    }

    /// Makes the pump send what is queued and a close frame, and then end. The first reason wins.
    pub(crate) fn close(&self, code: u16, reason: &'static str) {
        lock(&self.mail).close.get_or_insert((code, reason));
        self.bell.notify_one();
    }

    fn ready(&self, key: u64) {
        let mut mail = lock(&self.mail);
        if !mail.is_shut {
            mail.ready.push_back(key);
        }
        drop(mail);
        self.bell.notify_one();
    }

    pub(super) fn take(&self) -> Mail {
        let mail = std::mem::take(&mut *lock(&self.mail));
        self.tell_drained();
        mail
    }

    /// Waits until the peer has accepted enough answers. The server stops reading from a peer that sends requests and
    /// never reads.
    pub(crate) async fn room_for_answers(&self) {
        loop {
            let drained = self.drained.notified();
            {
                let mail = lock(&self.mail);
                let waiting = mail.answers.len() + mail.orders.len();
                if mail.answer_bytes < limits::ANSWERS_WAITING_BYTES && waiting < limits::ANSWERS_WAITING {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Number of this connection's requests without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Refuses a start if too many are waiting.
    pub(crate) fn admit_start(&self) -> Result<(), Failure> {
        if self.starts_waiting.load(Ordering::Relaxed) >= limits::STARTS_WAITING {
            return Err(Failure::Overloaded { what: "requests" });
        }
        Ok(())
    }

    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing.load(Ordering::Relaxed)
    }
}

/// One reader's notification handle on a process. Rings when the log grows, and is in the mailbox at most once.
pub(crate) struct Watch {
    key: u64,
    mailbox: Arc<Mailbox>,
    queued: AtomicBool,
}

impl Watch {
    pub(crate) fn new(key: u64, mailbox: Arc<Mailbox>) -> Arc<Self> {
        Arc::new(Self { key, mailbox, queued: AtomicBool::new(false) })
    }

    pub(crate) fn ring(&self) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.mailbox.ready(self.key);
        }
    }

    /// Resets the flag. Call it before reading the log, so that events after the read ring again.
    pub(crate) fn heard(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

/// Where the answer of one request goes. Every request ends in exactly one of its methods.
pub(crate) struct Reply {
    pub(crate) id: RequestId,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) dialect: Dialect,
    asked: Box<Asked>,
}

/// Details of the request.
struct Asked {
    method: &'static Method,
    at: Instant,
    /// The tracing span of this request.
    span: Span,
    /// Bytes that count as waiting.
    parked: usize,
    slot: Slot,
}

/// The state of a request with respect to the connection's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    None,
    Awaited,
    Held,
}

impl Reply {
    pub(crate) fn new(id: RequestId, mailbox: Arc<Mailbox>, method: &'static Method, span: Span) -> Self {
        mailbox.outstanding.fetch_add(1, Ordering::Relaxed);
        let dialect = if method.family == Family::Command { Dialect::Command } else { Dialect::Process };
        let asked = Asked { method, at: Instant::now(), span, parked: 0, slot: Slot::None };
        Self { id, mailbox, dialect, asked: Box::new(asked) }
    }

    /// The tracing span of this request.
    pub(crate) fn span(&self) -> &Span {
        &self.asked.span
    }

    /// Waits for one of the connection's slots in arrival order, and keeps it until this request is answered.
    pub(crate) async fn take_slot(mut self) -> Self {
        if self.mailbox.slots.try_acquire().map(SemaphorePermit::forget).is_err() {
            self.asked.slot = Slot::Awaited;
            self.mailbox.starts_waiting.fetch_add(1, Ordering::Relaxed);
            // Exempt from tokio's coop budget: a poll that the budget defers would lose its place in the queue.
            let acquired = unconstrained(self.mailbox.slots.acquire()).await;
            acquired.map(SemaphorePermit::forget).unwrap_or(()); // The semaphore is never closed.
            self.mailbox.starts_waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.asked.slot = Slot::Held;
        self
    }

    /// Counts `bytes` as waiting until this request is answered. Fails beyond the bounds of the connection or the
    /// server.
    pub(crate) fn park(mut self, bytes: usize) -> Result<Self, (Self, Failure)> {
        if !self.mailbox.incoming.park(bytes) {
            return Err((self, Failure::Overloaded { what: "bytes of all requests" }));
        }
        let before = self.mailbox.parked.fetch_add(bytes, Ordering::Relaxed);
        self.asked.parked += bytes;
        // A single large request is always allowed.
        if before > 0 && before + bytes > limits::REQUESTS_WAITING_BYTES {
            return Err((self, Failure::Overloaded { what: "bytes of requests" }));
        }
        Ok(self)
    }

    pub(crate) fn result(self, result: &impl Serialize) {
        let mut message = Vec::new();
        message::encode_result(&mut message, &self.id, result);
        self.mailbox.answer(EncodedMessage::text(message));
    }

    /// Answers with attached bytes. Only for a peer that understands them.
    pub(crate) fn result_attached(self, result: &impl Serialize, attached: Bytes) {
        let mut head = Vec::new();
        message::attach(&mut head, |out| message::encode_result(out, &self.id, result));
        self.mailbox.answer(EncodedMessage { head, attached: Some(attached) });
    }

    pub(crate) fn fail(self, failure: &Failure) {
        let mut message = Vec::new();
        encode_failure(&mut message, &self.id, failure);
        self.mailbox.metrics.failed(failure.kind());
        tracing::debug!(parent: &self.asked.span, kind = failure.kind().as_str(), "refused");
        self.mailbox.answer(EncodedMessage::text(message));
    }

    /// Answers a start in the peer's protocol generation.
    pub(crate) fn started(self, process: &Process) {
        match self.dialect {
            Dialect::Process => {
                self.result(&wire::StartResult::started(process.process_id(), process.pid, process.meta.sandbox))
            }
            Dialect::Command => self.result(&command::ExecResult::started(process.process_id(), Some(process.pid))),
        }
    }

    /// Answers an accepted write. `line_cut`: the terminal cut a line that was too long.
    pub(crate) fn accept_write(self, line_cut: bool) {
        match self.dialect {
            Dialect::Process => self.result(&wire::WriteResult { status: wire::WriteStatus::Accepted, line_cut }),
            Dialect::Command => self.result(&command::WriteResult { accepted: true }),
        }
    }

    /// Answers a write in the peer's protocol generation.
    pub(crate) fn write(self, process_id: &str, status: wire::WriteStatus) {
        match (self.dialect, status) {
            (Dialect::Process, status) => self.result(&wire::WriteResult { status, line_cut: false }),
            (Dialect::Command, wire::WriteStatus::Accepted) => self.result(&command::WriteResult { accepted: true }),
            (Dialect::Command, wire::WriteStatus::StdinClosed) => {
                self.fail(&Failure::NoStdin { id: process_id.to_owned() });
            }
            (Dialect::Command, wire::WriteStatus::UnknownProcess | wire::WriteStatus::Starting) => {
                self.fail(&Failure::UnknownProcess { id: process_id.to_owned() });
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let Asked { method, at, span, parked, slot } = &*self.asked;
        let took = at.elapsed();
        self.mailbox.metrics.answered(method, took);
        tracing::debug!(parent: span, took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX), "answered");
        self.mailbox.parked.fetch_sub(*parked, Ordering::Relaxed);
        self.mailbox.incoming.unpark(*parked);
        self.mailbox.outstanding.fetch_sub(1, Ordering::Relaxed);
        match slot {
            Slot::None => {}
            Slot::Awaited => {
                self.mailbox.starts_waiting.fetch_sub(1, Ordering::Relaxed);
            }
            Slot::Held => self.mailbox.slots.add_permits(1),
        }
    }
}

/// Encodes an error answer: code and text for every peer, and the stable kind for peers that branch on it.
pub(crate) fn encode_failure(out: &mut Vec<u8>, id: &RequestId, failure: &Failure) {
    let mut text = failure.to_string();
    // A name sent by the peer may be as long as a message. Do not send all of it back.
    text.truncate(text.floor_char_boundary(limits::ERROR_TEXT_BYTES));
    message::encode_error(out, id, failure.code(), failure.kind(), &text);
}
