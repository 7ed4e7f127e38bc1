//! Directories that stand where something must not come into being while a confined process runs: a `.git` above all.
//!
//! A mount keeps a name read-only, and a mount needs something to lie on; a name that is not there cannot be kept from a process that may
//! write its directory. So an empty directory is made there, which programs that look for a repository pass over, and the view shows it
//! read-only like any other. Its time of modification is 1970, by which it is known until somebody puts something into it. Another placeholder
//! does not count as something: the time is set again after one was made or removed in it.
//!
//! It goes when nobody needs it: whoever has a kit for it holds a shared lock on it, and whoever runs in a view has a mount on it. Taken
//! away too early it would set its name free; so neither is guessed. Their paths are kept in the state
//! directory, so that the next server takes away those of a server that was killed. Must not know policies.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use exec_server_sandbox::is_ours;
use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, Timespec, Timestamps, flock, fstat},
    io::Errno,
};

/// How often one is looked for again that somebody took away meanwhile.
const TRIES: usize = 8;

/// One that stays while this is held.
#[derive(Debug)]
pub(crate) struct Placeholder {
    /// Locked.
    _dir: OwnedFd,
}

/// Makes sure that something is there. Where we may make nothing, neither may a process of ours,
/// unless it can open what is closed.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    let around = marked_around(path);
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Ok(()) => {
            around.map_or(Ok(()), |around| set_first_time(&around))?;
            mark(path)
        }
        Err(Errno::ACCESS) if path.parent().is_some_and(is_ours) => Err(Errno::ACCESS.into()),
        Err(Errno::EXIST | Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NOENT | Errno::NOTDIR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn mark(path: &Path) -> io::Result<()> {
    let dir = open(path)?;
    // Whoever owns the directory around it may make a repository of it.
    if let Some(around) = path.parent().filter(|_| rustix::process::geteuid().is_root()) {
        let around = fs::metadata(around)?;
        std::os::unix::fs::fchown(&dir, Some(around.uid()), Some(around.gid()))?;
    }
    set_first_time(&dir)
}

fn set_first_time(dir: &OwnedFd) -> io::Result<()> {
    let first = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::fs::futimens(dir, &Timestamps { last_access: first, last_modification: first })?)
}

/// The directory around a path, where it is a placeholder itself.
fn marked_around(path: &Path) -> Option<OwnedFd> {
    open(path.parent()?).ok().filter(is_marked)
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Holds the placeholder at a path; nothing where there is none, but a repository.
pub(crate) fn hold(path: &Path) -> Option<Placeholder> {
    for _ in 0..TRIES {
        let dir = open(path).ok().filter(is_marked)?;
        flock(&dir, FlockOperation::LockShared).ok()?;
        // It may have gone while we waited.
        if is_at(&dir, path) {
            return Some(Placeholder { _dir: dir });
        }
    }
    None
}

fn is_marked(dir: &OwnedFd) -> bool {
    fstat(dir).is_ok_and(|stat| stat.st_mtime == 0)
}

fn is_at(dir: &OwnedFd, path: &Path) -> bool {
    let there = fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((fstat(dir.as_fd()), there), (Ok(own), Ok(there)) if (own.st_dev, own.st_ino) == there)
}

/// Takes a placeholder away that nobody needs; false while somebody does.
pub(crate) fn remove(path: &Path) -> bool {
    let Some(dir) = open(path).ok().filter(is_marked) else { return true };
    if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() || is_mounted_somewhere(path) {
        return false;
    }
    let around = marked_around(path);
    match fs::remove_dir(path) {
        Ok(()) => {
            // Without it the directory around stays for good, which costs nothing else.
            around.map(|around| set_first_time(&around));
            true
        }
        // Another placeholder is in it: what anybody else made in it would have changed its time.
        Err(error) => error.kind() != io::ErrorKind::DirectoryNotEmpty,
    }
}

/// Takes away those that nobody needs. Tells which are gone, and which are left.
pub(crate) fn remove_all(paths: BTreeSet<PathBuf>) -> (Vec<PathBuf>, Vec<PathBuf>) {
    // The last first: one may be in another.
    paths.into_iter().rev().partition(|path| remove(path))
}

/// Whether a process of this host, in a view, has a mount on a path.
fn is_mounted_somewhere(path: &Path) -> bool {
    let own = namespace(Path::new("/proc/self"));
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let wanted = escaped(path);
    let is_process = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
    processes.flatten().filter(|entry| is_process(&entry.file_name())).any(|entry| {
        let process = entry.path();
        let is_ours = own.is_some() && namespace(&process) == own;
        !is_ours && has_mount(&process, &wanted)
    })
}

fn namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/mnt")).ok()
}

fn has_mount(process: &Path, wanted: &[u8]) -> bool {
    // One that is gone has none.
    let Ok(mounts) = fs::read(process.join("mountinfo")) else { return false };
    mounts.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(wanted))
}

/// A path as the kernel writes it into the table of mounts.
fn escaped(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend(format!("\\{byte:03o}").bytes()),
            byte => out.push(*byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stays_while_it_is_held_and_goes_then() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(".git");
        make(&path).expect("made");
        make(&path).expect("it is there");
        let held = hold(&path).expect("held");
        assert!(!remove(&path) && path.is_dir());
        drop(held);
        assert!(remove(&path) && !path.exists());
        assert!(remove(&path), "one that is gone needs nothing");
    }

    #[test]
    fn what_somebody_made_or_used_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (own, used) = (dir.path().join("own"), dir.path().join("used"));
        fs::create_dir(&own).expect("a directory");
        make(&own).expect("it is there");
        assert!(hold(&own).is_none());
        make(&used).expect("made");
        fs::write(used.join("HEAD"), "ref").expect("a file");
        assert!(hold(&used).is_none(), "it is a repository now");
        assert!(remove(&own) && remove(&used));
        assert!(own.is_dir() && used.is_dir());
    }

    #[test]
    fn one_in_another_goes_first_and_both_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let (outer, inner) = (dir.path().join("outer"), dir.path().join("outer/.git"));
        make(&outer).expect("made");
        make(&inner).expect("made");
        let held = (hold(&outer).expect("held"), hold(&inner).expect("held"));
        assert!(!remove(&inner) && !remove(&outer));
        drop(held);
        assert!(!remove(&outer), "the inner one is in it");
        assert!(remove(&inner) && remove(&outer));
        assert!(!outer.exists());
    }

    #[test]
    fn the_table_of_mounts_is_read_as_it_is_written() {
        assert_eq!(escaped(Path::new("/a b\\c\td")), b"/a\\040b\\134c\\011d");
        assert!(has_mount(Path::new("/proc/self"), b"/proc"), "`/proc` is mounted here");
        assert!(!has_mount(Path::new("/proc/self"), b"/proc/none"));
    }
}
