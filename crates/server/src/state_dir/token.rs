//! The token: where it comes from, that it is never shown by accident, and how it is compared.
//! Must not know HTTP.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};
use zeroize::Zeroizing;

use super::private::{self, NotPrivate};

/// 256 bits from the OS, written as 64 hexadecimal digits.
const GENERATED_BYTES: usize = 32;

/// Longest token accepted; it must fit into a request head of 8 KiB, percent-encoded.
const MAX_BYTES: usize = 1024;

/// Shortest token accepted: 128 bits, at 6 bits for each character as in base64.
const MIN_CHARACTERS: usize = 22;

/// The same where all characters are hexadecimal digits, of 4 bits each.
const MIN_DIGITS: usize = 32;

/// The `f_type` of a pipe without a name (`PIPEFS_MAGIC`).
const PIPE_FILE_SYSTEM: i128 = 0x5049_5045;

/// Why a token cannot be used. Never holds the token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file could not be read or written.
    #[error("use token file `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Other users could have written or read the file.
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
    /// It is a directory, a FIFO, a socket or a device.
    #[error("token file `{}` is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Nothing but blanks.
    #[error("the token is empty")]
    Empty,
    /// It could be guessed.
    #[error(
        "the token is too short: it has {characters} characters and needs {MIN_CHARACTERS}, or {MIN_DIGITS} hexadecimal digits (128 bits); \
         make one with `openssl rand -hex 32`"
    )]
    TooShort {
        /// How many it has.
        characters: usize,
    },
    /// Longer than a request head could carry.
    #[error("the token is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// Blanks, control or non-ASCII characters do not survive a header.
    #[error("the token has characters other than visible ASCII")]
    Characters,
    /// The OS gave no random bytes.
    #[error("no random bytes from the system")]
    Random,
}

/// A secret that lets its bearer in. Wiped when dropped; `Debug` does not show it.
pub struct Token(Zeroizing<String>);

/// The SHA-256 of a token: all that a door keeps.
#[derive(Clone, Copy)]
pub struct TokenDigest([u8; 32]);

impl Token {
    /// Takes a token as a person or a program wrote it: blanks around it do not count.
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

    /// Reads a token from a regular file that only we, or root for us, can have written and read. A pipe without a name, as a shell makes it for
    /// `--token-file <(command)`, is taken like a file.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io { path: path.to_owned(), source };
        // A FIFO would wait for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        // Checked on the open file, not on the path: what is read is what was checked.
        let metadata = file.metadata().map_err(failed)?;
        if metadata.file_type().is_fifo() && is_nameless_pipe(&file) {
            // Its writer is there, or has left.
            rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(|errno| failed(errno.into()))?;
        } else if !metadata.is_file() {
            return Err(TokenError::NotAFile { path: path.to_owned() });
        }
        private::check(&file, &metadata, path)?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES + 64));
        file.take(MAX_BYTES as u64 + 64).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(&bytes)
    }

    /// Reads a token from a descriptor that we were started with, to its end. Having it is the proof; its mode says nothing.
    pub fn from_descriptor(number: u32) -> Result<Self, TokenError> {
        let path = PathBuf::from(format!("/proc/self/fd/{number}"));
        let failed = |source| TokenError::Io { path: path.clone(), source };
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES + 64));
        File::open(&path).map_err(failed)?.take(MAX_BYTES as u64 + 64).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(&bytes)
    }

    /// Reads the token kept in `path`, or makes one there.
    pub(super) fn kept_in(path: &Path) -> Result<Self, TokenError> {
        match Self::from_file(path) {
            Err(TokenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let token = Self::generate()?;
                token.keep(path).map_err(|source| TokenError::Io { path: path.to_owned(), source })?;
                Ok(token)
            }
            other => other,
        }
    }

    /// The text, for the one place that prints the URL.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What a door compares with.
    pub fn digest(&self) -> TokenDigest {
        TokenDigest::of(self.0.as_bytes())
    }

    /// Makes one from 256 bits of the system.
    pub fn generate() -> Result<Self, TokenError> {
        let mut bytes = Zeroizing::new([0; GENERATED_BYTES]);
        getrandom::fill(bytes.as_mut_slice()).map_err(|_| TokenError::Random)?;
        let mut text = Zeroizing::new(String::with_capacity(GENERATED_BYTES * 2));
        for byte in bytes.iter() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(digit.into(), 16).expect("four bits are one digit"));
            }
        }
        Ok(Self(text))
    }

    /// Written beside and renamed: a crash must not leave half a token that the next server would accept.
    fn keep(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(self.0.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    }
}

fn is_nameless_pipe(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| i128::from(found.f_type) == PIPE_FILE_SYSTEM)
}

impl TokenDigest {
    /// The digest of what a peer offered.
    pub fn of(offered: &[u8]) -> Self {
        Self(Sha256::digest(offered).into())
    }

    /// Compares in constant time; digests have one length, so that nothing about the token's own length shows either.
    pub(crate) fn ct_matches(&self, offered: &Self) -> Choice {
        self.0.ct_eq(&offered.0)
    }

    /// One that no token has.
    pub(crate) fn nobody() -> Self {
        Self([0; 32])
    }

    /// As it stands in a token file.
    pub(crate) fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads 64 hexadecimal digits.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        let digits = digits.filter(|digits| digits.len() == 64)?;
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
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
