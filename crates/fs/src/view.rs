//! Where paths lead: the one place that turns a path into a descriptor.
//!
//! A [`View`] is everything, or what lies beneath some directories. Resolving is one `openat2` from the descriptor of such a
//! directory with `RESOLVE_BENEATH`: the kernel itself refuses whatever would leave it, also while somebody swaps a
//! component. Magic links (`/proc/*/fd`, `/proc/*/root`) are never followed. Where the kernel has no `openat2` a restricted view opens
//! nothing.
//!
//! An absolute link that leads back beneath a root is refused by `RESOLVE_BENEATH`, too. There the kernel is asked where the path
//! leads, and that answer is opened beneath its root without following any link: the answer is a hint, never a permission.
//!
//! A view may be of another [`Tree`] than this process's own: then every path begins at the root of that tree, absolute links too
//! (`RESOLVE_IN_ROOT`), and roots are directories in it.

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
};

use crate::{Guard, Stat, Trouble, Type};

/// How often the kernel is asked again that could not tell for sure because something was renamed meanwhile.
const RACES: usize = 1024;

/// Links that are followed in one path before it counts as a loop; the kernel's own bound.
pub(crate) const LINKS: usize = 40;

/// Whether links in a path are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// As the kernel does.
    Follow,
    /// Any link anywhere in the path is an error.
    Refuse,
}

/// Where paths may lead.
#[derive(Debug, Default)]
pub struct View {
    /// Another tree than this process's own, in which every path begins and ends.
    tree: Option<Arc<Tree>>,
    /// `None` means anywhere.
    roots: Option<Vec<Root>>,
    /// What is refused wherever it is found.
    guard: Option<Arc<dyn Guard>>,
}

/// A tree of files that somebody else has put together, such as that of a sandbox.
#[derive(Debug)]
pub struct Tree {
    /// Its root. Paths are resolved in it as if nothing else were there.
    pub root: OwnedFd,
    /// File systems (`st_dev`) that only cover what is hidden, or hold the way to what is not: nothing in them is shown.
    pub covers: Vec<u64>,
    /// What must not come into being, without links.
    pub absent: Vec<PathBuf>,
}

#[derive(Debug)]
struct Root {
    given: PathBuf,
    real: PathBuf,
    dir: OwnedFd,
}

/// A path on its way into the kernel.
struct Way<'a> {
    from: BorrowedFd<'a>,
    rest: PathBuf,
    resolve: ResolveFlags,
}

impl View {
    /// Everything that this process may touch.
    #[must_use]
    pub fn everything() -> Self {
        Self::default()
    }

    /// Everything that a tree shows.
    #[must_use]
    pub fn of(tree: Arc<Tree>) -> Self {
        Self { tree: Some(tree), ..Self::default() }
    }

    /// Only what lies beneath these directories. One that cannot be opened permits nothing.
    pub fn beneath<P: AsRef<Path>>(roots: impl IntoIterator<Item = P>) -> Self {
        Self::everything().narrowed(roots)
    }

    /// Only what lies beneath these directories of it. One that cannot be opened permits nothing.
    #[must_use]
    pub fn narrowed<P: AsRef<Path>>(self, roots: impl IntoIterator<Item = P>) -> Self {
        let open = |given: &Path| -> Option<Root> {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = match &self.tree {
                None => rustix::fs::openat(CWD, given, flags, Mode::empty()).ok()?,
                Some(_) => open_along(&self.anywhere(given), flags, Mode::empty()).ok()?,
            };
            let real = real_path(dir.as_fd()).ok()?;
            Some(Root { given: given.to_owned(), real, dir })
        };
        let roots = Some(roots.into_iter().filter_map(|root| open(root.as_ref())).collect());
        Self { roots, ..self }
    }

    /// The same without what a guard protects.
    #[must_use]
    pub fn guarded(self, guard: Option<Arc<dyn Guard>>) -> Self {
        Self { guard, ..self }
    }

    /// What its guard is, for what outlives the view.
    pub(crate) fn guard(&self) -> Option<&Arc<dyn Guard>> {
        self.guard.as_ref()
    }

    /// Refuses an object that the guard protects. Code that goes from descriptor to descriptor calls it for each object that it opens.
    pub(crate) fn admit(&self, fd: BorrowedFd<'_>) -> Result<(), Trouble> {
        match &self.guard {
            Some(guard) if guard.protects(&Stat::of(fd)?) => Err(Trouble::Protected),
            _ => Ok(()),
        }
    }

    /// Whether paths may lead anywhere.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.roots.is_none() && self.tree.is_none()
    }

    /// A path as it stands, in the tree or in this process's own.
    fn anywhere(&self, path: &Path) -> Way<'_> {
        let (from, resolve) = match &self.tree {
            None => (CWD, ResolveFlags::NO_MAGICLINKS),
            Some(tree) => (tree.root.as_fd(), ResolveFlags::NO_MAGICLINKS | ResolveFlags::IN_ROOT),
        };
        Way { from, rest: path.to_owned(), resolve }
    }

    /// Nothing of what covers something else, or only holds the way to it, is shown.
    fn shown(&self, fd: OwnedFd) -> Result<OwnedFd, Trouble> {
        match &self.tree {
            Some(tree) if tree.covers.contains(&rustix::fs::fstat(&fd)?.st_dev) => Err(Trouble::OutsideView),
            _ => Ok(fd),
        }
    }

    /// Whether a file system only covers what is hidden: who goes from descriptor to descriptor asks for each that he enters.
    pub(crate) fn is_cover(&self, device: u64) -> bool {
        self.tree.as_ref().is_some_and(|tree| tree.covers.contains(&device))
    }

    /// Opens a path. The flags are the caller's; `CLOEXEC` is always among them.
    pub fn open(&self, path: &Path, links: Links, flags: OFlags, mode: Mode) -> Result<OwnedFd, Trouble> {
        let fd = self.open_even_cover(path, links, flags, mode).and_then(|fd| self.shown(fd))?;
        self.admit(fd.as_fd())?;
        Ok(fd)
    }

    fn open_even_cover(&self, path: &Path, links: Links, flags: OFlags, mode: Mode) -> Result<OwnedFd, Trouble> {
        match self.open_directly(path, links, flags, mode) {
            Err(trouble) if trouble.is(Errno::XDEV) => self.open_by_hint(path, links, flags, mode),
            other => other,
        }
    }

    /// A descriptor that stands for a path and opens nothing.
    pub fn locate(&self, path: &Path, links: Links) -> Result<OwnedFd, Trouble> {
        self.open(path, links, OFlags::PATH, Mode::empty())
    }

    /// The directory that a path's last part is in, and that part. The part itself is not looked at.
    pub fn parent<'a>(&self, path: &'a Path, links: Links) -> Result<(OwnedFd, &'a OsStr), Trouble> {
        let name = match path.components().next_back() {
            Some(Component::Normal(name)) => name,
            Some(Component::RootDir) | None => return Err(Trouble::from(Errno::BUSY)),
            Some(_) => return Err(Trouble::from(Errno::ISDIR)),
        };
        let parent = path.parent().unwrap_or_else(|| Path::new("/"));
        let dir = self.open_even_cover(parent, links, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        // A file that is shown alone lies in a directory that is not.
        let dir = if self.tree.is_none() || self.is_shown_in(dir.as_fd(), name) { dir } else { self.shown(dir)? };
        if let Some(tree) = self.tree.as_ref().filter(|tree| tree.absent.iter().any(|path| path.ends_with(name))) {
            let whole = real_path(dir.as_fd())?.join(name);
            if tree.absent.contains(&whole) {
                return Err(Trouble::OutsideView);
            }
        }
        if let Some(guard) = &self.guard {
            let stat = Stat::of(dir.as_fd())?;
            if guard.protects(&stat) || guard.protects_name(&stat, name) {
                return Err(Trouble::Protected);
            }
        }
        Ok((dir, name))
    }

    /// Refuses to remove or replace a name. In a tree: one on which something is mounted, which is there to keep what lies beneath as it is.
    /// Whoever is in the tree is refused by the kernel; we are not in it, and would take the mount away with the name. On a name that
    /// is not there lies none. With a guard: what that protects, and directories that lead to it.
    pub(crate) fn refuse_kept(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Trouble> {
        if let Some(guard) = &self.guard {
            let is_kept = match Stat::entry(dir, name) {
                Ok(stat) => guard.protects(&stat) || (stat.kind == Type::Directory && guard.keeps(&stat)),
                Err(trouble) if trouble.is(Errno::NOENT) => false,
                Err(trouble) => return Err(trouble),
            };
            if is_kept || guard.protects_name(&Stat::of(dir)?, name) {
                return Err(Trouble::Protected);
            }
        }
        if self.tree.is_none() {
            return Ok(());
        }
        match mount(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(mount) if mount != mount_of(dir)? => Err(Errno::BUSY.into()),
            Err(errno) if errno != Errno::NOENT => Err(errno.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Whether a name in a directory is that of something shown, or of a link that may lead to it.
    fn is_shown_in(&self, dir: BorrowedFd<'_>, name: &OsStr) -> bool {
        let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        !self.is_cover(stat.st_dev) || FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
    }

    fn open_directly(&self, path: &Path, links: Links, flags: OFlags, mode: Mode) -> Result<OwnedFd, Trouble> {
        let way = self.way(path, links)?;
        open_along(&way, flags, mode).map_err(|errno| match (errno, links) {
            (Errno::LOOP, Links::Refuse) => Trouble::Symlink,
            // Without `openat2` only what nobody restricts can still be opened.
            (Errno::NOSYS, _) => Trouble::Unsupported("this kernel cannot resolve paths safely (no openat2)"),
            (errno, _) => errno.into(),
        })
    }

    /// Asks where the path leads and opens that, link by link refused, beneath the root that it lies in.
    fn open_by_hint(&self, path: &Path, links: Links, flags: OFlags, mode: Mode) -> Result<OwnedFd, Trouble> {
        if links == Links::Refuse {
            return Err(Trouble::OutsideView);
        }
        let anywhere = self.anywhere(path);
        // What lies outside is nobody's business here, not even whether it exists.
        let hint = open_along(&anywhere, OFlags::PATH, Mode::empty()).map_err(|_| Trouble::OutsideView)?;
        let real = real_path(hint.as_fd()).map_err(|_| Trouble::OutsideView)?;
        drop(hint);
        match self.open_directly(&real, Links::Refuse, flags, mode) {
            Err(trouble) if trouble.is(Errno::XDEV) || trouble.is(Errno::NOENT) => Err(Trouble::OutsideView),
            other => other,
        }
    }

    fn way(&self, path: &Path, links: Links) -> Result<Way<'_>, Trouble> {
        let no_links = if links == Links::Refuse { ResolveFlags::NO_SYMLINKS } else { ResolveFlags::empty() };
        let resolve = ResolveFlags::NO_MAGICLINKS | no_links;
        let Some(roots) = &self.roots else {
            let way = self.anywhere(path);
            return Ok(Way { resolve: way.resolve | no_links, ..way });
        };
        let beneath = |root: &Root, base: &Path| {
            let rest = path.strip_prefix(base).ok()?;
            let rest = if rest.as_os_str().is_empty() { PathBuf::from(".") } else { rest.to_owned() };
            Some((root.dir.as_raw_fd(), rest))
        };
        for root in roots {
            if beneath(root, &root.real).is_none() && links == Links::Refuse && beneath(root, &root.given).is_some() {
                return Err(Trouble::Symlink);
            }
            if let Some((_, rest)) = beneath(root, &root.real).or_else(|| beneath(root, &root.given)) {
                let resolve = resolve | ResolveFlags::BENEATH;
                return Ok(Way { from: root.dir.as_fd(), rest, resolve });
            }
        }
        // Perhaps by a link that leads in from outside; the hint will tell.
        if links == Links::Follow { Err(Errno::XDEV.into()) } else { Err(Trouble::OutsideView) }
    }
}

fn open_along(way: &Way<'_>, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    for _ in 0..RACES {
        match rustix::fs::openat2(way.from, &way.rest, flags, mode, way.resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::NOSYS) if way.resolve == ResolveFlags::NO_MAGICLINKS => {
                return rustix::fs::openat(way.from, &way.rest, flags, mode);
            }
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// The path of what a descriptor stands for, links resolved, as the kernel knows it now.
pub(crate) fn real_path(fd: BorrowedFd<'_>) -> Result<PathBuf, Trouble> {
    let target = rustix::fs::readlinkat(CWD, proc_path(fd), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// A name for a descriptor that the kernel takes where it wants a path. It is this thread's own table: a confined thread may
/// not share the process's.
pub(crate) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/thread-self/fd/{}", fd.as_raw_fd())
}

/// The path that a link's text leads to, seen from the directory that the link is in.
pub(crate) fn link_leads_to(dir: BorrowedFd<'_>, target: &[u8]) -> Result<PathBuf, Trouble> {
    let target = Path::new(OsStr::from_bytes(target));
    if target.is_absolute() { Ok(target.to_owned()) } else { Ok(real_path(dir)?.join(target)) }
}

/// The mount that something lies on.
pub(crate) fn mount_of(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    mount(fd, OsStr::new(""), AtFlags::EMPTY_PATH)
}

fn mount(dir: BorrowedFd<'_>, name: &OsStr, flags: AtFlags) -> Result<u64, Errno> {
    Ok(rustix::fs::statx(dir, name, flags | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID)?.stx_mnt_id)
}
