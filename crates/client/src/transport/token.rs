//! The secret that a server asks for: never shown by accident, wiped when dropped. Must not know where it is sent.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// The variable with the token for a server whose URL and file have none. No program that we start inherits it: it is ours to
/// show to a server.
pub const TOKEN_VARIABLE: &str = "EXEC_SERVER_TOKEN";

/// Longest token: what a server accepts, since all of a request head must fit into 8 KiB.
const MAX_BYTES: usize = 1024;

/// The `f_type` of a pipe without a name (`PIPEFS_MAGIC`).
const PIPE_FILE_SYSTEM: i128 = 0x5049_5045;

/// Why a token cannot be used. Never holds the token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file could not be read.
    #[error("read token file `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a directory, a FIFO, a socket or a device.
    #[error("token file `{}` is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Another user could have written the file.
    #[error("token file `{}` belongs to uid {owner}; it must belong to us or to root", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users can read or write the file.
    #[error("token file `{0}` has mode {mode:04o}; others must not have access: `chmod 600 {0}`", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The text cannot be a token.
    #[error("{what}")]
    Malformed {
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A secret that lets its bearer in. `Debug` does not show it.
#[derive(Clone)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// Takes a token as a person or a program wrote it: blanks around it, such as a line end, do not count.
    pub fn new(text: impl AsRef<[u8]>) -> Result<Self, TokenError> {
        let text = text.as_ref().trim_ascii();
        if text.is_empty() {
            return Err(TokenError::Malformed { what: "token is empty" });
        }
        if text.len() > MAX_BYTES {
            return Err(TokenError::Malformed { what: "token is longer than 1024 bytes" });
        }
        // Others do not survive a header, or would end it.
        match std::str::from_utf8(text) {
            Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Self(Zeroizing::new(text.to_owned()))),
            _ => Err(TokenError::Malformed { what: "token has characters other than visible ASCII" }),
        }
    }

    /// Reads a token from a regular file, or a pipe without a name as a shell makes it for `<(command)`, that nobody but us and root can have read or written.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TokenError> {
        let path = path.as_ref();
        let failed = |source| TokenError::Io { path: path.to_owned(), source };
        // A FIFO would wait for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        // Asked of the open file: what is read is what was checked.
        let metadata = file.metadata().map_err(failed)?;
        if metadata.file_type().is_fifo() && is_nameless_pipe(&file) {
            // Its writer is there, or has left.
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
        // With room for blanks around it; one allocation, so that no copy is left behind.
        let most = MAX_BYTES + 64;
        let mut bytes = Zeroizing::new(Vec::with_capacity(most + 1));
        file.take(most as u64).read_to_end(&mut bytes).map_err(failed)?;
        Self::new(bytes.as_slice())
    }

    /// The text, for the one place that sends it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

fn is_nameless_pipe(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| i128::from(found.f_type) == PIPE_FILE_SYSTEM)
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
    fn a_token_is_visible_ascii_and_shown_by_nothing() {
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
    fn a_token_file_is_for_our_eyes_only() {
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
