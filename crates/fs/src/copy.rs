//! Copying a file, a link or a tree on this machine.
//!
//! If the source path ends with a link, the link itself is copied. Below the source, everything is opened relative to the fd of the source,
//! without following links, so that the source cannot be swapped for something else. The view resolves the destination path of each entry
//! anew.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::FileExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::{
    Cancel, ErrorKind, FileKind, Links, Result, Stat, View,
    directory::{create_directory, entry_names},
    error::{ErrorContext, attempt},
    leftovers,
    read::{next_data, next_hole, read_at, regular_file},
    target::{LINK_END, WriteTarget, link_scratch_name},
    view::{open_at, real_path},
    write::{Draft, WriteOptions},
};

/// Maximum bytes per copy step. Cancellation is checked between two steps.
const STEP: usize = 8 << 20;

/// Maximum number of entries of a tree: more than any real tree has. It ends the copy of a tree that grows as fast as it is copied.
const ENTRIES: usize = 10_000_000;

/// How often to retry replacing a name by a link, if other processes keep removing the temporary link.
const LINK_TRIES: u32 = 16;

/// Clients compare this text, so it must not change.
const NEEDS_RECURSIVE: &str = "fs/copy requires recursive: true when sourcePath is a directory";

/// Copies a file with its mode, a link as it is, or with `recursive` a directory. A destination directory may already exist.
/// FIFOs, sockets and devices in a directory are skipped.
pub fn copy(view: &View, source: &Path, destination: &Path, recursive: bool, cancel: &Cancel) -> Result<()> {
    // Find out the type with an O_PATH fd, because opening a device can have side effects. Such an fd cannot be read, so a file or a
    // directory is then opened by its path, and its type is checked again.
    let (fd, kind) = attempt("copy", source, || {
        let fd = view.open(source, Links::Follow, OFlags::PATH | OFlags::NOFOLLOW)?;
        let kind = Stat::of(fd.as_fd())?.kind;
        Ok((fd, kind))
    })?;
    match kind {
        FileKind::File => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
            let opened = view.open(source, Links::Follow, flags).and_then(regular_file);
            let (from, stat) = opened.context("copy", source)?;
            copy_file(view, &from, &stat, destination, cancel)
        }
        FileKind::Symlink => copy_link(view, fd.as_fd(), destination),
        FileKind::Directory if !recursive => Err(ErrorKind::Literal(NEEDS_RECURSIVE)).context("copy", source),
        FileKind::Directory => {
            let top = view.open_directory(source, Links::Follow).context("copy", source)?;
            refuse_itself(view, top.as_fd(), destination).context("copy", source)?;
            copy_tree(view, &top, source, destination, cancel)
        }
        other => Err(ErrorKind::NotRegular(other.noun())).context("copy", source),
    }
}

/// Copies into a draft and commits it, so that no reader sees a partial copy.
fn copy_file(view: &View, from: &File, stat: &Stat, destination: &Path, cancel: &Cancel) -> Result<()> {
    // The destination is the same file, perhaps under another name: nothing to do.
    if let Ok(there) = view.locate(destination, Links::Follow)
        && Stat::of(there.as_fd()).is_ok_and(|there| there.is_same_file(stat))
    {
        return Ok(());
    }
    let mut draft = Draft::create(view, destination, Links::Follow, None)?;
    draft.file().and_then(|file| copy_bytes(from, file, stat.size, cancel)).context("copy to", destination)?;
    let options = WriteOptions { mode: Some(stat.mode), ..WriteOptions::default() };
    draft.commit(None, &options, cancel).map(drop)
}

fn copy_link(view: &View, link: BorrowedFd<'_>, destination: &Path) -> Result<()> {
    attempt("copy a link to", destination, || {
        let text = rustix::fs::readlinkat(link, "", Vec::new())?;
        let (dir, name) = view.parent(destination, Links::Follow)?;
        Ok(rustix::fs::symlinkat(&text, &dir, name)?)
    })
}

/// Refuses to copy a directory into itself, which would never end. The destination may not exist yet, so its real path is that of its
/// deepest existing ancestor plus the missing components.
fn refuse_itself(view: &View, source: BorrowedFd<'_>, destination: &Path) -> Result<(), ErrorKind> {
    let real_source = real_path(source)?;
    let mut rest = PathBuf::new();
    for ancestor in destination.ancestors() {
        match view.locate(ancestor, Links::Follow) {
            Ok(fd) => {
                let is_inside = real_path(fd.as_fd())?.join(&rest).starts_with(&real_source);
                let reason = ErrorKind::InvalidInput("the destination is the source itself or lies below it");
                return if is_inside { Err(reason) } else { Ok(()) };
            }
            Err(reason) if reason.is(Errno::NOENT) => {
                rest = Path::new(ancestor.file_name().unwrap_or_default()).join(&rest);
            }
            Err(reason) => return Err(reason),
        }
    }
    Ok(())
}

fn copy_tree(view: &View, top: &OwnedFd, source: &Path, destination: &Path, cancel: &Cancel) -> Result<()> {
    create_directory(view, destination, Links::Follow, true, None)?;
    // Another process may move the destination into the source during the copy. Remember its identity, so that it is not copied into
    // itself.
    let made =
        view.locate(destination, Links::Follow).and_then(|fd| Stat::of(fd.as_fd())).context("copy", destination)?;
    // `.` for the source itself, because `openat2` refuses an empty path.
    let mut waiting = VecDeque::from([PathBuf::from(".")]);
    let mut entries = 0;
    while let Some(relative) = waiting.pop_front() {
        let from = source.join(&relative);
        let (dir, names) = attempt("copy", &from, || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            let dir = rustix::fs::openat2(top, &relative, flags, Mode::empty(), resolve)?;
            view.check_guard(dir.as_fd())?;
            let is_made = Stat::of(dir.as_fd())?.is_same_file(&made);
            let names = if is_made { Vec::new() } else { entry_names(dir.as_fd(), cancel)? };
            Ok((dir, names))
        })?;
        for name in names {
            cancel.check().context("copy", &from)?;
            entries += 1;
            if entries > ENTRIES {
                let advice = "copy it in parts";
                return Err(ErrorKind::TooMany { most: ENTRIES, advice }).context("copy", source);
            }
            let relative = relative.join(&name);
            if copy_entry(view, &dir, &source.join(&relative), &destination.join(&relative), cancel)? {
                waiting.push_back(relative);
            }
        }
    }
    Ok(())
}

/// Copies the entry `from`, whose parent directory is `dir`. Returns true for a directory, whose own entries the caller must still copy.
fn copy_entry(view: &View, dir: &OwnedFd, from: &Path, to: &Path, cancel: &Cancel) -> Result<bool> {
    let name = from.file_name().unwrap_or_default();
    let fd = match open_at(dir, name, OFlags::PATH | OFlags::NOFOLLOW) {
        // The entry was removed in the meantime.
        Err(Errno::NOENT) => return Ok(false),
        other => other.context("copy", from)?,
    };
    view.check_guard(fd.as_fd()).context("copy", from)?;
    match Stat::of(fd.as_fd()).context("copy", from)?.kind {
        FileKind::Directory => create_directory(view, to, Links::Follow, true, None).map(|()| true),
        FileKind::Symlink => copy_link(view, fd.as_fd(), to).map(|()| false),
        FileKind::File => {
            let (file, stat) = attempt("copy", from, || {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
                let (file, stat) = regular_file(open_at(dir, name, flags)?)?;
                view.check_guard(file.as_fd())?;
                Ok((file, stat))
            })?;
            copy_file(view, &file, &stat, to, cancel).map(|()| false)
        }
        // They have no content to copy.
        FileKind::Fifo | FileKind::Socket | FileKind::Device => Ok(false),
    }
}

/// Copies the first `size` bytes of a file and preserves its holes. The target must be empty.
fn copy_bytes(from: &File, to: &File, size: u64, cancel: &Cancel) -> Result<(), ErrorKind> {
    let mut at = 0;
    while at < size {
        cancel.check()?;
        // Without data before `size`, only a hole is left. A file that has grown since `size` was read may have data behind it.
        let Some(data) = next_data(from, at)?.filter(|data| *data < size) else { break };
        let end = next_hole(from, data, size)?;
        let copied = copy_some(from, to, data, end.saturating_sub(data))?;
        // The file was truncated in the meantime, and the rest of it has been copied.
        if copied == 0 {
            return Ok(());
        }
        at = data + copied;
    }
    // A hole at the end was skipped.
    if Stat::of(to.as_fd())?.size < size {
        to.set_len(size)?;
    }
    Ok(())
}

/// Copies some bytes, in the kernel if possible.
fn copy_some(from: &File, to: &File, at: u64, len: u64) -> Result<u64, ErrorKind> {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(STEP);
    let mut in_at = at;
    let mut out_at = at;
    match rustix::fs::copy_file_range(from, Some(&mut in_at), to, Some(&mut out_at), len) {
        Ok(copied) if copied > 0 => return Ok(copied as u64),
        // Some kernels and file systems copy nothing or return one of these errors for a file that can be read. Read it then. If the error
        // is real, reading or writing reports it.
        Ok(_) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF | Errno::IO) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut buffer = vec![0; len.min(1 << 20)];
    let read = read_at(from, &mut buffer, at)?;
    to.write_all_at(&buffer[..read], at)?;
    Ok(read as u64)
}

/// Creates a symbolic link to `target`, which need not exist. With `replace`, an existing file or link of this name is replaced atomically.
pub fn create_symlink(view: &View, path: &Path, links: Links, target: &[u8], replace: bool) -> Result<()> {
    attempt("link", path, || {
        if target.is_empty() || target.contains(&0) {
            return Err(ErrorKind::InvalidInput("the target of a link must not be empty or contain a NUL byte"));
        }
        let target = OsStr::from_bytes(target);
        let (dir, name) = view.parent(path, links)?;
        match rustix::fs::symlinkat(target, &dir, name) {
            Err(Errno::EXIST) if replace => {}
            other => return Ok(other?),
        }
        view.refuse_protected(dir.as_fd(), name)?;
        replace_by_link(dir.as_fd(), name, target)
    })
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
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(errno) => {
                leftovers::remove_if_abandoned(dir, &scratch);
                return Err(errno.into());
            }
        }
    }
    Err(ErrorKind::Busy("other processes keep removing its temporary link; retry"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_at_the_end_is_copied_even_if_the_file_has_grown_behind_it() {
        let dir = tempfile::tempdir().expect("create a directory");
        let create = |name: &str| File::create_new(dir.path().join(name)).expect("create a file");
        let (from, to) = (create("from"), create("to"));
        from.write_all_at(b"later", 2 << 20).expect("write");
        let from = File::open(dir.path().join("from")).expect("open");
        copy_bytes(&from, &to, 1 << 20, &Cancel::new()).expect("copy");
        assert_eq!(to.metadata().expect("stat").len(), 1 << 20);
    }
}
