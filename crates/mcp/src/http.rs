//! MCP servers that speak streamable HTTP, reached by requests that an executor makes: from its own network where it is another
//! machine, from here where it is a local one.
//!
//! ```text
//! rmcp's transport ──▶ ExecutorHttp ──▶ Client::http_stream ──▶ http/request ──▶ executor ──▶ MCP server
//! ```
//!
//! A session that the server has forgotten (404) is begun anew by the transport: `initialize` again, and what was refused is sent once
//! more. A 401 is told as [`HttpError::AuthenticationRequired`] and tried no second time, and neither is any other failure, since
//! what was asked may have been done. Whatever nobody waits for any more is called off on the executor too, so that a handshake that
//! timed out holds nothing there.
//!
//! Redirects are followed within the origin of the server where a request carries a token or configured headers, and else wherever the
//! executor lets them lead.
//!
//! Must not read the environment, nor know which servers there are.

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

use self::{events::events, redirect::Next};
use crate::config::HttpConfig;

/// Bytes of one message of a server: an event, or a whole JSON answer.
pub const MESSAGE_BYTES: usize = 16 << 20;

/// Bytes of an error page that are shown.
const SHOWN_BYTES: usize = 256;

const SESSION: &str = "mcp-session-id";
const LAST_EVENT: &str = "last-event-id";

/// What the protocol adds to the headers of a configuration.
const PROTOCOL_HEADERS: [&str; 3] = ["mcp-protocol-version", "mcp-method", "mcp-name"];

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const BOTH: &str = "text/event-stream, application/json";

/// Headers that the protocol sets itself.
const RESERVED: [&str; 4] = ["accept", "content-type", SESSION, LAST_EVENT];

/// The transport that rmcp's client takes. With it goes everything that it has under way, whatever stage it is in.
pub struct HttpTransport {
    inner: StreamableHttpClientTransport<ExecutorHttp>,
    /// Dropped when nobody wants an answer any more: requests end, but for the one that ends the session.
    wanted: Option<watch::Sender<()>>,
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
        self.wanted = None;
        self.inner.close().await
    }
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTransport").field("is_open", &self.wanted.is_some()).finish_non_exhaustive()
    }
}

/// Where a server is, and what every request to it carries. `Debug` shows no value of a header.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Its URL.
    pub url: String,
    /// The bearer token.
    pub bearer_token: Option<String>,
    /// Further headers.
    pub headers: BTreeMap<String, String>,
}

/// Why a server cannot be reached, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The variable that should have the token is not there.
    #[error("`bearer_token_env_var` names `{variable}`, which is not set; set it, or take the line out")]
    NoToken {
        /// Its name.
        variable: String,
    },
    /// A header that cannot be sent.
    #[error("the header `{name}` cannot be sent to an MCP server: {reason}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The server wants to know who asks.
    #[error("authentication required{}", Challenge(challenge))]
    AuthenticationRequired {
        /// Its `WWW-Authenticate`, which may be empty.
        challenge: String,
    },
    /// Anything else.
    #[error("{reason}")]
    Failed {
        /// What was tried, and why it came to nothing.
        reason: String,
    },
}

impl HttpError {
    /// Whether the way out is to log in.
    #[must_use]
    pub fn is_authentication_required(&self) -> bool {
        matches!(self, Self::AuthenticationRequired { .. })
    }

    /// What it means that a server could not be initialized.
    #[must_use]
    pub fn of_start(error: &ClientInitializeError) -> Self {
        match error {
            ClientInitializeError::TransportError { error, context } => Self::of_transport(error, context),
            ClientInitializeError::LegacyFallbackFailed { fallback, .. } => Self::of_start(fallback),
            other => Self::Failed { reason: other.to_string() },
        }
    }

    /// What it means that a call failed.
    #[must_use]
    pub fn of_call(error: &ServiceError) -> Self {
        match error {
            ServiceError::TransportSend(error) => Self::of_transport(error, "send"),
            other => Self::Failed { reason: other.to_string() },
        }
    }

    fn of_transport(error: &DynamicTransportError, context: &str) -> Self {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error.error.as_ref());
        let mut reason = context.to_owned();
        while let Some(error) = next {
            if let Some(required) = error.downcast_ref::<AuthRequiredError>() {
                return Self::AuthenticationRequired { challenge: required.www_authenticate_header.clone() };
            }
            let part = error.to_string();
            if !reason.ends_with(&part) {
                reason = format!("{reason}: {part}");
            }
            next = error.source();
        }
        Self::Failed { reason }
    }
}

/// A challenge behind a colon, or nothing.
struct Challenge<'a>(&'a str);

impl fmt::Display for Challenge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

impl Endpoint {
    /// A server of a configuration, with the values of variables from here. A header whose variable is not set is left out.
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

    /// A transport to the server, whose requests this client's executor makes. Must be called inside a tokio runtime.
    pub fn transport(&self, client: Client) -> Result<HttpTransport, HttpError> {
        let mut headers = HashMap::new();
        for (name, value) in &self.headers {
            let failed = |reason| HttpError::Header { name: name.clone(), reason };
            let parsed: HeaderName = name.parse().map_err(|_| failed("this is no name of a header"))?;
            if RESERVED.contains(&parsed.as_str()) {
                return Err(failed("the protocol sets it itself"));
            }
            let mut value =
                HeaderValue::from_str(value).map_err(|_| failed("its value has characters that no header has"))?;
            value.set_sensitive(true);
            headers.insert(parsed, value);
        }
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str())
            .custom_headers(headers)
            .max_sse_event_size(MESSAGE_BYTES)
            .reinit_on_expired_session(true);
        if let Some(token) = &self.bearer_token {
            config = config.auth_header(token.clone());
        }
        let (wanted, wanted_rx) = watch::channel(());
        let http = ExecutorHttp { client, wanted: wanted_rx };
        Ok(HttpTransport { inner: StreamableHttpClientTransport::with_client(http, config), wanted: Some(wanted) })
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

/// rmcp's HTTP, by way of an executor.
#[derive(Debug, Clone)]
pub struct ExecutorHttp {
    client: Client,
    /// Ends with the transport.
    wanted: watch::Receiver<()>,
}

type Failure = StreamableHttpError<Error>;

impl ExecutorHttp {
    /// Returns when the transport is gone.
    fn unwanted(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut wanted = self.wanted.clone();
        async move { while wanted.changed().await.is_ok() {} }
    }

    /// Works while anybody wants it. The transport's own task would wait for an answer to a handshake that was given up.
    async fn while_wanted<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.unwanted() => Err(StreamableHttpError::TransportChannelClosed),
            done = work => done,
        }
    }

    async fn post(
        &self,
        call: Call<'_>,
        message: &ClientJsonRpcMessage,
        most: usize,
    ) -> Result<StreamableHttpPostResponse, Failure> {
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
            return refused(response, session, most).await;
        }
        match response.header("content-type").map(str::to_owned) {
            Some(kind) if kind.starts_with(EVENTS) => {
                Ok(StreamableHttpPostResponse::Sse(events(response.body, most, self.unwanted()), session))
            }
            kind => {
                let body = response.body.collect_up_to(most).await.map_err(StreamableHttpError::Client)?;
                whole(message, kind, &body, session)
            }
        }
    }

    async fn listen(&self, call: Call<'_>, most: usize) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let response = self.send(call, Bytes::new()).await?;
        match (status(&response), response.header("content-type")) {
            (StatusCode::METHOD_NOT_ALLOWED, _) => Err(StreamableHttpError::ServerDoesNotSupportSse),
            (status, _) if !status.is_success() => Err(busy(&response).unwrap_or_else(|| unexpected(status, b""))),
            (_, Some(kind)) if kind.starts_with(EVENTS) => Ok(events(response.body, most, self.unwanted())),
            (_, kind) => Err(StreamableHttpError::UnexpectedContentType(kind.map(str::to_owned))),
        }
    }

    /// Makes a request with everything that each carries; returns with the head of the answer.
    async fn send(&self, call: Call<'_>, body: Bytes) -> Result<Response<Body>, Failure> {
        let mut request = Request::new(call.method, call.uri).body(body);
        let own = [("accept", call.accept), (SESSION, call.session), (LAST_EVENT, call.last_event)];
        for (name, value) in own.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            request = request.header(name, value);
        }
        if call.method == "POST" {
            request = request.header("content-type", JSON);
        }
        if let Some(token) = call.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in call.headers {
            let value = value.to_str().map_err(|_| StreamableHttpError::ReservedHeaderConflict(name.to_string()))?;
            request = request.header(name.as_str(), value);
        }
        // The words of the protocol itself are no secret, wherever they go.
        let is_ours = |name: &HeaderName| PROTOCOL_HEADERS.contains(&name.as_str());
        if call.token.is_some() || !call.headers.keys().all(is_ours) {
            request = request.redirect(RedirectPolicy::Stop);
        }
        let mut followed = 0;
        loop {
            let response = self.client.http_stream(&request).await.map_err(StreamableHttpError::Client)?;
            check_access(&response)?;
            let status = status(&response);
            match redirect::next(call.method, &request.url, status, response.header("location")) {
                Next::Go(url) if followed < redirect::MOST => request.url = url,
                Next::Stay => return Ok(response),
                Next::Go(place) | Next::Elsewhere(place) => return Err(leads_away(status, &place)),
            }
            followed += 1;
        }
    }
}

/// What distinguishes one request from another.
struct Call<'a> {
    method: &'static str,
    uri: &'a str,
    accept: Option<&'a str>,
    session: Option<&'a str>,
    last_event: Option<&'a str>,
    token: Option<&'a str>,
    headers: &'a HashMap<HeaderName, HeaderValue>,
}

impl StreamableHttpClient for ExecutorHttp {
    type Error = Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let most = MESSAGE_BYTES;
        self.post_message_with_max_sse_event_size(uri, message, session_id, auth_header, custom_headers, most).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let call = Call {
            method: "POST",
            uri: &uri,
            accept: Some(BOTH),
            session: session_id.as_deref(),
            last_event: None,
            token: auth_header.as_deref(),
            headers: &custom_headers,
        };
        self.while_wanted(self.post(call, &message, max_sse_event_size)).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        let call = Call {
            method: "DELETE",
            uri: &uri,
            accept: None,
            session: Some(&session_id),
            last_event: None,
            token: auth_header.as_deref(),
            headers: &custom_headers,
        };
        let response = self.send(call, Bytes::new()).await?;
        match status(&response) {
            // A server need not know how, and may have forgotten it already.
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            status => Err(unexpected(status, b"")),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let most = MESSAGE_BYTES;
        self.get_stream_with_max_sse_event_size(uri, session_id, last_event_id, auth_header, custom_headers, most).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let call = Call {
            method: "GET",
            uri: &uri,
            accept: Some(EVENTS),
            session: session_id.as_deref(),
            last_event: last_event_id.as_deref(),
            token: auth_header.as_deref(),
            headers: &custom_headers,
        };
        self.while_wanted(self.listen(call, max_sse_event_size)).await
    }
}

fn status(response: &Response<Body>) -> StatusCode {
    StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Refuses what says that the server does not know us, or not well enough.
fn check_access(response: &Response<Body>) -> Result<(), Failure> {
    let challenge = response.header("www-authenticate");
    match (status(response), challenge) {
        (StatusCode::UNAUTHORIZED, challenge) => {
            let challenge = challenge.unwrap_or_default().to_owned();
            Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)))
        }
        (StatusCode::FORBIDDEN, Some(challenge)) => {
            Err(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(challenge.to_owned(), None)))
        }
        _ => Ok(()),
    }
}

/// A server that is there and cannot serve now.
fn busy(response: &Response<Body>) -> Option<Failure> {
    let status = status(response);
    let is_busy = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
    let retry_after = response.header("retry-after").map(str::to_owned);
    is_busy.then(|| HttpStatusError::new(response.status, retry_after).into())
}

/// An answer that leads where the headers of this server do not go.
fn leads_away(status: StatusCode, place: &str) -> Failure {
    let text = format!("HTTP {status} leads to `{place}`, which is not asked; if that is the server, set `url` to it");
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(text))
}

fn unexpected(status: StatusCode, body: &[u8]) -> Failure {
    let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES)]);
    let colon = if shown.is_empty() { "" } else { ": " };
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(format!("HTTP {status}{colon}{shown}")))
}

/// What a refusal says: an error of the protocol where it has one, which the caller is told as such.
async fn refused(
    response: Response<Body>,
    session: Option<String>,
    most: usize,
) -> Result<StreamableHttpPostResponse, Failure> {
    let (status, busy) = (status(&response), busy(&response));
    let is_json = response.header("content-type").is_some_and(|kind| kind.starts_with(JSON));
    let is_known = status == StatusCode::TOO_MANY_REQUESTS || (busy.is_some() && !is_json);
    if let Some(busy) = busy.filter(|_| is_known) {
        return Err(busy);
    }
    // What cannot be read of an error page is no further error.
    let body = response.body.collect_up_to(most).await.unwrap_or_default();
    match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
        Ok(message @ ServerJsonRpcMessage::Error(_)) if is_json && status != StatusCode::FORBIDDEN => {
            Ok(StreamableHttpPostResponse::Json(message, session))
        }
        Ok(_) | Err(_) if status.is_server_error() => Err(HttpStatusError::new(status.as_u16(), None).into()),
        Ok(_) | Err(_) => Err(unexpected(status, &body)),
    }
}

/// What a whole body says. Nobody waits for an answer to anything but a request, and some servers say 200 to the rest.
fn whole(
    message: &ClientJsonRpcMessage,
    kind: Option<String>,
    body: &[u8],
    session: Option<String>,
) -> Result<StreamableHttpPostResponse, Failure> {
    let is_request = matches!(message, ClientJsonRpcMessage::Request(_));
    if !kind.as_deref().is_some_and(|kind| kind.starts_with(JSON)) {
        return match is_request {
            true => Err(StreamableHttpError::UnexpectedContentType(kind)),
            false => Ok(StreamableHttpPostResponse::Accepted),
        };
    }
    match serde_json::from_slice(body) {
        Ok(answer) => Ok(StreamableHttpPostResponse::Json(answer, session)),
        Err(_) if !is_request => Ok(StreamableHttpPostResponse::Accepted),
        Err(error) => {
            let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES)]);
            let text = format!("the answer is no message of the protocol: {error}: {shown}");
            Err(StreamableHttpError::UnexpectedServerResponse(Cow::Owned(text)))
        }
    }
}
