//! The target of a write: the directory and the name that a path resolves to, and the file that exists there now.
//!
//! Links are followed here one by one, because a file is replaced by a rename in the directory that really contains it. A `WriteTarget`
//! holds the fd of that directory, so a later swap of a path component has no effect.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use parking_lot::{Mutex, MutexGuard};
use rustix::{fs::OFlags, io::Errno};

use crate::{
    ErrorKind, FileKind, Guard, Links, Result, Stat, View,
    metadata::{self, ABSENT},
    read::{refuse_proc, require_regular},
    view::{LINKS, link_target_path, mount_id_of, open_at},
};

/// Locks for names. All writers of one name in this process share a lock. Two names whose hashes collide share one too, so one writer may
/// wait for the writer of another name.
static NAME_LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// Locks for files. Two names of the same file have two locks in `NAME_LOCKS`, so the file needs its own. Lock order: the name first, then
/// the file.
static FILE_LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// Prefix of every hidden name, and the suffixes of files and links before they replace something.
const PREFIX: &str = ".exec-server-";
pub(crate) const FILE_END: &str = ".tmp";
pub(crate) const LINK_END: &str = "-link.tmp";
/// Suffix of a file with the bytes of a kept draft, which a later draft can continue.
const PART_END: &str = ".part";

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct WriteTarget {
    pub(crate) dir: OwnedFd,
    pub(crate) name: OsString,
    /// Device and inode of `dir`.
    dir_identity: (u64, u64),
    /// Refuses protected files. It is checked again at every access, because the name may later refer to another file.
    guard: Option<Arc<dyn Guard>>,
}

/// An existing file, open for writing.
#[derive(Debug)]
pub(crate) struct ExistingFile {
    pub(crate) file: File,
    pub(crate) stat: Stat,
    /// The file is a running program (ETXTBSY). It cannot be written, but it can be replaced.
    pub(crate) is_busy: bool,
}

impl WriteTarget {
    /// Resolves a path to its directory and name.
    pub(crate) fn resolve(view: &View, path: &Path, links: Links) -> Result<Self, ErrorKind> {
        let mut path = PathBuf::from(path);
        for _ in 0..LINKS {
            let (dir, name) = view.parent(&path, links)?;
            let dir_identity = Stat::of(dir.as_fd())?.identity();
            let target = Self { name: name.to_owned(), dir, dir_identity, guard: view.guard.clone() };
            match target.stat()? {
                Some(stat) if stat.kind == FileKind::Symlink => {
                    if links == Links::Refuse {
                        return Err(ErrorKind::Symlink);
                    }
                    match rustix::fs::readlinkat(&target.dir, &target.name, Vec::new()) {
                        Ok(text) => path = link_target_path(target.dir.as_fd(), text.as_bytes())?,
                        // The link was swapped in the meantime. Look at the name again.
                        Err(Errno::INVAL | Errno::NOENT) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
                _ => return Ok(target),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// The object with this name now. Links are not followed.
    pub(crate) fn stat(&self) -> Result<Option<Stat>, ErrorKind> {
        match Stat::entry(self.dir.as_fd(), &self.name) {
            Err(reason) if reason.is(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Opens the existing file of this name for writing. The open itself checks whether the file may be written.
    pub(crate) fn existing(&self) -> Result<Option<ExistingFile>, ErrorKind> {
        let Some(seen) = self.stat()? else { return Ok(None) };
        let protects = |stat: &Stat| self.guard.as_ref().is_some_and(|guard| guard.protects(stat));
        if protects(&seen) {
            return Err(ErrorKind::Protected);
        }
        if seen.kind == FileKind::Directory {
            return Err(Errno::ISDIR.into());
        }
        require_regular(&seen)?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = |access: OFlags| open_at(&self.dir, &self.name, access | flags);
        let mut is_busy = false;
        // Open for reading too, because the etag may need the bytes.
        let opened = match open(OFlags::RDWR) {
            Err(Errno::ACCESS) => open(OFlags::WRONLY),
            Err(Errno::TXTBSY) => {
                is_busy = true;
                open(OFlags::RDONLY)
            }
            other => other,
        };
        let fd = match opened {
            Err(Errno::NOENT) => return Ok(None),
            // The file was replaced by a link in the meantime. The link is not followed.
            Err(Errno::LOOP) => return Err(ErrorKind::Symlink),
            other => other?,
        };
        if is_busy && mount_id_of(fd.as_fd())? != mount_id_of(self.dir.as_fd())? {
            // A running program can only be replaced, and a rename would also remove the mount that a sandbox placed over the name.
            return Err(Errno::TXTBSY.into());
        }
        let stat = Stat::of(fd.as_fd())?;
        // Check again on the opened file: the name may have changed since the first check.
        if protects(&stat) {
            return Err(ErrorKind::Protected);
        }
        require_regular(&stat)?;
        refuse_proc(fd.as_fd())?;
        Ok(Some(ExistingFile { file: File::from(fd), stat, is_busy }))
    }

    /// Excludes all other writers of this name in this process until the returned `MutexGuard` is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'static, ()> {
        lock_of(&NAME_LOCKS, (self.dir_identity, &self.name))
    }

    /// The temporary name that a new file gets just before it replaces the target. It is deterministic, so that the next writer of the same
    /// target finds and removes a file that a killed writer left.
    pub(crate) fn scratch_name(&self) -> OsString {
        format!("{PREFIX}{:016x}{FILE_END}", hash(&self.name)).into()
    }

    /// A random hidden name. Used on a file system without `O_TMPFILE`, and while another writer has the deterministic name.
    pub(crate) fn random_name(end: &str) -> Result<OsString, ErrorKind> {
        let mut random = [0_u8; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        Ok(format!("{PREFIX}{:016x}{end}", u64::from_le_bytes(random)).into())
    }

    /// The hidden name under which the bytes of a draft are kept. After a crash of the machine, bytes that were written may be missing and
    /// read as zeros. The name therefore depends on the boot id: bytes kept before the last boot have another name and are not continued.
    pub(crate) fn kept_name(&self, keep: &str) -> OsString {
        static BOOT: LazyLock<Vec<u8>> =
            LazyLock::new(|| std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default());
        format!("{}{:016x}{PART_END}", self.kept_prefix(), hash((keep, &*BOOT))).into()
    }

    /// Whether a name is one under which a draft of this file is kept, with any `keep` word.
    pub(crate) fn is_kept_name(&self, name: &OsStr) -> bool {
        is_part(name) && name.as_encoded_bytes().starts_with(self.kept_prefix().as_bytes())
    }

    fn kept_prefix(&self) -> String {
        format!("{PREFIX}{:016x}-", hash(&self.name))
    }
}

/// Whether a name has exactly the form that this crate gives to unfinished files. Other names with the same prefix belong to the user.
#[must_use]
pub(crate) fn is_unfinished(name: &OsStr) -> bool {
    scratch_kind(name).is_some() || is_part(name)
}

impl ExistingFile {
    /// Excludes all other in-place writers of this file in this process, by any of its names, until the returned `MutexGuard` is
    /// dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'static, ()> {
        lock_of(&FILE_LOCKS, self.stat.identity())
    }
}

fn lock_of(locks: &'static [Mutex<()>; 64], key: impl Hash) -> MutexGuard<'static, ()> {
    // The remainder is below 64, so the conversion cannot fail.
    let at = usize::try_from(hash(key) % locks.len() as u64).unwrap_or(0);
    locks[at].lock()
}

/// The hidden name of a link just before it replaces `name`.
pub(crate) fn link_scratch_name(name: &OsStr) -> OsString {
    format!("{PREFIX}{:016x}{LINK_END}", hash(name)).into()
}

/// The type of a temporary object, by its hidden name. `None` for all other names, including kept parts, which must stay.
pub(crate) fn scratch_kind(name: &OsStr) -> Option<FileKind> {
    let end = strip_number(name.as_encoded_bytes().strip_prefix(PREFIX.as_bytes())?)?;
    let kinds = [(FILE_END, FileKind::File), (LINK_END, FileKind::Symlink)];
    kinds.into_iter().find(|(known, _)| end == known.as_bytes()).map(|(_, kind)| kind)
}

/// Whether a name is one under which a draft of any file is kept.
fn is_part(name: &OsStr) -> bool {
    let rest = name.as_encoded_bytes().strip_prefix(PREFIX.as_bytes());
    let word = rest.and_then(strip_number).and_then(|rest| rest.strip_prefix(b"-"));
    word.and_then(strip_number) == Some(PART_END.as_bytes())
}

/// The rest of `text` after a number of 16 hexadecimal digits.
fn strip_number(text: &[u8]) -> Option<&[u8]> {
    let (number, rest) = text.split_at_checked(16)?;
    number.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(rest)
}

/// `DefaultHasher::new` has fixed keys, so another process of this program computes the same temporary names.
fn hash(key: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Checks that the existing file has the etag that the writer expects.
pub(crate) fn require_state(existing: Option<&ExistingFile>, expected: Option<&str>) -> Result<(), ErrorKind> {
    match (existing, expected) {
        (_, None) | (None, Some(ABSENT)) => Ok(()),
        (Some(_), Some(ABSENT)) => Err(ErrorKind::EtagMismatch("it exists")),
        (None, Some(_)) => Err(ErrorKind::EtagMismatch("it no longer exists")),
        (Some(existing), Some(etag)) => {
            // Stat again: the caller may have opened the file before it took the lock.
            if metadata::matches(&existing.file, &Stat::of(existing.file.as_fd())?, etag)? {
                Ok(())
            } else {
                Err(ErrorKind::EtagMismatch("it was changed"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_of_a_hidden_name_is_unfinished() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().canonicalize().expect("it is there").join("file");
        let target = WriteTarget::resolve(&View::everything(), &path, Links::Refuse).expect("its directory is there");
        let kept = target.kept_name("word");
        assert!(target.is_kept_name(&kept) && is_unfinished(&kept));
        let random = WriteTarget::random_name(FILE_END).expect("a number");
        for name in [target.scratch_name(), link_scratch_name(OsStr::new("x")), random] {
            assert!(is_unfinished(&name) && !target.is_kept_name(&name), "{name:?}");
        }
        for name in [
            ".exec-server-notes.tmp",
            ".exec-server-notes.part",
            ".exec-server-0123456789abcdef.part",
            ".exec-server-0123456789abcdef-word.part",
            ".exec-server-0123456789abcdef-0123456789abcdef.part.txt",
            ".exec-server-0123456789ABCDEF.tmp",
            "exec-server-0123456789abcdef.tmp",
        ] {
            assert!(!is_unfinished(OsStr::new(name)), "{name}");
        }
    }
}
