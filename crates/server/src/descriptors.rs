//! Whether enough descriptors are free to take on more. Must not know what they are for.

use std::os::fd::AsRawFd as _;

use rustix::process::Resource;

/// Descriptors that stay free: below, new connections, answers of holders and reads of spilled output would fail. Less where
/// the limit itself is small.
const FREE_MIN: u64 = 64;

/// Refuses when fewer are free. The lowest free number tells, for the kernel gives out the lowest first.
pub(crate) fn check_free() -> std::io::Result<()> {
    let Some(limit) = rustix::process::getrlimit(Resource::Nofile).current else { return Ok(()) };
    let lowest = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(fd) => u64::from(fd.as_raw_fd().unsigned_abs()),
        Err(rustix::io::Errno::MFILE) => limit,
        // Nothing on standard input to copy: nothing is known.
        Err(_) => return Ok(()),
    };
    if lowest.saturating_add(FREE_MIN.min(limit / 4)) > limit {
        return Err(rustix::io::Errno::MFILE.into());
    }
    Ok(())
}
