//! Holder.
use std::{io, os::fd::{AsFd, BorrowedFd, OwnedFd}};
use crate::{Config, Spawner};

/// The state of one session's holder, turned by its caller.
pub struct Holder<S: Spawner> { epoll: OwnedFd, _spawner: S }

/// What one turn left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Turn again at this time at the latest.
    pub next_deadline_ns: Option<u64>,
    /// The session has ended; drop the holder.
    pub ended: bool,
}

impl<S: Spawner> Holder<S> {
    /// Makes the holder of a new session. `controller` is a connected `SOCK_SEQPACKET` socket that may say `Hello`.
    pub fn new(_config: Config, controller: OwnedFd, spawner: S, _now_ns: u64) -> io::Result<Self> {
        Ok(Self { epoll: controller, _spawner: spawner })
    }

    /// Its epoll descriptor: readable when a turn has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// One round: handles what is ready and due, without waiting.
    pub fn turn(&mut self, _now_ns: u64) -> Turn {
        Turn { next_deadline_ns: None, ended: true }
    }
}
