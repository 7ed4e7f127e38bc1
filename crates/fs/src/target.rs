//! Where bytes are going: the directory and the name that a path comes to, and what is there now.
//!
//! Links are followed here, one by one, because a file is replaced by a rename in the directory that it is really in. What is held
//! is the descriptor of that directory: whoever swaps a component afterwards changes nothing.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use crate::{
    Guard, Links, Result, Stat, Trouble, Type, View,
    metadata::{self, ABSENT},
    read::{refuse_proc, require_regular},
    view::{LINKS, link_leads_to, mount_of},
};

/// Locks for names. Two writers of one name share one; so do, rarely, two of different names, which costs them a wait.
static NAMES: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// The same for files: two names of one file have two locks of the kind above. Taken after that of a name, never before.
static FILES: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// How every hidden name begins, and how those end that files and links have before they replace something.
const PREFIX: &str = ".exec-server-";
pub(crate) const FILE_END: &str = ".tmp";
pub(crate) const LINK_END: &str = "-link.tmp";
/// How those end that bytes have which are kept for whoever goes on.
const PART_END: &str = ".part";

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) dir: OwnedFd,
    pub(crate) name: OsString,
    identity: (u64, u64),
    /// What must not be written, also when the name comes to mean it later.
    guard: Option<Arc<dyn Guard>>,
}

/// A file that is there already, open for writing.
#[derive(Debug)]
pub(crate) struct Existing {
    pub(crate) file: File,
    pub(crate) stat: Stat,
    /// A program that runs cannot be written, but it can be replaced.
    pub(crate) is_busy: bool,
}

impl Target {
    /// Finds the directory and the name that a path comes to.
    pub(crate) fn find(view: &View, path: &Path, links: Links) -> Result<Self, Trouble> {
        let mut path = PathBuf::from(path);
        for _ in 0..LINKS {
            let (dir, name) = view.parent(&path, links)?;
            let identity = Stat::of(dir.as_fd()).map(|stat| (stat.device, stat.inode))?;
            let target = Self { name: name.to_owned(), dir, identity, guard: view.guard().cloned() };
            match target.stat()? {
                Some(stat) if stat.kind == Type::Symlink => {
                    if links == Links::Refuse {
                        return Err(Trouble::Symlink);
                    }
                    match rustix::fs::readlinkat(&target.dir, &target.name, Vec::new()) {
                        Ok(text) => path = link_leads_to(target.dir.as_fd(), text.as_bytes())?,
                        // It was swapped meanwhile; looked at again, it is what it is.
                        Err(Errno::INVAL | Errno::NOENT) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
                _ => return Ok(target),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// What has this name now; links are not followed.
    pub(crate) fn stat(&self) -> Result<Option<Stat>, Trouble> {
        match Stat::entry(self.dir.as_fd(), &self.name) {
            Ok(stat) => Ok(Some(stat)),
            Err(trouble) if trouble.is(Errno::NOENT) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// The file of this name, if there is one, open for writing; asking for that is how the system says whether it may be written.
    pub(crate) fn existing(&self) -> Result<Option<Existing>, Trouble> {
        let Some(seen) = self.stat()? else { return Ok(None) };
        let protects = |stat: &Stat| self.guard.as_ref().is_some_and(|guard| guard.protects(stat));
        if protects(&seen) {
            return Err(Trouble::Protected);
        }
        if seen.kind == Type::Directory {
            return Err(Errno::ISDIR.into());
        }
        require_regular(&seen)?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = |access: OFlags| rustix::fs::openat(&self.dir, &self.name, access | flags, Mode::empty());
        let mut is_busy = false;
        let opened = match open(OFlags::RDWR) {
            Err(Errno::ACCESS) => open(OFlags::WRONLY),
            Err(Errno::TXTBSY) => {
                is_busy = true;
                open(OFlags::RDONLY)
            }
            other => other,
        };
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            // A link where a file was: somebody swapped it, and it is not followed.
            Err(Errno::LOOP) => return Err(Trouble::Symlink),
            Err(errno) => return Err(errno.into()),
        };
        if is_busy && mount_of(fd.as_fd())? != mount_of(self.dir.as_fd())? {
            // It could only be replaced, and with its name would go the mount by which a sandbox keeps it as it is.
            return Err(Errno::TXTBSY.into());
        }
        let stat = Stat::of(fd.as_fd())?;
        // What was opened counts: the name may mean another file than a moment ago.
        if protects(&stat) {
            return Err(Trouble::Protected);
        }
        require_regular(&stat)?;
        refuse_proc(fd.as_fd())?;
        Ok(Some(Existing { file: File::from(fd), stat, is_busy }))
    }

    /// Keeps every other writer of this program from this name until it is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'static, ()> {
        lock_of(&NAMES, (self.identity, &self.name))
    }

    /// The name beside this one that bytes have for a moment before they replace it. Always the same, so that whoever writes this
    /// name again finds what a killed writer left.
    pub(crate) fn scratch_name(&self) -> OsString {
        format!("{PREFIX}{:016x}{FILE_END}", hash(&self.name)).into()
    }

    /// A name that nobody has, where the usual one is in use.
    pub(crate) fn random_name(end: &str) -> Result<OsString, Trouble> {
        let mut random = [0_u8; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        Ok(format!("{PREFIX}{:016x}{end}", u64::from_le_bytes(random)).into())
    }

    /// The name beside this one under which unfinished bytes are kept. A machine that went down without a word may have lost
    /// bytes that it had taken, and shows zeros in their place: what was kept before its start has another name, and is not
    /// gone on with.
    pub(crate) fn kept_name(&self, keep: &str) -> OsString {
        static BOOT: LazyLock<Vec<u8>> =
            LazyLock::new(|| std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default());
        let mut hasher = DefaultHasher::new();
        (keep, &*BOOT).hash(&mut hasher);
        format!("{}{:016x}{PART_END}", self.kept_prefix(), hasher.finish()).into()
    }

    /// Whether a name is one under which unfinished bytes of this file are kept, under whatever word.
    pub(crate) fn is_kept_name(&self, name: &OsStr) -> bool {
        is_part(name) && name.as_encoded_bytes().starts_with(self.kept_prefix().as_bytes())
    }

    fn kept_prefix(&self) -> String {
        format!("{PREFIX}{:016x}-", hash(&self.name))
    }
}

/// Whether a name has exactly the form that this crate gives to what is unfinished: whatever else begins alike is somebody's own.
#[must_use]
pub(crate) fn is_unfinished(name: &OsStr) -> bool {
    scratch_kind(name).is_some() || is_part(name)
}

impl Existing {
    /// Keeps everybody else of this program from writing this file in place, by whatever name, until it is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'static, ()> {
        lock_of(&FILES, (self.stat.device, self.stat.inode))
    }
}

fn lock_of(locks: &'static [Mutex<()>; 64], key: impl Hash) -> MutexGuard<'static, ()> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let at = usize::try_from(hasher.finish() % locks.len() as u64).unwrap_or(0);
    // Nothing is guarded but the order of writers.
    locks[at].lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name beside `name` that a link has for a moment before it replaces it.
pub(crate) fn link_scratch_name(name: &OsStr) -> OsString {
    format!("{PREFIX}{:016x}{LINK_END}", hash(name)).into()
}

/// What has a hidden name for a moment, by that name; `None` for names of others, and for parts, which are meant to stay.
pub(crate) fn scratch_kind(name: &OsStr) -> Option<Type> {
    let end = behind_number(name.as_encoded_bytes().strip_prefix(PREFIX.as_bytes())?)?;
    match end {
        _ if end == FILE_END.as_bytes() => Some(Type::File),
        _ if end == LINK_END.as_bytes() => Some(Type::Symlink),
        _ => None,
    }
}

/// Whether a name is one under which unfinished bytes are kept, of whatever file.
fn is_part(name: &OsStr) -> bool {
    let rest = name.as_encoded_bytes().strip_prefix(PREFIX.as_bytes());
    let word = rest.and_then(behind_number).and_then(|rest| rest.strip_prefix(b"-"));
    word.and_then(behind_number) == Some(PART_END.as_bytes())
}

/// What stands behind a number as these names have it.
fn behind_number(text: &[u8]) -> Option<&[u8]> {
    let (number, rest) = text.split_at_checked(16)?;
    number.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(rest)
}

fn hash(name: &OsStr) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Compares what is there with the state that a writer expects.
pub(crate) fn require_state(existing: Option<&Existing>, expected: Option<&str>) -> Result<(), Trouble> {
    match (existing, expected) {
        (_, None) | (None, Some(ABSENT)) => Ok(()),
        (Some(_), Some(ABSENT)) => Err(Trouble::EtagMismatch("it exists")),
        (None, Some(_)) => Err(Trouble::EtagMismatch("it does not exist any more")),
        (Some(existing), Some(etag)) => {
            // Looked at again: the caller may have opened it before it had the lock.
            if metadata::matches(&existing.file, &Stat::of(existing.file.as_fd())?, etag)? {
                Ok(())
            } else {
                Err(Trouble::EtagMismatch("it was changed"))
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
        let target = Target::find(&View::everything(), &path, Links::Refuse).expect("its directory is there");
        let kept = target.kept_name("word");
        assert!(target.is_kept_name(&kept) && is_unfinished(&kept));
        let random = Target::random_name(FILE_END).expect("a number");
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
