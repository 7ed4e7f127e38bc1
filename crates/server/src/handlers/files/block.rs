//! Files in blocks: `fs/open`, `fs/readBlock`, `fs/close`, and drafts: `fs/create`, `fs/writeBlock`, `fs/commit`.
//!
//! Open files belong to the session: they survive a disconnect and end with the session.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use exec_server_fs::{self as files, Cancel, Draft, View, WriteOptions};
use exec_server_protocol::{Empty, base64, failure::Kind as FailureKind, fs as wire, limits};
use exec_server_rpc::pool::PooledBuffer;

use super::{FileRequest, attached_or_decoded, from_wire, path, send, to_wire, write_result};
use crate::{
    error::Failure,
    files::{DraftHandle, FileHandle, HandleUse},
    handlers::RequestContext,
    pump::Reply,
};

/// `fs/open`: opens a regular file for reading.
pub(crate) async fn open(request: FileRequest, params: wire::OpenParams) -> Result<wire::OpenResult, Failure> {
    let opening = request.session().files.reserve(&params.handle_id, HandleUse::Read)?;
    let operation = move |view: &View, path: &Path, links, _: &Cancel| {
        let file = files::open(view, path, links)?;
        let etag = file.etag()?;
        Ok((file, etag))
    };
    let (file, etag) = request.run_on(&params.file, operation).await?;
    let result = wire::OpenResult {
        handle_id: params.handle_id,
        size: Some(file.stat.size),
        etag: Some(etag),
        mode: Some(file.stat.mode),
        modified_at: Some(to_wire(file.stat.modified)),
    };
    opening.publish(FileHandle::Reading(Arc::new(file)));
    Ok(result)
}

/// `fs/readBlock`: reads bytes of an open file. An error while reading closes the file.
pub(crate) async fn read(context: RequestContext, params: wire::ReadBlockParams, reply: Reply) {
    let request = FileRequest::begin(context).await;
    match read_block(&request, params).await {
        Ok((block, Some(bytes))) => reply.result_attached(&block, bytes),
        other => send(reply, other.map(|(block, _)| block), &request.applied),
    }
}

/// Reads a block. The bytes are in the result, or attached for a peer that understands that.
async fn read_block(
    request: &FileRequest,
    params: wire::ReadBlockParams,
) -> Result<(wire::ReadBlockResult, Option<Bytes>), Failure> {
    let len = usize::try_from(params.len).ok().filter(|len| (1..=limits::BLOCK_BYTES).contains(len));
    let len = len.ok_or(Failure::FileInput { what: "`len` must be 1 to 1048576 bytes" })?;
    let table = &request.session().files;
    let file = match table.find(&params.handle_id)? {
        FileHandle::Reading(file) => file,
        FileHandle::Writing(_) | FileHandle::Opening(_) => {
            return Err(Failure::WrongHandle { id: params.handle_id, used: HandleUse::Read });
        }
    };
    request.context.peer.outgoing.wait_for_room().await;
    let reading = file.clone();
    let offset = params.offset;
    let holes = params.holes;
    let is_attached = request.context.peer.capabilities().attached;
    let mut bytes = PooledBuffer::with_room(len);
    let to_result = move |mut bytes: PooledBuffer, block: files::ReadBlock| {
        bytes.fill(block.len);
        let hole = (block.hole > 0).then_some(block.hole);
        let chunk = if is_attached { String::new() } else { base64::encode(bytes.filled()) };
        let attached = is_attached.then(|| bytes.freeze());
        (wire::ReadBlockResult { chunk, eof: block.eof, hole }, attached)
    };
    // If the block is in the page cache and needs no base64, read it here, without a worker thread.
    if is_attached && let Some(block) = reading.read_block_now(&mut bytes.unfilled()[..len], offset) {
        return Ok(to_result(bytes, block));
    }
    let work = move |cancel: &Cancel| {
        let block = reading.read_block(&mut bytes.unfilled()[..len], offset, holes, cancel)?;
        Ok(to_result(bytes, block))
    };
    let block = request.work(None, work).await;
    if block.is_err() {
        table.close_reading(&params.handle_id, &file);
    }
    block
}

/// `fs/close`: closes a file. A draft is removed with all that was written, unless it was created with `keep` and
/// `discard` is false. A search or watch is cancelled.
pub(crate) async fn close(context: RequestContext, params: wire::CloseParams) -> Result<Empty, Failure> {
    context.peer.file_tasks.close(&params.handle_id);
    let closed = context.session.files.close(&params.handle_id);
    if let Some(handle) = closed {
        let close = move || {
            if let (FileHandle::Writing(writing), true) = (&handle, params.discard) {
                writing.discard();
            }
            drop(handle);
        };
        // Closing may wait for a disk. It needs no slot of the pool, because the number of open files is bounded. A
        // panic in it was already printed.
        tokio::task::spawn_blocking(close).await.unwrap_or(());
    }
    Ok(Empty {})
}

/// `fs/create`: begins a draft.
pub(crate) async fn create(request: FileRequest, params: wire::CreateParams) -> Result<wire::CreateResult, Failure> {
    let keep = params.keep;
    let opening = request.session().files.reserve(&params.handle_id, HandleUse::Write)?;
    if keep.is_some() {
        close_detached_drafts(&request, &path(&params.file.path)?);
    }
    let user = request.context.core.config.file_user.clone();
    let operation = move |view: &View, path: &Path, links, _: &Cancel| {
        let draft = Draft::create(view, path, links, keep.as_deref())?;
        let size = draft.size()?;
        Ok((DraftHandle::new(draft, user), size))
    };
    let (writing, size) = request.run_on(&params.file, operation).await?;
    opening.publish(FileHandle::Writing(writing));
    Ok(wire::CreateResult { handle_id: params.handle_id, size })
}

/// Closes drafts of this path in the principal's detached sessions, whose clients may never come back. The client of
/// this request can then continue the drafts.
fn close_detached_drafts(request: &FileRequest, path: &Path) {
    let others = request.context.core.sessions_of(&request.session().principal);
    others.iter().filter(|other| other.attached().is_none()).for_each(|other| other.files.close_drafts(path));
}

/// A decoded `fs/writeBlock`.
pub(crate) struct WriteBlock {
    handle_id: String,
    offset: u64,
    bytes: Bytes,
}

pub(crate) fn decode_write(params: wire::WriteBlockParams<'_>, attached: Option<Bytes>) -> Result<WriteBlock, Failure> {
    let bytes = attached_or_decoded(&params.chunk, attached, "the bytes must be in `chunk` or attached, not both")?;
    if bytes.len() > limits::BLOCK_BYTES {
        return Err(Failure::FileInput { what: "a block has at most 1048576 bytes" });
    }
    Ok(WriteBlock { handle_id: params.handle_id, offset: params.offset, bytes })
}

/// `fs/writeBlock`: writes bytes of a draft.
pub(crate) async fn write(request: FileRequest, params: WriteBlock) -> Result<wire::WriteBlockResult, Failure> {
    let writing = writing(&request, &params.handle_id)?;
    let queue = writing.queue.clone();
    let work = move |_: &Cancel| {
        let draft = writing.draft.lock();
        draft.write_block(params.offset, &params.bytes)?;
        draft.size()
    };
    request.work(Some(queue), work).await.map(|size| wire::WriteBlockResult { size })
}

fn writing(request: &FileRequest, id: &str) -> Result<Arc<DraftHandle>, Failure> {
    match request.session().files.find(id)? {
        FileHandle::Writing(writing) => Ok(writing),
        FileHandle::Reading(_) | FileHandle::Opening(_) => {
            Err(Failure::WrongHandle { id: id.to_owned(), used: HandleUse::Write })
        }
    }
}

/// `fs/commit`: turns the draft into the file. Afterwards the draft is closed, also after an error, except after an
/// etag mismatch or a commit that failed halfway.
pub(crate) async fn commit(request: FileRequest, params: wire::CommitParams) -> Result<wire::CommitResult, Failure> {
    let writing = writing(&request, &params.handle_id)?;
    let options = WriteOptions {
        if_match: params.if_match,
        fsync: params.fsync,
        mode: params.mode,
        modified: params.modified_at.map(from_wire),
    };
    let size = params.size;
    // While one of the client's own blocks is being written, the writer holds the lock. Do not wait for it here, on a
    // thread of the runtime. In this case, the drafts of detached sessions stay open.
    let path = writing.draft.try_lock().map(|draft| draft.path().to_owned());
    path.iter().for_each(|path| close_detached_drafts(&request, path));
    let committing = writing.clone();
    let committed = request.work(None, move |cancel| committing.draft.lock().commit(size, &options, cancel)).await;
    let is_draft_left = match &committed {
        Err(failure) => failure.kind() == FailureKind::EtagMismatch || writing.draft.lock().is_half_done(),
        Ok(_) => false,
    };
    if !is_draft_left {
        drop(request.session().files.close(&params.handle_id));
    }
    committed.map(write_result)
}
