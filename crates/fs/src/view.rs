//! Path resolution: the one place that turns a path into a file descriptor.
//!
//! A [`View`] contains everything, or what lies beneath certain root directories. To resolve a path, it makes one `openat2` call from the fd
//! of a root with `RESOLVE_BENEATH`: the kernel refuses any path that would leave the root, even if a component is swapped during the call.
//! With `openat2`, magic links (`/proc/*/fd`, `/proc/*/root`) are never followed. If the kernel has no `openat2`, only an unrestricted
//! view that follows links opens anything. It then uses `openat`, which also follows magic links.
//!
//! `RESOLVE_BENEATH` also refuses an absolute symbolic link that leads back beneath a root. In that case the view asks the kernel where the
//! path leads, and opens that result beneath its root without following any link. The result is only a hint; it never grants access.
//!
//! A view may belong to another [`FileTree`] than that of this process. Then every path starts at the root of that tree, including absolute
//! links (`RESOLVE_IN_ROOT`), and the view's roots are directories in it.

use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags},
    io::Errno,
    path::Arg,
};

use crate::{ErrorKind, FileKind, Guard, Stat};

/// How often to retry `openat2` after EAGAIN, which the kernel returns if a concurrent rename made the result uncertain.
const RACES: usize = 1024;

/// Maximum number of links followed in one path. The kernel has the same limit.
pub(crate) const LINKS: usize = 40;

/// Whether symbolic links in a path are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follow links, as the kernel does.
    Follow,
    /// A link anywhere in the path is an error.
    Refuse,
}

/// The part of the file system that paths may lead to.
#[derive(Debug, Default)]
pub struct View {
    /// A file tree other than that of this process. Every path starts and ends in it.
    tree: Option<Arc<FileTree>>,
    /// `None`: no restriction.
    roots: Option<Vec<ViewRoot>>,
    /// Refuses certain objects, by any path that leads to them.
    pub(crate) guard: Option<Arc<dyn Guard>>,
}

/// A file tree prepared by the caller, for example the mounts of a sandbox.
#[derive(Debug)]
pub struct FileTree {
    /// Root directory. Paths cannot lead out of it.
    pub root: OwnedFd,
    /// File systems (`st_dev`) that cover hidden files, or hold the directories on the way to visible ones. Nothing in
    /// them is visible except symbolic links, which may lead to something visible.
    pub covers: Vec<u64>,
    /// Paths, with links resolved, that must not be created, replaced or removed.
    pub absent: Vec<PathBuf>,
}

#[derive(Debug)]
struct ViewRoot {
    given: PathBuf,
    real: PathBuf,
    dir: OwnedFd,
}

/// The arguments of an `openat2` call.
struct OpenArguments<'a> {
    from: BorrowedFd<'a>,
    rest: PathBuf,
    resolve: ResolveFlags,
}

impl View {
    /// Everything that this process may access.
    #[must_use]
    pub fn everything() -> Self {
        Self::default()
    }

    /// Everything that is visible in a tree.
    #[must_use]
    pub fn of(tree: Arc<FileTree>) -> Self {
        Self { tree: Some(tree), ..Self::default() }
    }

    /// Only what lies beneath these directories. A directory that cannot be opened grants no access.
    pub fn beneath<P: AsRef<Path>>(roots: impl IntoIterator<Item = P>) -> Self {
        Self::everything().narrowed(roots)
    }

    /// Restricts this view to what lies beneath these directories. A directory that cannot be opened grants no access.
    #[must_use]
    pub fn narrowed<P: AsRef<Path>>(self, roots: impl IntoIterator<Item = P>) -> Self {
        let open = |given: &Path| -> Option<ViewRoot> {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let dir = match &self.tree {
                None => open_at(CWD, given, flags).ok()?,
                Some(_) => open_with(&self.unrestricted_arguments(given), flags).ok()?,
            };
            let real = real_path(dir.as_fd()).ok()?;
            Some(ViewRoot { given: given.to_owned(), real, dir })
        };
        let roots = Some(roots.into_iter().filter_map(|root| open(root.as_ref())).collect());
        Self { roots, ..self }
    }

    /// Excludes the objects that a guard protects.
    #[must_use]
    pub fn guarded(self, guard: Option<Arc<dyn Guard>>) -> Self {
        Self { guard, ..self }
    }

    /// Returns an error if the guard protects the object. Code that walks from fd to fd must call this for every object it opens.
    pub(crate) fn check_guard(&self, fd: BorrowedFd<'_>) -> Result<(), ErrorKind> {
        match &self.guard {
            Some(guard) if guard.protects(&Stat::of(fd)?) => Err(ErrorKind::Protected),
            _ => Ok(()),
        }
    }

    /// Whether the view has neither roots nor a file tree. A guard does not count.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.roots.is_none() && self.tree.is_none()
    }

    /// The arguments that open a path without the view's roots: in the tree, or in the file system of this process.
    fn unrestricted_arguments(&self, path: &Path) -> OpenArguments<'_> {
        let (from, resolve) = match &self.tree {
            None => (CWD, ResolveFlags::NO_MAGICLINKS),
            Some(tree) => (tree.root.as_fd(), ResolveFlags::NO_MAGICLINKS | ResolveFlags::IN_ROOT),
        };
        OpenArguments { from, rest: path.to_owned(), resolve }
    }

    /// Returns an error if the object is on a cover file system, which must stay invisible.
    fn refuse_cover(&self, fd: OwnedFd) -> Result<OwnedFd, ErrorKind> {
        match &self.tree {
            Some(tree) if tree.covers.contains(&rustix::fs::fstat(&fd)?.st_dev) => Err(ErrorKind::OutsideView),
            _ => Ok(fd),
        }
    }

    /// Whether a file system only covers hidden files. Code that walks from fd to fd must check every directory that it enters.
    pub(crate) fn is_cover(&self, device: u64) -> bool {
        self.tree.as_ref().is_some_and(|tree| tree.covers.contains(&device))
    }

    /// Opens a path with the given flags. `CLOEXEC` is always added.
    pub fn open(&self, path: &Path, links: Links, flags: OFlags) -> Result<OwnedFd, ErrorKind> {
        let fd = self.open_including_covers(path, links, flags).and_then(|fd| self.refuse_cover(fd))?;
        self.check_guard(fd.as_fd())?;
        Ok(fd)
    }

    fn open_including_covers(&self, path: &Path, links: Links, flags: OFlags) -> Result<OwnedFd, ErrorKind> {
        match self.open_directly(path, links, flags) {
            Err(reason) if reason.is(Errno::XDEV) => self.open_by_hint(path, links, flags),
            other => other,
        }
    }

    /// Opens a directory for listing.
    pub(crate) fn open_directory(&self, path: &Path, links: Links) -> Result<OwnedFd, ErrorKind> {
        self.open(path, links, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a path with `O_PATH`: the fd identifies the object without opening it.
    pub fn locate(&self, path: &Path, links: Links) -> Result<OwnedFd, ErrorKind> {
        self.open(path, links, OFlags::PATH)
    }

    /// The parent directory of a path, and the last component. The last component itself is not resolved.
    pub fn parent<'a>(&self, path: &'a Path, links: Links) -> Result<(OwnedFd, &'a OsStr), ErrorKind> {
        let name = match path.components().next_back() {
            Some(Component::Normal(name)) => name,
            // `make_directory` relies on EBUSY for `/`.
            Some(Component::RootDir) | None => return Err(Errno::BUSY.into()),
            Some(_) => return Err(Errno::ISDIR.into()),
        };
        let parent = path.parent().unwrap_or_else(|| Path::new("/"));
        let dir = self.open_including_covers(parent, links, OFlags::PATH | OFlags::DIRECTORY)?;
        // A single visible file may lie in a directory that is itself invisible.
        let dir =
            if self.tree.is_none() || self.is_shown_in(dir.as_fd(), name) { dir } else { self.refuse_cover(dir)? };
        // The comparison of names is cheap, and usually saves the call of `real_path`.
        if let Some(tree) = &self.tree
            && tree.absent.iter().any(|path| path.ends_with(name))
            && tree.absent.contains(&real_path(dir.as_fd())?.join(name))
        {
            return Err(ErrorKind::OutsideView);
        }
        if let Some(guard) = &self.guard {
            let stat = Stat::of(dir.as_fd())?;
            if guard.protects(&stat) || guard.protects_name(&stat, name) {
                return Err(ErrorKind::Protected);
            }
        }
        Ok((dir, name))
    }

    /// Returns an error if a name must not be removed or replaced.
    ///
    /// - With a guard, this applies to protected objects and to directories on the path to one.
    /// - In a tree, it applies to a name with a mount on it: the mount protects the object beneath it from changes. The
    ///   kernel refuses the removal to processes inside the tree. We are outside of the tree, so an unlink would remove
    ///   the mount together with the name.
    pub(crate) fn refuse_protected(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), ErrorKind> {
        if let Some(guard) = &self.guard {
            let is_kept = match Stat::entry(dir, name) {
                Ok(stat) => guard.protects(&stat) || (stat.kind == FileKind::Directory && guard.keeps(&stat)),
                Err(reason) if reason.is(Errno::NOENT) => false,
                Err(reason) => return Err(reason),
            };
            if is_kept || guard.protects_name(&Stat::of(dir)?, name) {
                return Err(ErrorKind::Protected);
            }
        }
        if self.tree.is_none() {
            return Ok(());
        }
        match mount_id(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(mount_id) if mount_id != mount_id_of(dir)? => Err(Errno::BUSY.into()),
            Err(errno) if errno != Errno::NOENT => Err(errno.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Whether a name in a directory is visible, or is a link that may lead to something visible.
    fn is_shown_in(&self, dir: BorrowedFd<'_>, name: &OsStr) -> bool {
        let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        !self.is_cover(stat.st_dev) || FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
    }

    fn open_directly(&self, path: &Path, links: Links, flags: OFlags) -> Result<OwnedFd, ErrorKind> {
        let arguments = self.arguments(path, links)?;
        open_with(&arguments, flags).map_err(|errno| match (errno, links) {
            (Errno::LOOP, Links::Refuse) => ErrorKind::Symlink,
            // `open_with` has an alternative only for an unrestricted view that follows links.
            (Errno::NOSYS, _) => ErrorKind::Unsupported("this kernel cannot resolve paths safely (no openat2)"),
            (errno, _) => errno.into(),
        })
    }

    /// Asks the kernel where the path leads, and opens that result beneath its root without following any link.
    fn open_by_hint(&self, path: &Path, links: Links, flags: OFlags) -> Result<OwnedFd, ErrorKind> {
        if links == Links::Refuse {
            return Err(ErrorKind::OutsideView);
        }
        let arguments = self.unrestricted_arguments(path);
        // Report the same error for every path outside, so that the caller does not learn whether the file exists.
        let hint = open_with(&arguments, OFlags::PATH).map_err(|_| ErrorKind::OutsideView)?;
        let real = real_path(hint.as_fd()).map_err(|_| ErrorKind::OutsideView)?;
        drop(hint);
        match self.open_directly(&real, Links::Refuse, flags) {
            Err(reason) if reason.is(Errno::XDEV) || reason.is(Errno::NOENT) => Err(ErrorKind::OutsideView),
            other => other,
        }
    }

    fn arguments(&self, path: &Path, links: Links) -> Result<OpenArguments<'_>, ErrorKind> {
        let no_links = if links == Links::Refuse { ResolveFlags::NO_SYMLINKS } else { ResolveFlags::empty() };
        let Some(roots) = &self.roots else {
            let arguments = self.unrestricted_arguments(path);
            return Ok(OpenArguments { resolve: arguments.resolve | no_links, ..arguments });
        };
        for root in roots {
            let rest = match (path.strip_prefix(&root.real), path.strip_prefix(&root.given)) {
                (Ok(rest), _) => rest,
                // The path begins with the root as given. The root's real path differs, so the path contains a link.
                (Err(_), Ok(_)) if links == Links::Refuse => return Err(ErrorKind::Symlink),
                (Err(_), Ok(rest)) => rest,
                (Err(_), Err(_)) => continue,
            };
            let rest = if rest.as_os_str().is_empty() { PathBuf::from(".") } else { rest.to_owned() };
            let resolve = ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH | no_links;
            return Ok(OpenArguments { from: root.dir.as_fd(), rest, resolve });
        }
        // The path may contain a link that leads from outside into a root. EXDEV makes the caller try `open_by_hint`.
        if links == Links::Follow { Err(Errno::XDEV.into()) } else { Err(ErrorKind::OutsideView) }
    }
}

fn open_with(arguments: &OpenArguments<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let OpenArguments { from, rest, resolve } = arguments;
    for _ in 0..RACES {
        match rustix::fs::openat2(from, rest, flags | OFlags::CLOEXEC, Mode::empty(), *resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::NOSYS) if *resolve == ResolveFlags::NO_MAGICLINKS => return open_at(from, rest, flags),
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens a name with `openat`, without the checks of a view. The caller has opened `dir` through a view, or decides
/// itself that the path is allowed. `CLOEXEC` is always added.
pub(crate) fn open_at(dir: impl AsFd, name: impl Arg, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, Mode::empty())
}

/// The current path of an open object, with links resolved, as the kernel reports it.
pub(crate) fn real_path(fd: BorrowedFd<'_>) -> Result<PathBuf, ErrorKind> {
    let target = rustix::fs::readlinkat(CWD, proc_path(fd), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// A path that refers to an fd, for system calls that need a path. It names the fd table of this thread. `/proc/self`
/// would name that of the main thread, which differs if this thread has called `unshare(CLONE_FILES)`.
pub(crate) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/thread-self/fd/{}", fd.as_raw_fd())
}

/// The path that a link's text leads to. A relative text starts at the directory of the link.
pub(crate) fn link_target_path(dir: BorrowedFd<'_>, target: &[u8]) -> Result<PathBuf, ErrorKind> {
    let target = Path::new(OsStr::from_bytes(target));
    if target.is_absolute() { Ok(target.to_owned()) } else { Ok(real_path(dir)?.join(target)) }
}

/// The id of the mount that an object lies on.
pub(crate) fn mount_id_of(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    mount_id(fd, OsStr::new(""), AtFlags::EMPTY_PATH)
}

fn mount_id(dir: BorrowedFd<'_>, name: &OsStr, flags: AtFlags) -> Result<u64, Errno> {
    Ok(rustix::fs::statx(dir, name, flags | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID)?.stx_mnt_id)
}
