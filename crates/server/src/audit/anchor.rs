//! The anchor of an audit log, kept apart from the log: where the log began, how far it was written, and where its
//! older files ended.
//!
//! A chain of hashes has no key, so the log alone cannot show that its end was cut off or that all of it was replaced.
//! The anchor can. It is a small file in the server's state directory. It is replaced by a rename after the log's lines
//! are synced, so it is never ahead of the log. While both can be written, it is at most
//! [`super::writer::SYNC_EVERY`] behind.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::chain;
use crate::state_dir::if_exists;

/// How many ends of older files are kept. The ends of even older files are forgotten.
const PARTS_MAX: usize = 1024;

/// How many bytes are read at most. An anchor with [`PARTS_MAX`] ends needs less.
const MAX_BYTES: u64 = 1 << 20;

/// Identifies a line by its number and hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnchorMark {
    /// Counted from 1 over all files of the log.
    pub seq: u64,
    /// SHA-256, as in the line.
    pub hash: String,
}

/// The mark before the first line.
impl Default for AnchorMark {
    fn default() -> Self {
        Self { seq: 0, hash: chain::NOTHING.to_owned() }
    }
}

/// The contents of an anchor's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Anchor {
    /// The absolute path of the log.
    pub log: PathBuf,
    /// The oldest known line. This is the first line of the log, unless the log existed before its anchor.
    pub first: AnchorMark,
    /// The last line that was synced when the anchor was written.
    pub last: AnchorMark,
    /// The last lines of the log's earlier files, oldest first.
    #[serde(default)]
    pub parts: Vec<AnchorMark>,
}

impl Anchor {
    /// The path of a log's anchor in `dir`.
    pub fn path_in(dir: &Path, log: &Path) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        let name = chain::digest(identity(log).as_os_str().as_bytes());
        dir.join(format!("audit-anchor-{}.json", &name[..16]))
    }

    /// Reads an anchor. `None` if the file does not exist.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut text = Vec::new();
        let Some(file) = if_exists(fs::File::open(path))? else { return Ok(None) };
        file.take(MAX_BYTES).read_to_end(&mut text)?;
        serde_json::from_slice(&text).map(Some).map_err(io::Error::from)
    }

    /// Replaces the file atomically.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension("new");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_data()?;
        fs::rename(&beside, path)
    }

    /// Records that the log continues in another file.
    pub(super) fn end_part(&mut self) {
        if self.last.seq > 0 && self.parts.last() != Some(&self.last) {
            self.parts.push(self.last.clone());
            let excess = self.parts.len().saturating_sub(PARTS_MAX);
            self.parts.drain(..excess);
        }
    }
}

/// The same path for every spelling of a log's name. The log itself need not exist.
fn identity(log: &Path) -> PathBuf {
    let absolute = std::path::absolute(log).unwrap_or_else(|_| log.to_owned());
    match (absolute.parent().and_then(|dir| dir.canonicalize().ok()), absolute.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        _ => absolute,
    }
}
