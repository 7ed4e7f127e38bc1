//! One connection to one server: sends requests, waits for the answers, and converts failures to errors.
//!
//! A request ends with its answer, its timeout, or the end of the connection. At a timeout, or if the caller stops waiting earlier, the
//! server gets a cancellation. Whether the server is restarted is decided in `server`.

use std::{sync::Arc, time::Duration};

use futures_util::future::OptionFuture;
use parking_lot::Mutex;
use rmcp::{
    ErrorData, Peer, RoleClient,
    model::{ClientRequest, CustomRequest, CustomResult, ServerPeerInfo, ServerResult},
    service::{PeerRequestOptions, RequestHandle, ServiceError},
};
use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{self, Instant},
};

use super::{
    error::Error,
    handler::{ConnectionEnd, ConnectionShared},
    server::ManagedServer,
};
use crate::{
    config::ServerTransport,
    http::{HttpError, chain},
    transport::Progress,
};

/// Time limit for sending a cancellation. Without it, a server that does not read its input would block the cancellation forever.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// How long to wait for the reason why a connection ended. The module `server` records the reason. For a stdio server, that
/// is usually after the exit and the last output of its process.
const END_REASON_WITHIN: Duration = Duration::from_secs(5);

/// The same time limit for an HTTP server. There is no process to wait for, only the delay of the task that records the
/// reason.
const HTTP_END_REASON_WITHIN: Duration = Duration::from_millis(200);

/// See the module documentation.
pub(super) struct ServerConnection {
    pub(super) server: String,
    peer: Peer<RoleClient>,
    pub(super) shared: Arc<ConnectionShared>,
    pub(super) info: Option<Arc<ServerPeerInfo>>,
    is_http: bool,
    /// Cancellations that are being sent.
    tasks: Mutex<JoinSet<()>>,
}

impl ServerConnection {
    pub(super) fn new(server: &ManagedServer, peer: Peer<RoleClient>, shared: Arc<ConnectionShared>) -> Self {
        let info = peer.peer_info();
        let is_http = matches!(server.config.transport, ServerTransport::Http(_));
        Self { server: server.name.clone(), peer, shared, info, is_http, tasks: Mutex::default() }
    }

    /// Sends a request and returns the result. The result of a stdio server is unchanged. Over HTTP, rmcp drops fields
    /// that it does not know.
    pub(super) async fn request(
        &self,
        method: &'static str,
        params: Option<Value>,
        within: Option<Duration>,
        on_progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    ) -> Result<Value, Error> {
        let request = ClientRequest::CustomRequest(CustomRequest::new(method, params));
        let sending = self.peer.send_request_with_option(request, PeerRequestOptions::no_options());
        let handle = match sending.await {
            Ok(handle) => handle,
            Err(error) => return Err(self.failed(method, error).await),
        };
        let _registration =
            on_progress.map(|callback| self.shared.register_progress(handle.progress_token.clone(), callback));
        let mut pending = PendingRequest { connection: self, handle: Some(handle) };
        match pending.answer(method, within).await? {
            Ok(ServerResult::CustomResult(CustomResult(value))) => Ok(value),
            // Over HTTP, rmcp has parsed the result into one of its own types.
            Ok(typed) => serde_json::to_value(typed).map_err(|error| Error::Unreadable {
                server: self.server.clone(),
                method,
                reason: error.to_string(),
            }),
            Err(error) => Err(self.failed(method, error).await),
        }
    }

    /// Converts an error of rmcp.
    async fn failed(&self, method: &'static str, error: ServiceError) -> Error {
        let server = self.server.clone();
        match error {
            ServiceError::McpError(ErrorData { code, message, data }) => {
                Error::Answer { server, method, code: code.0, message: message.into_owned(), data }
            }
            // Over HTTP each request can fail on its own, without the end of the connection.
            ServiceError::TransportSend(_) if self.is_http => self.http_error(&error),
            // The connection has ended. `server` records the reason shortly.
            ServiceError::TransportClosed | ServiceError::TransportSend(_) => {
                let within = if self.is_http { HTTP_END_REASON_WITHIN } else { END_REASON_WITHIN };
                let mut end = self.shared.end.subscribe();
                let ended = time::timeout(within, end.wait_for(Option::is_some)).await;
                match ended.ok().and_then(Result::ok).and_then(|end| end.clone()) {
                    Some(end) => self.end_error(method, end),
                    None if self.is_http => self.http_error(&error),
                    None => Error::Send { server, method, reason: chain(&error) },
                }
            }
            other => Error::Send { server, method, reason: chain(&other) },
        }
    }

    /// Converts an HTTP error. If the server requires authentication, all later requests would fail too. `refuse` then
    /// makes the module `server` end the connection without a restart.
    fn http_error(&self, error: &ServiceError) -> Error {
        let error = super::start::http_error(&self.server, &HttpError::of_call(error));
        if let Error::AuthenticationRequired { reason, .. } = &error {
            self.shared.refuse(reason);
        }
        error
    }

    /// The error of a request whose connection ended before the answer.
    fn end_error(&self, method: &'static str, end: ConnectionEnd) -> Error {
        let server = self.server.clone();
        match end {
            ConnectionEnd::Crashed { reason, is_restarted } => Error::Crashed { server, method, reason, is_restarted },
            ConnectionEnd::Ended => Error::Cancelled { server },
        }
    }
}

/// A request that waits for its answer. Dropping it before the answer cancels the request.
struct PendingRequest<'a> {
    connection: &'a ServerConnection,
    handle: Option<RequestHandle<RoleClient>>,
}

impl PendingRequest<'_> {
    /// Waits for the answer. The timeout is paused while the server asks the user something.
    async fn answer(
        &mut self,
        method: &'static str,
        within: Option<Duration>,
    ) -> Result<Result<ServerResult, ServiceError>, Error> {
        let connection = self.connection;
        // There is always a handle: `request` calls this once, right after the request was sent.
        let Some(handle) = &mut self.handle else { return Err(connection.end_error(method, ConnectionEnd::Ended)) };
        let mut open_questions = connection.shared.open_questions.subscribe();
        let mut end = connection.shared.end.subscribe();
        let mut left = within;
        loop {
            let is_paused = *open_questions.borrow_and_update() > 0;
            let began = Instant::now();
            let timeout = OptionFuture::from(left.filter(|_| !is_paused).map(time::sleep));
            // Poll the answer first: a server may answer and then exit.
            tokio::select! {
                biased;
                answer = &mut handle.rx => {
                    // Nothing is left to cancel.
                    self.handle = None;
                    return Ok(answer.unwrap_or(Err(ServiceError::TransportClosed)));
                }
                ended = end.wait_for(Option::is_some) => {
                    let ended = ended.ok().and_then(|ended| ended.clone());
                    // The connection has ended, so no cancellation can be sent.
                    self.handle = None;
                    return Err(connection.end_error(method, ended.unwrap_or(ConnectionEnd::Ended)));
                }
                // Cannot fail: the sender is in our own `shared`.
                changed = open_questions.changed() => drop(changed),
                Some(()) = timeout => {
                    // Always set: without it there is no timeout.
                    let within = within.unwrap_or_default();
                    return Err(Error::Timeout { server: connection.server.clone(), method: method.to_owned(), within });
                }
            }
            // The time in which the server waits for the user does not count.
            if !is_paused {
                left = left.map(|left| left.saturating_sub(began.elapsed()));
            }
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        // Outside a runtime no task can be spawned. The server then gets no cancellation.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let mut tasks = self.connection.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let ended = handle.cancel(Some("the caller no longer waits for the answer".to_owned()));
            // Ignore a timeout: the server is probably gone.
            time::timeout(CANCEL_WITHIN, ended).await.ok();
        });
    }
}
