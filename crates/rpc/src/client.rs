//! A minimal, untyped client over any stream: calls, and notifications in both directions.
//!
//! It owns one connection and its two tasks, a reader and a writer. Dropping the client aborts both. It handles the
//! envelope of a message, but no method, and it does not reconnect.
//!
//! Failure paths: only the reader ends the connection. If a write fails, or if [`RawClient::abandon`] is called, the
//! reader first handles what has already arrived, then ends the connection. If `abandon` is called while the listener
//! handles a notification or frame, the reader ends at once and drops that handling. The end empties the table of calls in one step, so no call hangs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_server_protocol::{
    failure::Kind,
    frame,
    message::{self, Incoming, RequestId},
};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::JoinSet,
};

use crate::{
    ByteStream, CloseReason, EncodedMessage, Framing, InboundFrame, Outbox, Receiver, TcpProbe,
    calls::{MAX_CALLS, PendingCall, PendingCalls, PendingError},
};

/// Messages queued for the writer: 128. If the queue is full, `send` and `notify` wait.
const OUTGOING: usize = 128;

/// Bytes encoded before a flush: 256 KiB. A larger batch would delay its first bytes.
const BATCH_BYTES: usize = 256 * 1024;

/// Room for a small message. A larger one is reallocated while it is encoded.
const ENVELOPE_BYTES: usize = 128;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("server answered with error `{code}`: {message}")]
    Rpc {
        code: i64,
        /// Text for humans. Do not branch on it.
        message: String,
        /// Additional data for programs.
        data: Option<Box<RawValue>>,
    },
    /// There are too many calls in flight, or the connection has ended.
    #[error(transparent)]
    Pending(#[from] PendingError),
}

/// Receives the server's notifications. It runs inside the reader task, so it needs no queue.
pub trait NotificationListener: Send + 'static {
    /// Handles one notification. The reader continues when the future completes. An error ends the connection.
    fn notification(
        &mut self,
        method: &str,
        params: Option<&RawValue>,
    ) -> impl Future<Output = Result<(), CloseReason>> + Send;

    /// Like `notification`, for one frame of the `binary` dialect. A server sends such frames only to a client that
    /// announced the dialect.
    fn frame(&mut self, message: Bytes) -> impl Future<Output = Result<(), CloseReason>> + Send;
}

type CallAnswer = Result<(Box<RawValue>, Option<Bytes>), CallError>;

/// A request that was sent; see [`RawClient::send`].
#[derive(Debug)]
pub struct SentRequest {
    call: PendingCall<CallAnswer>,
}

impl SentRequest {
    /// Waits for the answer. Dropping the future abandons the call.
    pub async fn answer(self) -> Result<Box<RawValue>, CallError> {
        self.attached_answer().await.map(|(result, _)| result)
    }

    /// Like [`answer`](Self::answer), with the attached bytes.
    pub async fn attached_answer(self) -> Result<(Box<RawValue>, Option<Bytes>), CallError> {
        self.call.answer().await?
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct RawClient {
    shared: Arc<ClientShared>,
    outgoing_tx: mpsc::Sender<QueuedMessage>,
    closed_rx: watch::Receiver<Option<Arc<CloseReason>>>,
    probe: Option<TcpProbe>,
    /// See [`Receiver::progress`].
    progress: Arc<AtomicU64>,
    /// The reader and the writer. Aborted when the client is dropped.
    _tasks: JoinSet<()>,
}

/// An item of the writer's queue; `None` = a close frame, after which nothing is sent.
type QueuedMessage = Option<EncodedMessage>;

#[derive(Debug)]
struct ClientShared {
    pending: Arc<PendingCalls<CallAnswer>>,
    /// Control frames to send to the peer. They bypass the queue.
    control_frames: Mutex<PendingControlFrames>,
    control_frames_changed: Notify,
    /// Ends the reader. The first caller of `abandon` takes it.
    abandon_tx: Mutex<Option<oneshot::Sender<CloseReason>>>,
}

#[derive(Debug, Default)]
struct PendingControlFrames {
    /// Payload of the latest ping. RFC 6455 allows answering only the latest one.
    pong: Option<Bytes>,
    ping: bool,
    close: Option<u16>,
}

impl RawClient {
    /// Starts a client on a connected stream (for WebSocket: after the upgrade). Notifications go to `listener`. Call it
    /// inside a Tokio runtime.
    pub fn new(stream: ByteStream, framing: Framing, listener: impl NotificationListener) -> Self {
        let ByteStream { reader, mut writer, leftover, probe, is_private } = stream;
        let (outgoing_tx, outgoing_rx) = mpsc::channel(OUTGOING);
        let (closed_tx, closed_rx) = watch::channel(None);
        let (broken_tx, broken_rx) = oneshot::channel();
        let (abandon_tx, abandon_rx) = oneshot::channel();
        let shared = Arc::new(ClientShared {
            pending: PendingCalls::new(MAX_CALLS),
            control_frames: Mutex::new(PendingControlFrames::default()),
            control_frames_changed: Notify::new(),
            abandon_tx: Mutex::new(Some(abandon_tx)),
        });
        let mut tasks = JoinSet::new();
        let receiver = Receiver::new(framing, reader, leftover);
        let progress = receiver.progress();
        let reading = ReaderTask {
            shared: Arc::clone(&shared),
            receiver,
            outgoing_tx: outgoing_tx.clone(),
            broken_rx,
            abandon_rx,
            closed_tx,
            listener,
        };
        tasks.spawn(reading.run());
        let outbox = if is_private { Outbox::unmasked(framing) } else { Outbox::new(framing) };
        let writing = WriterTask { shared: Arc::clone(&shared), outbox, outgoing_rx };
        tasks.spawn(async move {
            if let Err(error) = writing.run(&mut writer).await {
                broken_tx.send(CloseReason::Io(error)).ok(); // Fails if the reader has ended first, with its own reason.
            }
        });
        Self { shared, outgoing_tx, closed_rx, probe, progress, _tasks: tasks }
    }

    /// Sends a request. Returns when it is queued behind everything that was sent before.
    ///
    /// The params are encoded into the message itself. They are a wire type or a `RawValue`, whose encoding cannot fail.
    pub async fn send(&self, method: &str, params: &impl Serialize) -> Result<SentRequest, CallError> {
        self.send_call(self.shared.pending.register()?, None, request(method, params)).await
    }

    /// Sends a request that frees a resource on the server. It has one extra place when the table of calls is full.
    pub async fn send_cleanup(&self, method: &str, params: &impl Serialize) -> Result<SentRequest, CallError> {
        self.send_call(self.shared.pending.register_cleanup()?, None, request(method, params)).await
    }

    /// Sends a request with attached bytes, to a peer that has announced support for them.
    pub async fn send_attached(
        &self,
        method: &str,
        params: &impl Serialize,
        attached: Bytes,
    ) -> Result<SentRequest, CallError> {
        let encode = |id, out: &mut Vec<u8>| message::attach(out, |out| request(method, params)(id, out));
        self.send_frame(encode, attached).await
    }

    /// Sends a request as a binary frame. `head` encodes the frame's head for the given id.
    pub async fn send_frame(
        &self,
        head: impl FnOnce(i64, &mut Vec<u8>),
        bytes: Bytes,
    ) -> Result<SentRequest, CallError> {
        self.send_call(self.shared.pending.register()?, Some(bytes), head).await
    }

    async fn send_call(
        &self,
        call: PendingCall<CallAnswer>,
        attached: Option<Bytes>,
        encode: impl FnOnce(i64, &mut Vec<u8>),
    ) -> Result<SentRequest, CallError> {
        let mut head = Vec::with_capacity(ENVELOPE_BYTES);
        encode(call.id(), &mut head);
        self.queue(EncodedMessage { head, attached }).await?;
        Ok(SentRequest { call })
    }

    /// Sends a notification. Returns when it is queued.
    pub async fn notify(&self, method: &str, params: &impl Serialize) -> Result<(), CallError> {
        let mut message = Vec::with_capacity(ENVELOPE_BYTES);
        message::encode_notification(&mut message, method, params);
        self.queue(EncodedMessage::text(message)).await
    }

    /// Queues a message for the writer. A peer that does not read can block the writer indefinitely, so the end of the
    /// connection also ends this wait.
    async fn queue(&self, message: EncodedMessage) -> Result<(), CallError> {
        // Both arms are cancel safe: a message that was not queued is not sent.
        tokio::select! {
            biased;
            closed = self.closed() => Err(PendingError::Disconnected(closed).into()),
            queued = self.outgoing_tx.send(Some(message)) => match queued {
                Ok(()) => Ok(()),
                // The writer is gone, so the reader is about to end. Wait for its reason, which is more precise.
                Err(_) => Err(PendingError::Disconnected(self.closed().await).into()),
            },
        }
    }

    /// Returns the number of calls that wait for an answer.
    pub fn in_flight(&self) -> usize {
        self.shared.pending.len()
    }

    /// Waits for the end of the connection and returns the reason.
    pub async fn closed(&self) -> Arc<CloseReason> {
        let mut closed_rx = self.closed_rx.clone();
        match closed_rx.wait_for(Option::is_some).await {
            Ok(closed) => closed.clone().expect("waited for a reason"),
            // The reader was aborted together with the runtime.
            Err(_) => Arc::new(CloseReason::Eof),
        }
    }

    /// Sends all queued messages and a close frame, then shuts down the write direction. Returns when the connection
    /// has ended.
    pub async fn finish(&self) {
        if self.outgoing_tx.send(None).await.is_ok() {
            self.closed().await;
        }
    }

    /// Sends a WebSocket ping ahead of everything that is queued. The TCP acknowledgement of the peer's host shows in
    /// [`silent_for`](Self::silent_for), the peer's pong in [`progress`](Self::progress).
    pub fn ping(&self) {
        self.shared.request_control_frame(|control_frames| control_frames.ping = true);
    }

    /// How long the peer's host has sent no TCP acknowledgement. `None` if the transport is not TCP, or is closed.
    pub fn silent_for(&self) -> Option<Duration> {
        self.probe.as_ref().and_then(TcpProbe::last_ack_ms).map(|ms| Duration::from_millis(ms.into()))
    }

    /// A counter that changes when something was received from the peer, including a part of a message.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Ends the connection without waiting for the peer. Every waiting call ends with this reason.
    pub fn abandon(&self, reason: CloseReason) {
        if let Some(abandon_tx) = self.shared.abandon_tx.lock().take() {
            abandon_tx.send(reason).ok(); // Fails if the reader has already ended.
        }
    }
}

/// Encodes a request with the given id.
fn request(method: &str, params: &impl Serialize) -> impl FnOnce(i64, &mut Vec<u8>) {
    move |id, out| message::encode_request(out, &RequestId::Number(id), method, params)
}

struct ReaderTask<L> {
    shared: Arc<ClientShared>,
    receiver: Receiver,
    outgoing_tx: mpsc::Sender<QueuedMessage>,
    /// Fires when the writer has failed.
    broken_rx: oneshot::Receiver<CloseReason>,
    /// Fires when the user abandons the connection.
    abandon_rx: oneshot::Receiver<CloseReason>,
    closed_tx: watch::Sender<Option<Arc<CloseReason>>>,
    listener: L,
}

impl<L: NotificationListener> ReaderTask<L> {
    async fn run(mut self) {
        let closed = loop {
            // All arms are cancel safe. Read first: an answer that has arrived takes precedence over a failed write.
            let received = tokio::select! {
                biased;
                received = self.receiver.recv() => received,
                Ok(closed) = &mut self.broken_rx, if !self.broken_rx.is_terminated() => Err(closed),
                Ok(closed) = &mut self.abandon_rx, if !self.abandon_rx.is_terminated() => Err(closed),
            };
            match received {
                Ok(InboundFrame::Message(bytes)) => {
                    let Self { shared, outgoing_tx, abandon_rx, listener, .. } = &mut self;
                    // A listener may take long, and `abandon` must not wait for it.
                    let handled = tokio::select! {
                        biased;
                        handled = handle_message(shared, outgoing_tx, listener, bytes) => handled,
                        Ok(closed) = abandon_rx, if !abandon_rx.is_terminated() => Err(closed),
                    };
                    if let Err(closed) = handled {
                        break closed;
                    }
                }
                Ok(InboundFrame::Ping(payload)) => {
                    self.shared.request_control_frame(|control_frames| control_frames.pong = Some(payload))
                }
                Ok(InboundFrame::Pong(_)) => {}
                Err(closed) => break closed,
            }
        };
        // If the reason has no close code, the stream has ended or failed. Request a close frame all the same, because
        // encoding it ends the writer.
        self.shared.request_control_frame(|control_frames| control_frames.close = Some(closed.code().unwrap_or(1000)));
        let closed = Arc::new(closed);
        // Drain the calls last: a caller that sees its call fail can then also see the reason.
        self.closed_tx.send_replace(Some(Arc::clone(&closed)));
        self.shared.pending.drain(closed);
    }
}

async fn handle_message(
    shared: &ClientShared,
    outgoing_tx: &mpsc::Sender<QueuedMessage>,
    listener: &mut impl NotificationListener,
    bytes: Bytes,
) -> Result<(), CloseReason> {
    if frame::is_frame(&bytes) {
        return listener.frame(bytes).await;
    }
    let (json, attached) = message::detach(&bytes);
    let incoming = message::decode(json).map_err(|_| CloseReason::Protocol("malformed message"))?;
    match incoming {
        // An unknown id belongs to an abandoned call, or to a message that the server could not parse.
        Incoming::Response { id: RequestId::Number(id), result } => {
            let attached = attached.map(|attached| bytes.slice_ref(attached));
            shared.pending.complete(id, Ok((result.to_owned(), attached)));
        }
        Incoming::Error { id: RequestId::Number(id), error } => {
            let data = error.data.map(RawValue::to_owned);
            let error = CallError::Rpc { code: error.code, message: error.message.into_owned(), data };
            shared.pending.complete(id, Err(error));
        }
        // Our ids are numbers, so these answers are not for us.
        Incoming::Response { id: RequestId::Text(_), .. } | Incoming::Error { id: RequestId::Text(_), .. } => {}
        Incoming::Notification { method, params } => listener.notification(&method, params).await?,
        Incoming::Request { id, .. } => {
            let mut refusal = Vec::new();
            let kind = Kind::UnknownMethod;
            message::encode_error(&mut refusal, &id, kind.code(), kind, "this client serves no method");
            // Sending fails only if the writer has failed, which `broken_rx` reports.
            outgoing_tx.send(Some(EncodedMessage::text(refusal))).await.ok();
        }
    }
    Ok(())
}

struct WriterTask {
    shared: Arc<ClientShared>,
    outbox: Outbox,
    outgoing_rx: mpsc::Receiver<QueuedMessage>,
}

impl WriterTask {
    async fn run(mut self, writer: &mut (impl tokio::io::AsyncWrite + Unpin)) -> std::io::Result<()> {
        use tokio::io::AsyncWriteExt as _;
        let mut open = true;
        while open {
            // Both arms are cancel safe: a message or a wake-up that was not received stays pending.
            tokio::select! {
                biased;
                () = self.shared.control_frames_changed.notified() => open = self.encode_control_frames(),
                // If all senders are gone, this also sends a close frame.
                outgoing = self.outgoing_rx.recv() => open = self.encode(outgoing.flatten()),
            }
            while open && self.outbox.len() < BATCH_BYTES {
                let Ok(outgoing) = self.outgoing_rx.try_recv() else { break };
                open = self.encode(outgoing);
            }
            self.outbox.flush_to(writer).await?;
        }
        writer.shutdown().await
    }

    /// Encodes one message. Returns false if it is the last one.
    fn encode(&mut self, outgoing: QueuedMessage) -> bool {
        let is_open = outgoing.is_some();
        match outgoing {
            Some(message) => self.outbox.encoded(message),
            None => self.outbox.close(1000, ""),
        }
        is_open
    }

    /// Encodes the pending control frames. Returns false after a close.
    fn encode_control_frames(&mut self) -> bool {
        let control_frames = std::mem::take(&mut *self.shared.control_frames.lock());
        if let Some(payload) = control_frames.pong {
            self.outbox.pong(&payload);
        }
        if control_frames.ping {
            self.outbox.ping(b"");
        }
        if let Some(code) = control_frames.close {
            self.outbox.close(code, "");
        }
        control_frames.close.is_none()
    }
}

impl ClientShared {
    fn request_control_frame(&self, change: impl FnOnce(&mut PendingControlFrames)) {
        change(&mut self.control_frames.lock());
        self.control_frames_changed.notify_one();
    }
}
