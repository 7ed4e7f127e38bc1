//! The manifest: a file that lists all processes of a session that has output on disk. If the holder is killed or has
//! left an archived session, the server needs the manifest to offer that output.
//!
//! Format: one line per process with its slot, its pid, the position of its log, its exit if it has exited, and the
//! opaque record of its start. The holder writes the manifest before the first segment goes to disk, and again when a
//! process starts, ends or is forgotten, and when the controller is lost. Logs grow in between, so the positions are
//! lower bounds. The holder removes the manifest with the last segment file, unless the session is archived. Used by
//! the holder and the server.

use std::{
    io::{self, Read as _},
    os::fd::AsFd,
};

use exec_server_log::{Exit, LogStatus};

use crate::session_file;

/// Name of the file in the session's directory.
pub const MANIFEST_NAME: &str = "processes";

/// More than a session with 4096 processes needs, with 4 KiB of arguments each in hexadecimal.
const MANIFEST_MAX_BYTES: u64 = 64 << 20;

/// The manifest entry of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The slot of the process: the first part of the names of its segment files.
    pub slot: u32,
    pub pid: u32,
    /// The position of the log when the manifest was written.
    pub status: LogStatus,
    /// The opaque record of the process's start.
    pub meta: Vec<u8>,
}

/// Encodes the content of the file.
pub fn encode(processes: &[ManifestEntry]) -> String {
    processes.iter().map(encode_one).collect()
}

/// Decodes the content of a file. `None` if it is malformed.
pub fn decode(text: &str) -> Option<Vec<ManifestEntry>> {
    text.lines().map(decode_one).collect()
}

/// Reads the file from the session's directory. `None` if it does not exist or is malformed.
pub fn read(dir: impl AsFd) -> io::Result<Option<Vec<ManifestEntry>>> {
    let Some(file) = session_file::open(dir, MANIFEST_NAME)? else { return Ok(None) };
    let mut text = String::new();
    // Fail if the file is too long. A truncated manifest would not decode, and the output that it names would be
    // deleted with the session.
    if file.take(MANIFEST_MAX_BYTES).read_to_string(&mut text)? as u64 == MANIFEST_MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the manifest `processes` is too long"));
    }
    Ok(decode(&text))
}

/// Writes the file into the session's directory.
pub fn write(dir: impl AsFd, text: &str) -> io::Result<()> {
    session_file::replace(dir, MANIFEST_NAME, text)
}

fn encode_one(process: &ManifestEntry) -> String {
    let ManifestEntry { slot, pid, status, meta } = process;
    let LogStatus { next_seq, first_seq, released_seq, released_offset, written, dropped, exited, closed_seq, .. } =
        status;
    let (exited_seq, exit) = exited.map_or((0, String::new()), |(seq, exit)| (seq, hex::encode(exit.encode())));
    let closed_seq = closed_seq.unwrap_or(0);
    let meta = hex::encode(meta);
    format!(
        "{slot} {pid} {next_seq} {first_seq} {released_seq} {released_offset} {written} {dropped} {closed_seq} \
         {exited_seq}:{exit} :{meta}\n"
    )
}

fn decode_one(line: &str) -> Option<ManifestEntry> {
    let mut words = line.split(' ');
    let slot = words.next()?.parse().ok()?;
    let pid = words.next()?.parse().ok()?;
    let mut number = || words.next()?.parse::<u64>().ok();
    let mut status = LogStatus {
        next_seq: number()?,
        first_seq: number()?,
        released_seq: number()?,
        released_offset: number()?,
        written: number()?,
        dropped: number()?,
        closed_seq: Some(number()?).filter(|seq| *seq != 0),
        ..LogStatus::default()
    };
    let (exited_seq, exit) = words.next()?.split_once(':')?;
    let exited_seq = exited_seq.parse().ok()?;
    if exited_seq != 0 {
        status.exited = Some((exited_seq, Exit::decode(&hex::decode(exit).ok()?)?));
    }
    let meta = hex::decode(words.next()?.strip_prefix(':')?).ok()?;
    words.next().is_none().then_some(ManifestEntry { slot, pid, status, meta })
}

#[cfg(test)]
mod tests {
    use exec_server_log::ExitCause;

    use super::*;

    #[test]
    fn decode_returns_what_encode_was_given() {
        let exit = Exit { code: 137, signal: Some(9), cause: ExitCause::Signal, ..Exit::default() };
        let processes = [
            ManifestEntry {
                slot: 7,
                pid: 4711,
                status: LogStatus { next_seq: 9, written: 100, exited: Some((7, exit)), ..LogStatus::default() },
                meta: b"\x00\xff id".to_vec(),
            },
            ManifestEntry {
                status: LogStatus { closed_seq: Some(3), ..LogStatus::default() },
                ..ManifestEntry::default()
            },
        ];
        assert_eq!(decode(&encode(&processes)).as_deref(), Some(&processes[..]));
        assert_eq!(decode(""), Some(Vec::new()));
    }

    #[test]
    fn malformed_text_is_not_a_manifest() {
        let whole = encode(&[ManifestEntry::default()]);
        assert!(decode(&whole).is_some());
        for cut in 1..whole.len() - 2 {
            assert_eq!(decode(&whole[..cut]), None, "{:?}", &whole[..cut]);
        }
        for text in ["x", "1 2 3", "0 0 0 0 0 0 0 0 0 0: :0", "0 0 0 0 0 0 0 0 0 0: : ", "0 0 0 0 0 0 0 0 0 5: :00"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
