//! The file `archived`: the lease clock of a session that has no holder. The holder writes it when all processes of its
//! detached session have closed and their logs are complete on disk. After the holder has exited, the server updates
//! the file.
//!
//! Format: the time to live in milliseconds (`-` = no limit), then the time of the detach in nanoseconds of
//! CLOCK_MONOTONIC (`-` = a client is attached). CLOCK_MONOTONIC restarts at a reboot, but a session does not outlive a
//! reboot. The processes themselves are in the manifest ([`manifest`](crate::manifest)). Used by the holder and
//! the server.

use std::{io, os::fd::AsFd};

use crate::{control::TTL_NONE, session_file};

/// Name of the file in the session's directory.
pub const ARCHIVE_NAME: &str = "archived";

/// The lease clock of a session.
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
        session_file::replace(dir, ARCHIVE_NAME, &self.encode())
    }

    /// Reads the file from the session's directory. `None` if it does not exist or is malformed.
    pub fn read(dir: impl AsFd) -> io::Result<Option<Self>> {
        let Some(file) = session_file::open(dir, ARCHIVE_NAME)? else { return Ok(None) };
        Ok(Self::decode(&io::read_to_string(file)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_returns_what_encode_was_given() {
        for clock in [
            LeaseClock { ttl_ms: 5, detached_ns: Some(7) },
            LeaseClock { ttl_ms: TTL_NONE, detached_ns: None },
            LeaseClock { ttl_ms: 0, detached_ns: Some(0) },
        ] {
            assert_eq!(LeaseClock::decode(&clock.encode()), Some(clock));
        }
    }

    #[test]
    fn malformed_text_is_not_a_lease_clock() {
        for text in ["", "1 2", "1\n", "x 1\n", "1 x\n", "1 2 3\n", "-1 2\n"] {
            assert_eq!(LeaseClock::decode(text), None, "{text:?}");
        }
    }
}
