//! `http/request` and `http/cancel`: HTTP requests that this server makes for a client, and their response bodies.
//!
//! ```text
//! response of the target ▶ one piece ▶ its window ▶ a slot in the connection's outgoing queue ▶ the next piece
//! ```
//!
//! A streamed body is read no faster than the peer's socket accepts it and, if the peer acknowledges, no faster than
//! the peer acknowledges it. Requests end with the connection, because they run in the connection's tasks. Of a target,
//! the log and the audit log show only scheme, host and port, and the private address for which it was refused.

use std::{ffi::OsString, time::Duration};

use bytes::{Bytes, BytesMut};
use exec_server_protocol::{
    base64,
    failure::Kind,
    http as wire, limits,
    message::encode_notification,
    method::{Notification, Scope},
    sandbox::{Network, Profile, SandboxContext},
};
use futures_util::FutureExt as _;
use reqwest::{
    Method, Response, Url,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use tokio::time::Instant;

use super::{RequestContext, permitted};
use crate::{
    audit::AuditRecord,
    environment,
    error::Failure,
    fetch::{ActiveFetch, FetchError, FetchRequest, SMALL_BYTES, TargetReach},
    pump::Reply,
};

/// Headers that a request must not set: they belong to the connection to the target, which the server controls.
const HOP_BY_HOP: [&str; 7] =
    ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

/// Maximum length of a method name. The longest registered one has 17 bytes.
const METHOD_BYTES: usize = 32;

/// How long a principal without the scope `exec` may wait for the response head.
const HEAD_MS: u64 = 5 * 60 * 1000;

/// Longest timeout that is applied, 100 years. A longer one could overflow the clock.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A validated request.
pub(crate) struct OutboundRequest {
    method: Method,
    url: Url,
    headers: Vec<(HeaderName, wire::Header)>,
    body: Bytes,
    timeout_ms: Option<u64>,
    follows: bool,
    request_id: String,
    is_stream: bool,
    /// How many pieces may be sent ahead of the last acknowledged one. `None`: the peer does not acknowledge.
    window: Option<u64>,
}

/// Checks what does not depend on the principal.
pub(crate) fn decode(params: wire::RequestParams) -> Result<OutboundRequest, Failure> {
    if params.sandbox.as_ref().is_some_and(has_no_network) {
        let what = "the sandbox of the request has no network, so it cannot make HTTP requests".to_owned();
        return Err(Failure::SandboxDenied { what });
    }
    if params.method.len() > METHOD_BYTES {
        return Err(invalid(format!("the method has more than {METHOD_BYTES} bytes")));
    }
    let method = Method::from_bytes(params.method.as_bytes()).ok().filter(|method| *method != Method::CONNECT);
    let method =
        method.ok_or_else(|| invalid(format!("`{}` is not a method that an HTTP request can have", params.method)))?;
    let url = parse_url(&params.url)?;
    let variable = |header: &wire::Header| header.value_env_var.as_ref().map_or(0, String::len);
    let bytes = params.headers.iter().map(|header| header.name.len() + header.value.len() + variable(header));
    let bytes: usize = bytes.sum();
    if params.headers.len() > limits::HTTP_HEADERS || bytes > limits::HTTP_HEADER_BYTES {
        let most = format!("{} headers with {} bytes", limits::HTTP_HEADERS, limits::HTTP_HEADER_BYTES);
        return Err(invalid(format!("more headers than the limit: {most}")));
    }
    let body = params.body_base64.as_deref().map(base64::decode).transpose();
    let body = body.map_err(|_| invalid("bodyBase64 is not base64 with padding".to_owned()))?.unwrap_or_default();
    let headers = params.headers.into_iter().map(|header| {
        let name = parse_name(&header.name)?;
        // The variable's name appears in errors, and errors appear in the log.
        if header.value_env_var.as_ref().is_some_and(|variable| variable.contains(char::is_control)) {
            return Err(invalid(format!("valueEnvVar of the header `{name}` has control characters")));
        }
        Ok((name, header))
    });
    Ok(OutboundRequest {
        method,
        url,
        headers: headers.collect::<Result<_, Failure>>()?,
        body: body.into(),
        timeout_ms: params.timeout_ms,
        follows: params.redirect_policy == wire::RedirectPolicy::Follow,
        request_id: params.request_id,
        is_stream: params.stream_response,
        // A window of zero would wait forever.
        window: params.window.map(|window| window.max(1)),
    })
}

fn has_no_network(sandbox: &SandboxContext) -> bool {
    match sandbox.permissions {
        Profile::Managed { network, .. } | Profile::External { network } => network == Network::Restricted,
        Profile::Disabled => false,
    }
}

fn invalid(reason: String) -> Failure {
    Failure::InvalidParams { reason }
}

/// Parses the URL. Errors do not repeat it, because it may contain secrets.
fn parse_url(text: &str) -> Result<Url, Failure> {
    if text.len() > limits::HTTP_URL_BYTES {
        return Err(invalid(format!("the url has more than {} bytes", limits::HTTP_URL_BYTES)));
    }
    let mut url = Url::parse(text).map_err(|error| invalid(format!("the url cannot be read: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid(format!("the url has the scheme `{}`; only http and https are supported", url.scheme())));
    }
    url.set_fragment(None);
    Ok(url)
}

fn parse_name(text: &str) -> Result<HeaderName, Failure> {
    let name =
        HeaderName::from_bytes(text.as_bytes()).map_err(|_| invalid(format!("`{text}` is not a header name")))?;
    if HOP_BY_HOP.contains(&name.as_str()) {
        return Err(invalid(format!("the header `{name}` belongs to the connection, which the server controls")));
    }
    Ok(name)
}

/// `http/request`: answered when the response is complete or, if the body is streamed, when its head has arrived.
pub(crate) async fn request(context: RequestContext, mut request: OutboundRequest, reply: Reply) {
    let (active, fetch_request) = match begin(&context, &mut request) {
        Ok(begun) => begun,
        Err(failure) => return refuse(&context, &request, &failure, reply),
    };
    let begun = Instant::now();
    let clock = RequestClock { active: &active, host: host(&request.url), begun, timeout_ms: request.timeout_ms };
    let until_head = clock.until_head(fetch_request.reach);
    let sent = async {
        // The timeout covers the audit record: a disk that hangs must not delay the request longer than the target
        // could.
        context
            .record_first(AuditRecord { target: Some(target(&request.url)), ..AuditRecord::of("http.request") })
            .await?;
        context.core.fetcher.send(fetch_request).await.map_err(|error| failed(&context, &request, error))
    };
    let response = match until_head.run(sent).await {
        Ok(response) => response,
        Err(failure) => return refuse(&context, &request, &failure, reply),
    };
    let status = response.status().as_u16();
    tracing::debug!(to = target(&request.url), status, "HTTP answer");
    let headers = headers_of(&response);
    if request.is_stream {
        reply.result(&wire::RequestResult { status, headers, body_base64: String::new() });
        return stream(&context, &request, &clock, response).await;
    }
    match clock.run(whole(&context, &request, response)).await {
        Ok((body_base64, permits)) => {
            reply.result(&wire::RequestResult { status, headers, body_base64 });
            drop(permits);
        }
        Err(failure) => refuse(&context, &request, &failure, reply),
    }
}

/// `http/cancel`: cancels the requests with this id. A request without an answer fails with `httpCancelled`; a body
/// that is being streamed ends with the text of this error.
pub(crate) async fn cancel(context: RequestContext, params: wire::CancelParams) -> Result<wire::CancelResult, Failure> {
    Ok(wire::CancelResult { cancelled: context.peer.fetches.cancel(&params.request_id) })
}

/// Checks what depends on the principal, and reserves a slot. Sends nothing yet. Moves body and headers out of
/// `request`: the rest of it stays in memory until the response is complete, which may take long for a stream.
fn begin(context: &RequestContext, request: &mut OutboundRequest) -> Result<(ActiveFetch, FetchRequest), Failure> {
    permitted::network(&context.grant)?;
    let is_trusted = context.grant.rights().scopes.contains(&Scope::Exec);
    let mut headers = HeaderMap::new();
    let mut secret = Vec::new();
    for (name, header) in std::mem::take(&mut request.headers) {
        let mut value = header.value.into_bytes();
        let is_secret = header.value_env_var.is_some();
        if let Some(variable) = header.value_env_var {
            if !is_trusted {
                let principal = context.grant.principal().to_string();
                return Err(Failure::HttpVariable { principal, name: variable });
            }
            value.extend_from_slice(variable_of(&context.core.config.environment, &variable)?);
            secret.push(name.clone());
        }
        let mut value = HeaderValue::from_bytes(&value).map_err(|_| {
            invalid(format!("the value of the header `{name}` has characters that are not allowed in a header"))
        })?;
        value.set_sensitive(is_secret);
        if name != header::CONTENT_LENGTH {
            headers.append(name, value);
        } else if value.to_str().ok().and_then(|text| text.parse().ok()) != Some(request.body.len()) {
            return Err(invalid(format!("content-length does not match the {} bytes of the body", request.body.len())));
        }
    }
    let principal = context.grant.principal().to_string();
    let active =
        context.peer.fetches.begin(&context.core.fetcher, &principal, &request.request_id, request.is_stream)?;
    let fetch_request = FetchRequest {
        method: request.method.clone(),
        url: request.url.clone(),
        headers,
        secret,
        body: std::mem::take(&mut request.body),
        follows: request.follows,
        reach: if is_trusted { TargetReach::Anywhere } else { TargetReach::Public },
        avoids_own: !context.grant.is_owner(),
    };
    Ok((active, fetch_request))
}

/// The value of a server variable that a header names. Errors never contain the value.
fn variable_of<'a>(environment: &'a [(OsString, OsString)], name: &str) -> Result<&'a [u8], Failure> {
    if environment::is_kept_from_headers(name) {
        return Err(invalid(format!(
            "the variable `{name}` holds a secret of the server; it cannot be used in a header"
        )));
    }
    let found = environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_encoded_bytes());
    found.filter(|value| !value.is_empty()).ok_or_else(|| invalid(format!("the server has no variable `{name}`")))
}

/// Converts a fetch error into the failure for this principal.
fn failed(context: &RequestContext, request: &OutboundRequest, source: FetchError) -> Failure {
    let source = Box::new(source);
    match *source {
        FetchError::Private(_) | FetchError::Proxied => {
            Failure::HttpTarget { principal: context.grant.principal().to_string(), source }
        }
        FetchError::OwnListener(_) => {
            Failure::HttpOwnListener { principal: context.grant.principal().to_string(), source }
        }
        _ => Failure::Http { host: host(&request.url), source },
    }
}

/// Answers with an error, and logs it. The audit log gets a record only if the request was forbidden. Both logs omit
/// the URL's path and query, which may be private.
fn refuse(context: &RequestContext, request: &OutboundRequest, failure: &Failure, reply: Reply) {
    let kind = failure.kind();
    // Only the logs name the private address: a principal that may not reach the address must not learn it.
    let mut reason = failure.to_string();
    if let Failure::HttpTarget { source, .. } = failure
        && let FetchError::Private(private) = &**source
    {
        reason = format!("{reason}: it is at {}", private.address);
    }
    if kind == Kind::Forbidden {
        context.record_refusal(reason.clone(), Some(target(&request.url)));
    }
    tracing::warn!(parent: reply.span(), to = target(&request.url), kind = kind.as_str(), reason, "HTTP request failed");
    reply.fail(failure);
}

/// Reads the whole body as base64. Also returns the reserved memory, to be kept until the answer is queued.
async fn whole(
    context: &RequestContext,
    request: &OutboundRequest,
    mut response: Response,
) -> Result<(String, impl Sized), Failure> {
    context.peer.outgoing.wait_for_room().await;
    let too_large = || Failure::HttpTooLarge { host: host(&request.url) };
    let expected = response
        .content_length()
        .map_or(limits::HTTP_BODY_BYTES, |length| usize::try_from(length).unwrap_or(usize::MAX));
    if expected > limits::HTTP_BODY_BYTES {
        return Err(too_large());
    }
    let mut body = Vec::new();
    let mut permits = None;
    while let Some(piece) = response.chunk().await.map_err(|error| failed(context, request, error.into()))? {
        if body.len() + piece.len() > limits::HTTP_BODY_BYTES {
            return Err(too_large());
        }
        // Reserve the most that the body can need, while it is still small. Two bodies that reserve as they grow could
        // deadlock.
        if permits.is_none() && body.len() + piece.len() > SMALL_BYTES {
            permits = Some(context.core.fetcher.reserve_memory(&context.peer.fetches, expected).await?);
        }
        body.extend_from_slice(&piece);
    }
    Ok((base64::encode(&body), permits))
}

/// Sends the body in pieces, and then its end. Reads the next piece only after the previous one has got its slot.
async fn stream(context: &RequestContext, request: &OutboundRequest, clock: &RequestClock<'_>, mut response: Response) {
    let mut sender = BodySender { context, request, active: clock.active, seq: 0 };
    let mut reader = BodyReader::default();
    let error = loop {
        let next = async {
            let piece = reader.next(&mut response).await.map_err(|error| failed(context, request, error.into()))?;
            match piece {
                Some(piece) => sender.send(&piece).await,
                None => return Ok(false),
            }
            Ok(true)
        };
        match clock.run(next).await {
            Ok(true) => {}
            Ok(false) => break None,
            Err(failure) => break Some(failure),
        }
    };
    if let Some(failure) = &error {
        tracing::warn!(to = target(&request.url), kind = failure.kind().as_str(), reason = %failure, "HTTP body ended early");
    }
    sender.end(error.as_ref()).await;
}

/// Data of a body that was read but not sent.
#[derive(Default)]
struct BodyReader {
    rest: Bytes,
    /// How the body ended, if the end was seen while more data was collected.
    end: Option<Result<(), reqwest::Error>>,
}

impl BodyReader {
    /// The next piece: all that is available, up to the size of one piece, so that many small reads make few messages.
    /// `None` at the end.
    async fn next(&mut self, response: &mut Response) -> Result<Option<Bytes>, reqwest::Error> {
        while self.rest.is_empty() {
            if let Some(end) = self.end.take() {
                return end.map(|()| None);
            }
            match response.chunk().await? {
                Some(chunk) => self.rest = chunk,
                None => return Ok(None),
            }
        }
        if self.rest.len() >= limits::CHUNK_BYTES {
            return Ok(Some(self.rest.split_to(limits::CHUNK_BYTES)));
        }
        let mut piece = BytesMut::from(std::mem::take(&mut self.rest));
        while piece.len() < limits::CHUNK_BYTES && self.end.is_none() {
            match response.chunk().now_or_never() {
                Some(Ok(Some(mut chunk))) => {
                    let fits = chunk.len().min(limits::CHUNK_BYTES - piece.len());
                    piece.extend_from_slice(&chunk.split_to(fits));
                    self.rest = chunk;
                }
                Some(Ok(None)) => self.end = Some(Ok(())),
                Some(Err(error)) => self.end = Some(Err(error)),
                None => break,
            }
        }
        Ok(Some(piece.freeze()))
    }
}

/// The sending side of a streamed body.
struct BodySender<'a> {
    context: &'a RequestContext,
    request: &'a OutboundRequest,
    active: &'a ActiveFetch,
    seq: u64,
}

impl BodySender<'_> {
    /// Sends a piece. Cancel safe: a piece gets its number only after it has got its slot.
    async fn send(&mut self, piece: &[u8]) {
        if let Some(window) = self.request.window {
            self.active.wait_for_window(self.seq + 1, window).await;
        }
        self.enqueue(piece, false, None).await;
    }

    async fn end(&mut self, failure: Option<&Failure>) {
        let mut text = failure.map(Failure::to_string);
        if let Some(text) = &mut text {
            text.truncate(text.floor_char_boundary(limits::ERROR_TEXT_BYTES));
        }
        self.enqueue(&[], true, text).await;
    }

    async fn enqueue(&mut self, piece: &[u8], done: bool, error: Option<String>) {
        let outgoing = &self.context.peer.outgoing;
        let slot = outgoing.reserve_delta().await;
        self.seq += 1;
        let delta_base64 = base64::encode(piece).into();
        let request_id = self.request.request_id.clone();
        let mut message = Vec::with_capacity(base64::encoded_len(piece.len()) + 128);
        let params = wire::BodyDeltaParams { request_id, seq: self.seq, delta_base64, done, error };
        encode_notification(&mut message, Notification::HttpBodyDelta.name(), &params);
        outgoing.enqueue_delta(message, slot);
    }
}

/// The timeout and the cancellation of a request.
#[derive(Clone)]
struct RequestClock<'a> {
    active: &'a ActiveFetch,
    host: String,
    begun: Instant,
    timeout_ms: Option<u64>,
}

impl RequestClock<'_> {
    /// The clock for the time until the response head has arrived.
    fn until_head(&self, reach: TargetReach) -> Self {
        let most = (reach == TargetReach::Public).then_some(HEAD_MS);
        Self { timeout_ms: self.timeout_ms.into_iter().chain(most).min(), ..self.clone() }
    }

    /// Runs `work` until it is done, cancelled or out of time.
    async fn run<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let ms = self.timeout_ms.unwrap_or(u64::MAX);
        let deadline = self.begun + Duration::from_millis(ms).min(FOREVER);
        tokio::select! {
            biased;
            () = self.active.cancelled() => Err(Failure::HttpCancelled),
            done = work => done,
            () = tokio::time::sleep_until(deadline), if self.timeout_ms.is_some() => {
                Err(Failure::HttpTimeout { host: self.host.clone(), ms })
            }
        }
    }
}

/// The response headers. Repeated headers stay, in order. A value that is not UTF-8 is left out, because JSON cannot
/// represent it.
fn headers_of(response: &Response) -> Vec<wire::Header> {
    let texts = response.headers().iter().filter_map(|(name, value)| {
        let value = str::from_utf8(value.as_bytes()).ok()?.to_owned();
        Some(wire::Header { name: name.as_str().to_owned(), value, value_env_var: None })
    });
    texts.collect()
}

fn host(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

/// The part of a URL that may be logged: scheme, host and port.
fn target(url: &Url) -> String {
    let port = url.port_or_known_default().unwrap_or_default();
    format!("{}://{}:{port}", url.scheme(), url.host_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use exec_server_protocol::{http as wire, limits};
    use serde_json::json;
    use tokio::time::Instant;

    use super::{HEAD_MS, RequestClock, decode};
    use crate::{
        error::Failure,
        fetch::{Fetcher, Fetches, TargetReach},
    };

    fn check(method: &str, variable: &str) -> Result<(), String> {
        let headers = json!([{"name": "x", "value": "", "valueEnvVar": variable}]);
        let params = json!({"method": method, "url": "http://a.example/", "requestId": "r", "headers": headers});
        let params: wire::RequestParams = serde_json::from_value(params).unwrap();
        decode(params).map(drop).map_err(|failure| failure.to_string())
    }

    #[test]
    fn long_methods_and_invalid_variable_names_are_refused() {
        check(&"M".repeat(32), "KEY").unwrap();
        assert!(check(&"M".repeat(33), "KEY").unwrap_err().contains("32 bytes"));
        assert!(check("GET", "K\nEY").unwrap_err().contains("control characters"));
        assert!(check("GET", &"K".repeat(limits::HTTP_HEADER_BYTES)).unwrap_err().contains("more headers"));
    }

    #[tokio::test(start_paused = true)]
    async fn with_only_the_scope_http_the_wait_for_the_response_head_is_bounded() {
        let fetches = Arc::new(Fetches::default());
        let active = fetches.begin(&Fetcher::new(&[]), "me", "r", true).unwrap();
        let clock = RequestClock { active: &active, host: String::new(), begun: Instant::now(), timeout_ms: None };
        let silent = std::future::pending::<Result<(), Failure>>;
        let late = clock.until_head(TargetReach::Public).run(silent()).await;
        assert!(matches!(late, Err(Failure::HttpTimeout { ms: HEAD_MS, .. })), "{late:?}");
        let hour = Duration::from_secs(3600);
        let forever = clock.until_head(TargetReach::Anywhere);
        assert!(tokio::time::timeout(hour, forever.run(silent())).await.is_err());
        let short = RequestClock { begun: Instant::now(), timeout_ms: Some(5), ..clock.clone() };
        assert!(matches!(
            short.until_head(TargetReach::Public).run(silent()).await,
            Err(Failure::HttpTimeout { ms: 5, .. })
        ));
    }
}
