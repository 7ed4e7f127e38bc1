//! The file `archived`: the lease's clock of a session that has no holder. The holder writes it when all processes of
//! its detached session have closed and their logs are complete on disk. From then on the server runs the clock.
//!
//! Format: the time to live in milliseconds (`-` = no limit), then the time of the detach in nanoseconds of
//! CLOCK_MONOTONIC (`-` = a client is attached). A session does not outlive a reboot, so the clock means the same for
//! every reader. The processes themselves are in the manifest ([`manifest`](crate::manifest)). Used by the holder and
//! the server.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use exec_server_log::failpoint;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::control::TTL_NONE;

/// Name of the file in the session's directory.
pub const ARCHIVE_NAME: &str = "archived";

/// The file is written under this name and then renamed, so that a reader finds either the whole file or none.
const UNFINISHED_NAME: &str = "archived.new";

/// The lease's clock of a session without a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseClock {
    /// Time to live of the detached session. [`TTL_NONE`]: no limit.
    pub ttl_ms: u64,
    /// When the session was detached. `None` while a client is attached.
    pub detached_ns: Option<u64>,
}

impl LeaseClock {
    fn encode(self) -> String {
        let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        format!("{} {}\n", number(Some(self.ttl_ms).filter(|ms| *ms != TTL_NONE)), number(self.detached_ns))
    }

    fn decode(text: &str) -> Option<Self> {
        let (ttl, since) = text.strip_suffix('\n')?.split_once(' ')?;
        let number = |text: &str| match text {
            "-" => Some(None),
            digits => digits.parse().ok().map(Some),
        };
        Some(Self { ttl_ms: number(ttl)?.unwrap_or(TTL_NONE), detached_ns: number(since)? })
    }

    /// Writes the file into the session's directory.
    pub fn write(self, dir: impl AsFd) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        failpoint::step("archive create");
        let file: OwnedFd = rustix::fs::openat(dir.as_fd(), UNFINISHED_NAME, flags, Mode::RUSR | Mode::WUSR)?;
        let written = io::Write::write_all(&mut std::fs::File::from(file), self.encode().as_bytes());
        let renamed = written.and_then(|()| {
            failpoint::step("archive rename");
            Ok(rustix::fs::renameat(dir.as_fd(), UNFINISHED_NAME, dir.as_fd(), ARCHIVE_NAME)?)
        });
        if renamed.is_err() {
            // Readers ignore the unfinished file, so it does not matter if it cannot be removed.
            rustix::fs::unlinkat(dir.as_fd(), UNFINISHED_NAME, AtFlags::empty()).ok();
        }
        renamed
    }

    /// Reads the file from the session's directory. `None` if it does not exist or is malformed.
    pub fn read(dir: impl AsFd) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match rustix::fs::openat(dir.as_fd(), ARCHIVE_NAME, flags, Mode::empty()) {
            Ok(file) => Ok(Self::decode(&io::read_to_string(std::fs::File::from(file))?)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for clock in [
            LeaseClock { ttl_ms: 5, detached_ns: Some(7) },
            LeaseClock { ttl_ms: TTL_NONE, detached_ns: None },
            LeaseClock { ttl_ms: 0, detached_ns: Some(0) },
        ] {
            assert_eq!(LeaseClock::decode(&clock.encode()), Some(clock));
        }
    }

    #[test]
    fn other_text_is_not_a_clock() {
        for text in ["", "1 2", "1\n", "x 1\n", "1 x\n", "1 2 3\n", "-1 2\n"] {
            assert_eq!(LeaseClock::decode(text), None, "{text:?}");
        }
    }
}
