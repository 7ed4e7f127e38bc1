//! A thin wrapper around epoll. It remembers what each fd is registered for, and calls the kernel only on a change.
//!
//! Level-triggered: an event that one turn does not handle is reported again in the next.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::event::{Timespec, epoll};

pub(crate) use rustix::event::epoll::EventFlags;

/// Maximum number of events per call. One event may lead to 256 KiB of output (the exit of a leader, whose two streams
/// are then read), so 8 events delay the controller by about a millisecond at most.
const EVENTS_MAX: usize = 8;

/// Longest wait per call. A timeout above 24 days would need a system call that older kernels do not have.
const WAIT_MAX: Duration = Duration::from_secs(3600);

pub(crate) struct Poller {
    epoll: OwnedFd,
}

/// The events that an fd is registered for, or `None` if it is not registered. The kernel reports hang-ups for every
/// registered fd, so an fd that must not be reported is unregistered.
#[derive(Default)]
pub(crate) struct PollInterest(Option<EventFlags>);

/// An event that is ready.
#[derive(Clone, Copy)]
pub(crate) struct ReadyEvent {
    pub(crate) token: u64,
    pub(crate) flags: EventFlags,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Registers `fd` for `events`. An empty `events` unregisters it.
    pub(crate) fn set(
        &self,
        interest: &mut PollInterest,
        fd: BorrowedFd<'_>,
        token: u64,
        events: EventFlags,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        match interest.0 {
            Some(have) if have == events => return Ok(()),
            Some(_) if events.is_empty() => epoll::delete(&self.epoll, fd)?,
            Some(_) => epoll::modify(&self.epoll, fd, data, events)?,
            None if events.is_empty() => return Ok(()),
            None => epoll::add(&self.epoll, fd, data, events)?,
        }
        interest.0 = (!events.is_empty()).then_some(events);
        Ok(())
    }

    /// Unregisters an fd whose `PollInterest` the caller has dropped.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Fills `ready` with events that are ready now. Never blocks. Events that do not fit come first in the next call.
    pub(crate) fn ready(&self, ready: &mut Vec<ReadyEvent>) {
        self.wait(ready, Some(Duration::ZERO));
    }

    /// Waits until an event is ready or the timeout expires (with millisecond resolution), and fills `ready`.
    pub(crate) fn wait(&self, ready: &mut Vec<ReadyEvent>, timeout: Option<Duration>) {
        ready.clear();
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let timeout = timeout.map(|timeout| timeout.min(WAIT_MAX));
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        // On EINTR `ready` stays empty, and the caller tries again in its next turn.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            let found = |event: &mut epoll::Event| ReadyEvent { token: event.data.u64(), flags: event.flags };
            ready.extend(events.iter_mut().map(found));
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
