//! Checks that the mounts of a view are still in place.
//!
//! When a process in another mount namespace removes a file or directory that is a mount point in the view, the kernel
//! removes the mount too. A path that the mount masked is then accessible in the view. The check compares mount ids and
//! not inode numbers, because a new file may get the inode number of the old one.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::script::{ViewScript, ViewStep};

/// A view, and the mount ids at its mount points.
#[derive(Debug)]
pub struct ViewMounts {
    root: OwnedFd,
    /// Each mount point with its mount id.
    at: Vec<(PathBuf, u64)>,
}

impl ViewMounts {
    /// Records the mounts of a view that was just built.
    pub fn record(root: &OwnedFd, script: &ViewScript) -> io::Result<Self> {
        let root = root.try_clone()?;
        let mut at = Vec::new();
        for (path, step) in &script.steps {
            if !matches!(step, ViewStep::Link { .. }) {
                at.push((path.clone(), mount_of(&root, path)?));
            }
        }
        Ok(Self { root, at })
    }

    /// Whether all mounts are still in place.
    pub fn is_whole(&self) -> bool {
        self.at.iter().all(|(path, mount)| mount_of(&self.root, path).is_ok_and(|found| found == *mount))
    }
}

fn mount_of(root: &OwnedFd, path: &Path) -> io::Result<u64> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    Ok(statx(root.as_fd(), below, flags, StatxFlags::MNT_ID)?.stx_mnt_id)
}
