//! One connection that has done its handshake, and the handshake itself.
//!
//! Knows which failures are worth another attempt. It must not know what becomes of the session between two links.

use std::{io, time::Duration};

use exec_server_protocol::{
    SessionId,
    capabilities::ClientCapabilities,
    failure::{self, Kind},
    initialize::{InitializeParams, InitializeResult},
};
use exec_server_rpc::{
    Closed,
    calls::PendingError,
    client::{CallError, RawClient, Sent},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::time;

use crate::{
    error::{Error, chain},
    hearing::Ear,
    requests::{self, Method},
    session::Options,
    transport::{Carrier, Connect},
};

/// How often a peer over TCP is pinged, and after how long without a sign of life of its machine the link counts as cut.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(10);
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// One connection that has done its handshake.
pub(crate) struct Link {
    pub(crate) raw: RawClient,
    pub(crate) epoch: u64,
    /// Ends with the link.
    carrier: Option<Box<dyn Carrier>>,
}

/// An answer to `initialize` that was not the hoped-for one, or no answer.
pub(crate) struct Refused {
    pub(crate) error: Error,
    pub(crate) is_worth_retrying: bool,
}

impl Link {
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

    /// A typed call on this link alone.
    pub(crate) async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, Error> {
        let fail = |error| link_error(M::NAME, error);
        let sent = self.send(M::NAME, params).await.map_err(fail)?;
        decode(M::NAME, &sent.answer().await.map_err(fail)?)
    }

    pub(crate) async fn notify(&self, method: &str, params: &impl Serialize) -> Result<(), Error> {
        self.raw.notify(method, params).await.map_err(|error| link_error("notify", error))
    }
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
    let initialize_within = options.initialize_timeout + connect.patience();
    let connection = match time::timeout(connect_within, connect.connect()).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            let is_worth_retrying = matches!(error, Error::Connect { .. } | Error::Spawn { .. });
            return Err(Refused { error, is_worth_retrying });
        }
        Err(_) => {
            return Err(Refused {
                error: Error::ConnectTimeout { address, within: connect_within },
                is_worth_retrying: true,
            });
        }
    };
    let raw = RawClient::with_listener(connection.stream, connection.framing, ear);
    let link = Link { raw, epoch, carrier: connection.carrier };
    let params = InitializeParams {
        client_name: options.name.clone(),
        resume_session_id: resume.clone(),
        capabilities: Some(ClientCapabilities { ack: true, gap: true, concurrent: true, dialects: Vec::new() }),
        ttl_ms: options.ttl,
        takeover,
    };
    let asking = link.call::<requests::Initialize>(&params);
    match time::timeout(initialize_within, asking).await {
        Ok(Ok(result)) => Ok((link, result)),
        Ok(Err(error)) => Err(link.explain(error, resume).await),
        Err(_) => Err(Refused {
            error: Error::InitializeTimeout { address, within: initialize_within },
            is_worth_retrying: true,
        }),
    }
}

impl Link {
    /// What a failed handshake means.
    async fn explain(&self, error: Error, resume: Option<SessionId>) -> Refused {
        match (error, resume) {
            (error @ Error::Server { kind: Some(Kind::SessionAttached | Kind::Draining), .. }, _)
            | (error @ Error::Server { code: failure::SESSION_ATTACHED, .. }, _) => {
                Refused { error, is_worth_retrying: true }
            }
            (Error::Server { message, .. }, Some(session_id)) => {
                Refused { error: Error::SessionLost { session_id, reason: message }, is_worth_retrying: false }
            }
            (error @ Error::Disconnected { .. }, _) => {
                let better = match &self.carrier {
                    Some(carrier) => carrier.explain().await,
                    None => None,
                };
                Refused { error: better.unwrap_or(error), is_worth_retrying: true }
            }
            (error, _) => Refused { error, is_worth_retrying: false },
        }
    }
}

/// Whether a link ended because the server broke the rules.
pub(crate) fn is_offence(closed: &Closed) -> bool {
    match closed {
        Closed::TooLarge { .. } | Closed::Protocol(_) | Closed::InvalidUtf8 => true,
        Closed::Eof | Closed::Peer { .. } | Closed::Io(_) => false,
    }
}

/// What a failed call says of link and server.
pub(crate) fn link_error(method: &str, error: CallError) -> Error {
    #[derive(Deserialize)]
    struct Data {
        kind: Option<String>,
    }
    match error {
        // An older peer's way to say that it is going.
        CallError::Rpc { code: -32000, message, .. } if message == "JSON-RPC transport closed" => {
            Error::Disconnected { reason: None }
        }
        CallError::Rpc { code, message, data } => {
            let data = data.and_then(|data| serde_json::from_str::<Data>(data.get()).ok());
            let kind = data.and_then(|data| data.kind).and_then(|word| Kind::find(&word));
            Error::Server { code, kind, message }
        }
        CallError::Encode(error) => {
            Error::Protocol(format!("{method}: the parameters cannot be written as JSON: {error}"))
        }
        CallError::Pending(PendingError::Full { limit }) => {
            Error::Protocol(format!("{method}: {limit} calls are waiting for their answers already"))
        }
        CallError::Pending(PendingError::Disconnected(closed)) => Error::Disconnected { reason: Some(chain(&*closed)) },
    }
}

pub(crate) fn decode<T: DeserializeOwned>(method: &str, answer: &RawValue) -> Result<T, Error> {
    serde_json::from_str(answer.get())
        .map_err(|error| Error::Decode { method: method.to_owned(), reason: error.to_string() })
}
