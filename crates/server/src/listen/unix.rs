//! The Unix socket: made so that nobody else can reach, replace or imitate it.
//!
//! Three things keep others out: nobody else may change the directory's entries, the socket is 0600 before it listens,
//! and the door asks the kernel for the peer's uid. A directory that we make is 0700. One that exists must belong to us
//! or root and be writable by the owner alone; or be sticky like `/tmp`, where others can add names but cannot touch ours.
//! Must not know what is spoken over it.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, MetadataExt},
            net::{UnixListener as StdListener, UnixStream as StdStream},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use tokio::net::UnixListener;

/// Connections the kernel may hold for us.
const BACKLOG: i32 = 1024;

/// Why a Unix socket was not made.
#[derive(Debug, thiserror::Error)]
pub enum UnixError {
    /// The path names no file in a directory.
    #[error("`{}` has no file name", path.display())]
    Name {
        /// The path.
        path: PathBuf,
    },
    /// The directory belongs to somebody who could replace the socket.
    #[error("directory `{}` belongs to uid {owner}; it must belong to us or to root", path.display())]
    DirOwner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others could replace the socket.
    #[error("directory `{}` has mode {mode:04o}, so others could replace the socket; use one with mode 0700", path.display())]
    DirMode {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Something that is not a socket of ours has the name.
    #[error("`{}` exists and is not a socket of ours", path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// A server answers there.
    #[error("`{}` is in use by a running server", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("make socket `{}`", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A listening socket with a name in the file system, which goes away with the value if it is still ours.
pub(super) struct UnixSocket {
    pub(super) listener: UnixListener,
    dir: OwnedFd,
    name: OsString,
    /// Device and inode of the name when it was made: a successor's socket under the same name is not removed.
    identity: (u64, u64),
}

impl UnixSocket {
    /// Makes the socket at `path`, replacing one that a dead server of ours left there.
    pub(super) fn bind(path: &Path) -> Result<Self, UnixError> {
        let failed = |source: io::Error| UnixError::Io { path: path.to_owned(), source };
        let name = path.file_name().ok_or_else(|| UnixError::Name { path: path.to_owned() })?;
        let dir = open_parent(path)?;
        check_occupied(&dir, name, path)?;
        // Bound under another name first: the real name appears only when the socket is 0600 and listens.
        let beside = beside().map_err(failed)?;
        let listener = listen_at(&dir, &beside).map_err(failed)?;
        let identity = stat(&dir, &beside).map_err(failed)?;
        if let Err(errno) = rustix::fs::renameat(&dir, &beside, &dir, name) {
            // The error that counts is the rename's.
            rustix::fs::unlinkat(&dir, &beside, AtFlags::empty()).ok();
            return Err(failed(errno.into()));
        }
        let socket = Self {
            listener: UnixListener::from_std(listener).map_err(failed)?,
            dir,
            name: name.to_owned(),
            identity: (identity.st_dev, identity.st_ino),
        };
        Ok(socket)
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let is_ours = stat(&self.dir, &self.name).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity);
        if is_ours {
            // Left behind it is only a stale name, which the next server replaces.
            rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty()).ok();
        }
    }
}

/// Connects to a socket by directory and name, whatever the length of its path.
pub(crate) fn connect(dir: &OwnedFd, name: &OsStr) -> io::Result<StdStream> {
    StdStream::connect(through(dir, name))
}

/// Opens the directory of `path`, made 0700 where it is missing, and refuses one whose entries others can change.
fn open_parent(path: &Path) -> Result<OwnedFd, UnixError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let failed = |source: io::Error| UnixError::Io { path: parent.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
    let dir = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| failed(errno.into()))?;
    // Asked of the open directory, not of the path: what is checked is what is used.
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

/// Lets only a stale socket of ours be replaced.
fn check_occupied(dir: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), UnixError> {
    let stat = match stat(dir, name) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(UnixError::Io { path: path.to_owned(), source });
        }
    };
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    if !is_socket || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(UnixError::Occupied { path: path.to_owned() });
    }
    match connect(dir, name) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        // Gone in between: as good as stale.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) | Err(_) => Err(UnixError::InUse { path: path.to_owned() }),
    }
}

/// Binds, closes the mode, and only then listens: before that a connection is refused whatever the umask was.
fn listen_at(dir: &OwnedFd, name: &OsStr) -> io::Result<StdListener> {
    let path = through(dir, name);
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
    rustix::fs::chmod(&path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(StdListener::from(socket))
}

/// A path of fixed length to an entry of an open directory: a socket address holds 108 bytes, a real path may be longer.
fn through(dir: &OwnedFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
}

fn stat(dir: &OwnedFd, name: &OsStr) -> io::Result<Stat> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| match errno {
        Errno::NOENT => io::ErrorKind::NotFound.into(),
        other => other.into(),
    })
}

/// A short random name: a long one would not fit into a socket address beside the directory's.
fn beside() -> io::Result<OsString> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let mut name = b".exec-server-".to_vec();
    for byte in random {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    Ok(OsStr::from_bytes(&name).to_owned())
}

#[cfg(test)]
mod tests;
