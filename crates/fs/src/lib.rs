//! Operations on the files of this machine: read, write, list, walk, copy, remove, search, watch, each as one blocking call.
//!
//! The crate owns how a path is resolved and how bytes reach a file. It knows nothing of the wire, of sessions or of a
//! runtime; who calls it decides on which thread, so that a thread that has confined itself can call it too.
//!
//! - A [`View`] says where paths may lead: anywhere, or only beneath some directories. Every operation resolves through it,
//!   in the kernel and in one step: nothing is looked at first and opened by name afterwards.
//! - A view may have a [`Guard`], which refuses some objects by device and inode, whatever path leads to them.
//! - Files are opened without waiting, and only regular ones: a FIFO, a device or a file of `/proc` is an error at once.
//! - A file is written beside its place and renamed into it, so that nobody sees half of it and a full disk costs nothing.
//! - Every operation is bounded, and looks at its [`Cancel`] in every loop.
//! - Every failure is an [`Error`]: what was tried, on what, and what went wrong, with a [`Kind`] to branch on.

pub mod glob;
pub mod scan;
pub mod search;
pub mod watch;

mod cancel;
mod copy;
mod directory;
mod error;
mod guard;
mod ignored;
mod in_place;
mod left;
mod line;
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
pub use directory::{Detail, Entry, create_directory, read_details, read_directory};
pub use error::{Error, Kind, Result, Trouble};
pub use guard::Guard;
pub use left::sweep;
pub use line::Line;
pub use metadata::{ABSENT, Metadata, Moment, Stat, Type, canonicalize, metadata, set_metadata};
pub use patterns::{PATTERN_BYTES, PATTERNS, PathPattern, PatternError, Patterns};
pub use read::{Block, Content, OpenFile, Part, open};
pub use remove::remove;
pub use stop::{Stop, Stopped};
pub use view::{Links, Tree, View};
pub use walk::{Walk, Walked, walk};
pub use write::{Draft, Finish, Place, Written, write};

#[cfg(test)]
mod tests;
