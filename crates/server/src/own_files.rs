//! Protects the server's own files: only the owner may access them with file methods, and only outside a sandbox.
//!
//! ```text
//!  paths (state directory, tokens, audit log, TLS files, sockets)
//!    └── trace each, list directories recursively ──▶ Inventory: objects by device and inode, names, ancestors
//!  View opens an object ──▶ is the inventory new enough for it? ──▶ is the object in it?
//! ```
//!
//! An object is identified by device and inode. So access is refused also through a symbolic link, a hard link, or a
//! bind mount of the state directory, of a subdirectory or of a single file.
//!
//! The inventory is a cache. It is valid for an object whose inode was last changed (ctime) before the inventory was
//! taken: creating an object, renaming it into a directory and adding a hard link all change the ctime. The inventory
//! is taken again if the object is newer or the inventory is more than a second old. Directories that have not changed
//! since the last inventory are not listed again.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Component, Path, PathBuf},
};

use exec_server_fs::{FileKind, Guard, Moment, Stat};
use exec_server_sandbox::as_server;
use parking_lot::Mutex;
use rustix::{
    fs::{CWD, Dir, Mode, OFlags},
    time::{ClockId, clock_gettime},
};

type FileIdentity = (u64, u64);

/// Resolution of inode timestamps, with a margin. A change this soon after the inventory may have an older timestamp.
const CLOCK_GRAIN_NS: i128 = 20_000_000;

/// Longest time that an inventory is used. If the wall clock was set back, a change may go unnoticed for this long.
const MAX_AGE_NS: i128 = 1_000_000_000;

/// How many levels below a protected directory are listed. The state directory has two.
const MAX_DEPTH: usize = 8;

/// Most symbolic links in one path before it counts as a loop. The kernel has the same limit.
const MAX_LINKS: usize = 40;

/// A `Guard` for the server's own files.
#[derive(Debug)]
pub(crate) struct OwnFiles {
    paths: Vec<PathBuf>,
    inventory: Mutex<Inventory>,
}

#[derive(Debug, Default)]
struct Inventory {
    /// Start time, by CLOCK_REALTIME (as in inode timestamps) and CLOCK_BOOTTIME. `None` before the first inventory.
    taken: Option<(i128, i128)>,
    objects: HashSet<FileIdentity>,
    /// Devices of the protected objects and names.
    devices: BTreeSet<u64>,
    /// Protected names, by their directory: of protected files, of symbolic links on the path to them, and of missing
    /// components of that path.
    names: HashMap<FileIdentity, Vec<ProtectedName>>,
    /// Directories on the path to protected objects.
    ancestors: HashSet<FileIdentity>,
    listings: HashMap<FileIdentity, DirectoryListing>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ProtectedName {
    /// Only this name.
    Exact(OsString),
    /// This name, and names that start with it and a dot. A file is replaced through `NAME.new`, and a rotated log is
    /// renamed to `NAME.1`.
    WithSuffixes(OsString),
}

/// The contents of a directory when it was last listed.
#[derive(Debug, Clone)]
struct DirectoryListing {
    changed: Moment,
    files: Vec<FileIdentity>,
    directories: Vec<OsString>,
}

impl OwnFiles {
    /// Protects the objects at these absolute paths and everything below them.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, inventory: Mutex::default() }
    }

    /// Runs a query on an inventory that is new enough for `object`.
    fn look_up(&self, object: &Stat, query: impl FnOnce(&Inventory, FileIdentity) -> bool) -> bool {
        let mut inventory = self.inventory.lock();
        if !inventory.is_valid_for(object) {
            // With `--run-as`, this thread may act as another user, who cannot read the state directory.
            as_server(|| inventory.take(&self.paths));
        }
        query(&inventory, object.identity())
    }
}

impl Guard for OwnFiles {
    fn protects(&self, object: &Stat) -> bool {
        self.look_up(object, |inventory, identity| inventory.objects.contains(&identity))
    }

    fn protects_name(&self, directory: &Stat, name: &OsStr) -> bool {
        self.look_up(directory, |inventory, identity| {
            inventory.names.get(&identity).is_some_and(|names| names.iter().any(|known| known.matches(name)))
        })
    }

    fn keeps(&self, directory: &Stat) -> bool {
        self.look_up(directory, |inventory, identity| inventory.ancestors.contains(&identity))
    }
}

impl ProtectedName {
    fn matches(&self, name: &OsStr) -> bool {
        match self {
            Self::Exact(known) => known == name,
            Self::WithSuffixes(known) => {
                let rest = name.as_bytes().strip_prefix(known.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
            }
        }
    }
}

impl Inventory {
    fn is_valid_for(&self, object: &Stat) -> bool {
        let Some((wall, boot)) = self.taken else { return false };
        if now(ClockId::Boottime) - boot > MAX_AGE_NS {
            return false;
        }
        let (device, _) = object.identity();
        // Nothing on a device without protected objects is protected, whenever it was changed.
        !self.devices.contains(&device) || in_nanoseconds(object.changed) + CLOCK_GRAIN_NS < wall
    }

    /// Takes a new inventory. Reuses listings of directories that have not changed.
    fn take(&mut self, paths: &[PathBuf]) {
        let taken = (now(ClockId::Realtime), now(ClockId::Boottime));
        let before = std::mem::take(self);
        let settled_before = before.taken.map_or(i128::MIN, |(wall, _)| wall - CLOCK_GRAIN_NS);
        let mut walk = ProtectedWalk { inventory: self, before: &before.listings, settled_before };
        for path in paths {
            walk.trace(path);
        }
        self.taken = Some(taken);
    }

    fn add(&mut self, identity: FileIdentity) {
        self.devices.insert(identity.0);
        self.objects.insert(identity);
    }

    fn add_name(&mut self, directory: FileIdentity, name: ProtectedName) {
        self.devices.insert(directory.0);
        let names = self.names.entry(directory).or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
}

/// One run of `Inventory::take`.
struct ProtectedWalk<'a> {
    inventory: &'a mut Inventory,
    /// Listings of the previous inventory.
    before: &'a HashMap<FileIdentity, DirectoryListing>,
    /// A directory that changed before this time was listed completely last time.
    settled_before: i128,
}

impl ProtectedWalk<'_> {
    /// Follows a path component by component, through symbolic links, and records what it passes. Stops at a missing
    /// component and protects its name.
    fn trace(&mut self, path: &Path) -> Option<()> {
        let mut rest = reversed_parts(path);
        let mut dir = open_path(CWD, OsStr::new("/"))?;
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let own = Stat::of(dir.as_fd()).ok()?.identity();
            if name == ".." {
                dir = open_path(dir.as_fd(), &name)?;
                continue;
            }
            self.inventory.ancestors.insert(own);
            let is_last = rest.is_empty();
            let Ok(stat) = Stat::entry(dir.as_fd(), &name) else {
                let name = if is_last { ProtectedName::WithSuffixes(name) } else { ProtectedName::Exact(name) };
                self.inventory.add_name(own, name);
                return None;
            };
            match stat.kind {
                FileKind::Symlink => {
                    self.inventory.add_name(own, ProtectedName::Exact(name.clone()));
                    links += 1;
                    let target = rustix::fs::readlinkat(&dir, &name, Vec::new()).ok().filter(|_| links <= MAX_LINKS)?;
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    if target.is_absolute() {
                        dir = open_path(CWD, OsStr::new("/"))?;
                    }
                    rest.extend(reversed_parts(&target));
                }
                FileKind::Directory => {
                    dir = open_path(dir.as_fd(), &name)?;
                    if is_last {
                        self.directory(dir.as_fd(), MAX_DEPTH);
                    }
                }
                FileKind::File | FileKind::Fifo | FileKind::Socket | FileKind::Device => {
                    self.inventory.add(stat.identity());
                    self.inventory.add_name(own, ProtectedName::WithSuffixes(name));
                }
            }
        }
        Some(())
    }

    /// Records a directory and everything below it.
    fn directory(&mut self, dir: BorrowedFd<'_>, depth: usize) {
        let Ok(stat) = Stat::of(dir) else { return };
        let identity = stat.identity();
        self.inventory.add(identity);
        if depth == 0 {
            return;
        }
        let changed = stat.changed;
        let is_settled = in_nanoseconds(changed) < self.settled_before;
        let known = self.before.get(&identity).filter(|known| is_settled && known.changed == changed);
        let listing = known.cloned().unwrap_or_else(|| list(dir, changed));
        for file in &listing.files {
            self.inventory.add(*file);
        }
        for name in &listing.directories {
            if let Some(below) = open_path(dir, name) {
                self.directory(below.as_fd(), depth - 1);
            }
        }
        self.inventory.listings.insert(identity, listing);
    }
}

/// Lists a directory. An entry that vanishes while it is listed is ignored: it no longer belongs to the server.
fn list(dir: BorrowedFd<'_>, changed: Moment) -> DirectoryListing {
    let mut listing = DirectoryListing { changed, files: Vec::new(), directories: Vec::new() };
    for (name, stat) in entries(dir) {
        if stat.kind == FileKind::Directory {
            listing.directories.push(name);
        } else {
            listing.files.push(stat.identity());
        }
    }
    listing
}

fn entries(dir: BorrowedFd<'_>) -> Vec<(OsString, Stat)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(listed) = rustix::fs::openat(dir, ".", flags, Mode::empty()).and_then(Dir::new) else { return Vec::new() };
    let names = listed.filter_map(Result::ok).map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()));
    let names = names.filter(|name| name != "." && name != "..");
    names.filter_map(|name| Stat::entry(dir, &name).ok().map(|stat| (name, stat))).collect()
}

/// Finds a file at or below these paths that has more than one hard link. A sandbox cannot hide the other link.
pub(crate) fn find_hard_linked(paths: &[PathBuf]) -> Option<PathBuf> {
    paths.iter().find_map(|path| hard_linked(path, MAX_DEPTH))
}

fn hard_linked(path: &Path, depth: usize) -> Option<PathBuf> {
    // Follow symbolic links: these paths come from the server's configuration.
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let stat = Stat::of(fd.as_fd()).ok()?;
    match stat.kind {
        FileKind::Directory if depth > 0 => entries(fd.as_fd()).into_iter().find_map(|(name, stat)| match stat.kind {
            FileKind::Directory => hard_linked(&path.join(name), depth - 1),
            FileKind::Symlink => None,
            _ => (stat.links > 1).then(|| path.join(name)),
        }),
        FileKind::Directory => None,
        _ => (stat.links > 1).then(|| path.to_owned()),
    }
}

/// The components of a path in reverse order, to be popped from the end.
fn reversed_parts(path: &Path) -> Vec<OsString> {
    let named = path.components().rev().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    named.map(|part| part.as_os_str().to_owned()).collect()
}

fn open_path(dir: BorrowedFd<'_>, name: &OsStr) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).ok()
}

fn in_nanoseconds(moment: Moment) -> i128 {
    i128::from(moment.seconds) * 1_000_000_000 + i128::from(moment.nanos)
}

fn now(clock: ClockId) -> i128 {
    let now = clock_gettime(clock);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::symlink,
    };

    use super::*;

    fn stat(path: &Path) -> Stat {
        let parent = File::open(path.parent().expect("a parent")).expect("open it");
        Stat::entry(parent.as_fd(), path.file_name().expect("a name")).expect("look at it")
    }

    #[test]
    fn objects_in_a_protected_directory_are_protected_even_if_created_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("its real path");
        let state = base.join("state");
        fs::create_dir_all(state.join("sessions/one")).expect("make directories");
        fs::write(state.join("token"), "t").expect("write");
        fs::write(base.join("other"), "o").expect("write");
        let own = OwnFiles::new(vec![state.clone()]);
        for path in ["", "token", "sessions", "sessions/one"] {
            assert!(own.protects(&stat(&state.join(path))), "{path}");
        }
        assert!(!own.protects(&stat(&base.join("other"))));
        // Created after the first inventory.
        fs::create_dir(state.join("sessions/two")).expect("make a directory");
        fs::write(state.join("sessions/two/secret"), "s").expect("write");
        for path in ["sessions/two", "sessions/two/secret"] {
            assert!(own.protects(&stat(&state.join(path))), "{path}");
        }
        fs::hard_link(state.join("token"), base.join("alias")).expect("link");
        assert!(own.protects(&stat(&base.join("alias"))));
        assert_eq!(find_hard_linked(std::slice::from_ref(&state)), Some(state.join("token")));
        assert!(own.keeps(&stat(&base)) && !own.keeps(&stat(&state)));
    }

    #[test]
    fn names_on_the_path_to_a_missing_file_are_protected() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("its real path");
        fs::create_dir(base.join("real")).expect("make a directory");
        symlink("real", base.join("link")).expect("link");
        let own = OwnFiles::new(vec![base.join("link/tokens.toml")]);
        let names = |dir: &Path, name: &str| own.protects_name(&stat(dir), OsStr::new(name));
        assert!(names(&base, "link") && !names(&base, "real") && !names(&base, "link.x"));
        for name in ["tokens.toml", "tokens.toml.new", "tokens.toml.1"] {
            assert!(names(&base.join("real"), name), "{name}");
        }
        for name in ["tokens", "tokens.toml2", "other"] {
            assert!(!names(&base.join("real"), name), "{name}");
        }
        assert!(own.keeps(&stat(&base.join("real"))));
        fs::write(base.join("real/tokens.toml"), "").expect("write");
        assert!(own.protects(&stat(&base.join("real/tokens.toml"))));
    }
}
