//! Whether enough descriptors are free to take on more. Must not know what they are for.
//!
//! The kernel counts them for the whole program, and so does this. Who may go how far: a stranger at the door before a start, a
//! start before what is there already, so that what was taken on can always be carried on.

use std::{
    io,
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{io::Errno, process::Resource};

/// Descriptors that starts leave free: below, answers of holders and reads of spilled output would fail. Less where the limit
/// itself is small.
const FREE_MIN: u64 = 64;

/// Of those who were let in and do not have theirs yet.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// One descriptor that somebody will need in a moment.
pub(crate) struct Reserved(());

impl Reserved {
    /// Refused when so few are free that what is there already would suffer.
    pub(crate) fn new() -> io::Result<Self> {
        let all = RESERVED.fetch_add(1, Ordering::Relaxed) + 1;
        let reserved = Self(());
        if are_free(all, 1) { Ok(reserved) } else { Err(Errno::MFILE.into()) }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        RESERVED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a new connection may have one: strangers leave something to those who are inside, who need them to go on.
pub(crate) fn allow_stranger() -> bool {
    are_free(RESERVED.load(Ordering::Relaxed) + 1, 2)
}

/// Whether beyond these, the one in question included, the reserve is free, or a part of it. The lowest free number tells, for the kernel gives out the lowest
/// first.
fn are_free(wanted: u64, part: u64) -> bool {
    let Some(limit) = rustix::process::getrlimit(Resource::Nofile).current else { return true };
    let lowest = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(fd) => u64::from(fd.as_raw_fd().unsigned_abs()),
        Err(Errno::MFILE) => limit,
        // Nothing on standard input to copy: nothing is known.
        Err(_) => return true,
    };
    fits(lowest, wanted, part, limit)
}

fn fits(lowest: u64, wanted: u64, part: u64, limit: u64) -> bool {
    lowest.saturating_add(wanted).saturating_add(FREE_MIN.min(limit / 4) / part) <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_reserved_is_not_taken_from_the_reserve() {
        // 1024 - 64 = 960 descriptors, numbers 0 to 959, are for starts; the reserve begins at 960.
        assert!(fits(959, 1, 1, 1024) && !fits(960, 1, 1, 1024));
    }
}
