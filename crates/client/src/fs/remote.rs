//! File access on a server.
//!
//! An operation is normally one request. Large files are sent in blocks through a handle of the session. Handles survive cut connections,
//! because the session does.
//!
//! Failure paths: an interrupted call is sent again if that is harmless. `remote_file` finds out whether an interrupted commit succeeded.
//! Other interrupted calls fail with an error that says that the outcome is unknown.

use std::{
    borrow::Cow,
    ffi::OsString,
    fmt,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use exec_server_protocol::{
    base64, fs as wire, limits,
    path::{Form, PathArg},
};
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    CreateOptions, DirectoryEntry, EntryKind, FileError, FileErrorKind, FileFuture, FileSystem, Links, ListEntry,
    ListPage, Metadata, Moment, ReadAt, Walk, WalkOptions, WriteAt, WriteOptions, Written, read_all,
    remote_file::{RemoteDraft, RemoteFile, RemoteHandle},
    write_all,
};
use crate::{Client, Error, Request, requests, session::Sent};

/// Limit for the repeats of an interrupted call, and for the attempts to open a handle.
pub(super) const REPEATS_MAX: usize = 16;

/// Limit for the file calls of a session in flight. Others wait. A connection has 1024 calls in flight at most and refuses further ones;
/// the rest is for calls that are not about files.
const CALLS: usize = 768;

/// Limit for the bytes in the file calls of a session in flight, in KiB: 32 MiB. Others wait. A server refuses requests beyond
/// [`limits::REQUESTS_WAITING_BYTES`]; the other half is for stdin.
const WRITTEN_KIB: usize = limits::REQUESTS_WAITING_BYTES / 2 / KIB;

const KIB: usize = 1024;

/// The room for file calls on the connection of a session. All [`RemoteFiles`] of the session share it.
#[derive(Debug)]
pub(crate) struct FileCalls {
    calls: Semaphore,
    written_kib: Semaphore,
}

impl Default for FileCalls {
    fn default() -> Self {
        Self { calls: Semaphore::new(CALLS), written_kib: Semaphore::new(WRITTEN_KIB) }
    }
}

impl FileCalls {
    /// Waits for room for a call that sends this many bytes of a file. The room is taken until the permits are dropped.
    pub(super) async fn admit(&self, bytes: usize) -> [SemaphorePermit<'_>; 2] {
        // A single larger call waits until no other one sends bytes.
        let kib = u32::try_from(bytes.div_ceil(KIB).min(WRITTEN_KIB)).unwrap_or(u32::MAX);
        // The bytes first: a call that waits for them must not keep a place from calls that send none.
        let written = self.written_kib.acquire_many(kib).await;
        let call = self.calls.acquire().await;
        [written, call].map(|permit| permit.expect("the semaphores are never closed"))
    }
}

/// The file system of a server.
#[derive(Clone)]
pub struct RemoteFiles {
    client: Client,
    /// The sandbox for every call, in the form of the protocol.
    sandbox: Option<Arc<RawValue>>,
    /// Whether to request the owners of files.
    owners: bool,
}

impl RemoteFiles {
    /// Creates access to all files that the server itself can access.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, sandbox: None, owners: false }
    }

    /// Returns the same file system inside a sandbox, given as PROTOCOL.md describes it. A denied operation fails with
    /// [`FileErrorKind::SandboxDenied`].
    #[must_use]
    pub fn sandboxed(&self, sandbox: Box<RawValue>) -> Self {
        Self { client: self.client.clone(), sandbox: Some(Arc::from(sandbox)), owners: self.owners }
    }

    /// Also requests the owners of files. A server without the capability `owners` does not report them.
    #[must_use]
    pub fn with_owners(mut self) -> Self {
        self.owners = true;
        self
    }

    /// The client of this server.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// See [`FileCalls::admit`].
    pub(super) async fn admit(&self, bytes: usize) -> [SemaphorePermit<'_>; 2] {
        self.client.session().file_calls.admit(bytes).await
    }

    pub(super) fn sandbox(&self) -> wire::Sandbox {
        self.sandbox.as_ref().and_then(|sandbox| RawValue::from_string(sandbox.get().to_owned()).ok())
    }

    /// Formats a path for this server: as a URI if the server accepts no other form, or if the path is not UTF-8.
    pub(super) async fn path_arg(&self, operation: &'static str, path: &Path) -> Result<PathArg, FileError> {
        let form = match path.to_str() {
            None => Form::Uri,
            Some(_) => {
                let form = self.client.session().path_form().await;
                form.map_err(|error| FileError::of_call(operation, path, &error))?
            }
        };
        if !path.is_absolute() {
            return Err(FileError::new(operation, path, FileErrorKind::InvalidInput, "the path is not absolute"));
        }
        Ok(PathArg::new(form.write(path)))
    }

    async fn file_target(
        &self,
        operation: &'static str,
        path: &Path,
        links: Links,
    ) -> Result<wire::FileTarget, FileError> {
        // Absent is the default: links are followed.
        let follow_symlinks = (links != Links::Follow).then_some(false);
        Ok(wire::FileTarget { path: self.path_arg(operation, path).await?, follow_symlinks, sandbox: self.sandbox() })
    }

    pub(super) async fn call<M: Request>(
        &self,
        operation: &'static str,
        path: &Path,
        params: &M::Params<'_>,
    ) -> Result<M::Result, FileError> {
        let _admitted = self.admit(0).await;
        self.client.request::<M>(params).await.map_err(|error| FileError::of_call(operation, path, &error))
    }

    /// Like [`call`](Self::call), and also returns the bytes that are attached to the answer.
    pub(super) async fn call_attached<M: Request>(
        &self,
        operation: &'static str,
        path: &Path,
        params: &M::Params<'_>,
    ) -> Result<(M::Result, Option<Bytes>), FileError> {
        let _admitted = self.admit(0).await;
        let called = self.client.session().send::<M>(params).await.and_then(Sent::with_attached::<M>);
        called.map_err(|error| FileError::of_call(operation, path, &error))
    }

    /// Like [`call`](Self::call), with bytes that are attached to the request if the server accepts that.
    pub(super) async fn call_with<M: Request>(
        &self,
        operation: &'static str,
        path: &Path,
        params: &(impl Fn(String) -> M::Params<'static> + Sync),
        bytes: &Bytes,
    ) -> Result<M::Result, FileError> {
        let _admitted = self.admit(bytes.len()).await;
        let called = self.client.session().call_with::<M>(params, bytes).await;
        called.map_err(|error| FileError::of_call(operation, path, &error))
    }

    /// Like [`call`](Self::call). An idempotent request is sent again if a cut or `call_timeout` left its outcome unknown.
    async fn call_again<M: Request>(
        &self,
        operation: &'static str,
        path: &Path,
        params: &M::Params<'_>,
        is_idempotent: bool,
    ) -> Result<M::Result, FileError> {
        let _admitted = self.admit(0).await;
        let mut repeats_left = if is_idempotent { REPEATS_MAX } else { 0 };
        loop {
            match self.client.request::<M>(params).await {
                Err(Error::UnknownOutcome { .. }) if repeats_left > 0 => repeats_left -= 1,
                answer => return answer.map_err(|error| FileError::of_call(operation, path, &error)),
            }
        }
    }

    /// Opens a handle under a new random name. If a cut leaves the outcome unknown, tries again under another name.
    async fn open_handle<M: Request>(
        &self,
        operation: &'static str,
        path: &Path,
        params: impl Fn(String) -> M::Params<'static>,
    ) -> Result<(RemoteHandle, M::Result), FileError> {
        for _ in 0..REPEATS_MAX {
            let handle = RemoteHandle::new(self, path);
            let opened = {
                let _admitted = self.admit(0).await;
                self.client.request::<M>(&params(handle.handle_id.clone())).await
            };
            match opened {
                Ok(result) => return Ok((handle, result)),
                // The server may have opened the handle. Close it first, because a draft can have only one writer.
                Err(Error::UnknownOutcome { .. }) => handle.close().await?,
                Err(error) => return Err(FileError::of_call(operation, path, &error)),
            }
        }
        Err(FileError::new(operation, path, FileErrorKind::Disconnected, "the connection broke during every attempt"))
    }

    pub(super) async fn metadata_of(&self, path: &Path, links: Links) -> Result<Metadata, FileError> {
        let params = wire::GetMetadataParams {
            file: self.file_target("look at", path, links).await?,
            of_link: links == Links::Itself,
            owners: self.owners,
        };
        let found = self.call::<requests::FsGetMetadata>("look at", path, &params).await?;
        let link_target = os_string("look at", path, found.link_target, found.link_target_base64)?;
        let kind = match (found.is_file, found.is_directory) {
            _ if links == Links::Itself && found.is_symlink => EntryKind::Symlink,
            (true, _) => EntryKind::File,
            (false, true) => EntryKind::Directory,
            (false, false) => EntryKind::Other,
        };
        Ok(Metadata {
            kind,
            is_symlink: found.is_symlink,
            size: found.size.unwrap_or_default(),
            mode: found.mode,
            modified: found.modified_at.unwrap_or_else(|| of_millis(found.modified_at_ms)),
            created_ms: found.created_at_ms,
            etag: found.etag,
            link_target,
            owner: found.owner,
        })
    }

    async fn open_file(&self, path: &Path, links: Links) -> Result<RemoteFile, FileError> {
        let file = self.file_target("open", path, links).await?;
        let params = |handle_id| wire::OpenParams { handle_id, file: file.clone() };
        let (handle, opened) = self.open_handle::<requests::FsOpen>("open", path, params).await?;
        let size = match opened.size {
            Some(size) => size,
            None => self.metadata_of(path, links).await?.size,
        };
        Ok(RemoteFile { handle, size, etag: opened.etag })
    }

    async fn create_draft(&self, path: &Path, options: CreateOptions) -> Result<RemoteDraft, FileError> {
        let file = self.file_target("create", path, options.links).await?;
        let params = |handle_id| wire::CreateParams { handle_id, file: file.clone(), keep: options.keep.clone() };
        let (handle, created) = self.open_handle::<requests::FsCreate>("create", path, params).await?;
        Ok(RemoteDraft { handle, found: created.size })
    }

    async fn write_whole(&self, path: &Path, bytes: Bytes, options: WriteOptions) -> Result<Written, FileError> {
        // A draft replaces the file, so it cannot append to it.
        if bytes.len() > limits::FILE_BYTES && !options.append {
            let create = CreateOptions { links: options.links, keep: options.keep.clone() };
            let draft = self.create_draft(path, create).await?;
            return write_all(path, Box::new(draft), bytes, options.into()).await;
        }
        let file = self.file_target("write", path, options.links).await?;
        let params = |text| wire::WriteFileParams {
            file: file.clone(),
            data_base64: Cow::Owned(text),
            if_match: options.if_match.clone(),
            append: options.append,
            offset: None,
            fsync: options.sync,
            mode: options.mode,
            modified_at: options.modified,
        };
        // An idempotent write is sent again if a cut or `call_timeout` left its outcome unknown.
        let is_idempotent = options.if_match.is_none() && !options.append;
        let _admitted = self.admit(bytes.len()).await;
        let mut repeats_left = if is_idempotent { REPEATS_MAX } else { 0 };
        let written = loop {
            match self.client.session().call_with::<requests::FsWriteFile>(&params, &bytes).await {
                Err(Error::UnknownOutcome { .. }) if repeats_left > 0 => repeats_left -= 1,
                answer => break answer.map_err(|error| FileError::of_call("write", path, &error))?,
            }
        };
        Ok(Written { atomic: written.atomic, etag: written.etag })
    }

    /// Reads a file in one request: the whole file, or `len` bytes of it. A server that cannot read a part sends the whole file.
    async fn read_once(&self, path: &Path, links: Links, len: Option<u64>) -> Result<Bytes, FileError> {
        let params =
            wire::ReadFileParams { file: self.file_target("read", path, links).await?, offset: None, len, lines: None };
        let (read, attached) = self.call_attached::<requests::FsReadFile>("read", path, &params).await?;
        bytes_of("read", path, &read.data_base64, attached)
    }

    async fn read_whole(&self, path: &Path, links: Links) -> Result<Bytes, FileError> {
        match self.read_once(path, links, None).await {
            Err(error) if error.kind == FileErrorKind::TooLarge => {
                read_all(Arc::new(self.open_file(path, links).await?)).await
            }
            read => read,
        }
    }

    /// Reads a file of at most `most` bytes. Requests one byte more, which shows whether the file is larger.
    async fn read_at_most(&self, path: &Path, most: u64, links: Links) -> Result<Bytes, FileError> {
        let bytes = self.read_once(path, links, Some(most.saturating_add(1))).await?;
        if bytes.len() as u64 > most {
            let reason = format!("it has more than {most} bytes");
            return Err(FileError::new("read", path, FileErrorKind::TooLarge, reason));
        }
        Ok(bytes)
    }

    async fn list_names(&self, path: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        let params = wire::ReadDirectoryParams {
            file: self.file_target("list", path, Links::Follow).await?,
            details: false,
            owners: false,
            after_base64: None,
        };
        let found = self.call::<requests::FsReadDirectory>("list", path, &params).await?;
        let entries = found.entries.into_iter().map(|entry| {
            let name = os_string("list", path, Some(entry.file_name), entry.file_name_base64)?.unwrap_or_default();
            Ok(DirectoryEntry { name, is_directory: entry.is_directory, is_file: entry.is_file })
        });
        entries.collect()
    }

    async fn list_page(&self, path: &Path, after: Option<OsString>, links: Links) -> Result<ListPage, FileError> {
        let params = wire::ReadDirectoryParams {
            file: self.file_target("list", path, links).await?,
            details: true,
            owners: self.owners,
            after_base64: after.map(|name| base64::encode(name.as_bytes())),
        };
        let found = self.call::<requests::FsReadDirectory>("list", path, &params).await?;
        let mut entries = Vec::with_capacity(found.entries.len());
        for entry in found.entries {
            let (Some(kind), Some(mode), Some(modified)) = (entry.kind, entry.mode, entry.modified_at) else {
                let reason =
                    format!("the server at {} does not report the mode and time of files", self.client.address());
                return Err(FileError::new("list", path, FileErrorKind::Unsupported, reason));
            };
            entries.push(ListEntry {
                name: os_string("list", path, Some(entry.file_name), entry.file_name_base64)?.unwrap_or_default(),
                kind,
                size: entry.size.unwrap_or_default(),
                mode,
                modified,
                target: os_string("list", path, entry.link_target, entry.link_target_base64)?,
                owner: entry.owner,
            });
        }
        Ok(ListPage { entries, more: found.truncated })
    }

    async fn walk_tree(&self, path: &Path, options: WalkOptions) -> Result<Walk, FileError> {
        let params = wire::WalkParams { path: self.path_arg("walk", path).await?, options, sandbox: self.sandbox() };
        let found = self.call::<requests::FsWalk>("walk", path, &params).await?;
        let entries = found.entries.into_iter().map(|entry| Ok((resolve("walk", path, &entry.path)?, entry.kind)));
        let errors = found.errors.into_iter().map(|error| {
            // A URI contains every byte of the path. The other form replaces bytes that are not UTF-8.
            let received = error.uri.map_or(error.path, PathArg::new);
            Ok((resolve("walk", path, &received)?, error.message))
        });
        Ok(Walk {
            entries: entries.collect::<Result<_, FileError>>()?,
            errors: errors.collect::<Result<_, FileError>>()?,
            truncated: found.truncated,
        })
    }
}

impl fmt::Debug for RemoteFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFiles").field("client", &self.client).finish_non_exhaustive()
    }
}

impl FileSystem for RemoteFiles {
    fn machine(&self) -> String {
        self.client.address()
    }

    fn read_file<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Bytes> {
        Box::pin(self.read_whole(path, links))
    }

    fn read_within<'a>(&'a self, path: &'a Path, most: u64, links: Links) -> FileFuture<'a, Bytes> {
        Box::pin(self.read_at_most(path, most, links))
    }

    fn write_file<'a>(&'a self, path: &'a Path, bytes: Bytes, options: WriteOptions) -> FileFuture<'a, Written> {
        Box::pin(self.write_whole(path, bytes, options))
    }

    fn create_directory<'a>(
        &'a self,
        path: &'a Path,
        recursive: bool,
        links: Links,
        mode: Option<u32>,
    ) -> FileFuture<'a, ()> {
        Box::pin(async move {
            let params = wire::CreateDirectoryParams {
                file: self.file_target("make directory", path, links).await?,
                recursive: Some(recursive),
                mode,
            };
            self.call_again::<requests::FsCreateDirectory>("make directory", path, &params, recursive).await.map(drop)
        })
    }

    fn metadata<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Metadata> {
        Box::pin(self.metadata_of(path, links))
    }

    fn canonicalize<'a>(&'a self, path: &'a Path) -> FileFuture<'a, PathBuf> {
        Box::pin(async move {
            let params =
                wire::CanonicalizeParams { path: self.path_arg("resolve", path).await?, sandbox: self.sandbox() };
            let found = self.call::<requests::FsCanonicalize>("resolve", path, &params).await?;
            resolve("resolve", path, &found.path)
        })
    }

    fn read_directory<'a>(&'a self, path: &'a Path) -> FileFuture<'a, Vec<DirectoryEntry>> {
        Box::pin(self.list_names(path))
    }

    fn list<'a>(&'a self, path: &'a Path, after: Option<OsString>, links: Links) -> FileFuture<'a, ListPage> {
        Box::pin(self.list_page(path, after, links))
    }

    fn walk<'a>(&'a self, path: &'a Path, options: WalkOptions) -> FileFuture<'a, Walk> {
        Box::pin(self.walk_tree(path, options))
    }

    fn remove<'a>(&'a self, path: &'a Path, recursive: bool, force: bool, links: Links) -> FileFuture<'a, ()> {
        Box::pin(async move {
            let params = wire::RemoveParams {
                file: self.file_target("remove", path, links).await?,
                recursive: Some(recursive),
                force: Some(force),
            };
            self.call_again::<requests::FsRemove>("remove", path, &params, force).await.map(drop)
        })
    }

    fn copy<'a>(&'a self, source: &'a Path, target: &'a Path, recursive: bool) -> FileFuture<'a, ()> {
        Box::pin(async move {
            let params = wire::CopyParams {
                source_path: self.path_arg("copy", source).await?,
                destination_path: self.path_arg("copy", target).await?,
                recursive,
                sandbox: self.sandbox(),
            };
            self.call::<requests::FsCopy>("copy", source, &params).await.map(drop)
        })
    }

    fn symlink<'a>(&'a self, path: &'a Path, target: OsString, links: Links) -> FileFuture<'a, ()> {
        Box::pin(async move {
            let (target, target_base64) = match target.into_string() {
                Ok(text) => (text, None),
                Err(bytes) => (String::new(), Some(base64::encode(bytes.as_bytes()))),
            };
            let params = wire::CreateSymlinkParams {
                file: self.file_target("link", path, links).await?,
                target,
                target_base64,
                replace: true,
            };
            self.call_again::<requests::FsCreateSymlink>("link", path, &params, true).await.map(drop)
        })
    }

    fn set_metadata<'a>(
        &'a self,
        path: &'a Path,
        links: Links,
        mode: Option<u32>,
        modified: Option<Moment>,
    ) -> FileFuture<'a, ()> {
        Box::pin(async move {
            let params = wire::SetMetadataParams {
                file: self.file_target("change", path, links).await?,
                of_link: links == Links::Itself,
                mode,
                modified_at: modified,
            };
            self.call::<requests::FsSetMetadata>("change", path, &params).await.map(drop)
        })
    }

    fn sweep<'a>(&'a self, _: &'a Path, _: Links) -> FileFuture<'a, ()> {
        // A server does this by itself; see `FileSystem::sweep`.
        Box::pin(std::future::ready(Ok(())))
    }

    fn open<'a>(&'a self, path: &'a Path, links: Links) -> FileFuture<'a, Box<dyn ReadAt>> {
        Box::pin(async move { Ok(Box::new(self.open_file(path, links).await?) as Box<dyn ReadAt>) })
    }

    fn create<'a>(&'a self, path: &'a Path, options: CreateOptions) -> FileFuture<'a, Box<dyn WriteAt>> {
        Box::pin(async move { Ok(Box::new(self.create_draft(path, options).await?) as Box<dyn WriteAt>) })
    }
}

pub(super) fn decode(operation: &'static str, path: &Path, text: &str) -> Result<Vec<u8>, FileError> {
    base64::decode(text).map_err(|error| FileError::invalid_data(operation, path, format!("the answer is {error}")))
}

/// The bytes of an answer: attached to it, or in it as base64.
pub(super) fn bytes_of(
    operation: &'static str,
    path: &Path,
    text: &str,
    attached: Option<Bytes>,
) -> Result<Bytes, FileError> {
    match attached {
        Some(attached) => Ok(attached),
        None => decode(operation, path, text).map(Bytes::from),
    }
}

/// A name or a link target, which the server sends as base64 if it is not UTF-8.
fn os_string(
    operation: &'static str,
    path: &Path,
    text: Option<String>,
    encoded: Option<String>,
) -> Result<Option<OsString>, FileError> {
    match encoded {
        Some(encoded) => decode(operation, path, &encoded).map(|bytes| Some(OsString::from_vec(bytes))),
        None => Ok(text.map(OsString::from)),
    }
}

pub(super) fn resolve(operation: &'static str, path: &Path, received: &PathArg) -> Result<PathBuf, FileError> {
    received.resolve().map_err(|error| {
        FileError::invalid_data(operation, path, format!("the answer contains an invalid path: {error}"))
    })
}

/// Converts milliseconds, the only precision of some servers.
fn of_millis(millis: i64) -> Moment {
    let nanos = u32::try_from(millis.rem_euclid(1000)).unwrap_or_default() * 1_000_000;
    Moment { seconds: millis.div_euclid(1000), nanos }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn file_calls_are_bounded_by_their_number_and_their_bytes() {
        let calls = FileCalls::default();
        let mut reads: Vec<_> = (0..CALLS).map_while(|_| calls.admit(0).now_or_never()).collect();
        assert_eq!((reads.len(), calls.admit(0).now_or_never().is_some()), (CALLS, false));
        reads.pop();
        assert!(calls.admit(0).now_or_never().is_some());
        drop(reads);
        let block = 256 * KIB;
        let blocks: Vec<_> = (0..CALLS).map_while(|_| calls.admit(block).now_or_never()).collect();
        assert_eq!(blocks.len() * block, 32 << 20);
        assert!(calls.admit(0).now_or_never().is_some(), "a read does not wait for writes");
        drop(blocks);
        let large = calls.admit(limits::FILE_BYTES).now_or_never().expect("the only one");
        assert!(calls.admit(1).now_or_never().is_none());
        drop(large);
        assert!(calls.admit(1).now_or_never().is_some());
    }
}
