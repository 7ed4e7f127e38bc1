//! Admission: authenticates every connection before the rest of the server sees it.
//!
//! One request is read (`http`), checked (`check`, with `host` and `auth`) and answered. If it is an upgrade that
//! passed, the connection becomes an [`Authenticated`], and the core serves nothing else. No request is read from
//! a connection of `dial-stdio`, which the peer's uid authenticates, nor from standard streams, which are the owner's.
//!
//! ```compile_fail
//! # async fn serve(core: std::sync::Arc<exec_server_server::core::Core>, stream: exec_server_rpc::ByteStream) {
//! core.serve(stream).await; // A bare stream has no principal.
//! # }
//! ```
//!
//! Unauthenticated connections are bounded: 64 connections, 8 KiB and 10 s each. `pending` decides which one is dropped
//! when there are more.
//!
//! Request targets and header values are never logged, because they can contain the token.

mod auth;
mod check;
mod host;
mod http;
mod pending;

pub use host::{AllowedHost, AllowedHostError};
pub use pending::AdmissionCounts;

use std::{
    fmt::Display,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::BytesMut;
use exec_server_protocol::limits;
use exec_server_rpc::{ByteStream, Framing, WebSocketRole};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    time::{self, Instant},
};

use self::{
    check::{ListenerRequirements, RequestVerdict, RequiredProof},
    host::ListenerHosts,
    http::HttpResponse,
    pending::{PeerSource, PendingConnections, PendingSlot},
};
use crate::{
    access::{Access, Certificate, Grant},
    audit::Audit,
    core::Authenticated,
    tls::{OwnNames, Tls},
};

/// Deadline from accept to the end of the response, including the TLS handshake.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);

/// Settings of [`Admission`]. All except `audit` apply only to TCP connections.
#[derive(Clone, Debug, Default)]
pub struct AdmissionConfig {
    /// Maps tokens and certificates to grants.
    pub access: Arc<Access>,
    /// Records refused connections.
    pub audit: Audit,
    /// Host names of this server in addition to its own addresses.
    pub allowed_hosts: Vec<AllowedHost>,
    /// A client with a certificate must present a token as well.
    pub token_beside_certificate: bool,
}

/// One TCP listener, as admission sees it.
#[derive(Clone, Debug)]
pub struct TcpEndpoint {
    pub local: SocketAddr,
    /// `None` for `ws://`.
    pub tls: Option<Arc<Tls>>,
}

/// The interface between admission and the server: admission reports refusals to the server, and gets the metrics page
/// and the readiness from it.
pub trait AdmissionReporter: Send + Sync {
    /// A connection was answered with this HTTP status instead of being admitted; 0: the TLS handshake failed. Not
    /// called for health and metrics that were answered with 200.
    fn refused(&self, status: u16);
    /// The metrics page, including the counters of admission.
    fn page(&self, admission: AdmissionCounts) -> String;
    /// Whether the server can serve new clients.
    fn is_ready(&self) -> bool {
        true
    }
}

/// The decision of admission about a request that another listener received; see [`Admission::check_request`].
#[derive(Clone, Debug)]
pub enum AdmissionDecision {
    /// Allowed, with this grant.
    Admitted(Grant),
    /// The Host header does not name this server, or the request comes from a web page.
    Forbidden,
    /// The request does not authenticate its sender.
    Unauthorized,
}

/// Authenticates the connections of all listeners of a server.
pub struct Admission {
    config: AdmissionConfig,
    /// `None`: nothing is reported, and `/metrics` is answered with 404.
    reporter: Option<Arc<dyn AdmissionReporter>>,
    pending: Arc<PendingConnections>,
    /// Set once by `Admission::drain`: `/readyz` fails and upgrades are refused.
    draining: AtomicBool,
}

impl Admission {
    pub fn new(config: AdmissionConfig) -> Self {
        Self { config, reporter: None, pending: Arc::default(), draining: AtomicBool::new(false) }
    }

    /// Reports refusals to `reporter` and serves its page at `/metrics`. Without a reporter, `/metrics` is 404.
    pub fn reporting(mut self, reporter: Arc<dyn AdmissionReporter>) -> Self {
        self.reporter = Some(reporter);
        self
    }

    /// Checks an HTTP request of another protocol (MCP) that arrived without TLS at the address `local`. The rules for
    /// Host, Origin, `Sec-Fetch-Site` and tokens are those of a WebSocket upgrade. The caller checks path and method.
    pub fn check_request(&self, local: SocketAddr, target: &str, headers: &[(&str, &[u8])]) -> AdmissionDecision {
        let headers: Vec<_> = headers.iter().map(|(name, value)| httparse::Header { name, value }).collect();
        let request = http::HttpRequest { method: "POST", target, minor_version: 1, headers: &headers };
        match check::authenticate(&request, &self.requirements(self.hosts(local, None), self.proof())) {
            Ok(grant) => AdmissionDecision::Admitted(grant),
            Err(response) if response.status() == 401 => AdmissionDecision::Unauthorized,
            Err(_) => AdmissionDecision::Forbidden,
        }
    }

    /// From now on the server is not ready, and no new client is admitted.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Takes a slot for a connection; `None` stands for a Unix socket. Call it at accept: then the bound also holds for
    /// connections whose task has not run yet.
    pub(crate) fn reserve_slot(&self, peer: Option<SocketAddr>) -> PendingSlot {
        self.pending.reserve(peer.map_or(PeerSource::Local, PeerSource::from), Instant::now())
    }

    /// Whether all slots are taken, so that the next connection evicts another one.
    pub fn is_crowded(&self) -> bool {
        self.pending.is_full()
    }

    pub fn counts(&self) -> AdmissionCounts {
        self.pending.counts()
    }

    /// Authenticates a TCP connection. `None`: the connection was not admitted and is closed.
    pub(crate) async fn admit_tcp(
        &self,
        mut socket: TcpStream,
        endpoint: &TcpEndpoint,
        peer: SocketAddr,
        slot: PendingSlot,
    ) -> Option<Authenticated> {
        if let Some(tls) = &endpoint.tls {
            let admitting = self.admit_secured(socket, tls, endpoint.local, peer, &slot);
            return in_time(&slot, admitting).await.ok()?;
        }
        let requirements = self.requirements(self.hosts(endpoint.local, None), self.proof());
        let checking = self.check_and_answer(&mut socket, &requirements, &slot, &peer);
        let Ok(checked) = in_time(&slot, checking).await else {
            // The slot was lost. Answer with 503 as far as that is possible without waiting. Also read the
            // input: closing a socket with unread input sends a RST, and the peer may lose the response.
            socket.try_write(&HttpResponse::BUSY.encode()).ok();
            socket.try_read(&mut [0; 1 << 10]).ok();
            self.report_refusal(503);
            return None;
        };
        let (leftover, grant) = checked?;
        Some(websocket(socket.into(), leftover, grant, &peer))
    }

    /// Does the TLS handshake, then the same checks as without TLS. A certificate decides the principal. A token that
    /// is required beside the certificate is checked, but its grant is not used.
    async fn admit_secured(
        &self,
        socket: TcpStream,
        tls: &Tls,
        local: SocketAddr,
        peer: SocketAddr,
        slot: &PendingSlot,
    ) -> Option<Authenticated> {
        let mut secured = match tls.accept(socket.into()).await {
            Ok(secured) => secured,
            Err(error) => {
                tracing::debug!(%peer, %error, "no TLS handshake");
                // Without a handshake no response can be sent, so there is nothing to delay.
                slot.refused(Instant::now());
                self.report_refusal(0);
                return None;
            }
        };
        let certified = match &secured.certificate {
            None => None,
            Some(shown) => {
                let certificate = Certificate { names: &shown.names, fingerprint: &shown.fingerprint };
                let found = self.config.access.by_certificate(&certificate);
                if found.is_none() {
                    tracing::warn!(%peer, names = ?shown.names, "refused a certificate that is revoked or not listed");
                    self.config.audit.refused(&format_args!("{peer} {}", shown.names.join(" ")), 403);
                    slot.refused(Instant::now());
                }
                Some(found?)
            }
        };
        let proof = match &certified {
            Some(grant) if !self.config.token_beside_certificate => RequiredProof::Given(grant.clone()),
            _ => self.proof(),
        };
        let requirements = self.requirements(self.hosts(local, Some(&secured.names)), proof);
        let (leftover, grant) = self.check_and_answer(&mut secured.socket, &requirements, slot, &peer).await?;
        Some(websocket(secured.into_stream(), leftover, certified.unwrap_or(grant), &peer))
    }

    fn requirements<'a>(&self, hosts: Option<ListenerHosts<'a>>, proof: RequiredProof<'a>) -> ListenerRequirements<'a> {
        let is_ready = self.reporter.as_ref().is_none_or(|reporter| reporter.is_ready());
        ListenerRequirements { hosts, proof, draining: self.draining.load(Ordering::Acquire), is_ready }
    }

    fn hosts<'a>(&'a self, local: SocketAddr, certified: Option<&'a OwnNames>) -> Option<ListenerHosts<'a>> {
        Some(ListenerHosts { local, allowed: &self.config.allowed_hosts, certified })
    }

    fn proof(&self) -> RequiredProof<'_> {
        let access = &self.config.access;
        access.open_grant().map_or(RequiredProof::Token(access), RequiredProof::Given)
    }

    fn report_refusal(&self, status: u16) {
        if let Some(reporter) = &self.reporter {
            reporter.refused(status);
        }
    }

    /// Authenticates a connection on a Unix socket by the peer's uid, so neither a token nor a Host header is required.
    pub(crate) async fn admit_unix(&self, mut socket: UnixStream, slot: PendingSlot) -> Option<Authenticated> {
        if !is_owner(&socket) {
            self.config.audit.refused(&"unix", 403);
            http::answer_and_close(&mut socket, &HttpResponse::FORBIDDEN).await;
            self.report_refusal(403);
            return None;
        }
        let requirements = self.requirements(None, RequiredProof::Given(Grant::owner()));
        let checking = self.check_and_answer(&mut socket, &requirements, &slot, &"unix");
        let (leftover, grant) = in_time(&slot, checking).await.ok()??;
        Some(websocket(socket.into(), leftover, grant, &"unix"))
    }

    /// Authenticates a connection of `dial-stdio` by the peer's uid. Its framing is newline-delimited JSON.
    pub fn admit_dial(&self, socket: UnixStream) -> Option<Authenticated> {
        if self.draining.load(Ordering::Acquire) {
            return None;
        }
        if !is_owner(&socket) {
            self.config.audit.refused(&"dial", 403);
            return None;
        }
        let framing = Framing::Lines { max: limits::MESSAGE_BYTES };
        Some(Authenticated::vouch(socket.into(), framing, Grant::owner(), "exec-server dial-stdio"))
    }

    /// Reads one request and answers it. Returns the grant and the bytes that the peer sent after its upgrade request.
    async fn check_and_answer(
        &self,
        socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
        requirements: &ListenerRequirements<'_>,
        slot: &PendingSlot,
        peer: &impl Display,
    ) -> Option<(BytesMut, Grant)> {
        let mut buf = BytesMut::new();
        let verdict = match http::read_head(socket, &mut buf).await {
            Ok(size) => {
                let head = buf.split_to(size);
                http::with_request(&head, |request| check::check(request, requirements))
            }
            Err(response) => RequestVerdict::Answer(response?),
        };
        match verdict {
            RequestVerdict::Upgrade { accept, grant } => {
                socket.write_all(&HttpResponse::switching(&accept).encode()).await.ok()?;
                socket.flush().await.ok()?;
                Some((buf, grant))
            }
            RequestVerdict::Metrics { with_body } => {
                let page = self.reporter.as_ref().map(|reporter| HttpResponse::metrics(reporter.page(self.counts())));
                let page = page.map(|page| if with_body { page } else { page.without_body() });
                http::answer_and_close(socket, &page.unwrap_or(HttpResponse::NOT_FOUND)).await;
                None
            }
            RequestVerdict::Answer(mut response) => {
                if let 401 | 403 = response.status() {
                    self.config.audit.refused(peer, response.status());
                }
                if response.is_refusal()
                    && let Some(delay) = slot.refused(Instant::now())
                {
                    time::sleep(delay).await;
                    response = HttpResponse::too_many(delay);
                }
                if response.status() != 200 {
                    self.report_refusal(response.status());
                }
                tracing::debug!(%peer, status = response.status(), "answered before authentication");
                http::answer_and_close(socket, &response).await;
                None
            }
        }
    }
}

/// The slot was given to another connection.
struct Evicted;

/// Runs `checking` until its deadline, or until the slot is lost.
async fn in_time<T>(slot: &PendingSlot, checking: impl Future<Output = Option<T>>) -> Result<Option<T>, Evicted> {
    // When one branch completes, the other is dropped. If the check is dropped, its connection is closed with it.
    tokio::select! {
        checked = time::timeout(HEAD_DEADLINE, checking) => Ok(checked.unwrap_or_else(|_| {
            slot.stalled(Instant::now());
            None
        })),
        () = slot.evicted() => Err(Evicted),
    }
}

fn websocket(mut stream: ByteStream, leftover: BytesMut, grant: Grant, peer: &impl Display) -> Authenticated {
    // Copy the bytes: a slice would keep the whole buffer of the head alive as long as the connection.
    stream.leftover = BytesMut::from(&leftover[..]);
    let framing = Framing::WebSocket { role: WebSocketRole::Server, max: limits::MESSAGE_BYTES };
    Authenticated::vouch(stream, framing, grant, format!("exec-server websocket {peer}"))
}

/// Whether the peer's uid, as reported by the kernel, is ours or root.
fn is_owner(socket: &UnixStream) -> bool {
    let us = rustix::process::geteuid().as_raw();
    match socket.peer_cred() {
        Ok(peer) if peer.uid() == us || peer.uid() == 0 => true,
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), "refused a connection of another user");
            false
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests;
