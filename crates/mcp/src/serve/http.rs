//! Streamable HTTP: the door in front of the sessions, and its bounds.
//!
//! ```text
//!  socket ──▶ connection (bounded number, head in time) ──▶ path? ──▶ gate: Host, Origin, token ──▶ body (bounded) ──▶ rmcp ──▶ session
//! ```
//!
//! Nothing of a request is read beyond its head before the [`Gate`] has let it in, and whoever is refused is also disconnected. The token is taken out of the
//! request behind the gate: neither a tool nor a log ever sees it.
//!
//! Failure paths: connections that have shown no token are few, and the oldest makes room for the next; a body that is too large or too slow ends its request; sessions beyond the bound are refused with 503; a connection that fails ends
//! alone. When the server ends, calls under way are told, then sessions and connections are closed.
//!
//! Must not decide who may come in.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE},
    request::Parts,
};
use http_body_util::{BodyExt as _, Full, Limited, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, watch},
    task::JoinSet,
    time,
};

use super::{
    Server,
    handler::{Handler, Over},
    limits, said,
    sessions::Sessions,
};

/// Where the server is below its address.
pub const PATH: &str = "/mcp";

/// How long connections may take to close when the server ends.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How long answers may take to reach their clients when the server ends.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Pause after an accept that failed, for want of descriptors most likely.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The header that names a session.
const SESSION_HEADER: &str = "mcp-session-id";

/// Who may come in.
pub trait Gate: Send + Sync {
    /// Judges the head of a request that came in at this address.
    fn judge(&self, head: &Parts, local: SocketAddr) -> Verdict;
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It comes in.
    Admitted,
    /// It calls us by a name that is not ours, or comes from a page.
    Forbidden,
    /// It has not the right token.
    Unauthorized,
}

type Answer = Response<BoxBody<Bytes, Infallible>>;
type Service = StreamableHttpService<Handler, Sessions>;

/// What all connections share.
struct Door {
    gate: Arc<dyn Gate>,
    sessions: Arc<Sessions>,
    service: Service,
    local: SocketAddr,
}

/// Serves until [`Server::end`]. Sessions that nobody was at for `idle` are ended.
pub async fn serve(server: &Arc<Server>, listener: TcpListener, gate: Arc<dyn Gate>, idle: Duration) -> io::Result<()> {
    let sessions = Arc::new(Sessions::new(limits::SESSIONS));
    let mut config = StreamableHttpServerConfig::default().with_max_request_body_bytes(limits::MESSAGE_BYTES);
    // Host and Origin are the gate's business, which knows the names.
    config = config.disable_allowed_hosts();
    let streams = config.cancellation_token.clone();
    let made_from = Arc::clone(server);
    let service =
        Service::new(move || Ok(Handler::new(Arc::clone(&made_from), Over::Http)), Arc::clone(&sessions), config);
    let door = Arc::new(Door { gate, sessions: Arc::clone(&sessions), service, local: listener.local_addr()? });
    let (closing_tx, closing_rx) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut ending = server.ending.subscribe();
    let mut look = time::interval((idle / 4).clamp(Duration::from_millis(10), Duration::from_secs(30)));
    // Beside the rest, not within it: nobody waits at the door for the end of somebody else's session.
    let expiring = async {
        loop {
            look.tick().await;
            sessions.expire(idle).await;
        }
    };
    tokio::pin!(expiring);
    let places = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let strangers = Arc::new(Strangers::default());
    loop {
        // All are cancel safe: a connection that was not returned waits to be accepted.
        tokio::select! {
            accepted = accept(&listener, &places) => match accepted {
                Ok((socket, place)) => {
                    let (door, closing) = (Arc::clone(&door), closing_rx.clone());
                    let stranger = strangers.enter();
                    connections.spawn(async move {
                        attend(socket, door, stranger, closing).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    time::sleep(ACCEPT_AGAIN).await;
                }
            },
            // Those that have ended are let go here, so that the set does not grow.
            Some(_) = connections.join_next() => {}
            () = &mut expiring => {}
            () = said(&mut ending) => break,
        }
    }
    drop(listener);
    server.drained().await;
    // Elapsed or done: a client that does not read its answer does not get it.
    time::timeout(ANSWER_WITHIN, sessions.answered()).await.ok();
    sessions.end_all().await;
    streams.cancel();
    // Receivers are gone where all connections are.
    closing_tx.send(true).ok();
    let closed = async { while connections.join_next().await.is_some() {} };
    // Elapsed or done: what is left is cut.
    time::timeout(CLOSE_WITHIN, closed).await.ok();
    connections.shutdown().await;
    Ok(())
}

/// A connection, and its place among those that there may be.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.expect("nobody closes the places");
    let (socket, _) = listener.accept().await?;
    Ok((socket, place))
}

/// Serves one connection to its end.
async fn attend(socket: TcpStream, door: Arc<Door>, stranger: Stranger, mut closing: watch::Receiver<bool>) {
    // An answer must not wait for the next one.
    socket.set_nodelay(true).ok();
    let stranger = Arc::new(stranger);
    let known = Arc::clone(&stranger);
    let service = service_fn(move |request| {
        let (door, stranger) = (Arc::clone(&door), Arc::clone(&known));
        async move { Ok::<_, Infallible>(door.answer(request, &stranger).await) }
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
        () = said(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = stranger.out.notified() => {
            tracing::debug!("a connection that proved nothing made room for another");
            return;
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The connections that have proven nothing yet, the oldest first: when there are too many of them, that one goes. Those who hold
/// many and say nothing push each other out, and whoever has a token shows it long before.
#[derive(Debug, Default)]
struct Strangers(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// Counts those that ever came.
    last: u64,
    all: BTreeMap<u64, Arc<Notify>>,
}

/// One of them; dropping it is its end.
#[derive(Debug)]
struct Stranger {
    among: Arc<Strangers>,
    number: u64,
    /// Says that it has to go.
    out: Arc<Notify>,
}

impl Strangers {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No code under the lock can panic half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one more in; the oldest one goes where there are too many.
    fn enter(self: &Arc<Self>) -> Stranger {
        let mut waiting = self.lock();
        if waiting.all.len() >= limits::STRANGERS
            && let Some((_, oldest)) = waiting.all.pop_first()
        {
            oldest.notify_one();
        }
        waiting.last += 1;
        let (number, out) = (waiting.last, Arc::new(Notify::new()));
        waiting.all.insert(number, Arc::clone(&out));
        Stranger { among: Arc::clone(self), number, out }
    }
}

impl Stranger {
    /// It has shown the token, and is no longer one of them.
    fn is_known(&self) {
        self.among.lock().all.remove(&self.number);
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.is_known();
    }
}

impl Door {
    async fn answer(&self, request: Request<Incoming>, stranger: &Stranger) -> Answer {
        let (mut head, body) = request.into_parts();
        match self.gate.judge(&head, self.local) {
            Verdict::Admitted => stranger.is_known(),
            Verdict::Forbidden => return refusal(StatusCode::FORBIDDEN, ""),
            Verdict::Unauthorized => {
                let mut answer = refusal(StatusCode::UNAUTHORIZED, "");
                answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                return answer;
            }
        }
        // Only for those who came in: whether there is anything here.
        if head.uri.path() != PATH {
            return refusal(StatusCode::NOT_FOUND, "the MCP endpoint is /mcp");
        }
        forget_token(&mut head);
        if head.method == Method::POST && !head.headers.contains_key(SESSION_HEADER) && self.sessions.is_full() {
            let mut answer =
                refusal(StatusCode::SERVICE_UNAVAILABLE, "there are too many sessions; end one with DELETE");
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
            return answer;
        }
        let collected =
            match time::timeout(limits::BODY_WITHIN, Limited::new(body, limits::MESSAGE_BYTES).collect()).await {
                Ok(Ok(collected)) => collected.to_bytes(),
                Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                    return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the message has more than 16 MiB");
                }
                Ok(Err(_)) => return refusal(StatusCode::BAD_REQUEST, "the body could not be read"),
                Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
            };
        let is_end = head.method == Method::DELETE;
        let mut answer = self.service.handle(Request::from_parts(head, Full::new(collected))).await;
        if is_end && answer.status() == StatusCode::ACCEPTED {
            // It is done, and clients take another word for a failure.
            *answer.status_mut() = StatusCode::NO_CONTENT;
        }
        answer
    }
}

/// Takes what was proven out of a request.
fn forget_token(head: &mut Parts) {
    head.headers.remove(AUTHORIZATION);
    head.uri = http::Uri::from_static(PATH);
}

/// An answer that ends the connection: whoever is refused begins anew.
fn refusal(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
