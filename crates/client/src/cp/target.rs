//! Which path a copy becomes: the rules of `cp`, on whichever place the target is.
//!
//! What the user names is followed; what is found below is not. The paths that come out have no link in them, so that from
//! here on every link is refused.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::{
    Error, Place,
    mark::{Form, Words},
    root::Aim,
};
use crate::fs::{self, EntryKind, ErrorKind, Links};

/// The path that a file becomes.
pub(super) async fn of_file(source: &Path, target: &Place) -> Result<PathBuf, Error> {
    match kind(target).await? {
        Some(EntryKind::Directory) => inside(source, target).await,
        Some(_) => Ok(target.files.canonicalize(&target.path).await?),
        None if ends_in_slash(&target.path) => Err(Error::NotADirectory { path: target.path.clone() }),
        None => beside(target).await,
    }
}

/// Where a directory goes, and what a copy of it that was interrupted has left there.
pub(super) async fn of_tree(source: &Path, target: &Place, words: &Words) -> Result<Aim, Error> {
    let (path, form) = match kind(target).await? {
        Some(EntryKind::Directory) => {
            let itself = target.files.canonicalize(&target.path).await?;
            if means_contents(source) {
                (itself, Form::Contents)
            } else {
                // Made by a copy that was interrupted: then it is the target, and not the directory around it.
                let found = words.find(&*target.files, &itself).await?;
                if let Some(found) = found.filter(|found| found.note.form == Form::Itself) {
                    return Ok(Aim { path: itself, form: Form::Itself, found: Some(found) });
                }
                (inside(source, target).await?, Form::Inside)
            }
        }
        Some(_) => return Err(Error::NotADirectory { path: target.path.clone() }),
        None if means_contents(source) => (beside(target).await?, Form::Contents),
        None => (beside(target).await?, Form::Itself),
    };
    let found = words.find(&*target.files, &path).await?;
    Ok(Aim { path, form, found })
}

/// What the target is, links followed; none if it is not there.
async fn kind(target: &Place) -> Result<Option<EntryKind>, Error> {
    match target.files.metadata(&target.path, Links::Follow).await {
        Ok(found) => Ok(Some(found.kind)),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The source's name in a directory.
async fn inside(source: &Path, target: &Place) -> Result<PathBuf, Error> {
    let dir = target.files.canonicalize(&target.path).await?;
    let Some(name) = source.file_name() else {
        let error =
            fs::Error::new("copy", source, ErrorKind::InvalidInput, "it has no name of its own: name the target");
        return Err(error.into());
    };
    Ok(dir.join(name))
}

/// A path that is not there yet, in a directory that is.
async fn beside(target: &Place) -> Result<PathBuf, Error> {
    let (Some(dir), Some(name)) = (target.path.parent(), target.path.file_name()) else {
        return Err(Error::NotADirectory { path: target.path.clone() });
    };
    Ok(target.files.canonicalize(dir).await?.join(name))
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// `DIR/.` and the root: what is in it, not itself.
fn means_contents(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/.") || path.file_name().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_at_the_end_means_the_contents() {
        let told = ["/a", "/a/", "/a/.", "/", "/a/.."].map(|path| means_contents(Path::new(path)));
        assert_eq!(told, [false, false, true, true, true]);
    }
}
