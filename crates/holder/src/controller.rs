//! The connection to the controller, the server that commands this holder, and the messages queued for it.
//!
//! Owns the socket, the epoch and the bounded queue for messages that the socket does not accept yet. When the queue is
//! full, the holder stops reading children and commands, so the queue cannot grow further.
//!
//! Failure paths:
//! - EOF, a socket error or a malformed message marks the link as lost. The holder handles the loss once per turn with
//!   [`Controller::take_lost`].
//! - Messages queued for a lost controller are dropped: the next controller gets the whole state again. Commands that
//!   the lost controller sent can still be read.
//! - A shortage of fds or memory does not close the link, because the server treats the end of its link as the death of
//!   the holder. A send, receive or epoll call that failed is retried after a delay.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use crate::{
    control::{self, Datagram, FromHolder},
    poller::{EventFlags, PollInterest, Poller},
};

/// Maximum number of queued messages. At this bound, the holder stops everything that produces messages. Most messages
/// are small (a few hundred bytes), and each may keep an fd open. One step of a turn is not interrupted, so it can
/// exceed the bound, for example by the answers to all pending starts.
const QUEUE_MAX: usize = 64;

/// Delay before a retry when the kernel was short of fds or memory, or had too many fds in flight. No event reports the
/// end of such a shortage.
const SHORT_RETRY_NS: u64 = 10_000_000;

#[derive(Default)]
pub(crate) struct Controller {
    link: Option<ControllerLink>,
    /// Epoch of the last controller. A new one must have a higher epoch.
    epoch: u64,
    is_lost: bool,
}

struct ControllerLink {
    socket: OwnedFd,
    interest: PollInterest,
    queue: VecDeque<QueuedMessage>,
    /// Nothing more is read: the holder has seen EOF or an invalid message.
    is_read_done: bool,
    /// A send failed because of a shortage in the kernel. Retry after a delay.
    is_send_delayed: bool,
    /// A receive or an epoll registration failed because of a shortage. Retry after a delay.
    is_recv_delayed: bool,
}

struct QueuedMessage {
    bytes: Vec<u8>,
    /// Shared with their owners, because `dup` would fail when fds are short.
    fds: Vec<Arc<OwnedFd>>,
}

/// The result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The message is in the controller's socket.
    Sent,
    /// The message is queued, or was dropped because no controller is connected.
    NotSent,
}

impl Controller {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some() && !self.is_lost
    }

    /// Replaces the connection and closes the old one.
    pub(crate) fn replace(&mut self, socket: OwnedFd, epoch: u64) {
        let link = ControllerLink {
            socket,
            interest: PollInterest::default(),
            queue: VecDeque::new(),
            is_read_done: false,
            is_send_delayed: false,
            is_recv_delayed: false,
        };
        *self = Self { link: Some(link), epoch, is_lost: false };
    }

    /// Marks the connection as lost. Commands that are still in its socket can be read.
    pub(crate) fn mark_lost(&mut self) {
        self.is_lost = self.link.is_some();
    }

    /// Marks the connection as lost because of EOF or an invalid message. Ignores the remaining commands.
    pub(crate) fn reject(&mut self) {
        if let Some(link) = &mut self.link {
            link.is_read_done = true;
        }
        self.mark_lost();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Closes a lost connection. Returns true once per loss.
    pub(crate) fn take_lost(&mut self) -> bool {
        let is_lost = std::mem::take(&mut self.is_lost);
        if is_lost {
            self.link = None;
        }
        is_lost
    }

    /// Whether the queue is full, so that nothing that produces messages may run.
    pub(crate) fn is_congested(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.queue.len() >= QUEUE_MAX)
    }

    /// Sends a message now or queues it. Drops it if no controller is connected.
    pub(crate) fn send(&mut self, message: &FromHolder, fds: &[Arc<OwnedFd>]) -> SendOutcome {
        let Some(link) = self.link.as_mut().filter(|_| !self.is_lost) else { return SendOutcome::NotSent };
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let sent =
            if link.queue.is_empty() { send(&link.socket, &bytes, fds) } else { Err(io::ErrorKind::WouldBlock.into()) };
        let Err(error) = sent else { return SendOutcome::Sent };
        if !link.must_wait(&error) {
            self.mark_lost();
            return SendOutcome::NotSent;
        }
        link.queue.push_back(QueuedMessage { bytes, fds: fds.to_vec() });
        SendOutcome::NotSent
    }

    /// Sends queued messages until the socket is full.
    pub(crate) fn flush(&mut self) {
        let Some(link) = self.link.as_mut().filter(|_| !self.is_lost) else { return };
        link.is_send_delayed = false;
        while let Some(message) = link.queue.front() {
            match send(&link.socket, &message.bytes, &message.fds) {
                Ok(()) => drop(link.queue.pop_front()),
                Err(error) if link.must_wait(&error) => return,
                Err(_) => return self.mark_lost(),
            }
        }
    }

    /// Whether a receive failed because of a shortage and should be retried.
    pub(crate) fn is_recv_delayed(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_recv_delayed)
    }

    /// Receives the next command, if there is one. A command whose fds do not fit into this process stays in the
    /// socket.
    pub(crate) fn recv(&mut self, buf: &mut Vec<u8>) -> Option<Datagram> {
        let link = self.link.as_mut().filter(|link| !link.is_read_done)?;
        link.is_recv_delayed = false;
        match control::recv_if_fds_fit(link.socket.as_fd(), buf) {
            Ok(Some(datagram)) => Some(datagram),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) if control::is_shortage(&error) => {
                link.is_recv_delayed = true;
                None
            }
            Ok(None) | Err(_) => {
                self.reject();
                None
            }
        }
    }

    /// Updates which events of the socket are watched.
    pub(crate) fn watch(&mut self, poller: &Poller, token: u64, may_read: bool) {
        let Some(link) = self.link.as_mut().filter(|_| !self.is_lost) else { return };
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, may_read && !link.is_recv_delayed);
        events.set(EventFlags::OUT, !link.queue.is_empty() && !link.is_send_delayed);
        // If the socket cannot be watched, poll it after a delay.
        link.is_recv_delayed |= poller.set(&mut link.interest, link.socket.as_fd(), token, events).is_err();
    }

    /// When to retry after a shortage, which no event reports.
    pub(crate) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        let waits = self.link.as_ref().is_some_and(|link| link.is_send_delayed || link.is_recv_delayed);
        waits.then(|| now_ns.saturating_add(SHORT_RETRY_NS))
    }
}

impl ControllerLink {
    /// Whether a failed send may succeed later.
    fn must_wait(&mut self, error: &io::Error) -> bool {
        let is_shortage = control::is_shortage(error);
        self.is_send_delayed |= is_shortage;
        is_shortage || error.kind() == io::ErrorKind::WouldBlock
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[Arc<OwnedFd>]) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    control::send_raw(socket, bytes, &fds)
}
