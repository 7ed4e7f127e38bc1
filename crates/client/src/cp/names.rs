//! Checks the names in a listing before they become part of a path. The listing may come from a server that lies.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

/// The longest name that Linux allows, in bytes.
const NAME_MAX: usize = 255;

/// Why a name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// The name is empty.
    #[error("it is empty")]
    Empty,
    /// The name is `.` or `..`, which are not entries of the directory.
    #[error("it is `.` or `..`")]
    Dots,
    /// The name contains a slash, so it denotes a file elsewhere.
    #[error("it contains a slash")]
    Slash,
    /// The name contains a NUL byte, which no file name contains.
    #[error("it contains a NUL byte")]
    Nul,
    /// The name is longer than a file name can be.
    #[error("it is longer than {NAME_MAX} bytes")]
    Long,
}

/// Checks that a name denotes an entry of its directory, and nothing else.
pub(super) fn check(name: &OsStr) -> Result<(), BadName> {
    let bytes = name.as_bytes();
    match bytes {
        b"" => Err(BadName::Empty),
        b"." | b".." => Err(BadName::Dots),
        _ if bytes.contains(&b'/') => Err(BadName::Slash),
        _ if bytes.contains(&0) => Err(BadName::Nul),
        _ if bytes.len() > NAME_MAX => Err(BadName::Long),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_direct_entries_are_accepted() {
        for good in [b"a".as_slice(), b"...", b".a", b"a b\n", b"\xff\xfe", b"~", b"-rf", &[b'x'; NAME_MAX]] {
            assert_eq!(check(OsStr::from_bytes(good)), Ok(()), "{good:?}");
        }
        let bad = [
            (b"".as_slice(), BadName::Empty),
            (b".", BadName::Dots),
            (b"..", BadName::Dots),
            (b"../x", BadName::Slash),
            (b"/etc/x", BadName::Slash),
            (b"a/b", BadName::Slash),
            (b"a\0", BadName::Nul),
            (&[b'x'; NAME_MAX + 1], BadName::Long),
        ];
        for (name, why) in bad {
            assert_eq!(check(OsStr::from_bytes(name)), Err(why), "{name:?}");
        }
    }
}
