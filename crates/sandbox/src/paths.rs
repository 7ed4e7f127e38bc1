//! Follows paths through symbolic links, one component at a time.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

/// The maximum number of symbolic links in one path; more count as a loop. The kernel has the same limit.
const LINKS_MAX: usize = 40;

/// An existing path, and the links on the way to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TracedPath {
    /// The path without links.
    pub(crate) real: PathBuf,
    pub(crate) is_dir: bool,
    /// Each link with its target. Only the last component of the link's path is a link.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
}

/// Removes `.` and `..` lexically.
pub(crate) fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

/// A path with a component that does not exist or cannot be read.
#[derive(Debug)]
pub(crate) struct MissingPath {
    /// The path without links, up to and including the first missing component. A placeholder counts as missing when
    /// the path leads below it.
    pub(crate) first: PathBuf,
    /// The links that were followed before.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
    pub(crate) error: io::Error,
}

/// Follows an absolute path to its end, or as far as it exists.
pub(crate) fn trace(path: &Path) -> Result<TracedPath, MissingPath> {
    let missing = |first: PathBuf, links, error| MissingPath { first, links, error };
    let (real, rest, links) = walk(path).map_err(|error| missing(path.to_owned(), Vec::new(), error))?;
    if let Some((names, error)) = rest {
        let is_in_placeholder = error.kind() == io::ErrorKind::NotFound && is_placeholder(&real);
        let first = if is_in_placeholder { real } else { names.first().map_or(real.clone(), |name| real.join(name)) };
        return Err(missing(first, links, error));
    }
    match fs::symlink_metadata(&real) {
        Ok(meta) => Ok(TracedPath { is_dir: meta.is_dir(), real, links }),
        Err(error) => Err(missing(real, links, error)),
    }
}

/// Whether a path is a placeholder: an empty directory with mtime 0, which only keeps its name from being used.
pub(crate) fn is_placeholder(path: &Path) -> bool {
    let is_marked = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.mtime() == 0);
    is_marked && fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Whether we own a directory. Then a process that runs as our user can change its mode, so missing permission does not
/// keep the process out.
pub fn is_ours(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|meta| meta.uid() == rustix::process::geteuid().as_raw())
}

/// Follows a path as far as it exists, and appends the missing components as written.
pub(crate) fn resolve_existing(path: &Path) -> PathBuf {
    match walk(&normalized(path)) {
        Ok((mut real, rest, _)) => {
            real.extend(rest.map(|(names, _)| names).unwrap_or_default());
            real
        }
        // A loop of links or an unreadable link leads nowhere, so return the path itself.
        Err(_) => normalized(path),
    }
}

/// Device and inode of the object at a path, following links.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

type WalkedPath = (PathBuf, Option<(Vec<OsString>, io::Error)>, Vec<(PathBuf, PathBuf)>);

/// Returns the existing part without links, the remaining components with the error (if any), and the links that were
/// followed.
fn walk(path: &Path) -> io::Result<WalkedPath> {
    // The components in reverse order, so that `pop` returns the next one.
    let names = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        let names = parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        names.map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut real = PathBuf::from("/");
    let mut links = Vec::new();
    let mut left = names(path);
    while let Some(name) = left.pop() {
        if name == ".." {
            real.pop();
            continue;
        }
        let here = real.join(&name);
        let found = match fs::symlink_metadata(&here) {
            Ok(found) => found,
            Err(error) => {
                left.push(name);
                left.reverse();
                return Ok((real, Some((left, error)), links));
            }
        };
        if !found.is_symlink() {
            real = here;
            continue;
        }
        if links.len() == LINKS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let target = fs::read_link(&here)?;
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        left.extend(names(&target));
        links.push((here, target));
    }
    Ok((real, None, links))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_is_followed_through_links_and_as_far_as_it_exists() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let base = dir.path().canonicalize().expect("real path");
        fs::create_dir_all(base.join("a/b")).expect("directories");
        symlink("a/b", base.join("short")).expect("link");
        symlink(base.join("short"), base.join("long")).expect("link");
        symlink("loop", base.join("loop")).expect("link");
        let traced = trace(&base.join("long/../b")).expect("traced");
        assert_eq!((traced.real, traced.is_dir, traced.links.len()), (base.join("a/b"), true, 2));
        let missing = trace(&base.join("short/no/deep")).expect_err("missing");
        assert_eq!((missing.first, missing.error.kind()), (base.join("a/b/no"), io::ErrorKind::NotFound));
        assert_eq!(trace(&base.join("loop")).expect_err("loop").error.raw_os_error(), Some(libc::ELOOP));
        assert_eq!(resolve_existing(&base.join("long/new/x")), base.join("a/b/new/x"));
        assert_eq!(normalized(Path::new("/a/./b/../../../c")), Path::new("/c"));
    }

    #[test]
    fn a_placeholder_counts_as_missing_for_paths_below_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let base = dir.path().canonicalize().expect("real path");
        let place = base.join("place");
        fs::create_dir(&place).expect("directory");
        assert_eq!(trace(&place.join("x/y")).expect_err("missing").first, place.join("x"));
        let first = fs::File::open(&place).expect("open");
        first.set_modified(std::time::UNIX_EPOCH).expect("set the time");
        assert!(is_placeholder(&place));
        assert_eq!(trace(&place.join("x/y")).expect_err("missing").first, place);
        fs::write(place.join("z"), "").expect("file");
        first.set_modified(std::time::UNIX_EPOCH).expect("set the time");
        assert!(!is_placeholder(&place), "something is in it");
    }
}
