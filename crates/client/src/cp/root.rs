//! The root of a tree at its target: made or found, with the mark of the transfer beside it.
//!
//! ```text
//! not there:  mark without a time ──▶ make it ──▶ mark with its time        there: mark with its time
//! ```
//! So a copy that is killed at any moment finds its root again, and no other directory of that name is taken for it. What was
//! there before the transfer keeps its mode and its time. Which directories those are is known to a copy that goes on: none, if
//! the transfer made the root; else the ones older than the mark. Where the file system does not tell when something came to be,
//! it is all that are there, and those that the interrupted copy made keep the mode and time they had by then.

use std::path::{Path, PathBuf};

use super::{
    Error, MODE_KEPT,
    mark::{self, Form, Found, Mark, Note, Words},
};
use crate::fs::{EntryKind, ErrorKind, FileSystem, Links, Metadata};

/// The bit by which directories hand their group down.
const GROUP_BIT: u32 = 0o2000;

/// Where a tree goes.
pub(super) struct Aim {
    pub(super) path: PathBuf,
    pub(super) form: Form,
    /// What an interrupted copy has left there.
    pub(super) found: Option<Found>,
}

/// The root of a tree that is copied.
pub(super) struct Root {
    pub(super) path: PathBuf,
    /// Whether this transfer made it, now or before it was interrupted.
    pub(super) is_ours: bool,
    /// What it hands down to directories that are made in it.
    pub(super) group: u32,
    pub(super) mark: Option<Mark>,
    /// Of a transfer that goes on: when it began; 0 where nobody knows.
    pub(super) since_ms: Option<i64>,
}

impl Root {
    /// Makes it, unless it is there, and marks it.
    pub(super) async fn prepare(files: &dyn FileSystem, aim: Aim, words: &Words, mode: u32) -> Result<Self, Error> {
        let Aim { path, form, found } = aim;
        let mut note = Note::new(form, false, None);
        if let Some(Found { note: before, mark, since_ms, root }) = found {
            if before.created_ms.is_some() {
                let (is_ours, group) = (before.is_made, group(&root));
                return Ok(Self { path, is_ours, group, mark: Some(mark), since_ms: Some(since_ms) });
            }
            note = before;
        }
        let there = match files.metadata(&path, Links::Itself).await {
            Ok(there) => there,
            Err(error) if error.kind == ErrorKind::NotFound => {
                note.is_made = true;
                let group = match path.parent() {
                    Some(parent) => group(&files.metadata(parent, Links::Refuse).await?),
                    None => 0,
                };
                let mark = words.put(files, &path, &note).await?;
                let mode = mode_meanwhile(mode, group);
                if let Err(error) = files.create_directory(&path, true, Links::Refuse, Some(mode)).await {
                    if let Some(mark) = &mark {
                        mark::remove(files, mark).await?;
                    }
                    return Err(error.into());
                }
                files.metadata(&path, Links::Itself).await?
            }
            Err(error) => return Err(error.into()),
        };
        if there.kind != EntryKind::Directory {
            return Err(Error::NotADirectory { path });
        }
        note.created_ms = Some(there.created_ms);
        let mark = words.put(files, &path, &note).await?;
        Ok(Self { is_ours: note.is_made, group: group(&there), mark, since_ms: None, path })
    }

    /// Whether the source has it in it, though it goes by another address: then the source sees the mark where it was written.
    /// What was made for the copy is taken away again.
    pub(super) async fn refuse_itself(
        &self,
        source: &dyn FileSystem,
        from: &Path,
        target: &dyn FileSystem,
    ) -> Result<(), Error> {
        let Some(mark) = self.mark.as_ref().filter(|_| self.path.starts_with(from)) else { return Ok(()) };
        if !mark.is_at(source, &mark.path).await? {
            return Ok(());
        }
        mark::remove(target, mark).await?;
        if self.is_ours && self.since_ms.is_none() {
            target.remove(&self.path, false, true, Links::Refuse).await?;
        }
        Err(Error::IntoItself { path: from.to_owned() })
    }

    /// Whether a directory below it, which is there, was made by the copy that is gone on with.
    pub(super) fn has_made(&self, found: &Metadata) -> bool {
        let is_later = |since_ms| since_ms != 0 && found.created_ms >= since_ms;
        self.since_ms.is_some_and(|since_ms| self.is_ours || is_later(since_ms))
    }
}

/// What a directory hands down.
pub(super) fn group(found: &Metadata) -> u32 {
    found.mode.unwrap_or_default() & GROUP_BIT
}

/// The mode of a directory until everything is in it: ours to write, whatever it will be then.
pub(super) fn mode_meanwhile(mode: u32, group: u32) -> u32 {
    mode_then(mode, group) | 0o700
}

/// The mode of a directory at the end; the group that it hands down is the target's.
pub(super) fn mode_then(mode: u32, group: u32) -> u32 {
    (mode & MODE_KEPT) | group
}
