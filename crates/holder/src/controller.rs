//! The one connection that commands this holder, and what is on its way to it.
//!
//! Owns the socket, the epoch and the bounded queue behind a full socket. It does not know what the messages do. Where the
//! queue is at its bound the holder stops reading children and commands, so that it cannot grow further.
//!
//! Failure paths: end of file, a broken socket or a malformed message mark the link as lost; the holder takes notice once
//! per turn with [`Controller::take_lost`]. What was queued for a lost controller is dropped: the next one gets the whole
//! state afresh. What it had sent before it went can still be read. A want of descriptors or memory costs no link, for a server takes the
//! end of its link for the holder's death: what could not be sent, heard or watched is tried again by the clock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::poller::{EventFlags, Interest, Poller};
use crate::wire::{self, Datagram, FromHolder};

/// Messages that wait for room in the socket before everything that makes more is stopped. Each is small (a few hundred
/// bytes) and may keep a descriptor open; a single turn adds a few more at most.
const QUEUE_MAX: usize = 64;

/// How soon is tried again what the kernel refused for want of descriptors or memory, or for too many descriptors in flight: nothing
/// tells when it would be taken.
const SHORT_RETRY_NS: u64 = 10_000_000;

#[derive(Default)]
pub(crate) struct Controller {
    link: Option<Link>,
    /// Of the last controller; a new one must be above it.
    epoch: u64,
    is_lost: bool,
}

struct Link {
    socket: OwnedFd,
    interest: Interest,
    queue: VecDeque<Outgoing>,
    /// Nothing more is read: its end was seen, or it spoke nonsense.
    is_read_out: bool,
    /// The kernel was short of something that a send needs; try again by the clock.
    is_unsent: bool,
    /// The same for what is to be received, or watched.
    is_unheard: bool,
}

struct Outgoing {
    bytes: Vec<u8>,
    /// Shared with those whose they are: where descriptors are short a copy could not be had.
    fds: Vec<Arc<OwnedFd>>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// It is in the controller's socket.
    Sent,
    /// It waits for room, or nobody is there to have it.
    Not,
}

impl Controller {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some() && !self.is_lost
    }

    /// Puts a new connection in the place of the old one, which is closed.
    pub(crate) fn replace(&mut self, socket: OwnedFd, epoch: u64) {
        let link = Link {
            socket,
            interest: Interest::default(),
            queue: VecDeque::new(),
            is_read_out: false,
            is_unsent: false,
            is_unheard: false,
        };
        (self.link, self.epoch, self.is_lost) = (Some(link), epoch, false);
    }

    /// Marks the connection as lost.
    pub(crate) fn lose(&mut self) {
        self.is_lost = self.link.is_some();
    }

    /// Marks the connection as lost for what it said; the rest of its words is not heard.
    pub(crate) fn refuse(&mut self) {
        if let Some(link) = &mut self.link {
            link.is_read_out = true;
        }
        self.lose();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Closes a lost connection; true once for each.
    pub(crate) fn take_lost(&mut self) -> bool {
        let is_lost = std::mem::take(&mut self.is_lost);
        if is_lost {
            self.link = None;
        }
        is_lost
    }

    /// Whether nothing that makes messages may run.
    pub(crate) fn is_congested(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.queue.len() >= QUEUE_MAX)
    }

    /// Sends a message now or queues it; without a controller it is dropped.
    pub(crate) fn send(&mut self, message: &FromHolder, fds: &[Arc<OwnedFd>]) -> Sending {
        let Some(link) = self.link.as_mut().filter(|_| !self.is_lost) else { return Sending::Not };
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let sent =
            if link.queue.is_empty() { send(&link.socket, &bytes, fds) } else { Err(io::ErrorKind::WouldBlock.into()) };
        let Err(error) = sent else { return Sending::Sent };
        if !link.must_wait(&error) {
            self.lose();
            return Sending::Not;
        }
        link.queue.push_back(Outgoing { bytes, fds: fds.to_vec() });
        Sending::Not
    }

    /// Sends what is queued as far as the socket takes it.
    pub(crate) fn flush(&mut self) {
        let Some(link) = self.link.as_mut().filter(|_| !self.is_lost) else { return };
        link.is_unsent = false;
        while let Some(message) = link.queue.front() {
            match send(&link.socket, &message.bytes, &message.fds) {
                Ok(()) => drop(link.queue.pop_front()),
                Err(error) if link.must_wait(&error) => return,
                Err(_) => return self.lose(),
            }
        }
    }

    /// Whether a command could not be heard, and may be by now.
    pub(crate) fn is_unheard(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_unheard)
    }

    /// The next command; `None` when there is none. One whose descriptors find no room stays where it is.
    pub(crate) fn recv(&mut self, buf: &mut Vec<u8>) -> Option<Datagram> {
        let link = self.link.as_mut().filter(|link| !link.is_read_out)?;
        link.is_unheard = false;
        match wire::recv_or_leave(link.socket.as_fd(), buf) {
            Ok(Some(datagram)) => Some(datagram),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) if wire::is_shortage(&error) => {
                link.is_unheard = true;
                None
            }
            Ok(None) | Err(_) => {
                self.refuse();
                None
            }
        }
    }

    /// Watches the socket for what can be done with it now.
    pub(crate) fn watch(&mut self, poller: &Poller, token: u64, may_read: bool) {
        let Some(link) = self.link.as_mut().filter(|_| !self.is_lost) else { return };
        let mut want = EventFlags::empty();
        want.set(EventFlags::IN, may_read && !link.is_unheard);
        want.set(EventFlags::OUT, !link.queue.is_empty() && !link.is_unsent);
        // What cannot be watched is asked by the clock.
        link.is_unheard |= poller.set(&mut link.interest, link.socket.as_fd(), token, want).is_err();
    }

    /// When to try again although no event will come.
    pub(crate) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        let waits = self.link.as_ref().is_some_and(|link| link.is_unsent || link.is_unheard);
        waits.then(|| now_ns.saturating_add(SHORT_RETRY_NS))
    }
}

impl Link {
    /// Whether a failed send may succeed later.
    fn must_wait(&mut self, error: &io::Error) -> bool {
        let is_shortage = wire::is_shortage(error);
        self.is_unsent |= is_shortage;
        is_shortage || error.kind() == io::ErrorKind::WouldBlock
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[Arc<OwnedFd>]) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    wire::send_raw(socket, bytes, &fds)
}
