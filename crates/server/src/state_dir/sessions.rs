//! The session directories of a state directory: create, list, read and remove them, relative to directory fds. Does
//! not interpret the contents of the files.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use exec_server_holder::spawner::SECRET_NAME;
use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags},
    io::Errno,
};

use super::{StateDir, if_exists};

/// Most bytes that are read of a file. Larger than any file that `read_small` is for.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// How many times `remove_session` empties a directory before it gives up.
const REMOVAL_ROUNDS: u32 = 8;

impl StateDir {
    /// The names of all session directories, in no particular order.
    pub fn session_ids(&self) -> io::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in Dir::read_from(&self.sessions)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && is_session_id(name)
            {
                ids.push(name.to_owned());
            }
        }
        Ok(ids)
    }

    /// Opens the directory of a session. Creates it if it is missing.
    pub fn session_dir(&self, id: &str) -> io::Result<OwnedFd> {
        check_id(id)?;
        match rustix::fs::mkdirat(&self.sessions, id, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.open_session_dir(id)
    }

    /// Opens the directory of a session. Fails if it is missing.
    pub fn open_session_dir(&self, id: &str) -> io::Result<OwnedFd> {
        check_id(id)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.sessions, id, flags, Mode::empty())?)
    }

    /// Replaces the record of a session atomically.
    pub fn write_record(&self, id: &str, record: &[u8]) -> io::Result<()> {
        let dir = self.session_dir(id)?;
        write_beside(dir.as_fd(), Path::new("record"), record)
    }

    /// The record of a session, or `None` if none was written.
    pub fn read_record(&self, id: &str) -> io::Result<Option<Vec<u8>>> {
        read_small(self.open_session_dir(id)?.as_fd(), "record")
    }

    /// Removes the secret of a holder that was never created or is not needed.
    pub(crate) fn forget_secret(&self, id: &str) {
        if let Ok(dir) = self.open_session_dir(id) {
            rustix::fs::unlinkat(&dir, SECRET_NAME, AtFlags::empty()).ok(); // ENOENT is fine.
        }
    }

    /// Removes all files of a session. Succeeds if the session does not exist.
    pub fn remove_session(&self, id: &str) -> io::Result<()> {
        check_id(id)?;
        let Some(dir) = if_exists(self.open_session_dir(id))? else { return Ok(()) };
        // A holder that is about to end may write its last file between emptying and removal. It writes only a
        // few files, fewer than there are rounds.
        for _ in 1..REMOVAL_ROUNDS {
            match self.empty_and_remove(&dir, id) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                done => return done,
            }
        }
        self.empty_and_remove(&dir, id)
    }

    fn empty_and_remove(&self, dir: &OwnedFd, id: &str) -> io::Result<()> {
        // A session directory is flat. A directory inside it is not ours, and `unlinkat` fails on it.
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                ignore_missing(rustix::fs::unlinkat(dir, name, AtFlags::empty()))?;
            }
        }
        ignore_missing(rustix::fs::unlinkat(&self.sessions, id, AtFlags::REMOVEDIR))
    }
}

/// Writes a temporary file in `dir` and renames it to `name`: a reader sees the old file or the new one, never a part.
pub(super) fn write_beside(dir: BorrowedFd<'_>, name: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = name.as_os_str().to_owned();
    beside.push(".new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, &beside, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(fd).write_all(bytes)?;
    Ok(rustix::fs::renameat(dir, &beside, dir, name)?)
}

/// Reads a small file of a session directory. `None` if it does not exist.
pub(super) fn read_small(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = if_exists(open_file(dir, name))? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Opens a file of a session directory for reading. Refuses a name that contains a path.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    check_name(name)?;
    // O_NONBLOCK: opening a FIFO in place of the file must not block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(dir, name, flags, Mode::empty())?))
}

/// Removes those segment files of a session directory for which `is_chosen` returns true.
pub(super) fn remove_segments(dir: BorrowedFd<'_>, is_chosen: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().to_str()
            && name.ends_with(".seg")
            && is_chosen(name)
        {
            ignore_missing(rustix::fs::unlinkat(dir, name, AtFlags::empty()))?;
        }
    }
    Ok(())
}

/// Removes a file of a session directory, if it exists. Refuses a name that contains a path.
pub(super) fn remove_file(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    check_name(name)?;
    ignore_missing(rustix::fs::unlinkat(dir, name, AtFlags::empty()))
}

fn check_name(name: &str) -> io::Result<()> {
    let is_path = name.is_empty() || name.contains('/') || name.starts_with('.');
    if is_path { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(()) }
}

/// A session id has only letters, digits and dashes, so that it can never be a path.
fn is_session_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn check_id(id: &str) -> io::Result<()> {
    if is_session_id(id) { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

fn ignore_missing(result: rustix::io::Result<()>) -> io::Result<()> {
    if_exists(result.map_err(io::Error::from)).map(drop)
}
