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
//! What is unauthenticated is bounded: 64 connections, 8 KiB and 10 s each.
//!
//! Must not know sessions or methods. Never logs a request target or a header value: the token is in them.

mod auth;
mod check;
mod host;
mod http;

pub use host::{AllowedHost, AllowedHostError};

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
    sync::{OwnedSemaphorePermit, Semaphore},
    time,
};

use self::{
    check::{Gate, Proof, Verdict},
    host::Hosts,
    http::Response,
};
use crate::{
    access::{Access, Certificate, Grant},
    audit::Audit,
    core::Authenticated,
    tls::Tls,
};

/// Connections that have not yet passed: each costs a descriptor and 8 KiB.
const PENDING_MAX: usize = 64;

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

/// The gate of all listeners of a server.
pub struct Door {
    config: DoorConfig,
    pending: Arc<Semaphore>,
    /// Set once, by the drain: not ready, no upgrades.
    draining: AtomicBool,
}

/// The right to be judged. None was free: the peer is told to come back.
pub struct Slot(Option<OwnedSemaphorePermit>);

impl Door {
    /// A door that asks for what `config` says.
    pub fn new(config: DoorConfig) -> Self {
        Self { config, pending: Arc::new(Semaphore::new(PENDING_MAX)), draining: AtomicBool::new(false) }
    }

    /// From now on the server is not ready and nobody is let in any more.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Takes a place among those who wait; asked for at accept, so that the bound holds before a task runs.
    pub fn slot(&self) -> Slot {
        Slot(Arc::clone(&self.pending).try_acquire_owned().ok())
    }

    /// Judges a TCP connection; `None` when it was answered and closed.
    pub async fn admit_tcp(
        &self,
        socket: TcpStream,
        entrance: &Entrance,
        peer: SocketAddr,
        slot: Slot,
    ) -> Option<Authenticated> {
        let Slot(Some(_slot)) = slot else {
            if entrance.tls.is_none() {
                // Best effort: whoever floods us does not get a task that waits. What it sent is taken, or the reset
                // that a close with unread input is would take the answer away again.
                socket.try_write(&Response::busy().encode()).ok();
                socket.try_read(&mut [0; 1 << 10]).ok();
            }
            return None;
        };
        match &entrance.tls {
            None => in_time(self.admit_plain(socket, entrance.local, peer)).await,
            Some(tls) => in_time(self.admit_secured(socket, tls, entrance.local, peer)).await,
        }
    }

    async fn admit_plain(&self, mut socket: TcpStream, local: SocketAddr, peer: SocketAddr) -> Option<Authenticated> {
        let gate = self.gate(Hosts { local, allowed: &self.config.allowed_hosts, certified: None });
        let (leftover, grant) = judge(&mut socket, &gate, &peer, &self.config.audit).await?;
        Some(websocket(socket.into(), leftover, grant, label(peer)))
    }

    /// The handshake, and behind it the same as without. Who shows a certificate is known by it; a token beside it only opens.
    async fn admit_secured(
        &self,
        socket: TcpStream,
        tls: &Tls,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<Authenticated> {
        let mut secured = match tls.accept(socket.into()).await {
            Ok(secured) => secured,
            Err(error) => {
                tracing::debug!(%peer, %error, "no TLS handshake");
                return None;
            }
        };
        let names = secured.names.clone();
        let mut gate = self.gate(Hosts { local, allowed: &self.config.allowed_hosts, certified: Some(&names) });
        let certified = match &secured.certificate {
            None => None,
            Some(shown) => {
                let names = std::slice::from_ref(&shown.name);
                let found = self.config.access.by_certificate(&Certificate { names, fingerprint: &shown.fingerprint });
                if found.is_none() {
                    tracing::warn!(%peer, name = shown.name, "refused a revoked certificate");
                    self.config.audit.refused(&format_args!("{peer} {}", shown.name), 403);
                }
                Some(found?)
            }
        };
        if let (Some(grant), false) = (&certified, self.config.token_beside_certificate) {
            gate.proof = Proof::Given(grant.clone());
        }
        let (leftover, grant) = judge(&mut secured.socket, &gate, &peer, &self.config.audit).await?;
        Some(websocket(secured.into_stream(), leftover, certified.unwrap_or(grant), label(peer)))
    }

    fn gate<'a>(&'a self, hosts: Hosts<'a>) -> Gate<'a> {
        Gate {
            hosts: Some(hosts),
            proof: self.config.access.anybody().map_or(Proof::Token(&self.config.access), Proof::Given),
            draining: self.draining.load(Ordering::Acquire),
        }
    }

    /// Judges a connection on a Unix socket: the kernel says whose it is, so that no token and no Host are asked for.
    pub async fn admit_unix(&self, mut socket: UnixStream, slot: Slot) -> Option<Authenticated> {
        let Slot(Some(_slot)) = slot else {
            socket.try_write(&Response::busy().encode()).ok();
            return None;
        };
        if !is_owner(&socket) {
            self.config.audit.refused(&"unix", 403);
            http::answer_and_close(&mut socket, &Response::forbidden()).await;
            return None;
        }
        let proof = Proof::Given(Grant::owner());
        let gate = Gate { hosts: None, proof, draining: self.draining.load(Ordering::Acquire) };
        let (leftover, grant) = in_time(judge(&mut socket, &gate, &"unix", &self.config.audit)).await?;
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

/// What takes too long is dropped, with its connection.
async fn in_time<T>(admitting: impl Future<Output = Option<T>>) -> Option<T> {
    time::timeout(HEAD_DEADLINE, admitting).await.ok().flatten()
}

/// Reads one request and answers it. The leftover is what the peer sent behind its upgrade.
async fn judge(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    gate: &Gate<'_>,
    peer: &impl Display,
    audit: &Audit,
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
        Verdict::Answer(response) => {
            tracing::debug!(%peer, status = response.status(), "answered at the door");
            if let 401 | 403 = response.status() {
                audit.refused(peer, response.status());
            }
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
