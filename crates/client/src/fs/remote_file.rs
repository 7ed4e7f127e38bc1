//! Open files on a server. Their handles belong to the session, so they survive cut connections.
//!
//! Failure path: an interrupted commit is sent again. If the server no longer knows the handle, the client checks whether the file has the
//! committed size and time.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use exec_server_protocol::{failure, fs as wire};

use super::{
    Block, CommitOptions, EntryKind, FileError, FileFuture, Links, ReadAt, WriteAt, Written,
    remote::{REPEATS_MAX, RemoteFiles, bytes_of},
};
use crate::{Error, requests};

/// A handle on the server. Closed when dropped.
pub(super) struct RemoteHandle {
    pub(super) remote: RemoteFiles,
    pub(super) path: PathBuf,
    pub(super) handle_id: String,
    pub(super) is_open: bool,
}

impl RemoteHandle {
    pub(super) fn new(remote: &RemoteFiles, path: &Path) -> Self {
        Self { remote: remote.clone(), path: path.to_owned(), handle_id: crate::random_word(), is_open: true }
    }

    pub(super) async fn close(self) -> Result<(), FileError> {
        self.send_close(false).await
    }

    /// Closes the handle of a draft, and discards the blocks that are kept under its key.
    async fn discard(self) -> Result<(), FileError> {
        self.send_close(true).await
    }

    async fn send_close(mut self, discard: bool) -> Result<(), FileError> {
        self.is_open = false;
        let params = wire::CloseParams { handle_id: self.handle_id.clone(), discard };
        self.remote.call::<requests::FsClose>("close", &self.path, &params).await.map(drop)
    }
}

impl Drop for RemoteHandle {
    fn drop(&mut self) {
        if self.is_open {
            let params = wire::CloseParams { handle_id: self.handle_id.clone(), discard: false };
            self.remote.client().handle.release::<requests::FsClose>(params);
        }
    }
}

/// A file that is open for reading.
pub(super) struct RemoteFile {
    pub(super) handle: RemoteHandle,
    pub(super) size: u64,
    pub(super) etag: Option<String>,
}

impl ReadAt for RemoteFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }

    fn read_at(&self, offset: u64, len: usize, holes: bool) -> FileFuture<'_, Block> {
        Box::pin(async move {
            let RemoteHandle { remote, path, handle_id, .. } = &self.handle;
            let params = wire::ReadBlockParams { handle_id: handle_id.clone(), offset, len: len as u64, holes };
            let (block, attached) = remote.call_attached::<requests::FsReadBlock>("read", path, &params).await?;
            let bytes = bytes_of("read", path, &block.chunk, attached)?;
            if bytes.len() > len {
                return Err(FileError::invalid_data("read", path, "the server sent more bytes than requested"));
            }
            Ok(Block { bytes, hole: block.hole.unwrap_or_default(), eof: block.eof })
        })
    }
}

/// A file that is being written.
pub(super) struct RemoteDraft {
    pub(super) handle: RemoteHandle,
    pub(super) found: u64,
}

impl RemoteDraft {
    /// Determines the result of a commit that a cut interrupted. The commit is sent again, which is harmless: the server forgets a handle
    /// after its commit. If the handle is unknown, the commit succeeded before, or the server was restarted. It succeeded if the file has
    /// the expected size and time of modification. If the caller did not set both, the result cannot be determined, and the error of the
    /// cut is returned.
    async fn check_commit(&self, params: &wire::CommitParams, cut: Error) -> Result<Written, Error> {
        let RemoteHandle { remote, path, .. } = &self.handle;
        for _ in 0..REPEATS_MAX {
            match remote.client().request::<requests::FsCommit>(params).await {
                Err(Error::UnknownOutcome { .. }) => {}
                Err(error) if error.server_kind() == Some(failure::Kind::UnknownHandle) => {
                    let (Some(size), Some(modified)) = (params.size, params.modified_at) else { return Err(cut) };
                    return match remote.metadata_of(path, Links::Itself).await {
                        Ok(found) if (found.kind, found.size, found.modified) == (EntryKind::File, size, modified) => {
                            // Only the lost answer said whether the replacement was atomic. Normally it is.
                            Ok(Written { atomic: true, etag: found.etag })
                        }
                        _ => Err(error),
                    };
                }
                answer => return answer.map(|written| Written { atomic: written.atomic, etag: written.etag }),
            }
        }
        Err(cut)
    }
}

impl WriteAt for RemoteDraft {
    fn found(&self) -> u64 {
        self.found
    }

    fn write_at(&self, offset: u64, bytes: Bytes) -> FileFuture<'_, ()> {
        Box::pin(async move {
            let RemoteHandle { remote, path, handle_id, .. } = &self.handle;
            let params =
                |chunk| wire::WriteBlockParams { handle_id: handle_id.clone(), offset, chunk: Cow::Owned(chunk) };
            remote.call_with::<requests::FsWriteBlock>("write", path, &params, &bytes).await.map(drop)
        })
    }

    fn commit(mut self: Box<Self>, options: CommitOptions) -> FileFuture<'static, Written> {
        Box::pin(async move {
            let params = wire::CommitParams {
                handle_id: self.handle.handle_id.clone(),
                if_match: options.if_match,
                fsync: options.sync,
                size: options.size,
                mode: options.mode,
                modified_at: options.modified,
            };
            let RemoteHandle { remote, path, .. } = &self.handle;
            let answer = {
                let _admitted = remote.admit(0).await;
                remote.client().request::<requests::FsCommit>(&params).await
            };
            let written = match answer {
                Err(cut @ Error::UnknownOutcome { .. }) => self.check_commit(&params, cut).await,
                answer => answer.map(|written| Written { atomic: written.atomic, etag: written.etag }),
            };
            let written = written.map_err(|error| FileError::of_call("complete", path, &error))?;
            self.handle.is_open = false;
            Ok(written)
        })
    }

    fn discard(self: Box<Self>) -> FileFuture<'static, ()> {
        Box::pin(self.handle.discard())
    }
}
