//! `edit_file`: replaces a text in a file, so that neither a text that is not unique nor a second writer spoils it.
//!
//! ```text
//!  read (with its state) ──▶ find ──▶ write, if the file is still in that state ──changed──▶ read again, a few times
//! ```
//!
//! Must not guess: what is not found exactly is told with what comes near it.

use std::path::Path;

use bytes::Bytes;
use exec_server_client::fs::{ErrorKind, FileSystem as _, WriteOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Call, Failure, Reply, files, or_default};

/// How often the file may be changed by somebody else between our reading and writing.
const ATTEMPTS: usize = 5;

/// Bytes of a file that can be edited.
const FILE_BYTES: u64 = 16 << 20;

/// Places that are named where there are several.
const NAMED: usize = 10;

/// Arguments of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// The file; relative to the server's own directory.
    path: String,
    /// The text to be replaced, exactly as it is in the file.
    #[schemars(length(min = 1))]
    old: String,
    /// What stands in its place.
    new: String,
    /// Replaces every place where `old` is, in place of the only one.
    #[serde(default, deserialize_with = "or_default")]
    replace_all: bool,
}

/// Result of `edit_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Edited {
    /// The file, absolute.
    path: String,
    /// How many places were replaced.
    replacements: u64,
    /// The number of the line where the first one begins.
    first_line: u64,
    /// Bytes that the file has now.
    bytes: u64,
}

/// Edits a file.
pub(super) async fn edit(call: &Call<'_>, arguments: Arguments) -> Result<Reply, Failure> {
    if arguments.old.is_empty() {
        return Err(Failure::new("`old` is empty; to make a file or write all of it, use write_file"));
    }
    if arguments.old == arguments.new {
        return Err(Failure::new("`old` and `new` are the same: there is nothing to change"));
    }
    let path = call.server.place.path(&arguments.path);
    // Not called off half-way: a write that was sent may be done.
    for _ in 0..ATTEMPTS {
        if let Some(edited) = attempt(call, &path, &arguments).await? {
            let places = if edited.replacements == 1 { "place" } else { "places" };
            let text =
                format!("changed {} {places} in `{}`, line {}", edited.replacements, edited.path, edited.first_line);
            return Ok(Reply::new(text, &edited));
        }
    }
    let text = format!("`{}` is being changed by somebody else again and again; read it and try later", path.display());
    Err(Failure::new(text))
}

/// Reads, replaces and writes once; nothing where somebody else was faster.
async fn attempt(call: &Call<'_>, path: &Path, arguments: &Arguments) -> Result<Option<Edited>, Failure> {
    let (bytes, state) = files::part(call, path, Some(FILE_BYTES + 1), None).await?;
    if bytes.len() as u64 > FILE_BYTES {
        let text =
            format!("`{}` has more than {FILE_BYTES} bytes; change it with run_command (sed, perl)", path.display());
        return Err(Failure::new(text));
    }
    let (old, new) = (arguments.old.as_bytes(), arguments.new.as_bytes());
    let places = find(&bytes, old);
    let first = match (&places[..], arguments.replace_all) {
        ([], _) => return Err(Failure::new(not_found(&bytes, &arguments.old, path))),
        ([_, _, ..], false) => return Err(Failure::new(several(&bytes, &places, path))),
        ([first, ..], _) => *first,
    };
    let replaced = replace(&bytes, &places, old.len(), new);
    let size = replaced.len() as u64;
    let options = WriteOptions { if_match: state.etag, ..WriteOptions::default() };
    let files = call.server.place.files().await?;
    match files.write_file(path, Bytes::from(replaced), options).await {
        Ok(_) => Ok(Some(Edited {
            path: path.display().to_string(),
            replacements: places.len() as u64,
            first_line: line_at(&bytes, first),
            bytes: size,
        })),
        Err(error) if error.kind == ErrorKind::Changed => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Where a text begins, without overlaps.
fn find(bytes: &[u8], text: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(next) = next_place(&bytes[at..], text) {
        places.push(at + next);
        at += next + text.len();
    }
    places
}

/// The first place of a text: by its first byte, which is found fast, and the comparison of the rest.
fn next_place(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let first = *text.first()?;
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|byte| *byte == first) {
        at += next;
        if bytes[at..].starts_with(text) {
            return Some(at);
        }
        at += 1;
    }
    None
}

fn replace(bytes: &[u8], places: &[usize], len: usize, new: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(bytes.len() + places.len() * new.len().saturating_sub(len));
    let mut at = 0;
    for place in places {
        replaced.extend_from_slice(&bytes[at..*place]);
        replaced.extend_from_slice(new);
        at = place + len;
    }
    replaced.extend_from_slice(&bytes[at..]);
    replaced
}

/// The number of the line that a byte is in.
fn line_at(bytes: &[u8], at: usize) -> u64 {
    1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u64
}

fn several(bytes: &[u8], places: &[usize], path: &Path) -> String {
    let lines: Vec<String> = places.iter().take(NAMED).map(|at| line_at(bytes, *at).to_string()).collect();
    let more = if places.len() > NAMED { " and more" } else { "" };
    format!(
        "`old` is in `{}` {} times, at lines {}{more}; take more of the lines around the one that is meant, or set `replace_all`. \
         Nothing was changed",
        path.display(),
        places.len(),
        lines.join(", ")
    )
}

/// Why a text may not be there, by what comes near it.
fn not_found(bytes: &[u8], old: &str, path: &Path) -> String {
    let begin = format!("`old` is not in `{}`", path.display());
    let crlf = old.replace("\r\n", "\n").replace('\n', "\r\n");
    if crlf != old && !find(bytes, crlf.as_bytes()).is_empty() {
        return format!("{begin}: its lines end with CR LF, write \\r\\n for each line end. Nothing was changed");
    }
    match near(bytes, old) {
        Some(line) => format!(
            "{begin}; a text that differs from it only in blanks begins at line {line}. Read the lines there and take them as they \
             are, without their numbers. Nothing was changed"
        ),
        None => format!("{begin}; read the file and take the text as it is there. Nothing was changed"),
    }
}

/// The line where the same words are, whatever the blanks between them.
fn near(bytes: &[u8], old: &str) -> Option<u64> {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<String> = text.lines().map(words).collect();
    let wanted: Vec<String> = old.trim().lines().map(words).collect();
    if wanted.iter().all(String::is_empty) {
        return None;
    }
    let found = match &wanted[..] {
        [one] => lines.iter().position(|line| line.contains(one)),
        _ => lines.windows(wanted.len()).position(|lines| lines == wanted),
    };
    found.map(|at| at as u64 + 1)
}

fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap() {
        assert_eq!(find(b"aaaa", b"aa"), [0, 2]);
        assert_eq!(find(b"abcabc", b"c"), [2, 5]);
        assert_eq!(find(b"abc", b"abcd"), [] as [usize; 0]);
        assert_eq!(find(b"aab", b"ab"), [1]);
    }

    #[test]
    fn every_place_is_replaced_and_the_rest_stays() {
        let bytes = b"one two one";
        assert_eq!(replace(bytes, &find(bytes, b"one"), 3, b"1"), b"1 two 1");
        assert_eq!(replace(bytes, &find(bytes, b"two "), 4, b""), b"one one");
        assert_eq!(line_at(b"a\nb\nc", 4), 3);
    }

    #[test]
    fn what_comes_near_is_told() {
        let path = Path::new("/x");
        let told = |file: &str, old: &str| not_found(file.as_bytes(), old, path);
        assert!(told("a\r\nb\r\n", "a\nb").contains("CR LF"));
        assert!(told("fn x() {\n\tlet a = 1;\n}\n", "fn x() {\n    let a = 1;").contains("begins at line 1"));
        assert!(told("x\n  let  a;\n", "let a;").contains("begins at line 2"));
        assert!(told("x\n", "y").contains("read the file"));
        assert!(told("x\n", "\n\n\n").contains("read the file"));
    }

    #[test]
    fn several_places_are_named_up_to_a_bound() {
        let file = "x\n".repeat(30);
        let text = several(file.as_bytes(), &find(file.as_bytes(), b"x"), Path::new("/f"));
        assert!(text.contains("30 times, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and more"), "{text}");
    }
}
