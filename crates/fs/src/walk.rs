//! Lists a directory tree with limits: level by level, sorted by name within each directory.

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, OFlags},
    io::Errno,
};

use crate::{
    Cancel, ErrorKind, FileKind, Links, Result, Stat, View,
    directory::{for_each_entry, kind_followed, kind_of},
    error::{ErrorContext, attempt},
};

/// Bytes that an item counts in addition to its text, towards `max_bytes`.
const ITEM_BYTES: usize = 64;

/// Limits and options of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkOptions {
    /// Levels below the root whose directories are read. With 0, only the root is read.
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
    /// Directories and regular files. With `follow_directories`, links to directories are listed as directories.
    pub entries: Vec<(PathBuf, FileKind)>,
    /// Paths that could not be examined, each with the reason.
    pub errors: Vec<(PathBuf, String)>,
    /// Whether a limit cut the walk short.
    pub truncated: bool,
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

/// Walks a tree. If the root is a file, or a link that is not followed, the result is empty.
pub fn walk(view: &View, path: &Path, options: &WalkOptions, cancel: &Cancel) -> Result<WalkResult> {
    let beginning = attempt("walk", path, || {
        let itself = view.open(path, Links::Follow, OFlags::PATH | OFlags::NOFOLLOW)?;
        if Stat::of(itself.as_fd())?.kind == FileKind::Symlink && !options.follow_directories {
            // A dangling link is an error, even if links are not followed.
            view.locate(path, Links::Follow)?;
            return Ok(None);
        }
        let stat = Stat::of(view.locate(path, Links::Follow)?.as_fd())?;
        Ok((stat.kind == FileKind::Directory).then_some(stat))
    })?;
    let Some(beginning) = beginning else { return Ok(WalkResult::default()) };
    let mut walker = Walker {
        view,
        options,
        cancel,
        visited: HashSet::from([beginning.identity()]),
        waiting: VecDeque::from([(path.to_owned(), 0)]),
        directories: 1,
        entries: 0,
        bytes: 0,
        result: WalkResult::default(),
    };
    while let Some((directory, depth)) = walker.waiting.pop_front() {
        cancel.check().context("walk", path)?;
        let read = walker.read_directory(&directory, depth).or_else(|end| match end {
            WalkEnd::Failed(reason) if !matches!(reason, ErrorKind::Cancelled) => walker.add_error(directory, &reason),
            end => Err(end),
        });
        match read {
            Ok(()) => {}
            Err(WalkEnd::Full) => break,
            Err(WalkEnd::Failed(reason)) => return Err(reason).context("walk", path),
        }
    }
    Ok(walker.result)
}

struct Walker<'a> {
    view: &'a View,
    options: &'a WalkOptions,
    cancel: &'a Cancel,
    /// Directories already read or waiting (device and inode). A link to one of them is listed but not entered again.
    visited: HashSet<(u64, u64)>,
    waiting: VecDeque<(PathBuf, u64)>,
    directories: u64,
    entries: u64,
    /// Size of the result so far.
    bytes: usize,
    result: WalkResult,
}

impl Walker<'_> {
    /// Counts an item towards `max_bytes`. Fails if it does not fit.
    fn reserve(&mut self, text: usize) -> Result<(), WalkEnd> {
        let bytes = self.bytes.saturating_add(ITEM_BYTES + text);
        if bytes > self.options.max_bytes {
            self.result.truncated = true;
            return Err(WalkEnd::Full);
        }
        self.bytes = bytes;
        Ok(())
    }

    fn add_error(&mut self, path: PathBuf, reason: &ErrorKind) -> Result<(), WalkEnd> {
        let message = system_text(reason);
        self.reserve(path.as_os_str().len() + message.len())?;
        self.result.errors.push((path, message));
        Ok(())
    }

    fn read_directory(&mut self, path: &Path, depth: u64) -> Result<(), WalkEnd> {
        let links = if self.options.follow_directories || depth == 0 { Links::Follow } else { Links::Refuse };
        let dir = match self.view.open_directory(path, links) {
            // The path of the root may contain links. Follow them, but not a link at the end of the path.
            Err(ErrorKind::Symlink) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                self.view.open(path, Links::Follow, flags)?
            }
            other => other?,
        };
        let mut names = self.names(dir.as_fd())?;
        names.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        for (name, file_type) in names {
            self.cancel.check()?;
            // Entries that lead nowhere do not count, so that they cannot cut the walk short.
            let Some(own_kind) = kind_of(dir.as_fd(), &name, file_type) else { continue };
            let Some(kind) = kind_followed(self.view, path, &name, own_kind) else { continue };
            if self.entries == self.options.max_entries {
                self.result.truncated = true;
                return Err(WalkEnd::Full);
            }
            self.entries += 1;
            let is_listed = match own_kind {
                FileKind::Symlink => self.options.follow_directories && kind == FileKind::Directory,
                _ => matches!(kind, FileKind::File | FileKind::Directory),
            };
            if is_listed {
                self.add_entry(path.join(&name), depth, kind)?;
            }
        }
        Ok(())
    }

    fn add_entry(&mut self, path: PathBuf, depth: u64, kind: FileKind) -> Result<(), WalkEnd> {
        self.reserve(path.as_os_str().len())?;
        self.result.entries.push((path.clone(), kind));
        let is_hidden = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
        if kind != FileKind::Directory || depth >= self.options.max_depth || (is_hidden && self.options.prune_hidden) {
            return Ok(());
        }
        let found = self.view.locate(&path, Links::Follow).and_then(|fd| Stat::of(fd.as_fd()));
        let identity = match found {
            Ok(stat) => stat.identity(),
            Err(reason) => return self.add_error(path, &reason),
        };
        if self.options.follow_directories && self.visited.contains(&identity) {
            return Ok(());
        }
        if self.directories == self.options.max_directories {
            self.result.truncated = true;
            return Ok(());
        }
        self.directories += 1;
        self.visited.insert(identity);
        self.waiting.push_back((path, depth + 1));
        Ok(())
    }

    /// The names of a directory. Of a huge directory, only the smallest names, which are listed first.
    fn names(&self, dir: BorrowedFd<'_>) -> Result<Vec<(OsString, FileType)>, ErrorKind> {
        let room = usize::try_from(self.options.max_entries).unwrap_or(usize::MAX).saturating_add(1);
        let mut names: Vec<(OsString, FileType)> = Vec::new();
        for_each_entry(dir, self.cancel, |name, file_type| {
            names.push((name.to_owned(), file_type));
            // Keep more names than `max_entries`, because links that lead nowhere do not count. Let the list double before it is sorted, so
            // that it is sorted rarely.
            if names.len() >= room.saturating_mul(4).max(1024) {
                names.sort_unstable_by(|left, right| left.0.cmp(&right.0));
                names.truncate(room.saturating_mul(2).max(512));
            }
            Ok(())
        })?;
        Ok(names)
    }
}

/// The system's error text for one entry. Clients of the reference compare it.
fn system_text(reason: &ErrorKind) -> String {
    let errno = match reason {
        ErrorKind::OutsideView => Errno::PERM,
        ErrorKind::Symlink => Errno::LOOP,
        other => return other.to_string(),
    };
    io::Error::from(errno).to_string()
}
