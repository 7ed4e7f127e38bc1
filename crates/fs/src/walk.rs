//! Lists a directory tree with limits: level by level, sorted by name within each directory.

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsString,
    io,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};

use crate::{
    Cancel, ErrorKind, FileKind, Links, Result, Stat, View,
    directory::{for_each_entry, is_link, kind_followed},
    error::ErrorContext,
};

/// Bytes that an item counts in addition to its text, towards `max_bytes`.
const ITEM_BYTES: usize = 64;

/// Limits and options of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkOptions {
    /// Levels below the root whose directories are read. 0 lists only the root itself.
    pub max_depth: u64,
    /// Maximum number of directories to read, including the root.
    pub max_directories: u64,
    /// Maximum number of entries to examine.
    pub max_entries: u64,
    /// Maximum size of the result: each item counts 64 bytes plus its path and message.
    pub max_bytes: usize,
    /// Whether to follow links to directories.
    pub follow_directories: bool,
    /// List directories whose name begins with a dot, but do not read them.
    pub prune_hidden: bool,
}

/// Result of a walk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WalkResult {
    /// Directories and regular files.
    pub entries: Vec<(PathBuf, FileKind)>,
    /// Paths that could not be examined, each with the reason.
    pub errors: Vec<(PathBuf, String)>,
    /// Whether a limit cut the walk short.
    pub truncated: bool,
    bytes: usize,
}

/// Why a directory was not read to its end.
enum WalkEnd {
    /// The result has reached its maximum size.
    Full,
    Failed(ErrorKind),
}

impl From<ErrorKind> for WalkEnd {
    fn from(reason: ErrorKind) -> Self {
        Self::Failed(reason)
    }
}

impl WalkResult {
    fn reserve(&mut self, text: usize, most: usize) -> Result<(), WalkEnd> {
        let bytes = self.bytes.saturating_add(ITEM_BYTES + text);
        if bytes > most {
            self.truncated = true;
            return Err(WalkEnd::Full);
        }
        self.bytes = bytes;
        Ok(())
    }

    fn add_error(&mut self, path: PathBuf, message: String, most: usize) -> Result<(), WalkEnd> {
        self.reserve(path.as_os_str().len() + message.len(), most)?;
        self.errors.push((path, message));
        Ok(())
    }
}

/// Walks a tree. If the root is a file, or a link that is not followed, the result is empty.
pub fn walk(view: &View, path: &Path, options: &WalkOptions, cancel: &Cancel) -> Result<WalkResult> {
    let begin = || -> Result<Option<Stat>, ErrorKind> {
        let itself = view.open(path, Links::Follow, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
        if Stat::of(itself.as_fd())?.kind == FileKind::Symlink && !options.follow_directories {
            // A dangling link is an error, even if links are not followed.
            view.locate(path, Links::Follow)?;
            return Ok(None);
        }
        let stat = Stat::of(view.locate(path, Links::Follow)?.as_fd())?;
        Ok((stat.kind == FileKind::Directory).then_some(stat))
    };
    let mut result = WalkResult::default();
    let Some(beginning) = begin().context("walk", path)? else { return Ok(result) };
    let mut walker = Walker {
        view,
        options,
        cancel,
        visited: HashSet::from([(beginning.device, beginning.inode)]),
        waiting: VecDeque::from([(path.to_owned(), 0)]),
        directories: 1,
        entries: 0,
    };
    while let Some((directory, depth)) = walker.waiting.pop_front() {
        cancel.check().context("walk", path)?;
        match walker.read_directory(&directory, depth, &mut result) {
            Ok(()) => {}
            Err(WalkEnd::Full) => break,
            Err(WalkEnd::Failed(ErrorKind::Cancelled)) => return Err(ErrorKind::Cancelled.context("walk", path)),
            Err(WalkEnd::Failed(reason)) => {
                if result.add_error(directory, system_text(&reason), options.max_bytes).is_err() {
                    break;
                }
            }
        }
    }
    Ok(result)
}

struct Walker<'a> {
    view: &'a View,
    options: &'a WalkOptions,
    cancel: &'a Cancel,
    /// Directories already read (device and inode). A link to one of them is listed but not entered again.
    visited: HashSet<(u64, u64)>,
    waiting: VecDeque<(PathBuf, u64)>,
    directories: u64,
    entries: u64,
}

impl Walker<'_> {
    fn read_directory(&mut self, path: &Path, depth: u64, result: &mut WalkResult) -> Result<(), WalkEnd> {
        let links = if self.options.follow_directories || depth == 0 { Links::Follow } else { Links::Refuse };
        let dir = match self.view.open(path, links, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            // The path of the root may contain links. Only the part below it must not.
            Err(ErrorKind::Symlink) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                self.view.open(path, Links::Follow, flags, Mode::empty())?
            }
            other => other?,
        };
        let mut names = self.names(dir.as_fd())?;
        names.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        for (name, file_type) in names {
            self.cancel.check()?;
            // Entries that lead nowhere do not count, so that they cannot cut the walk short.
            let Some(kind) = kind_followed(self.view, path, dir.as_fd(), &name, file_type) else { continue };
            if self.entries == self.options.max_entries {
                result.truncated = true;
                return Err(WalkEnd::Full);
            }
            self.entries += 1;
            let is_link = is_link(dir.as_fd(), &name, file_type);
            self.add_entry(path.join(&name), depth, kind, is_link, result)?;
        }
        Ok(())
    }

    fn add_entry(
        &mut self,
        path: PathBuf,
        depth: u64,
        kind: FileKind,
        is_link: bool,
        result: &mut WalkResult,
    ) -> Result<(), WalkEnd> {
        if is_link && (!self.options.follow_directories || kind != FileKind::Directory) {
            return Ok(());
        }
        if !matches!(kind, FileKind::File | FileKind::Directory) {
            return Ok(());
        }
        result.reserve(path.as_os_str().len(), self.options.max_bytes)?;
        result.entries.push((path.clone(), kind));
        let is_hidden = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
        if kind != FileKind::Directory || depth >= self.options.max_depth || (is_hidden && self.options.prune_hidden) {
            return Ok(());
        }
        let found = self.view.locate(&path, Links::Follow).and_then(|fd| Stat::of(fd.as_fd()));
        let identity = match found {
            Ok(stat) => (stat.device, stat.inode),
            Err(reason) => return result.add_error(path, system_text(&reason), self.options.max_bytes),
        };
        if self.options.follow_directories && self.visited.contains(&identity) {
            return Ok(());
        }
        if self.directories == self.options.max_directories {
            result.truncated = true;
            return Ok(());
        }
        self.directories += 1;
        self.visited.insert(identity);
        self.waiting.push_back((path, depth + 1));
        Ok(())
    }

    /// The names of a directory that can still matter. Of a huge directory, only the smallest names are kept.
    fn names(&self, dir: std::os::fd::BorrowedFd<'_>) -> Result<Vec<(OsString, FileType)>, ErrorKind> {
        let room = usize::try_from(self.options.max_entries).unwrap_or(usize::MAX).saturating_add(1);
        let mut names: Vec<(OsString, FileType)> = Vec::new();
        for_each_entry(dir, self.cancel, |name, file_type| {
            names.push((name.to_owned(), file_type));
            // Keep more names than `max_entries`, because links that lead nowhere do not count.
            if names.len() >= room.saturating_mul(4).max(1024) {
                names.sort_unstable_by(|left, right| left.0.cmp(&right.0));
                names.truncate(room.saturating_mul(2).max(512));
            }
            Ok(())
        })?;
        Ok(names)
    }
}

/// The system's error text for one entry. Clients of other generations compare it.
fn system_text(reason: &ErrorKind) -> String {
    let errno = match reason {
        ErrorKind::OutsideView => Errno::PERM,
        ErrorKind::Symlink => Errno::LOOP,
        other => return other.to_string(),
    };
    io::Error::from(errno).to_string()
}
