//! Creates the Unix socket so that no other user can connect to it, replace it or imitate it.
//!
//! Three things keep other users out: they cannot change the entries of the directory, the socket has mode 0600 before
//! it listens, and admission checks the peer's uid. A directory that we create has mode 0700. An existing one must
//! belong to us or root, and be writable only by its owner or sticky like `/tmp`: there, others can add names but
//! cannot touch ours.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, MetadataExt},
            net::{UnixListener as StdListener, UnixStream as StdStream},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use tokio::net::UnixListener;

use crate::state_dir::if_exists;

/// Backlog of connections in the kernel.
const BACKLOG: i32 = 1024;

#[derive(Debug, thiserror::Error)]
pub enum UnixError {
    #[error("`{}` has no file name", path.display())]
    Name { path: PathBuf },
    /// Another user owns the directory and could replace the socket.
    #[error("directory `{}` belongs to uid {owner}; it must belong to us or to root", path.display())]
    DirOwner { path: PathBuf, owner: u32 },
    /// Other users can write to the directory and could replace the socket.
    #[error("directory `{}` has mode {mode:04o}, so others could replace the socket; use one with mode 0700", path.display())]
    DirMode { path: PathBuf, mode: u32 },
    /// The name is taken by something that is not our socket.
    #[error("`{}` exists and is not a socket of ours", path.display())]
    Occupied { path: PathBuf },
    /// A running server accepts connections on the socket.
    #[error("`{}` is in use by a running server", path.display())]
    InUse { path: PathBuf },
    /// `path` is the socket, or the directory that could not be created or opened.
    #[error("cannot create the socket: `{}`", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// A listening socket with a name in the file system. Dropping it removes the name if it still belongs to this socket.
pub(super) struct UnixSocket {
    pub(super) listener: UnixListener,
    dir: OwnedFd,
    name: OsString,
    /// Device and inode of the socket file, so that a successor's socket under the same name is not removed.
    identity: (u64, u64),
}

impl UnixSocket {
    /// Creates the socket at `path`. Replaces a socket of ours that a dead server left there.
    pub(super) fn bind(path: &Path) -> Result<Self, UnixError> {
        let failed = |source: io::Error| UnixError::Io { path: path.to_owned(), source };
        let name = path.file_name().ok_or_else(|| UnixError::Name { path: path.to_owned() })?;
        let dir = open_parent(path)?;
        check_name_is_free(&dir, name, path)?;
        // Bind under a temporary name: the real name must appear only when the socket has mode 0600 and listens.
        let temporary = temporary_name().map_err(failed)?;
        let listener = listen_at(&dir, &temporary).map_err(failed)?;
        let identity = stat(&dir, &temporary).map_err(failed)?;
        if let Err(errno) = rustix::fs::renameat(&dir, &temporary, &dir, name) {
            // Ignore an error of the cleanup and return that of the rename.
            rustix::fs::unlinkat(&dir, &temporary, AtFlags::empty()).ok();
            return Err(failed(errno.into()));
        }
        Ok(Self {
            listener: UnixListener::from_std(listener).map_err(failed)?,
            dir,
            name: name.to_owned(),
            identity: (identity.st_dev, identity.st_ino),
        })
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let is_ours = stat(&self.dir, &self.name).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity);
        if is_ours {
            // If this fails, a stale name is left, which the next server replaces.
            rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty()).ok();
        }
    }
}

/// Connects to a socket by directory fd and name, so that the length of its path does not matter.
pub(crate) fn connect(dir: &OwnedFd, name: &OsStr) -> io::Result<StdStream> {
    StdStream::connect(short_path(dir, name))
}

/// Opens the parent directory of `path`, creating it with mode 0700 if needed. Refuses a directory whose entries other
/// users can change.
fn open_parent(path: &Path) -> Result<OwnedFd, UnixError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let failed = |source: io::Error| UnixError::Io { path: parent.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
    let dir = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| failed(errno.into()))?;
    // Check the open directory instead of the path, so that the directory that was checked is the one that is used.
    let metadata = fs::metadata(format!("/proc/self/fd/{}", dir.as_raw_fd())).map_err(failed)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(UnixError::DirOwner { path: parent.to_owned(), owner });
    }
    let is_sticky = mode & 0o1000 != 0;
    if mode & 0o022 != 0 && !is_sticky {
        return Err(UnixError::DirMode { path: parent.to_owned(), mode });
    }
    Ok(dir)
}

/// Returns an error unless the name is free or belongs to a stale socket of ours.
fn check_name_is_free(dir: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), UnixError> {
    let stat = if_exists(stat(dir, name)).map_err(|source| UnixError::Io { path: path.to_owned(), source })?;
    let Some(stat) = stat else { return Ok(()) };
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    if !is_socket || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(UnixError::Occupied { path: path.to_owned() });
    }
    match connect(dir, name) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        // Removed in the meantime, so the name is free.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Any other error, such as EAGAIN for a full backlog, may come from a live socket.
        Ok(_) | Err(_) => Err(UnixError::InUse { path: path.to_owned() }),
    }
}

/// Binds, sets mode 0600, and only then listens. Until then connections are refused, regardless of the umask.
fn listen_at(dir: &OwnedFd, name: &OsStr) -> io::Result<StdListener> {
    let path = short_path(dir, name);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
    rustix::fs::chmod(&path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(StdListener::from(socket))
}

/// A short path to an entry of an open directory. A `sockaddr_un` holds only 108 bytes, and the real path may be
/// longer.
fn short_path(dir: &OwnedFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
}

fn stat(dir: &OwnedFd, name: &OsStr) -> io::Result<Stat> {
    Ok(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// A random temporary name. Short, because it must fit into a `sockaddr_un` together with the directory.
fn temporary_name() -> io::Result<OsString> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!(".exec-server-{}", hex::encode(random)).into())
}

#[cfg(test)]
mod tests;
