//! A thin layer over epoll: which descriptor is watched for what, changed only where it differs.
//!
//! Knows descriptors and tokens, not what they stand for. Level-triggered throughout: an event that is not handled in one
//! turn comes again in the next.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

pub(crate) use rustix::event::epoll::EventFlags;

/// Events at a time. Each may mean 256 KiB of output, so 8 keep the controller waiting for about a millisecond at most.
const EVENTS_MAX: usize = 8;

/// The longest wait at a time: beyond 24 days the number would need a call that older kernels do not have.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// One epoll instance.
pub(crate) struct Poller {
    epoll: OwnedFd,
}

/// What a descriptor is registered for; empty means not at all. Hang-ups are reported for every registered descriptor, so
/// one that must stay silent is taken out.
#[derive(Default)]
pub(crate) struct Interest(Option<EventFlags>);

/// Something that is ready.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) flags: EventFlags,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches `fd` for `want` from now on.
    pub(crate) fn set(
        &self,
        interest: &mut Interest,
        fd: BorrowedFd<'_>,
        token: u64,
        want: EventFlags,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        match interest.0 {
            Some(have) if have == want => return Ok(()),
            Some(_) if want.is_empty() => epoll::delete(&self.epoll, fd)?,
            Some(_) => epoll::modify(&self.epoll, fd, data, want)?,
            None if want.is_empty() => return Ok(()),
            None => epoll::add(&self.epoll, fd, data, want)?,
        }
        interest.0 = (!want.is_empty()).then_some(want);
        Ok(())
    }

    /// Stops watching a descriptor whose interest is not at hand.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Puts into `ready` what is ready now; never waits. What is left over comes first the next time.
    pub(crate) fn ready(&self, ready: &mut Vec<Ready>) {
        self.wait(ready, Some(Duration::ZERO));
    }

    /// Puts into `ready` what is ready, as soon as something is or the time is over, to the next millisecond.
    pub(crate) fn wait(&self, ready: &mut Vec<Ready>, timeout: Option<Duration>) {
        ready.clear();
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let timeout = timeout.map(|timeout| timeout.min(WAIT_MAX));
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        // An interrupted call only means: later.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            let found = |event: &mut epoll::Event| Ready { token: event.data.u64(), flags: event.flags };
            ready.extend(events.iter_mut().map(found));
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
