//! The state directory: the files through which a server hands its sessions to the next server. Owns the lock, the
//! token and the session directories.
//!
//! ```text
//! DIR/lock                     flock of the running server, its pid as text
//! DIR/boot                     boot id of the machine when the sessions were created
//! DIR/token                    the owner's token, mode 0600
//! DIR/tokens.toml              named tokens, by digest; written by `exec-server token`, read by `access`
//! DIR/placeholders             paths of placeholders (such as `.git`) for sandboxed processes; NUL-separated
//! DIR/dial.sock                socket for `dial-stdio`: newline-delimited JSON, after a blank line from the server
//! DIR/sessions/ID/record       what the next server needs to know of the session
//! DIR/sessions/ID/secret       secret that the session's holder expects in the first message
//! DIR/sessions/ID/cgroup       names the session's control group
//! DIR/sessions/ID/{sock, *.seg, expired}   created by the holder
//! DIR/sessions/ID/{processes, archived}    process list and lease clock; written by the holder, updated by the
//!                              server once there is no holder
//! ```
//!
//! Does not depend on the wire protocol, and reads neither the environment nor arguments: the caller passes all paths.

mod holders;
mod location;
pub(crate) mod private;
mod sessions;
mod token;

pub use holders::{SpawnedHolders, SpawnedHoldersConfig};
pub use location::{private_dir, shared_name, slug};
pub use private::NotPrivate;
pub use token::{Token, TokenDigest, TokenError};

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
};

use exec_server_holder::spawner::LOCK_NAME;
use rustix::fs::{FlockOperation, Mode, OFlags};

/// Changes with every boot. The processes and holders of an earlier boot are gone.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const PLACEHOLDERS: &str = "placeholders";

/// Name of the file with the named tokens, in a state directory.
pub const TOKENS: &str = "tokens.toml";

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory was missing and could not be created.
    #[error("create state directory `{}`", path.display())]
    Create { path: PathBuf, source: io::Error },
    /// The directory, or a file in it, could not be opened, read or written.
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Another user owns the directory and could change it while the server uses it.
    #[error("state directory `{}` belongs to uid {owner}, but this server runs as uid {us}", path.display())]
    Owner { path: PathBuf, owner: u32, us: u32 },
    /// The mode gives other users access.
    #[error("state directory `{}` has mode {mode:04o}; it must be 0700", path.display())]
    Mode { path: PathBuf, mode: u32 },
    /// A running server holds the lock.
    #[error("state directory `{}` is in use by a running exec-server, pid {}", path.display(), show_pid(*pid))]
    InUse {
        path: PathBuf,
        /// From the lock file; `None` if it could not be read.
        pid: Option<u32>,
    },
    #[error("token of state directory `{}`", path.display())]
    Token { path: PathBuf, source: TokenError },
}

/// An open and locked state directory. The lock is held until the value is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// `DIR/sessions`, open. Sockets are reached relative to this fd, so their paths always fit into a `sockaddr_un`.
    sessions: OwnedFd,
    /// Kept open for its flock. No process inherits it: the first spawner is forked before it is opened, a later one is
    /// executed (O_CLOEXEC), and children close all fds.
    _lock: File,
}

impl StateDir {
    /// Opens or creates the directory, locks it, and removes the sessions of an earlier boot.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        make(path)?;
        check(path)?;
        let lock = lock(path)?;
        let sessions_path = path.join("sessions");
        make(&sessions_path)?;
        check(&sessions_path)?;
        let sessions = open_dir(&sessions_path)?;
        let state = Self { path: path.to_owned(), sessions, _lock: lock };
        state.forget_earlier_boot()?;
        Ok(state)
    }

    /// Whether our path still names the directory that was opened.
    pub fn is_there(&self) -> bool {
        let Ok(own) = rustix::fs::fstat(&self.sessions) else { return false };
        fs::metadata(self.path.join("sessions"))
            .is_ok_and(|found| (found.dev(), found.ino()) == (own.st_dev, own.st_ino))
    }

    /// The recorded paths of placeholders, of this server and of earlier ones; see `placeholder`.
    pub fn placeholders(&self) -> Vec<PathBuf> {
        let bytes = fs::read(self.path.join(PLACEHOLDERS)).unwrap_or_default();
        let paths = bytes.split(|byte| *byte == 0).filter(|path| path.first() == Some(&b'/'));
        paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect()
    }

    /// Records placeholder paths for the next server. Removes the file if there are none.
    pub fn keep_placeholders(&self, paths: &[PathBuf]) -> io::Result<()> {
        let file = self.path.join(PLACEHOLDERS);
        if paths.is_empty() {
            return if_exists(fs::remove_file(&file)).map(drop);
        }
        let paths: Vec<&[u8]> = paths.iter().map(|path| path.as_os_str().as_bytes()).collect();
        write_private(&file, &paths.join(&0))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The token of this directory, created by the first call. It is kept, so a restarted server prints the same URL.
    pub fn token(&self) -> Result<Token, OpenError> {
        Token::kept_in(&self.path.join("token")).map_err(|source| OpenError::Token { path: self.path.clone(), source })
    }

    /// Removes the whole directory. For a private directory, when the server ends.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }

    /// Removes the session directories of an earlier boot: processes and holders do not survive a reboot.
    fn forget_earlier_boot(&self) -> Result<(), OpenError> {
        let file = self.path.join("boot");
        let now = fs::read(BOOT_ID).map_err(|source| OpenError::Io { path: BOOT_ID.into(), source })?;
        let before = if_exists(fs::read(&file)).map_err(|source| OpenError::Io { path: file.clone(), source })?;
        if before.as_ref() == Some(&now) {
            return Ok(());
        }
        if before.is_some() {
            let failed = |source| OpenError::Io { path: self.path.join("sessions"), source };
            let ids = self.session_ids().map_err(failed)?;
            for id in &ids {
                self.remove_session(id).map_err(failed)?;
            }
            if !ids.is_empty() {
                tracing::warn!(sessions = ids.len(), dir = %self.path.display(), "removed sessions of an earlier boot");
            }
        }
        write_private(&file, &now).map_err(|source| OpenError::Io { path: file, source })
    }
}

/// Creates a directory with mode 0700, and its missing parents.
fn make(path: &Path) -> Result<(), OpenError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| OpenError::Create { path: path.to_owned(), source })
}

/// Refuses a directory that another user could read or change. If it is ours and empty, the mode is changed to 0700
/// instead: nothing in it can have leaked.
fn check(path: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(failed)?;
    let us = rustix::process::geteuid().as_raw();
    if metadata.uid() != us {
        return Err(OpenError::Owner { path: path.to_owned(), owner: metadata.uid(), us });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let is_empty = fs::read_dir(path).map_err(failed)?.next().is_none();
    if !is_empty {
        return Err(OpenError::Mode { path: path.to_owned(), mode });
    }
    rustix::fs::chmod(path, Mode::RWXU).map_err(|errno| failed(errno.into()))
}

/// Takes the lock, or returns `OpenError::InUse` with the pid of the server that has it.
fn lock(path: &Path) -> Result<File, OpenError> {
    let file_path = path.join(LOCK_NAME);
    let failed = |source| OpenError::Io { path: file_path.clone(), source };
    let mut options = OpenOptions::new();
    // Do not truncate before the lock is held: the file contains the pid of the server that has it.
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&file_path).map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            // The pid only improves the error message, so a failed read is ignored.
            file.read_to_string(&mut text).ok();
            return Err(OpenError::InUse { path: path.to_owned(), pid: text.trim().parse().ok() });
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    file.set_len(0).map_err(failed)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
    Ok(file)
}

fn open_dir(path: &Path) -> Result<OwnedFd, OpenError> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| OpenError::Io { path: path.to_owned(), source: errno.into() })
}

/// `None` if the file does not exist.
pub(crate) fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Writes a temporary file with mode 0600 and renames it to `path`. A crash of the server leaves the old or the new
/// file.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let dir = rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    sessions::write_beside(dir.as_fd(), Path::new(name), bytes)
}

/// Like `write_private`, but also syncs the file before the rename, so that a crash of the machine cannot leave a part.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

fn show_pid(pid: Option<u32>) -> String {
    pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
}

#[cfg(test)]
mod tests;
