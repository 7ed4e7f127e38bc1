//! Determines the path of the copy, with the rules of `cp`.
//!
//! Links in the path that the user gives are followed. The resulting path contains no link. From here on, the copy refuses every link in a
//! path.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::{
    CopyEndpoint, CopyError,
    mark::{MarkHeader, TargetForm},
    root::TreeTarget,
};
use crate::fs::{self, EntryKind, FileErrorKind, FileSystem, Links};

/// The target as the user gives it, and everything that its file system says about it, requested at once. An answer that is not needed may
/// be an error.
pub(super) struct GivenTarget<'a> {
    path: &'a Path,
    /// Its type, with links followed; `None` if it does not exist.
    kind: Result<Option<EntryKind>, CopyError>,
    /// The path with all links resolved.
    itself: Result<PathBuf, fs::FileError>,
    /// The path of its directory with all links resolved; `None` if the path has no directory or no final name.
    directory: Option<Result<PathBuf, fs::FileError>>,
}

impl<'a> GivenTarget<'a> {
    pub(super) async fn look_at(target: &'a CopyEndpoint) -> Self {
        let CopyEndpoint { files, path } = target;
        let directory = path.parent().filter(|_| path.file_name().is_some());
        let resolving_directory = async {
            match directory {
                Some(directory) => Some(files.canonicalize(directory).await),
                None => None,
            }
        };
        let (found, itself, directory) =
            tokio::join!(super::find(&**files, path, Links::Follow), files.canonicalize(path), resolving_directory);
        Self { path, kind: found.map(|found| found.map(|found| found.kind)), itself, directory }
    }

    /// The path of the copy of a file.
    pub(super) fn resolve_file(self, source: &Path) -> Result<PathBuf, CopyError> {
        match self.kind.clone()? {
            Some(EntryKind::Directory) => path_inside(source, &self.itself?),
            Some(_) => Ok(self.itself?),
            None if ends_in_slash(self.path) => Err(CopyError::NotADirectory { path: self.path.to_owned() }),
            None => self.new_path(),
        }
    }

    /// The path of the copy of a directory, and the state that an interrupted copy has left there.
    pub(super) async fn resolve_tree(
        self,
        source: &Path,
        files: &dyn FileSystem,
        header: &MarkHeader,
    ) -> Result<TreeTarget, CopyError> {
        match self.kind.clone()? {
            Some(EntryKind::Directory) if means_contents(source) => {
                TreeTarget::look_at(files, header, self.itself?, TargetForm::Contents).await
            }
            Some(EntryKind::Directory) => {
                let itself = self.itself?;
                let inside = path_inside(source, &itself)?;
                // An interrupted copy with the same arguments found no target, and created this directory as its root. Continue that copy:
                // a new one would create another directory inside of this one.
                let (continued, inside) = tokio::join!(
                    header.find(files, &itself),
                    TreeTarget::look_at(files, header, inside, TargetForm::Inside)
                );
                match continued?.filter(|found| found.content.form == TargetForm::Itself) {
                    Some(found) => Ok(TreeTarget::continued(itself, TargetForm::Itself, found)),
                    None => inside,
                }
            }
            Some(_) => Err(CopyError::NotADirectory { path: self.path.to_owned() }),
            None => {
                let form = if means_contents(source) { TargetForm::Contents } else { TargetForm::Itself };
                TreeTarget::look_at(files, header, self.new_path()?, form).await
            }
        }
    }

    /// A path that does not exist yet, in a directory that does.
    fn new_path(self) -> Result<PathBuf, CopyError> {
        match (self.directory, self.path.file_name()) {
            (Some(directory), Some(name)) => Ok(directory?.join(name)),
            _ => Err(CopyError::NotADirectory { path: self.path.to_owned() }),
        }
    }
}

/// The source's name inside of the target directory.
fn path_inside(source: &Path, directory: &Path) -> Result<PathBuf, CopyError> {
    let Some(name) = source.file_name() else {
        let reason = "the source path does not end in a name; give the full target path";
        return Err(fs::FileError::new("copy", source, FileErrorKind::InvalidInput, reason).into());
    };
    Ok(directory.join(name))
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// Whether the path means the content of a directory and not the directory itself: `DIR/.`, and paths without a final name, such as `/` and
/// `DIR/..`.
fn means_contents(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/.") || path.file_name().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_ends_in_a_dot_or_has_no_name_means_the_contents() {
        let results = ["/a", "/a/", "/a/.", "/", "/a/.."].map(|path| means_contents(Path::new(path)));
        assert_eq!(results, [false, false, true, true, true]);
    }
}
