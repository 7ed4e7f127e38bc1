//! Decides whether enough file descriptors are free to accept more work.
//!
//! The kernel limits fds per process, so the count here is global. When fds become scarce, starts are refused first,
//! then new connections. The last fds are only for existing work, so accepted work can always continue.

use std::{
    io,
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{io::Errno, process::Resource};

/// Fds that starts leave free, at most a quarter of the limit. With fewer, replies of holders and reads of spilled
/// output would fail.
const FREE_MIN: u64 = 64;

/// Number of fds promised to starts that have not opened them yet.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// A reservation of one fd that will be opened soon.
pub(crate) struct ReservedFd(());

impl ReservedFd {
    /// Fails if so few fds are free that existing work could suffer.
    pub(crate) fn new() -> io::Result<Self> {
        let wanted = RESERVED.fetch_add(1, Ordering::Relaxed) + 1;
        let reserved = Self(());
        if are_free(wanted, 1) { Ok(reserved) } else { Err(Errno::MFILE.into()) }
    }
}

impl Drop for ReservedFd {
    fn drop(&mut self) {
        RESERVED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a new connection may have an fd. Unauthenticated connections must leave half of the reserve to existing
/// work.
pub(crate) fn allow_unauthenticated() -> bool {
    are_free(RESERVED.load(Ordering::Relaxed) + 1, 2)
}

/// Whether the reserve, divided by `divisor`, stays free after `wanted` more fds. Finds the lowest free fd number by a
/// dup, because the kernel assigns the lowest first. All numbers above it count as free.
fn are_free(wanted: u64, divisor: u64) -> bool {
    let Some(limit) = rustix::process::getrlimit(Resource::Nofile).current else { return true };
    let lowest = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(fd) => u64::from(fd.as_raw_fd().unsigned_abs()),
        Err(Errno::MFILE) => limit,
        // Standard input is closed, so the dup failed for that reason. Assume that fds are free.
        Err(_) => return true,
    };
    fits(lowest, wanted, divisor, limit)
}

fn fits(lowest: u64, wanted: u64, divisor: u64, limit: u64) -> bool {
    lowest.saturating_add(wanted).saturating_add(FREE_MIN.min(limit / 4) / divisor) <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_leave_the_reserve_free() {
        // 1024 - 64 = 960 fds, numbers 0 to 959, are for starts. The reserve begins at 960.
        assert!(fits(959, 1, 1, 1024) && !fits(960, 1, 1, 1024));
    }
}
