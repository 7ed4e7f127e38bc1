//! Protects certain objects from access through a view, for example the files of the server itself.
//!
//! The view asks its [`Guard`] about every object that it opens, by device and inode. A symbolic link, a bind mount or a hard link is
//! another path to the same object, so it is refused as well. The name of a protected file that does not exist yet is refused in its
//! directory. The implementor of the trait decides which objects are protected.

use std::{ffi::OsStr, fmt};

use crate::Stat;

/// Decides which objects must not be accessed through a view.
pub trait Guard: Send + Sync + fmt::Debug {
    /// Whether this object must not be opened, described, changed or removed.
    fn protects(&self, object: &Stat) -> bool;

    /// Whether this name in a directory must not be created, replaced or removed, even if it does not exist now.
    fn protects_name(&self, directory: &Stat, name: &OsStr) -> bool;

    /// Whether this directory is on the path to a protected object and therefore must not be removed.
    fn keeps(&self, directory: &Stat) -> bool;
}
