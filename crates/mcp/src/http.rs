//! Talks to MCP servers over streamable HTTP. An executor makes the requests: a remote executor from its own network, a local one from this
//! machine.
//!
//! ```text
//! rmcp's transport ──▶ ExecutorHttp ──▶ Client::http_stream ──▶ http/request ──▶ executor ──▶ MCP server
//! ```
//!
//! If the server answers 404 because it no longer knows the session, the transport sends `initialize` again and repeats the message in the
//! new session. The transport resumes a broken event stream. A 401 is reported as [`HttpError::AuthenticationRequired`] and not retried.
//! Other failures are not retried either, because the server may already have acted on the request. When the transport is closed or
//! dropped, its requests are cancelled on the executor too, so that a handshake that timed out leaves none running there.
//!
//! A request with a token or configured headers follows redirects only within the origin of the server. For any other request the executor
//! follows redirects by its own rules.
//!
//! This module does not read the environment.

mod events;
mod redirect;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use exec_server_client::{
    Client, Error,
    http::{Body, RedirectPolicy, Request, Response},
};
use futures_util::stream::BoxStream;
use http::{HeaderName, HeaderValue, StatusCode};
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    service::{ClientInitializeError, ServiceError},
    transport::{
        DynamicTransportError, Transport,
        streamable_http_client::{
            AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError, StreamableHttpClient,
            StreamableHttpClientTransport, StreamableHttpClientTransportConfig, StreamableHttpError,
            StreamableHttpPostResponse,
        },
    },
};
use sse_stream::Sse;
use tokio::sync::watch;

use self::{events::events, redirect::RedirectDecision};
use crate::config::HttpConfig;

/// The largest message of a server, in bytes: an SSE event, or a whole JSON response.
pub const MESSAGE_BYTES: usize = 16 << 20;

/// How many bytes of a response body, or how many characters of a redirect location, an error shows.
const SHOWN_BYTES: usize = 256;

const SESSION: &str = "mcp-session-id";
const LAST_EVENT: &str = "last-event-id";

/// Headers that rmcp adds to the configured ones. They are not secret.
const PROTOCOL_HEADERS: [&str; 3] = ["mcp-protocol-version", "mcp-method", "mcp-name"];

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const BOTH: &str = "text/event-stream, application/json";

/// Headers that this module sets itself. A configuration may not set them.
const RESERVED: [&str; 4] = ["accept", "content-type", SESSION, LAST_EVENT];

/// The transport for rmcp's client. Dropping it cancels all its requests.
pub struct HttpTransport {
    inner: StreamableHttpClientTransport<ExecutorHttp>,
    /// Dropped when the transport is closed. This cancels all requests except the DELETE of the session.
    transport_open: Option<watch::Sender<()>>,
}

impl Transport<RoleClient> for HttpTransport {
    type Error = StreamableHttpError<Error>;

    fn send(&mut self, item: ClientJsonRpcMessage) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.inner.receive().await
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        // Cancel the requests first, because the inner transport waits for them. The DELETE of the session still runs.
        self.transport_open = None;
        self.inner.close().await
    }
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTransport").field("is_open", &self.transport_open.is_some()).finish_non_exhaustive()
    }
}

/// The URL of a server, and what every request to it carries. `Debug` does not print the values of headers.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Endpoint {
    pub url: String,
    pub bearer_token: Option<String>,
    /// Additional headers.
    pub headers: BTreeMap<String, String>,
}

/// Why a server cannot be reached, or refused a request.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The variable that should hold the token is not set or is empty.
    #[error(
        "`bearer_token_env_var` names `{variable}`, which is not set or is empty; set the variable, or remove this key"
    )]
    NoToken { variable: String },
    /// A header that cannot be sent.
    #[error("the header `{name}` cannot be sent to an MCP server: {reason}")]
    Header { name: String, reason: &'static str },
    /// The server answered 401.
    #[error("authentication required{}", after_colon(challenge))]
    AuthenticationRequired {
        /// The server's `WWW-Authenticate` header. May be empty.
        challenge: String,
    },
    /// Any other failure.
    #[error("{reason}")]
    Failed {
        /// The cause, with the failed step if it is known.
        reason: String,
    },
}

impl HttpError {
    /// Whether the server answered 401.
    #[must_use]
    pub fn is_authentication_required(&self) -> bool {
        matches!(self, Self::AuthenticationRequired { .. })
    }

    /// Converts the error of a failed initialization.
    #[must_use]
    pub fn of_start(error: &ClientInitializeError) -> Self {
        match error {
            ClientInitializeError::TransportError { error, context } => Self::of_transport(error, context),
            ClientInitializeError::LegacyFallbackFailed { fallback, .. } => Self::of_start(fallback),
            other => Self::Failed { reason: other.to_string() },
        }
    }

    /// Converts the error of a failed call.
    #[must_use]
    pub fn of_call(error: &ServiceError) -> Self {
        match error {
            ServiceError::TransportSend(error) => Self::of_transport(error, "send"),
            other => Self::Failed { reason: other.to_string() },
        }
    }

    fn of_transport(error: &DynamicTransportError, context: &str) -> Self {
        let first: &(dyn std::error::Error + 'static) = error.error.as_ref();
        let mut causes = std::iter::successors(Some(first), |cause| cause.source());
        match causes.find_map(|cause| cause.downcast_ref::<AuthRequiredError>()) {
            Some(required) => Self::AuthenticationRequired { challenge: required.www_authenticate_header.clone() },
            None => Self::Failed { reason: format!("{context}: {}", chain(first)) },
        }
    }
}

/// Formats an error and its sources in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| cause.source()) {
        let cause = cause.to_string();
        // Some errors repeat their source.
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// `: TEXT`, or nothing if the text is empty.
fn after_colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

impl Endpoint {
    /// Builds the endpoint of a configured server, with variables from this machine. A variable of `env_http_headers`
    /// that is not set or is empty is ignored.
    pub fn read(config: &HttpConfig, variables: &BTreeMap<String, String>) -> Result<Self, HttpError> {
        let variable = |name: &String| variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        let bearer_token = match &config.bearer_token_env_var {
            None => None,
            Some(name) => Some(variable(name).ok_or_else(|| HttpError::NoToken { variable: name.clone() })?.to_owned()),
        };
        let mut headers = config.http_headers.clone();
        for (name, from) in &config.env_http_headers {
            if let Some(value) = variable(from) {
                headers.insert(name.clone(), value.to_owned());
            }
        }
        Ok(Self { url: config.url.clone(), bearer_token, headers })
    }

    /// Creates a transport to the server. The executor of `client` makes its requests. Must be called inside a tokio runtime.
    pub fn transport(&self, client: Client) -> Result<HttpTransport, HttpError> {
        let mut headers = HashMap::new();
        for (name, value) in &self.headers {
            let failed = |reason| HttpError::Header { name: name.clone(), reason };
            let parsed: HeaderName = name.parse().map_err(|_| failed("not a valid header name"))?;
            if RESERVED.contains(&parsed.as_str()) {
                return Err(failed("the MCP client sets this header itself"));
            }
            let mut value = HeaderValue::from_str(value).map_err(|_| failed("its value is not valid in a header"))?;
            value.set_sensitive(true);
            headers.insert(parsed, value);
        }
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str())
            .custom_headers(headers)
            .reinit_on_expired_session(true);
        if let Some(token) = &self.bearer_token {
            config = config.auth_header(token.clone());
        }
        let (transport_open, transport_open_rx) = watch::channel(());
        let http = ExecutorHttp { client, transport_open: transport_open_rx };
        let inner = StreamableHttpClientTransport::with_client(http, config);
        Ok(HttpTransport { inner, transport_open: Some(transport_open) })
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("url", &self.url)
            .field("has_token", &self.bearer_token.is_some())
            .field("headers", &self.headers.keys())
            .finish()
    }
}

/// An rmcp HTTP client that sends its requests through an executor.
#[derive(Debug, Clone)]
pub struct ExecutorHttp {
    client: Client,
    /// Closed when the transport is closed or dropped.
    transport_open: watch::Receiver<()>,
}

type HttpFailure = StreamableHttpError<Error>;

impl ExecutorHttp {
    /// Resolves when the transport is closed or dropped.
    fn until_closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut transport_open = self.transport_open.clone();
        // Nothing is ever sent. `changed` fails when the sender is dropped.
        async move { while transport_open.changed().await.is_ok() {} }
    }

    /// Runs `work` until the transport is closed. Without this, rmcp's task would keep waiting for the answer to an abandoned handshake.
    async fn unless_closed<T>(&self, work: impl Future<Output = Result<T, HttpFailure>>) -> Result<T, HttpFailure> {
        tokio::select! {
            biased;
            () = self.until_closed() => Err(StreamableHttpError::TransportChannelClosed),
            done = work => done,
        }
    }

    async fn post(
        &self,
        call: HttpCall,
        message: &ClientJsonRpcMessage,
    ) -> Result<StreamableHttpPostResponse, HttpFailure> {
        let has_session = call.session.is_some();
        let response = self.send(call, serde_json::to_vec(message)?.into()).await?;
        let status = status(&response);
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let session = response.header(SESSION).map(str::to_owned);
        if !status.is_success() {
            return refused(response, session).await;
        }
        match response.header("content-type").map(str::to_owned) {
            Some(kind) if kind.starts_with(EVENTS) => {
                Ok(StreamableHttpPostResponse::Sse(events(response.body, MESSAGE_BYTES, self.until_closed()), session))
            }
            kind => {
                let body = response.body.collect_up_to(MESSAGE_BYTES).await.map_err(StreamableHttpError::Client)?;
                parse_body(message, kind, &body, session)
            }
        }
    }

    async fn listen(&self, call: HttpCall) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpFailure> {
        let response = self.send(call, Bytes::new()).await?;
        match (status(&response), response.header("content-type")) {
            (StatusCode::METHOD_NOT_ALLOWED, _) => Err(StreamableHttpError::ServerDoesNotSupportSse),
            (status, _) if !status.is_success() => Err(busy(&response).unwrap_or_else(|| unexpected(status, b""))),
            (_, Some(kind)) if kind.starts_with(EVENTS) => {
                Ok(events(response.body, MESSAGE_BYTES, self.until_closed()))
            }
            (_, kind) => Err(StreamableHttpError::UnexpectedContentType(kind.map(str::to_owned))),
        }
    }

    /// Sends a request with all common headers and follows redirects. Returns when the head of the response has arrived.
    async fn send(&self, call: HttpCall, body: Bytes) -> Result<Response<Body>, HttpFailure> {
        let accept = match call.method {
            "POST" => Some(BOTH),
            "GET" => Some(EVENTS),
            _ => None,
        };
        let mut request = Request::new(call.method, &*call.uri).body(body);
        let own = [("accept", accept), (SESSION, call.session.as_deref()), (LAST_EVENT, call.last_event.as_deref())];
        for (name, value) in own.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            request = request.header(name, value);
        }
        if call.method == "POST" {
            request = request.header("content-type", JSON);
        }
        if let Some(token) = &call.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in &call.headers {
            let value = value.to_str().map_err(|_| StreamableHttpError::ReservedHeaderConflict(name.to_string()))?;
            request = request.header(name.as_str(), value);
        }
        // The protocol's own headers are not secret, so the executor may follow redirects of a request with only those.
        let is_protocol = |name: &HeaderName| PROTOCOL_HEADERS.contains(&name.as_str());
        if call.token.is_some() || !call.headers.keys().all(is_protocol) {
            // The executor must not follow redirects; the loop below does.
            request = request.redirect(RedirectPolicy::Stop);
        }
        let mut followed = 0;
        loop {
            let response = self.client.http_stream(&request).await.map_err(StreamableHttpError::Client)?;
            check_access(&response)?;
            let status = status(&response);
            match redirect::decide(call.method, &request.url, status, response.header("location")) {
                RedirectDecision::Go(url) if followed < redirect::MOST => request.url = url,
                RedirectDecision::Stay => return Ok(response),
                // Too many redirects, or one that must not be followed.
                RedirectDecision::Go(place) | RedirectDecision::Refuse(place) => {
                    let text = format!(
                        "HTTP {status}: the redirect to `{place}` was not followed; if that is the server, set `url` to it"
                    );
                    return Err(StreamableHttpError::UnexpectedServerResponse(text.into()));
                }
            }
            followed += 1;
        }
    }
}

/// The parameters of one HTTP request.
struct HttpCall {
    method: &'static str,
    uri: Arc<str>,
    session: Option<Arc<str>>,
    last_event: Option<String>,
    token: Option<String>,
    headers: HashMap<HeaderName, HeaderValue>,
}

impl StreamableHttpClient for ExecutorHttp {
    type Error = Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpFailure> {
        let call = HttpCall { method: "POST", uri, session, last_event: None, token, headers };
        self.unless_closed(self.post(call, &message)).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpFailure> {
        let call = HttpCall { method: "DELETE", uri, session: Some(session), last_event: None, token, headers };
        let response = self.send(call, Bytes::new()).await?;
        match status(&response) {
            // A server need not support DELETE, and it may have forgotten the session already.
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            status => Err(unexpected(status, b"")),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpFailure> {
        self.unless_closed(self.listen(HttpCall { method: "GET", uri, session, last_event, token, headers })).await
    }
}

fn status(response: &Response<Body>) -> StatusCode {
    // A number outside of 100 to 999 is not a status. Treat it as a failure of the server.
    StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Fails on 401, and on 403 with a challenge.
fn check_access(response: &Response<Body>) -> Result<(), HttpFailure> {
    let challenge = response.header("www-authenticate").map(str::to_owned);
    match (status(response), challenge) {
        (StatusCode::UNAUTHORIZED, challenge) => {
            Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge.unwrap_or_default())))
        }
        (StatusCode::FORBIDDEN, Some(challenge)) => {
            Err(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(challenge, None)))
        }
        _ => Ok(()),
    }
}

/// The error for a status that asks the client to come back later (429 or 5xx), with the `retry-after` header. Otherwise `None`.
fn busy(response: &Response<Body>) -> Option<HttpFailure> {
    let status = status(response);
    let is_busy = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
    let retry_after = response.header("retry-after").map(str::to_owned);
    is_busy.then(|| HttpStatusError::new(response.status, retry_after).into())
}

fn unexpected(status: StatusCode, body: &[u8]) -> HttpFailure {
    StreamableHttpError::UnexpectedServerResponse(format!("HTTP {status}{}", after_colon(&shown(body))).into())
}

/// The beginning of a response body, for an error text.
fn shown(body: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES)])
}

/// Handles an error status. Except with 403 and 429, a JSON-RPC error in the body is returned as a message, so that the caller gets the
/// server's own error.
async fn refused(response: Response<Body>, session: Option<String>) -> Result<StreamableHttpPostResponse, HttpFailure> {
    let status = status(&response);
    let busy = busy(&response);
    let is_json = response.header("content-type").is_some_and(|kind| kind.starts_with(JSON));
    // The body of a 5xx may be a JSON-RPC error, which says more than the status.
    let ignores_body = status == StatusCode::TOO_MANY_REQUESTS || (busy.is_some() && !is_json);
    if let Some(busy) = busy.filter(|_| ignores_body) {
        return Err(busy);
    }
    // If the body cannot be read, report the status without it.
    let body = response.body.collect_up_to(MESSAGE_BYTES).await.unwrap_or_default();
    match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
        Ok(message @ ServerJsonRpcMessage::Error(_)) if is_json && status != StatusCode::FORBIDDEN => {
            Ok(StreamableHttpPostResponse::Json(message, session))
        }
        Ok(_) | Err(_) if status.is_server_error() => Err(HttpStatusError::new(status.as_u16(), None).into()),
        Ok(_) | Err(_) => Err(unexpected(status, &body)),
    }
}

/// Parses the body of a successful response. Only a request needs an answer: some servers answer a notification with 200 and a body that is
/// not a message, which counts as accepted.
fn parse_body(
    message: &ClientJsonRpcMessage,
    kind: Option<String>,
    body: &[u8],
    session: Option<String>,
) -> Result<StreamableHttpPostResponse, HttpFailure> {
    let is_json = kind.as_deref().is_some_and(|kind| kind.starts_with(JSON));
    match serde_json::from_slice(body) {
        Ok(answer) if is_json => Ok(StreamableHttpPostResponse::Json(answer, session)),
        _ if !matches!(message, ClientJsonRpcMessage::Request(_)) => Ok(StreamableHttpPostResponse::Accepted),
        Err(error) if is_json => {
            let text = format!("the response is not a JSON-RPC message: {error}: {}", shown(body));
            Err(StreamableHttpError::UnexpectedServerResponse(text.into()))
        }
        _ => Err(StreamableHttpError::UnexpectedContentType(kind)),
    }
}
