//! Objects that a view refuses wherever a path finds them: the files of the program that serves the request.
//!
//! The view asks its [`Guard`] about every object that it opens, by device and inode. A symbolic link, a bind mount or a hard link is a second
//! path to the same object and is refused like the first. Names of files that do not exist yet are refused in their directory.
//! This module must not know which objects these are.

use std::{ffi::OsStr, fmt};

use crate::Stat;

/// Says which objects nobody may touch through a view.
pub trait Guard: Send + Sync + fmt::Debug {
    /// Whether this object must not be opened, described, changed or removed.
    fn protects(&self, object: &Stat) -> bool;

    /// Whether this name in a directory must not be created, replaced or removed, whether or not something has it now.
    fn protects_name(&self, directory: &Stat, name: &OsStr) -> bool;

    /// Whether this directory leads to something protected, so that it must not be removed.
    fn keeps(&self, directory: &Stat) -> bool;
}
