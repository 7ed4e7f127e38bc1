//! File operations on this machine: read, write, list, walk, copy, remove, search and watch. Each is one blocking call.
//!
//! This crate decides how a path is resolved and how bytes are written to a file. It does not depend on the wire protocol, on sessions or
//! on an async runtime. The caller chooses the thread, so a thread that has confined itself can call it too.
//!
//! - A [`View`] restricts where paths may lead: anywhere, or only beneath certain directories. Every operation resolves
//!   its path through the view: the kernel checks the restriction in the same system call that opens the object, so a
//!   component that is swapped in between cannot lead out of the view.
//! - A view may have a [`Guard`], which refuses certain objects by device and inode, independent of the path that leads to them.
//! - Files are opened without blocking, and only regular files are opened. A FIFO, a device or a file of `/proc` is an error at once.
//! - A file is written under a temporary name or without a name and then renamed into place. No reader sees a partly written file, and a
//!   full disk leaves the old file intact. The module `write` lists the exceptions.
//! - Operations with large results have limits. Long operations check their [`Cancel`] or [`Stop`]; a write in place cannot be cancelled
//!   after its first byte.
//! - Every failure is an [`Error`]: the action, the path and the reason, with an [`ErrorCategory`] to branch on.

pub mod glob;
pub mod scan;
pub mod search;
pub mod watch;

mod cancel;
mod copy;
mod directory;
mod error;
mod guard;
mod ignore_rules;
mod in_place;
mod job_queue;
mod leftovers;
mod metadata;
mod patterns;
mod read;
mod remove;
mod stop;
mod target;
mod view;
mod walk;
mod write;

pub use cancel::Cancel;
pub use copy::{copy, create_symlink};
pub use directory::{DetailedEntry, DirectoryEntry, ListRange, create_directory, read_details, read_directory};
pub use error::{Error, ErrorCategory, ErrorKind, Result};
pub use guard::Guard;
pub use job_queue::JobQueue;
pub use leftovers::sweep;
pub use metadata::{ABSENT, FileKind, Metadata, MetadataChange, Moment, Stat, canonicalize, metadata, set_metadata};
pub use patterns::{PATTERN_BYTES, PATTERNS, PathPattern, PatternError, Patterns};
pub use read::{FileContent, OpenFile, ReadBlock, ReadRange, open};
pub use remove::{RemoveOptions, remove};
pub use stop::{Stop, StopReason};
pub use view::{FileTree, Links, View};
pub use walk::{WalkOptions, WalkResult, walk};
pub use write::{Draft, WriteOptions, WritePosition, WriteRequest, WriteResult, write};

#[cfg(test)]
mod tests;
