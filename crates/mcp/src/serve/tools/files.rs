//! Files and directories: `read_file`, `write_file`, `list_directory`. If the server has a root, the executor keeps all paths within it.

use std::{ffi::OsString, path::Path};

use bytes::Bytes;
use exec_server_client::{
    fs::{EntryKind, FileErrorKind, FileSystem as _, Links, ListPage, RemoteFiles, WriteOptions},
    protocol::{
        base64,
        failure::Kind,
        fs::{FileTarget, Lines, ReadFileParams, ReadFileResult},
        path::{PathArg, to_uri},
    },
    requests,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CallContext, OUTSIDE_ROOT, ToolFailure, ToolReply, in_range};
use crate::serve::{
    limits,
    text::{cut_line, is_binary, lossy},
};

/// The default number of lines in one answer.
const LINES: u64 = 2000;

/// The size of the first read of a file that is read from line 1. It shows whether the file is text, and most files fit completely.
const FIRST_BYTES: u64 = 1 << 20;

/// The default number of directory entries in one answer.
const ENTRIES: u64 = 1000;

/// Arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFileArguments {
    /// The file to read. A relative path starts at the server's base directory.
    path: String,
    /// The number of the first line to return; default 1.
    #[schemars(range(min = 1))]
    offset: Option<u64>,
    /// The maximum number of lines, default 2000.
    #[schemars(range(min = 1, max = 20_000))]
    limit: Option<u64>,
}

/// Result of `read_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadFileAnswer {
    /// The absolute path of the file.
    path: String,
    /// The number of the first returned line.
    first_line: u64,
    /// The number of lines in `content`.
    lines: u64,
    /// The lines. Those that are too long are truncated, and bytes that are not UTF-8 are replaced.
    content: String,
    /// The size of the whole file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// Whether the file has more lines after these.
    more: bool,
    /// How many lines were truncated because they are too long.
    cut_lines: u64,
}

pub(super) async fn read(call: &CallContext<'_>, arguments: ReadFileArguments) -> Result<ToolReply, ToolFailure> {
    let first = in_range("offset", arguments.offset, 1, 1..=u64::MAX)?;
    let limit = in_range("limit", arguments.limit, LINES, 1..=limits::LINES)?;
    let path = call.server.executor.path(&arguments.path);
    let (bytes, size, at_end) = call.unless_cancelled(fetch(call, &path, first, limit)).await?;
    let shown = path.display().to_string();
    if is_binary(&bytes) {
        let size = size.map_or_else(String::new, |size| format!(", {size} bytes"));
        return Err(failure!(
            "`{shown}` is a binary file{size}, not text; inspect it with run_command (file, xxd, strings)"
        ));
    }
    let taken = take_lines(&bytes, limit);
    if taken.lines == 0 && first > 1 {
        return Err(failure!("`{shown}` has fewer than {first} lines; read it from a lower `offset`"));
    }
    let read = ReadFileAnswer {
        path: shown,
        first_line: first,
        lines: taken.lines,
        content: taken.content,
        size_bytes: size,
        more: taken.more || !at_end,
        cut_lines: taken.cut,
    };
    Ok(ToolReply::new(read.text(taken.is_crlf, taken.is_replaced), &read))
}

/// Returns bytes that begin with line `first`, the size of the file, and whether the bytes reach its end.
async fn fetch(
    call: &CallContext<'_>,
    path: &Path,
    first: u64,
    limit: u64,
) -> Result<(Bytes, Option<u64>, bool), ToolFailure> {
    if first == 1 {
        let (bytes, result) = read_part(call, path, Some(FIRST_BYTES), None).await?;
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        // A server that does not know `len` ignores it, sends the whole file, and sends no `eof`.
        let at_end = result.eof.unwrap_or(true);
        if at_end || lines >= limit || is_binary(&bytes) {
            return Ok((bytes, result.size, at_end));
        }
    }
    let (bytes, result) = read_part(call, path, None, Some(Lines { first, count: limit })).await?;
    match result.eof {
        Some(at_end) => Ok((bytes, result.size, at_end)),
        // A server that does not know `lines` ignores it and sends the whole file.
        None => {
            let size = bytes.len() as u64;
            let before = usize::try_from(first - 1).unwrap_or(usize::MAX);
            let skipped: usize = bytes.split_inclusive(|byte| *byte == b'\n').take(before).map(<[u8]>::len).sum();
            Ok((bytes.slice(skipped..), Some(size), true))
        }
    }
}

/// Reads a part of a file from the executor.
pub(super) async fn read_part(
    call: &CallContext<'_>,
    path: &Path,
    len: Option<u64>,
    lines: Option<Lines>,
) -> Result<(Bytes, ReadFileResult), ToolFailure> {
    let executor = &call.server.executor;
    let path_arg = PathArg::new(path.to_str().map_or_else(|| to_uri(path), str::to_owned));
    let params = ReadFileParams {
        file: FileTarget { path: path_arg, follow_symlinks: None, sandbox: executor.sandbox() },
        offset: None,
        len,
        lines,
    };
    let read = executor.client().await?.request::<requests::FsReadFile>(&params).await;
    let mut result = read.map_err(|error| read_failure(path, &error))?;
    let bytes = base64::decode(&std::mem::take(&mut result.data_base64))
        .map_err(|_| failure!("read `{}`: the executor's answer is not valid base64", path.display()))?;
    Ok((Bytes::from(bytes), result))
}

/// The error for a failed read, with advice for the model.
fn read_failure(path: &Path, error: &exec_server_client::Error) -> ToolFailure {
    let shown = path.display().to_string();
    let reason = error.to_string();
    // Some errors of servers name the path already.
    let text = if reason.contains(&shown) { reason } else { format!("read `{shown}`: {reason}") };
    let advice = match error.server_kind() {
        Some(Kind::NotFound) => "; check the path with list_directory or search_files",
        Some(Kind::SandboxDenied) => OUTSIDE_ROOT,
        Some(Kind::IsADirectory) => "; use list_directory",
        Some(Kind::NotRegularFile) => "; a directory is listed with list_directory",
        Some(Kind::FileTooLarge) => "; read parts of it with run_command (head, sed, grep)",
        _ => "",
    };
    failure!("{text}{advice}")
}

/// The lines that fit into an answer.
#[derive(Debug, Default, PartialEq, Eq)]
struct TakenLines {
    content: String,
    lines: u64,
    /// How many of the lines were truncated.
    cut: u64,
    /// More lines follow in the same bytes.
    more: bool,
    /// At least one line ends with CR LF.
    is_crlf: bool,
    /// Bytes that are not UTF-8 were replaced.
    is_replaced: bool,
}

fn take_lines(bytes: &[u8], limit: u64) -> TakenLines {
    let mut taken = TakenLines::default();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if taken.lines == limit || taken.content.len() >= limits::ANSWER_BYTES {
            taken.more = true;
            break;
        }
        taken.is_crlf |= line.ends_with(b"\r\n");
        taken.is_replaced |= std::str::from_utf8(line).is_err();
        let text = lossy(line);
        let (body, end) = text.strip_suffix('\n').map_or((text.as_str(), ""), |body| (body, "\n"));
        let (body, is_cut) = cut_line(body, limits::LINE_BYTES);
        taken.content.push_str(&body);
        taken.content.push_str(end);
        taken.cut += u64::from(is_cut);
        taken.lines += 1;
    }
    taken
}

impl ReadFileAnswer {
    fn text(&self, is_crlf: bool, is_replaced: bool) -> String {
        if self.lines == 0 {
            return format!("`{}` is empty", self.path);
        }
        let numbered =
            self.content.lines().zip(self.first_line..).map(|(line, number)| format!("{number:>6}\t{line}\n"));
        let mut text: String = numbered.collect();
        let next = self.first_line + self.lines;
        if self.more {
            text.push_str(&format!("[more lines follow: continue with offset {next}]\n"));
        }
        if self.cut_lines > 0 {
            let most = limits::LINE_BYTES;
            text.push_str(&format!("[{} lines are longer than {most} bytes and were truncated]\n", self.cut_lines));
        }
        if is_crlf {
            text.push_str("[lines end with CR LF]\n");
        }
        if is_replaced {
            text.push_str("[bytes that are not UTF-8 are shown as \u{fffd}]\n");
        }
        text
    }
}

/// Arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFileArguments {
    /// The file to write. A relative path starts at the server's base directory.
    path: String,
    /// The complete content of the file.
    content: String,
}

/// Result of `write_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WriteFileAnswer {
    /// The absolute path of the file.
    path: String,
    /// The size of the file in bytes.
    bytes: u64,
    /// Whether the file did not exist before.
    created: bool,
    /// Whether the file was replaced in one step, so that no reader could see a partial file.
    atomic: bool,
}

pub(super) async fn write(call: &CallContext<'_>, arguments: WriteFileArguments) -> Result<ToolReply, ToolFailure> {
    let path = call.server.executor.path(&arguments.path);
    let bytes = Bytes::from(arguments.content);
    let size = bytes.len() as u64;
    let checking = async {
        let files = call.server.executor.files().await?;
        match files.metadata(&path, Links::Follow).await {
            Ok(_) => Ok((files, false)),
            Err(error) if error.kind == FileErrorKind::NotFound => Ok((files, true)),
            Err(error) => Err(error.into()),
        }
    };
    let (files, created) = call.unless_cancelled(checking).await?;
    let writing = async {
        // Fails with `NotFound` if the parent directory is missing.
        match files.write_file(&path, bytes.clone(), WriteOptions::default()).await {
            Err(error) if error.kind == FileErrorKind::NotFound => {
                if let Some(parent) = path.parent() {
                    files.create_directory(parent, true, Links::Follow, None).await?;
                }
                Ok(files.write_file(&path, bytes, WriteOptions::default()).await?)
            }
            done => Ok(done?),
        }
    };
    let written = call.until_settled(writing).await?;
    let shown = path.display().to_string();
    let text = format!("{} `{shown}`, {size} bytes", if created { "created" } else { "replaced" });
    Ok(ToolReply::new(text, &WriteFileAnswer { path: shown, bytes: size, created, atomic: written.atomic }))
}

/// Arguments of `list_directory`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListDirectoryArguments {
    /// The directory to list. A relative path starts at the server's base directory, which is the default.
    path: Option<String>,
    /// The maximum number of entries, default 1000.
    #[schemars(range(min = 1, max = 10_000))]
    limit: Option<u64>,
    /// Returns only entries with names after this one. To continue, give the last name of the previous answer.
    after: Option<String>,
}

/// Result of `list_directory`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListDirectoryAnswer {
    /// The absolute path of the directory.
    path: String,
    /// The entries, sorted by name.
    entries: Vec<DirectoryRow>,
    /// Whether there are more entries after the last one.
    more: bool,
}

/// A directory entry.
#[derive(Debug, Serialize, JsonSchema)]
struct DirectoryRow {
    /// The name of the entry.
    name: String,
    /// `file`, `directory`, `symlink` or `other`.
    kind: &'static str,
    /// The size of a file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// The target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

pub(super) async fn list(call: &CallContext<'_>, arguments: ListDirectoryArguments) -> Result<ToolReply, ToolFailure> {
    let limit = in_range("limit", arguments.limit, ENTRIES, 1..=limits::ENTRIES)?;
    let path = call.server.executor.path(arguments.path.as_deref().unwrap_or("."));
    let after = arguments.after.map(OsString::from);
    let listing = async { page(&call.server.executor.files().await?, &path, after).await };
    let (mut rows, mut more) = call.unless_cancelled(listing).await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    more |= rows.len() > limit;
    rows.truncate(limit);
    let listing = ListDirectoryAnswer { path: path.display().to_string(), entries: rows, more };
    Ok(ToolReply::new(listing.text(), &listing))
}

async fn page(
    files: &RemoteFiles,
    path: &Path,
    after: Option<OsString>,
) -> Result<(Vec<DirectoryRow>, bool), ToolFailure> {
    match files.list(path, after.clone(), Links::Follow).await {
        Ok(ListPage { entries, more }) => {
            let row = |entry: exec_server_client::fs::ListEntry| DirectoryRow {
                name: entry.name.display().to_string(),
                kind: kind_name(entry.kind),
                size_bytes: (entry.kind == EntryKind::File).then_some(entry.size),
                target: entry.target.map(|target| target.display().to_string()),
            };
            Ok((entries.into_iter().map(row).collect(), more))
        }
        // An older server has only a method without sizes, links and pages.
        Err(error) if error.kind == FileErrorKind::Unsupported => {
            let mut all = files.read_directory(path).await?;
            // This method has neither order nor `after`.
            all.retain(|entry| after.as_ref().is_none_or(|after| entry.name > *after));
            all.sort_by(|one, other| one.name.cmp(&other.name));
            let rows = all.iter().map(|entry| {
                let kind = match (entry.is_directory, entry.is_file) {
                    (true, _) => "directory",
                    (_, true) => "file",
                    _ => "other",
                };
                DirectoryRow { name: entry.name.display().to_string(), kind, size_bytes: None, target: None }
            });
            Ok((rows.collect(), false))
        }
        Err(error) if error.kind == FileErrorKind::NotADirectory => Err(failure!("{error}; use read_file")),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink => "symlink",
        EntryKind::Other => "other",
    }
}

impl ListDirectoryAnswer {
    fn text(&self) -> String {
        if self.entries.is_empty() {
            return format!("`{}` is empty", self.path);
        }
        let mut text = String::new();
        for row in &self.entries {
            let line = match (row.kind, &row.target, row.size_bytes) {
                ("directory", ..) => format!("{}/\n", row.name),
                (_, Some(target), _) => format!("{} -> {target}\n", row.name),
                (_, None, Some(size)) => format!("{}\t{size} bytes\n", row.name),
                (kind, None, None) => format!("{}\t({kind})\n", row.name),
            };
            text.push_str(&line);
        }
        if let (true, Some(last)) = (self.more, self.entries.last()) {
            text.push_str(&format!("[there are more entries: continue with `after` {:?}]\n", last.name));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_ends_up_to_the_limit() {
        let taken = take_lines(b"a\nb\r\nc", 2);
        assert_eq!(
            taken,
            TakenLines { content: "a\nb\r\n".to_owned(), lines: 2, more: true, is_crlf: true, ..TakenLines::default() }
        );
        let taken = take_lines(b"a\nb", 2);
        assert_eq!(taken, TakenLines { content: "a\nb".to_owned(), lines: 2, ..TakenLines::default() });
        assert_eq!(take_lines(b"", 2), TakenLines::default());
        assert!(take_lines(b"\xff\n", 2).is_replaced);
    }

    #[test]
    fn long_lines_are_truncated_and_an_answer_has_a_maximum_size() {
        let line = format!("{}\n", "x".repeat(10_000));
        let taken = take_lines(line.as_bytes(), 2);
        assert_eq!((taken.lines, taken.cut, taken.more), (1, 1, false));
        assert!(taken.content.ends_with("[… 8000 bytes of this line left out …]\n"), "{}", taken.content);
        let many = "0123456789\n".repeat(100_000);
        let taken = take_lines(many.as_bytes(), 1_000_000);
        assert!(taken.more && taken.content.len() < limits::ANSWER_BYTES + limits::LINE_BYTES);
        assert_eq!(taken.content.lines().count() as u64, taken.lines);
    }
}
