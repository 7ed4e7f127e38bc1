//! HTTP requests that the server makes for its clients: the `reqwest` clients, and the bounds on concurrent requests.
//!
//! ```text
//! handlers::http ▶ FetchRequest ▶ Fetcher::send ── target: is it allowed? ──▶ client (any target, or public ones) ▶ response
//!                                        ▲                                                   │
//!                                        └────────────── redirect, at most ten ──────────────┘
//! ```
//!
//! Redirects are followed here and not by `reqwest`, so that each target is checked like the first. Principals with
//! different rights use different `reqwest` clients, which share no connection pool: a request that may reach only
//! public addresses must not find a pooled connection to a private one.

mod active;
mod proxies;
mod target;

use std::{
    error::Error,
    ffi::OsString,
    iter,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use exec_server_protocol::limits;
use reqwest::{
    ClientBuilder, Method, Response, StatusCode, Url,
    header::{self, HeaderMap, HeaderName},
    redirect,
};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs::default_provider};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

use self::{active::PrincipalShares, proxies::Proxies, target::TargetResolver};
pub(crate) use self::{
    active::{ActiveFetch, Fetches},
    proxies::ProxyError,
    target::{OwnListener, PrivateTarget},
};
use crate::{error::Failure, files::acquire};

/// Unit in which the memory for bodies is counted.
const KIB: usize = 1024;

/// Bodies up to this size need no reservation.
pub(crate) const SMALL_BYTES: usize = 256 * KIB;

/// How long an idle connection is kept, and how many per host. There is no limit on the total: connections are kept
/// only for principals that may start processes, and these could hold any number of connections anyway. Requests of
/// other principals leave no connection behind.
const IDLE: Duration = Duration::from_secs(10);
const IDLE_PER_HOST: usize = 4;

/// Timeout for resolving a name and connecting. Without it, a request that sets no timeout could occupy a slot as long
/// as a silent target likes.
const CONNECTING: Duration = Duration::from_secs(30);

/// HTTP/2 flow-control windows: how much unread data a target may send, per stream and per connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Headers with credentials. A redirect to another origin removes them from the request.
const CREDENTIALS: [HeaderName; 4] =
    [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION, header::WWW_AUTHENTICATE];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetReach {
    /// Any address. For principals that may start processes, because a process can connect anywhere.
    Anywhere,
    /// Only addresses of the public internet.
    Public,
}

/// A validated request. Only its target is not checked yet.
#[derive(Debug)]
pub(crate) struct FetchRequest {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// Headers made from the server's environment variables. They count as credentials.
    pub(crate) secret: Vec<HeaderName>,
    pub(crate) body: Bytes,
    pub(crate) follows: bool,
    pub(crate) reach: TargetReach,
    /// Refuse targets that are a listener of this server, by any address or name. Set unless the caller is the owner.
    pub(crate) avoids_own: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The `reqwest` clients could not be created.
    #[error("{reason}")]
    Setup { reason: String },
    /// The principal may not send requests to a private address.
    #[error(transparent)]
    Private(#[from] PrivateTarget),
    /// The target is a listener of this server.
    #[error(transparent)]
    OwnListener(#[from] OwnListener),
    /// The request would go through a proxy, which resolves the name itself, so the address could not be checked.
    #[error("the request would use the proxy of the server's environment, which resolves names itself")]
    Proxied,
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("the answer redirects to `{place}`, which is neither http nor https")]
    Scheme { place: String },
    #[error("the answer redirects to an invalid URL")]
    Location,
    #[error("more than {} redirects", limits::HTTP_REDIRECTS)]
    Redirects,
    #[error("the answer has more than {} headers or {} bytes of them", limits::HTTP_HEADERS, limits::HTTP_HEADER_BYTES)]
    Headers,
    /// Without the URL, which may contain secrets.
    #[error("{}", error_text(.0))]
    Client(reqwest::Error),
}

impl From<reqwest::Error> for FetchError {
    fn from(error: reqwest::Error) -> Self {
        let error = error.without_url();
        if let Some(private) = chain(&error).find_map(|error| error.downcast_ref::<PrivateTarget>()) {
            return private.clone().into();
        }
        if let Some(own) = chain(&error).find_map(|error| error.downcast_ref::<OwnListener>()) {
            return own.clone().into();
        }
        Self::Client(error)
    }
}

/// The environment variable of compatible products that names a file of certificate authorities. Has the meaning of
/// `SSL_CERT_FILE` and takes precedence over it.
const AUTHORITIES: &str = "CODEX_CA_CERTIFICATE";

/// The `reqwest` clients, and the bounds on concurrent requests.
pub(crate) struct Fetcher {
    proxies: Arc<Proxies>,
    /// A file of certificate authorities, used instead of the system's.
    authorities: Option<PathBuf>,
    clients: OnceCell<HttpClients>,
    slots: Arc<Semaphore>,
    shares: Arc<PrincipalShares>,
    reading: Arc<Semaphore>,
    /// TCP ports of this server's listeners. Set once, when they are bound.
    own_ports: OnceLock<Vec<u16>>,
}

struct HttpClients {
    anywhere: reqwest::Client,
    public: reqwest::Client,
    /// The same two, for requests with `avoids_own` to a port that this server listens on. Their resolver refuses
    /// addresses of this host.
    anywhere_but_here: reqwest::Client,
    public_but_here: reqwest::Client,
}

impl Fetcher {
    /// Uses the proxies and the certificate authorities in these environment variables.
    pub(crate) fn new(environment: &[(OsString, OsString)]) -> Self {
        let authorities = environment.iter().find(|(name, value)| name == AUTHORITIES && !value.is_empty());
        Self {
            authorities: authorities.map(|(_, file)| PathBuf::from(file)),
            proxies: Arc::new(Proxies::read(environment)),
            clients: OnceCell::new(),
            slots: Arc::new(Semaphore::new(limits::HTTP_REQUESTS_OF_SERVER)),
            shares: Arc::default(),
            reading: Arc::new(Semaphore::new(limits::HTTP_READING_BYTES_OF_SERVER / KIB)),
            own_ports: OnceLock::new(),
        }
    }

    /// Sets the TCP ports that this server listens on. Only the first call has an effect.
    pub(crate) fn set_own_ports(&self, ports: Vec<u16>) {
        self.own_ports.get_or_init(|| ports);
    }

    fn is_own_port(&self, url: &Url) -> bool {
        let port = url.port_or_known_default();
        self.own_ports.get().is_some_and(|own| port.is_some_and(|port| own.contains(&port)))
    }

    /// Makes a request and follows redirects. Returns when the headers of the last response have arrived. Dropping the
    /// future cancels the request.
    pub(crate) async fn send(&self, fetch_request: FetchRequest) -> Result<Response, FetchError> {
        let clients = self.clients().await?;
        let FetchRequest { mut method, mut url, mut headers, secret, mut body, follows, reach, avoids_own } =
            fetch_request;
        for _ in 0..=limits::HTTP_REDIRECTS {
            let is_own_port = avoids_own && self.is_own_port(&url);
            if is_own_port {
                target::check_not_here(&url)?;
                // A proxy resolves names itself, and it may run on this host.
                if reach == TargetReach::Anywhere && self.proxies.of(&url).is_some() {
                    return Err(OwnListener::of(&url).into());
                }
            }
            let client = match reach {
                TargetReach::Anywhere if is_own_port => &clients.anywhere_but_here,
                TargetReach::Anywhere => {
                    self.proxies.check(&url)?;
                    &clients.anywhere
                }
                TargetReach::Public => {
                    target::check_literal(&url)?;
                    if self.proxies.of(&url).is_some() {
                        return Err(FetchError::Proxied);
                    }
                    if is_own_port { &clients.public_but_here } else { &clients.public }
                }
            };
            let request = client.request(method.clone(), url.clone()).headers(headers.clone());
            let request = if body.is_empty() { request } else { request.body(body.clone()) };
            let response = request.send().await?;
            check_headers(response.headers())?;
            let Some(next) = follows.then(|| redirect_target(&response, &url)).transpose()?.flatten() else {
                return Ok(response);
            };
            if becomes_get(response.status(), &method) {
                method = Method::GET;
                body = Bytes::new();
                for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE] {
                    headers.remove(name);
                }
            }
            if next.origin() != url.origin() {
                CREDENTIALS.iter().chain(&secret).chain([&header::HOST]).for_each(|name| drop(headers.remove(name)));
            }
            url = next;
        }
        Err(FetchError::Redirects)
    }

    /// Creates the clients on first use, because loading the system's certificates is slow.
    async fn clients(&self) -> Result<&HttpClients, FetchError> {
        let make = async || {
            let proxies = self.proxies.clone();
            let authorities = self.authorities.clone();
            let made = tokio::task::spawn_blocking(move || make_clients(&proxies, authorities.as_deref())).await;
            made.map_err(|error| error.to_string()).and_then(|made| made).map_err(|reason| FetchError::Setup { reason })
        };
        self.clients.get_or_try_init(make).await
    }

    /// Reserves memory for a body of at most `bytes` bytes: for the bytes and for their base64. The caller keeps the
    /// permits until the body has been queued for the peer.
    pub(crate) async fn reserve_memory(
        &self,
        fetches: &Fetches,
        bytes: usize,
    ) -> Result<[OwnedSemaphorePermit; 2], Failure> {
        let kib = (bytes + bytes.div_ceil(3) * 4).div_ceil(KIB);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        Ok([acquire(&fetches.reading, kib).await?, acquire(&self.reading, kib).await?])
    }
}

fn make_clients(proxies: &Arc<Proxies>, authorities: Option<&Path>) -> Result<HttpClients, String> {
    let tls = tls(authorities).map_err(|error| format!("set up TLS: {error}"))?;
    let builder = |reach: TargetReach, excludes_this_host: bool, idle: usize| {
        reqwest::Client::builder()
            .tls_backend_preconfigured(tls.clone())
            .redirect(redirect::Policy::none())
            .referer(false)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(idle)
            .connect_timeout(CONNECTING)
            .dns_resolver(TargetResolver::new(reach, excludes_this_host))
            .tcp_user_timeout(None)
            .http1_max_headers(limits::HTTP_HEADERS)
            .http2_max_header_list_size(u32::try_from(limits::HTTP_HEADER_BYTES).unwrap_or(u32::MAX))
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .no_proxy()
    };
    let build = |builder: ClientBuilder| {
        builder.build().map_err(|error| format!("make an HTTP client: {}", error_text(&error)))
    };
    let proxies = proxies.clone();
    let proxy = reqwest::Proxy::custom(move |url| proxies.find(url).cloned());
    Ok(HttpClients {
        anywhere: build(builder(TargetReach::Anywhere, false, IDLE_PER_HOST).proxy(proxy))?,
        public: build(builder(TargetReach::Public, false, 0))?,
        // No pooled connections here: an address may become an address of this host later.
        anywhere_but_here: build(builder(TargetReach::Anywhere, true, 0))?,
        public_but_here: build(builder(TargetReach::Public, true, 0))?,
    })
}

/// TLS with the authorities in a file, or those of the system (`load_native_certs` reads `SSL_CERT_FILE` and
/// `SSL_CERT_DIR`). Without any authorities, `http:` still works and `https:` requests fail with an error.
fn tls(authorities: Option<&Path>) -> Result<ClientConfig, rustls::Error> {
    let found = match authorities {
        Some(file) => rustls_native_certs::load_certs_from_paths(Some(file), None),
        None => rustls_native_certs::load_native_certs(),
    };
    for error in &found.errors {
        match authorities {
            Some(file) => tracing::warn!("file `{}` of `{AUTHORITIES}`: {error}", file.display()),
            None => tracing::debug!("system certificates: {error}"),
        }
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!("found no certificate authorities; HTTPS requests will fail");
    }
    // Pass the provider explicitly, so that the process-wide default provider of an embedding program is not touched.
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The target of a redirect, or `None` if the response is not a redirect.
fn redirect_target(response: &Response, from: &Url) -> Result<Option<Url>, FetchError> {
    let is_redirect = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let Some(location) = response.headers().get(header::LOCATION).filter(|_| is_redirect) else { return Ok(None) };
    let location = str::from_utf8(location.as_bytes()).map_err(|_| FetchError::Location)?;
    let mut next = from.join(location).map_err(|_| FetchError::Location)?;
    if !matches!(next.scheme(), "http" | "https") {
        return Err(FetchError::Scheme { place: format!("{}:", next.scheme()) });
    }
    next.set_fragment(None);
    if next.as_str().len() > limits::HTTP_URL_BYTES {
        return Err(FetchError::Location);
    }
    Ok(Some(next))
}

/// Whether the redirected request becomes a GET without a body. Follows the common behavior of HTTP clients.
fn becomes_get(status: StatusCode, method: &Method) -> bool {
    match status {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => *method == Method::POST,
        StatusCode::SEE_OTHER => *method != Method::GET && *method != Method::HEAD,
        _ => false,
    }
}

fn check_headers(headers: &HeaderMap) -> Result<(), FetchError> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > limits::HTTP_HEADERS || bytes > limits::HTTP_HEADER_BYTES {
        return Err(FetchError::Headers);
    }
    Ok(())
}

/// The error of the client with its sources, without the URL.
pub(crate) fn error_text(error: &reqwest::Error) -> String {
    let mut text = String::new();
    for error in chain(error) {
        let part = error.to_string();
        // Some errors repeat the text of their source.
        if !text.ends_with(&part) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&part);
        }
    }
    text
}

/// An error and its sources.
fn chain(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    iter::successors(Some(error as &(dyn Error + 'static)), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use reqwest::{Method, StatusCode};

    use super::becomes_get;

    #[test]
    fn redirects_change_the_method_as_in_other_http_clients() {
        let all = [
            (StatusCode::MOVED_PERMANENTLY, Method::POST, true),
            (StatusCode::FOUND, Method::POST, true),
            (StatusCode::FOUND, Method::PUT, false),
            (StatusCode::SEE_OTHER, Method::DELETE, true),
            (StatusCode::SEE_OTHER, Method::HEAD, false),
            (StatusCode::TEMPORARY_REDIRECT, Method::POST, false),
            (StatusCode::PERMANENT_REDIRECT, Method::POST, false),
        ];
        for (status, method, expected) in all {
            assert_eq!(becomes_get(status, &method), expected, "{status} {method}");
        }
    }
}
