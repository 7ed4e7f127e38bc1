//! Fuzz target: path arguments. A resolved path must be absolute and without NUL bytes. The path of a URI must have no dot segments. A path
//! written as a URI must be read back with the same bytes.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use exec_server_protocol::path::{Form, PathArg, PathError, to_uri};

use crate::weight;

pub fn check(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        read(text);
    }
    write(data);
}

fn read(text: &str) {
    let argument = PathArg::new(text);
    let resolved = weight::within(4 * text.len() + 256, || argument.resolve());
    match argument.form() {
        Form::Native => assert_eq!(resolved, native(text)),
        Form::Uri => {
            assert!(text.len() >= 5 && text.as_bytes()[..5].eq_ignore_ascii_case(b"file:"));
            assert_eq!(resolved.is_ok(), uri(&text[5..]).is_some(), "{text:?}");
        }
    }
    let Ok(path) = resolved else { return };
    let bytes = path.as_os_str().as_bytes();
    assert!(bytes.starts_with(b"/") && !bytes.contains(&0), "{text:?} names {path:?}");
    if argument.form() == Form::Uri {
        assert_eq!(Some(bytes), uri(&text[5..]).as_deref(), "{text:?}");
        let mut segments = bytes.split(|byte| *byte == b'/');
        assert!(segments.all(|segment| segment != b"." && segment != b".."), "{text:?} names {path:?}");
        assert_eq!(PathArg::new(to_uri(&path)).resolve().as_ref(), Ok(&path));
    }
}

/// The model for a native path: it is used unchanged.
fn native(text: &str) -> Result<PathBuf, PathError> {
    if !text.starts_with('/') {
        return Err(PathError::Relative);
    }
    if text.contains('\0') { Err(PathError::Nul) } else { Ok(PathBuf::from(text)) }
}

/// The naive model for the part after `file:`: decode everything, then walk the segments.
fn uri(rest: &str) -> Option<Vec<u8>> {
    if rest.contains(['?', '#', '\\']) {
        return None;
    }
    let path = match rest.strip_prefix("//") {
        Some(after) => {
            let at = after.find('/')?;
            if !["", "localhost"].contains(&after[..at].to_ascii_lowercase().as_str()) {
                return None;
            }
            &after[at..]
        }
        None => rest,
    };
    let inside = path.strip_prefix('/')?;
    let first = inside.split('/').next()?.as_bytes();
    if let [letter, b':' | b'|'] = first
        && letter.is_ascii_alphabetic()
    {
        return None;
    }
    let inside = unescape(inside)?;
    let segments: Vec<&[u8]> = inside.split(|byte| *byte == b'/').collect();
    let mut kept: Vec<&[u8]> = Vec::new();
    for (at, segment) in segments.iter().enumerate() {
        match *segment {
            b"." => {}
            b".." => drop(kept.pop()),
            other => kept.push(other),
        }
        if matches!(*segment, b"." | b"..") && at + 1 == segments.len() {
            kept.push(b"");
        }
    }
    Some(kept.iter().flat_map(|segment| [b"/", *segment].concat()).collect())
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        (out, rest) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                ([&out[..], &[digit(*high)? * 16 + digit(*low)?]].concat(), after)
            }
            (b'%', _) => return None,
            (byte, after) => ([&out[..], &[*byte]].concat(), after),
        };
    }
    (!out.contains(&0)).then_some(out)
}

/// Writes any bytes as the URI of an absolute path, and reads it again.
fn write(data: &[u8]) {
    let path = [b"/", data].concat();
    let is_plain = path.split(|byte| *byte == b'/').all(|segment| segment != b"." && segment != b"..");
    if path.contains(&0) || !is_plain {
        return;
    }
    let path = Path::new(OsStr::from_bytes(&path));
    let uri = Form::Uri.write(path);
    assert!(uri.is_ascii() && uri.starts_with("file:///"));
    assert_eq!(PathArg::new(&uri).resolve().as_deref(), Ok(path), "{uri}");
}
