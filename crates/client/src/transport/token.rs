//! The token that authenticates a client. It is never printed, and it is wiped from memory when dropped.

use std::{
    fmt,
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// The environment variable with the token, used if neither the URL nor a file has one. Programs that this library starts do not inherit
/// it, because it is meant for the server only.
pub const TOKEN_VARIABLE: &str = "EXEC_SERVER_TOKEN";

/// Longest token that this client accepts. A server accepts a request head of at most 8 KiB, which contains the token.
const MAX_BYTES: usize = 1024;

/// The `f_type` of an anonymous pipe (`PIPEFS_MAGIC`).
const PIPE_FILE_SYSTEM: i128 = 0x5049_5045;

/// Why a token cannot be used. Never contains the token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file could not be read.
    #[error("read token file `{}`", path.display())]
    Io {
        /// The path of the token file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The path is a directory, a FIFO, a socket or a device.
    #[error("token file `{}` is not a regular file", path.display())]
    NotAFile {
        /// The path of the token file.
        path: PathBuf,
    },
    /// The file belongs to another user, who could have written it.
    #[error("token file `{}` belongs to uid {owner}; it must belong to us or to root", path.display())]
    Owner {
        /// The path of the token file.
        path: PathBuf,
        /// The uid of the owner.
        owner: u32,
    },
    /// Other users can read or write the file.
    #[error("token file `{0}` has mode {mode:04o}; others must not have access: `chmod 600 {0}`", path.display())]
    Mode {
        /// The path of the token file.
        path: PathBuf,
        /// The permission bits of the file.
        mode: u32,
    },
    /// The text is not a valid token.
    #[error("{what}")]
    Malformed {
        /// Why the text is not valid.
        what: &'static str,
    },
}

/// A secret that authenticates a client. `Debug` does not show it.
#[derive(Clone)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// Creates a token from text. Surrounding whitespace, such as a newline, is removed.
    pub fn new(text: impl AsRef<[u8]>) -> Result<Self, TokenError> {
        let text = text.as_ref().trim_ascii();
        if text.is_empty() {
            return Err(TokenError::Malformed { what: "token is empty" });
        }
        if text.len() > MAX_BYTES {
            return Err(TokenError::Malformed { what: "token is longer than 1024 bytes" });
        }
        // Other characters are not allowed in an HTTP header, or would end it.
        match std::str::from_utf8(text) {
            Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Self(Zeroizing::new(text.to_owned()))),
            _ => Err(TokenError::Malformed { what: "token has characters other than visible ASCII" }),
        }
    }

    /// Reads a token from a file that only this user and root can read or write. The file must be a regular file, or an anonymous pipe such
    /// as a shell creates for `<(command)`.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TokenError> {
        let path = path.as_ref();
        let failed = |source| TokenError::Io { path: path.to_owned(), source };
        // `O_NONBLOCK`, because opening a FIFO would wait for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        // Check the open file and not the path, so that the file that is read is the one that was checked.
        let metadata = file.metadata().map_err(failed)?;
        let is_anonymous =
            || rustix::fs::fstatfs(&file).is_ok_and(|found| i128::from(found.f_type) == PIPE_FILE_SYSTEM);
        if metadata.file_type().is_fifo() && is_anonymous() {
            // Make reads block again, to wait for slow output. A read ends with EOF once the writer has closed the
            // pipe.
            rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(|errno| failed(errno.into()))?;
        } else if !metadata.is_file() {
            return Err(TokenError::NotAFile { path: path.to_owned() });
        }
        let owner = metadata.uid();
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return Err(TokenError::Owner { path: path.to_owned(), owner });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Mode { path: path.to_owned(), mode });
        }
        // Leaves room for surrounding whitespace. The buffer has one byte more than can be read, so that it never grows: a reallocation
        // would leave a copy of the token in memory.
        let most = MAX_BYTES + 64;
        let mut bytes = Zeroizing::new(Vec::with_capacity(most + 1));
        file.take(most as u64).read_to_end(&mut bytes).map_err(failed)?;
        Self::new(bytes.as_slice())
    }

    /// The text of the token, for the code that sends it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_token_is_visible_ascii_and_never_shown() {
        let token = Token::new(" s3cret!\r\n").unwrap();
        assert_eq!(token.reveal(), "s3cret!");
        assert_eq!(format!("{token:?} {:?}", token.clone()), "Token(..) Token(..)");
        let long = "x".repeat(1025);
        for text in ["", " \n", "two words", "a\r\nb", "größe", "nul\0", &long] {
            let error = Token::new(text).unwrap_err();
            assert!(text.trim().is_empty() || !format!("{error} {error:?}").contains(text), "{error:?}");
        }
        assert!(Token::new(b"\xff\xfe").is_err());
    }

    #[test]
    fn a_token_file_must_be_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "s3cret\n").unwrap();
        for mode in [0o644, 0o640, 0o604, 0o622] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = Token::from_file(&path).unwrap_err();
            assert!(matches!(error, TokenError::Mode { mode: seen, .. } if seen == mode), "{error:?}");
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Token::from_file(&path).unwrap().reveal(), "s3cret");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        assert!(matches!(Token::from_file(&path), Err(TokenError::Malformed { .. })));
        assert!(matches!(Token::from_file(dir.path()), Err(TokenError::NotAFile { .. })));
        assert!(matches!(Token::from_file(dir.path().join("none")), Err(TokenError::Io { .. })));
    }
}
