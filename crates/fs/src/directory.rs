//! Creating and listing directories.

use std::{
    collections::BinaryHeap,
    ffi::{OsStr, OsString},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, OFlags, RawDir},
    io::Errno,
};

use crate::{
    Cancel, ErrorKind, FileKind, Links, Result, Stat, View, error::attempt, metadata::permissions,
    target::is_unfinished, view::open_at,
};

/// Buffer size of one `getdents` call.
const BUFFER_BYTES: usize = 64 << 10;

/// A directory entry, with links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    pub name: OsString,
    /// A directory, or a link to one.
    pub is_directory: bool,
    /// A regular file, or a link to one.
    pub is_file: bool,
    /// The entry itself is a symbolic link.
    pub is_symlink: bool,
}

/// A directory entry with its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetailedEntry {
    pub entry: DirectoryEntry,
    /// Metadata of the entry itself, links not followed.
    pub stat: Stat,
    /// Target, if the entry is a link.
    pub link_target: Option<Vec<u8>>,
}

impl DirectoryEntry {
    /// An entry of type `kind`, which leads to an object of type `target`.
    fn new(name: OsString, kind: FileKind, target: Option<FileKind>) -> Self {
        Self {
            name,
            is_directory: target == Some(FileKind::Directory),
            is_file: target == Some(FileKind::File),
            is_symlink: kind == FileKind::Symlink,
        }
    }
}

/// Creates a directory. With `recursive`, creates missing parents too, and an existing directory is not an error.
pub fn create_directory(view: &View, path: &Path, links: Links, recursive: bool, mode: Option<u32>) -> Result<()> {
    attempt("create the directory", path, || {
        if !recursive {
            return make_directory(view, path, links, mode);
        }
        // Create from the top. A parent that exists already costs only a lookup, and one that another process creates in the meantime is
        // accepted.
        let missing: Vec<&Path> = path.ancestors().take_while(|path| !may_exist(view, path, links)).collect();
        for ancestor in missing.into_iter().rev() {
            // The mode is only for the directory itself, not for its parents.
            let mode = mode.filter(|_| ancestor == path);
            match make_directory(view, ancestor, links, mode) {
                Err(reason) if reason.is(Errno::EXIST) => {
                    view.open(ancestor, links, OFlags::PATH | OFlags::DIRECTORY).map_err(|found| {
                        // The name is a dangling link. Report that it exists.
                        if found.is(Errno::NOENT) { reason } else { found }
                    })?;
                }
                other => other?,
            }
        }
        // `may_exist` is also true after an error. Report that error, for example that `path` is a file or outside of the view.
        view.open(path, links, OFlags::PATH | OFlags::DIRECTORY).map(drop)
    })
}

/// Whether a directory exists. Also true after an error other than `NotFound`, because then it is unknown.
fn may_exist(view: &View, path: &Path, links: Links) -> bool {
    match view.open(path, links, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(_) => true,
        Err(reason) => !reason.is(Errno::NOENT),
    }
}

fn make_directory(view: &View, path: &Path, links: Links, mode: Option<u32>) -> Result<(), ErrorKind> {
    let (dir, name) = match view.parent(path, links) {
        // `/` has no parent, and it exists.
        Err(reason) if reason.is(Errno::BUSY) => return Err(Errno::EXIST.into()),
        other => other?,
    };
    let bits = mode.map(permissions).transpose()?;
    rustix::fs::mkdirat(&dir, name, bits.unwrap_or(Mode::from_raw_mode(0o777)))?;
    if let Some(bits) = bits {
        // Set the mode again, because the umask removed bits. Do not follow a link that another process may have placed there in the
        // meantime.
        if let Ok(made) = open_at(&dir, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
            rustix::fs::fchmod(made, bits)?;
        }
    }
    Ok(())
}

/// Lists a directory in the order of the file system, with links followed. A link that leads nowhere or out of the view is left out. More
/// than `most` entries are an error.
pub fn read_directory(
    view: &View,
    path: &Path,
    links: Links,
    most: usize,
    cancel: &Cancel,
) -> Result<Vec<DirectoryEntry>> {
    attempt("list", path, || {
        let dir = view.open_directory(path, links)?;
        let mut entries = Vec::new();
        let mut count = 0;
        for_each_entry(dir.as_fd(), cancel, |name, file_type| {
            count += 1;
            if count > most {
                let advice = "list it in parts, with `details`";
                return Err(ErrorKind::TooMany { most, advice });
            }
            let Some(kind) = kind_of(dir.as_fd(), name, file_type) else { return Ok(()) };
            if let Some(target) = kind_followed(view, path, name, kind) {
                entries.push(DirectoryEntry::new(name.to_owned(), kind, Some(target)));
            }
            Ok(())
        })?;
        Ok(entries)
    })
}

/// The type of an entry. Some file systems do not return it with the name, so it needs a `stat`. `None` if the entry no longer exists.
pub(crate) fn kind_of(dir: BorrowedFd<'_>, name: &OsStr, listed: FileType) -> Option<FileKind> {
    match listed {
        FileType::Unknown => Stat::entry(dir, name).ok().map(|stat| stat.kind),
        known => Some(FileKind::of(known)),
    }
}

/// The type of the object that an entry leads to. `None` if it leads nowhere, or out of the view.
pub(crate) fn kind_followed(view: &View, path: &Path, name: &OsStr, kind: FileKind) -> Option<FileKind> {
    if kind != FileKind::Symlink {
        return Some(kind);
    }
    // Resolve through the view, because the link may lead anywhere.
    let target = view.locate(&path.join(name), Links::Follow).ok()?;
    Stat::of(target.as_fd()).ok().map(|stat| stat.kind)
}

/// The part of a sorted directory to list.
#[derive(Debug, Clone, Copy)]
pub struct ListRange<'a> {
    /// Only names after this one.
    pub after: Option<&'a OsStr>,
    /// Maximum number of entries.
    pub most: usize,
}

/// Lists a directory with metadata, sorted by the bytes of the names. Also returns whether there are entries after the range. Unfinished
/// files of this crate are left out.
pub fn read_details(
    view: &View,
    path: &Path,
    links: Links,
    range: ListRange<'_>,
    cancel: &Cancel,
) -> Result<(Vec<DetailedEntry>, bool)> {
    attempt("list", path, || {
        let dir = view.open_directory(path, links)?;
        // A heap of the smallest names so far, with the largest on top. Its memory does not grow with the directory.
        let ListRange { after, most } = range;
        let mut names = BinaryHeap::new();
        for_each_entry(dir.as_fd(), cancel, |name, _| {
            if after.is_none_or(|after| name > after) && !is_unfinished(name) {
                names.push(name.to_owned());
                if names.len() > most + 1 {
                    names.pop();
                }
            }
            Ok(())
        })?;
        let has_more = names.len() > most;
        if has_more {
            names.pop();
        }
        let mut details = Vec::with_capacity(names.len());
        for name in names.into_sorted_vec() {
            cancel.check()?;
            // Skip an entry that was removed in the meantime.
            if let Some(detail) = detailed_entry(view, path, dir.as_fd(), name) {
                details.push(detail);
            }
        }
        Ok((details, has_more))
    })
}

fn detailed_entry(view: &View, path: &Path, dir: BorrowedFd<'_>, name: OsString) -> Option<DetailedEntry> {
    let stat = Stat::entry(dir, &name).ok()?;
    let link_target = (stat.kind == FileKind::Symlink)
        .then(|| rustix::fs::readlinkat(dir, &name, Vec::new()).ok().map(std::ffi::CString::into_bytes))
        .flatten();
    let target = kind_followed(view, path, &name, stat.kind);
    Some(DetailedEntry { entry: DirectoryEntry::new(name, stat.kind, target), stat, link_target })
}

pub(crate) fn entry_names(dir: BorrowedFd<'_>, cancel: &Cancel) -> Result<Vec<OsString>, ErrorKind> {
    let mut found = Vec::new();
    for_each_entry(dir, cancel, |name, _| {
        found.push(name.to_owned());
        Ok(())
    })?;
    Ok(found)
}

/// Calls `visit` for each entry except `.` and `..`. A directory that is removed in the meantime has no further entries.
pub(crate) fn for_each_entry(
    dir: BorrowedFd<'_>,
    cancel: &Cancel,
    mut visit: impl FnMut(&OsStr, FileType) -> Result<(), ErrorKind>,
) -> Result<(), ErrorKind> {
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            cancel.check()?;
            visit(OsStr::from_bytes(name), entry.file_type())?;
        }
    }
    Ok(())
}
