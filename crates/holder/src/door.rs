//! Where controllers come from: the path socket of the session and the connections that have not said who they are.
//!
//! Owns the listener, the check of the peer's uid, and the secret. It does not know what a controller may do afterwards.
//!
//! Failure paths: a foreign uid, a wrong secret, a first message that is no `Hello`, or silence until the deadline all end
//! in a closed connection and nothing else. Out of descriptors the listener rests for a moment instead of spinning. A door
//! in a directory whose secret is another's does not open: the session has another holder, or wants none.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::poller::{EventFlags, Interest, Poller};
use crate::spawner::{self, SECRET_NAME, SOCKET_NAME};
use crate::wire::{self, ToHolder};

/// Connections without a `Hello` at a time; one more pushes out the oldest.
const CANDIDATES_MAX: usize = 8;

/// How long a connection may say nothing: far above a server that maps and connects under load.
const HELLO_NS: u64 = 30_000_000_000;

/// How long the listener rests when a connection cannot be accepted.
const REST_NS: u64 = 100_000_000;

pub(crate) struct Door {
    listener: OwnedFd,
    interest: Interest,
    token: u64,
    rests_until: Option<u64>,
    candidates: Vec<Candidate>,
    secret: [u8; 32],
}

struct Candidate {
    socket: OwnedFd,
    until_ns: u64,
}

/// A connection that knows the secret.
pub(crate) struct Known {
    pub(crate) socket: OwnedFd,
    pub(crate) version: u32,
    pub(crate) epoch: u64,
}

impl Door {
    /// Puts the path socket into `dir`; everything that happens at the door is reported under `token`.
    pub(crate) fn open(dir: &OwnedFd, secret: [u8; 32], poller: &Poller, token: u64) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let mut interest = Interest::default();
        poller.set(&mut interest, listener.as_fd(), token, EventFlags::IN)?;
        let door = Self { listener, interest, token, rests_until: None, candidates: Vec::new(), secret };
        // A name of its own, for another holder of the session may be at the same.
        let unfinished = format!("{SOCKET_NAME}.{}", std::process::id());
        let opened = door.listen(dir, &unfinished);
        if opened.is_err() {
            // Nobody knows that name. Gone already is what is wanted.
            rustix::fs::unlinkat(dir, &unfinished, AtFlags::empty()).ok();
        }
        opened.map(|()| door)
    }

    /// Listens first and takes the place afterwards: whoever finds the socket can connect, and a newborn is not called dead.
    fn listen(&self, dir: &OwnedFd, unfinished: &str) -> io::Result<()> {
        // Left by one with the same number that was killed.
        rustix::fs::unlinkat(dir, unfinished, AtFlags::empty()).ok();
        rustix::net::bind(&self.listener, &spawner::address(dir.as_fd(), unfinished)?)?;
        rustix::fs::chmodat(dir, unfinished, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        rustix::net::listen(&self.listener, 16)?;
        // The secret of a holder is there before it is. Locked, so that between the look and the rename no other takes the place: it would
        // be the later one, and be hidden by this. Where the file system has no locks the moment is short.
        rustix::fs::flock(dir, FlockOperation::LockExclusive).ok();
        let renamed = if self.is_secret_in(dir) {
            // What is in the place was left by a holder that was killed.
            rustix::fs::renameat(dir, unfinished, dir, SOCKET_NAME)
        } else {
            Err(Errno::STALE)
        };
        rustix::fs::flock(dir, FlockOperation::Unlock).ok();
        Ok(renamed?)
    }

    /// Whether servers that look into the session's directory find what they must know.
    pub(crate) fn is_secret_in(&self, dir: &OwnedFd) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut found = [0; 33];
        match rustix::fs::openat(dir, SECRET_NAME, flags, Mode::empty()) {
            Ok(file) => rustix::io::read(file, &mut found).is_ok_and(|len| found.get(..len) == Some(&self.secret)),
            // Only a file that is not there says that it was taken away.
            Err(error) => error != Errno::NOENT,
        }
    }

    /// Lets a connection wait for its `Hello`.
    pub(crate) fn admit(&mut self, socket: OwnedFd, poller: &Poller, now_ns: u64) {
        if self.candidates.len() >= CANDIDATES_MAX {
            self.candidates.remove(0);
        }
        let mut interest = Interest::default();
        // A socket that cannot be watched is dropped, which its peer sees.
        if poller.set(&mut interest, socket.as_fd(), self.token, EventFlags::IN).is_ok() {
            self.candidates.push(Candidate { socket, until_ns: now_ns.saturating_add(HELLO_NS) });
        }
    }

    /// Accepts what is waiting and gives the connections that have said `Hello` with the right secret.
    pub(crate) fn turn(&mut self, poller: &Poller, buf: &mut Vec<u8>, now_ns: u64) -> Vec<Known> {
        if self.rests_until.is_some_and(|until| now_ns >= until) {
            self.rests_until = None;
            self.watch(poller, EventFlags::IN);
        }
        if self.rests_until.is_none() {
            self.accept(poller, now_ns);
        }
        let mut known = Vec::new();
        for candidate in std::mem::take(&mut self.candidates) {
            match wire::recv_raw(&candidate.socket, buf) {
                Ok(Some(hello)) => known.extend(self.check(candidate.socket, hello.bytes(buf))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && now_ns < candidate.until_ns => {
                    self.candidates.push(candidate);
                }
                Ok(None) | Err(_) => {}
            }
        }
        for Known { socket, .. } in &known {
            // It is watched under another token from now on. Not registered is what is wanted.
            poller.forget(socket.as_fd()).ok();
        }
        known
    }

    /// Whether a connection has come that has not said `Hello`.
    pub(crate) fn has_candidates(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// When something at the door is due.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let silent = self.candidates.iter().map(|candidate| candidate.until_ns).min();
        silent.into_iter().chain(self.rests_until).min()
    }

    fn accept(&mut self, poller: &Poller, now_ns: u64) {
        loop {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) if is_our_uid(&socket) => self.admit(socket, poller, now_ns),
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.rests_until = Some(now_ns.saturating_add(REST_NS));
                    return self.watch(poller, EventFlags::empty());
                }
            }
        }
    }

    fn watch(&mut self, poller: &Poller, want: EventFlags) {
        // A failure shows again at the next accept.
        poller.set(&mut self.interest, self.listener.as_fd(), self.token, want).ok();
    }

    fn check(&self, socket: OwnedFd, message: &[u8]) -> Option<Known> {
        match ToHolder::decode(message) {
            Ok(ToHolder::Hello { version, secret, epoch }) if is_equal(&secret, &self.secret) => {
                Some(Known { socket, version, epoch })
            }
            Ok(_) | Err(_) => None,
        }
    }
}

fn is_our_uid(socket: &OwnedFd) -> bool {
    let ours = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == ours)
}

/// Compares in a time that does not depend on where the two differ.
fn is_equal(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left.iter().zip(right).fold(0, |all, (l, r)| std::hint::black_box(all | (l ^ r)));
    difference == 0
}
