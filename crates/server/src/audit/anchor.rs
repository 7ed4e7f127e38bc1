//! What is known of an audit log apart from the log: where it began, how far it was written, and where its older files ended.
//!
//! A chain of hashes has no key, so the log alone cannot show that its end was cut off or that all of it was replaced. The anchor can. It is
//! a small file in the server's state directory, replaced in one step after the log's own lines are on the disk: it is never ahead of the log,
//! and behind it by [`super::writer::SYNC_EVERY`] at most. Must not know what is recorded.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::chain::{self, End};

/// Ends of older files that are kept; of those before them nothing is known but that they are older.
const PARTS_MAX: usize = 1024;

/// Longest anchor that is read.
const MAX_BYTES: u64 = 1 << 20;

/// A line by its number and hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Counted from 1 over all files of the log.
    pub seq: u64,
    /// Its SHA-256, as in the line.
    pub hash: String,
}

impl From<&End> for Mark {
    fn from(end: &End) -> Self {
        Self { seq: end.seq, hash: end.hash.clone() }
    }
}

/// What is known of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Anchor {
    /// The log, as the server was told.
    pub log: PathBuf,
    /// The oldest line that is known: the first of all, unless the log was there before its anchor.
    pub first: Mark,
    /// The last line that was on the disk when this was written.
    pub last: Mark,
    /// The last lines of files that the log has left, the oldest first.
    #[serde(default)]
    pub parts: Vec<Mark>,
}

impl Anchor {
    /// The name of a log's anchor in a directory for them.
    pub fn path_in(dir: &Path, log: &Path) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        let name = chain::digest(identity(log).as_os_str().as_bytes());
        dir.join(format!("audit-anchor-{}.json", &name[..16]))
    }

    /// Reads one; absent where there is none.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut text = Vec::new();
        match fs::File::open(path) {
            Ok(file) => io::Read::read_to_end(&mut io::Read::take(file, MAX_BYTES), &mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        serde_json::from_slice(&text).map(Some).map_err(io::Error::from)
    }

    /// Replaces the file in one step.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension("new");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_data()?;
        fs::rename(&beside, path)
    }

    /// Notes that the log goes on in another file.
    pub(super) fn end_part(&mut self) {
        if self.last.seq > 0 && self.parts.last() != Some(&self.last) {
            self.parts.push(self.last.clone());
            let excess = self.parts.len().saturating_sub(PARTS_MAX);
            self.parts.drain(..excess);
        }
    }
}

/// One path for every spelling of a log's name; the log itself need not exist.
fn identity(log: &Path) -> PathBuf {
    let absolute = std::path::absolute(log).unwrap_or_else(|_| log.to_owned());
    match (absolute.parent().and_then(|dir| dir.canonicalize().ok()), absolute.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        _ => absolute,
    }
}
