//! The file that an expired session leaves in its directory: when the session expired, and which processes it had.
//!
//! Format: the first line is a Unix time in seconds. One line per process follows: pid, `running` or `closed`, and the
//! opaque record of its start in hexadecimal. Used by the holder and the server.

use std::{io, os::fd::AsFd};

use crate::{session_file, spawner::TOMBSTONE_NAME};

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
        session_file::replace(dir, TOMBSTONE_NAME, &self.encode())
    }

    /// Reads the file from the session's directory. `None` if it does not exist or is malformed.
    pub fn read(dir: impl AsFd) -> io::Result<Option<Self>> {
        let Some(file) = session_file::open(dir, TOMBSTONE_NAME)? else { return Ok(None) };
        Ok(Self::decode(&io::read_to_string(file)?))
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
    fn decode_returns_what_encode_was_given() {
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
    fn malformed_text_is_not_a_tombstone() {
        for text in ["", "x", "1\nno", "1\n2 walking 00", "1\n2 running zz", "-1"] {
            assert_eq!(Tombstone::decode(text), None, "{text:?}");
        }
    }
}
