//! One connection whose handshake is done, and the handshake itself.
//!
//! Decides which failures are worth another attempt. Does not depend on what the session does between two links.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_server_protocol::{
    SessionId, base64,
    capabilities::ClientCapabilities,
    failure::{self, Kind},
    frame::{self, WriteFrame},
    initialize::{InitializeParams, InitializeResult},
    limits, message,
    method::{Method, Notification},
};
use exec_server_rpc::{
    CloseReason, Framing,
    calls::PendingError,
    client::{CallError, RawClient, SentRequest},
};
use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};
use tokio::{sync::Mutex, time};

use crate::{
    Request, compat,
    error::{Error, chain},
    notifications::{ChannelMap, NotificationRouter},
    requests,
    session::{ProcessKey, SessionOptions},
    transport::{Carrier, Connect},
};

/// Timeout for the server's answer to a close.
pub(crate) const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How often a peer over TCP is checked and pinged.
const PING_EVERY: Duration = Duration::from_secs(10);

/// If the peer's host has sent no TCP acknowledgement for this long, the next check closes the link.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Limit for the bytes of stdin in flight to all processes of a link: 32 MiB. Above it, each process has at most one write in flight. The
/// limit is half of what a server buffers for a connection. A server whose buffer is full refuses writes. If it refused one of several
/// writes to a process, the process would get the later ones too early.
const WRITING_BYTES: usize = limits::REQUESTS_WAITING_BYTES / 2;

/// One connection whose handshake is done.
pub(crate) struct ServerLink {
    pub(crate) raw: RawClient,
    pub(crate) epoch: u64,
    /// Whether the server speaks the dialect `binary`.
    is_binary: bool,
    /// Whether messages are WebSocket frames, which support pings.
    has_pings: bool,
    /// Whether the link uses the dialect `attached`, in which only blocks of files are attached as bytes.
    takes_blocks: bool,
    /// The channel numbers of processes in binary frames, as the server assigned them.
    channels: Arc<ChannelMap>,
    /// Bytes of stdin that were sent and are not answered yet.
    writing: AtomicUsize,
    /// The program or tunnel that carries the connection, if any. Ends with the link.
    carrier: Mutex<Option<Box<dyn Carrier>>>,
}

/// The parameters of one attempt to connect.
pub(crate) struct DialRequest<'a> {
    pub(crate) options: &'a SessionOptions,
    /// The session to resume; `None` creates one.
    pub(crate) resume: Option<SessionId>,
    /// Whether to take the session over from a connection that is still attached to it.
    pub(crate) takeover: bool,
    /// The number of the link among those of this client's session.
    pub(crate) epoch: u64,
    /// A start to send together with the handshake.
    pub(crate) early: Option<EarlyAttempt<'a>>,
}

/// An attempt to connect that sends `initialize`, `initialized` and `process/start` together.
#[derive(Clone, Copy)]
pub(crate) struct EarlyAttempt<'a> {
    /// The key by which the server recognizes the session in a later attempt.
    pub(crate) session_key: &'a str,
    /// The number of this attempt, from 1.
    pub(crate) number: u64,
    /// The params of `process/start`.
    pub(crate) start: &'a RawValue,
    /// Set before the start is sent.
    pub(crate) is_sent: &'a AtomicBool,
}

/// A link after the handshake.
pub(crate) struct DialedLink {
    pub(crate) link: ServerLink,
    pub(crate) result: InitializeResult,
    /// The start that was sent with the handshake.
    pub(crate) started: Option<SentRequest>,
}

/// A failed attempt to connect or to do the handshake.
pub(crate) struct DialError {
    pub(crate) error: Error,
    pub(crate) is_worth_retrying: bool,
    /// Whether the server violated the protocol. The session gives a server up after repeated violations.
    pub(crate) is_violation: bool,
    /// Whether a start was sent with the handshake, and no answer says whether the server handled it.
    pub(crate) may_have_started: bool,
}

impl DialError {
    /// A failure that another attempt may avoid.
    pub(crate) fn retryable(error: Error) -> Self {
        Self { error, is_worth_retrying: true, is_violation: false, may_have_started: false }
    }

    /// A failure that every further attempt would repeat.
    pub(crate) fn permanent(error: Error) -> Self {
        Self { error, is_worth_retrying: false, is_violation: false, may_have_started: false }
    }

    /// Whether the link broke before the answer, so that the request may still reach the server. A timeout does not count.
    pub(crate) fn may_come_late(&self) -> bool {
        matches!(self.error, Error::Disconnected { .. })
    }
}

/// The params of a call, which can be sent on any link.
#[derive(Clone, Copy)]
pub(crate) enum CallPayload<'a> {
    /// Params only, encoded once for all links.
    Params(&'a RawValue),
    /// Params with bytes. `params` creates the params from the base64 text of the bytes, or from an empty text if the bytes are attached.
    WithBytes { bytes: &'a Bytes, params: &'a (dyn Fn(String) -> Result<Box<RawValue>, Error> + Sync) },
}

impl ServerLink {
    /// Sends the request of a call.
    pub(crate) async fn send_payload(&self, method: Method, payload: CallPayload<'_>) -> Result<SentRequest, Error> {
        let sent = match payload {
            CallPayload::Params(params) => self.send(method, &params).await,
            CallPayload::WithBytes { bytes, params } if self.takes_attached(method) => {
                self.raw.send_attached(method.name(), &params(String::new())?, bytes.clone()).await
            }
            CallPayload::WithBytes { bytes, params } => {
                self.raw.send(method.name(), &params(base64::encode(bytes))?).await
            }
        };
        sent.map_err(|error| self.error(method.name(), error))
    }

    fn takes_attached(&self, method: Method) -> bool {
        self.is_binary || (self.takes_blocks && method == Method::FsWriteBlock)
    }

    /// Sends bytes to a process by its channel number; `None` if the server has not assigned one yet.
    pub(crate) async fn send_write(
        &self,
        key: &ProcessKey,
        write_id: &str,
        bytes: &Bytes,
    ) -> Option<Result<SentRequest, CallError>> {
        let channel = self.channels.number_of(key)?;
        let head = |id, out: &mut Vec<u8>| {
            let is_short = WriteFrame { channel, id, write_id }.encode(out);
            debug_assert!(is_short, "our own write ids are short");
        };
        Some(self.raw.send_frame(head, bytes.clone()).await)
    }

    /// Whether a process that has a write in flight may send another one.
    pub(crate) fn has_room_for_write(&self, bytes: usize) -> bool {
        self.writing.load(Ordering::Relaxed) + bytes <= WRITING_BYTES
    }

    /// Counts a write that was sent.
    pub(crate) fn begin_write(&self, bytes: usize) {
        self.writing.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Uncounts a write that was answered; see [`begin_write`](Self::begin_write).
    pub(crate) fn end_write(&self, bytes: usize) {
        self.writing.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Sends a request. Requests go out in the order of the calls to this function.
    pub(crate) async fn send(&self, method: Method, params: &impl Serialize) -> Result<SentRequest, CallError> {
        match method {
            // A terminate must get through even when a thousand reads are waiting.
            Method::ProcessTerminate | Method::CommandExecTerminate => {
                self.raw.send_cleanup(method.name(), params).await
            }
            _ => self.raw.send(method.name(), params).await,
        }
    }

    /// Pings the peer, or closes a link whose peer has disappeared without a close, for example behind a NAT that dropped the connection.
    pub(crate) fn check_alive(&self) {
        match self.raw.silent_for() {
            Some(silent) if silent >= DEAD_AFTER => {
                let text = format!("no sign of life for {} s", silent.as_secs());
                self.raw.abandon(CloseReason::Io(io::Error::new(io::ErrorKind::TimedOut, text)));
            }
            Some(_) | None => self.raw.ping(),
        }
    }

    /// Makes the peer send something: a pong, or the answer to a cheap request if the transport has no pings.
    pub(crate) fn request_activity(&self) {
        if self.has_pings {
            self.raw.ping();
        } else {
            // Polling once is enough to send the request. Its answer counts as progress when it arrives, so nothing waits for it. If the
            // queue is full, enough other requests are in flight.
            let asking = self.raw.send(requests::EnvironmentStatus::NAME, &exec_server_protocol::Empty {});
            drop(asking.now_or_never());
        }
    }

    /// Runs work on a link before the keeper maintains it, and pings the peer at the same time. If the peer is dead, the link is closed,
    /// which fails the calls that the work waits for.
    pub(crate) async fn run_with_pings<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        let mut pings = ping_interval();
        loop {
            // Both arms are cancel safe: the work is pinned outside of the loop and keeps its progress.
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = pings.tick(), if self.raw.silent_for().is_some() => self.check_alive(),
            }
        }
    }

    /// Closes the connection cleanly, then ends its carrier.
    pub(crate) async fn end(&self) {
        // The timeout is ignored: a server that does not answer a close must not block the client.
        time::timeout(CLOSE_WITHIN, self.raw.finish()).await.ok();
        self.end_carrier().await;
    }

    /// Closes the connection, ends its carrier and waits for it: a program that this client started must not outlive the connection.
    async fn end_carrier(&self) {
        self.raw.abandon(CloseReason::Eof);
        if let Some(mut carrier) = self.carrier.lock().await.take() {
            carrier.end().await;
        }
    }

    /// Calls a method, typed, on this link only.
    pub(crate) async fn call<M: Request>(&self, params: &M::Params<'_>) -> Result<M::Result, Error> {
        let fail = |error| self.error(M::NAME, error);
        let sent = self.send(M::METHOD, params).await.map_err(fail)?;
        decode(M::NAME, &sent.answer().await.map_err(fail)?)
    }

    pub(crate) async fn notify(&self, notification: Notification, params: &impl Serialize) -> Result<(), Error> {
        self.raw.notify(notification.name(), params).await.map_err(|error| self.error("notify", error))
    }

    /// Converts the error of a call.
    pub(crate) fn error(&self, method: &str, error: CallError) -> Error {
        #[derive(Deserialize)]
        struct ErrorData {
            kind: Option<String>,
        }
        match error {
            // The server is shutting down. Close the link, even if the server keeps the connection open.
            CallError::Rpc { code, message, .. } if compat::is_shutdown(code, &message) => {
                self.raw.abandon(CloseReason::Peer { code: 1000, reason: message });
                Error::Disconnected { reason: None }
            }
            CallError::Rpc { code, message, data } => {
                let data = data.and_then(|data| serde_json::from_str::<ErrorData>(data.get()).ok());
                let kind = data.and_then(|data| data.kind).and_then(|word| Kind::find(&word));
                // Another connection has taken the session over. The server answers the remaining calls with this error, and then sends a
                // close frame. The keeper decides whether the session can be resumed, so treat the error as the end of the link.
                if kind == Some(Kind::SessionResumedElsewhere) {
                    return Error::Disconnected { reason: Some(message) };
                }
                Error::Server { code, kind, message }
            }
            CallError::Pending(PendingError::Full { limit }) => {
                Error::Protocol(format!("{method}: {limit} calls are already waiting for answers"))
            }
            CallError::Pending(PendingError::Disconnected(closed)) => {
                Error::Disconnected { reason: Some(chain(&*closed)) }
            }
        }
    }
}

/// The interval at which a link is checked for signs of life.
pub(crate) fn ping_interval() -> time::Interval {
    let mut pings = time::interval(PING_EVERY);
    pings.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    pings
}

/// Opens a link and does the handshake. The final `initialized` notification is sent only in an early attempt.
pub(crate) async fn dial(
    connect: &dyn Connect,
    request: DialRequest<'_>,
    router: NotificationRouter,
) -> Result<DialedLink, DialError> {
    let DialRequest { options, resume, takeover, epoch, early } = request;
    let address = connect.address();
    let connect_within = options.connect_timeout;
    let initialize_within = options.initialize_timeout.saturating_add(connect.patience());
    let connection = match time::timeout(connect_within, connect.connect()).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            let is_worth_retrying = matches!(error, Error::Connect { .. } | Error::Spawn { .. });
            return Err(DialError { is_worth_retrying, ..DialError::retryable(error) });
        }
        Err(_) => return Err(DialError::retryable(Error::ConnectTimeout { address, within: connect_within })),
    };
    // A program that carries the connection, such as ssh, may never reach a server. Its end does not say whether a start has arrived, so the start is
    // sent after the answer.
    let early = early.filter(|_| connection.carrier.is_none());
    let has_frames = matches!(connection.framing, Framing::WebSocket { .. });
    let channels = Arc::clone(&router.channels);
    let raw = RawClient::new(connection.stream, connection.framing, router);
    let carrier = Mutex::new(connection.carrier);
    let mut link = ServerLink {
        raw,
        epoch,
        has_pings: has_frames,
        is_binary: false,
        takes_blocks: false,
        channels,
        writing: AtomicUsize::new(0),
        carrier,
    };
    let (session_key, attempt) = early.map_or((None, 0), |early| (Some(early.session_key.to_owned()), early.number));
    let params = InitializeParams {
        client_name: options.name.clone(),
        // A server that does not know `sessionKey` then refuses the handshake, and with it the start behind it.
        resume_session_id: resume.clone().or_else(|| session_key.as_deref().map(SessionId::from)),
        capabilities: Some(ClientCapabilities {
            ack: true,
            gap: true,
            concurrent: true,
            dialects: vec![frame::BINARY.to_owned(), message::ATTACHED.to_owned()],
        }),
        ttl_ms: options.ttl,
        takeover: takeover || attempt > 1,
        session_key,
        attempt,
    };
    let shaking_hands = async {
        let fail = |error| link.error(requests::Initialize::NAME, error);
        let initializing = link.send(Method::Initialize, &params).await.map_err(fail)?;
        let started = match early {
            None => None,
            Some(early) => {
                link.notify(Notification::Initialized, &exec_server_protocol::Empty {}).await?;
                early.is_sent.store(true, Ordering::Relaxed);
                Some(link.send(Method::ProcessStart, &early.start).await.map_err(fail)?)
            }
        };
        let result = initializing.answer().await.map_err(fail)?;
        Ok((decode::<InitializeResult>(requests::Initialize::NAME, &result)?, started))
    };
    let dial_error = match time::timeout(initialize_within, shaking_hands).await {
        Ok(Ok((result, _))) if early.is_some() && !has_session_keys(&result) => {
            let reason = Some(format!("the server at {address} was replaced by another version"));
            DialError::permanent(Error::UnknownOutcome { method: requests::ProcessStart::NAME, reason })
        }
        Ok(Ok((result, started))) => {
            let dialects = result.capabilities.as_ref().map(|capabilities| &capabilities.dialects);
            let speaks = |dialect| dialects.is_some_and(|dialects| dialects.iter().any(|word| word == dialect));
            link.is_binary = speaks(frame::BINARY);
            // Newline framing cannot carry attached bytes, even if the server announces that dialect.
            link.takes_blocks = has_frames && speaks(message::ATTACHED);
            return Ok(DialedLink { link, result, started });
        }
        Ok(Err(error)) => {
            let may_have_started = early.is_some() && matches!(error, Error::Disconnected { .. });
            DialError { may_have_started, ..link.explain_handshake_error(error, resume).await }
        }
        Err(_) => DialError {
            may_have_started: early.is_some(),
            ..DialError::retryable(Error::InitializeTimeout { address, within: initialize_within })
        },
    };
    link.end_carrier().await;
    Err(dial_error)
}

fn has_session_keys(result: &InitializeResult) -> bool {
    result.session_id.is_some() && result.capabilities.as_ref().is_some_and(|capabilities| capabilities.session_key)
}

impl ServerLink {
    /// Converts the error of a failed handshake.
    async fn explain_handshake_error(&self, error: Error, resume: Option<SessionId>) -> DialError {
        let is_temporary = match &error {
            Error::Server { kind: Some(Kind::SessionAttached | Kind::SessionAdopting | Kind::Draining), .. } => true,
            // Without one of these kinds, the code decides.
            Error::Server { code, .. } => *code == failure::SESSION_ATTACHED,
            _ => false,
        };
        if is_temporary {
            return DialError::retryable(error);
        }
        match (error, resume) {
            (Error::Server { code, kind, message }, _) if compat::is_attached(kind, &message) => {
                DialError::retryable(Error::Server { code, kind: Some(Kind::SessionAttached), message })
            }
            (Error::Server { message, .. }, Some(session_id)) => {
                DialError::permanent(Error::SessionLost { session_id, reason: message })
            }
            (error @ Error::Disconnected { .. }, _) => self.explain_broken_link(error).await,
            (error, _) => DialError::permanent(error),
        }
    }

    /// Converts the error of a link that broke before it was usable. The carrier, such as ssh, may know the reason.
    pub(crate) async fn explain_broken_link(&self, error: Error) -> DialError {
        let closed = self.raw.closed().await;
        let explained = match &*self.carrier.lock().await {
            Some(carrier) => carrier.explain().await,
            None => None,
        };
        let is_violation = is_violation(&closed);
        let error = explained.unwrap_or_else(|| {
            if !is_violation {
                return error;
            }
            let reason = chain(&*closed);
            Error::Protocol(format!("the server does not speak the protocol: {reason}; is it an exec-server?"))
        });
        DialError { is_violation, ..DialError::retryable(error) }
    }
}

/// Whether a link ended because the server violated the protocol.
pub(crate) fn is_violation(closed: &CloseReason) -> bool {
    matches!(closed, CloseReason::TooLarge { .. } | CloseReason::Protocol(_) | CloseReason::InvalidUtf8)
}

pub(crate) fn encode(method: &str, params: &impl Serialize) -> Result<Box<RawValue>, Error> {
    to_raw_value(params)
        .map_err(|error| Error::Protocol(format!("{method}: the parameters cannot be written as JSON: {error}")))
}

pub(crate) fn decode<T: DeserializeOwned>(method: &str, answer: &RawValue) -> Result<T, Error> {
    serde_json::from_str(answer.get())
        .map_err(|error| Error::Decode { method: method.to_owned(), reason: error.to_string() })
}
