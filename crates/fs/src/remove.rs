//! Removing a file, a link, or a directory with all that is in it.
//!
//! A tree is taken down from inside, with one descriptor at a time: each directory is opened from its parent without following a
//! link, and left through `..`, which must lead back to where it came from. So a tree of any depth is removed, and whoever swaps a
//! directory for a link meanwhile loses the link.

use std::{
    ffi::OsString,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};

use crate::{
    Cancel, Links, Result, Stat, Trouble, Type, View,
    directory::{each, unlink},
    error::On,
};

/// How often a directory is listed again that others fill while it is emptied.
const ROUNDS: usize = 64;

/// Names that are held of one directory at a time.
const BATCH: usize = 4096;

/// Removes what a path names; a link itself. With `force` what is not there is no mistake.
pub fn remove(view: &View, path: &Path, links: Links, (recursive, force): (bool, bool), cancel: &Cancel) -> Result<()> {
    let remove = || -> Result<(), Trouble> {
        if recursive && links == Links::Refuse {
            return Err(Trouble::Unsupported(
                "without following links only single files and empty directories are removed",
            ));
        }
        let (dir, name) = view.parent(path, links)?;
        let stat = Stat::entry(dir.as_fd(), name)?;
        if links == Links::Refuse && stat.kind == Type::Symlink {
            return Err(Trouble::Symlink);
        }
        view.refuse_kept(dir.as_fd(), name)?;
        match stat.kind {
            Type::Directory if recursive => remove_tree(view, dir, name.to_owned(), cancel),
            kind => Ok(unlink(dir.as_fd(), name, kind == Type::Directory)?),
        }
    };
    match remove() {
        Err(trouble) if force && trouble.is(Errno::NOENT) => Ok(()),
        other => other.on("remove", path),
    }
}

/// A directory that was entered: its name in its parent, and who that parent is.
struct Level {
    name: OsString,
    parent: Stat,
    rounds: usize,
}

fn remove_tree(view: &View, parent: OwnedFd, name: OsString, cancel: &Cancel) -> Result<(), Trouble> {
    let mut levels = vec![Level { name: name.clone(), parent: Stat::of(parent.as_fd())?, rounds: 0 }];
    let mut dir = enter(&parent, &name)?;
    view.admit(dir.as_fd())?;
    while let Some(level) = levels.last_mut() {
        cancel.check()?;
        level.rounds += 1;
        match empty(view, &dir, cancel)? {
            Some(below) => {
                let parent = Stat::of(dir.as_fd())?;
                view.refuse_kept(dir.as_fd(), &below)?;
                match enter(&dir, &below) {
                    Ok(entered) => {
                        // By the descriptor: the name may mean another directory than a moment ago.
                        view.admit(entered.as_fd())?;
                        dir = entered;
                        level.rounds = 0;
                        levels.push(Level { name: below, parent, rounds: 0 });
                    }
                    // It is a file or a link by now, or gone; the next round sees it as it is.
                    Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) if level.rounds < ROUNDS => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            None => {
                let above = up(&dir, &level.parent)?;
                match unlink(above.as_fd(), &level.name, true) {
                    // Filled again meanwhile.
                    Err(Errno::NOTEMPTY | Errno::EXIST) if level.rounds < ROUNDS => continue,
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

fn enter(parent: &OwnedFd, name: &OsString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Back to where it was entered from; a directory that was moved elsewhere is not followed there.
fn up(dir: &OwnedFd, parent: &Stat) -> Result<OwnedFd, Trouble> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = rustix::fs::openat(dir, "..", flags, Mode::empty())?;
    if Stat::of(above.as_fd())?.is_same_file(parent) {
        // With `PATH` it cannot be listed, which the next round does.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(&above, ".", flags, Mode::empty()) {
            Ok(listed) => Ok(listed),
            // The parent of the tree itself is never listed.
            Err(Errno::ACCESS) => Ok(above),
            Err(errno) => Err(errno.into()),
        }
    } else {
        Err(Trouble::Os(std::io::Error::other("a directory of the tree was moved away while it was removed")))
    }
}

/// Removes all that is no directory; returns a directory that is still in it.
fn empty(view: &View, dir: &OwnedFd, cancel: &Cancel) -> Result<Option<OsString>, Trouble> {
    loop {
        let (mut others, mut below) = (Vec::new(), None);
        rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
        each(dir.as_fd(), cancel, |name, file_type| {
            let is_directory = match file_type {
                FileType::Unknown => Stat::entry(dir.as_fd(), name).is_ok_and(|stat| stat.kind == Type::Directory),
                known => known == FileType::Directory,
            };
            if is_directory {
                below = Some(name.to_owned());
            } else if others.len() < BATCH {
                others.push(name.to_owned());
            }
            Ok(())
        })?;
        let is_last = others.len() < BATCH;
        for name in others {
            cancel.check()?;
            view.refuse_kept(dir.as_fd(), &name)?;
            match unlink(dir.as_fd(), &name, false) {
                Ok(()) | Err(Errno::NOENT) => {}
                // A directory by now.
                Err(Errno::ISDIR) => below = Some(name),
                Err(errno) => return Err(errno.into()),
            }
        }
        if is_last {
            return Ok(below);
        }
    }
}
