//! The file that a holder leaves when all processes of its detached session have closed and their logs are complete on disk: the
//! session's clock, which the server runs from then on.
//!
//! Owns its text: the time to live in milliseconds (`-` = for ever) and when the session was detached, in nanoseconds of
//! CLOCK_MONOTONIC (`-` = it is attached). Sessions do not outlive a boot, so the clock is the same for every reader. What the processes
//! were is in the [`roll`](crate::roll). Knows neither holder nor server; both use it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use exec_server_log::failpoint;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::wire::TTL_NONE;

/// Its name in the session's directory.
pub const ARCHIVE_NAME: &str = "archived";

/// Name under which it is written before it is renamed, so that a reader finds all or nothing.
const UNFINISHED_NAME: &str = "archived.new";

/// The clock of a session without a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Time to live while detached, [`TTL_NONE`] for ever.
    pub ttl_ms: u64,
    /// When it was detached; absent while a client is attached.
    pub detached_ns: Option<u64>,
}

impl Clock {
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

    /// Writes the file into a session's directory.
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
            // A reader ignores the unfinished file, so a failure to remove it changes nothing.
            rustix::fs::unlinkat(dir.as_fd(), UNFINISHED_NAME, AtFlags::empty()).ok();
        }
        renamed
    }

    /// Reads the file of a session's directory; `None` where it is absent or has other text.
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
            Clock { ttl_ms: 5, detached_ns: Some(7) },
            Clock { ttl_ms: TTL_NONE, detached_ns: None },
            Clock { ttl_ms: 0, detached_ns: Some(0) },
        ] {
            assert_eq!(Clock::decode(&clock.encode()), Some(clock));
        }
    }

    #[test]
    fn other_text_is_not_a_clock() {
        for text in ["", "1 2", "1\n", "x 1\n", "1 x\n", "1 2 3\n", "-1 2\n"] {
            assert_eq!(Clock::decode(text), None, "{text:?}");
        }
    }
}
