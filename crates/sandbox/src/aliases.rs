//! Finds other paths of a file or directory that bind mounts create: mounts of it, of a directory above it, or of
//! something below it.
//!
//! The kernel's mount table says for each mount which part of which file system it shows. Two paths that show the same
//! part of the same device are the same object.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use crate::paths;

/// One line of `mountinfo`: which part of a device is mounted where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MountInfo {
    device: String,
    root: PathBuf,
    at: PathBuf,
}

/// The mounts of this process, in the kernel's order.
#[derive(Debug, Default)]
pub(crate) struct MountTable(Vec<MountInfo>);

impl MountTable {
    /// Reads the table. Without `/proc` it is empty.
    pub(crate) fn read() -> Self {
        Self::parse(&fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    fn parse(table: &[u8]) -> Self {
        let mount = |line: &[u8]| {
            // id, parent, device, root, mount point. The other fields are not needed.
            let mut fields = line.split(|byte| *byte == b' ').skip(2);
            let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
            Some(MountInfo { device, root: unescaped(fields.next()?), at: unescaped(fields.next()?) })
        };
        Self(table.split(|byte| *byte == b'\n').filter_map(mount).collect())
    }

    /// Other paths that lead to `real` or to something below it. `real` must not contain links.
    pub(crate) fn aliases(&self, real: &Path) -> Vec<PathBuf> {
        // Of several mounts on the same path, the last covers the others. `max_by_key` returns the last.
        let covering = self.0.iter().filter(|mount| real.starts_with(&mount.at));
        let Some(own) = covering.max_by_key(|mount| mount.at.components().count()) else { return Vec::new() };
        let Ok(below) = real.strip_prefix(&own.at) else { return Vec::new() };
        let part = joined(&own.root, below);
        let others = self.0.iter().filter(|mount| mount.device == own.device);
        others
            .filter_map(|mount| match part.strip_prefix(&mount.root) {
                Ok(rest) => Some(joined(&mount.at, rest)),
                Err(_) => mount.root.starts_with(&part).then(|| mount.at.clone()),
            })
            .filter(|alias| !alias.starts_with(real))
            .collect()
    }

    /// The aliases that exist and are not covered by another mount.
    pub(crate) fn present_aliases(&self, real: &Path) -> Vec<PathBuf> {
        let identity = paths::identity(real);
        let is_same = |alias: &Path| paths::identity(alias).is_some_and(|found| Some(found) == identity);
        // A mount of something below `real` has another identity, so it cannot be compared. It is always included.
        let is_mount = |alias: &Path| self.0.iter().any(|mount| mount.at == alias);
        self.aliases(real).into_iter().filter(|alias| is_same(alias) || is_mount(alias)).collect()
    }
}

/// Joins without the trailing slash that `join` adds for an empty rest.
fn joined(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_owned() } else { base.join(rest) }
}

/// In `mountinfo`, space, tab, newline and backslash are three octal digits after a backslash.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let digit = |byte: u8| matches!(byte, b'0'..=b'7').then(|| u32::from(byte - b'0'));
        let escaped = match tail {
            [a, b, c, ..] if *first == b'\\' => digit(*a).zip(digit(*b)).zip(digit(*c)),
            _ => None,
        };
        match escaped.and_then(|((a, b), c)| u8::try_from(a * 64 + b * 8 + c).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shows_the_same_part_of_a_file_system_is_an_alias() {
        let table = MountTable::parse(
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
        let expected =
            ["/mnt/whole", "/mnt/a part", "/mnt/above/@home/u/state", "/etc/alias"].map(PathBuf::from).to_vec();
        assert_eq!(table.aliases(Path::new("/home/u/state")), expected);
        assert_eq!(table.aliases(Path::new("/etc")), Vec::<PathBuf>::new());
    }
}
