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
use crate::fs::{self, EntryKind, FileErrorKind, Links};

/// The path of the copy of a file.
pub(super) async fn resolve_file(source: &Path, target: &CopyEndpoint) -> Result<PathBuf, CopyError> {
    match target_kind(target).await? {
        Some(EntryKind::Directory) => path_inside(source, target).await,
        Some(_) => Ok(target.files.canonicalize(&target.path).await?),
        None if ends_in_slash(&target.path) => Err(CopyError::NotADirectory { path: target.path.clone() }),
        None => new_path(target).await,
    }
}

/// The path of the copy of a directory, and the state that an interrupted copy has left there.
pub(super) async fn resolve_tree(
    source: &Path,
    target: &CopyEndpoint,
    header: &MarkHeader,
) -> Result<TreeTarget, CopyError> {
    let (path, form) = match target_kind(target).await? {
        Some(EntryKind::Directory) => {
            let itself = target.files.canonicalize(&target.path).await?;
            if means_contents(source) {
                (itself, TargetForm::Contents)
            } else {
                // An interrupted copy with the same arguments found no target, and created this directory as its root. Continue that copy:
                // a new one would create another directory inside of this one.
                let found = header.find(&*target.files, &itself).await?;
                if let Some(found) = found.filter(|found| found.content.form == TargetForm::Itself) {
                    return Ok(TreeTarget { path: itself, form: TargetForm::Itself, found: Some(found) });
                }
                (path_inside(source, target).await?, TargetForm::Inside)
            }
        }
        Some(_) => return Err(CopyError::NotADirectory { path: target.path.clone() }),
        None if means_contents(source) => (new_path(target).await?, TargetForm::Contents),
        None => (new_path(target).await?, TargetForm::Itself),
    };
    let found = header.find(&*target.files, &path).await?;
    Ok(TreeTarget { path, form, found })
}

/// The type of the target, with links followed; `None` if it does not exist.
async fn target_kind(target: &CopyEndpoint) -> Result<Option<EntryKind>, CopyError> {
    Ok(super::find(&*target.files, &target.path, Links::Follow).await?.map(|found| found.kind))
}

/// The source's name inside of the target directory.
async fn path_inside(source: &Path, target: &CopyEndpoint) -> Result<PathBuf, CopyError> {
    let dir = target.files.canonicalize(&target.path).await?;
    let Some(name) = source.file_name() else {
        let reason = "the source path does not end in a name; give the full target path";
        return Err(fs::FileError::new("copy", source, FileErrorKind::InvalidInput, reason).into());
    };
    Ok(dir.join(name))
}

/// A path that does not exist yet, in a directory that does.
async fn new_path(target: &CopyEndpoint) -> Result<PathBuf, CopyError> {
    let (Some(dir), Some(name)) = (target.path.parent(), target.path.file_name()) else {
        return Err(CopyError::NotADirectory { path: target.path.clone() });
    };
    Ok(target.files.canonicalize(dir).await?.join(name))
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
