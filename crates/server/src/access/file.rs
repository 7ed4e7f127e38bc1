//! The token file: names, digests and rights in TOML. An invalid file is rejected as a whole. Edits are made under a
//! lock and replace the file by a rename.
//!
//! ```toml
//! [[tokens]]
//! name = "ci"                       # the principal
//! sha256 = "9f86d081…"              # of the token; the token itself is not stored
//! scopes = ["exec", "stdin"]
//! roots = ["/srv/ci"]               # optional: limits file methods and working directories
//! env = ["PATH", "LC_*"]            # optional: the environment variables it may set
//! sandbox = "required"              # optional: requests need a sandbox; "offline": one without network
//! created = 2026-11-16T04:30:00Z
//! expires = 2026-12-16T04:30:00Z    # optional
//! revoked = 2026-11-20T10:00:00Z    # set when it is revoked
//!
//! [[certificates]]
//! name = "alice"
//! san = "alice@example.org"         # or sha256 = the certificate's fingerprint
//! scopes = ["exec", "stdin", "signal"]
//! ```
//!
//! An unknown key is an error: a misspelt restriction must not grant more than was meant.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use exec_server_protocol::method::Scope;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::{Rights, SandboxFloor};
use crate::{
    core::Principal,
    state_dir::{self, NotPrivate, Token, TokenDigest, TokenError, if_exists, private},
    wall_clock,
};

/// Enough for some thousand entries. A larger file is refused.
const MAX_BYTES: u64 = 1 << 20;

const HEADER: &str = "# The clients that may connect to exec-server, and their rights. Written by `exec-server token`; manual edits take effect within a second.\n\n";

#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("token file `{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Other users can read the file or could have written it.
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
    /// The file is not valid TOML or does not have the expected shape.
    #[error("token file `{}` is invalid", path.display())]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },
    /// An entry is invalid.
    #[error("entry `{name}` of the token file: {what}")]
    Entry { name: String, what: &'static str },
    #[error("entry `{name}` already exists; revoke it first")]
    Exists { name: String },
    #[error("there is no entry `{name}`")]
    Unknown { name: String },
    #[error("cannot generate a token")]
    Token(#[from] TokenError),
}

/// Seconds since 1970. Stored as a date in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let date: toml::value::Datetime = wall_clock::show_seconds(self.0).parse().map_err(ser::Error::custom)?;
        date.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = toml::value::Datetime::deserialize(deserializer)?.to_string();
        let wrong = || de::Error::custom(format_args!("`{text}` is neither a date nor a time in UTC with `Z`"));
        wall_clock::read_seconds(&text).map(Self).ok_or_else(wrong)
    }
}

/// A token or a certificate, and its rights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessEntry {
    pub name: String,
    /// SHA-256 of the token or of the certificate's DER, in lower-case hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// A subject alternative name of the certificate. Not allowed for a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub san: Option<String>,
    #[serde(default)]
    pub scopes: Vec<String>,
    /// Limits file methods and working directories; see `Rights::roots`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<PathBuf>,
    /// The environment variables it may set; see `Rights::env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    /// The weakest sandbox that its requests may use; see `Rights::sandbox`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxFloor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Timestamp>,
}

/// The contents of a token file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenFile {
    /// Refuse every certificate that is not listed, even if a trusted CA signed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_listed_certificates: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<AccessEntry>,
    /// Certificates, by subject alternative name or fingerprint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<AccessEntry>,
}

impl AccessEntry {
    /// The rights of the entry, or an error if they are invalid.
    pub(super) fn rights(&self) -> Result<Rights, TokenFileError> {
        let wrong = |what| TokenFileError::Entry { name: self.name.clone(), what };
        let scopes: Option<Vec<Scope>> = self.scopes.iter().map(|word| Scope::find(word)).collect();
        let scopes = scopes.ok_or_else(|| {
            wrong("unknown scope; the scopes are exec, stdin, signal, fs-read, fs-write, http, metrics")
        })?;
        if scopes.is_empty() && self.revoked.is_none() {
            return Err(wrong("it has no `scopes`"));
        }
        if !self.roots.iter().all(|root| root.is_absolute()) {
            return Err(wrong("a root is not an absolute path"));
        }
        if self.env.iter().flatten().any(|name| name.is_empty() || name.contains('=')) {
            return Err(wrong("a name in `env` is empty or contains `=`"));
        }
        Ok(Rights { scopes, roots: self.roots.clone(), env: self.env.clone(), sandbox: self.sandbox })
    }

    pub(super) fn digest(&self) -> Option<TokenDigest> {
        self.sha256.as_deref().and_then(TokenDigest::from_hex)
    }

    fn check(&self, is_token: bool) -> Result<(), TokenFileError> {
        let wrong = |what| Err(TokenFileError::Entry { name: self.name.clone(), what });
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.bytes().all(is_plain) {
            return wrong("a name has 1 to 64 characters: letters, digits and `._-@`");
        }
        if self.name == Principal::owner().as_str() {
            return wrong("this name is reserved for the owner of the server");
        }
        if self.sha256.is_some() && self.digest().is_none() {
            return wrong("`sha256` is not 64 hexadecimal digits");
        }
        match (is_token, &self.sha256, &self.san) {
            (true, Some(_), None) | (false, Some(_), None) | (false, None, Some(_)) => self.rights().map(drop),
            (true, ..) => wrong("a token needs `sha256` and must not have `san`"),
            (false, ..) => wrong("a certificate needs either `sha256` or `san`, not both"),
        }
    }
}

impl TokenFile {
    /// Reads a file that belongs to us or root and that no other user can access. `None` if it does not exist.
    pub fn read(path: &Path) -> Result<Option<Self>, TokenFileError> {
        let failed = |source| TokenFileError::Io { path: path.to_owned(), source };
        let Some(file) = if_exists(File::open(path)).map_err(failed)? else { return Ok(None) };
        private::check(&file, &file.metadata().map_err(failed)?, path)?;
        let mut text = String::new();
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        // Refuse a file that is too large instead of truncating it: the missing part may restrict or revoke.
        if text.len() as u64 > MAX_BYTES {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        }
        let file: Self = toml::from_str(&text)
            .map_err(|source| TokenFileError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        file.check()?;
        Ok(Some(file))
    }

    fn check(&self) -> Result<(), TokenFileError> {
        let mut names = BTreeSet::new();
        let mut keys = BTreeSet::new();
        for (is_token, entry) in self.all() {
            entry.check(is_token)?;
            let wrong = |what| TokenFileError::Entry { name: entry.name.clone(), what };
            if !names.insert(&entry.name) {
                return Err(wrong("two entries have this name"));
            }
            if !keys.insert((is_token, &entry.sha256, &entry.san)) {
                return Err(wrong("two entries are for the same token or certificate"));
            }
        }
        Ok(())
    }

    /// All entries, each with a flag: true for a token, false for a certificate.
    pub fn all(&self) -> impl Iterator<Item = (bool, &AccessEntry)> {
        self.tokens.iter().map(|entry| (true, entry)).chain(self.certificates.iter().map(|entry| (false, entry)))
    }

    /// Adds a token with these rights to the file at `path` and returns it. This is the only time that the token is
    /// visible.
    ///
    /// A revoked token entry of the same name is replaced. The new token then also gets the sessions of the old token,
    /// because both have the same principal.
    pub fn create(path: &Path, entry: AccessEntry) -> Result<Token, TokenFileError> {
        let token = Token::generate()?;
        let name = entry.name.clone();
        Self::edit(path, |file| {
            file.tokens.retain(|old| old.name != name || old.revoked.is_none());
            if file.all().any(|(_, old)| old.name == name) {
                return Err(TokenFileError::Exists { name: name.clone() });
            }
            let created = Some(Timestamp(wall_clock::now_seconds()));
            file.tokens.push(AccessEntry { sha256: Some(token.digest().to_hex()), san: None, created, ..entry });
            Ok(())
        })?;
        Ok(token)
    }

    /// Revokes an entry of the file at `path`, permanently.
    pub fn revoke(path: &Path, name: &str) -> Result<(), TokenFileError> {
        Self::edit(path, |file| {
            let mut all = file.tokens.iter_mut().chain(&mut file.certificates);
            let entry = all.find(|entry| entry.name == name);
            let entry = entry.ok_or_else(|| TokenFileError::Unknown { name: name.to_owned() })?;
            // If it was revoked before, keep the first date.
            entry.revoked.get_or_insert(Timestamp(wall_clock::now_seconds()));
            Ok(())
        })
    }

    /// Changes the file under a lock, so that concurrent edits do not overwrite each other.
    fn edit(path: &Path, change: impl FnOnce(&mut Self) -> Result<(), TokenFileError>) -> Result<(), TokenFileError> {
        let failed = |source: io::Error| TokenFileError::Io { path: path.to_owned(), source };
        // The lock is a separate file, because the rename replaces the token file itself.
        let lock = path.with_extension("toml.lock");
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock).map_err(failed)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        let mut file = Self::read(path)?.unwrap_or_default();
        change(&mut file)?;
        file.check()?;
        let text = toml::to_string(&file).map_err(|error| failed(io::Error::other(error)))?;
        state_dir::write_durably(path, format!("{HEADER}{text}").as_bytes()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_BYTES, TokenFile, TokenFileError};
    use crate::state_dir;

    #[test]
    fn a_file_that_is_too_large_is_refused_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        let mut text = "#".repeat(usize::try_from(MAX_BYTES).unwrap() - 1) + "\n";
        state_dir::write_private(&path, text.as_bytes()).unwrap();
        assert_eq!(TokenFile::read(&path).unwrap(), Some(TokenFile::default()));
        text.push_str("only_listed_certificates = true\n");
        state_dir::write_private(&path, text.as_bytes()).unwrap();
        assert!(matches!(TokenFile::read(&path), Err(TokenFileError::Io { .. })));
    }
}
