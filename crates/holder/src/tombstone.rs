//! The file that an expired session leaves in its directory: when the session expired, and which processes it had.
//!
//! Format: the first line is a Unix time in seconds. One line per process follows: pid, `running` or `closed`, and the
//! opaque record of its start in hexadecimal. Used by the holder and the server.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::spawner::TOMBSTONE_NAME;

/// The file is written under this name and then renamed, so that a reader finds either the whole file or none.
const UNFINISHED_NAME: &str = "expired.new";

/// The record of an expired session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstone {
    /// When the session expired, as Unix time in seconds.
    pub unix_seconds: u64,
    pub processes: Vec<ExpiredProcess>,
}

/// A process of an expired session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpiredProcess {
    pub pid: u32,
    /// True if the expiry killed the process, false if it had closed before.
    pub was_running: bool,
    /// The opaque record of the process's start.
    pub meta: Vec<u8>,
}

impl Tombstone {
    /// Encodes the content of the file.
    pub fn encode(&self) -> String {
        let mut text = format!("{}\n", self.unix_seconds);
        for process in &self.processes {
            let state = if process.was_running { "running" } else { "closed" };
            let meta = hex::encode(&process.meta);
            text.push_str(&format!("{} {state} {meta}\n", process.pid));
        }
        text
    }

    /// Decodes the content of a file. `None` if it is malformed.
    pub fn decode(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let unix_seconds = lines.next()?.parse().ok()?;
        let processes = lines.map(decode_process).collect::<Option<_>>()?;
        Some(Self { unix_seconds, processes })
    }

    /// Writes the file into the session's directory.
    pub fn write(&self, dir: impl AsFd) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file: OwnedFd = rustix::fs::openat(dir.as_fd(), UNFINISHED_NAME, flags, Mode::RUSR | Mode::WUSR)?;
        io::Write::write_all(&mut std::fs::File::from(file), self.encode().as_bytes())?;
        let renamed = rustix::fs::renameat(dir.as_fd(), UNFINISHED_NAME, dir.as_fd(), TOMBSTONE_NAME);
        if renamed.is_err() {
            // Readers ignore the unfinished file, so it does not matter if it cannot be removed.
            rustix::fs::unlinkat(dir.as_fd(), UNFINISHED_NAME, AtFlags::empty()).ok();
        }
        Ok(renamed?)
    }

    /// Reads the file from the session's directory. `None` if it does not exist or is malformed.
    pub fn read(dir: impl AsFd) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(dir.as_fd(), TOMBSTONE_NAME, flags, Mode::empty()) {
            Ok(file) => Ok(Self::decode(&io::read_to_string(std::fs::File::from(file))?)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn decode_process(line: &str) -> Option<ExpiredProcess> {
    let mut words = line.split(' ');
    let pid = words.next()?.parse().ok()?;
    let was_running = match words.next()? {
        "running" => true,
        "closed" => false,
        _ => return None,
    };
    let meta = hex::decode(words.next()?).ok()?;
    Some(ExpiredProcess { pid, was_running, meta })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let stone = Tombstone {
            unix_seconds: 1_700_000_000,
            processes: vec![
                ExpiredProcess { pid: 7, was_running: true, meta: b"\x00\xffid".to_vec() },
                ExpiredProcess { pid: 8, was_running: false, meta: Vec::new() },
            ],
        };
        assert_eq!(Tombstone::decode(&stone.encode()), Some(stone));
    }

    #[test]
    fn other_text_is_no_tombstone() {
        for text in ["", "x", "1\nno", "1\n2 walking 00", "1\n2 running zz", "-1"] {
            assert_eq!(Tombstone::decode(text), None, "{text:?}");
        }
    }
}
