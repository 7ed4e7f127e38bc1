//! File access on a server or on this machine, behind one trait.
//!
//! `LocalFiles` (with the feature `local`) works on this machine, with the same code that the server uses. [`RemoteFiles`] works on a
//! server. Both take absolute native paths and return the same [`FileError`]s. One call of [`FileSystem::read_file`] or
//! [`FileSystem::write_file`] transfers a file of any size. Large files are sent in blocks, several at a time. For files that do not fit
//! into memory, use [`ReadAt`] and [`WriteAt`], or [`read_stream`].
//!
//! ```no_run
//! use std::path::Path;
//! use exec_server_client::{Client, fs::{FileSystem, Links, RemoteFiles, WriteOptions}};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let files = RemoteFiles::new(Client::connect("ssh://build-host").await?);
//! let notes = Path::new("/srv/notes.txt");
//! let before = files.metadata(notes, Links::Follow).await?;
//! let text = files.read_file(notes, Links::Follow).await?;
//! // Write only if the file has not changed since.
//! let options = WriteOptions { if_match: before.etag, ..WriteOptions::default() };
//! files.write_file(notes, [&text[..], b"more\n"].concat().into(), options).await?;
//! # Ok(())
//! # }
//! ```

pub mod error;
#[cfg(feature = "local")]
mod local;
mod remote;
mod remote_file;
mod search;
mod stream;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use bytes::Bytes;

pub use error::{FileError, FileErrorKind};
pub use exec_server_protocol::fs::{
    ChangeKind, Cut, EntryKind, GlobParams, Moment, Owner, ScanParams, ScanSummary, SearchParams, SearchSummary,
    WalkKind, WalkOptions, WatchEnd, WatchParams,
};
#[cfg(feature = "local")]
pub use local::LocalFiles;
pub(crate) use remote::FileCalls;
pub use remote::RemoteFiles;
pub use search::{Change, Changes, Glob, Search, SearchLine, Watch};
pub use stream::{read_all, read_stream, read_stream_from, write_all};

use crate::transport::BoxFuture;

/// The size of a block: 256 KiB, a quarter of what the protocol allows, so that a block is still in the CPU caches when it is passed on.
pub const BLOCK: usize = 256 * 1024;

/// The number of blocks of one file in flight: together 16 MiB, enough for 2 Gbit/s at a round trip of 60 ms. A reader or a writer that
/// does not keep up holds at most this much in memory.
pub const BLOCKS_IN_FLIGHT: usize = 64;

/// How symbolic links are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Links {
    /// Follow every link.
    #[default]
    Follow,
    /// A link anywhere in the path is an error.
    Refuse,
    /// A link in the directories of the path is an error. A link at its end is not followed: the operation applies to the link itself.
    Itself,
}

/// The metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// The type of the file. With [`Links::Follow`], the type of the link's target.
    pub kind: EntryKind,
    /// Whether the path itself is a symbolic link.
    pub is_symlink: bool,
    /// The size in bytes; 0 if the server does not report it.
    pub size: u64,
    /// The permission bits, if the server reports them.
    pub mode: Option<u32>,
    /// The time of the last modification.
    pub modified: Moment,
    /// The time of creation in milliseconds since 1970; 0 if unknown.
    pub created_ms: i64,
    /// Identifies the current state of the file, for [`WriteOptions::if_match`].
    pub etag: Option<String>,
    /// The target of the link, with [`Links::Itself`].
    pub link_target: Option<OsString>,
    /// The owner, if it was requested with [`RemoteFiles::with_owners`].
    pub owner: Option<Owner>,
}

/// One entry of a directory, with links not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListEntry {
    /// The name as the file system returned it. Check it before you use it as part of a path.
    pub name: OsString,
    /// The type of the entry itself.
    pub kind: EntryKind,
    /// The size in bytes.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// The time of the last modification.
    pub modified: Moment,
    /// The target of a symbolic link.
    pub target: Option<OsString>,
    /// The owner, if it was requested with [`RemoteFiles::with_owners`].
    pub owner: Option<Owner>,
}

/// A part of a directory, ordered by the bytes of the names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListPage {
    /// The entries of this part.
    pub entries: Vec<ListEntry>,
    /// Whether more entries follow the last one.
    pub more: bool,
}

/// One entry of a directory, with links followed. Dangling links are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name of the entry.
    pub name: OsString,
    /// Whether the entry is a directory, or a link to one.
    pub is_directory: bool,
    /// Whether the entry is a regular file, or a link to one.
    pub is_file: bool,
}

/// How a file is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// How symbolic links are treated.
    pub links: Links,
    /// Write only if the file has this etag. `absent` requires that the file does not exist.
    pub if_match: Option<String>,
    /// Append to the file instead of replacing it.
    pub append: bool,
    /// The permission bits. Default: those of the replaced file, or 0666 minus the umask for a new file.
    pub mode: Option<u32>,
    /// The time of modification. Default: now.
    pub modified: Option<Moment>,
    /// Return only when the file is on disk (fsync).
    pub sync: bool,
    /// The key under which a server keeps the blocks of an interrupted write of more than 64 MiB; see
    /// [`CreateOptions::keep`].
    pub keep: Option<String>,
}

/// How a file is created that is written in blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CreateOptions {
    /// How symbolic links are treated.
    pub links: Links,
    /// Keeps the blocks if the writer ends without a commit. The next writer with the same key continues with them.
    pub keep: Option<String>,
}

/// How a file is completed that was written in blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommitOptions {
    /// The final size; `None` for the end of the last block. Ranges that were not written become holes.
    pub size: Option<u64>,
    /// See [`WriteOptions::if_match`].
    pub if_match: Option<String>,
    /// See `WriteOptions::mode`.
    pub mode: Option<u32>,
    /// See `WriteOptions::modified`.
    pub modified: Option<Moment>,
    /// See `WriteOptions::sync`.
    pub sync: bool,
}

impl From<WriteOptions> for CommitOptions {
    fn from(WriteOptions { if_match, mode, modified, sync, .. }: WriteOptions) -> Self {
        Self { size: None, if_match, mode, modified, sync }
    }
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Written {
    /// Whether the file was replaced atomically, so that no reader could see it half written.
    pub atomic: bool,
    /// The etag after the write.
    pub etag: Option<String>,
}

/// The content of a file at an offset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block {
    /// The bytes; empty in a hole.
    pub bytes: Bytes,
    /// The length of the hole at this offset, which reads as zeros; 0 if there is none. It can exceed the requested length.
    pub hole: u64,
    /// Whether the file ended within the requested range. False at a hole, and for a block that ends before a hole.
    pub eof: bool,
}

/// The result of a walk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Walk {
    /// The paths with their types, level by level.
    pub entries: Vec<(PathBuf, WalkKind)>,
    /// The paths that could not be read, and why.
    pub errors: Vec<(PathBuf, String)>,
    /// Whether a limit ended the walk early.
    pub truncated: bool,
}

/// The future of a file operation.
pub type FileFuture<'a, T> = BoxFuture<'a, Result<T, FileError>>;

/// File operations on one machine: this one, or that of a server.
pub trait FileSystem: fmt::Debug + Send + Sync {
    /// The name of the machine, without a token: `local`, or the address of a server.
    fn machine(&self) -> String;

    /// Reads a whole regular file.
    fn read_file<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Bytes>;

    /// Reads a whole regular file of at most `most` bytes. A larger one fails with [`FileErrorKind::TooLarge`].
    fn read_within<'a>(&'a self, path: &'a Path, most: u64, links: Links) -> FileFuture<'a, Bytes>;

    /// Writes a whole file, or appends to it. Writing the whole file replaces it atomically, so that no reader sees it half written. It is
    /// written in place if it has more than one hard link, if its directory admits no new file, or if a new file cannot get its owner or
    /// attributes; see [`Written::atomic`]. On a server, one call appends at most 64 MiB.
    fn write_file<'a>(&'a self, path: &'a Path, bytes: Bytes, options: WriteOptions) -> FileFuture<'a, Written>;

    /// Creates a directory. With `recursive`, creates its parents, too, and succeeds if the directory exists.
    fn create_directory<'a>(
        &'a self,
        path: &'a Path,
        recursive: bool,
        links: Links,
        mode: Option<u32>,
    ) -> FileFuture<'a, ()>;

    /// Returns the metadata of a file.
    fn metadata<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Metadata>;

    /// Returns the path with all links resolved. The file must exist.
    fn canonicalize<'a>(&'a self, path: &'a Path) -> FileFuture<'a, PathBuf>;

    /// Lists a directory, with links followed.
    fn read_directory<'a>(&'a self, path: &'a Path) -> FileFuture<'a, Vec<DirectoryEntry>>;

    /// Lists the entries of a directory whose names come after `after`, with links not followed. A large directory takes several calls.
    fn list<'a>(&'a self, path: &'a Path, after: Option<OsString>, links: Links) -> FileFuture<'a, ListPage>;

    /// Lists a tree, within limits.
    fn walk<'a>(&'a self, path: &'a Path, options: WalkOptions) -> FileFuture<'a, Walk>;

    /// Removes a file, a link or a directory. With `force`, succeeds if it does not exist.
    fn remove<'a>(&'a self, path: &'a Path, recursive: bool, force: bool, links: Links) -> FileFuture<'a, ()>;

    /// Copies within the machine of this file system. Files keep their mode, links are copied as links, and directories
    /// require `recursive`.
    fn copy<'a>(&'a self, source: &'a Path, target: &'a Path, recursive: bool) -> FileFuture<'a, ()>;

    /// Creates a symbolic link. Replaces an existing file or link.
    fn symlink<'a>(&'a self, path: &'a Path, target: OsString, links: Links) -> FileFuture<'a, ()>;

    /// Changes the mode and the time of modification. `None` leaves a value unchanged.
    fn set_metadata<'a>(
        &'a self,
        path: &'a Path,
        links: Links,
        mode: Option<u32>,
        modified: Option<Moment>,
    ) -> FileFuture<'a, ()>;

    /// Removes hidden temporary files that killed writers left in a directory. Files that may still be in use stay, and so do kept parts.
    /// Does nothing on a server, which removes such files by itself when the same file is written again.
    fn sweep<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, ()>;

    /// Opens a regular file to read it in blocks.
    fn open<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Box<dyn ReadAt>>;

    /// Creates a file that is written in blocks. It is not visible before its commit.
    fn create<'a>(&'a self, path: &'a Path, options: CreateOptions) -> FileFuture<'a, Box<dyn WriteAt>>;
}

/// A file that is open for reading in blocks. It stays the same file even if its path is replaced. Dropping it closes the file.
pub trait ReadAt: Send + Sync {
    /// The size when the file was opened.
    fn size(&self) -> u64;

    /// The etag when the file was opened.
    fn etag(&self) -> Option<&str>;

    /// Reads up to `len` bytes, at most one [`BLOCK`]. With `holes`, a hole is returned as its length instead of zeros.
    fn read_at(&self, offset: u64, len: usize, holes: bool) -> FileFuture<'_, Block>;

    /// How many blocks to request before the first one has arrived.
    fn ahead(&self) -> usize {
        BLOCKS_IN_FLIGHT
    }
}

/// A file that is being written in blocks. Dropping it without a commit discards it, or keeps it under its key ([`CreateOptions::keep`]).
pub trait WriteAt: Send + Sync {
    /// The number of bytes that an earlier writer with the same key has left. The last blocks that it had in flight may be missing.
    fn found(&self) -> u64;

    /// Writes at most one [`BLOCK`]. A range between blocks that is not written becomes a hole.
    fn write_at(&self, offset: u64, bytes: Bytes) -> FileFuture<'_, ()>;

    /// Completes the file, which then appears under its name with all of its content.
    fn commit(self: Box<Self>, options: CommitOptions) -> FileFuture<'static, Written>;

    /// Discards the file, including the blocks that are kept under its key.
    fn discard(self: Box<Self>) -> FileFuture<'static, ()>;
}
