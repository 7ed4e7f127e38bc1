//! Files of a place, as objects: code that takes a [`FileSystem`] does not know where they are.
//!
//! `Local` (with the feature `local`) is this machine, by the same code as the server's; [`Remote`] is a server. Both take absolute paths, native, and
//! end in the same [`Error`]s. A file of any size passes in one [`FileSystem::read_file`] or [`FileSystem::write_file`]: large
//! ones go in blocks, several of them on their way at a time. What does not fit memory is read and written by [`ReadAt`] and
//! [`WriteAt`], or as a stream by [`read_stream`].
//!
//! ```no_run
//! use std::path::Path;
//! use exec_server_client::{Client, fs::{FileSystem, Links, Remote, WriteOptions}};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let files = Remote::new(Client::connect("ssh://build-host").await?);
//! let notes = Path::new("/srv/notes.txt");
//! let before = files.metadata(notes, Links::Follow).await?;
//! let text = files.read_file(notes, Links::Follow).await?;
//! // Only if nobody was faster.
//! let options = WriteOptions { if_match: before.etag, ..WriteOptions::default() };
//! files.write_file(notes, [&text[..], b"more\n"].concat().into(), options).await?;
//! # Ok(())
//! # }
//! ```

pub mod error;
mod handle;
#[cfg(feature = "local")]
mod local;
mod remote;
mod seek;
mod stream;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use bytes::Bytes;

pub use error::{Error, ErrorKind};
pub use exec_server_protocol::fs::{
    ChangeKind, Cut, EntryKind, GlobParams, Moment, Owner, ScanParams, ScanSummary, SearchParams, SearchSummary,
    WalkKind, WalkOptions, WatchEnd, WatchParams,
};
#[cfg(feature = "local")]
pub use local::Local;
pub use remote::Remote;
pub use seek::{Change, Changes, Found, Glob, Search, Watch};
pub use stream::{read_all, read_stream, read_stream_from, write_all};

use crate::transport::BoxFuture;

/// Bytes of one block: 256 KiB, a quarter of what the wire allows, so that those on their way stay in the processors' caches.
pub const BLOCK: usize = 256 * 1024;

/// Blocks of one file that are on their way at a time: enough to fill a line of 4 MiB, which is 500 Mbit/s at 60 ms.
pub const BLOCKS_UNDER_WAY: usize = 16;

/// Whether symbolic links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Links {
    /// Wherever they lead.
    #[default]
    Follow,
    /// A link anywhere in the path is an error.
    Refuse,
    /// No link on the way, and one at the end of the path is meant itself.
    Itself,
}

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// What it is; with [`Links::Follow`] what it leads to.
    pub kind: EntryKind,
    /// Whether the path itself is a link.
    pub is_symlink: bool,
    /// Bytes; 0 where a server does not say.
    pub size: u64,
    /// Permission bits, where a server says them.
    pub mode: Option<u32>,
    /// When it was last changed.
    pub modified: Moment,
    /// When it came to be, in milliseconds since 1970; 0 where it is not known.
    pub created_ms: i64,
    /// Its state, for [`WriteOptions::if_match`].
    pub etag: Option<String>,
    /// Where the link leads, with [`Links::Itself`].
    pub link_target: Option<OsString>,
    /// Whom it belongs to, where that was asked for ([`Remote::with_owners`]).
    pub owner: Option<Owner>,
}

/// One entry of a directory, as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, as the place says it: whoever makes a path of it looks at it first.
    pub name: OsString,
    /// What it is itself.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// When it was last changed.
    pub modified: Moment,
    /// Where a link points.
    pub target: Option<OsString>,
    /// Whom it belongs to, where that was asked for ([`Remote::with_owners`]).
    pub owner: Option<Owner>,
}

/// A part of a directory, ordered by the bytes of the names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// One entry of a directory, as the reference tells it: links followed, what cannot be followed left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: OsString,
    /// It is, or leads to, a directory.
    pub is_directory: bool,
    /// It is, or leads to, a file.
    pub is_file: bool,
}

/// How a file is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Whether links are followed.
    pub links: Links,
    /// Only if the file is in this state; `absent` for a file that must not be there.
    pub if_match: Option<String>,
    /// Adds at the end instead.
    pub append: bool,
    /// Permission bits; those of the file that is replaced, or the usual ones, unless set.
    pub mode: Option<u32>,
    /// When it was last changed; now unless set.
    pub modified: Option<Moment>,
    /// Returns only when it is on the disk.
    pub sync: bool,
    /// The word under which what was written is found again after an interruption; see [`CreateOptions::keep`].
    pub keep: Option<String>,
}

/// How a file is begun that is written in blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CreateOptions {
    /// Whether links are followed.
    pub links: Links,
    /// Keeps what was written when the writer goes without a commit; the next one with the same word goes on with it.
    pub keep: Option<String>,
}

/// How a file is completed that was written in blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommitOptions {
    /// Bytes of the whole; what was not written of them is a hole.
    pub size: Option<u64>,
    /// As in [`WriteOptions`].
    pub if_match: Option<String>,
    /// As in [`WriteOptions`].
    pub mode: Option<u32>,
    /// As in [`WriteOptions`].
    pub modified: Option<Moment>,
    /// As in [`WriteOptions`].
    pub sync: bool,
}

/// What became of a file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Written {
    /// Whether nobody could see it half written.
    pub atomic: bool,
    /// Its state now.
    pub etag: Option<String>,
}

/// What is at an offset of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block {
    /// The bytes; empty in a hole.
    pub bytes: Bytes,
    /// So many zeros are here that no disk holds; it may be more than was asked for.
    pub hole: u64,
    /// Whether the file ends here: fewer bytes were there than asked for.
    pub eof: bool,
}

/// What a walk found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Walk {
    /// Paths and what they are, level by level.
    pub entries: Vec<(PathBuf, WalkKind)>,
    /// What could not be looked at, and why.
    pub errors: Vec<(PathBuf, String)>,
    /// Whether a bound cut the walk.
    pub truncated: bool,
}

/// Files at one place.
pub trait FileSystem: fmt::Debug + Send + Sync {
    /// Which place it is, without a token: `local`, or the address of a server.
    fn place(&self) -> String;

    /// Reads a whole regular file.
    fn read_file<'a>(&'a self, path: &'a Path, links: Links) -> BoxFuture<'a, Result<Bytes, Error>>;

    /// Reads a whole regular file of `most` bytes at most; a larger one is [`ErrorKind::TooLarge`].
    fn read_within<'a>(&'a self, path: &'a Path, most: u64, links: Links) -> BoxFuture<'a, Result<Bytes, Error>>;

    /// Writes a whole file. Nobody sees it half written, unless it has more than one name or is not a regular file.
    fn write_file<'a>(
        &'a self,
        path: &'a Path,
        bytes: Bytes,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Written, Error>>;

    /// Makes a directory; `recursive` makes its parents too, and takes one that is there for done.
    fn create_directory<'a>(
        &'a self,
        path: &'a Path,
        recursive: bool,
        links: Links,
        mode: Option<u32>,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// What is known of a file.
    fn metadata<'a>(&'a self, path: &'a Path, links: Links) -> BoxFuture<'a, Result<Metadata, Error>>;

    /// The same path without links; it must exist.
    fn canonicalize<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<PathBuf, Error>>;

    /// The names in a directory, and what they lead to.
    fn read_directory<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<Vec<DirectoryEntry>, Error>>;

    /// The entries of a directory as they are, those with names after `after`; a part of them where there are many.
    fn list<'a>(&'a self, path: &'a Path, after: Option<OsString>, links: Links) -> BoxFuture<'a, Result<Page, Error>>;

    /// A bounded look at a tree.
    fn walk<'a>(&'a self, path: &'a Path, options: WalkOptions) -> BoxFuture<'a, Result<Walk, Error>>;

    /// Removes a file, link or directory; `force` takes one that is not there for done.
    fn remove<'a>(
        &'a self,
        path: &'a Path,
        recursive: bool,
        force: bool,
        links: Links,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Copies within this place: files with their mode, links as links, directories with `recursive`.
    fn copy<'a>(&'a self, source: &'a Path, target: &'a Path, recursive: bool) -> BoxFuture<'a, Result<(), Error>>;

    /// Makes a symbolic link, in place of a file or link that is there.
    fn symlink<'a>(&'a self, path: &'a Path, target: OsString, links: Links) -> BoxFuture<'a, Result<(), Error>>;

    /// Changes mode and time of modification; what is absent stays.
    fn set_metadata<'a>(
        &'a self,
        path: &'a Path,
        links: Links,
        mode: Option<u32>,
        modified: Option<Moment>,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Removes what writers that were killed left hidden in a directory; what may be somebody's stays, and so do parts that are
    /// kept. A server does so by itself, when the same file is written again.
    fn sweep<'a>(&'a self, path: &'a Path, links: Links) -> BoxFuture<'a, Result<(), Error>>;

    /// Opens a regular file to read it in blocks.
    fn open<'a>(&'a self, path: &'a Path, links: Links) -> BoxFuture<'a, Result<Box<dyn ReadAt>, Error>>;

    /// Begins a file that is written in blocks, and that nobody sees before its commit.
    fn create<'a>(&'a self, path: &'a Path, options: CreateOptions) -> BoxFuture<'a, Result<Box<dyn WriteAt>, Error>>;
}

/// A file that is read in blocks: the one that was opened, whatever becomes of its path. Dropping it closes it.
pub trait ReadAt: Send + Sync {
    /// Bytes that it had when it was opened.
    fn size(&self) -> u64;

    /// Its state when it was opened.
    fn etag(&self) -> Option<&str>;

    /// Reads up to `len` bytes, a [`BLOCK`] at most. With `holes` a hole is told in place of its zeros.
    fn read_at(&self, offset: u64, len: usize, holes: bool) -> BoxFuture<'_, Result<Block, Error>>;

    /// How many blocks are worth asking for before the first is there.
    fn ahead(&self) -> usize {
        BLOCKS_UNDER_WAY
    }
}

/// A file that is written in blocks. Dropping it without a commit gives it up, or keeps it under its word.
pub trait WriteAt: Send + Sync {
    /// Bytes that an earlier writer with the same word has left. The last blocks that it had under way may be missing in them.
    fn found(&self) -> u64;

    /// Writes a [`BLOCK`] at most; what lies between blocks is a hole.
    fn write_at(&self, offset: u64, bytes: Bytes) -> BoxFuture<'_, Result<(), Error>>;

    /// Completes it: it appears under its name, whole.
    fn commit(self: Box<Self>, options: CommitOptions) -> BoxFuture<'static, Result<Written, Error>>;

    /// Gives it up, also what is kept under its word.
    fn discard(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>>;
}
