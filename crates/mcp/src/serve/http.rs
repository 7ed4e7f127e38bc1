//! The streamable HTTP endpoint: accepts connections, checks requests and passes them to the sessions.
//!
//! ```text
//!  socket ──▶ connection (bounded number, head in time) ──▶ gate: Host, Origin, token ──▶ path? ──▶ body (bounded) ──▶ rmcp ──▶ session
//! ```
//!
//! The [`HttpGate`] alone decides about access. It checks the head of a request before the body is read. A refused client is also
//! disconnected. After the gate the token is removed from the request, so neither a tool nor a log ever sees it.
//!
//! Failure paths: the number of connections that have not shown a token is limited; above the limit the oldest of them is closed. A request
//! whose body is too large or too slow is refused. New sessions beyond the limit are refused with 503. A failing connection affects no
//! other. When the server shuts down, running calls stop waiting and are answered, then sessions and connections are closed.

use std::{collections::VecDeque, convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE},
    request::Parts,
};
use http_body_util::{BodyExt as _, Full, Limited, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, watch},
    task::JoinSet,
    time,
};

use super::{
    McpServer,
    handler::{ClientTransport, SessionHandler},
    limits,
    sessions::HttpSessions,
    until_set,
};

/// The path of the endpoint.
pub const PATH: &str = "/mcp";

/// How long connections may take to close when the server shuts down.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How long answers may take to reach their clients when the server shuts down.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Pause after a failed accept. The likely cause is EMFILE, which would otherwise cause a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The header with the session id.
const SESSION_HEADER: &str = "mcp-session-id";

/// Decides which requests are admitted.
pub trait HttpGate: Send + Sync {
    /// Checks the head of a request. `local` is the address on which it arrived.
    fn check(&self, head: &Parts, local: SocketAddr) -> GateVerdict;
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateVerdict {
    Admitted,
    /// The `Host` header is not one of our names, or the request comes from a web page.
    Forbidden,
    /// The token is missing or wrong.
    Unauthorized,
}

type HttpAnswer = Response<BoxBody<Bytes, Infallible>>;
type McpService = StreamableHttpService<SessionHandler, HttpSessions>;

/// Shared by all connections.
struct HttpEndpoint {
    gate: Arc<dyn HttpGate>,
    sessions: Arc<HttpSessions>,
    service: McpService,
    local: SocketAddr,
}

/// Serves until [`McpServer::end`]. Sessions that were idle for `idle` are ended.
pub async fn serve(
    server: &Arc<McpServer>,
    listener: TcpListener,
    gate: Arc<dyn HttpGate>,
    idle: Duration,
) -> io::Result<()> {
    let sessions = Arc::new(HttpSessions::new(limits::SESSIONS));
    let mut config = StreamableHttpServerConfig::default().with_max_request_body_bytes(limits::MESSAGE_BYTES);
    // The gate checks `Host` and `Origin`, because it knows our names.
    config = config.disable_allowed_hosts();
    let streams = config.cancellation_token.clone();
    let handler_server = Arc::clone(server);
    let service = McpService::new(
        move || Ok(SessionHandler::new(Arc::clone(&handler_server), ClientTransport::Http)),
        Arc::clone(&sessions),
        config,
    );
    let endpoint =
        Arc::new(HttpEndpoint { gate, sessions: Arc::clone(&sessions), service, local: listener.local_addr()? });
    let (closing_tx, closing_rx) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut ending = server.ending.subscribe();
    // At least 10 ms, because an interval of zero panics. At most 30 s, so that no session outlives a long idle time by more than that.
    let mut expiry_timer = time::interval((idle / 4).clamp(Duration::from_millis(10), Duration::from_secs(30)));
    // Polled together with the accept loop, not awaited in it: ending a session can take seconds.
    let expiring = async {
        loop {
            expiry_timer.tick().await;
            sessions.expire(idle).await;
        }
    };
    tokio::pin!(expiring);
    let permits = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let unauthenticated = UnauthenticatedConnections::default();
    loop {
        // All arms are cancel safe: `accept` loses no connection, and `expiring` is not dropped.
        tokio::select! {
            accepted = accept(&listener, &permits) => match accepted {
                Ok((socket, permit)) => {
                    let endpoint = Arc::clone(&endpoint);
                    let closing = closing_rx.clone();
                    let connection_guard = UnauthenticatedConnection::register(&unauthenticated);
                    connections.spawn(async move {
                        serve_connection(socket, endpoint, connection_guard, closing).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    time::sleep(ACCEPT_PAUSE).await;
                }
            },
            // Remove finished tasks here, so that the set does not grow.
            Some(_) = connections.join_next() => {}
            () = &mut expiring => {}
            () = until_set(&mut ending) => break,
        }
    }
    drop(listener);
    server.wait_until_drained().await;
    // Ignore a timeout: a client that does not read its answer does not get it.
    time::timeout(ANSWER_WITHIN, sessions.wait_until_answered()).await.ok();
    sessions.end_all().await;
    streams.cancel();
    // Fails only if all connections are gone.
    closing_tx.send(true).ok();
    let closed = async { while connections.join_next().await.is_some() {} };
    // Ignore a timeout: `shutdown` aborts the remaining connections.
    time::timeout(CLOSE_WITHIN, closed).await.ok();
    connections.shutdown().await;
    Ok(())
}

/// Accepts a connection as soon as the number of connections is below the limit.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
    let (socket, _) = listener.accept().await?;
    Ok((socket, permit))
}

/// Serves one connection until it ends.
async fn serve_connection(
    socket: TcpStream,
    endpoint: Arc<HttpEndpoint>,
    connection_guard: UnauthenticatedConnection,
    mut closing: watch::Receiver<bool>,
) {
    // Disable Nagle's algorithm, which would delay small answers. A failure only means that delay.
    socket.set_nodelay(true).ok();
    let connection_guard = Arc::new(connection_guard);
    let service_guard = Arc::clone(&connection_guard);
    let service = service_fn(move |request| {
        let endpoint = Arc::clone(&endpoint);
        let connection_guard = Arc::clone(&service_guard);
        async move { Ok::<_, Infallible>(endpoint.answer(request, &connection_guard).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_WITHIN)
        .max_buf_size(limits::HEAD_BYTES)
        .max_headers(limits::HEADERS)
        .serve_connection(TokioIo::new(socket), service);
    tokio::pin!(connection);
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = until_set(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = connection_guard.closed.notified() => {
            tracing::debug!("closed an unauthenticated connection to make room");
            return;
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The connections that have not shown a token yet, oldest first. If there are too many, the oldest is closed. So an attacker that opens
/// many silent connections closes mainly its own: a client with a token shows it in its first request, before it becomes the oldest.
type UnauthenticatedConnections = Arc<Mutex<VecDeque<Arc<Notify>>>>;

/// The entry of one connection in the list. Dropping it removes the entry.
struct UnauthenticatedConnection {
    table: UnauthenticatedConnections,
    /// Notified when the connection must close.
    closed: Arc<Notify>,
}

impl UnauthenticatedConnection {
    /// Adds a connection. Closes the oldest one if there are too many.
    fn register(table: &UnauthenticatedConnections) -> Self {
        let mut waiting = table.lock();
        if waiting.len() >= limits::UNAUTHENTICATED
            && let Some(oldest) = waiting.pop_front()
        {
            oldest.notify_one();
        }
        let closed = Arc::new(Notify::new());
        waiting.push_back(Arc::clone(&closed));
        Self { table: Arc::clone(table), closed }
    }

    /// Removes the connection from the list: the gate has admitted a request, or the connection has ended.
    fn unlist(&self) {
        self.table.lock().retain(|closed| !Arc::ptr_eq(closed, &self.closed));
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        self.unlist();
    }
}

impl HttpEndpoint {
    async fn answer(&self, request: Request<Incoming>, connection_guard: &UnauthenticatedConnection) -> HttpAnswer {
        let (mut head, body) = request.into_parts();
        match self.gate.check(&head, self.local) {
            GateVerdict::Admitted => connection_guard.unlist(),
            GateVerdict::Forbidden => return refusal(StatusCode::FORBIDDEN, ""),
            GateVerdict::Unauthorized => {
                let mut answer = refusal(StatusCode::UNAUTHORIZED, "");
                answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                return answer;
            }
        }
        // Check the path after the gate, so that only admitted clients learn whether there is an endpoint.
        if head.uri.path() != PATH {
            return refusal(StatusCode::NOT_FOUND, "the MCP endpoint is /mcp");
        }
        // Remove the token: it can be in the header, or in the query of the URI.
        head.headers.remove(AUTHORIZATION);
        head.uri = http::Uri::from_static(PATH);
        if head.method == Method::POST && !head.headers.contains_key(SESSION_HEADER) && self.sessions.is_full() {
            let mut answer = refusal(StatusCode::SERVICE_UNAVAILABLE, "too many sessions; end one with DELETE");
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
            return answer;
        }
        let collected =
            match time::timeout(limits::BODY_WITHIN, Limited::new(body, limits::MESSAGE_BYTES).collect()).await {
                Ok(Ok(collected)) => collected.to_bytes(),
                Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                    return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the message is larger than 16 MiB");
                }
                Ok(Err(_)) => return refusal(StatusCode::BAD_REQUEST, "the body could not be read"),
                Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
            };
        let is_delete = head.method == Method::DELETE;
        let mut answer = self.service.handle(Request::from_parts(head, Full::new(collected))).await;
        if is_delete && answer.status() == StatusCode::ACCEPTED {
            // rmcp answers 202 although the session has already ended, and some clients treat 202 as a failure.
            *answer.status_mut() = StatusCode::NO_CONTENT;
        }
        answer
    }
}

/// An error response that also closes the connection, so that a refused client must connect again.
fn refusal(status: StatusCode, text: &'static str) -> HttpAnswer {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
