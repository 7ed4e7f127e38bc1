//! Removing a file, a link, or a directory with its content.
//!
//! A tree is removed from the inside, with a fixed number of open fds. Each directory is opened from its parent without following links, and
//! left through `..`, which must lead back to that parent. So a tree of any depth can be removed. If a directory is swapped for a link in
//! the meantime, only the link is removed.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, OFlags, unlinkat},
    io::Errno,
};

use crate::{
    Cancel, ErrorKind, FileKind, Links, Result, Stat, View,
    directory::{for_each_entry, kind_of},
    error::ErrorContext,
    view::open_at,
};

/// How often to list a directory again if other processes add entries while it is emptied.
const ROUNDS: usize = 64;

/// Number of names of one directory that are held in memory at a time.
const BATCH: usize = 4096;

/// How to remove something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoveOptions {
    /// Remove a directory with everything in it.
    pub recursive: bool,
    /// A path that does not exist is not an error.
    pub force: bool,
}

/// Removes the object that a path names. If the path ends with a link, the link itself is removed.
pub fn remove(view: &View, path: &Path, links: Links, options: RemoveOptions, cancel: &Cancel) -> Result<()> {
    let remove = || -> Result<(), ErrorKind> {
        if options.recursive && links == Links::Refuse {
            return Err(ErrorKind::Unsupported(
                "without following links only single files and empty directories are removed",
            ));
        }
        let (dir, name) = view.parent(path, links)?;
        let stat = Stat::entry(dir.as_fd(), name)?;
        if links == Links::Refuse && stat.kind == FileKind::Symlink {
            return Err(ErrorKind::Symlink);
        }
        view.refuse_protected(dir.as_fd(), name)?;
        match stat.kind {
            FileKind::Directory if options.recursive => remove_tree(view, dir, name.to_owned(), cancel),
            FileKind::Directory => Ok(unlinkat(&dir, name, AtFlags::REMOVEDIR)?),
            _ => Ok(unlinkat(&dir, name, AtFlags::empty())?),
        }
    };
    match remove() {
        Err(reason) if options.force && reason.is(Errno::NOENT) => Ok(()),
        other => other.context("remove", path),
    }
}

/// A directory that was entered: its name, and the metadata of its parent.
struct RemoveLevel {
    name: OsString,
    parent: Stat,
    /// How often the directory was listed since a directory below it was last entered.
    rounds: usize,
}

fn remove_tree(view: &View, parent: OwnedFd, name: OsString, cancel: &Cancel) -> Result<(), ErrorKind> {
    let mut levels = vec![RemoveLevel { name: name.clone(), parent: Stat::of(parent.as_fd())?, rounds: 0 }];
    let mut dir = open_child(&parent, &name)?;
    view.check_guard(dir.as_fd())?;
    while let Some(level) = levels.last_mut() {
        cancel.check()?;
        level.rounds += 1;
        match remove_files(view, &dir, cancel)? {
            Some(below) => {
                let parent = Stat::of(dir.as_fd())?;
                view.refuse_protected(dir.as_fd(), &below)?;
                match open_child(&dir, &below) {
                    Ok(entered) => {
                        // Check the opened fd: the name may refer to another directory by now.
                        view.check_guard(entered.as_fd())?;
                        dir = entered;
                        level.rounds = 0;
                        levels.push(RemoveLevel { name: below, parent, rounds: 0 });
                    }
                    // The entry is now a file or a link, or gone. The next round handles it.
                    Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) if level.rounds < ROUNDS => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            None => {
                let above = open_parent(&dir, &level.parent)?;
                match unlinkat(&above, &level.name, AtFlags::REMOVEDIR) {
                    // Other processes added entries.
                    Err(Errno::NOTEMPTY | Errno::EXIST) if level.rounds < ROUNDS => continue,
                    // Another process removed the directory. For the top one, the caller decides whether that is an error.
                    Err(Errno::NOENT) if levels.len() > 1 => {}
                    other => other?,
                }
                dir = above;
                levels.pop();
            }
        }
    }
    Ok(())
}

fn open_child(parent: &OwnedFd, name: &OsString) -> Result<OwnedFd, Errno> {
    open_at(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)
}

/// Opens the parent directory again. Returns an error if the directory was moved elsewhere in the meantime.
fn open_parent(dir: &OwnedFd, parent: &Stat) -> Result<OwnedFd, ErrorKind> {
    let above = open_at(dir, "..", OFlags::PATH | OFlags::DIRECTORY)?;
    if !Stat::of(above.as_fd())?.is_same_file(parent) {
        return Err(io::Error::other("a directory of the tree was moved away while it was removed").into());
    }
    // An `O_PATH` fd cannot be listed, and the next round lists the directory.
    match open_at(&above, ".", OFlags::RDONLY | OFlags::DIRECTORY) {
        // Only the parent of the whole tree may be unreadable, and it is never listed.
        Err(Errno::ACCESS) => Ok(above),
        other => Ok(other?),
    }
}

/// Removes everything except directories. Returns one of the directories that are left, if any.
fn remove_files(view: &View, dir: &OwnedFd, cancel: &Cancel) -> Result<Option<OsString>, ErrorKind> {
    loop {
        let mut others = Vec::new();
        let mut below = None;
        rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
        for_each_entry(dir.as_fd(), cancel, |name, file_type| {
            if kind_of(dir.as_fd(), name, file_type) == Some(FileKind::Directory) {
                below = Some(name.to_owned());
            } else if others.len() < BATCH {
                others.push(name.to_owned());
            }
            Ok(())
        })?;
        let is_last = others.len() < BATCH;
        for name in others {
            cancel.check()?;
            view.refuse_protected(dir.as_fd(), &name)?;
            match unlinkat(dir, &name, AtFlags::empty()) {
                Err(Errno::NOENT) => {}
                // The entry is a directory by now.
                Err(Errno::ISDIR) => below = Some(name),
                other => other?,
            }
        }
        if is_last {
            return Ok(below);
        }
    }
}
