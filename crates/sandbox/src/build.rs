//! Builds a view from a script, in a new mount namespace.
//!
//! Runs in a single-threaded process that does nothing else, because it leaves its namespaces. Paths are opened without
//! following symbolic links. So if a component was replaced by a link since the policy was resolved, the build fails
//! instead of using another path. The returned fds keep the namespace alive; no process needs to be in it.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount},
    process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior},
};

use crate::{
    kernel_files,
    script::{ViewScript, ViewStep},
    system,
};

/// Where the empty tree is mounted before it becomes the root. Any directory would do, and every host has this one.
const STAGE: &str = "/proc";

#[derive(Debug)]
pub struct BuiltView {
    /// The user namespace that owns the mount namespace. `None` if the process had the privileges without one.
    pub user: Option<OwnedFd>,
    pub mounts: OwnedFd,
    /// The root directory. Resolve paths from it with `RESOLVE_IN_ROOT`.
    pub root: OwnedFd,
}

/// A failed step.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct BuildError {
    /// The attempted operation and its path.
    pub what: String,
    pub source: io::Error,
}

trait BuildContext<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, BuildError>;
}

impl<T, E: Into<io::Error>> BuildContext<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, BuildError> {
        self.map_err(|source| BuildError { what: what(), source: source.into() })
    }
}

/// Enters new namespaces and builds the view in them. The process is of no other use afterwards.
pub fn build(script: &ViewScript) -> Result<BuiltView, BuildError> {
    let user = enter_namespaces()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mounts =
        rustix::fs::open("/proc/self/ns/mnt", flags, Mode::empty()).doing(|| "open the mount namespace".to_owned())?;
    // Stop mount propagation, so that the mounts of the view do not appear on the host, nor later mounts of the host in
    // the view.
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .doing(|| "make `/` a private mount".to_owned())?;
    let null = system::open_path(CWD, Path::new("/dev/null")).doing(|| "find `/dev/null`".to_owned())?;
    // Open `/proc` before the root is replaced, because the view may not contain it.
    let proc = system::open_path(CWD, Path::new("/proc")).doing(|| "open `/proc`".to_owned())?;
    let copies = copy_sources(script)?;
    let mut builder = ViewBuilder { trees: BTreeMap::new(), null, mask: None };
    if script.is_empty_tree {
        builder.begin_empty()?;
    } else if script.is_read_only {
        let root = system::open_path(CWD, Path::new("/")).doing(|| "open `/`".to_owned())?;
        system::set_attributes(root.as_fd(), libc::MOUNT_ATTR_RDONLY, true)
            .doing(|| "make `/` read-only".to_owned())?;
    }
    for ((path, step), copy) in script.steps.iter().zip(copies) {
        builder.apply(path, step, copy).doing(|| format!("{} `{}`", step.verb(), path.display()))?;
    }
    // All mount points and links in our tmpfs instances exist now, so the instances can become read-only. This is not
    // recursive: the bind mounts in them keep their attributes.
    for (path, tree) in &builder.trees {
        system::set_attributes(tree.as_fd(), libc::MOUNT_ATTR_RDONLY, false)
            .doing(|| format!("make the tmpfs on `{}` read-only", path.display()))?;
    }
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .doing(|| "open the view".to_owned())?;
    if script.is_empty_tree {
        // `pivot_root(".", ".")` mounted the old root over the new one. Paths from `/` begin at the new root, but
        // `unmount` follows `.` to the mount on top. The unmount must come after the steps: `mask_file` clones the
        // `/dev/null` of the old root, and the kernel clones only mounts of this namespace.
        unmount(".", UnmountFlags::DETACH).doing(|| "unmount the old root".to_owned())?;
    }
    if script.is_for_process {
        kernel_files::protect(proc.as_fd()).doing(|| "make the kernel's file systems read-only".to_owned())?;
    }
    Ok(BuiltView { user, mounts, root })
}

/// Enters a new mount namespace. Without the privilege for that, also enters a new user namespace that maps our own uid
/// and gid.
fn enter_namespaces() -> Result<Option<OwnedFd>, BuildError> {
    let unshare = |flags: libc::c_int| system::io_call(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0]);
    match unshare(libc::CLONE_NEWNS) {
        Ok(_) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        Err(error) => return Err(error).doing(|| "create a mount namespace".to_owned()),
    }
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).doing(|| "create a user and a mount namespace".to_owned())?;
    // The `/proc/self` files of a process that is not dumpable belong to root, and then we could not write the maps.
    set_dumpable_behavior(DumpableBehavior::Dumpable).doing(|| "become dumpable".to_owned())?;
    // The kernel requires `deny` in `setgroups` before an unprivileged process may write `gid_map`.
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("gid_map", format!("{gid} {gid} 1")),
        ("uid_map", format!("{uid} {uid} 1")),
    ];
    for (name, text) in maps {
        fs::write(format!("/proc/self/{name}"), text).doing(|| format!("write `/proc/self/{name}`"))?;
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).doing(|| "become undumpable".to_owned())?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open("/proc/self/ns/user", flags, Mode::empty())
        .doing(|| "open the user namespace".to_owned())
        .map(Some)
}

/// Clones the source of each bind mount, in the order of the steps; `None` for the other steps. Must run before any
/// path is changed or covered.
fn copy_sources(script: &ViewScript) -> Result<Vec<Option<OwnedFd>>, BuildError> {
    let copy = |(path, step): &(PathBuf, ViewStep)| {
        let ViewStep::Bind { is_read_only, .. } = step else { return Ok(None) };
        let what = || format!("copy `{}`", path.display());
        let source = system::open_path(CWD, path).doing(what)?;
        let tree = system::clone_tree(source.as_fd()).doing(what)?;
        if *is_read_only {
            system::set_attributes(tree.as_fd(), libc::MOUNT_ATTR_RDONLY, true)
                .doing(|| format!("make `{}` read-only", path.display()))?;
        }
        Ok(Some(tree))
    };
    script.steps.iter().map(copy).collect()
}

impl ViewStep {
    /// The operation, for error texts.
    fn verb(&self) -> &'static str {
        match self {
            Self::Bind { .. } => "mount",
            Self::MaskDir { .. } | Self::MaskFile => "mask",
            Self::Terminals => "mount devpts on",
            Self::Link { .. } => "create the link",
        }
    }
}

struct ViewBuilder {
    /// Our tmpfs instances, by mount point.
    trees: BTreeMap<PathBuf, OwnedFd>,
    null: OwnedFd,
    /// The first empty mask for directories. Further masks are clones of it.
    mask: Option<OwnedFd>,
}

impl ViewBuilder {
    /// Makes an empty tmpfs the root.
    fn begin_empty(&mut self) -> Result<(), BuildError> {
        let what = || "create an empty tree".to_owned();
        let tree = system::tmpfs(c"0755").doing(what)?;
        let stage = system::open_path(CWD, Path::new(STAGE)).doing(what)?;
        system::attach(tree.as_fd(), stage.as_fd()).doing(what)?;
        rustix::process::fchdir(&tree).doing(what)?;
        rustix::process::pivot_root(".", ".").doing(|| "make the empty tree the root".to_owned())?;
        self.trees.insert(PathBuf::from("/"), tree);
        Ok(())
    }

    fn apply(&mut self, path: &Path, step: &ViewStep, copy: Option<OwnedFd>) -> io::Result<()> {
        match step {
            ViewStep::Bind { is_dir, has_place, .. } => self.mount(copy, path, *is_dir, *has_place),
            ViewStep::MaskDir { is_open } => self.mask_dir(path, *is_open),
            ViewStep::MaskFile => self.mask_file(path),
            ViewStep::Terminals => self.make_terminals(path),
            ViewStep::Link { target } => self.make_link(path, target),
        }
    }

    fn mount(&self, copy: Option<OwnedFd>, path: &Path, is_dir: bool, has_place: bool) -> io::Result<()> {
        // Never `None` here: `copy_sources` has a copy for each `Bind`.
        let Some(copy) = copy else { return Ok(()) };
        let target = if has_place { system::open_path(CWD, path)? } else { self.make_mount_point(path, is_dir)? };
        system::attach(copy.as_fd(), target.as_fd())
    }

    fn mask_dir(&mut self, path: &Path, is_open: bool) -> io::Result<()> {
        let target = system::open_path(CWD, path)?;
        if is_open {
            let tree = system::tmpfs(c"0755")?;
            system::attach(tree.as_fd(), target.as_fd())?;
            self.trees.insert(path.to_owned(), tree);
            return Ok(());
        }
        let tree = match &self.mask {
            Some(mask) => system::clone_tree(mask.as_fd())?,
            None => system::tmpfs(c"0000")?,
        };
        system::set_attributes(tree.as_fd(), libc::MOUNT_ATTR_RDONLY, false)?;
        system::attach(tree.as_fd(), target.as_fd())?;
        self.mask.get_or_insert(tree);
        Ok(())
    }

    /// Covers a file with `/dev/null` on a `nodev` mount, where even root cannot open a device.
    fn mask_file(&self, path: &Path) -> io::Result<()> {
        let target = system::open_path(CWD, path)?;
        let cover = system::clone_tree(self.null.as_fd())?;
        let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
        system::set_attributes(cover.as_fd(), attributes, false)?;
        system::attach(cover.as_fd(), target.as_fd())
    }

    fn make_terminals(&self, path: &Path) -> io::Result<()> {
        let target = self.make_mount_point(path, true)?;
        system::attach(system::terminals()?.as_fd(), target.as_fd())
    }

    /// Our tmpfs that contains a path, and the path relative to that tmpfs. Creates the directories above the path.
    fn tree_of<'a>(&self, path: &'a Path) -> io::Result<(BorrowedFd<'_>, &'a Path)> {
        let found = path.ancestors().skip(1).find_map(|above| self.trees.get_key_value(above));
        let (above, tree) = found.ok_or(io::ErrorKind::NotFound)?;
        let rest = path.strip_prefix(above).map_err(io::Error::other)?;
        let parents: Vec<&Path> = rest.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
        for dir in parents.into_iter().rev() {
            unless_present(rustix::fs::mkdirat(tree, dir, Mode::from_raw_mode(0o755)))?;
        }
        Ok((tree.as_fd(), rest))
    }

    fn make_mount_point(&self, path: &Path, is_dir: bool) -> io::Result<OwnedFd> {
        let (tree, rest) = self.tree_of(path)?;
        unless_present(if is_dir {
            rustix::fs::mkdirat(tree, rest, Mode::from_raw_mode(0o755))
        } else {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(tree, rest, flags, Mode::from_raw_mode(0o444)).map(drop)
        })?;
        system::open_path(tree, rest)
    }

    fn make_link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let (tree, rest) = self.tree_of(path)?;
        unless_present(rustix::fs::symlinkat(target, tree, rest))
    }
}

/// Ignores the failure to create something that exists already.
fn unless_present(made: rustix::io::Result<()>) -> io::Result<()> {
    match made {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
