//! Writes and checks single lines of the audit log.
//!
//! ```text
//! {"seq":7,"time":"…","event":"process.start",…,"prev":"HASH OF LINE 6","hash":"HASH"}
//! ```
//!
//! A line's hash is the SHA-256 of its bytes before `,"hash":"`. These bytes contain the hash of the previous line, so
//! no line can be changed, removed or moved without changing all lines after it.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{AnchorMark, AuditRecord};
use crate::wall_clock;

/// The value of `prev` in the first line.
pub(super) const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The fields of a line that a verifier looks at.
#[derive(Debug, Deserialize)]
pub(super) struct ChainLine {
    pub(super) seq: u64,
    pub(super) event: String,
    pub(super) prev: String,
    pub(super) hash: String,
    pub(super) bytes: Option<u64>,
    pub(super) sha256: Option<String>,
    pub(super) count: Option<u64>,
    pub(super) session: Option<String>,
    pub(super) process: Option<String>,
    pub(super) pid: Option<u32>,
    pub(super) anchor: Option<String>,
}

/// A line up to its hash, which follows as the last field.
#[derive(Serialize)]
struct UnsealedLine<'a> {
    seq: u64,
    time: String,
    #[serde(flatten)]
    record: &'a AuditRecord,
    prev: &'a str,
}

/// Appends the line of a record to `out`, including the newline, and advances `end`, the last line of the chain.
pub(super) fn write(out: &mut Vec<u8>, end: &mut AnchorMark, time_ms: u64, record: &AuditRecord) {
    let begin = out.len();
    let seq = end.seq + 1;
    let line = UnsealedLine { seq, time: wall_clock::show_ms(time_ms), record, prev: &end.hash };
    serde_json::to_writer(&mut *out, &line).expect("a record of strings and numbers serializes");
    // Reopen the object: the hash covers the bytes before its own field.
    out.pop();
    let hash = digest(&out[begin..]);
    out.extend_from_slice(sealing(&hash).as_bytes());
    out.push(b'\n');
    *end = AnchorMark { seq, hash };
}

/// Parses a line without its newline. `None` if the line is malformed or its hash is wrong.
pub(super) fn read(line: &[u8]) -> Option<ChainLine> {
    let parsed: ChainLine = serde_json::from_slice(line).ok()?;
    let sealed = line.strip_suffix(sealing(&parsed.hash).as_bytes())?;
    (digest(sealed) == parsed.hash).then_some(parsed)
}

/// The last field of a line.
fn sealing(hash: &str) -> String {
    format!(",\"hash\":\"{hash}\"}}")
}

pub(super) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
