//! Creates or finds the root of a tree at its target, and writes the mark beside it.
//!
//! ```text
//! root is missing:  write mark without a time ──▶ create root ──▶ write mark with the root's creation time
//! root exists:                                                    write mark with the root's creation time
//! ```
//! This order lets a copy that was killed at any moment find its root again, and never mistake another directory of the same name for it.
//!
//! A copy does not set the mode and time of directories that existed before. A continued copy determines these directories as follows. If
//! the copy created the root, there are none. Otherwise they are the directories older than the mark. If the file system reports no creation
//! times, all existing directories are treated as older; those that the interrupted copy had created then keep their preliminary mode and time.

use std::path::{Path, PathBuf};

use super::{
    CopyError, MODE_KEPT,
    mark::{self, InterruptedCopy, Mark, MarkContent, MarkHeader, TargetForm},
};
use crate::fs::{EntryKind, FileError, FileSystem, Links, Metadata};

/// The set-group-id bit, by which a directory passes its group to new entries.
const SETGID_BIT: u32 = 0o2000;

/// Where a tree is copied to, and what is there.
pub(super) struct TreeTarget {
    pub(super) path: PathBuf,
    form: TargetForm,
    root: FoundRoot,
}

/// What was found at the path of a root. Everything was requested at once, so an answer that is not needed may be an error.
enum FoundRoot {
    /// The tree of an interrupted copy that this one continues.
    Continued(InterruptedCopy),
    Other {
        /// The content of a mark without a creation time, if there is one: a copy was killed before it recorded the root. The root is empty
        /// or missing, so there is nothing to continue.
        unfinished_mark: Option<MarkContent>,
        /// The metadata of the root; `None` if it does not exist.
        metadata: Result<Option<Metadata>, CopyError>,
        /// The metadata of the directory that contains the root, if there is one.
        parent: Option<Result<Metadata, FileError>>,
    },
}

impl TreeTarget {
    /// Looks at the path of a root, and at the mark beside it.
    pub(super) async fn look_at(
        files: &dyn FileSystem,
        header: &MarkHeader,
        path: PathBuf,
        form: TargetForm,
    ) -> Result<Self, CopyError> {
        let looking_at_parent = async {
            match path.parent() {
                Some(parent) => Some(files.metadata(parent, Links::Refuse).await),
                None => None,
            }
        };
        let (found, metadata, parent) =
            tokio::join!(header.find(files, &path), super::find(files, &path, Links::Itself), looking_at_parent);
        let root = match found? {
            Some(found) if found.content.created_ms.is_some() => FoundRoot::Continued(found),
            found => FoundRoot::Other { unfinished_mark: found.map(|found| found.content), metadata, parent },
        };
        Ok(Self { path, form, root })
    }

    /// A root that an interrupted copy has left. Its mark may be without a creation time.
    pub(super) fn continued(path: PathBuf, form: TargetForm, found: InterruptedCopy) -> Self {
        let root = if found.content.created_ms.is_some() {
            FoundRoot::Continued(found)
        } else {
            FoundRoot::Other { unfinished_mark: Some(found.content), metadata: Ok(Some(found.root)), parent: None }
        };
        Self { path, form, root }
    }
}

/// The root of a tree at the target.
pub(super) struct TargetRoot {
    pub(super) path: PathBuf,
    /// Whether this copy created the root, in this run or before it was interrupted.
    pub(super) is_ours: bool,
    /// Whether this run created the root, so that it is empty.
    pub(super) is_new: bool,
    /// The set-group-id bit of the root, or 0. New directories in the root inherit it.
    pub(super) setgid: u32,
    pub(super) mark: Option<Mark>,
    /// If this copy continues an interrupted copy: when the interrupted copy created its mark; 0 if unknown.
    pub(super) since_ms: Option<i64>,
}

impl TargetRoot {
    /// Creates the root, unless it exists, and writes the mark.
    pub(super) async fn prepare(
        files: &dyn FileSystem,
        target_tree: TreeTarget,
        header: &MarkHeader,
        mode: u32,
    ) -> Result<Self, CopyError> {
        let TreeTarget { path, form, root } = target_tree;
        let (unfinished_mark, metadata, parent) = match root {
            FoundRoot::Continued(InterruptedCopy { content, mark, since_ms, root }) => {
                let (is_ours, setgid) = (content.is_created, setgid_bit(&root));
                let (is_new, mark, since_ms) = (false, Some(mark), Some(since_ms));
                return Ok(Self { path, is_ours, is_new, setgid, mark, since_ms });
            }
            FoundRoot::Other { unfinished_mark, metadata, parent } => (unfinished_mark, metadata?, parent),
        };
        let mut content = unfinished_mark.unwrap_or_else(|| MarkContent::new(form, false, None));
        let is_new = metadata.is_none();
        let metadata = match metadata {
            Some(metadata) => metadata,
            None => {
                content.is_created = true;
                let setgid = match parent {
                    Some(parent) => setgid_bit(&parent?),
                    None => 0,
                };
                let mark = header.write(files, &path, &content).await?;
                let mode = preliminary_mode(mode, setgid);
                // Recursive, so that an existing directory is not an error: the request is sent again if a cut hides its answer.
                if let Err(error) = files.create_directory(&path, true, Links::Refuse, Some(mode)).await {
                    if let Some(mark) = &mark {
                        mark::remove(files, mark).await?;
                    }
                    return Err(error.into());
                }
                files.metadata(&path, Links::Itself).await?
            }
        };
        if metadata.kind != EntryKind::Directory {
            return Err(CopyError::NotADirectory { path });
        }
        content.created_ms = Some(metadata.created_ms);
        let mark = header.write(files, &path, &content).await?;
        let (is_ours, setgid) = (content.is_created, setgid_bit(&metadata));
        Ok(Self { path, is_ours, is_new, setgid, mark, since_ms: None })
    }

    /// Refuses a target whose path lies inside of the source's path, if both are the same file system under different addresses: the mark
    /// can then be read through the source. Removes the mark, and the root if this run created it. Other cases are found while the tree is
    /// listed.
    pub(super) async fn refuse_itself(
        &self,
        source: &dyn FileSystem,
        from: &Path,
        target: &dyn FileSystem,
    ) -> Result<(), CopyError> {
        let Some(mark) = self.mark.as_ref().filter(|_| self.path.starts_with(from)) else { return Ok(()) };
        if !mark.is_at(source, &mark.path).await? {
            return Ok(());
        }
        mark::remove(target, mark).await?;
        if self.is_ours && self.since_ms.is_none() {
            let (recursive, force) = (false, true);
            target.remove(&self.path, recursive, force, Links::Refuse).await?;
        }
        Err(CopyError::IntoItself { path: from.to_owned() })
    }

    /// Whether an existing directory below the root was created by the interrupted copy that this one continues.
    pub(super) fn has_created(&self, found: &Metadata) -> bool {
        let is_newer = |since_ms| since_ms != 0 && found.created_ms >= since_ms;
        self.since_ms.is_some_and(|since_ms| self.is_ours || is_newer(since_ms))
    }
}

/// The set-group-id bit of a directory, or 0.
pub(super) fn setgid_bit(found: &Metadata) -> u32 {
    found.mode.unwrap_or_default() & SETGID_BIT
}

/// The mode of a directory while it is being filled. It is writable for its owner, even if the final mode is not.
pub(super) fn preliminary_mode(mode: u32, setgid: u32) -> u32 {
    final_mode(mode, setgid) | 0o700
}

/// The final mode of a directory: the bits of the source, with the set-group-id bit of the target.
pub(super) fn final_mode(mode: u32, setgid: u32) -> u32 {
    (mode & MODE_KEPT) | setgid
}
