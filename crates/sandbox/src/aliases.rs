//! Finds other paths of a file or directory that bind mounts create: mounts of it, of a directory above it, or of
//! something below it.
//!
//! The kernel's mount table says for each mount which part of which file system it shows. Two paths that show the same
//! part of the same device are the same object.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    mountinfo::{self, MountInfo},
    paths,
};

/// The mounts of this process, in the kernel's order.
#[derive(Debug, Default)]
pub(crate) struct MountTable(Vec<MountInfo>);

impl MountTable {
    /// Reads the table. Without `/proc` it is empty.
    pub(crate) fn read() -> Self {
        Self(mountinfo::parse(&fs::read("/proc/self/mountinfo").unwrap_or_default()).collect())
    }

    /// Other paths that lead to `real` or to something below it. `real` must not contain symbolic links.
    pub(crate) fn aliases(&self, real: &Path) -> Vec<PathBuf> {
        // Of several mounts on the same path, the last covers the others. `max_by_key` returns the last.
        let covering = self.0.iter().filter(|mount| real.starts_with(&mount.at));
        let Some(own) = covering.max_by_key(|mount| mount.at.components().count()) else { return Vec::new() };
        let Ok(below) = real.strip_prefix(&own.at) else { return Vec::new() };
        // The path of `real` within its file system.
        let part = joined(&own.root, below);
        let others = self.0.iter().filter(|mount| mount.device == own.device);
        others
            .filter_map(|mount| match part.strip_prefix(&mount.root) {
                Ok(rest) => Some(joined(&mount.at, rest)),
                // A mount of something below `real`.
                Err(_) => mount.root.starts_with(&part).then(|| mount.at.clone()),
            })
            .filter(|alias| !alias.starts_with(real))
            .collect()
    }

    /// The aliases that lead to the same object as `real`, and those that are mount points.
    pub(crate) fn present_aliases(&self, real: &Path) -> Vec<PathBuf> {
        let identity = paths::identity(real);
        let is_same = |alias: &Path| paths::identity(alias).is_some_and(|found| Some(found) == identity);
        // A mount of something below `real` has another identity, so the comparison would exclude it. Include all mount
        // points.
        let is_mount = |alias: &Path| self.0.iter().any(|mount| mount.at == alias);
        self.aliases(real).into_iter().filter(|alias| is_same(alias) || is_mount(alias)).collect()
    }
}

/// Joins without the trailing slash that `join` adds for an empty rest.
fn joined(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_owned() } else { base.join(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_the_same_part_of_a_file_system_are_aliases() {
        let mounts = mountinfo::parse(
            b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
              22 21 8:2 /@home /home rw - ext4 /dev/sdb rw\n\
              23 21 8:2 /@home/u/state /mnt/whole rw - ext4 /dev/sdb rw\n\
              24 21 8:2 /@home/u/state/sessions/1 /mnt/a\\040part rw - ext4 /dev/sdb rw\n\
              25 21 8:2 / /mnt/above rw - ext4 /dev/sdb rw\n\
              26 21 8:2 /@home/u/state/token /etc/alias rw - ext4 /dev/sdb rw\n\
              27 21 8:2 /@home/other /mnt/other rw - ext4 /dev/sdb rw\n\
              28 21 8:1 /@home/u/state /mnt/elsewhere rw - ext4 /dev/sda1 rw\n\
              29 22 8:2 /@home/u/state/x /home/u/state/inside rw - ext4 /dev/sdb rw\n",
        );
        let table = MountTable(mounts.collect());
        let expected =
            ["/mnt/whole", "/mnt/a part", "/mnt/above/@home/u/state", "/etc/alias"].map(PathBuf::from).to_vec();
        assert_eq!(table.aliases(Path::new("/home/u/state")), expected);
        assert_eq!(table.aliases(Path::new("/etc")), Vec::<PathBuf>::new());
    }
}
