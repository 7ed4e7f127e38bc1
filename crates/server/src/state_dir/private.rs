//! Checks files with secrets or access rules: that no other user can read or change them, and whether they have
//! changed.

use std::{
    fs::{self, File, Metadata},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Entry tags in the xattr `system.posix_acl_access`.
const OWNER: u8 = 0x01;
const USER: u8 = 0x02;
const MASK: u8 = 0x10;

/// Why a file does not count as private.
#[derive(Debug, thiserror::Error)]
pub enum NotPrivate {
    /// Another user could have written it.
    #[error("`{}` belongs to uid {owner}; it must belong to us or to root", path.display())]
    Owner { path: PathBuf, owner: u32 },
    /// Other users can read or write it.
    #[error("`{}` has mode {mode:04o}; other users must not have access (use 0600)", path.display())]
    Mode { path: PathBuf, mode: u32 },
}

/// Metadata that differs between two versions of a file: device, inode, ctime and size. `None` if there is no file.
pub(crate) type FileStamp = Option<(u64, u64, i64, i64, u64)>;

/// The stamp of a file. Does not read the file.
pub(crate) fn stamp(path: &Path) -> FileStamp {
    let metadata = fs::metadata(path).ok()?;
    // Use the ctime, not the mtime: it changes even if a tool sets the mtime back, and with mode and owner.
    Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec(), metadata.size()))
}

/// Accepts a file that belongs to us or to root and that no other user can access. Takes the open file instead of a
/// path, so that the file that was checked is the file that is read.
pub(crate) fn check(file: &File, metadata: &Metadata, path: &Path) -> Result<(), NotPrivate> {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(NotPrivate::Owner { path: path.to_owned(), owner });
    }
    if mode & 0o077 != 0 && !is_acl_for_us_only(file, mode) {
        return Err(NotPrivate::Mode { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Whether the group bits of the mode are only the mask of an ACL that gives access only to us and root. This is
/// how systemd passes credentials to a service that is not root: the file belongs to root and shows mode 0440.
fn is_acl_for_us_only(file: &File, mode: u32) -> bool {
    let mut list = [0; 512];
    let Ok(size) = rustix::fs::fgetxattr(file, "system.posix_acl_access", &mut list) else { return false };
    // Layout: 4 bytes of version, then 8 bytes per entry: tag (u16), permissions (u16), and the uid or gid of a named
    // entry (u32), all little-endian.
    let (entries, rest) = list[..size].get(4..).unwrap_or_default().as_chunks::<8>();
    let us = rustix::process::geteuid().as_raw();
    let is_harmless = |&[kind, _, rights, _, id @ ..]: &[u8; 8]| match kind {
        OWNER | MASK => true,
        USER => [0, us].contains(&u32::from_le_bytes(id)),
        // Groups and all other users.
        _ => rights == 0,
    };
    mode & 0o037 == 0 && rest.is_empty() && entries.iter().all(is_harmless)
}
