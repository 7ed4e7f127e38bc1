//! Judges a request. Pure: a request and a gate in, a verdict out, so that the whole table is one test.
//!
//! The order is the point. Health first, which says nothing but ok. Then, on every other path: Host, Origin and
//! `Sec-Fetch-Site` (403), token (401), and only for those who passed whether the path exists, the method fits and the
//! upgrade is valid.

use exec_server_protocol::method::Scope;
use exec_server_rpc::handshake;

use super::{
    auth,
    host::{self, Hosts},
    http::{Request, Response},
};
use crate::access::{Access, Grant};

/// What one listener asks for.
pub(super) struct Gate<'a> {
    /// The names that requests may call us by; `None` where the Host says nothing.
    pub(super) hosts: Option<Hosts<'a>>,
    /// How a peer proves who it is.
    pub(super) proof: Proof<'a>,
    /// The server is on its way out.
    pub(super) draining: bool,
    /// New clients are welcome: the server has all it needs.
    pub(super) is_ready: bool,
}

/// How a peer proves who it is.
pub(super) enum Proof<'a> {
    /// It has: by the kernel's word or a certificate, or nobody has to.
    Given(Grant),
    /// By a token in the request.
    Token(&'a Access),
}

/// What becomes of a request.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It becomes a WebSocket.
    Upgrade {
        /// The answer to its key.
        accept: String,
        /// What the peer may do.
        grant: Grant,
    },
    /// It gets the page of metrics.
    Metrics {
        /// False for HEAD.
        with_body: bool,
    },
    /// It is answered and closed.
    Answer(Response),
}

/// Judges one request.
pub(super) fn check(request: &Request<'_>, gate: &Gate<'_>) -> Verdict {
    match examine(request, gate) {
        Ok(verdict) => verdict,
        Err(response) => Verdict::Answer(response),
    }
}

fn examine(request: &Request<'_>, gate: &Gate<'_>) -> Result<Verdict, Response> {
    if let "/healthz" | "/readyz" = request.path() {
        return Err(health(request, gate));
    }
    let grant = admit(request, gate)?;
    if request.path() == "/metrics" {
        return metrics(request, &grant);
    }
    if request.path() != "/" {
        return Err(Response::not_found());
    }
    if gate.draining {
        return Err(Response::busy());
    }
    Ok(Verdict::Upgrade { accept: upgrade(request)?, grant })
}

/// Who may come in at all, whatever is asked for: by its own name for us, from no page, and with a proof.
pub(super) fn admit(request: &Request<'_>, gate: &Gate<'_>) -> Result<Grant, Response> {
    if let Some(hosts) = &gate.hosts
        && !host::is_ours(request.values("host"), hosts)
    {
        return Err(Response::forbidden());
    }
    // Our clients are no browsers. A browser cannot leave Origin out of an upgrade, so its presence is the whole test.
    if request.values("origin").next().is_some() {
        return Err(Response::forbidden());
    }
    if request.values("sec-fetch-site").any(|site| !matches!(site.trim_ascii(), b"none" | b"same-origin")) {
        return Err(Response::forbidden());
    }
    match &gate.proof {
        Proof::Given(grant) => Ok(grant.clone()),
        Proof::Token(access) => {
            auth::offered(request).and_then(|offered| access.by_tokens(&offered)).ok_or_else(Response::unauthorized)
        }
    }
}

/// Also while draining: the end of a server is worth watching.
fn metrics(request: &Request<'_>, grant: &Grant) -> Result<Verdict, Response> {
    if !grant.rights().scopes.contains(&Scope::Metrics) {
        return Err(Response::forbidden());
    }
    match request.method {
        "GET" | "HEAD" => Ok(Verdict::Metrics { with_body: request.method == "GET" }),
        _ => Err(Response::method_not_allowed("GET, HEAD")),
    }
}

/// Says only ok, or that no new client should come.
fn health(request: &Request<'_>, gate: &Gate<'_>) -> Response {
    if !matches!(request.method, "GET" | "HEAD") {
        return Response::method_not_allowed("GET, HEAD");
    }
    if request.path() == "/readyz" && (gate.draining || !gate.is_ready) {
        return Response::busy();
    }
    let response = Response::ok();
    if request.method == "HEAD" { response.without_body() } else { response }
}

/// The rules of RFC 6455 section 4.2.1, and the answer to the key.
fn upgrade(request: &Request<'_>) -> Result<String, Response> {
    if request.method != "GET" {
        return Err(Response::method_not_allowed("GET"));
    }
    let has_body = request.values("transfer-encoding").next().is_some()
        || request.values("content-length").any(|value| value.trim_ascii() != b"0");
    if has_body {
        return Err(Response::bad_request());
    }
    let asks = request.has_element("upgrade", "websocket") && request.has_element("connection", "upgrade");
    let mut versions = request.values("sec-websocket-version");
    let is_version = versions.next().is_some_and(|version| version.trim_ascii() == b"13") && versions.next().is_none();
    if request.minor_version != 1 || !asks || !is_version {
        return Err(Response::upgrade_required());
    }
    let mut keys = request.values("sec-websocket-key");
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return Err(Response::bad_request());
    };
    let key = std::str::from_utf8(key.trim_ascii()).map_err(|_| Response::bad_request())?;
    let nonce = base64_simd::STANDARD.decode_to_vec(key).map_err(|_| Response::bad_request())?;
    if nonce.len() != 16 {
        return Err(Response::bad_request());
    }
    Ok(handshake::accept_key(key))
}
