//! Removes the state directory of a server that was killed, where the directory was made for that server alone.
//!
//! The spawner does this because it outlives its server and is the parent of the holders: it knows when the last one has ended. It then waits
//! a while, so that a person can look at the directory or start another server on it. All it knows of a state directory is its lock.
//!
//! Failure paths: a directory that another server has locked, or that is gone, is left alone. A spawner that is killed together with its
//! server leaves the directory behind.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::request::LAYOUT;
use super::strays::Strays;
use super::{LOCK_NAME, SpawnerHandle};

/// The kind of the request; a holder is 1, a view 2.
pub(super) const KIND: u8 = 3;

/// How often to look whether the directory is gone. A server that ends in order removes it right away, so the spawner looks often at first.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// From this long after the server on, it was killed, and the second time is often enough.
const LOOK_LATER: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));

/// One directory to remove.
pub(super) struct Guard {
    dir: OwnedFd,
    /// How long after the last holder.
    after: Duration,
}

impl SpawnerHandle {
    /// Asks the spawner to remove this state directory once the server is gone and the last holder has been gone for `after`.
    pub fn guard(&self, dir: BorrowedFd<'_>, after: Duration) -> io::Result<()> {
        #[expect(clippy::cast_possible_truncation, reason = "layout numbers are small")]
        let mut message = vec![LAYOUT as u8, KIND];
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        message.extend_from_slice(&after_ms.to_le_bytes());
        self.ask(&message, &[dir])
    }
}

impl Guard {
    /// Reads the fields of a request.
    pub(super) fn read(fields: &[u8], fds: Vec<OwnedFd>) -> Option<Self> {
        let [dir] = <[OwnedFd; 1]>::try_from(fds).ok()?;
        let after = Duration::from_millis(u64::from_le_bytes(fields.try_into().ok()?));
        Some(Self { dir, after })
    }

    fn is_there(&self) -> bool {
        rustix::fs::fstat(&self.dir).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Removes the directory, unless a server has it.
    fn remove(&self) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = File::from(rustix::fs::openat(&self.dir, LOCK_NAME, flags, Mode::empty())?);
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))?;
        let (ours, named) = (rustix::fs::fstat(&self.dir)?, rustix::fs::lstat(&path)?);
        // Somebody may have renamed it and put something else in its place.
        if (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino) {
            return Err(rustix::io::Errno::STALE.into());
        }
        std::fs::remove_dir_all(path)
    }
}

/// The life of the spawner after its server: waits until every directory is gone, and removes those that are due.
pub(super) fn outlive_server(mut guards: Vec<Guard>, strays: &mut Strays, signals: &OwnedFd) {
    let begun = Instant::now();
    let mut quiet_since = None;
    loop {
        guards.retain(Guard::is_there);
        if strays.has_holders() {
            quiet_since = None;
        } else {
            let since = *quiet_since.get_or_insert_with(Instant::now);
            guards.retain(|guard| {
                let is_due = since.elapsed() >= guard.after;
                if is_due {
                    // A failure has no one to go to; the directory stays.
                    guard.remove().ok();
                }
                !is_due
            });
        }
        if guards.is_empty() {
            return;
        }
        let pause = if begun.elapsed() < LOOK_LATER.0 { LOOK_EVERY } else { LOOK_LATER.1 };
        let timeout = Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
        let mut ready = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        if rustix::event::poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0) {
            // One read takes one notice; more of them only mean another look.
            rustix::io::read(signals, &mut [0; 128]).ok();
            strays.handle_death();
        }
    }
}
