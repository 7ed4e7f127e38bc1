//! Reads and replaces the small files of a session's directory: the manifest, the lease clock and the tombstone.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::AsFd,
};

use exec_server_log::failpoint;
use rustix::fs::{AtFlags, Mode, OFlags};

/// Opens the file. `None` if it does not exist.
pub(crate) fn open(dir: impl AsFd, name: &str) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes the file as `NAME.new` and then renames it, so that a reader never finds a part of the file.
pub(crate) fn replace(dir: impl AsFd, name: &str, text: &str) -> io::Result<()> {
    let dir = dir.as_fd();
    let unfinished = format!("{name}.new");
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    failpoint::step("replace create");
    let file = rustix::fs::openat(dir, &unfinished, flags, Mode::RUSR | Mode::WUSR)?;
    failpoint::step("replace write");
    let written = File::from(file).write_all(text.as_bytes());
    let renamed = written.and_then(|()| {
        failpoint::step("replace rename");
        Ok(rustix::fs::renameat(dir, &unfinished, dir, name)?)
    });
    if renamed.is_err() {
        // Readers ignore the unfinished file, so it does not matter if it cannot be removed.
        rustix::fs::unlinkat(dir, &unfinished, AtFlags::empty()).ok();
    }
    renamed
}
