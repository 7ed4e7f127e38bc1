//! Parses the kernel's table of mounts, `/proc/PID/mountinfo`.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, path::PathBuf};

/// One line: which part of a device is mounted where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountInfo {
    pub(crate) id: u64,
    pub(crate) device: String,
    /// What the mount shows: the path of a directory or file within the device's file system.
    pub(crate) root: PathBuf,
    /// The mount point.
    pub(crate) at: PathBuf,
    /// The type of the file system.
    pub(crate) kind: String,
}

/// The mounts in the kernel's order. A line is `id parent device root path options [tags…] - type source options`.
/// Skips malformed lines.
pub(crate) fn parse(table: &[u8]) -> impl Iterator<Item = MountInfo> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        // The six fields before the tags cannot be the separator.
        let separator = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
        let text = |at: usize| std::str::from_utf8(fields.get(at)?).ok();
        Some(MountInfo {
            id: text(0)?.parse().ok()?,
            device: text(2)?.to_owned(),
            root: unescape(fields.get(3)?),
            at: unescape(fields.get(4)?),
            kind: text(separator + 1)?.to_owned(),
        })
    })
}

/// Decodes the kernel's escapes: space, tab, newline and backslash are a backslash and three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if byte == b'\\' => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = tail;
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}
