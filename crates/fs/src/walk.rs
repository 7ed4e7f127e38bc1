//! A bounded look at a tree: level by level, sorted by name in each directory.

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
    Cancel, Links, Result, Stat, Trouble, Type, View,
    directory::{each, is_link, kind_followed},
    error::On,
};

/// What each item costs of the budget beside its text.
const ITEM_BYTES: usize = 64;

/// How far a walk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    /// Levels below the beginning whose directories are looked into; 0 lists the beginning alone.
    pub max_depth: u64,
    /// Directories that are looked into, the beginning counted.
    pub max_directories: u64,
    /// Entries that are looked at.
    pub max_entries: u64,
    /// Bytes of what is told, counted as 64 and its path and message for each item.
    pub max_bytes: usize,
    /// Whether links to directories are followed.
    pub follow_directories: bool,
    /// Whether directories with a dot in front are told but not looked into.
    pub prune_hidden: bool,
}

/// What a walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Walked {
    /// Directories and regular files.
    pub entries: Vec<(PathBuf, Type)>,
    /// What could not be looked at, and why.
    pub errors: Vec<(PathBuf, String)>,
    /// Whether a bound cut it.
    pub truncated: bool,
    bytes: usize,
}

/// The budget is used up.
struct Full;

impl Walked {
    fn reserve(&mut self, text: usize, most: usize) -> Result<(), Full> {
        let bytes = self.bytes.saturating_add(ITEM_BYTES + text);
        if bytes > most {
            self.truncated = true;
            return Err(Full);
        }
        self.bytes = bytes;
        Ok(())
    }

    fn error(&mut self, path: PathBuf, message: String, most: usize) -> Result<(), Full> {
        self.reserve(path.as_os_str().len() + message.len(), most)?;
        self.errors.push((path, message));
        Ok(())
    }
}

/// Walks a tree. One that begins with a file, or with a link where none is followed, is empty.
pub fn walk(view: &View, path: &Path, options: &Walk, cancel: &Cancel) -> Result<Walked> {
    let begin = || -> Result<Option<Stat>, Trouble> {
        let itself = view.open(path, Links::Follow, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
        if Stat::of(itself.as_fd())?.kind == Type::Symlink && !options.follow_directories {
            // A link that leads nowhere is still nothing that is there.
            view.locate(path, Links::Follow)?;
            return Ok(None);
        }
        let stat = Stat::of(view.locate(path, Links::Follow)?.as_fd())?;
        Ok((stat.kind == Type::Directory).then_some(stat))
    };
    let mut walked = Walked::default();
    let Some(beginning) = begin().on("walk", path)? else { return Ok(walked) };
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
        cancel.check().on("walk", path)?;
        match walker.directory(&directory, depth, &mut walked) {
            Ok(Ok(())) => {}
            Ok(Err(Full)) => break,
            Err(Trouble::Cancelled) => return Err(Trouble::Cancelled.on("walk", path)),
            Err(trouble) => {
                if walked.error(directory, system_text(&trouble), options.max_bytes).is_err() {
                    break;
                }
            }
        }
    }
    Ok(walked)
}

struct Walker<'a> {
    view: &'a View,
    options: &'a Walk,
    cancel: &'a Cancel,
    /// Who was looked into, so that a link to above is told once and leads nowhere.
    visited: HashSet<(u64, u64)>,
    waiting: VecDeque<(PathBuf, u64)>,
    directories: u64,
    entries: u64,
}

impl Walker<'_> {
    fn directory(&mut self, path: &Path, depth: u64, walked: &mut Walked) -> Result<Result<(), Full>, Trouble> {
        let links = if self.options.follow_directories || depth == 0 { Links::Follow } else { Links::Refuse };
        let dir = match self.view.open(path, links, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            // The beginning may have links before it; only what is below must have none.
            Err(Trouble::Symlink) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                self.view.open(path, Links::Follow, flags, Mode::empty())?
            }
            other => other?,
        };
        let mut names = self.names(dir.as_fd())?;
        names.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        for (name, file_type) in names {
            self.cancel.check()?;
            // What leads nowhere was never counted, so that it cannot cut a walk short either.
            let Some(kind) = kind_followed(self.view, (path, dir.as_fd()), &name, file_type) else { continue };
            if self.entries == self.options.max_entries {
                walked.truncated = true;
                return Ok(Err(Full));
            }
            self.entries += 1;
            let is_link = is_link(dir.as_fd(), &name, file_type);
            if self.entry((path.join(&name), depth), (kind, is_link), walked).is_err() {
                return Ok(Err(Full));
            }
        }
        Ok(Ok(()))
    }

    fn entry(
        &mut self,
        (path, depth): (PathBuf, u64),
        (kind, is_link): (Type, bool),
        walked: &mut Walked,
    ) -> Result<(), Full> {
        if is_link && (!self.options.follow_directories || kind != Type::Directory) {
            return Ok(());
        }
        if !matches!(kind, Type::File | Type::Directory) {
            return Ok(());
        }
        walked.reserve(path.as_os_str().len(), self.options.max_bytes)?;
        walked.entries.push((path.clone(), kind));
        let is_hidden = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
        if kind != Type::Directory || depth >= self.options.max_depth || (is_hidden && self.options.prune_hidden) {
            return Ok(());
        }
        let found = self.view.locate(&path, Links::Follow).and_then(|fd| Stat::of(fd.as_fd()));
        let identity = match found {
            Ok(stat) => (stat.device, stat.inode),
            Err(trouble) => return walked.error(path, system_text(&trouble), self.options.max_bytes),
        };
        if self.options.follow_directories && self.visited.contains(&identity) {
            return Ok(());
        }
        if self.directories == self.options.max_directories {
            walked.truncated = true;
            return Ok(());
        }
        self.directories += 1;
        self.visited.insert(identity);
        self.waiting.push_back((path, depth + 1));
        Ok(())
    }

    /// The names of a directory, as many as can still matter: of a huge one the smallest are kept.
    fn names(&self, dir: std::os::fd::BorrowedFd<'_>) -> Result<Vec<(OsString, FileType)>, Trouble> {
        let room = usize::try_from(self.options.max_entries).unwrap_or(usize::MAX).saturating_add(1);
        let mut names: Vec<(OsString, FileType)> = Vec::new();
        each(dir, self.cancel, |name, file_type| {
            names.push((name.to_owned(), file_type));
            // Links that lead nowhere do not count, hence the slack.
            if names.len() >= room.saturating_mul(4).max(1024) {
                names.sort_unstable_by(|left, right| left.0.cmp(&right.0));
                names.truncate(room.saturating_mul(2).max(512));
            }
            Ok(())
        })?;
        Ok(names)
    }
}

/// The system's text for an error of one entry: clients of other generations compare it.
fn system_text(trouble: &Trouble) -> String {
    let errno = match trouble {
        Trouble::OutsideView => Errno::PERM,
        Trouble::Symlink => Errno::LOOP,
        other => return other.to_string(),
    };
    io::Error::from(errno).to_string()
}
