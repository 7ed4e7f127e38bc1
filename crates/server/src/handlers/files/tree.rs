//! Directories and names: `fs/createDirectory`, `fs/readDirectory`, `fs/walk`, `fs/remove`, `fs/copy`,
//! `fs/createSymlink`.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use exec_server_fs::{self as files, Cancel, View, WalkOptions};
use exec_server_protocol::{
    Empty, base64, fs as wire, limits,
    path::{self as paths, Form, PathArg},
};

use super::{FileRequest, owners::OwnerNames, path, target_texts, text_and_bytes, to_wire};
use crate::error::Failure;

/// Maximum entries of one answer with details. With all their members they stay below the value limit of one message.
const DETAILED_ENTRIES: usize = limits::VALUES / 16;

/// JSON values of an answer besides its entries: envelope, result, list and the applied sandbox.
const ENVELOPE_VALUES: usize = 16;

/// Like [`DETAILED_ENTRIES`], for an answer with details and owners.
const OWNED_ENTRIES: usize = limits::VALUES / 21;

/// `fs/createDirectory`.
pub(crate) async fn create_directory(
    request: FileRequest,
    params: wire::CreateDirectoryParams,
) -> Result<Empty, Failure> {
    let recursive = params.recursive.unwrap_or(true);
    let operation = move |view: &View, path: &Path, links, _: &Cancel| {
        files::create_directory(view, path, links, recursive, params.mode)
    };
    request.run_on(&params.file, operation).await.map(|()| Empty {})
}

/// `fs/readDirectory`: lists the names of a directory, or all details of each entry.
pub(crate) async fn read_directory(
    request: FileRequest,
    params: wire::ReadDirectoryParams,
) -> Result<wire::ReadDirectoryResult, Failure> {
    request.context.peer.outgoing.wait_for_room().await;
    if !params.details {
        let most = limits::DIRECTORY_ENTRIES;
        let operation = move |view: &View, path: &Path, links, cancel: &Cancel| {
            let entries = files::read_directory(view, path, links, most, cancel)?;
            // Five values: an entry and its members. One more if the name needs its bytes as base64.
            let values = entries.iter().map(|entry| 5 + usize::from(entry.name.to_str().is_none())).sum::<usize>();
            if values + ENVELOPE_VALUES > limits::VALUES {
                let advice = "list it in parts, with `details`";
                let path = path.to_owned();
                return Err(files::Error { action: "list", path, kind: files::ErrorKind::TooMany { most, advice } });
            }
            Ok(entries)
        };
        let entries = request.run_on(&params.file, operation).await?;
        return Ok(wire::ReadDirectoryResult { entries: entries.iter().map(entry).collect(), truncated: false });
    }
    let after = params.after_base64.as_deref().map(super::decode).transpose()?.map(OsString::from_vec);
    let most = if params.owners { OWNED_ENTRIES } else { DETAILED_ENTRIES };
    let operation = move |view: &View, path: &Path, links, cancel: &Cancel| {
        let range = files::ListRange { after: after.as_deref(), most };
        files::read_details(view, path, links, range, cancel)
    };
    let (details, truncated) = request.run_on(&params.file, operation).await?;
    let owners = if params.owners { Some(OwnerNames::load().await) } else { None };
    let entries = details.iter().map(|of| {
        let owner = owners.as_ref().map(|names| names.owner(of.stat.uid, of.stat.gid));
        wire::DirectoryEntry { owner, ..detail(of) }
    });
    Ok(wire::ReadDirectoryResult { entries: entries.collect(), truncated })
}

fn entry(entry: &files::DirectoryEntry) -> wire::DirectoryEntry {
    let (file_name, file_name_base64) = text_and_bytes(entry.name.as_bytes());
    wire::DirectoryEntry {
        file_name,
        is_directory: entry.is_directory,
        is_file: entry.is_file,
        is_symlink: Some(entry.is_symlink),
        file_name_base64,
        ..wire::DirectoryEntry::default()
    }
}

fn detail(detail: &files::DetailedEntry) -> wire::DirectoryEntry {
    let (link_target, link_target_base64) = target_texts(detail.link_target.as_ref());
    wire::DirectoryEntry {
        kind: Some(entry_kind(detail.stat.kind)),
        size: Some(detail.stat.size),
        mode: Some(detail.stat.mode),
        modified_at: Some(to_wire(detail.stat.modified)),
        link_target,
        link_target_base64,
        ..entry(&detail.entry)
    }
}

pub(super) fn entry_kind(kind: files::FileKind) -> wire::EntryKind {
    match kind {
        files::FileKind::File => wire::EntryKind::File,
        files::FileKind::Directory => wire::EntryKind::Directory,
        files::FileKind::Symlink => wire::EntryKind::Symlink,
        files::FileKind::Fifo | files::FileKind::Socket | files::FileKind::Device => wire::EntryKind::Other,
    }
}

/// `fs/walk`: a bounded walk over a tree. Its limits are checked before anything else.
pub(crate) async fn walk(request: FileRequest, params: wire::WalkParams) -> Result<wire::WalkResult, Failure> {
    let options = params.options;
    // Peers compare both texts.
    if options.max_directories == 0 || options.max_entries == 0 {
        return Err(Failure::FileInput { what: "filesystem walk limits must be greater than zero" });
    }
    let most = limits::DIRECTORY_ENTRIES as u64;
    if options.max_depth > limits::WALK_DEPTH
        || options.max_directories > limits::WALK_DIRECTORIES
        || options.max_entries > most
    {
        let what = "filesystem walk limits exceed maximums: depth=64, directories=10000, entries=50000";
        return Err(Failure::FileInput { what });
    }
    let path = path(&params.path)?;
    let form = params.path.form();
    let options = WalkOptions {
        max_depth: options.max_depth,
        max_directories: options.max_directories,
        max_entries: options.max_entries,
        max_bytes: limits::WALK_BYTES,
        follow_directories: options.follow_directory_symlinks,
        prune_hidden: options.prune_hidden_directories,
    };
    request.context.peer.outgoing.wait_for_room().await;
    let operation = move |view: &View, cancel: &Cancel| files::walk(view, &path, &options, cancel);
    let walked = request.run(params.sandbox.as_deref(), operation).await?;
    Ok(walk_result(walked, form))
}

/// An entry whose path is not UTF-8 is reported as an error, together with its URI.
fn walk_result(walked: files::WalkResult, form: Form) -> wire::WalkResult {
    let mut entries = Vec::new();
    let mut errors = Vec::new();
    for (path, kind) in walked.entries {
        if path.to_str().is_none() {
            errors.push(unnamed_error(&path, form));
            continue;
        }
        let kind = if kind == files::FileKind::Directory { wire::WalkKind::Directory } else { wire::WalkKind::File };
        entries.push(wire::WalkEntry { path: PathArg::new(form.write(&path)), kind });
    }
    for (path, message) in walked.errors {
        let (text, uri) = written(&path, form);
        errors.push(wire::WalkError { path: PathArg::new(text), message, uri });
    }
    wire::WalkResult { entries, errors, truncated: walked.truncated }
}

/// The error for an entry whose name is not UTF-8: its lossy text names no file.
fn unnamed_error(path: &Path, form: Form) -> wire::WalkError {
    let lossy = path.to_string_lossy().into_owned();
    let message = std::io::Error::from(rustix::io::Errno::NOENT).to_string();
    wire::WalkError { path: PathArg::new(form.write(Path::new(&lossy))), message, uri: Some(paths::to_uri(path)) }
}

/// A path in the form of the request, and its URI if that form cannot represent it.
pub(super) fn written(path: &Path, form: Form) -> (String, Option<String>) {
    match form {
        Form::Native if path.to_str().is_none() => {
            let uri = paths::to_uri(path);
            (uri.clone(), Some(uri))
        }
        form => (form.write(path), None),
    }
}

/// `fs/remove`.
pub(crate) async fn remove(request: FileRequest, params: wire::RemoveParams) -> Result<Empty, Failure> {
    let options =
        files::RemoveOptions { recursive: params.recursive.unwrap_or(true), force: params.force.unwrap_or(true) };
    let operation =
        move |view: &View, path: &Path, links, cancel: &Cancel| files::remove(view, path, links, options, cancel);
    request.run_on(&params.file, operation).await.map(|()| Empty {})
}

/// `fs/copy`.
pub(crate) async fn copy(request: FileRequest, params: wire::CopyParams) -> Result<Empty, Failure> {
    let source = path(&params.source_path)?;
    let destination = path(&params.destination_path)?;
    let recursive = params.recursive;
    let operation = move |view: &View, cancel: &Cancel| files::copy(view, &source, &destination, recursive, cancel);
    request.run(params.sandbox.as_deref(), operation).await.map(|()| Empty {})
}

/// `fs/createSymlink`.
pub(crate) async fn create_symlink(request: FileRequest, params: wire::CreateSymlinkParams) -> Result<Empty, Failure> {
    let replace = params.replace;
    let target = match params.target_base64.as_deref() {
        Some(text) => base64::decode(text).map_err(|_| Failure::FileBase64)?,
        None => params.target.into_bytes(),
    };
    let operation =
        move |view: &View, path: &Path, links, _: &Cancel| files::create_symlink(view, path, links, &target, replace);
    request.run_on(&params.file, operation).await.map(|()| Empty {})
}
