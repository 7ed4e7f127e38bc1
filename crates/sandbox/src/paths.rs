//! Where a path leads, link by link. It must not know what a path is asked for.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

/// Links in one path before it counts as a loop; the kernel's own bound.
const LINKS_MAX: usize = 40;

/// A path that exists, and the links on the way to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Traced {
    /// Without links.
    pub(crate) real: PathBuf,
    pub(crate) is_dir: bool,
    /// Each link by a path without links before its last part, and the text in it.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
}

/// Removes `.` and `..` by the text alone.
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

/// Follows an absolute path to its end.
pub(crate) fn trace(path: &Path) -> io::Result<Traced> {
    let (real, rest, links) = walk(path)?;
    if let Some(error) = rest {
        return Err(error.1);
    }
    let is_dir = fs::symlink_metadata(&real)?.is_dir();
    Ok(Traced { real, is_dir, links })
}

/// Where a path leads as far as it exists; what is missing is added as it is written.
pub(crate) fn reach(path: &Path) -> PathBuf {
    match walk(&normalized(path)) {
        Ok((mut real, rest, _)) => {
            real.extend(rest.map(|(names, _)| names).unwrap_or_default());
            real
        }
        // A loop leads nowhere; its own name says most.
        Err(_) => normalized(path),
    }
}

/// Device and number of what a path leads to.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

type Walked = (PathBuf, Option<(Vec<OsString>, io::Error)>, Vec<(PathBuf, PathBuf)>);

/// The part that exists without links, the names that are left with the reason, and the links that were followed.
fn walk(path: &Path) -> io::Result<Walked> {
    let names = |path: &Path| -> Vec<OsString> {
        let mut names: Vec<OsString> = path
            .components()
            .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
            .map(|part| part.as_os_str().to_owned())
            .collect();
        names.reverse();
        names
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
        assert_eq!(trace(&base.join("no")).expect_err("missing").kind(), io::ErrorKind::NotFound);
        assert_eq!(trace(&base.join("loop")).expect_err("loop").raw_os_error(), Some(libc::ELOOP));
        assert_eq!(reach(&base.join("long/new/x")), base.join("a/b/new/x"));
        assert_eq!(normalized(Path::new("/a/./b/../../../c")), Path::new("/c"));
    }
}
