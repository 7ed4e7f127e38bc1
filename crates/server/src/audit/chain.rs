//! Writes and checks single lines of the audit log.
//!
//! ```text
//! {"seq":7,"time":"…","event":"process.start",…,"prev":"HASH OF LINE 6","hash":"HASH"}
//! ```
//!
//! A line's hash is the SHA-256 of its bytes before `,"hash":"`. These bytes contain the hash of the previous line, so
//! no line can be changed, removed or moved without changing all lines after it.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::wall_clock;

/// The value of `prev` in the first line.
pub(super) const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

const HASH_KEY: &str = ",\"hash\":\"";

/// The last line of a chain. The next line continues from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChainEnd {
    pub(super) seq: u64,
    pub(super) hash: String,
}

impl Default for ChainEnd {
    fn default() -> Self {
        Self { seq: 0, hash: NOTHING.to_owned() }
    }
}

/// The fields of a line that a verifier looks at.
#[derive(Debug, Deserialize)]
pub(super) struct ChainLine {
    pub(super) seq: u64,
    pub(super) event: String,
    pub(super) prev: String,
    pub(super) hash: String,
    #[serde(default)]
    pub(super) bytes: Option<u64>,
    #[serde(default)]
    pub(super) sha256: Option<String>,
    #[serde(default)]
    pub(super) count: Option<u64>,
    #[serde(default)]
    pub(super) session: Option<String>,
    #[serde(default)]
    pub(super) process: Option<String>,
    #[serde(default)]
    pub(super) pid: Option<u32>,
    #[serde(default)]
    pub(super) anchor: Option<String>,
}

/// Appends the line of a record to `out`, including the newline, and advances the end of the chain.
pub(super) fn write(out: &mut Vec<u8>, end: &mut ChainEnd, time_ms: u64, record: &impl Serialize) {
    let begin = out.len();
    let body = serde_json::to_string(record).expect("a record of strings and numbers serializes");
    // Drop the braces: the fields of the record become fields of the line.
    let body = body.get(1..body.len().saturating_sub(1)).unwrap_or_default();
    let seq = end.seq + 1;
    let time = wall_clock::show_ms(time_ms);
    out.extend_from_slice(format!("{{\"seq\":{seq},\"time\":\"{time}\",{body},\"prev\":\"{}\"", end.hash).as_bytes());
    let hash = digest(&out[begin..]);
    out.extend_from_slice(format!("{HASH_KEY}{hash}\"}}\n").as_bytes());
    *end = ChainEnd { seq, hash };
}

/// Parses a line without its newline. `None` if the line is malformed or its hash is wrong.
pub(super) fn read(line: &[u8]) -> Option<ChainLine> {
    let at = line.len().checked_sub(HASH_KEY.len() + NOTHING.len() + 2)?;
    let parsed: ChainLine = serde_json::from_slice(line).ok()?;
    let is_whole =
        line[at..].starts_with(HASH_KEY.as_bytes()) && line[at + HASH_KEY.len()..].starts_with(parsed.hash.as_bytes());
    (is_whole && digest(&line[..at]) == parsed.hash).then_some(parsed)
}

pub(super) fn digest(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").ok(); // Writing to a `String` does not fail.
    }
    text
}
