//! What others leave for a connection's pump: answers, orders, and bells that say a log has grown.
//!
//! Bounds: answers by the requests a connection may have in flight, and the connection stops reading at [`limits::ANSWERS_WAITING_BYTES`];
//! orders likewise; pieces of HTTP bodies by [`limits::HTTP_DELTAS_WAITING`], beyond which the bodies are not read; a bell is in the queue at
//! most once per feed or read.

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
use exec_server_rpc::Message;
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

/// The pump's inbox. Everybody who wants something sent holds a clone.
pub(crate) struct Mailbox {
    pub(crate) metrics: Arc<Metrics>,
    mail: Mutex<Mail>,
    pub(super) bell: Notify,
    /// Told whenever answers have left, for a connection that paused reading.
    drained: Notify,
    /// Bytes of this connection's requests that wait.
    parked: AtomicUsize,
    /// The same of all connections.
    incoming: Arc<Incoming>,
    /// Requests that have not been answered.
    outstanding: AtomicUsize,
    /// A slot for each start that may run at once; the others wait in the order in which they came.
    slots: Semaphore,
    /// Starts that wait for a slot.
    starts_waiting: AtomicUsize,
    /// The pump is writing to the socket: a silent peer may just be slow.
    pub(super) flushing: AtomicBool,
    /// Places for pieces of HTTP bodies.
    deltas: Arc<Semaphore>,
    /// The numbers of processes in binary frames.
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
    pub(super) answers: VecDeque<Message>,
    answer_bytes: usize,
    /// Pieces of HTTP bodies, each with its place.
    pub(super) deltas: VecDeque<Delta>,
    pub(super) pongs: VecDeque<Bytes>,
    pub(super) orders: VecDeque<Order>,
    /// Keys of feeds and reads whose log has grown.
    pub(super) ready: VecDeque<u64>,
    pub(super) ping: bool,
    pub(super) close: Option<(u16, &'static str)>,
    /// The pump is gone: nothing is kept for it any more.
    is_shut: bool,
}

/// A piece of an HTTP body as a message, and the place that it gives back when it is on its way.
pub(super) struct Delta {
    pub(super) message: Vec<u8>,
    _place: DeltaPlace,
}

/// A place for a piece of an HTTP body.
pub(crate) struct DeltaPlace {
    _permit: Option<OwnedSemaphorePermit>,
}

/// What the pump is asked to do, in order.
pub(crate) enum Order {
    /// Push the events of a process from now on.
    Follow(Follow),
    /// Stop pushing a process.
    Unfollow(Arc<Process>),
    /// The peer has taken everything up to `seq`.
    Ack { session: Arc<str>, process: ProcessId, seq: u64 },
    /// Answer a `process/read`, now or when there is something.
    Read(ReadOrder),
    /// The session belongs to another connection now: end every push and fail every read of it.
    Superseded { session: Arc<str> },
}

/// Pongs a peer may have waiting; more than that is a flood, and the oldest go.
const PONGS_WAITING: usize = 16;

impl Mailbox {
    /// A mailbox whose waiting requests count in the server's budget, and how many starts may run at once.
    pub(crate) fn new(incoming: Arc<Incoming>, metrics: Arc<Metrics>, slots: usize) -> Arc<Self> {
        Arc::new(Self { incoming, metrics, slots: Semaphore::new(slots), ..Self::default() })
    }

    pub(crate) fn answer(&self, message: Message) {
        let mut mail = lock(&self.mail);
        if !mail.is_shut {
            mail.answer_bytes += message.len();
            mail.answers.push_back(message);
        }
        drop(mail);
        self.bell.notify_one();
    }

    /// A place for a piece of an HTTP body, when the peer has taken enough of those before it. First come, first served, so that no body
    /// keeps another from its turn.
    pub(crate) async fn place_for_delta(&self) -> DeltaPlace {
        // Nobody closes it.
        DeltaPlace { _permit: self.deltas.clone().acquire_owned().await.ok() }
    }

    /// Sends a piece of an HTTP body, behind the answers.
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
            drop(mail); // Before the order: what it holds may say goodbye to this mailbox.
            return drop(order);
        }
        mail.orders.push_back(order);
        drop(mail);
        self.bell.notify_one();
    }

    /// The pump has ended: what is here goes, and nothing more is taken. A process whose write still waits keeps its way back, and that must
    /// not keep the process.
    pub(super) fn shut(&self) {
        let shut = Mail { is_shut: true, ..Mail::default() };
        let rest = std::mem::replace(&mut *lock(&self.mail), shut);
        drop(rest);
        self.channels.close_all();
        self.tell_drained();
    }

    /// Tells whoever waits for room, and whoever is about to.
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

    /// Sends what is queued, then a close frame, then ends the pump. The first reason stays.
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

    /// Waits until the peer has taken enough answers. A peer that asks and never reads stops being read.
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

    /// Requests of this connection that have not been answered.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Refuses a start where too many wait already.
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

/// One reader's bell on a process: rung when the log grew, in the mailbox at most once.
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

    /// Called before the log is looked at, so that what comes after the look rings again.
    pub(crate) fn heard(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

/// The way back for one request: where its answer goes. Every request ends in exactly one of its methods.
pub(crate) struct Reply {
    pub(crate) id: RequestId,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) dialect: Dialect,
    asked: Box<Asked>,
}

/// What was asked.
struct Asked {
    method: &'static Method,
    at: Instant,
    /// Where lines about this request belong.
    span: Span,
    /// Bytes that count as waiting.
    parked: usize,
    slot: Slot,
}

/// What a request has of its connection's slots.
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

    /// Where lines about this request belong.
    pub(crate) fn span(&self) -> &Span {
        &self.asked.span
    }

    /// Waits for one of the connection's slots, behind those that came before, and keeps it until this request is answered.
    pub(crate) async fn take_slot(mut self) -> Self {
        if self.mailbox.slots.try_acquire().map(SemaphorePermit::forget).is_err() {
            self.asked.slot = Slot::Awaited;
            self.mailbox.starts_waiting.fetch_add(1, Ordering::Relaxed);
            // Not subject to the runtime's budget: a look that is put off for it would lose its place in the line.
            let acquired = unconstrained(self.mailbox.slots.acquire()).await;
            acquired.map(SemaphorePermit::forget).unwrap_or(()); // It is never closed.
            self.mailbox.starts_waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.asked.slot = Slot::Held;
        self
    }

    /// Counts `bytes` as waiting until this request is answered; refused beyond the bounds of the connection and of the server.
    pub(crate) fn park(mut self, bytes: usize) -> Result<Self, (Self, Failure)> {
        if !self.mailbox.incoming.park(bytes) {
            return Err((self, Failure::Overloaded { what: "bytes of all requests" }));
        }
        let before = self.mailbox.parked.fetch_add(bytes, Ordering::Relaxed);
        self.asked.parked += bytes;
        // One large request alone is no crowd.
        if before > 0 && before + bytes > limits::REQUESTS_WAITING_BYTES {
            return Err((self, Failure::Overloaded { what: "bytes of requests" }));
        }
        Ok(self)
    }

    pub(crate) fn result(self, result: &impl Serialize) {
        let mut message = Vec::new();
        message::encode_result(&mut message, &self.id, result);
        self.mailbox.answer(Message::text(message));
    }

    /// Answers with bytes attached, to a peer that understands that.
    pub(crate) fn result_attached(self, result: &impl Serialize, attached: Bytes) {
        let mut head = Vec::new();
        message::attach(&mut head, |out| message::encode_result(out, &self.id, result));
        self.mailbox.answer(Message { head, attached: Some(attached) });
    }

    pub(crate) fn fail(self, failure: &Failure) {
        let mut message = Vec::new();
        encode_failure(&mut message, &self.id, failure);
        self.mailbox.metrics.failed(failure.kind());
        tracing::debug!(parent: &self.asked.span, kind = failure.kind().as_str(), "refused");
        self.mailbox.answer(Message::text(message));
    }

    /// Answers a start in the words of the generation that asked.
    pub(crate) fn started(self, process: &Process) {
        match self.dialect {
            Dialect::Process => {
                self.result(&wire::StartResult::started(process.process_id(), process.pid, process.meta.sandbox))
            }
            Dialect::Command => self.result(&command::ExecResult::started(process.process_id(), Some(process.pid))),
        }
    }

    /// Answers a write that went in, of which a terminal may have cut a line.
    pub(crate) fn accept_write(self, line_cut: bool) {
        match self.dialect {
            Dialect::Process => self.result(&wire::WriteResult { status: wire::WriteStatus::Accepted, line_cut }),
            Dialect::Command => self.result(&command::WriteResult { accepted: true }),
        }
    }

    /// Answers a write in the words of the generation that asked.
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

/// Writes an error answer: code and text for every peer, the stable kind for those that branch on it.
pub(crate) fn encode_failure(out: &mut Vec<u8>, id: &RequestId, failure: &Failure) {
    let mut text = failure.to_string();
    // A name that the peer made up may be as long as a message; it is not sent back whole.
    text.truncate(text.floor_char_boundary(limits::ERROR_TEXT_BYTES));
    message::encode_error(out, id, failure.code(), failure.kind(), &text);
}
