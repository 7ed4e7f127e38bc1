//! Paths on the wire: a native absolute path or a `file:` URI. Resolving one does not access the file system.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::failure::Kind;

/// A native absolute path or a `file:` URI, as the peer wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct PathArg(String);

/// How a path was written. Results use the form of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// A native path, as in V0 and S.
    Native,
    /// A `file:` URI, as in H.
    Uri,
}

/// Why a path is not valid on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path is neither absolute nor a `file:` URI.
    #[error("the path is not absolute")]
    Relative,
    /// The path contains a NUL byte, plain or percent-encoded.
    #[error("the path contains a NUL byte")]
    Nul,
    /// The URI has a query or a fragment.
    #[error("a `file:` URI must not have a query or a fragment")]
    QueryOrFragment,
    /// The URI names another host or has a drive letter.
    #[error("the `file:` URI names a path that is foreign to this host")]
    Foreign,
    /// The URI has broken percent-encoding, contains a backslash, or has no absolute path.
    #[error("the `file:` URI is not well formed")]
    Malformed,
}

impl PathError {
    /// The error kind that the server reports.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Relative => Kind::RelativePath,
            Self::Nul | Self::QueryOrFragment | Self::Foreign | Self::Malformed => Kind::InvalidUri,
        }
    }
}

impl PathArg {
    /// Wraps the text. It is not checked before `resolve`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The path as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How the path is written.
    #[must_use]
    pub fn form(&self) -> Form {
        if uri_rest(&self.0).is_some() { Form::Uri } else { Form::Native }
    }

    /// The absolute path. A native path is used as it is. In a URI, percent-encoding is decoded and dot segments are removed.
    pub fn resolve(&self) -> Result<PathBuf, PathError> {
        match uri_rest(&self.0) {
            Some(rest) => resolve_uri(rest),
            None if !self.0.starts_with('/') => Err(PathError::Relative),
            None if self.0.contains('\0') => Err(PathError::Nul),
            None => Ok(PathBuf::from(&self.0)),
        }
    }
}

impl Form {
    /// Writes an absolute path in this form. Bytes that are not UTF-8 are preserved only in a URI.
    #[must_use]
    pub fn write(self, path: &Path) -> String {
        match self {
            Self::Native => path.to_string_lossy().into_owned(),
            Self::Uri => to_uri(path),
        }
    }
}

/// The `file:` URI of an absolute path.
#[must_use]
pub fn to_uri(path: &Path) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let bytes = path.as_os_str().as_bytes();
    // A first segment such as `C:` would be parsed as a drive letter. Encode its colon to prevent that.
    let colon = bytes.get(1..).is_some_and(is_drive_first).then_some(2);
    let mut uri = String::with_capacity(7 + bytes.len());
    uri.push_str("file://");
    for (at, &byte) in bytes.iter().enumerate() {
        let plain = byte.is_ascii_graphic() && !br##""#%<>?\^`{|}"##.contains(&byte);
        if plain && colon != Some(at) {
            uri.push(char::from(byte));
        } else {
            uri.push('%');
            uri.push(char::from(HEX[usize::from(byte >> 4)]));
            uri.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    uri
}

fn uri_rest(text: &str) -> Option<&str> {
    let (scheme, rest) = text.split_at_checked(5)?;
    scheme.eq_ignore_ascii_case("file:").then_some(rest)
}

fn resolve_uri(rest: &str) -> Result<PathBuf, PathError> {
    if rest.contains(['?', '#']) {
        return Err(PathError::QueryOrFragment);
    }
    if rest.contains('\\') {
        return Err(PathError::Malformed);
    }
    let path = match rest.strip_prefix("//") {
        Some(after) => {
            let (host, path) = after.split_at(after.find('/').unwrap_or(after.len()));
            if !host.is_empty() && !host.eq_ignore_ascii_case("localhost") {
                return Err(PathError::Foreign);
            }
            path
        }
        None => rest,
    };
    let inner = path.strip_prefix('/').ok_or(PathError::Malformed)?;
    if is_drive_first(inner.as_bytes()) {
        return Err(PathError::Foreign);
    }
    // Decode everything before splitting into segments: an encoded slash separates segments too, and that can create a dot segment.
    let decoded = percent_decode(inner.as_bytes()).ok_or(PathError::Malformed)?;
    if decoded.contains(&0) {
        return Err(PathError::Nul);
    }
    let mut resolved = Vec::with_capacity(path.len());
    let mut segments = decoded.split(|byte| *byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_dot = matches!(segment, b"." | b"..");
        if segment == b".." {
            let parent = resolved.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
            resolved.truncate(parent);
        }
        // A final dot segment leaves its slash: `/a/..` is `/`.
        if !is_dot || segments.peek().is_none() {
            resolved.push(b'/');
        }
        if !is_dot {
            resolved.extend_from_slice(segment);
        }
    }
    Ok(PathBuf::from(OsString::from_vec(resolved)))
}

/// Whether the bytes begin with a segment like `C:` or `c|`.
fn is_drive_first(bytes: &[u8]) -> bool {
    matches!(bytes, [letter, b':' | b'|', rest @ ..]
        if letter.is_ascii_alphabetic() && (rest.is_empty() || rest[0] == b'/'))
}

/// Decodes `%XX`, which stands for one byte. `None` if an escape is malformed.
///
/// The `percent-encoding` crate keeps a malformed escape as it is. A path or a token with one is refused here, because the sender meant
/// something else.
#[must_use]
pub fn percent_decode(text: &[u8]) -> Option<Vec<u8>> {
    // The decoded text is not longer, so the vector never moves: a caller can wipe a decoded token completely.
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        let mut value = [*byte];
        if *byte == b'%' {
            let (escape, after) = after.split_first_chunk::<2>()?;
            hex::decode_to_slice(escape, &mut value).ok()?;
            rest = after;
        }
        bytes.extend(value);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::OsStr,
        os::unix::ffi::OsStrExt,
        path::{Path, PathBuf},
    };

    use proptest::prelude::*;

    use super::{Form, PathArg, PathError, percent_decode, to_uri};

    fn check(text: &str, expected: Result<&[u8], PathError>) {
        let resolved = PathArg::new(text).resolve();
        let expected = expected.map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)));
        assert_eq!(resolved, expected, "{text}");
    }

    #[test]
    fn native_paths_are_used_unchanged() {
        check("/", Ok(b"/"));
        check("/a b/../c%20", Ok(b"/a b/../c%20"));
        check("", Err(PathError::Relative));
        check("a/b", Err(PathError::Relative));
        check("C:\\x", Err(PathError::Relative));
        check("/a\0b", Err(PathError::Nul));
    }

    #[test]
    fn uris_are_decoded() {
        check("file:///", Ok(b"/"));
        check("file:///tmp/a%20b", Ok(b"/tmp/a b"));
        check("FILE:///tmp", Ok(b"/tmp"));
        check("file:/tmp", Ok(b"/tmp"));
        check("file://localhost/tmp", Ok(b"/tmp"));
        check("file:///tmp/%ff", Ok(b"/tmp/\xff"));
        check("file:///a/./b/../c", Ok(b"/a/c"));
        check("file:///a/%2e%2E/c/", Ok(b"/c/"));
        check("file:///../../a", Ok(b"/a"));
        check("file:///a/..", Ok(b"/"));
        check("file:///a/b/.", Ok(b"/a/b/"));
        check("file:///a/%2e%2e%2fb", Ok(b"/b"));
        check("file:///a%2f..", Ok(b"/"));
    }

    #[test]
    fn foreign_and_broken_uris_are_refused() {
        check("file://host/share", Err(PathError::Foreign));
        check("file:///C:/x", Err(PathError::Foreign));
        check("file:///c|/x", Err(PathError::Foreign));
        check("file:///a?b", Err(PathError::QueryOrFragment));
        check("file:///a#b", Err(PathError::QueryOrFragment));
        check("file:///%00/bad/path/AA", Err(PathError::Nul));
        check("file:///%zz", Err(PathError::Malformed));
        check("file:///%4", Err(PathError::Malformed));
        check("file:tmp", Err(PathError::Malformed));
        check("file:", Err(PathError::Malformed));
        check("file:///a\\b", Err(PathError::Malformed));
        check("http:///a", Err(PathError::Relative));
    }

    #[test]
    fn percent_escapes_stand_for_bytes() {
        assert_eq!(percent_decode(b"/a%3Fb%ff").unwrap(), b"/a?b\xff");
        assert_eq!(percent_decode(b"/a%3"), None);
        assert_eq!(percent_decode(b"/a%zz"), None);
    }

    #[test]
    fn results_keep_the_form_of_the_request() {
        let path = Path::new("/C:/ä b");
        assert_eq!(PathArg::new("file:///x").form(), Form::Uri);
        assert_eq!(PathArg::new("/x").form(), Form::Native);
        assert_eq!(Form::Native.write(path), "/C:/ä b");
        assert_eq!(Form::Uri.write(path), "file:///C%3A/%C3%A4%20b");
    }

    proptest! {
        #[test]
        fn every_path_survives_as_a_uri(segments in prop::collection::vec(prop::collection::vec(1u8.., 1..12), 0..6)) {
            let mut bytes = Vec::new();
            for segment in &segments {
                let dots = segment.iter().all(|&b| b == b'.') && segment.len() < 3;
                prop_assume!(!dots && !segment.contains(&b'/'));
                bytes.push(b'/');
                bytes.extend_from_slice(segment);
            }
            if bytes.is_empty() {
                bytes.push(b'/');
            }
            let path = PathBuf::from(OsStr::from_bytes(&bytes));
            prop_assert_eq!(PathArg::new(to_uri(&path)).resolve(), Ok(path));
        }

        #[test]
        fn any_text_resolves_to_an_absolute_path_or_an_error(text in "(file:)?/{0,3}.{0,40}") {
            if let Ok(path) = PathArg::new(text).resolve() {
                prop_assert!(path.is_absolute());
            }
        }
    }
}
