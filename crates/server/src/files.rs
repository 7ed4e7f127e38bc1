//! The server's resources for file methods: threads for blocking work, memory for file contents, and the open files of
//! a session.
//!
//! Bounds: [`FilePool`] limits concurrent jobs for all sessions and, lower, for each session, so that a disk that hangs
//! for one session leaves threads to the others. Reads wait for memory. A job whose waiter is gone is cancelled, but
//! keeps its slot until it has ended.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use exec_server_fs::{Cancel, Draft, JobQueue, OpenFile};
use exec_server_protocol::limits;
use exec_server_sandbox::{ActingUser, FileUser};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::Failure;

/// The unit in which memory is counted.
const KIB: usize = 1024;

/// The server-wide threads and memory for file work.
pub(crate) struct FilePool {
    jobs: Arc<Semaphore>,
    reading: Arc<Semaphore>,
    before: Arc<dyn Fn() + Send + Sync>,
}

/// Cancels a job when its waiter is dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl FilePool {
    /// Creates a pool. Each of its jobs calls `before` first; see `Config::before_file_work`.
    pub(crate) fn new(before: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self {
            jobs: Arc::new(Semaphore::new(limits::FILE_JOBS)),
            reading: Arc::new(Semaphore::new(limits::FILE_READING_BYTES / KIB)),
            before,
        }
    }

    /// Runs a blocking job on a thread when a slot is free. With a queue, the job runs after the earlier jobs of that
    /// queue.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        files: &SessionFiles,
        queue: Option<Arc<JobQueue>>,
        job: impl FnOnce(&Cancel) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let result = Arc::new(Mutex::new(None));
        let result_in_job = Arc::clone(&result);
        let job = Box::new(move |cancel: &Cancel| *result_in_job.lock() = Some(job(cancel)));
        self.run_boxed(files, queue, job).await?;
        let result = result.lock().take();
        result.ok_or(Failure::Internal { what: "a file operation" })?
    }

    /// Not generic, so that the code of the thread and the waiter is not compiled again for each job type.
    async fn run_boxed(
        &self,
        files: &SessionFiles,
        queue: Option<Arc<JobQueue>>,
        job: Box<dyn FnOnce(&Cancel) + Send>,
    ) -> Result<(), Failure> {
        // The session's slot first: a session at its own limit must not hold slots of the server while it waits.
        let slots = (acquire(&files.jobs, 1).await?, acquire(&self.jobs, 1).await?);
        let cancel = Cancel::new();
        let cancel_on_drop = CancelOnDrop(cancel.clone());
        let before = self.before.clone();
        let (done_tx, done_rx) = oneshot::channel();
        let job = move || {
            before();
            job(&cancel);
            // Free the slots before the waiter continues, so that its next job finds them free.
            drop(slots);
            done_tx.send(()).unwrap_or(()); // An error means that the waiter is gone.
        };
        match queue {
            None => drop(tokio::task::spawn_blocking(job)),
            Some(queue) if queue.enqueue(job) => drop(tokio::task::spawn_blocking(move || queue.run())),
            // Another thread is running the queue and will also run this job.
            Some(_) => {}
        }
        let done = done_rx.await.map_err(|_| Failure::Internal { what: "a file operation" });
        drop(cancel_on_drop);
        done
    }

    /// Reserves memory for `bytes` of a file, to be kept until the answer is built.
    pub(crate) async fn reserve_memory(
        &self,
        files: &SessionFiles,
        bytes: u64,
    ) -> Result<[OwnedSemaphorePermit; 2], Failure> {
        let kib = usize::try_from(bytes.div_ceil(KIB as u64))
            .unwrap_or(usize::MAX)
            // Waiting for more than the whole limit would never end.
            .min(limits::FILE_READING_BYTES_OF_SESSION / KIB);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        Ok([acquire(&files.reading, kib).await?, acquire(&self.reading, kib).await?])
    }
}

pub(crate) async fn acquire(semaphore: &Arc<Semaphore>, many: u32) -> Result<OwnedSemaphorePermit, Failure> {
    // The semaphore is never closed.
    semaphore.clone().acquire_many_owned(many).await.map_err(|_| Failure::Draining)
}

/// An open file of a session.
#[derive(Clone, Debug)]
pub(crate) enum FileHandle {
    /// The name is reserved, and the file is being opened.
    Opening(HandleUse),
    Reading(Arc<OpenFile>),
    Writing(Arc<DraftHandle>),
}

/// A draft, and the queue in which its blocks are written one after the other.
#[derive(Debug)]
pub(crate) struct DraftHandle {
    pub(crate) draft: Mutex<Draft>,
    pub(crate) queue: Arc<JobQueue>,
    /// The user as whom the draft was created and is removed.
    user: Option<Arc<FileUser>>,
}

impl DraftHandle {
    /// Called on the thread that created the draft. From then on the draft is always removed as the user who created
    /// it, whichever thread drops it.
    pub(crate) fn new(draft: Draft, user: Option<Arc<FileUser>>) -> Arc<Self> {
        Arc::new(Self { draft: Mutex::new(draft), queue: Arc::default(), user })
    }

    /// Removes the draft, even if it was to be kept.
    pub(crate) fn discard(&self) {
        if let Ok(_acting) = act_as(self.user.as_ref()) {
            self.draft.lock().discard();
        }
    }
}

impl Drop for DraftHandle {
    fn drop(&mut self) {
        // Never remove a draft with the server's rights: the user may have given its hidden name to another file.
        match act_as(self.user.as_ref()) {
            Ok(_acting) => self.draft.lock().abandon(),
            Err(failure) => {
                tracing::error!(path = %self.draft.lock().path().display(), %failure, "cannot remove the draft of this file");
                self.draft.lock().close_unremoved();
            }
        }
    }
}

/// Makes this thread access files as a user until the returned value is dropped. Without a user nothing changes.
pub(crate) fn act_as(user: Option<&Arc<FileUser>>) -> Result<Option<ActingUser>, Failure> {
    let acting = user.map(|user| user.enter()).transpose();
    acting.map_err(|source| Failure::Host { what: "files cannot be used as the user of `--run-as`", source })
}

/// The purpose of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleUse {
    Read,
    Write,
}

impl FileHandle {
    fn used_for(&self) -> HandleUse {
        match self {
            Self::Opening(used) => *used,
            Self::Reading(_) => HandleUse::Read,
            Self::Writing(_) => HandleUse::Write,
        }
    }
}

/// The open files of a session, and its share of the pool.
#[derive(Debug)]
pub(crate) struct SessionFiles {
    handles: Mutex<HandleTable>,
    jobs: Arc<Semaphore>,
    reading: Arc<Semaphore>,
    /// For a client that did not announce `concurrent`: serializes its requests, so that they take effect one after the
    /// other.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct HandleTable {
    /// Each handle has the number of its reservation. An open that finishes after its name was closed and reserved
    /// again must not replace the new handle.
    by_name: BTreeMap<String, (u64, FileHandle)>,
    reservations: u64,
    is_over: bool,
}

impl Default for SessionFiles {
    fn default() -> Self {
        Self {
            handles: Mutex::default(),
            jobs: Arc::new(Semaphore::new(limits::FILE_JOBS_OF_SESSION)),
            reading: Arc::new(Semaphore::new(limits::FILE_READING_BYTES_OF_SESSION / KIB)),
            turn: Arc::default(),
        }
    }
}

/// A reserved name. Dropping it frees the name, unless the file is open.
pub(crate) struct HandleReservation<'a> {
    files: &'a SessionFiles,
    name: String,
    number: u64,
}

impl SessionFiles {
    /// Reserves a name for a file that is about to be opened.
    pub(crate) fn reserve(&self, name: &str, used: HandleUse) -> Result<HandleReservation<'_>, Failure> {
        if name.len() > limits::HANDLE_ID_BYTES {
            return Err(Failure::HandleName);
        }
        let mut handles = self.handles.lock();
        if handles.by_name.contains_key(name) {
            return Err(Failure::DuplicateHandle { id: name.to_owned() });
        }
        let open = handles.by_name.values().filter(|(_, handle)| handle.used_for() == used).count();
        if open >= limits::OPEN_FILES {
            return Err(Failure::TooManyHandles { used });
        }
        handles.reservations += 1;
        let number = handles.reservations;
        handles.by_name.insert(name.to_owned(), (number, FileHandle::Opening(used)));
        Ok(HandleReservation { files: self, name: name.to_owned(), number })
    }

    /// The open file with this name.
    pub(crate) fn find(&self, name: &str) -> Result<FileHandle, Failure> {
        let found = self.handles.lock().by_name.get(name).map(|(_, handle)| handle.clone());
        found.ok_or_else(|| Failure::UnknownHandle { id: name.to_owned() })
    }

    /// Removes an open file from the table. Work on it continues.
    pub(crate) fn close(&self, name: &str) -> Option<FileHandle> {
        self.handles.lock().by_name.remove(name).map(|(_, handle)| handle)
    }

    /// Removes exactly this file from the table. Another file with the same name stays.
    pub(crate) fn close_reading(&self, name: &str, file: &Arc<OpenFile>) {
        let mut handles = self.handles.lock();
        let is_this_file =
            |handle: &FileHandle| matches!(handle, FileHandle::Reading(other) if Arc::ptr_eq(other, file));
        if handles.by_name.get(name).is_some_and(|(_, handle)| is_this_file(handle)) {
            handles.by_name.remove(name);
        }
    }

    /// Removes drafts of this path from the table. Called for a detached session, so that another session can continue
    /// the part that is kept.
    pub(crate) fn close_drafts(&self, path: &Path) {
        let mut handles = self.handles.lock();
        let is_closable = |handle: &FileHandle| match handle {
            // Leave a draft that is being written right now to its writer. The client can retry.
            FileHandle::Writing(writing) => writing.draft.try_lock().is_some_and(|draft| draft.path() == path),
            FileHandle::Opening(_) | FileHandle::Reading(_) => false,
        };
        let closed: Vec<_> = handles.by_name.extract_if(.., |_, (_, handle)| is_closable(handle)).collect();
        // Unlock first: dropping a handle may block on the disk.
        drop(handles);
        drop(closed);
    }

    /// Closes everything when the session is over. Nothing more can be opened.
    pub(crate) fn end(&self) {
        let mut handles = self.handles.lock();
        handles.is_over = true;
        let closed = std::mem::take(&mut handles.by_name);
        drop(handles);
        drop(closed);
    }
}

impl HandleReservation<'_> {
    /// Publishes the opened file. If the name was closed in the meantime, the file is closed again.
    pub(crate) fn publish(self, handle: FileHandle) {
        let mut handles = self.files.handles.lock();
        let is_ours = handles.by_name.get(&self.name).is_some_and(|(number, _)| *number == self.number);
        // `reserve` still succeeds after `end`, so check here that the session is not over.
        if is_ours && !handles.is_over {
            handles.by_name.insert(self.name.clone(), (self.number, handle));
        }
    }
}

impl Drop for HandleReservation<'_> {
    fn drop(&mut self) {
        let mut handles = self.files.handles.lock();
        let is_opening =
            |(number, handle): &(u64, FileHandle)| *number == self.number && matches!(handle, FileHandle::Opening(_));
        if handles.by_name.get(&self.name).is_some_and(is_opening) {
            handles.by_name.remove(&self.name);
        }
    }
}
