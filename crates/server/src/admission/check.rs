//! Checks a request. A pure function of the request and the requirements, so that one test can cover the whole table of
//! verdicts.
//!
//! The order of the checks matters. Health comes first, because its answer reveals only whether the server accepts new
//! clients. On every other path, Host, Origin and `Sec-Fetch-Site` are checked (403), then the token (401). Only an
//! authenticated client learns whether the path exists, the method fits and the upgrade is valid.

use exec_server_protocol::method::Scope;
use exec_server_rpc::handshake;

use super::{
    auth,
    host::{self, ListenerHosts},
    http::{HttpRequest, HttpResponse},
};
use crate::access::{Access, Grant};

/// The requirements of one listener.
pub(super) struct ListenerRequirements<'a> {
    /// The host names that a request may use. `None`: the Host header is not checked.
    pub(super) hosts: Option<ListenerHosts<'a>>,
    pub(super) proof: RequiredProof<'a>,
    /// The server is shutting down.
    pub(super) draining: bool,
    /// The server has all it needs to serve new clients.
    pub(super) is_ready: bool,
}

/// How the peer authenticates.
pub(super) enum RequiredProof<'a> {
    /// Already authenticated: by the peer credentials of the socket or by a certificate, or the listener requires no
    /// authentication.
    Given(Grant),
    /// The request must offer a token.
    Token(&'a Access),
}

/// The decision about a request.
#[derive(Debug)]
pub(super) enum RequestVerdict {
    /// Switch to WebSocket.
    Upgrade {
        /// The value of `Sec-WebSocket-Accept`.
        accept: String,
        grant: Grant,
    },
    /// Send the metrics page.
    Metrics { with_body: bool },
    /// Send this response and close.
    Answer(HttpResponse),
}

pub(super) fn check(request: &HttpRequest<'_>, requirements: &ListenerRequirements<'_>) -> RequestVerdict {
    examine(request, requirements).unwrap_or_else(RequestVerdict::Answer)
}

/// `Err` is a response that is final, even if it is a success.
fn examine(request: &HttpRequest<'_>, requirements: &ListenerRequirements<'_>) -> Result<RequestVerdict, HttpResponse> {
    if let "/healthz" | "/readyz" = request.path() {
        return Err(health(request, requirements));
    }
    let grant = authenticate(request, requirements)?;
    if request.path() == "/metrics" {
        return metrics(request, &grant);
    }
    if request.path() != "/" {
        return Err(HttpResponse::NOT_FOUND);
    }
    if requirements.draining {
        return Err(HttpResponse::BUSY);
    }
    Ok(RequestVerdict::Upgrade { accept: upgrade(request)?, grant })
}

/// The checks that apply to every path but health: Host, Origin, `Sec-Fetch-Site` and authentication.
pub(super) fn authenticate(
    request: &HttpRequest<'_>,
    requirements: &ListenerRequirements<'_>,
) -> Result<Grant, HttpResponse> {
    if let Some(hosts) = &requirements.hosts
        && !host::is_ours(request.values("host"), hosts)
    {
        return Err(HttpResponse::FORBIDDEN);
    }
    // Our clients are not browsers, and a browser cannot omit Origin from an upgrade. So any Origin is refused.
    if request.values("origin").next().is_some() {
        return Err(HttpResponse::FORBIDDEN);
    }
    if request.values("sec-fetch-site").any(|site| !matches!(site.trim_ascii(), b"none" | b"same-origin")) {
        return Err(HttpResponse::FORBIDDEN);
    }
    match &requirements.proof {
        RequiredProof::Given(grant) => Ok(grant.clone()),
        RequiredProof::Token(access) => auth::offered_tokens(request)
            .and_then(|offered| access.by_tokens(&offered))
            .ok_or(HttpResponse::UNAUTHORIZED),
    }
}

/// `/metrics` is also answered while the server drains, so that a shutdown can be observed.
fn metrics(request: &HttpRequest<'_>, grant: &Grant) -> Result<RequestVerdict, HttpResponse> {
    if !grant.rights().scopes.contains(&Scope::Metrics) {
        return Err(HttpResponse::FORBIDDEN);
    }
    match request.method {
        "GET" | "HEAD" => Ok(RequestVerdict::Metrics { with_body: request.method == "GET" }),
        _ => Err(HttpResponse::method_not_allowed("GET, HEAD")),
    }
}

/// Reveals nothing but "ok" or "do not send new clients".
fn health(request: &HttpRequest<'_>, requirements: &ListenerRequirements<'_>) -> HttpResponse {
    if !matches!(request.method, "GET" | "HEAD") {
        return HttpResponse::method_not_allowed("GET, HEAD");
    }
    if request.path() == "/readyz" && (requirements.draining || !requirements.is_ready) {
        return HttpResponse::BUSY;
    }
    let response = HttpResponse::ok();
    if request.method == "HEAD" { response.without_body() } else { response }
}

/// Checks the rules of RFC 6455 section 4.2.1 and returns the value of `Sec-WebSocket-Accept`.
fn upgrade(request: &HttpRequest<'_>) -> Result<String, HttpResponse> {
    if request.method != "GET" {
        return Err(HttpResponse::method_not_allowed("GET"));
    }
    let has_body = request.values("transfer-encoding").next().is_some()
        || request.values("content-length").any(|value| value.trim_ascii() != b"0");
    if has_body {
        return Err(HttpResponse::BAD_REQUEST);
    }
    let asks_for_websocket =
        request.has_element("upgrade", "websocket") && request.has_element("connection", "upgrade");
    let mut versions = request.values("sec-websocket-version");
    let is_version = versions.next().is_some_and(|version| version.trim_ascii() == b"13") && versions.next().is_none();
    if request.minor_version != 1 || !asks_for_websocket || !is_version {
        return Err(HttpResponse::UPGRADE_REQUIRED);
    }
    let mut keys = request.values("sec-websocket-key");
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return Err(HttpResponse::BAD_REQUEST);
    };
    let key = std::str::from_utf8(key.trim_ascii()).map_err(|_| HttpResponse::BAD_REQUEST)?;
    let nonce = base64_simd::STANDARD.decode_to_vec(key).map_err(|_| HttpResponse::BAD_REQUEST)?;
    if nonce.len() != 16 {
        return Err(HttpResponse::BAD_REQUEST);
    }
    Ok(handshake::accept_key(key))
}
