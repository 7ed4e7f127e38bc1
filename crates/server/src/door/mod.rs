//! The door: authenticates every connection before the rest of the server sees it.
//!
//! One request is read (`http`), checked (`check`, with `host` and `auth`) and answered. Only an upgrade that passed
//! becomes an [`Authenticated`], and the core serves nothing else. So no route can skip the door.
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
//! Never logs a request target or a header value, because they contain the token.

mod auth;
mod check;
mod host;
mod http;
mod pending;

pub use host::{AllowedHost, AllowedHostError};
pub use pending::DoorCounts;

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
    check::{Gate, Proof, Verdict},
    host::Hosts,
    http::Response,
    pending::{Place, Room, Source},
};
use crate::{
    access::{Access, Certificate, Grant},
    audit::Audit,
    core::Authenticated,
    tls::Tls,
};

/// From accept to the end of the response, including the TLS handshake. With a longer deadline, 64 slow peers could
/// lock out all other clients for longer.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);

/// The requirements for TCP connections.
#[derive(Clone, Debug, Default)]
pub struct DoorConfig {
    /// Maps tokens and certificates to grants.
    pub access: Arc<Access>,
    /// Records refused connections.
    pub audit: Audit,
    /// Host names of this server in addition to its own addresses.
    pub allowed_hosts: Vec<AllowedHost>,
    /// A client with a certificate must present a token as well.
    pub token_beside_certificate: bool,
}

/// One TCP listener, as the door sees it.
#[derive(Clone, Debug)]
pub struct Entrance {
    pub local: SocketAddr,
    /// `None` for `ws://`.
    pub tls: Option<Arc<Tls>>,
}

/// The interface between the door and the server: the door reports refusals, the server its metrics and readiness.
pub trait Report: Send + Sync {
    /// A connection was refused with this HTTP status; 0: the TLS handshake failed.
    fn refused(&self, status: u16);
    /// The metrics page, including the door's own counters.
    fn page(&self, door: DoorCounts) -> String;
    /// Whether the server can serve new clients.
    fn is_ready(&self) -> bool {
        true
    }
}

/// The report target of a door. `None`: nothing is reported, and `/metrics` is 404.
#[derive(Clone, Default)]
struct Reporter(Option<Arc<dyn Report>>);

impl Reporter {
    fn is_ready(&self) -> bool {
        self.0.as_ref().is_none_or(|report| report.is_ready())
    }

    fn refused(&self, status: u16) {
        if let Some(report) = &self.0 {
            report.refused(status);
        }
    }

    fn metrics(&self, with_body: bool, door: DoorCounts) -> Response {
        let Some(report) = &self.0 else { return Response::not_found() };
        let response = Response::metrics(report.page(door));
        if with_body { response } else { response.without_body() }
    }
}

/// The door's decision about a request that another listener received; see [`Door::judge`].
#[derive(Clone, Debug)]
pub enum Judgement {
    /// Allowed, with this grant.
    Admitted(Grant),
    /// The Host header does not name this server, or the request comes from a web page.
    Forbidden,
    /// The request does not authenticate its sender.
    Unauthorized,
}

/// Authenticates the connections of all listeners of a server.
pub struct Door {
    config: DoorConfig,
    report: Reporter,
    pending: Arc<Room>,
    /// Set once by `Door::drain`: `/readyz` fails and upgrades are refused.
    draining: AtomicBool,
}

/// A slot among the unauthenticated connections.
pub struct Slot(Place);

impl Door {
    pub fn new(config: DoorConfig) -> Self {
        Self { config, report: Reporter::default(), pending: Arc::default(), draining: AtomicBool::new(false) }
    }

    /// Reports refusals to `report` and serves its page at `/metrics`. Without a report, `/metrics` is 404.
    pub fn reporting(mut self, report: Arc<dyn Report>) -> Self {
        self.report = Reporter(Some(report));
        self
    }

    /// Checks a request of another protocol that came in over plain HTTP at `local`: the same rules for Host, Origin
    /// and tokens, in the same order. The caller checks path and method.
    pub fn judge(&self, local: SocketAddr, target: &str, headers: &[(&str, &[u8])]) -> Judgement {
        let headers: Vec<_> = headers.iter().map(|(name, value)| httparse::Header { name, value }).collect();
        let request = http::Request { method: "POST", target, minor_version: 1, headers: &headers };
        let hosts = Hosts { local, allowed: &self.config.allowed_hosts, certified: None };
        let proof = match self.config.access.anybody() {
            Some(grant) => Proof::Given(grant),
            None => Proof::Token(&self.config.access),
        };
        match check::admit(&request, &Gate { hosts: Some(hosts), proof, draining: false, is_ready: true }) {
            Ok(grant) => Judgement::Admitted(grant),
            Err(response) if response.status() == 401 => Judgement::Unauthorized,
            Err(_) => Judgement::Forbidden,
        }
    }

    /// From now on the server is not ready, and no new client is admitted.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Takes a slot for a connection; `None` stands for a Unix socket. Call it at accept: then the bound also holds for
    /// connections whose task has not run yet.
    pub fn slot(&self, peer: Option<SocketAddr>) -> Slot {
        Slot(self.pending.enter(peer.map_or(Source::Local, Source::from), Instant::now()))
    }

    /// Whether the next connection will evict another one.
    pub fn is_crowded(&self) -> bool {
        self.pending.is_full()
    }

    pub fn counts(&self) -> DoorCounts {
        self.pending.counts()
    }

    /// Authenticates a TCP connection. `None`: the connection was answered and closed.
    pub async fn admit_tcp(
        &self,
        mut socket: TcpStream,
        entrance: &Entrance,
        peer: SocketAddr,
        Slot(place): Slot,
    ) -> Option<Authenticated> {
        if let Some(tls) = &entrance.tls {
            let admitting = self.admit_secured(socket, tls, (entrance.local, peer), &place);
            return in_time(&place, admitting).await.ok()?;
        }
        let gate = self.gate(Hosts { local: entrance.local, allowed: &self.config.allowed_hosts, certified: None });
        let judged =
            in_time(&place, judge(&mut socket, &gate, &place, &peer, (&self.config.audit, &self.report))).await;
        let Ok(judged) = judged else {
            // The slot was lost. Answer with 503 as far as that is possible without waiting. Also read the
            // input: closing a socket with unread input sends a RST, and the peer may lose the response.
            socket.try_write(&Response::busy().encode()).ok();
            socket.try_read(&mut [0; 1 << 10]).ok();
            self.report.refused(503);
            return None;
        };
        let (leftover, grant) = judged?;
        Some(websocket(socket.into(), leftover, grant, label(peer)))
    }

    /// Does the TLS handshake, then the same checks as without TLS. A certificate decides the principal. A token that
    /// is required beside the certificate is checked, but its grant is not used.
    async fn admit_secured(
        &self,
        socket: TcpStream,
        tls: &Tls,
        (local, peer): (SocketAddr, SocketAddr),
        place: &Place,
    ) -> Option<Authenticated> {
        let mut secured = match tls.accept(socket.into()).await {
            Ok(secured) => secured,
            Err(error) => {
                tracing::debug!(%peer, %error, "no TLS handshake");
                // Without a handshake no response can be sent, so the delay for repeated failures is ignored.
                place.refused(Instant::now());
                self.report.refused(0);
                return None;
            }
        };
        let names = secured.names.clone();
        let mut gate = self.gate(Hosts { local, allowed: &self.config.allowed_hosts, certified: Some(&names) });
        let certified = match &secured.certificate {
            None => None,
            Some(shown) => {
                let found = self
                    .config
                    .access
                    .by_certificate(&Certificate { names: &shown.names, fingerprint: &shown.fingerprint });
                if found.is_none() {
                    tracing::warn!(%peer, names = ?shown.names, "refused a revoked certificate");
                    self.config.audit.refused(&format_args!("{peer} {}", shown.names.join(" ")), 403);
                    place.refused(Instant::now());
                }
                Some(found?)
            }
        };
        if let (Some(grant), false) = (&certified, self.config.token_beside_certificate) {
            gate.proof = Proof::Given(grant.clone());
        }
        let (leftover, grant) =
            judge(&mut secured.socket, &gate, place, &peer, (&self.config.audit, &self.report)).await?;
        Some(websocket(secured.into_stream(), leftover, certified.unwrap_or(grant), label(peer)))
    }

    fn gate<'a>(&'a self, hosts: Hosts<'a>) -> Gate<'a> {
        Gate {
            hosts: Some(hosts),
            proof: self.config.access.anybody().map_or(Proof::Token(&self.config.access), Proof::Given),
            draining: self.draining.load(Ordering::Acquire),
            is_ready: self.report.is_ready(),
        }
    }

    /// Authenticates a connection on a Unix socket by the peer's uid, so neither a token nor a Host header is required.
    pub async fn admit_unix(&self, mut socket: UnixStream, Slot(place): Slot) -> Option<Authenticated> {
        if !is_owner(&socket) {
            self.config.audit.refused(&"unix", 403);
            http::answer_and_close(&mut socket, &Response::forbidden()).await;
            self.report.refused(403);
            return None;
        }
        let proof = Proof::Given(Grant::owner());
        let draining = self.draining.load(Ordering::Acquire);
        let gate = Gate { hosts: None, proof, draining, is_ready: self.report.is_ready() };
        let judging = judge(&mut socket, &gate, &place, &"unix", (&self.config.audit, &self.report));
        let (leftover, grant) = in_time(&place, judging).await.ok()??;
        Some(websocket(socket.into(), leftover, grant, "exec-server websocket unix".to_owned()))
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
}

/// The slot was given to another connection.
struct Lost;

/// Runs `judging` until its deadline, or until the slot is lost.
async fn in_time<T>(place: &Place, judging: impl Future<Output = Option<T>>) -> Result<Option<T>, Lost> {
    // When one branch completes, the other is dropped. If the check is dropped, its connection is closed with it.
    tokio::select! {
        judged = time::timeout(HEAD_DEADLINE, judging) => Ok(judged.unwrap_or_else(|_| {
            place.stalled(Instant::now());
            None
        })),
        () = place.lost() => Err(Lost),
    }
}

/// Reads one request and answers it. Returns the grant and the bytes that the peer sent behind its upgrade request.
async fn judge(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    gate: &Gate<'_>,
    place: &Place,
    peer: &impl Display,
    (audit, report): (&Audit, &Reporter),
) -> Option<(BytesMut, Grant)> {
    let mut buf = BytesMut::new();
    let verdict = match http::read_head(socket, &mut buf).await {
        Ok(size) => {
            let head = buf.split_to(size);
            http::with_request(&head, |request| check::check(request, gate))
        }
        Err(failure) => Verdict::Answer(failure.response()?),
    };
    match verdict {
        Verdict::Upgrade { accept, grant } => {
            socket.write_all(&Response::switching(&accept).encode()).await.ok()?;
            socket.flush().await.ok()?;
            Some((buf, grant))
        }
        Verdict::Metrics { with_body } => {
            http::answer_and_close(socket, &report.metrics(with_body, place.counts())).await;
            None
        }
        Verdict::Answer(mut response) => {
            if let 401 | 403 = response.status() {
                audit.refused(peer, response.status());
            }
            if response.is_refusal()
                && let Some(delay) = place.refused(Instant::now())
            {
                time::sleep(delay).await;
                response = Response::too_many(delay);
            }
            if response.status() != 200 {
                report.refused(response.status());
            }
            tracing::debug!(%peer, status = response.status(), "answered at the door");
            http::answer_and_close(socket, &response).await;
            None
        }
    }
}

fn label(peer: SocketAddr) -> String {
    format!("exec-server websocket {peer}")
}

fn websocket(mut stream: ByteStream, leftover: BytesMut, grant: Grant, label: String) -> Authenticated {
    // Copy the bytes: a slice would keep the whole buffer of the head alive as long as the connection.
    stream.leftover = BytesMut::from(&leftover[..]);
    let framing = Framing::WebSocket { role: WebSocketRole::Server, max: limits::MESSAGE_BYTES };
    Authenticated::vouch(stream, framing, grant, label)
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
