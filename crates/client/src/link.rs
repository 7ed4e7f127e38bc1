//! One connection that has done its handshake, and the handshake itself.
//!
//! Knows which failures are worth another attempt. It must not know what becomes of the session between two links.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
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
};
use exec_server_rpc::{
    Closed, Framing,
    calls::PendingError,
    client::{CallError, RawClient, Sent},
};
use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};
use tokio::{sync::Mutex, time};

use crate::{
    error::{Error, chain},
    hearing::{Channels, Ear},
    requests::{self, Method},
    session::{Key, Options},
    transport::{Carrier, Connect},
};

/// How long a server may take to answer a close.
pub(crate) const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The end of what a server says of a session that has a connection.
const ATTACHED: &str = "is already attached to another connection";

/// How often a peer over TCP is pinged, and after how long without a sign of life of its machine the link counts as cut.
const PING_EVERY: Duration = Duration::from_secs(10);
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Bytes of stdin on their way to all processes of a link, beyond which none sends a second write ahead: half of what a server
/// holds for a connection before it refuses more, 32 MiB. Its refusals could put writes out of order that were sent ahead.
const WRITING_BYTES: usize = limits::REQUESTS_WAITING_BYTES / 2;

/// One connection that has done its handshake.
pub(crate) struct Link {
    pub(crate) raw: RawClient,
    pub(crate) epoch: u64,
    /// The server of this link speaks the dialect `binary`.
    is_binary: bool,
    /// Messages are WebSocket frames, so that there are pings.
    has_pings: bool,
    /// It speaks `attached`, which knows blocks of files alone.
    takes_blocks: bool,
    /// The numbers of processes in binary frames, as the server gave them.
    channels: Arc<Channels>,
    /// Bytes of stdin that were sent and not answered.
    writing: AtomicUsize,
    /// Ends with the link.
    carrier: Mutex<Option<Box<dyn Carrier>>>,
}

/// An answer to `initialize` that was not the hoped-for one, or no answer.
pub(crate) struct Refused {
    pub(crate) error: Error,
    pub(crate) is_worth_retrying: bool,
    /// The server broke the rules of the protocol; one that does so again and again is given up.
    pub(crate) is_offence: bool,
}

impl Refused {
    /// What another attempt may change.
    pub(crate) fn for_now(error: Error) -> Self {
        Self { error, is_worth_retrying: true, is_offence: false }
    }

    /// What no attempt can change.
    pub(crate) fn for_good(error: Error) -> Self {
        Self { error, is_worth_retrying: false, is_offence: false }
    }

    /// Whether nobody answered: what was asked may still reach the server.
    pub(crate) fn may_come_late(&self) -> bool {
        matches!(self.error, Error::Disconnected { .. })
    }
}

/// What a call sends, on whichever link it gets.
pub(crate) trait Sending: Sync {
    fn send(&self, link: &Link, method: &str) -> impl Future<Output = Result<Sent, CallError>> + Send;
}

/// Params alone, as text: else the way of a call would be compiled again for each method.
pub(crate) struct Plain<'a>(pub(crate) &'a RawValue);

impl Sending for Plain<'_> {
    async fn send(&self, link: &Link, method: &str) -> Result<Sent, CallError> {
        link.send(method, &self.0).await
    }
}

/// Bytes, and the params that they are put into as text where the server does not take them attached.
pub(crate) struct WithBytes<'a, F>(pub(crate) &'a F, pub(crate) &'a Bytes);

impl<P: Serialize + Send + Sync, F: Fn(String) -> P + Sync> Sending for WithBytes<'_, F> {
    async fn send(&self, link: &Link, method: &str) -> Result<Sent, CallError> {
        let Self(params, bytes) = self;
        if link.takes_attached(method) {
            link.raw.send_attached(method, &params(String::new()), (*bytes).clone()).await
        } else {
            link.raw.send(method, &params(base64::encode(bytes))).await
        }
    }
}

impl Link {
    fn takes_attached(&self, method: &str) -> bool {
        self.is_binary || (self.takes_blocks && method == requests::FsWriteBlock::NAME)
    }

    /// Sends bytes to a process by the number that the server gave it; `None` where it gave none yet.
    pub(crate) async fn send_write(&self, key: &Key, write_id: &str, bytes: &Bytes) -> Option<Result<Sent, CallError>> {
        let channel = self.channels.of(key)?;
        let head = |id, out: &mut Vec<u8>| {
            let is_short = WriteFrame { channel, id, write_id }.encode(out);
            debug_assert!(is_short, "our own write ids are short");
        };
        Some(self.raw.send_frame(head, bytes.clone()).await)
    }

    /// Whether a process that has a write on its way may send another.
    pub(crate) fn has_room_for_write(&self, bytes: usize) -> bool {
        self.writing.load(Ordering::Relaxed) + bytes <= WRITING_BYTES
    }

    /// Counts a write that was sent.
    pub(crate) fn begin_write(&self, bytes: usize) {
        self.writing.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The counterpart of [`begin_write`](Self::begin_write): it was answered.
    pub(crate) fn end_write(&self, bytes: usize) {
        self.writing.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Sends a request, in the order of the calls to this function.
    pub(crate) async fn send(&self, method: &str, params: &impl Serialize) -> Result<Sent, CallError> {
        match method {
            // What ends a process must get through when a thousand reads wait.
            "process/terminate" | "command/exec/terminate" => self.raw.send_cleanup(method, params).await,
            _ => self.raw.send(method, params).await,
        }
    }

    /// Gives up a link whose other end is gone without a word, as behind a router that forgot us.
    pub(crate) fn look_alive(&self) {
        match self.raw.silent_for() {
            Some(silent) if silent >= DEAD_AFTER => {
                let text = format!("no sign of life for {} s", silent.as_secs());
                self.raw.abandon(Closed::Io(io::Error::new(io::ErrorKind::TimedOut, text)));
            }
            Some(_) | None => self.raw.ping(),
        }
    }

    /// Asks for anything at all: a pong, or where there are no pings the answer to a question that costs nothing.
    pub(crate) fn ask_for_sign_of_life(&self) {
        if self.has_pings {
            self.raw.ping();
        } else {
            // The answer counts when it comes, though nobody waits for it. A full queue says that enough was asked.
            let asking = self.raw.send(requests::EnvironmentStatus::NAME, &exec_server_protocol::Empty {});
            drop(asking.now_or_never());
        }
    }

    /// Waits for something on a link that nobody attends yet, and looks meanwhile whether its other end lives: a link that is
    /// given up ends the calls on it, and so what is waited for.
    pub(crate) async fn watched<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        let mut look = looks();
        loop {
            // Both are cancel safe: the work stays where it is.
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = look.tick(), if self.raw.silent_for().is_some() => self.look_alive(),
            }
        }
    }

    /// Ends the connection in order, and what carries it.
    pub(crate) async fn end(&self) {
        // A server that does not answer a close must not hold its client.
        time::timeout(CLOSE_WITHIN, self.raw.finish()).await.ok();
        self.drop_carrier().await;
    }

    /// Ends what carries the link, and waits for that: a program must not outlive us.
    async fn drop_carrier(&self) {
        self.raw.abandon(Closed::Eof);
        if let Some(mut carrier) = self.carrier.lock().await.take() {
            carrier.end().await;
        }
    }

    /// A typed call on this link alone.
    pub(crate) async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, Error> {
        let fail = |error| self.error(M::NAME, error);
        let sent = self.send(M::NAME, params).await.map_err(fail)?;
        decode(M::NAME, &sent.answer().await.map_err(fail)?)
    }

    pub(crate) async fn notify(&self, method: &str, params: &impl Serialize) -> Result<(), Error> {
        self.raw.notify(method, params).await.map_err(|error| self.error("notify", error))
    }

    /// What a failed call says of link and server.
    pub(crate) fn error(&self, method: &str, error: CallError) -> Error {
        #[derive(Deserialize)]
        struct Data {
            kind: Option<String>,
        }
        match error {
            // An older peer's way to say that it is going; one that stays all the same is left.
            CallError::Rpc { code: -32000, message, .. } if message == "JSON-RPC transport closed" => {
                self.raw.abandon(Closed::Peer { code: 1000, reason: message });
                Error::Disconnected { reason: None }
            }
            CallError::Rpc { code, message, data } => {
                let data = data.and_then(|data| serde_json::from_str::<Data>(data.get()).ok());
                let kind = data.and_then(|data| data.kind).and_then(|word| Kind::find(&word));
                // The last words of a link whose session another connection has taken; its close frame follows. Whether the
                // session comes back is the keeper's business, and no reason for a process to be given up.
                if kind == Some(Kind::SessionResumedElsewhere) {
                    return Error::Disconnected { reason: Some(message) };
                }
                Error::Server { code, kind, message }
            }
            CallError::Encode(error) => not_encoded(method, &error),
            CallError::Pending(PendingError::Full { limit }) => {
                Error::Protocol(format!("{method}: {limit} calls are waiting for their answers already"))
            }
            CallError::Pending(PendingError::Disconnected(closed)) => {
                Error::Disconnected { reason: Some(chain(&*closed)) }
            }
        }
    }
}

/// When to look whether the other end of a link lives.
pub(crate) fn looks() -> time::Interval {
    let mut look = time::interval(PING_EVERY);
    look.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    look
}

/// Opens a link and does the handshake, but for the last word.
pub(crate) async fn dial(
    connect: &dyn Connect,
    options: &Options,
    resume: Option<SessionId>,
    takeover: bool,
    ear: Ear,
    epoch: u64,
) -> Result<(Link, InitializeResult), Refused> {
    let address = connect.address();
    let connect_within = options.connect_timeout;
    let initialize_within = options.initialize_timeout.saturating_add(connect.patience());
    let connection = match time::timeout(connect_within, connect.connect()).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            let is_worth_retrying = matches!(error, Error::Connect { .. } | Error::Spawn { .. });
            return Err(Refused { error, is_worth_retrying, is_offence: false });
        }
        Err(_) => return Err(Refused::for_now(Error::ConnectTimeout { address, within: connect_within })),
    };
    let has_frames = matches!(connection.framing, Framing::WebSocket { .. });
    let channels = ear.channels();
    let raw = RawClient::with_listener(connection.stream, connection.framing, ear);
    let carrier = Mutex::new(connection.carrier);
    let mut link = Link {
        raw,
        epoch,
        has_pings: has_frames,
        is_binary: false,
        takes_blocks: false,
        channels,
        writing: AtomicUsize::new(0),
        carrier,
    };
    let params = InitializeParams {
        client_name: options.name.clone(),
        resume_session_id: resume.clone(),
        capabilities: Some(ClientCapabilities {
            ack: true,
            gap: true,
            concurrent: true,
            dialects: vec![frame::BINARY.to_owned(), message::ATTACHED.to_owned()],
        }),
        ttl_ms: options.ttl,
        takeover,
    };
    let asking = link.call::<requests::Initialize>(&params);
    let refused = match time::timeout(initialize_within, asking).await {
        Ok(Ok(result)) => {
            let dialects = result.capabilities.as_ref().map(|capabilities| &capabilities.dialects);
            let speaks = |dialect| dialects.is_some_and(|dialects| dialects.iter().any(|word| word == dialect));
            link.is_binary = speaks(frame::BINARY);
            // Lines have no place for it, whatever a server says.
            link.takes_blocks = has_frames && speaks(message::ATTACHED);
            return Ok((link, result));
        }
        Ok(Err(error)) => link.explain(error, resume).await,
        Err(_) => Refused::for_now(Error::InitializeTimeout { address, within: initialize_within }),
    };
    link.drop_carrier().await;
    Err(refused)
}

impl Link {
    /// What a failed handshake means.
    async fn explain(&self, error: Error, resume: Option<SessionId>) -> Refused {
        match (error, resume) {
            (
                error @ Error::Server {
                    kind: Some(Kind::SessionAttached | Kind::SessionAdopting | Kind::Draining), ..
                },
                _,
            )
            | (error @ Error::Server { code: failure::SESSION_ATTACHED, .. }, _) => Refused::for_now(error),
            // Generation S says it in words alone.
            (Error::Server { code, kind: None, message }, _) if message.ends_with(ATTACHED) => {
                Refused::for_now(Error::Server { code, kind: Some(Kind::SessionAttached), message })
            }
            (Error::Server { message, .. }, Some(session_id)) => {
                Refused::for_good(Error::SessionLost { session_id, reason: message })
            }
            (error @ Error::Disconnected { .. }, _) => self.broken(error).await,
            (error, _) => Refused::for_good(error),
        }
    }

    /// What it means that the link broke before it was of use.
    pub(crate) async fn broken(&self, error: Error) -> Refused {
        let closed = self.raw.closed().await;
        let explained = match &*self.carrier.lock().await {
            Some(carrier) => carrier.explain().await,
            None => None,
        };
        let is_offence = is_offence(&closed);
        let error = explained.unwrap_or_else(|| match is_offence {
            true => Error::Protocol(format!(
                "the server does not speak the protocol: {}; is it an exec-server?",
                chain(&*closed)
            )),
            false => error,
        });
        Refused { is_offence, ..Refused::for_now(error) }
    }
}

/// Whether a link ended because the server broke the rules.
pub(crate) fn is_offence(closed: &Closed) -> bool {
    match closed {
        Closed::TooLarge { .. } | Closed::Protocol(_) | Closed::InvalidUtf8 => true,
        Closed::Eof | Closed::Peer { .. } | Closed::Io(_) => false,
    }
}

pub(crate) fn encode(method: &str, params: &impl Serialize) -> Result<Box<RawValue>, Error> {
    to_raw_value(params).map_err(|error| not_encoded(method, &error))
}

fn not_encoded(method: &str, error: &serde_json::Error) -> Error {
    Error::Protocol(format!("{method}: the parameters cannot be written as JSON: {error}"))
}

pub(crate) fn decode<T: DeserializeOwned>(method: &str, answer: &RawValue) -> Result<T, Error> {
    serde_json::from_str(answer.get())
        .map_err(|error| Error::Decode { method: method.to_owned(), reason: error.to_string() })
}
