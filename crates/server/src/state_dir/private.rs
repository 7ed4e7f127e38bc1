//! Whether a file that holds a secret, or says who may come in, is ours alone.
//! Must not know what is in it.

use std::{
    fs::{File, Metadata},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Entries of an access list, as `system.posix_acl_access` has them.
const OWNER: u8 = 0x01;
const USER: u8 = 0x02;
const MASK: u8 = 0x10;

/// Why a file is not ours alone.
#[derive(Debug, thiserror::Error)]
pub enum NotPrivate {
    /// Another user could have written it.
    #[error("`{}` belongs to uid {owner}; it must belong to us or to root", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users can read or write it.
    #[error("`{}` has mode {mode:04o}; others must not have access, as with 0600", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Accepts a file that only we, or root for us, can have written and read. Asked of the open file, not of the path: what is read is
/// what was checked.
pub(crate) fn check(file: &File, metadata: &Metadata, path: &Path) -> Result<(), NotPrivate> {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(NotPrivate::Owner { path: path.to_owned(), owner });
    }
    if mode & 0o077 != 0 && !is_listed_for_us(file, mode) {
        return Err(NotPrivate::Mode { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Whether the group's bits are only the mask of an access list that lets us alone read. So systemd hands a service that is not
/// root's its credentials: the file stays root's, with mode 0440 to look at.
fn is_listed_for_us(file: &File, mode: u32) -> bool {
    let mut list = [0; 512];
    let Ok(size) = rustix::fs::fgetxattr(file, "system.posix_acl_access", &mut list) else { return false };
    // Four bytes of version; then for each entry its kind, its rights and, for a named one, whose they are.
    let (entries, rest) = list[..size].get(4..).unwrap_or_default().as_chunks::<8>();
    let us = rustix::process::geteuid().as_raw();
    let is_harmless = |&[kind, _, rights, _, id @ ..]: &[u8; 8]| match kind {
        OWNER | MASK => true,
        USER => [0, us].contains(&u32::from_le_bytes(id)),
        _ => rights == 0,
    };
    mode & 0o037 == 0 && rest.is_empty() && entries.iter().all(is_harmless)
}
