//! Directories: making them, and listing what is in them.

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
    fs::{AtFlags, FileType, Mode, OFlags, RawDir},
    io::Errno,
};

use crate::{
    Cancel, Links, Result, Stat, Trouble, Type, View, error::On, metadata::permissions, target::is_unfinished,
};

/// What the kernel hands over at once.
const BUFFER_BYTES: usize = 64 << 10;

/// One entry of a directory, links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: OsString,
    /// A directory, or a link to one.
    pub is_directory: bool,
    /// A regular file, or a link to one.
    pub is_file: bool,
    /// A symbolic link itself.
    pub is_symlink: bool,
}

/// The same with all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// The entry.
    pub entry: Entry,
    /// What it is itself.
    pub stat: Stat,
    /// Where it leads, if it is a link.
    pub link_target: Option<Vec<u8>>,
}

/// Makes a directory. With `recursive` its parents too, and one that is there is no mistake.
pub fn create_directory(view: &View, path: &Path, links: Links, (recursive, mode): (bool, Option<u32>)) -> Result<()> {
    let create = || -> Result<(), Trouble> {
        if !recursive {
            return make(view, path, links, mode);
        }
        // From the top: a parent that is there costs a look, one that another makes meanwhile nothing.
        let missing: Vec<&Path> = path.ancestors().take_while(|path| !is_directory(view, path, links)).collect();
        for ancestor in missing.into_iter().rev() {
            let mode = mode.filter(|_| ancestor == path);
            match make(view, ancestor, links, mode) {
                Err(trouble) if trouble.is(Errno::EXIST) => {
                    view.open(ancestor, links, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map_err(|found| {
                        // A dangling link has the name, and nothing behind it.
                        if found.is(Errno::NOENT) { trouble } else { found }
                    })?;
                }
                other => other?,
            }
        }
        // Under a view that hides the parents all were missing; what counts is the directory itself.
        view.open(path, links, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map(drop)
    };
    create().on("create the directory", path)
}

fn is_directory(view: &View, path: &Path, links: Links) -> bool {
    match view.open(path, links, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
        Ok(_) => true,
        // Only what is certainly not there is made.
        Err(trouble) => !trouble.is(Errno::NOENT),
    }
}

fn make(view: &View, path: &Path, links: Links, mode: Option<u32>) -> Result<(), Trouble> {
    let (dir, name) = match view.parent(path, links) {
        Ok(found) => found,
        // `/` has no parent, and it is there.
        Err(trouble) if trouble.is(Errno::BUSY) => return Err(Errno::EXIST.into()),
        Err(trouble) => return Err(trouble),
    };
    let bits = mode.map(permissions).transpose()?;
    rustix::fs::mkdirat(&dir, name, bits.unwrap_or(Mode::from_raw_mode(0o777)))?;
    if let Some(bits) = bits {
        // The umask took some away. Never through a link: whoever put one there in between gets nothing changed.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(made) = rustix::fs::openat(&dir, name, flags, Mode::empty()) {
            rustix::fs::fchmod(made, bits)?;
        }
    }
    Ok(())
}

/// Lists a directory in the order of the system, links followed; what leads nowhere is left out. More than `most` entries are an error.
pub fn read_directory(view: &View, path: &Path, links: Links, most: usize, cancel: &Cancel) -> Result<Vec<Entry>> {
    let read = || -> Result<Vec<Entry>, Trouble> {
        let dir = view.open(path, links, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut entries = Vec::new();
        let mut count = 0;
        each(dir.as_fd(), cancel, |name, file_type| {
            count += 1;
            if count > most {
                let advice = "ask for it with `details`, in parts";
                return Err(Trouble::TooMany { most, advice });
            }
            if let Some(kind) = kind_followed(view, (path, dir.as_fd()), name, file_type) {
                let (is_directory, is_file) = (kind == Type::Directory, kind == Type::File);
                let is_symlink = is_link(dir.as_fd(), name, file_type);
                entries.push(Entry { name: name.to_owned(), is_directory, is_file, is_symlink });
            }
            Ok(())
        })?;
        Ok(entries)
    };
    read().on("list", path)
}

/// What an entry leads to; `None` where it leads nowhere that may be seen.
pub(crate) fn kind_followed(
    view: &View,
    (path, dir): (&Path, BorrowedFd<'_>),
    name: &OsStr,
    file_type: FileType,
) -> Option<Type> {
    let kind = match file_type {
        FileType::Unknown => Stat::entry(dir, name).ok()?.kind,
        known => Type::of(known),
    };
    if kind != Type::Symlink {
        return Some(kind);
    }
    // Through the view, since the link may lead anywhere.
    let target = view.locate(&path.join(name), Links::Follow).ok()?;
    Stat::of(target.as_fd()).ok().map(|stat| stat.kind)
}

/// Whether an entry is a symbolic link itself, whatever it leads to.
pub(crate) fn is_link(dir: BorrowedFd<'_>, name: &OsStr, file_type: FileType) -> bool {
    match file_type {
        FileType::Unknown => Stat::entry(dir, name).is_ok_and(|stat| stat.kind == Type::Symlink),
        known => known == FileType::Symlink,
    }
}

/// Lists a directory with all that is known of its entries, sorted by the bytes of their names: those after `after`, `most` of them. The
/// flag says whether there are more. What this crate has unfinished there is left out.
pub fn read_details(
    view: &View,
    path: &Path,
    links: Links,
    (after, most): (Option<&OsStr>, usize),
    cancel: &Cancel,
) -> Result<(Vec<Detail>, bool)> {
    let read = || -> Result<(Vec<Detail>, bool), Trouble> {
        let dir = view.open(path, links, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        // The smallest names so far, the largest of them on top: memory does not grow with the directory.
        let mut names = BinaryHeap::new();
        each(dir.as_fd(), cancel, |name, _| {
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
            // One that is gone meanwhile is as if it had never been there.
            if let Some(detail) = detail(view, (path, dir.as_fd()), name) {
                details.push(detail);
            }
        }
        Ok((details, has_more))
    };
    read().on("list", path)
}

fn detail(view: &View, (path, dir): (&Path, BorrowedFd<'_>), name: OsString) -> Option<Detail> {
    let stat = Stat::entry(dir, &name).ok()?;
    let link_target = (stat.kind == Type::Symlink)
        .then(|| rustix::fs::readlinkat(dir, &name, Vec::new()).ok().map(std::ffi::CString::into_bytes))
        .flatten();
    let kind = match stat.kind {
        Type::Symlink => kind_followed(view, (path, dir), &name, FileType::Symlink),
        kind => Some(kind),
    };
    let (is_directory, is_file) = (kind == Some(Type::Directory), kind == Some(Type::File));
    let is_symlink = stat.kind == Type::Symlink;
    Some(Detail { entry: Entry { name, is_directory, is_file, is_symlink }, stat, link_target })
}

/// The names in a directory.
pub(crate) fn names(dir: BorrowedFd<'_>, cancel: &Cancel) -> Result<Vec<OsString>, Trouble> {
    let mut found = Vec::new();
    each(dir, cancel, |name, _| {
        found.push(name.to_owned());
        Ok(())
    })?;
    Ok(found)
}

/// Tells of each entry, without `.` and `..`. A directory that is removed meanwhile has no more entries.
pub(crate) fn each(
    dir: BorrowedFd<'_>,
    cancel: &Cancel,
    mut tell: impl FnMut(&OsStr, FileType) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
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
            tell(OsStr::from_bytes(name), entry.file_type())?;
        }
    }
    Ok(())
}

/// Removes the name of a file, or an empty directory.
pub(crate) fn unlink(dir: BorrowedFd<'_>, name: &OsStr, is_directory: bool) -> Result<(), Errno> {
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    rustix::fs::unlinkat(dir, name, flags)
}
