//! The bearer token: reading, generating, storing and comparing it, without ever printing it by accident.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};
use zeroize::Zeroizing;

use super::{
    private::{self, NotPrivate},
    write_durably,
};

/// 256 bits from the operating system, written as 64 hexadecimal digits.
const GENERATED_BYTES: usize = 32;

/// Longest accepted token, in bytes. Even percent-encoded (three times as long), it fits into a request head of 8 KiB.
const MAX_BYTES: usize = 1024;

/// How many bytes of a token's file are read: room for a token and whitespace around it. The buffer is allocated with
/// this size, because growing it would leave copies of the token in freed memory.
const READ_MAX_BYTES: usize = MAX_BYTES + 64;

/// Shortest accepted token: 128 bits, at 6 bits per character as in base64.
const MIN_CHARACTERS: usize = 22;

/// Shortest accepted token if all characters are hexadecimal digits: 128 bits, at 4 bits per digit.
const MIN_DIGITS: usize = 32;

/// The `f_type` of an anonymous pipe (`PIPEFS_MAGIC`).
const PIPE_FILE_SYSTEM: i128 = 0x5049_5045;

/// Why a token cannot be used. Never contains the token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file could not be read or written.
    #[error("token file `{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Other users can read the file or could have written it.
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
    /// The path names a directory, a named FIFO or a device.
    #[error("token file `{}` is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// The token is empty or consists of whitespace.
    #[error("the token is empty")]
    Empty,
    /// The token has less than 128 bits and could be guessed.
    #[error(
        "the token is too short: it has {characters} characters and needs {MIN_CHARACTERS}, or {MIN_DIGITS} hexadecimal digits (128 bits); \
         make one with `openssl rand -hex 32`"
    )]
    TooShort { characters: usize },
    #[error("the token is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// Whitespace, control characters and non-ASCII characters do not survive an HTTP header.
    #[error("the token has characters other than visible ASCII")]
    Characters,
    #[error("no random bytes from the system")]
    Random,
}

/// A secret that authenticates its bearer. Wiped from memory on drop; `Debug` does not show it.
pub struct Token(Zeroizing<String>);

/// The SHA-256 of a token. Admission keeps only this.
#[derive(Clone, Copy)]
pub struct TokenDigest([u8; 32]);

impl Token {
    /// Parses a token. Surrounding whitespace is ignored.
    pub fn parse(text: &[u8]) -> Result<Self, TokenError> {
        let text = text.trim_ascii();
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        if text.len() > MAX_BYTES {
            return Err(TokenError::TooLong);
        }
        let text = std::str::from_utf8(text).map_err(|_| TokenError::Characters)?;
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Characters);
        }
        let least = if text.bytes().all(|byte| byte.is_ascii_hexdigit()) { MIN_DIGITS } else { MIN_CHARACTERS };
        if text.len() < least {
            return Err(TokenError::TooShort { characters: text.len() });
        }
        Ok(Self(Zeroizing::new(text.to_owned())))
    }

    /// Reads a token from a regular file that belongs to us or root and that no other user can access. Also accepts an
    /// anonymous pipe, as a shell creates for `--token-file <(command)`.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io { path: path.to_owned(), source };
        // Without O_NONBLOCK, opening a named FIFO would block until a writer opens it.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        // Check the open file instead of the path, so that the file that was checked is the file that is read.
        let metadata = file.metadata().map_err(failed)?;
        if metadata.file_type().is_fifo() && is_anonymous_pipe(&file) {
            // Blocking is safe here: an anonymous pipe has a writer already, or is at EOF.
            rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(|errno| failed(errno.into()))?;
        } else if !metadata.is_file() {
            return Err(TokenError::NotAFile { path: path.to_owned() });
        }
        private::check(&file, &metadata, path)?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(READ_MAX_BYTES));
        file.take(READ_MAX_BYTES as u64).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(&bytes)
    }

    /// Reads a token from an inherited fd, up to EOF. Having the fd is proof enough, so its mode is not checked.
    pub fn from_descriptor(number: u32) -> Result<Self, TokenError> {
        let path = PathBuf::from(format!("/proc/self/fd/{number}"));
        let failed = |source| TokenError::Io { path: path.clone(), source };
        let mut bytes = Zeroizing::new(Vec::with_capacity(READ_MAX_BYTES));
        File::open(&path).map_err(failed)?.take(READ_MAX_BYTES as u64).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(&bytes)
    }

    /// Reads the token stored in `path`, or generates one and stores it there.
    pub(super) fn kept_in(path: &Path) -> Result<Self, TokenError> {
        match Self::from_file(path) {
            Err(TokenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let token = Self::generate()?;
                // A crash must not leave half a token, which the next server would accept.
                let line = Zeroizing::new(format!("{}\n", token.reveal()));
                write_durably(path, line.as_bytes())
                    .map_err(|source| TokenError::Io { path: path.to_owned(), source })?;
                Ok(token)
            }
            other => other,
        }
    }

    /// The token as text, to be shown to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn digest(&self) -> TokenDigest {
        TokenDigest::of(self.0.as_bytes())
    }

    pub fn generate() -> Result<Self, TokenError> {
        let mut bytes = Zeroizing::new([0; GENERATED_BYTES]);
        getrandom::fill(bytes.as_mut_slice()).map_err(|_| TokenError::Random)?;
        let mut text = Zeroizing::new(vec![0; GENERATED_BYTES * 2]);
        hex::encode_to_slice(bytes.as_slice(), &mut text).expect("two digits for each byte");
        Self::parse(&text)
    }
}

fn is_anonymous_pipe(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| i128::from(found.f_type) == PIPE_FILE_SYSTEM)
}

impl TokenDigest {
    /// The digest of a token: our own, or one that a client offered.
    pub fn of(offered: &[u8]) -> Self {
        Self(Sha256::digest(offered).into())
    }

    /// Compares in constant time. All digests have the same length, so the time does not reveal the token's length
    /// either.
    pub(crate) fn ct_matches(&self, offered: &Self) -> Choice {
        self.0.ct_eq(&offered.0)
    }

    /// A digest that no token has.
    pub(crate) fn of_no_token() -> Self {
        Self([0; 32])
    }

    /// The form in `tokens.toml`.
    pub(crate) fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    /// Parses the 64 hexadecimal digits in `tokens.toml`.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        hex::decode_to_slice(text, &mut digest).ok()?;
        Some(Self(digest))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest(..)")
    }
}
