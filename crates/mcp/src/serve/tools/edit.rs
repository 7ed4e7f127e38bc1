//! `edit_file`: replaces a text in a file. Refuses a text that occurs several times unless `replace_all` is set. Does
//! not overwrite the change of a concurrent writer if the executor sends etags.
//!
//! ```text
//!  read (with its etag) ──▶ find ──▶ write, if the file still has that etag ──changed──▶ read again, a few times
//! ```
//!
//! The tool never replaces a text that is only similar. If the exact text is not found, the error says where a similar one is.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use exec_server_client::fs::{FileErrorKind, FileSystem as _, WriteOptions};
use memchr::memmem::Finder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CallContext, ToolFailure, ToolReply, files, or_default};
use crate::serve::limits;

/// How many times an edit is attempted. An attempt fails if another writer changes the file between our read and our write.
const ATTEMPTS: usize = 5;

/// The tool looks for a similar text only if neither the file nor `old` is larger than this, in bytes.
const SIMILAR_BYTES: usize = 1 << 20;

/// How many line numbers the error lists if the text occurs several times.
const LISTED_LINES: usize = 10;

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
        return Err(failure!("`old` is empty; to create or replace a whole file, use write_file"));
    }
    if arguments.old == arguments.new {
        return Err(failure!("`old` and `new` are the same: there is nothing to change"));
    }
    let path = call.server.executor.path(&arguments.path);
    let arguments = Arc::new(arguments);
    for _ in 0..ATTEMPTS {
        if let Some(edited) = attempt(call, &path, &arguments).await? {
            let places = if edited.replacements == 1 { "place" } else { "places" };
            let text = format!(
                "changed {} {places} in `{}`, beginning at line {}",
                edited.replacements, edited.path, edited.first_line
            );
            return Ok(ToolReply::new(text, &edited));
        }
    }
    Err(failure!("another writer keeps changing `{}`; read it again and retry later", path.display()))
}

/// Reads, replaces and writes once. Returns `None` if another writer changed the file in between.
async fn attempt(
    call: &CallContext<'_>,
    path: &Path,
    arguments: &Arc<EditArguments>,
) -> Result<Option<EditAnswer>, ToolFailure> {
    let changing = async {
        // One byte more than the limit, so that `change` notices a file above it.
        let (bytes, state) = files::read_part(call, path, Some(limits::EDITED_BYTES + 1), None).await?;
        let path = path.to_owned();
        let arguments = Arc::clone(arguments);
        // This passes over megabytes several times, so keep it off the async threads.
        let changed = tokio::task::spawn_blocking(move || change(&bytes, &arguments, &path)).await;
        // The outer error is a panic of `change`, the inner one is its refusal.
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
    // An older executor sends no etag. Then a concurrent change is not detected.
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
    // Count occurrences without collecting them: there can be as many as bytes.
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
    let lines: Vec<String> = old.find_iter(bytes).take(LISTED_LINES).map(|at| line_at(bytes, at).to_string()).collect();
    let more = if places > LISTED_LINES { " and more" } else { "" };
    format!(
        "`old` occurs in `{}` {places} times, at lines {}{more}; include more of the surrounding lines, or set `replace_all`. The file is \
         unchanged",
        path.display(),
        lines.join(", ")
    )
}

/// The error text if `old` is not found. Looks for a similar text to explain why.
fn not_found_text(bytes: &[u8], old: &str, path: &Path) -> String {
    let prefix = format!("`old` is not in `{}`", path.display());
    let crlf = old.replace("\r\n", "\n").replace('\n', "\r\n");
    if crlf != old && Finder::new(&crlf).find(bytes).is_some() {
        return format!(
            "{prefix}: the lines of the file end with CR LF, so write each line end as \\r\\n. The file is unchanged"
        );
    }
    match similar_line(bytes, old) {
        Some(line) => format!(
            "{prefix}; a text that differs only in whitespace begins at line {line}. Read those lines and copy them exactly, without \
             their numbers. The file is unchanged"
        ),
        None => format!("{prefix}; read the file and copy the text exactly. The file is unchanged"),
    }
}

/// The line where the same words occur with different whitespace. `None` for large files.
fn similar_line(bytes: &[u8], old: &str) -> Option<u64> {
    if bytes.len() > SIMILAR_BYTES || old.len() > SIMILAR_BYTES {
        return None;
    }
    let needle = normalized_words(old.trim());
    let is_one_line = needle.trim_matches('\n').lines().count() == 1;
    // Without its line feeds, a single line also matches a part of a line.
    let needle = if is_one_line { needle.trim_matches('\n') } else { &needle };
    if needle.trim().is_empty() {
        return None;
    }
    let text = normalized_words(&String::from_utf8_lossy(bytes));
    let at = Finder::new(needle).find(text.as_bytes())?;
    // `text` begins with an extra line feed, so its line numbers are higher by one. A needle of several lines begins with the line feed
    // before its first line: `at + 1` skips that one.
    Some(line_at(text.as_bytes(), at + 1) - 1)
}

/// Normalizes whitespace: a single space between words, and a line feed before the first line and after each line.
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
    fn occurrences_are_replaced_without_overlaps_and_the_rest_stays() {
        let text = |file, old, new| String::from_utf8(changed(file, old, new).unwrap().bytes).unwrap();
        assert_eq!(text("aaaaa", "aa", "b"), "bba");
        assert_eq!(text("one two one", "one", "1"), "1 two 1");
        assert_eq!(text("one two one", "two ", ""), "one one");
        let edit = changed("a\nb\nc b", "b", "longer").unwrap();
        assert_eq!((edit.replacements, edit.first_line, &edit.bytes[..]), (2, 2, &b"a\nlonger\nc longer"[..]));
    }

    #[test]
    fn a_result_above_the_limit_is_refused_before_it_is_built() {
        let (file, new) = ("x".repeat(1 << 20), "y".repeat(1 << 20));
        let ToolFailure(text) = changed(&file, "x", &new).unwrap_err();
        assert!(text.contains("would have more than 16777216 bytes"), "{text}");
        assert_eq!(changed(&file, "x", &"y".repeat(16)).unwrap().bytes.len(), 16 << 20);
        assert!(changed(&file, "x", &"y".repeat(17)).is_err());
    }

    #[test]
    fn the_search_for_a_similar_text_is_fast_and_skips_large_files() {
        // Every line matches the beginning of the text: a naive search would take quadratic time.
        let file = "a\n".repeat(SIMILAR_BYTES / 2);
        let old = format!("{}b", "a \n".repeat(SIMILAR_BYTES / 6));
        assert!(changed(&file, &old, "x").is_err());
        let large = format!("{}  let  a;\n", "\n".repeat(SIMILAR_BYTES));
        assert_eq!(similar_line(large.as_bytes(), "let a;"), None);
    }

    #[test]
    fn the_error_explains_how_a_similar_text_differs() {
        let path = Path::new("/x");
        let text_for = |file: &str, old: &str| not_found_text(file.as_bytes(), old, path);
        assert!(text_for("a\r\nb\r\n", "a\nb").contains("CR LF"));
        assert!(text_for("fn x() {\n\tlet a = 1;\n}\n", "fn x() {\n    let a = 1;").contains("begins at line 1"));
        assert!(text_for("x\n  let  a;\n", "let a;").contains("begins at line 2"));
        assert!(text_for("x\n", "y").contains("read the file"));
        assert!(text_for("x\n", "\n\n\n").contains("read the file"));
    }

    #[test]
    fn the_lines_of_several_matches_are_listed_up_to_a_limit() {
        let file = "x\n".repeat(30);
        let text = several_matches_text(file.as_bytes(), &Finder::new("x"), 30, Path::new("/f"));
        assert!(text.contains("30 times, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and more"), "{text}");
    }
}
