//! Removes the state directory of a killed server, if the directory was created for that server alone.
//!
//! The spawner does this, because it outlives its server and is the parent of the holders, so it knows when the last
//! holder has ended. The spawner then waits for some time, so that a person can inspect the directory or start another
//! server on it. The only file in the directory that the spawner opens is the lock.
//!
//! Failure paths: a directory that another server has locked, or that is gone, is left alone. If the spawner is killed
//! together with its server, the directory stays.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{FlockOperation, Mode, OFlags},
};

use super::{LOCK_NAME, SpawnerHandle, holder_request::LAYOUT, strays::StrayKiller};
use crate::run::monotonic_ns;

/// The request kind of a guard. The others are `holder_request::KIND` and `view::KIND`.
pub(super) const KIND: u8 = 3;

/// How often to check whether the directory is gone. A server that shuts down normally removes it right away, so the
/// spawner checks often at first.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// A server that has been gone for longer than this was killed, so the spawner checks less often from then on.
const FREQUENT_FOR: Duration = Duration::from_secs(5);

/// How often to check after [`FREQUENT_FOR`].
const CHECK_LATER_EVERY: Duration = Duration::from_secs(1);

/// One directory to remove.
pub(super) struct DirectoryGuard {
    dir: OwnedFd,
    /// How long to wait after the last holder has ended.
    after: Duration,
}

impl SpawnerHandle {
    /// Asks the spawner to remove this state directory, once the server is gone and the last holder has been gone for
    /// `after`.
    pub fn guard(&self, dir: BorrowedFd<'_>, after: Duration) -> io::Result<()> {
        let mut message = vec![LAYOUT, KIND];
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        message.extend_from_slice(&after_ms.to_le_bytes());
        self.send_request(&message, &[dir])
    }
}

impl DirectoryGuard {
    /// Decodes a request. `None` if it is malformed.
    pub(super) fn read(fields: &[u8], fds: Vec<OwnedFd>) -> Option<Self> {
        let [dir] = <[OwnedFd; 1]>::try_from(fds).ok()?;
        let after = Duration::from_millis(u64::from_le_bytes(fields.try_into().ok()?));
        Some(Self { dir, after })
    }

    fn exists(&self) -> bool {
        rustix::fs::fstat(&self.dir).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Removes the directory, unless a server has locked it. Holds the lock until the directory is gone.
    fn remove(&self) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = File::from(rustix::fs::openat(&self.dir, LOCK_NAME, flags, Mode::empty())?);
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))?;
        let ours = rustix::fs::fstat(&self.dir)?;
        let named = rustix::fs::lstat(&path)?;
        // The directory may have been renamed and replaced by another.
        if (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino) {
            return Err(rustix::io::Errno::STALE.into());
        }
        std::fs::remove_dir_all(path)
    }
}

/// The main loop of the spawner after its server has ended: removes each directory when it is due, and returns when
/// none is left.
pub(super) fn run_after_server(mut guards: Vec<DirectoryGuard>, strays: &mut StrayKiller, signals: &OwnedFd) {
    let server_ended_ns = monotonic_ns();
    let mut without_holder_since_ns = None;
    loop {
        guards.retain(DirectoryGuard::exists);
        if strays.has_live_forks() {
            without_holder_since_ns = None;
        } else {
            let since_ns = *without_holder_since_ns.get_or_insert_with(monotonic_ns);
            guards.retain(|guard| {
                let is_due = elapsed_since(since_ns) >= guard.after;
                if is_due {
                    // An error cannot be reported to anyone. The directory stays.
                    guard.remove().ok();
                }
                !is_due
            });
        }
        if guards.is_empty() {
            return;
        }
        let pause = if elapsed_since(server_ended_ns) < FREQUENT_FOR { CHECK_EVERY } else { CHECK_LATER_EVERY };
        let timeout = Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
        let mut ready = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        if rustix::event::poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0) {
            // One read of 128 bytes (`signalfd_siginfo`) consumes one signal. A further signal only causes another
            // check.
            rustix::io::read(signals, &mut [0; 128]).ok();
            strays.handle_death();
        }
    }
}

fn elapsed_since(then_ns: u64) -> Duration {
    Duration::from_nanos(monotonic_ns().saturating_sub(then_ns))
}
