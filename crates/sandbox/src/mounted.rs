//! Whether the mounts of a view are where they were made. It must not know why they were.
//!
//! The kernel takes a mount away with the name that it lies on when that is removed by somebody who does not see the mount. What it
//! covered is open then to whoever still has the view, and a new file may even get the number of the old one.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::script::{Script, Step};

/// A view, and the mounts that it was made of.
#[derive(Debug)]
pub struct Mounted {
    root: OwnedFd,
    at: Vec<(PathBuf, u64)>,
}

impl Mounted {
    /// Looks at a view that was just made.
    pub fn look(root: &OwnedFd, script: &Script) -> io::Result<Self> {
        let root = root.try_clone()?;
        let mut at = Vec::new();
        for step in &script.steps {
            let path = match step {
                Step::Bind { path, .. }
                | Step::MaskDir { path, .. }
                | Step::MaskFile { path }
                | Step::Terminals { path } => path,
                Step::Link { .. } => continue,
            };
            at.push((path.clone(), mount_of(&root, path)?));
        }
        Ok(Self { root, at })
    }

    /// Whether all of them are there.
    pub fn is_whole(&self) -> bool {
        self.at.iter().all(|(path, mount)| mount_of(&self.root, path).is_ok_and(|found| found == *mount))
    }
}

fn mount_of(root: &OwnedFd, path: &Path) -> io::Result<u64> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    Ok(statx(root.as_fd(), below, flags, StatxFlags::MNT_ID)?.stx_mnt_id)
}
