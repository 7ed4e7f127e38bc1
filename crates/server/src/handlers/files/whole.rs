//! Whole files: `fs/readFile`, `fs/writeFile`, `fs/getMetadata`, `fs/setMetadata`, `fs/canonicalize`.

use std::path::Path;

use bytes::Bytes;
use exec_server_fs::{self as files, Cancel, ReadRange, View, WriteOptions, WritePosition};
use exec_server_protocol::{Empty, base64, fs as wire, limits, path::PathArg};

use super::{
    FileRequest, attached_or_decoded, from_wire, owners::OwnerNames, path, send, target_texts, to_wire, write_result,
};
use crate::{error::Failure, handlers::RequestContext, pump::Reply};

/// Advice for a file that is too large for one message.
const READ_ADVICE: &str = "read it in blocks with `fs/open` and `fs/readBlock`";

/// Files up to this size are read without reserving memory.
const SMALL_BYTES: u64 = 1 << 20;

/// How many times to try a read whose file grows while the read waits for memory.
const READ_TRIES: usize = 8;

/// `fs/readFile`: reads a file, a byte range of it, or some lines.
pub(crate) async fn read(context: RequestContext, params: wire::ReadFileParams, reply: Reply) {
    let request = FileRequest::begin(context).await;
    match read_file(&request, params).await {
        Ok((result, Some(bytes))) => reply.result_attached(&result, bytes),
        other => send(reply, other.map(|(result, _)| result), &request.applied),
    }
}

/// Reads the file. The bytes are in the result, or attached for a peer that understands that.
async fn read_file(
    request: &FileRequest,
    params: wire::ReadFileParams,
) -> Result<(wire::ReadFileResult, Option<Bytes>), Failure> {
    let part = match (params.lines, params.offset, params.len) {
        (Some(lines), None, None) => ReadRange::Lines { first: lines.first, count: lines.count },
        (None, offset, len) => ReadRange::Bytes { offset: offset.unwrap_or(0), len },
        (Some(_), _, _) => {
            return Err(Failure::FileInput { what: "`lines` cannot be combined with `offset` or `len`" });
        }
    };
    request.context.peer.outgoing.wait_for_room().await;
    let most = limits::FILE_BYTES as u64;
    // The dialect `attached` attaches only blocks.
    let is_attached = request.context.peer.capabilities().binary;
    let mut reserved = SMALL_BYTES;
    let mut permits = None;
    // A larger file waits for memory without an open fd. It may have grown by then, so check its size again.
    for _ in 0..READ_TRIES {
        let read = request
            .run_on(&params.file, move |view, path, links, cancel| {
                let file = files::open(view, path, links)?;
                match file.expected_bytes(part, most) {
                    expected if expected > reserved => Ok(Err(expected)),
                    _ => {
                        file.read(part, most, READ_ADVICE, cancel).map(|content| Ok(read_result(content, is_attached)))
                    }
                }
            })
            .await?;
        match read {
            Ok(content) => return Ok(content),
            Err(expected) => {
                // Return the old permits before waiting for new ones, so that two growing files cannot deadlock.
                drop(permits.take());
                // Once as bytes and once as base64.
                let bytes = expected + expected.div_ceil(3) * 4;
                permits = Some(request.context.core.files.reserve_memory(&request.session().files, bytes).await?);
                reserved = expected;
            }
        }
    }
    Err(Failure::FileInput { what: "the file grows faster than it can be read; read a range of it" })
}

fn read_result(content: files::FileContent, is_attached: bool) -> (wire::ReadFileResult, Option<Bytes>) {
    let result = wire::ReadFileResult {
        data_base64: if is_attached { String::new() } else { base64::encode(&content.bytes) },
        etag: Some(content.etag),
        size: Some(content.size),
        eof: Some(content.eof),
    };
    (result, is_attached.then(|| content.bytes.into()))
}

/// A decoded `fs/writeFile`.
pub(crate) struct FileWrite {
    file: wire::FileTarget,
    bytes: Bytes,
    position: WritePosition,
    options: WriteOptions,
}

pub(crate) fn decode_write(params: wire::WriteFileParams<'_>, attached: Option<Bytes>) -> Result<FileWrite, Failure> {
    let position = match (params.append, params.offset) {
        (false, None) => WritePosition::Whole,
        (true, None) => WritePosition::End,
        (false, Some(offset)) => WritePosition::Offset(offset),
        (true, Some(_)) => return Err(Failure::FileInput { what: "`append` cannot be combined with `offset`" }),
    };
    let bytes =
        attached_or_decoded(&params.data_base64, attached, "the bytes must be in `dataBase64` or attached, not both")?;
    if bytes.len() > limits::FILE_BYTES {
        return Err(Failure::FileTooLarge);
    }
    Ok(FileWrite {
        file: params.file,
        bytes,
        position,
        options: WriteOptions {
            if_match: params.if_match,
            fsync: params.fsync,
            mode: params.mode,
            modified: params.modified_at.map(from_wire),
        },
    })
}

/// `fs/writeFile`: replaces a file atomically if possible, or writes into it.
pub(crate) async fn write(request: FileRequest, params: FileWrite) -> Result<wire::WriteFileResult, Failure> {
    let FileWrite { file, bytes, position, options } = params;
    let operation = move |view: &View, path: &Path, links, cancel: &Cancel| {
        let request = files::WriteRequest { position, bytes: &bytes, options: &options };
        files::write(view, path, links, &request, cancel)
    };
    request.run_on(&file, operation).await.map(write_result)
}

/// `fs/getMetadata`: describes the file at a path.
pub(crate) async fn get_metadata(
    request: FileRequest,
    params: wire::GetMetadataParams,
) -> Result<wire::GetMetadataResult, Failure> {
    let of_link = params.of_link;
    let operation = move |view: &View, path: &Path, links, _: &Cancel| files::metadata(view, path, links, of_link);
    let found = request.run_on(&params.file, operation).await?;
    let (uid, gid) = (found.stat.uid, found.stat.gid);
    let owner = if params.owners { Some(OwnerNames::load().await.owner(uid, gid)) } else { None };
    Ok(wire::GetMetadataResult { owner, ..metadata_result(found) })
}

fn metadata_result(metadata: files::Metadata) -> wire::GetMetadataResult {
    let stat = metadata.stat;
    let (link_target, link_target_base64) = target_texts(metadata.link_target.as_ref());
    wire::GetMetadataResult {
        is_directory: stat.kind == files::FileKind::Directory,
        is_file: stat.kind == files::FileKind::File,
        is_symlink: metadata.is_symlink,
        size: Some(stat.size),
        created_at_ms: stat.created.map_or(0, files::Moment::millis),
        modified_at_ms: stat.modified.millis(),
        etag: metadata.etag,
        mode: Some(stat.mode),
        modified_at: Some(to_wire(stat.modified)),
        links: Some(stat.links),
        owner: None,
        link_target,
        link_target_base64,
    }
}

/// `fs/setMetadata`: sets mode and modification time.
pub(crate) async fn set_metadata(request: FileRequest, params: wire::SetMetadataParams) -> Result<Empty, Failure> {
    let change = files::MetadataChange {
        mode: params.mode,
        modified: params.modified_at.map(from_wire),
        of_link: params.of_link,
    };
    let operation = move |view: &View, path: &Path, links, _: &Cancel| files::set_metadata(view, path, links, change);
    request.run_on(&params.file, operation).await.map(|()| Empty {})
}

/// `fs/canonicalize`: resolves all symlinks of a path.
pub(crate) async fn canonicalize(
    request: FileRequest,
    params: wire::CanonicalizeParams,
) -> Result<wire::CanonicalizeResult, Failure> {
    let path = path(&params.path)?;
    let operation = move |view: &View, cancel: &Cancel| files::canonicalize(view, &path, cancel);
    let real = request.run(params.sandbox.as_deref(), operation).await?;
    Ok(wire::CanonicalizeResult { path: PathArg::new(super::tree::written(&real, params.path.form()).0) })
}
