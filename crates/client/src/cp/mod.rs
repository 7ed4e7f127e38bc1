//! Copies files and trees between two file systems. Keeps content, permission bits, symbolic links and times of modification, and the holes
//! of large files.
//!
//! ```text
//! resolve SRC and DST ──▶ one file, or a tree: directories, files and links as jobs, up to 512 in flight
//!                             small file: one read, one write       large file: blocks, up to 64 in flight
//! ```
//! A distant server answers late, so requests that do not depend on each other go together. A copy to a server waits for this chain of
//! answers, whatever the number of files: resolve the paths; look at the target and its mark; write the mark, create the root, look at it,
//! write the mark again (`root`); create the directories, one level after the other; the files; the modes and times of directories;
//! remove the mark. A copy from a server: resolve the path; list the directories, one level after the other; the files.
//!
//! Memory is bounded whatever a source reports: small files in flight hold at most 16 MiB, large ones at most 64 MiB (`tree`).
//!
//! Two rules hold, even if the source lies. *Nothing is written outside of the target*: every name in a listing is checked, and no link
//! below the target is followed. *No new file appears under its name before it is complete*: until then it has no name, or a hidden one
//! beside the target. Only an existing file that must be overwritten in place (for example one with several hard links) can be seen half
//! written.
//!
//! An interrupted copy continues when it is called again with the same arguments. A large file continues from its hidden part. The part's
//! name is a hash of the source's address, path, size, time and etag, so that only the same version of the same file continues with it. In
//! a tree, a file is skipped if it has the size, time and mode of its source. Files are skipped only if a mark beside the tree says that
//! the same copy was interrupted there, or ended with something missing.
//!
//! Failure paths: a file that cannot be read or written is reported, and the copy continues. The copy ends if a side is disconnected,
//! violates the protocol, or has a full disk.

mod file;
mod mark;
mod names;
mod resolve_target;
mod root;
mod tree;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::fs::{self, EntryKind, FileErrorKind, FileSystem, Links, Metadata};

pub use names::BadName;

/// The mode bits that are copied. set-user-id and set-group-id are not, because the owner is not copied, and they would grant another
/// user's rights.
const MODE_KEPT: u32 = 0o1777;

/// A path on a file system: the source or the target of a copy.
#[derive(Debug, Clone)]
pub struct CopyEndpoint {
    /// The file system.
    pub files: Arc<dyn FileSystem>,
    /// The absolute path.
    pub path: PathBuf,
}

/// Receives the progress of a copy. All calls come from one task, and must return quickly. By default, each call does nothing.
pub trait CopyObserver: Sync {
    /// The copy of a file begins.
    fn begun(&self, _path: &Path, _size: u64) {}

    /// This many further bytes of a file have arrived, or were there already.
    fn moved(&self, _path: &Path, _bytes: u64) {}

    /// A file, link or directory is complete.
    fn done(&self, _path: &Path, _kind: EntryKind) {}

    /// A FIFO, a socket or a device was skipped.
    fn left_out(&self, _path: &Path) {}

    /// Something failed, and the copy continues.
    fn failed(&self, _error: &CopyError) {}

    /// The copy waits for a file; `why` is the reason. Called once per file, and only after a while.
    fn waiting(&self, _path: &Path, _why: &str) {}

    /// A part of a tree is missing. The mark stays beside the tree, so that a copy of the same source continues there.
    fn unfinished(&self, _tree: &Path, _mark: &Path) {}
}

/// A `CopyObserver` that ignores all progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl CopyObserver for NoObserver {}

/// The result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyReport {
    /// The number of files that were copied.
    pub files: u64,
    /// The number of files that an earlier, interrupted copy had already copied.
    pub found: u64,
    /// The number of directories of the copy, whether they were created or existed before.
    pub directories: u64,
    /// The number of symbolic links.
    pub links: u64,
    /// The size of all copied files when they were listed, holes included. Skipped files do not count.
    pub bytes: u64,
    /// The number of FIFOs, sockets and devices that were skipped.
    pub left_out: u64,
    /// The number of files, links and directories that failed.
    pub failed: u64,
}

/// Why a copy, or a part of it, failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A file operation failed on one of the two sides.
    #[error(transparent)]
    File(#[from] fs::FileError),
    /// The source is a directory, and `recursive` is not set.
    #[error("`{}` is a directory: use `-r`", path.display())]
    IsADirectory {
        /// The path of the source.
        path: PathBuf,
    },
    /// The source is neither a file nor a directory.
    #[error("`{}` is neither a file nor a directory", path.display())]
    Special {
        /// The path of the source.
        path: PathBuf,
    },
    /// The target must be a directory and is not one, or a directory would replace something else.
    #[error("`{}` is not a directory", path.display())]
    NotADirectory {
        /// The path of the target.
        path: PathBuf,
    },
    /// The target is the source, or lies inside of it.
    #[error("`{}` cannot be copied to itself or below itself", path.display())]
    IntoItself {
        /// The path of the source.
        path: PathBuf,
    },
    /// A listing contains a name that does not denote an entry of its directory.
    #[error("the listing of `{}` contains the invalid name {name:?}: {why}", path.display())]
    Name {
        /// The directory.
        path: PathBuf,
        /// The name in the listing.
        name: OsString,
        /// Why the name is refused.
        why: BadName,
    },
    /// A listing contradicts itself or is not in order, or the tree is too large or too deep.
    #[error("the listing of `{}` cannot be used: {why}", path.display())]
    Listing {
        /// The directory.
        path: PathBuf,
        /// The problem with the listing.
        why: &'static str,
    },
    /// The file became shorter while it was read.
    #[error("`{}` became shorter while it was read; copy it again", path.display())]
    Shrunk {
        /// The path of the source.
        path: PathBuf,
    },
}

impl CopyError {
    /// Whether the error ends the whole copy. False if it affects only one file or directory.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::File(error) => self.is_connection() || error.kind == FileErrorKind::Full,
            Self::Name { .. } | Self::Listing { .. } | Self::IntoItself { .. } => true,
            Self::IsADirectory { .. } | Self::Special { .. } | Self::NotADirectory { .. } | Self::Shrunk { .. } => {
                false
            }
        }
    }

    /// Whether a side can no longer be reached, or violates the protocol.
    #[must_use]
    pub fn is_connection(&self) -> bool {
        matches!(self, Self::File(error) if matches!(error.kind, FileErrorKind::Disconnected | FileErrorKind::InvalidData))
    }
}

/// Copies a file, or with `recursive` a tree.
///
/// If the target is a directory, the copy is created inside of it, under the source's name. Exception: if an interrupted copy of the same
/// source created the target directory itself, that copy is continued. A file is not copied to a target that ends in a slash and does not
/// exist. A source that ends in `/.` means the content of the directory. Links below the source are copied as links. Directories that
/// existed before the copy keep their mode and time.
pub async fn copy(
    source: &CopyEndpoint,
    target: &CopyEndpoint,
    recursive: bool,
    observer: &dyn CopyObserver,
) -> Result<CopyReport, CopyError> {
    // The error of the source is returned at once. The answers about the target are evaluated only when they are needed.
    let resolving = async {
        let (found, from) =
            tokio::join!(source.files.metadata(&source.path, Links::Follow), source.files.canonicalize(&source.path));
        Ok::<_, CopyError>((found?, from?))
    };
    let looking = async { Ok(resolve_target::GivenTarget::look_at(target).await) };
    let ((found, from), given) = tokio::try_join!(resolving, looking)?;
    let files = file::FileCopy { source: &*source.files, target: &*target.files, observer };
    match found.kind {
        EntryKind::File => {
            let to = given.resolve_file(&source.path)?;
            refuse_itself(source, target, &from, &to)?;
            // Older servers report no mode.
            let mode = found.mode.unwrap_or(0o644);
            let entry = file::SourceFile { size: found.size, mode, modified: found.modified };
            files.copy(&from, &to, &entry).await?;
            observer.done(&to, EntryKind::File);
            Ok(CopyReport { files: 1, bytes: found.size, ..CopyReport::default() })
        }
        EntryKind::Directory if !recursive => Err(CopyError::IsADirectory { path: source.path.clone() }),
        EntryKind::Directory => {
            let header = mark::MarkHeader::new(&source.files.machine(), &from);
            let target_tree = given.resolve_tree(&source.path, files.target, &header).await?;
            refuse_itself(source, target, &from, &target_tree.path)?;
            let mode = found.mode.unwrap_or(0o755);
            let root = root::TargetRoot::prepare(files.target, target_tree, &header, mode).await?;
            root.refuse_itself(files.source, &from, files.target).await?;
            let done = tree::TreeCopy { files, from, root: &root }.copy(mode, found.modified).await;
            match (&root.mark, &done) {
                // After `IntoItself` nothing is left to continue: a repetition would fail in the same way.
                (Some(mark), Ok(CopyReport { failed: 0, .. }) | Err(CopyError::IntoItself { .. })) => {
                    mark::remove(&*target.files, mark).await?;
                }
                // Keep the mark, so that a repetition copies only what is missing.
                (Some(mark), _) => observer.unfinished(&root.path, &mark.path),
                (None, _) => {}
            }
            done
        }
        EntryKind::Symlink | EntryKind::Other => Err(CopyError::Special { path: source.path.clone() }),
    }
}

/// The metadata of a path; `None` if it does not exist.
async fn find(files: &dyn FileSystem, path: &Path, links: Links) -> Result<Option<Metadata>, CopyError> {
    match files.metadata(path, links).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind == FileErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Refuses to copy a tree into itself, which would never end, or a file onto itself.
fn refuse_itself(source: &CopyEndpoint, target: &CopyEndpoint, from: &Path, to: &Path) -> Result<(), CopyError> {
    if source.files.machine() == target.files.machine() && to.starts_with(from) {
        return Err(CopyError::IntoItself { path: from.to_owned() });
    }
    Ok(())
}
