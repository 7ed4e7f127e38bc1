//! Placeholders: empty directories at paths that a sandboxed process must not create, above all `.git`.
//!
//! A read-only mount protects a name, but it needs something to be mounted on. A name that does not exist cannot be
//! protected from a process that may write to its directory. So an empty directory is created there, and the view shows
//! that directory read-only. Programs that look for a repository ignore an empty directory.
//!
//! A placeholder has the mtime 0 (1970), which marks it until something is created in it. A nested placeholder does not
//! count: after one is created or removed, the mtime of the outer one is reset.
//!
//! A placeholder is removed when it is no longer needed. It is needed while a prepared sandbox holds a shared lock on
//! it, or a process in a view has a mount on it. Removing it too early would free its name, so both are
//! checked. The paths are recorded in the state directory, so that the next server removes the placeholders of a server
//! that was killed.

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

/// How many times to look for a placeholder that is removed, and perhaps created anew, while we lock it.
const TRIES: usize = 8;

/// Keeps a placeholder from being removed.
#[derive(Debug)]
pub(crate) struct Placeholder {
    /// Holds the shared lock.
    _dir: OwnedFd,
}

/// Makes sure that something exists at the path. If we have no permission to create it, neither has a process of the
/// same user, so nothing is needed. The exception is a parent directory that we own: the process could change its mode.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    let outer = marked_parent(path);
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Ok(()) => {
            outer.map_or(Ok(()), |outer| set_mtime_to_zero(&outer))?;
            mark(path)
        }
        Err(Errno::ACCESS) if path.parent().is_some_and(is_ours) => Err(Errno::ACCESS.into()),
        // NOENT, NOTDIR: the parent directory is gone.
        Err(Errno::EXIST | Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NOENT | Errno::NOTDIR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn mark(path: &Path) -> io::Result<()> {
    let dir = open(path)?;
    // Give it to the owner of the parent directory, who may want to turn it into a repository.
    if let Some(parent) = path.parent().filter(|_| rustix::process::geteuid().is_root()) {
        let parent = fs::metadata(parent)?;
        std::os::unix::fs::fchown(&dir, Some(parent.uid()), Some(parent.gid()))?;
    }
    set_mtime_to_zero(&dir)
}

fn set_mtime_to_zero(dir: &OwnedFd) -> io::Result<()> {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::fs::futimens(dir, &Timestamps { last_access: zero, last_modification: zero })?)
}

/// Opens the parent directory if it is a placeholder itself.
fn marked_parent(path: &Path) -> Option<OwnedFd> {
    open(path.parent()?).ok().filter(is_marked)
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Locks the placeholder at a path. `None` if something else is there, for example a repository.
pub(crate) fn hold(path: &Path) -> Option<Placeholder> {
    for _ in 0..TRIES {
        let dir = open(path).ok().filter(is_marked)?;
        flock(&dir, FlockOperation::LockShared).ok()?;
        // It may have been removed while we waited for the lock.
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

/// Removes a placeholder that is no longer needed. Returns false if it is still needed. Returns true if it is gone, is
/// not a placeholder, or cannot be removed.
pub(crate) fn remove(path: &Path) -> bool {
    let Some(dir) = open(path).ok().filter(is_marked) else { return true };
    if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() || is_mounted_somewhere(path) {
        return false;
    }
    let outer = marked_parent(path);
    match fs::remove_dir(path) {
        Ok(()) => {
            // If the reset fails, the outer placeholder is never removed, which does no other harm.
            outer.map(|outer| set_mtime_to_zero(&outer));
            true
        }
        // The directory holds another placeholder. Anything else created in it would have changed its mtime.
        Err(error) => error.kind() != io::ErrorKind::DirectoryNotEmpty,
    }
}

/// Removes the placeholders that are no longer needed. Returns the paths for which `remove` returned true, and the
/// paths of the placeholders that are still needed.
pub(crate) fn remove_all(paths: BTreeSet<PathBuf>) -> (Vec<PathBuf>, Vec<PathBuf>) {
    // In reverse order, so that a nested placeholder comes before the outer one.
    paths.into_iter().rev().partition(|path| remove(path))
}

/// Whether a process in another mount namespace has a mount on this path.
fn is_mounted_somewhere(path: &Path) -> bool {
    let own = namespace(Path::new("/proc/self"));
    // Without `/proc` nothing is known, so assume a mount.
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let wanted = escaped(path);
    let is_process = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
    processes.flatten().filter(|entry| is_process(&entry.file_name())).any(|entry| {
        let process = entry.path();
        let is_own_namespace = own.is_some() && namespace(&process) == own;
        !is_own_namespace && has_mount(&process, &wanted)
    })
}

fn namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/mnt")).ok()
}

fn has_mount(process: &Path, wanted: &[u8]) -> bool {
    // The process has ended, or it belongs to another user and so is in no view of this server.
    let Ok(mounts) = fs::read(process.join("mountinfo")) else { return false };
    mounts.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(wanted))
}

/// The path as the kernel escapes it in `mountinfo`.
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
    fn a_held_placeholder_is_removed_only_after_its_release() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(".git");
        make(&path).expect("made");
        make(&path).expect("it is there");
        let held = hold(&path).expect("held");
        assert!(!remove(&path) && path.is_dir());
        drop(held);
        assert!(remove(&path) && !path.exists());
        assert!(remove(&path), "removing it again succeeds");
    }

    #[test]
    fn directories_that_existed_before_or_are_in_use_are_left_alone() {
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
    fn a_nested_placeholder_must_be_removed_before_the_outer_one() {
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
    fn mount_points_are_found_in_mountinfo_by_their_escaped_path() {
        assert_eq!(escaped(Path::new("/a b\\c\td")), b"/a\\040b\\134c\\011d");
        assert!(has_mount(Path::new("/proc/self"), b"/proc"), "`/proc` is mounted here");
        assert!(!has_mount(Path::new("/proc/self"), b"/proc/none"));
    }
}
