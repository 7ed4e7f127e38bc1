//! `edit_file`: replaces a text in a file. Protects against texts that are not unique and against concurrent writers.
//!
//! ```text
//!  read (with its etag) ──▶ find ──▶ write, if the file still has that etag ──changed──▶ read again, a few times
//! ```
//!
//! The tool never guesses. If the text is not found exactly, the error says where a similar text is.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use exec_server_client::fs::{FileErrorKind, FileSystem as _, WriteOptions};
use memchr::memmem::Finder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CallContext, ToolFailure, ToolReply, files, or_default};
use crate::serve::limits;

/// How many attempts an edit makes if another writer changes the file between our read and write.
const ATTEMPTS: usize = 5;

/// The largest file in which a similar text is searched, in bytes.
const NEAR_BYTES: usize = 1 << 20;

/// How many lines the error names if the text occurs several times.
const NAMED: usize = 10;

/// Arguments of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditArguments {
    /// The file to edit. A relative path starts at the server's base directory.
    path: String,
    /// The text to replace, exactly as it is in the file.
    #[schemars(length(min = 1))]
    old: String,
    /// The replacement text.
    new: String,
    /// Replaces all occurrences of `old`. Otherwise `old` must occur exactly once.
    #[serde(default, deserialize_with = "or_default")]
    replace_all: bool,
}

/// Result of `edit_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EditAnswer {
    /// The absolute path of the file.
    path: String,
    /// How many occurrences were replaced.
    replacements: u64,
    /// The line number where the first replacement begins.
    first_line: u64,
    /// The size of the file after the edit, in bytes.
    bytes: u64,
}

pub(super) async fn edit(call: &CallContext<'_>, arguments: EditArguments) -> Result<ToolReply, ToolFailure> {
    if arguments.old.is_empty() {
        return Err(failure!("`old` is empty; to make a file or write all of it, use write_file"));
    }
    if arguments.old == arguments.new {
        return Err(failure!("`old` and `new` are the same: there is nothing to change"));
    }
    let path = call.server.executor.path(&arguments.path);
    let arguments = Arc::new(arguments);
    for _ in 0..ATTEMPTS {
        if let Some(edited) = attempt(call, &path, &arguments).await? {
            let places = if edited.replacements == 1 { "place" } else { "places" };
            let text =
                format!("changed {} {places} in `{}`, line {}", edited.replacements, edited.path, edited.first_line);
            return Ok(ToolReply::new(text, &edited));
        }
    }
    Err(failure!("`{}` keeps being changed by another writer; read it again and retry later", path.display()))
}

/// Reads, replaces and writes once. Returns `None` if another writer changed the file in between.
async fn attempt(
    call: &CallContext<'_>,
    path: &Path,
    arguments: &Arc<EditArguments>,
) -> Result<Option<EditAnswer>, ToolFailure> {
    let changing = async {
        let (bytes, state) = files::read_part(call, path, Some(limits::EDITED_BYTES + 1), None).await?;
        let path = path.to_owned();
        let arguments = Arc::clone(arguments);
        // This passes over megabytes several times, so keep it off the async threads.
        let changed = tokio::task::spawn_blocking(move || change(&bytes, &arguments, &path)).await;
        let changed = changed.map_err(|error| failure!("the edit failed: {error}"))??;
        Ok((changed, state))
    };
    let (changed, state) = call.unless_cancelled(changing).await?;
    let edited = EditAnswer {
        path: path.display().to_string(),
        replacements: changed.replacements,
        first_line: changed.first_line,
        bytes: changed.bytes.len() as u64,
    };
    let options = WriteOptions { if_match: state.etag, ..WriteOptions::default() };
    call.until_settled(async {
        let files = call.server.executor.files().await?;
        match files.write_file(path, Bytes::from(changed.bytes), options).await {
            Ok(_) => Ok(Some(edited)),
            Err(error) if error.kind == FileErrorKind::Changed => Ok(None),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

/// The new content of a file.
#[derive(Debug)]
struct EditedContent {
    bytes: Vec<u8>,
    replacements: u64,
    first_line: u64,
}

/// Finds and replaces the text. Blocks for a time proportional to the file size.
fn change(bytes: &[u8], arguments: &EditArguments, path: &Path) -> Result<EditedContent, ToolFailure> {
    let too_large = |what: &str| {
        let path = path.display();
        let most = limits::EDITED_BYTES;
        failure!("`{path}` {what} more than {most} bytes; change it with run_command (sed, perl)")
    };
    if bytes.len() as u64 > limits::EDITED_BYTES {
        return Err(too_large("has"));
    }
    let old = Finder::new(&arguments.old);
    let new = arguments.new.as_bytes();
    let Some(first) = old.find(bytes) else {
        return Err(ToolFailure(not_found_text(bytes, &arguments.old, path)));
    };
    // Only count them: there may be as many occurrences as bytes.
    let places = old.find_iter(bytes).count();
    if places > 1 && !arguments.replace_all {
        return Err(ToolFailure(several_matches_text(bytes, &old, places, path)));
    }
    // Check the size before allocating: small arguments can request more memory than there is.
    let kept = bytes.len() - places * old.needle().len();
    let size = places.checked_mul(new.len()).and_then(|added| added.checked_add(kept));
    let size = size.filter(|size| *size as u64 <= limits::EDITED_BYTES).ok_or_else(|| too_large("would have"))?;
    let replaced = replace(bytes, &old, new, size);
    Ok(EditedContent { bytes: replaced, replacements: places as u64, first_line: line_at(bytes, first) })
}

/// Replaces all occurrences. `size` is the length of the result.
fn replace(bytes: &[u8], old: &Finder<'_>, new: &[u8], size: usize) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(size);
    let mut at = 0;
    for place in old.find_iter(bytes) {
        replaced.extend_from_slice(&bytes[at..place]);
        replaced.extend_from_slice(new);
        at = place + old.needle().len();
    }
    replaced.extend_from_slice(&bytes[at..]);
    replaced
}

/// The line number of a byte offset.
fn line_at(bytes: &[u8], at: usize) -> u64 {
    1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u64
}

fn several_matches_text(bytes: &[u8], old: &Finder<'_>, places: usize, path: &Path) -> String {
    let lines: Vec<String> = old.find_iter(bytes).take(NAMED).map(|at| line_at(bytes, at).to_string()).collect();
    let more = if places > NAMED { " and more" } else { "" };
    format!(
        "`old` is in `{}` {places} times, at lines {}{more}; take more of the lines around the one that is meant, or set `replace_all`. \
         Nothing was changed",
        path.display(),
        lines.join(", ")
    )
}

/// The error text if `old` is not found: explains why by looking for a similar text.
fn not_found_text(bytes: &[u8], old: &str, path: &Path) -> String {
    let begin = format!("`old` is not in `{}`", path.display());
    let crlf = old.replace("\r\n", "\n").replace('\n', "\r\n");
    if crlf != old && Finder::new(&crlf).find(bytes).is_some() {
        return format!("{begin}: its lines end with CR LF, write \\r\\n for each line end. Nothing was changed");
    }
    match similar_line(bytes, old) {
        Some(line) => format!(
            "{begin}; a text that differs from it only in blanks begins at line {line}. Read the lines there and take them as they \
             are, without their numbers. Nothing was changed"
        ),
        None => format!("{begin}; read the file and take the text as it is there. Nothing was changed"),
    }
}

/// The line where the same words occur with different whitespace. Not searched in large files.
fn similar_line(bytes: &[u8], old: &str) -> Option<u64> {
    if bytes.len() > NEAR_BYTES || old.len() > NEAR_BYTES {
        return None;
    }
    let needle = normalized_words(old.trim());
    let is_one = needle.trim_matches('\n').lines().count() == 1;
    // A single line may match a part of a line.
    let needle = if is_one { needle.trim_matches('\n') } else { &needle };
    if needle.trim().is_empty() {
        return None;
    }
    let text = normalized_words(&String::from_utf8_lossy(bytes));
    let at = Finder::new(needle).find(text.as_bytes())?;
    // In `text`, each line is preceded by its line feed.
    Some(line_at(text.as_bytes(), at + 1) - 1)
}

/// Normalizes whitespace: single spaces between words, a line feed before each line and after the last.
fn normalized_words(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n");
    std::iter::once("\n".to_owned()).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(file: &str, old: &str, new: &str) -> Result<EditedContent, ToolFailure> {
        let (old, new) = (old.to_owned(), new.to_owned());
        change(file.as_bytes(), &EditArguments { path: String::new(), old, new, replace_all: true }, Path::new("/f"))
    }

    #[test]
    fn every_place_is_replaced_without_overlaps_and_the_rest_stays() {
        let text = |file, old, new| String::from_utf8(changed(file, old, new).unwrap().bytes).unwrap();
        assert_eq!(text("aaaaa", "aa", "b"), "bba");
        assert_eq!(text("one two one", "one", "1"), "1 two 1");
        assert_eq!(text("one two one", "two ", ""), "one one");
        let edit = changed("a\nb\nc b", "b", "longer").unwrap();
        assert_eq!((edit.replacements, edit.first_line, &edit.bytes[..]), (2, 2, &b"a\nlonger\nc longer"[..]));
    }

    #[test]
    fn what_would_become_too_large_is_refused_before_it_is_made() {
        let (file, new) = ("x".repeat(1 << 20), "y".repeat(1 << 20));
        let ToolFailure(text) = changed(&file, "x", &new).unwrap_err();
        assert!(text.contains("would have more than 16777216 bytes"), "{text}");
        assert_eq!(changed(&file, "x", &"y".repeat(16)).unwrap().bytes.len(), 16 << 20);
        assert!(changed(&file, "x", &"y".repeat(17)).is_err());
    }

    #[test]
    fn a_text_that_is_nearly_everywhere_is_looked_for_in_no_time() {
        let file = "a\n".repeat(NEAR_BYTES / 2);
        let old = format!("{}b", "a \n".repeat(NEAR_BYTES / 6));
        assert!(changed(&file, &old, "x").is_err());
        let large = format!("{}  let  a;\n", "\n".repeat(NEAR_BYTES));
        assert_eq!(similar_line(large.as_bytes(), "let a;"), None);
    }

    #[test]
    fn what_comes_near_is_told() {
        let path = Path::new("/x");
        let text_for = |file: &str, old: &str| not_found_text(file.as_bytes(), old, path);
        assert!(text_for("a\r\nb\r\n", "a\nb").contains("CR LF"));
        assert!(text_for("fn x() {\n\tlet a = 1;\n}\n", "fn x() {\n    let a = 1;").contains("begins at line 1"));
        assert!(text_for("x\n  let  a;\n", "let a;").contains("begins at line 2"));
        assert!(text_for("x\n", "y").contains("read the file"));
        assert!(text_for("x\n", "\n\n\n").contains("read the file"));
    }

    #[test]
    fn several_places_are_named_up_to_a_bound() {
        let file = "x\n".repeat(30);
        let text = several_matches_text(file.as_bytes(), &Finder::new("x"), 30, Path::new("/f"));
        assert!(text.contains("30 times, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and more"), "{text}");
    }
}
