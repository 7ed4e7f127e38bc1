//! Cleans up temporary files that a killed writer left under a hidden name. A lock shows whether a writer is still active.
//!
//! ```text
//! writer:   lock the file ─▶ link it under a hidden name ─▶ rename ─▶ close
//! sweep:    open ─▶ lock, or skip the file ─▶ does the name still lead to it? ─▶ unlink
//! ```
//!
//! If the writer is killed, the kernel releases its lock.
//! A file is removed only if it has one of the names that this crate generates, belongs to this user and is not locked. A symbolic link
//! cannot be locked, so a link may be removed while its writer is active. The writer of a link must expect this and create the link again.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, FlockOperation, OFlags},
    io::Errno,
};

use crate::{
    Cancel, ErrorKind, FileKind, Links, Result, Stat, View, directory::for_each_entry, error::attempt,
    metadata::file_uid, target::scratch_kind, view::open_at,
};

/// Locks a file to show that its writer is active. Returns false if the lock is held through another fd.
pub(crate) fn lock_as_writer(file: &File) -> bool {
    // If the file system has no locks, `remove_if_abandoned` cannot lock a file either, so it never treats one as abandoned.
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
}

/// Removes a hidden name that no writer holds. The caller knows that this crate generated the name. Returns whether the name is free now.
pub(crate) fn remove_if_abandoned(dir: BorrowedFd<'_>, name: &OsStr) -> bool {
    try_remove(dir, name).unwrap_or_else(|reason| reason.is(Errno::NOENT))
}

fn try_remove(dir: BorrowedFd<'_>, name: &OsStr) -> Result<bool, ErrorKind> {
    let seen = Stat::entry(dir, name)?;
    if seen.uid != file_uid() {
        return Ok(false);
    }
    let _held = match seen.kind {
        FileKind::Symlink => None,
        // A file with a second hard link is still in use.
        FileKind::File if seen.links == 1 => {
            let open = |access| open_at(dir, name, access | OFlags::NOFOLLOW | OFlags::NONBLOCK);
            let file = open(OFlags::RDONLY).or_else(|_| open(OFlags::WRONLY))?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Some(file)
        }
        _ => return Ok(false),
    };
    // Check again under the lock: another writer may have taken the name. Then the lock is on the old file, not on that writer's.
    let now = Stat::entry(dir, name)?;
    if !now.is_same_file(&seen) || now.kind != seen.kind {
        return Ok(false);
    }
    rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
    Ok(true)
}

/// Removes temporary files and links that killed writers left in a directory. Kept parts (`.part`) stay. Returns the number removed.
pub fn sweep(view: &View, path: &Path, links: Links, cancel: &Cancel) -> Result<u64> {
    attempt("clear up in", path, || {
        let dir = view.open_directory(path, links)?;
        let mut found: Vec<(OsString, FileKind)> = Vec::new();
        for_each_entry(dir.as_fd(), cancel, |name, _| {
            found.extend(scratch_kind(name).map(|kind| (name.to_owned(), kind)));
            Ok(())
        })?;
        found.retain(|(name, kind)| {
            let has_kind = Stat::entry(dir.as_fd(), name).is_ok_and(|stat| stat.kind == *kind);
            has_kind && remove_if_abandoned(dir.as_fd(), name)
        });
        Ok(found.len() as u64)
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;

    const FILE: &str = ".exec-server-0123456789abcdef.tmp";
    const LINK: &str = ".exec-server-0123456789abcdef-link.tmp";

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("list");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn swept(dir: &Path) -> u64 {
        sweep(&View::everything(), dir, Links::Refuse, &Cancel::new()).expect("sweep")
    }

    #[test]
    fn sweep_removes_only_abandoned_objects_with_generated_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().canonicalize().expect("it is there");
        let foreign = [
            ".exec-server-0123456789abcdef.part",
            ".exec-server-0123456789abcdef-0123456789abcdef.part",
            ".exec-server-0123456789ABCDEF.tmp",
            ".exec-server-0123456789abcde.tmp",
            ".exec-server-0123456789abcdef0.tmp",
            ".exec-server-notes.tmp",
            "exec-server-0123456789abcdef.tmp",
            ".exec-server-0123456789abcdef.tmp.txt",
            "notes.tmp",
        ];
        for name in foreign {
            fs::write(path.join(name), name).expect("write");
        }
        // A directory, a file with the name of a link, a link with the name of a file, and a file with a second hard link.
        fs::create_dir(path.join(".exec-server-1111111111111111.tmp")).expect("make a directory");
        fs::write(path.join(".exec-server-1111111111111111-link.tmp"), "").expect("write");
        symlink("x", path.join(".exec-server-2222222222222222.tmp")).expect("link");
        fs::write(path.join("other"), "").expect("write");
        fs::hard_link(path.join("other"), path.join(".exec-server-3333333333333333.tmp")).expect("link");
        let before = names(&path);
        fs::write(path.join(FILE), "half").expect("write");
        fs::set_permissions(path.join(FILE), fs::Permissions::from_mode(0o200)).expect("set the mode");
        symlink("x", path.join(LINK)).expect("link");
        assert_eq!(swept(&path), 2);
        assert_eq!(names(&path), before);
    }

    #[test]
    fn sweep_keeps_a_file_that_its_writer_has_locked() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().canonicalize().expect("it is there");
        let file = File::create(path.join(FILE)).expect("create");
        assert!(lock_as_writer(&file));
        assert_eq!((swept(&path), names(&path)), (0, vec![FILE.to_owned()]));
        drop(file);
        assert_eq!((swept(&path), names(&path)), (1, Vec::new()));
    }
}
