//! Copies files and trees between two places: bytes, permission bits, symbolic links, times of modification, and holes of
//! files that are too large for one request.
//!
//! ```text
//! resolve SRC and DST ──▶ one file, or a tree: directories, files and links as jobs, tens of them under way
//!                             small file: one read, one write       large file: blocks, several under way
//! ```
//! Two rules hold whatever the source's place says. *Nothing is written outside of the target*: every name of a listing must
//! be one, and no link below the target is followed. *No file is seen under its name before it is whole*: it grows under a
//! hidden name beside it.
//!
//! Interrupted, it is called again with the same words and goes on. Of a large file that is what its hidden part holds: the
//! part has a name that only the same version of the same source leads to (address, path, size, time, etag). Of a tree it is
//! what has the size, the time and the mode of its source; and only where a mark beside the tree says that this very transfer
//! was interrupted there, or ended with something missing. Failure paths: what cannot be read or written is told, and the
//! rest goes on; a place that is gone, breaks its rules or has no room ends the transfer.

mod file;
mod mark;
mod names;
mod root;
mod target;
mod tree;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::fs::{self, EntryKind, ErrorKind, FileSystem, Links};

pub use names::BadName;

/// Bits of the mode that are kept: owners are not, so that set-user-id and set-group-id would lend another's rights.
const MODE_KEPT: u32 = 0o1777;

/// A path at a place.
#[derive(Debug, Clone)]
pub struct Place {
    /// Where.
    pub files: Arc<dyn FileSystem>,
    /// What; absolute.
    pub path: PathBuf,
}

/// Told while a copy goes on; from one task, and never for long.
pub trait Watch: Sync {
    /// A file is begun.
    fn begun(&self, path: &Path, size: u64);

    /// So many bytes of it more have arrived, or were there already.
    fn moved(&self, path: &Path, bytes: u64);

    /// Something is at its place.
    fn done(&self, path: &Path, kind: EntryKind);

    /// Something was left out: a pipe, a socket or a device.
    fn left_out(&self, path: &Path);

    /// Something failed, and the rest goes on.
    fn failed(&self, error: &Error);

    /// A file is waited for, and why; told once for a file, and only if it takes a while.
    fn waiting(&self, _path: &Path, _why: &str) {}

    /// Something of a tree is missing. The mark stays beside it, by which a copy of the same source goes on there.
    fn unfinished(&self, _tree: &Path, _mark: &Path) {}
}

/// Nobody looks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn begun(&self, _: &Path, _: u64) {}
    fn moved(&self, _: &Path, _: u64) {}
    fn done(&self, _: &Path, _: EntryKind) {}
    fn left_out(&self, _: &Path) {}
    fn failed(&self, _: &Error) {}
}

/// What a copy came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Files that were copied.
    pub files: u64,
    /// Files that an interrupted copy had brought already.
    pub found: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Bytes of the files that were copied, holes included.
    pub bytes: u64,
    /// What was left out: pipes, sockets, devices.
    pub left_out: u64,
    /// What failed.
    pub failed: u64,
}

/// Why a copy, or a part of it, failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, at one of the two places.
    #[error(transparent)]
    File(#[from] fs::Error),
    /// A directory, and not asked for.
    #[error("`{}` is a directory: say `-r`", path.display())]
    IsADirectory {
        /// The source.
        path: PathBuf,
    },
    /// Neither a file nor a directory.
    #[error("`{}` is neither a file nor a directory", path.display())]
    Special {
        /// The source.
        path: PathBuf,
    },
    /// A directory was to become something that is there and is none.
    #[error("`{}` is not a directory", path.display())]
    NotADirectory {
        /// The target.
        path: PathBuf,
    },
    /// The target is the source, or inside of it.
    #[error("`{}` cannot be copied to itself or below itself", path.display())]
    IntoItself {
        /// The source.
        path: PathBuf,
    },
    /// A listing has a name that names nothing directly below its directory.
    #[error("the listing of `{}` has the name {name:?}, which is not used: {why}", path.display())]
    Name {
        /// The directory.
        path: PathBuf,
        /// The name.
        name: OsString,
        /// What is wrong with it.
        why: BadName,
    },
    /// A listing that does not go on from name to name, or never ends.
    #[error("the listing of `{}` is not in order: {why}", path.display())]
    Listing {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The file became shorter while it was read.
    #[error("`{}` became shorter while it was read; copy it again", path.display())]
    Shrunk {
        /// The source.
        path: PathBuf,
    },
}

impl Error {
    /// Whether nothing more can be hoped for, rather than for one file.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::File(error) => {
                matches!(error.kind, ErrorKind::Disconnected | ErrorKind::InvalidData | ErrorKind::Full)
            }
            Self::Name { .. } | Self::Listing { .. } | Self::IntoItself { .. } => true,
            Self::IsADirectory { .. } | Self::Special { .. } | Self::NotADirectory { .. } | Self::Shrunk { .. } => {
                false
            }
        }
    }

    /// Whether a place cannot be reached any more, or does not keep to the protocol.
    #[must_use]
    pub fn is_connection(&self) -> bool {
        matches!(self, Self::File(error) if matches!(error.kind, ErrorKind::Disconnected | ErrorKind::InvalidData))
    }
}

/// Copies a file, or with `recursive` a tree. A target that is a directory gets the source's name in it; a file is not copied
/// to a target that ends in a slash and is not there. A source that ends in `/.` means what is in it. Links below the source
/// are copied as links. Directories that are there keep their mode and time.
pub async fn copy(source: &Place, target: &Place, recursive: bool, watch: &dyn Watch) -> Result<Report, Error> {
    let found = source.files.metadata(&source.path, Links::Follow).await?;
    let from = source.files.canonicalize(&source.path).await?;
    match found.kind {
        EntryKind::File => {
            let to = target::of_file(&source.path, target).await?;
            refuse_itself(source, target, &from, &to)?;
            let copy = file::Copy { source: &*source.files, target: &*target.files, watch };
            let entry = file::Source { size: found.size, mode: found.mode.unwrap_or(0o644), modified: found.modified };
            copy.whole(&from, &to, &entry).await?;
            watch.done(&to, EntryKind::File);
            Ok(Report { files: 1, bytes: found.size, ..Report::default() })
        }
        EntryKind::Directory if !recursive => Err(Error::IsADirectory { path: source.path.clone() }),
        EntryKind::Directory => {
            let words = mark::Words::new(&source.files.place(), &from);
            let aim = target::of_tree(&source.path, target, &words).await?;
            refuse_itself(source, target, &from, &aim.path)?;
            let mode = found.mode.unwrap_or(0o755);
            let root = root::Root::prepare(&*target.files, aim, &words, mode).await?;
            root.refuse_itself(&*source.files, &from, &*target.files).await?;
            let done = tree::Tree::new(source, target, from, &root, watch).copy((mode, found.modified)).await;
            match (&root.mark, &done) {
                (Some(mark), Ok(Report { failed: 0, .. }) | Err(Error::IntoItself { .. })) => {
                    mark::remove(&*target.files, mark).await?;
                }
                // What is missing may be tried again, and then only that.
                (Some(mark), _) => watch.unfinished(&root.path, &mark.path),
                (None, _) => {}
            }
            done
        }
        EntryKind::Symlink | EntryKind::Other => Err(Error::Special { path: source.path.clone() }),
    }
}

/// A tree in itself would grow for ever, and a file would be replaced by what it was.
fn refuse_itself(source: &Place, target: &Place, from: &Path, to: &Path) -> Result<(), Error> {
    if source.files.place() == target.files.place() && to.starts_with(from) {
        return Err(Error::IntoItself { path: from.to_owned() });
    }
    Ok(())
}
