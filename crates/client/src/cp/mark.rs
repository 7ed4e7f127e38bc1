//! Writes and reads the mark beside a target, by which an interrupted copy is recognized.
//!
//! The mark of a tree contains its source, how the target was named, the creation time of the root, and a random word. While the mark
//! exists, a copy of the same source continues in the same tree. A directory that was recreated under the same name has another creation
//! time, and does not match. The part of a file needs no mark: the hash in its name identifies its source.
//!
//! If the mark cannot be written or read, each copy begins anew. A target inside of the source is then found only if source and target have
//! the same address.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{CopyError, file::SourceFile};
use crate::fs::{self, BLOCKS_IN_FLIGHT, EntryKind, FileSystem, Links, Metadata, WriteOptions};

/// The suffix of a mark's name.
const SUFFIX: &str = ".exec-server-cp";

/// The longest mark that is read. A longer file is not a mark.
const MARK_MAX: u64 = 64 * 1024;

/// How the target of a tree was given. It decides which directory a repetition with the same arguments copies into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetForm {
    /// With a source of `SRC/.`: the target itself, whether it existed or not.
    Contents,
    /// As an existing directory: the tree is inside of it, under the source's name.
    Inside,
    /// As a path that did not exist: the tree is the target itself.
    Itself,
}

impl TargetForm {
    const ALL: [Self; 3] = [Self::Contents, Self::Inside, Self::Itself];

    fn as_str(self) -> &'static str {
        match self {
            Self::Contents => "contents",
            Self::Inside => "inside",
            Self::Itself => "itself",
        }
    }
}

/// The content of a mark, without its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MarkContent {
    pub(super) form: TargetForm,
    /// Whether the copy created the root, and therefore everything below it.
    pub(super) is_created: bool,
    /// The creation time of the root, which distinguishes it from another directory of the same name. `None` until the root is created; 0
    /// if the file system does not report it.
    pub(super) created_ms: Option<i64>,
    /// A random word that makes each mark unique. If a mark with this word can be read inside of the source, the target lies inside of the
    /// source.
    word: String,
}

impl MarkContent {
    pub(super) fn new(form: TargetForm, is_created: bool, created_ms: Option<i64>) -> Self {
        Self { form, is_created, created_ms, word: crate::random_word() }
    }

    fn write(&self, head: &str) -> String {
        let made = if self.is_created { "made" } else { "found" };
        let created = self.created_ms.map_or_else(|| "-".to_owned(), |created| created.to_string());
        format!("{head}{} {made} {created} {}\n", self.form.as_str(), self.word)
    }

    /// Parses a mark; `None` if it belongs to another copy.
    fn read(head: &str, text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix(head)?.strip_suffix('\n')?.split(' ');
        let mut next = || fields.next();
        let form = next()?;
        let form = TargetForm::ALL.into_iter().find(|known| known.as_str() == form)?;
        let is_created = match next()? {
            "made" => true,
            "found" => false,
            _ => return None,
        };
        let created_ms = match next()? {
            "-" => None,
            number => Some(number.parse().ok()?),
        };
        Some(Self { form, is_created, created_ms, word: next()?.to_owned() })
    }
}

/// A mark that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl Mark {
    /// Whether this very mark can be read at the path. If so, `files` accesses the file system on which the mark was
    /// written.
    pub(super) async fn is_at(&self, files: &dyn FileSystem, path: &Path) -> Result<bool, CopyError> {
        let read = files.read_within(path, MARK_MAX, Links::Refuse).await;
        Ok(ignore_unless_fatal(read.map(Some))?.is_some_and(|bytes| bytes == self.text.as_bytes()))
    }
}

/// The state that an interrupted copy has left.
pub(super) struct InterruptedCopy {
    pub(super) content: MarkContent,
    pub(super) mark: Mark,
    /// When the mark was created; 0 if the file system does not report it.
    pub(super) since_ms: i64,
    /// The current metadata of the root.
    pub(super) root: Metadata,
}

/// The text with which every mark of this copy begins.
pub(super) struct MarkHeader(String);

impl MarkHeader {
    pub(super) fn new(machine: &str, from: &Path) -> Self {
        // Marks are recognized by this text: with another text, copies that an older version began would not continue.
        Self(format!(
            "exec-server cp, interrupted; copied again from the same source, it goes on.\n{machine}\n{}\n",
            hex::encode(from.as_os_str().as_bytes())
        ))
    }

    /// The state in which an interrupted run of this copy has left `tree`; `None` if there was no such run.
    pub(super) async fn find(&self, files: &dyn FileSystem, tree: &Path) -> Result<Option<InterruptedCopy>, CopyError> {
        let Some(path) = mark_path(tree) else { return Ok(None) };
        ignore_unless_fatal(self.try_find(files, tree, path).await)
    }

    async fn try_find(
        &self,
        files: &dyn FileSystem,
        tree: &Path,
        path: PathBuf,
    ) -> Result<Option<InterruptedCopy>, fs::FileError> {
        let since_ms = files.metadata(&path, Links::Refuse).await?.created_ms;
        let bytes = files.read_within(&path, MARK_MAX, Links::Refuse).await?;
        let Ok(text) = String::from_utf8(bytes.to_vec()) else { return Ok(None) };
        let Some(content) = MarkContent::read(&self.0, &text) else { return Ok(None) };
        let root = files.metadata(tree, Links::Itself).await?;
        let is_same_root = root.kind == EntryKind::Directory
            && match content.created_ms {
                Some(created_ms) => created_ms == root.created_ms,
                // The copy was interrupted after creating the root and before recording its creation time. The root must then be empty.
                None => files.list(tree, None, Links::Refuse).await?.entries.is_empty(),
            };
        Ok(is_same_root.then_some(InterruptedCopy { content, mark: Mark { path, text }, since_ms, root }))
    }

    /// Writes the mark; `None` if that is not possible.
    pub(super) async fn write(
        &self,
        files: &dyn FileSystem,
        tree: &Path,
        content: &MarkContent,
    ) -> Result<Option<Mark>, CopyError> {
        let Some(path) = mark_path(tree) else { return Ok(None) };
        let text = content.write(&self.0);
        let options = WriteOptions { links: Links::Refuse, ..WriteOptions::default() };
        let written = files.write_file(&path, Bytes::from(text.clone()), options).await;
        ignore_unless_fatal(written.map(|_| Some(Mark { path, text })))
    }
}

/// Removes a mark, if it exists.
pub(super) async fn remove(files: &dyn FileSystem, mark: &Mark) -> Result<(), CopyError> {
    let (recursive, force) = (false, true);
    ignore_unless_fatal(files.remove(&mark.path, recursive, force, Links::Refuse).await.map(Some)).map(drop)
}

/// Treats a mark that cannot be accessed as missing. Only a side that is disconnected or violates the protocol ends the copy.
fn ignore_unless_fatal<T>(result: Result<Option<T>, fs::FileError>) -> Result<Option<T>, CopyError> {
    match result.map_err(CopyError::from) {
        Err(error) if error.is_connection() => Err(error),
        result => Ok(result.unwrap_or_default()),
    }
}

/// The key for the part of a file. Only the same version of the same file has the same key.
pub(super) fn part_key(machine: &str, from: &Path, source: &SourceFile, etag: Option<&str>) -> String {
    let mut sum = Sha256::new();
    for part in [machine.as_bytes(), from.as_os_str().as_bytes(), etag.unwrap_or_default().as_bytes()] {
        sum.update((part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    sum.update(source.size.to_le_bytes());
    sum.update(source.modified.seconds.to_le_bytes());
    sum.update(source.modified.nanos.to_le_bytes());
    // The last blocks in flight may be missing in a part. A version that keeps fewer in flight would miss some of them, so it must not find
    // this part.
    sum.update((BLOCKS_IN_FLIGHT as u64).to_le_bytes());
    // 96 bits are enough to avoid accidental collisions, and keep the name of the part short.
    hex::encode(&sum.finalize()[..12])
}

fn mark_path(tree: &Path) -> Option<PathBuf> {
    let (dir, name) = (tree.parent()?, tree.file_name()?);
    let mut mark = OsString::from(".");
    // If the name with a dot and the suffix exceeds 255 bytes, the limit of Linux, use its hash.
    if name.len() + 1 + SUFFIX.len() <= 255 {
        mark.push(name);
    } else {
        mark.push(hex::encode(&Sha256::digest(name.as_bytes())[..12]));
    }
    mark.push(SUFFIX);
    Some(dir.join(mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Moment;

    #[test]
    fn each_version_of_each_file_has_its_own_part_key() {
        let source = SourceFile { size: 5, mode: 0o644, modified: Moment { seconds: 1, nanos: 2 } };
        let key =
            |machine, path: &str, source: &SourceFile, etag| super::part_key(machine, Path::new(path), source, etag);
        let first = key("a", "/x", &source, Some("e"));
        assert_eq!(first, key("a", "/x", &source.clone(), Some("e")));
        assert!(first.len() == 24 && first.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let others = [
            key("b", "/x", &source, Some("e")),
            key("a", "/y", &source, Some("e")),
            key("a", "/x", &source, Some("f")),
            key("a", "/x", &source, None),
            key("a", "/x", &SourceFile { size: 6, ..source.clone() }, Some("e")),
            key("a", "/x", &SourceFile { modified: Moment { seconds: 1, nanos: 3 }, ..source.clone() }, Some("e")),
        ];
        assert!(others.iter().all(|other| *other != first));
    }

    #[test]
    fn a_mark_is_read_only_by_a_copy_of_the_same_source() {
        let header = MarkHeader::new("local", Path::new("/src"));
        for form in TargetForm::ALL {
            for content in [MarkContent::new(form, true, None), MarkContent::new(form, false, Some(-5))] {
                let text = content.write(&header.0);
                assert_eq!(MarkContent::read(&header.0, &text), Some(content));
                assert_eq!(MarkContent::read(&MarkHeader::new("local", Path::new("/other")).0, &text), None);
                assert_eq!(MarkContent::read(&header.0, &text[..text.len() - 1]), None, "half of it");
            }
        }
    }

    #[test]
    fn a_mark_path_is_beside_its_tree_and_not_too_long() {
        assert_eq!(mark_path(Path::new("/a/b")), Some(PathBuf::from("/a/.b.exec-server-cp")));
        assert_eq!(mark_path(Path::new("/")), None);
        let long = format!("/a/{}", "x".repeat(255));
        assert!(mark_path(Path::new(&long)).is_some_and(|mark| mark.file_name().is_some_and(|name| name.len() <= 255)));
    }
}
