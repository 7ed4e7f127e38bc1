//! What is written down beside a target, so that an interrupted transfer is known again.
//!
//! A tree has a mark beside it, with the source in it; while that is there, a copy of the same source goes on in the same
//! tree. A part of a file needs no mark: the word in its name says of what it is a part.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{Error, file::Source};
use crate::fs::{ErrorKind, FileSystem, Links, WriteOptions};

/// The end of a mark's name.
const SUFFIX: &str = ".exec-server-cp";

/// The longest mark that is read: longer ones are not ours.
const MARK_MAX: u64 = 64 * 1024;

/// What a mark says of the transfer.
pub(super) struct Words(String);

impl Words {
    pub(super) fn new(place: &str, from: &Path) -> Self {
        Self(format!(
            "exec-server cp, interrupted; copied again from the same source, it goes on.\n{place}\n{}\n",
            hex(from.as_os_str().as_bytes())
        ))
    }

    /// Whether the mark beside this tree is of the same transfer.
    pub(super) async fn are_beside(&self, files: &dyn FileSystem, tree: &Path) -> Result<bool, Error> {
        let Some(mark) = beside(tree) else { return Ok(false) };
        match files.metadata(&mark, Links::Refuse).await {
            Ok(found) if found.size <= MARK_MAX => {}
            Ok(_) => return Ok(false),
            Err(error) if is_nothing(error.kind) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        match files.read_file(&mark, Links::Refuse).await {
            Ok(bytes) => Ok(bytes == self.0.as_bytes()),
            Err(error) if is_nothing(error.kind) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the mark. Where that is not possible, the copy is one that begins anew each time.
    pub(super) async fn put(&self, files: &dyn FileSystem, tree: &Path) -> Result<(), Error> {
        let Some(mark) = beside(tree) else { return Ok(()) };
        let options = WriteOptions { links: Links::Refuse, keep: Some("mark".to_owned()), ..WriteOptions::default() };
        match files.write_file(&mark, Bytes::from(self.0.clone()), options).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind == ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Removes the mark of a tree that is complete.
pub(super) async fn remove(files: &dyn FileSystem, tree: &Path) -> Result<(), Error> {
    let Some(mark) = beside(tree) else { return Ok(()) };
    match files.remove(&mark, false, true, Links::Refuse).await {
        Err(error) if error.kind != ErrorKind::PermissionDenied => Err(error.into()),
        _ => Ok(()),
    }
}

/// The word for a part of a file: whoever finds it under this word goes on with the same version of the same file.
pub(super) fn word(place: &str, from: &Path, source: &Source, etag: Option<&str>) -> String {
    let mut sum = Sha256::new();
    for part in [place.as_bytes(), from.as_os_str().as_bytes(), etag.unwrap_or_default().as_bytes()] {
        sum.update((part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    sum.update(source.size.to_le_bytes());
    sum.update(source.modified.seconds.to_le_bytes());
    sum.update(source.modified.nanos.to_le_bytes());
    hex(&sum.finalize()[..12])
}

fn beside(tree: &Path) -> Option<PathBuf> {
    let (dir, name) = (tree.parent()?, tree.file_name()?);
    let mut mark = OsString::from(".");
    // A name without room for ours is told by its sum.
    if name.len() + 1 + SUFFIX.len() <= 255 {
        mark.push(name);
    } else {
        mark.push(hex(&Sha256::digest(name.as_bytes())[..12]));
    }
    mark.push(SUFFIX);
    Some(dir.join(mark))
}

fn is_nothing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Symlink)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Moment;

    #[test]
    fn another_version_or_another_file_has_another_word() {
        let source = Source { size: 5, mode: 0o644, modified: Moment { seconds: 1, nanos: 2 } };
        let word = |place, path: &str, source: &Source, etag| super::word(place, Path::new(path), source, etag);
        let first = word("a", "/x", &source, Some("e"));
        assert_eq!(first, word("a", "/x", &source.clone(), Some("e")));
        assert!(first.len() == 24 && first.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let others = [
            word("b", "/x", &source, Some("e")),
            word("a", "/y", &source, Some("e")),
            word("a", "/x", &source, Some("f")),
            word("a", "/x", &source, None),
            word("a", "/x", &Source { size: 6, ..source.clone() }, Some("e")),
            word("a", "/x", &Source { modified: Moment { seconds: 1, nanos: 3 }, ..source.clone() }, Some("e")),
        ];
        assert!(others.iter().all(|other| *other != first));
    }

    #[test]
    fn a_mark_stands_beside_its_tree_and_fits() {
        assert_eq!(beside(Path::new("/a/b")), Some(PathBuf::from("/a/.b.exec-server-cp")));
        assert_eq!(beside(Path::new("/")), None);
        let long = format!("/a/{}", "x".repeat(255));
        assert!(beside(Path::new(&long)).is_some_and(|mark| mark.file_name().is_some_and(|name| name.len() <= 255)));
    }
}
