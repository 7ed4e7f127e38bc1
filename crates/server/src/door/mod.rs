//! The door: the one gate that every connection passes before anything of the server sees it.
//!
//! One request is read (`http`), judged (`check`, with `host` and `auth` for its parts) and answered. Only an upgrade that
//! passed becomes an [`Authenticated`], the only thing that the core serves: no route can skip the door.
//!
//! ```compile_fail
//! # async fn serve(core: std::sync::Arc<exec_server_server::core::Core>, stream: exec_server_rpc::Stream) {
//! core.serve(stream).await; // A bare stream has no principal.
//! # }
//! ```
//!
//! What is unauthenticated is bounded: 64 connections, 8 KiB and 10 s each; `pending` says who goes when there are more.
//!
//! Must not know sessions or methods. Never logs a request target or a header value: the token is in them.

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
use exec_server_rpc::{Framing, Role, Stream};
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

/// From the connection to the end of the answer, with the handshake of TLS. Longer, and 64 slow peers keep everybody else out.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);

/// What a door asks of those who come over TCP.
#[derive(Clone, Debug, Default)]
pub struct DoorConfig {
    /// Who may come in, by what they offer.
    pub access: Arc<Access>,
    /// Where it is recorded who was refused.
    pub audit: Audit,
    /// Names under which this server is reached besides its own addresses.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Who has shown a certificate must bear the token as well.
    pub token_beside_certificate: bool,
}

/// One TCP listener, as the door sees it.
#[derive(Clone, Debug)]
pub struct Entrance {
    /// The address that it is bound to.
    pub local: SocketAddr,
    /// What secures it; absent for `ws://`.
    pub tls: Option<Arc<Tls>>,
}

/// What a door tells whoever runs the server, and shows those who may ask.
pub trait Report: Send + Sync {
    /// A peer was sent away with this status.
    fn refused(&self, status: u16);
    /// The page of metrics, with what the door has counted itself.
    fn page(&self, door: DoorCounts) -> String;
    /// Whether new clients are welcome.
    fn is_ready(&self) -> bool {
        true
    }
}

/// Whom a door reports to, if anybody.
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

/// What the door says of a request that came in elsewhere; see [`Door::judge`].
#[derive(Clone, Debug)]
pub enum Judgement {
    /// It may come in, and do this.
    Admitted(Grant),
    /// It calls us by a name that is not ours, or a page sent it.
    Forbidden,
    /// It does not prove who it is.
    Unauthorized,
}

/// The gate of all listeners of a server.
pub struct Door {
    config: DoorConfig,
    report: Reporter,
    pending: Arc<Room>,
    /// Set once, by the drain: not ready, no upgrades.
    draining: AtomicBool,
}

/// A place among those who wait to be judged.
pub struct Slot(Place);

impl Door {
    /// A door that asks for what `config` says.
    pub fn new(config: DoorConfig) -> Self {
        Self { config, report: Reporter::default(), pending: Arc::default(), draining: AtomicBool::new(false) }
    }

    /// Counts there whom it sends away, and shows its page at `/metrics`; without it there is no such page.
    pub fn reporting(mut self, report: Arc<dyn Report>) -> Self {
        self.report = Reporter(Some(report));
        self
    }

    /// Judges a request for another protocol that came in over plain HTTP at `local`: the same rules about names, pages and tokens, in the
    /// same order. What is asked for, the caller judges.
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

    /// From now on the server is not ready and nobody is let in any more.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Takes a place among those who wait, for a peer or, without an address, on a Unix socket. Asked for at accept, so that
    /// the bound holds before a task runs.
    pub fn slot(&self, peer: Option<SocketAddr>) -> Slot {
        Slot(self.pending.enter(peer.map_or(Source::Local, Source::from), Instant::now()))
    }

    /// Whether the next to come will push somebody out.
    pub fn is_crowded(&self) -> bool {
        self.pending.is_full()
    }

    /// What happened here so far.
    pub fn counts(&self) -> DoorCounts {
        self.pending.counts()
    }

    /// Judges a TCP connection; `None` when it was answered and closed.
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
            // Best effort: whoever was pushed out does not get a task that waits. What it sent is taken, or the reset that a
            // close with unread input is would take the answer away again.
            socket.try_write(&Response::busy().encode()).ok();
            socket.try_read(&mut [0; 1 << 10]).ok();
            self.report.refused(503);
            return None;
        };
        let (leftover, grant) = judged?;
        Some(websocket(socket.into(), leftover, grant, label(peer)))
    }

    /// The handshake, and behind it the same as without. Who shows a certificate is known by it; a token beside it only opens.
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
                // There is nobody to answer, late or not.
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

    /// Judges a connection on a Unix socket: the kernel says whose it is, so that no token and no Host are asked for.
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

    /// Judges a connection of `dial-stdio`: newline JSON, the owner's uid alone.
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

/// The place was given to somebody else.
struct Lost;

/// Judges for as long as the place is kept; what takes too long is dropped, with its connection.
async fn in_time<T>(place: &Place, judging: impl Future<Output = Option<T>>) -> Result<Option<T>, Lost> {
    // Either ends the other, and the connection with it.
    tokio::select! {
        judged = time::timeout(HEAD_DEADLINE, judging) => Ok(judged.unwrap_or_else(|_| {
            place.stalled(Instant::now());
            None
        })),
        () = place.lost() => Err(Lost),
    }
}

/// Reads one request and answers it. The leftover is what the peer sent behind its upgrade.
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

fn websocket(mut stream: Stream, leftover: BytesMut, grant: Grant, label: String) -> Authenticated {
    // Copied out of the head's buffer, which would otherwise live as long as the connection.
    stream.leftover = BytesMut::from(&leftover[..]);
    let framing = Framing::WebSocket { role: Role::Server, max: limits::MESSAGE_BYTES };
    Authenticated::vouch(stream, framing, grant, label)
}

/// Whether the peer is our user or root, by the kernel's word.
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
