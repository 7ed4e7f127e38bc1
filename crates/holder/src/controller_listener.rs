//! Accepts connections of controllers: owns the session's path socket and the connections that have not sent `Hello`
//! yet.
//!
//! Checks the peer's uid and the secret. Does not decide which connection becomes the controller.
//!
//! Failure paths:
//! - A foreign uid, a wrong secret, a first message other than `Hello`, or no message until the deadline: the
//!   connection is closed. Nothing else happens.
//! - No fd is free: the listener pauses briefly, so that the holder does not spin.
//! - The secret in the directory is not this holder's: `ControllerListener::open` fails. The server could not use this
//!   holder, and has removed or replaced the secret.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
};

use crate::{
    control::{self, ToHolder},
    poller::{EventFlags, PollInterest, Poller},
    spawner::{self, SECRET_NAME, SOCKET_NAME},
};

/// Maximum number of connections without a `Hello`. A further connection closes the oldest.
const PENDING_MAX: usize = 8;

/// How long a connection may wait before its `Hello`: far longer than a server needs to connect under load.
const HELLO_NS: u64 = 30_000_000_000;

/// How long the listener pauses when `accept` fails.
const PAUSE_NS: u64 = 100_000_000;

pub(crate) struct ControllerListener {
    listener: OwnedFd,
    interest: PollInterest,
    token: u64,
    paused_until: Option<u64>,
    pending: Vec<PendingConnection>,
    secret: [u8; 32],
}

struct PendingConnection {
    socket: OwnedFd,
    until_ns: u64,
}

/// A connection that has presented the right secret.
pub(crate) struct AuthenticatedConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) version: u32,
    pub(crate) epoch: u64,
}

impl ControllerListener {
    /// Creates the path socket in `dir`. `poller` reports its events, and those of unauthenticated connections, under
    /// `token`.
    pub(crate) fn open(dir: &OwnedFd, secret: [u8; 32], poller: &Poller, token: u64) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let mut interest = PollInterest::default();
        poller.set(&mut interest, listener.as_fd(), token, EventFlags::IN)?;
        let created = Self { listener, interest, token, paused_until: None, pending: Vec::new(), secret };
        // The name contains our pid, because another holder of this session may do the same at this moment.
        let unfinished = format!("{SOCKET_NAME}.{}", std::process::id());
        let listening = created.listen(dir, &unfinished);
        if listening.is_err() {
            // The holder fails, so this name is of no use. ENOENT is fine.
            rustix::fs::unlinkat(dir, &unfinished, AtFlags::empty()).ok();
        }
        listening.map(|()| created)
    }

    /// Listens before it renames the socket into place: a server that finds the socket can connect at once, and does
    /// not take a new holder for a dead one.
    fn listen(&self, dir: &OwnedFd, unfinished: &str) -> io::Result<()> {
        // Remove a socket left by a killed holder that had the same pid.
        rustix::fs::unlinkat(dir, unfinished, AtFlags::empty()).ok();
        rustix::net::bind(&self.listener, &spawner::socket_address(dir.as_fd(), unfinished)?)?;
        rustix::fs::chmodat(dir, unfinished, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        rustix::net::listen(&self.listener, 16)?;
        // The server writes a holder's secret before it creates the holder. Lock the directory, so that no other holder
        // can take the name between the check of the secret and the rename: that holder would be the newer one, and
        // this rename would hide it. Errors are ignored: on a file system without locks, the window for this race is
        // short.
        rustix::fs::flock(dir, FlockOperation::LockExclusive).ok();
        let renamed = if self.is_secret_in(dir) {
            // The rename replaces a socket left by a killed holder.
            rustix::fs::renameat(dir, unfinished, dir, SOCKET_NAME)
        } else {
            Err(Errno::STALE)
        };
        rustix::fs::flock(dir, FlockOperation::Unlock).ok();
        Ok(renamed?)
    }

    /// Whether the secret file in the session's directory contains this holder's secret, so that servers can connect to
    /// this holder. Also true if the file exists but cannot be opened.
    pub(crate) fn is_secret_in(&self, dir: &OwnedFd) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // One byte more than a secret, so that a longer file does not match.
        let mut found = [0; 33];
        match rustix::fs::openat(dir, SECRET_NAME, flags, Mode::empty()) {
            Ok(file) => rustix::io::read(file, &mut found).is_ok_and(|len| found.get(..len) == Some(&self.secret)),
            // Only a missing file means that the server has removed the secret. Any other error proves nothing.
            Err(error) => error != Errno::NOENT,
        }
    }

    /// Adds a connection that has not sent `Hello` yet.
    pub(crate) fn add_pending(&mut self, socket: OwnedFd, poller: &Poller, now_ns: u64) {
        if self.pending.len() >= PENDING_MAX {
            self.pending.remove(0);
        }
        let mut interest = PollInterest::default();
        // A socket that cannot be watched is dropped; its peer sees EOF.
        if poller.set(&mut interest, socket.as_fd(), self.token, EventFlags::IN).is_ok() {
            self.pending.push(PendingConnection { socket, until_ns: now_ns.saturating_add(HELLO_NS) });
        }
    }

    /// Accepts new connections, and returns those connections that have sent `Hello` with the right secret.
    pub(crate) fn turn(&mut self, poller: &Poller, buf: &mut Vec<u8>, now_ns: u64) -> Vec<AuthenticatedConnection> {
        if self.paused_until.take_if(|until| now_ns >= *until).is_some() {
            self.watch(poller, EventFlags::IN);
        }
        if self.paused_until.is_none() {
            self.accept(poller, now_ns);
        }
        let mut authenticated = Vec::new();
        for connection in std::mem::take(&mut self.pending) {
            match control::recv_raw(&connection.socket, buf) {
                Ok(Some(hello)) => authenticated.extend(self.authenticate(connection.socket, hello.bytes(buf))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && now_ns < connection.until_ns => {
                    self.pending.push(connection);
                }
                Ok(None) | Err(_) => {}
            }
        }
        for AuthenticatedConnection { socket, .. } in &authenticated {
            // From now on `Controller` watches this socket, under another token. An error means that the socket is not
            // registered.
            poller.forget(socket.as_fd()).ok();
        }
        authenticated
    }

    /// Whether a connection is open that has not sent `Hello` yet.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next deadline: a `Hello` timeout, or the end of the listener's pause.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let silent = self.pending.iter().map(|connection| connection.until_ns).min();
        silent.into_iter().chain(self.paused_until).min()
    }

    fn accept(&mut self, poller: &Poller, now_ns: u64) {
        loop {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) if is_our_uid(&socket) => self.add_pending(socket, poller, now_ns),
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.paused_until = Some(now_ns.saturating_add(PAUSE_NS));
                    return self.watch(poller, EventFlags::empty());
                }
            }
        }
    }

    fn watch(&mut self, poller: &Poller, events: EventFlags) {
        // An error is ignored. If the shortage behind it lasts, the next `accept` fails too, and the listener pauses.
        poller.set(&mut self.interest, self.listener.as_fd(), self.token, events).ok();
    }

    fn authenticate(&self, socket: OwnedFd, message: &[u8]) -> Option<AuthenticatedConnection> {
        match ToHolder::decode(message) {
            Ok(ToHolder::Hello { version, secret, epoch }) if is_equal_constant_time(&secret, &self.secret) => {
                Some(AuthenticatedConnection { socket, version, epoch })
            }
            Ok(_) | Err(_) => None,
        }
    }
}

fn is_our_uid(socket: &OwnedFd) -> bool {
    let ours = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == ours)
}

/// Compares in constant time.
fn is_equal_constant_time(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left.iter().zip(right).fold(0, |all, (l, r)| std::hint::black_box(all | (l ^ r)));
    difference == 0
}
