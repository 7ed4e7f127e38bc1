//! Copying a file, a link or a tree on this machine.
//!
//! The last component of the source path is not followed. Below the source, everything is opened relative to the fd of the source, without
//! following links, so that the source cannot be swapped for something else. Destination paths are resolved through the view, one by one.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, SeekFrom},
    io::Errno,
};

use crate::{
    Cancel, ErrorKind, FileKind, Links, Result, Stat, View,
    directory::entry_names,
    error::ErrorContext,
    leftovers,
    read::require_regular,
    target::{LINK_END, WriteTarget, link_scratch_name},
    view::real_path,
    write::{Draft, WriteOptions},
};

/// Maximum bytes per copy step. Cancellation is checked between two steps.
const STEP: usize = 8 << 20;

/// Maximum number of entries of a tree: more than any source tree has. It ends the copy of a tree that grows as fast as it is copied.
const ENTRIES: usize = 10_000_000;

/// How often to retry replacing a name by a link, if others keep removing the temporary link.
const LINK_TRIES: u32 = 16;

/// Clients compare this text, so it must not change.
const NEEDS_RECURSIVE: &str = "fs/copy requires recursive: true when sourcePath is a directory";

/// Copies a file with its mode, a link as it is, or with `recursive` a directory. A destination directory may already exist.
pub fn copy(view: &View, source: &Path, destination: &Path, recursive: bool, cancel: &Cancel) -> Result<()> {
    let look = || -> Result<(OwnedFd, Stat), ErrorKind> {
        let fd = view.open(source, Links::Follow, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = Stat::of(fd.as_fd())?;
        Ok((fd, stat))
    };
    let (fd, stat) = look().context("copy", source)?;
    match stat.kind {
        FileKind::File => copy_file(view, reopen(view, source).context("copy", source)?, destination, cancel),
        FileKind::Symlink => copy_link(view, fd.as_fd(), destination),
        FileKind::Directory if !recursive => Err(ErrorKind::Literal(NEEDS_RECURSIVE).context("copy", source)),
        FileKind::Directory => {
            let top = view.open(source, Links::Follow, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
            let top = top.context("copy", source)?;
            refuse_itself(view, top.as_fd(), destination).context("copy", source)?;
            copy_tree(view, &top, source, destination, cancel)
        }
        other => Err(ErrorKind::NotRegular(other.noun()).context("copy", source)),
    }
}

fn reopen(view: &View, source: &Path) -> Result<File, ErrorKind> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    regular(view.open(source, Links::Follow, flags, Mode::empty())?)
}

fn regular(fd: OwnedFd) -> Result<File, ErrorKind> {
    require_regular(&Stat::of(fd.as_fd())?)?;
    crate::read::refuse_proc(fd.as_fd())?;
    Ok(File::from(fd))
}

/// Copies like any other write, so that no reader sees a partial copy.
fn copy_file(view: &View, from: File, destination: &Path, cancel: &Cancel) -> Result<()> {
    let stat = Stat::of(from.as_fd()).context("copy", destination)?;
    // The destination is the same file, perhaps under another name: nothing to do.
    if let Ok(there) = view.locate(destination, Links::Follow)
        && Stat::of(there.as_fd()).is_ok_and(|there| there.is_same_file(&stat))
    {
        return Ok(());
    }
    let mut draft = Draft::create(view, destination, Links::Follow, None)?;
    draft.fill(&from, cancel)?;
    let options = WriteOptions { mode: Some(stat.mode), ..WriteOptions::default() };
    draft.commit(None, &options, cancel).map(drop)
}

fn copy_link(view: &View, link: BorrowedFd<'_>, destination: &Path) -> Result<()> {
    let copy = || -> Result<(), ErrorKind> {
        let text = rustix::fs::readlinkat(link, "", Vec::new())?;
        let (dir, name) = view.parent(destination, Links::Follow)?;
        rustix::fs::symlinkat(&text, &dir, name)?;
        Ok(())
    };
    copy().context("copy a link to", destination)
}

/// Refuses to copy a directory into itself, which would never end.
fn refuse_itself(view: &View, source: BorrowedFd<'_>, destination: &Path) -> Result<(), ErrorKind> {
    let real_source = real_path(source)?;
    let mut rest = PathBuf::new();
    for ancestor in destination.ancestors() {
        match view.locate(ancestor, Links::Follow) {
            Ok(fd) => {
                if real_path(fd.as_fd())?.join(&rest).starts_with(&real_source) {
                    return Err(ErrorKind::InvalidInput("the destination is the source itself or lies below it"));
                }
                return Ok(());
            }
            Err(reason) if reason.is(Errno::NOENT) => {
                rest = ancestor.file_name().map_or_else(PathBuf::new, PathBuf::from).join(&rest);
            }
            Err(reason) => return Err(reason),
        }
    }
    Ok(())
}

fn copy_tree(view: &View, top: &OwnedFd, source: &Path, destination: &Path, cancel: &Cancel) -> Result<()> {
    crate::directory::create_directory(view, destination, Links::Follow, true, None)?;
    // Remember the destination, in case the tree is moved into itself while it is copied.
    let made =
        view.locate(destination, Links::Follow).and_then(|fd| Stat::of(fd.as_fd())).context("copy", destination)?;
    let mut waiting = VecDeque::from([PathBuf::from(".")]);
    let mut entries = 0;
    while let Some(relative) = waiting.pop_front() {
        let from = source.join(&relative);
        let dir = below(top, &relative, OFlags::RDONLY | OFlags::DIRECTORY).context("copy", &from)?;
        view.check_guard(dir.as_fd()).context("copy", &from)?;
        let stat = Stat::of(dir.as_fd()).context("copy", &from)?;
        if stat.is_same_file(&made) {
            continue;
        }
        for name in entry_names(dir.as_fd(), cancel).context("copy", &from)? {
            cancel.check().context("copy", &from)?;
            entries += 1;
            if entries > ENTRIES {
                let advice = "copy it in parts";
                return Err(ErrorKind::TooMany { most: ENTRIES, advice }.context("copy", source));
            }
            let relative = relative.join(&name);
            if copy_entry(view, &dir, &source.join(&relative), &destination.join(&relative), cancel)? {
                waiting.push_back(relative);
            }
        }
    }
    Ok(())
}

/// Copies the last name of `from`, an entry of `dir`. Returns true for a directory, whose own entries the caller must still copy.
fn copy_entry(view: &View, dir: &OwnedFd, from: &Path, to: &Path, cancel: &Cancel) -> Result<bool> {
    let name = from.file_name().unwrap_or_default();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        // The entry was removed in the meantime.
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(ErrorKind::from(errno).context("copy", from)),
    };
    view.check_guard(fd.as_fd()).context("copy", from)?;
    match Stat::of(fd.as_fd()).context("copy", from)?.kind {
        FileKind::Directory => {
            crate::directory::create_directory(view, to, Links::Follow, true, None)?;
            Ok(true)
        }
        FileKind::Symlink => copy_link(view, fd.as_fd(), to).map(|()| false),
        FileKind::File => {
            let open = || -> Result<File, ErrorKind> {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let file = regular(rustix::fs::openat(dir, name, flags, Mode::empty())?)?;
                view.check_guard(file.as_fd())?;
                Ok(file)
            };
            copy_file(view, open().context("copy", from)?, to, cancel).map(|()| false)
        }
        // They have no content to copy.
        FileKind::Fifo | FileKind::Socket | FileKind::Device => Ok(false),
    }
}

fn below(top: &OwnedFd, relative: &Path, flags: OFlags) -> Result<OwnedFd, ErrorKind> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(top, relative, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Copies the current content of a file and preserves its holes. The target must be empty.
pub(crate) fn copy_bytes(from: &File, to: &File, cancel: &Cancel) -> Result<(), ErrorKind> {
    let size = Stat::of(from.as_fd())?.size;
    let mut at = 0;
    while at < size {
        cancel.check()?;
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = match rustix::fs::seek(from, SeekFrom::Hole(at)) {
            Ok(hole) => hole.min(size),
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => size,
            Err(errno) => return Err(errno.into()),
        };
        let copied = copy_some(from, to, at, end.saturating_sub(at))?;
        // The file was truncated in the meantime. All that is left of it is copied.
        if copied == 0 {
            return Ok(());
        }
        at += copied;
    }
    if Stat::of(to.as_fd())?.size < size {
        to.set_len(size)?;
    }
    Ok(())
}

/// Copies some bytes, in the kernel if possible.
fn copy_some(from: &File, to: &File, at: u64, len: u64) -> Result<u64, ErrorKind> {
    use std::os::unix::fs::FileExt as _;
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(STEP);
    let mut in_at = at;
    let mut out_at = at;
    match rustix::fs::copy_file_range(from, Some(&mut in_at), to, Some(&mut out_at), len) {
        Ok(copied) if copied > 0 => return Ok(copied as u64),
        Ok(_) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF | Errno::IO) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut buffer = vec![0; len.min(1 << 20)];
    let read = from.read_at(&mut buffer, at)?;
    to.write_all_at(&buffer[..read], at)?;
    Ok(read as u64)
}

impl Draft {
    /// Writes the content of another file into the draft.
    fn fill(&self, from: &File, cancel: &Cancel) -> Result<()> {
        self.file().and_then(|file| copy_bytes(from, file, cancel)).context("copy to", self.path())
    }
}

/// Creates a symbolic link to `target`, which need not exist. With `replace`, an existing file or link of this name is replaced atomically.
pub fn create_symlink(view: &View, path: &Path, links: Links, target: &[u8], replace: bool) -> Result<()> {
    let create = || -> Result<(), ErrorKind> {
        if target.is_empty() || target.contains(&0) {
            return Err(ErrorKind::InvalidInput("a link leads somewhere, without a NUL byte"));
        }
        let target = OsStr::from_bytes(target);
        let (dir, name) = view.parent(path, links)?;
        match rustix::fs::symlinkat(target, &dir, name) {
            Err(Errno::EXIST) if replace => {}
            other => return Ok(other?),
        }
        view.refuse_protected(dir.as_fd(), name)?;
        replace_by_link(dir.as_fd(), name, target)
    };
    create().context("link", path)
}

/// Replaces a name by a link. A link cannot be locked, so a cleanup or another writer of the same name may remove the temporary link before
/// the rename. Then the link is created again.
fn replace_by_link(dir: BorrowedFd<'_>, name: &OsStr, target: &OsStr) -> Result<(), ErrorKind> {
    let mut scratch = link_scratch_name(name);
    for _ in 0..LINK_TRIES {
        match rustix::fs::symlinkat(target, dir, &scratch) {
            Err(Errno::EXIST) => {
                if !leftovers::remove_if_abandoned(dir, &scratch) {
                    scratch = WriteTarget::random_name(LINK_END)?;
                }
                continue;
            }
            other => other?,
        }
        match rustix::fs::renameat(dir, &scratch, dir, name) {
            Err(Errno::NOENT) => {}
            Err(errno) => {
                leftovers::remove_if_abandoned(dir, &scratch);
                return Err(errno.into());
            }
            Ok(()) => return Ok(()),
        }
    }
    Err(ErrorKind::Busy("others replace it without an end"))
}
