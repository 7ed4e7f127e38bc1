//! Writes and removes files in the session's directory on a separate thread, so that the epoll thread never waits for
//! the disk.
//!
//! Owns the thread, the single segment write in flight, and the disk rules (free-space floor, pause after a failure).
//! `output` decides which segment goes to disk and what a full disk means for a process.
//!
//! ```text
//!   epoll thread ── DiskJob::Write (one at a time), Unlink ──▶ thread ── pwrite, unlink ──▶ DIR/SLOT-ID.seg
//!        ├───────── DiskJob::Manifest, also before a Write ────▶ ├───── write, rename ──▶ DIR/processes
//!        ▲                                                      │
//!        └────────────── SpillOutcome, eventfd ─────────────────┘
//! ```
//!
//! A segment is written only after the manifest that lists its process (see [`manifest`]), so the next server can offer
//! the file even if this holder is killed. If the manifest cannot be written, the segment that depends on it fails. The
//! manifest is removed with the last segment file: the holder would no longer update it, but a server would trust it.
//! Without a manifest, the server reports the processes of a killed holder as lost, which is correct.
//!
//! The thread does all jobs in the order of the queue. A file name contains the slot, and a later process may get the
//! same slot. So a slot stays busy until the files of its last process are gone, and no manifest assigns the slot to
//! another process before that.
//!
//! Bounds: one segment write with its 1 MiB buffer; three manifests (the one that the write needs, an earlier and a
//! later one), and one per pending archive job; removals are bounded by the number of files, that is, by the quota.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread::JoinHandle,
};

use exec_server_log::{SEGMENT_BYTES, Segment, disk_name, failpoint};
use parking_lot::{Condvar, Mutex};
use rustix::{
    event::EventfdFlags,
    fs::{AtFlags, Mode, OFlags},
};

use crate::{
    HolderLimits,
    archive_file::{self, LeaseClock},
    manifest,
};

/// How long writes pause after one has failed.
const RETRY_NS: u64 = 1_000_000_000;

/// Stack size of the thread, which does little but system calls.
const STACK_BYTES: usize = 64 * 1024;

/// Maximum bytes per write call: a whole segment. With failpoints, smaller parts that end inside a record, so that a
/// test can kill the process there.
const PART_BYTES: usize = if cfg!(feature = "failpoints") { 150_001 } else { SEGMENT_BYTES };

pub(crate) struct Spill {
    shared: Arc<SpillShared>,
    thread: Option<JoinHandle<()>>,
    /// The slot whose segment is being written, until the outcome is taken.
    writing: Option<u32>,
    /// Jobs decided in this turn. Handed to the thread at the end of the turn.
    due: Vec<DiskJob>,
    /// Number of segment files that have been written and whose removal is not scheduled.
    files: usize,
    /// A manifest is on disk, or about to be written.
    has_manifest: bool,
    /// The manifest stays even without segment files, because the holder is about to leave.
    is_archived: bool,
    /// Number of archive jobs whose result has not been taken.
    archiving: usize,
    /// The write buffer, kept for the next write.
    buffer: Vec<u8>,
    /// The last write failed. No write begins before this time.
    paused_until: Option<u64>,
    limits: HolderLimits,
}

/// The result of a segment write.
pub(crate) struct SpillOutcome {
    pub(crate) slot: u32,
    pub(crate) id: u64,
    pub(crate) result: io::Result<()>,
    bytes: Vec<u8>,
}

struct SpillShared {
    dir: OwnedFd,
    eventfd: OwnedFd,
    queue: Mutex<SpillQueue>,
    wake: Condvar,
    /// Signalled when no job is left.
    idle: Condvar,
}

#[derive(Default)]
struct SpillQueue {
    jobs: VecDeque<DiskJob>,
    outcome: Option<SpillOutcome>,
    /// The results of finished archive jobs: true if written.
    archived: Vec<bool>,
    /// The thread is working on a job.
    is_busy: bool,
    /// The slot of the file that the current job removes, if it removes one.
    removed_slot: Option<u32>,
    is_stopped: bool,
}

enum DiskJob {
    /// Writes a segment. Fails if the manifest before it could not be written.
    Write {
        slot: u32,
        id: u64,
        bytes: Vec<u8>,
        /// The free space to leave on the disk: `free_floor_bytes` and `free_floor_percent`.
        floor: (u64, u64),
    },
    Unlink {
        slot: u32,
        id: u64,
    },
    Manifest {
        text: String,
    },
    UnlinkManifest,
    /// Writes the final manifest, then the lease clock.
    Archive {
        manifest: String,
        clock: LeaseClock,
    },
    UnlinkArchive,
}

impl DiskJob {
    /// The slot whose file this job removes.
    fn removed_slot(&self) -> Option<u32> {
        let Self::Unlink { slot, .. } = self else { return None };
        Some(*slot)
    }
}

impl Spill {
    pub(crate) fn new(dir: &OwnedFd, limits: HolderLimits) -> io::Result<Self> {
        let shared = SpillShared {
            dir: dir.try_clone()?,
            eventfd: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            queue: Mutex::default(),
            wake: Condvar::new(),
            idle: Condvar::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            thread: None,
            writing: None,
            due: Vec::new(),
            files: 0,
            has_manifest: false,
            is_archived: false,
            archiving: 0,
            buffer: Vec::new(),
            paused_until: None,
            limits,
        })
    }

    /// Readable when a segment write or an archive job has finished.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.eventfd.as_fd()
    }

    /// Whether one more segment would exceed the disk quota of a process that has `disk_segments`.
    pub(crate) fn is_quota_full(&self, disk_segments: usize) -> bool {
        let after = (disk_segments as u64 + 1).saturating_mul(SEGMENT_BYTES as u64);
        after > self.limits.disk_quota_bytes
    }

    /// Whether writes are paused after a failure.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// Whether a segment write can begin.
    pub(crate) fn is_idle(&self) -> bool {
        self.writing.is_none() && self.paused_until.is_none()
    }

    /// Blocks until every job is done. The outcome of a write must still be taken.
    pub(crate) fn wait(&self) {
        let mut queue = self.shared.queue.lock();
        while !queue.jobs.is_empty() || queue.is_busy {
            self.shared.idle.wait(&mut queue);
        }
    }

    /// Schedules a write of a sealed segment for the end of this turn. The caller must check [`Spill::is_idle`] first.
    pub(crate) fn begin(&mut self, slot: u32, segment: &Segment, now_ns: u64) {
        if self.start_thread().is_err() {
            // A missing thread is treated like a failing disk: pause and retry.
            self.paused_until = Some(now_ns.saturating_add(RETRY_NS));
            return;
        }
        let mut bytes = std::mem::take(&mut self.buffer);
        segment.encode_for_disk(&mut bytes);
        let id = segment.id();
        let floor = (self.limits.free_floor_bytes, self.limits.free_floor_percent);
        self.writing = Some(slot);
        self.due.push(DiskJob::Write { slot, id, bytes, floor });
    }

    /// The slots whose files are being written or removed. No new process may use them yet.
    pub(crate) fn busy_slots(&self) -> BTreeSet<u32> {
        let mut busy: BTreeSet<u32> = self.due.iter().filter_map(DiskJob::removed_slot).chain(self.writing).collect();
        if self.thread.is_some() {
            let queue = self.shared.queue.lock();
            busy.extend(queue.jobs.iter().filter_map(DiskJob::removed_slot).chain(queue.removed_slot));
        }
        busy
    }

    /// Whether a segment file exists or is about to be written.
    pub(crate) fn has_files(&self) -> bool {
        self.files > 0 || self.writing.is_some()
    }

    /// Whether a manifest must be written: segment files exist, and the manifest is missing or stale.
    pub(crate) fn needs_manifest(&self, is_stale: bool) -> bool {
        self.has_files() && (is_stale || !self.has_manifest)
    }

    /// Hands the jobs of this turn to the thread. The manifest goes right before the segment write. Without a write, it
    /// goes before all jobs of this turn: then a forgotten process is out of the manifest before its files are removed.
    /// If the holder is killed in between, the next server does not bring the process back. The slot stays busy until
    /// the files are gone.
    pub(crate) fn submit(&mut self, mut manifest: Option<String>) {
        self.has_manifest |= manifest.is_some();
        if self.has_manifest && !self.has_files() && !self.is_archived {
            self.has_manifest = false;
            self.due.push(DiskJob::UnlinkManifest);
        }
        if self.due.is_empty() && manifest.is_none() {
            return;
        }
        let has_thread = self.start_thread().is_ok();
        let mut queue = self.shared.queue.lock();
        let has_write = self.due.iter().any(|job| matches!(job, DiskJob::Write { .. }));
        // Without a thread, the manifest is dropped. That is rare: a manifest is due only if files exist, and writing
        // them has normally started the thread.
        if let Some(text) = manifest.take_if(|_| !has_write).filter(|_| has_thread) {
            queue.push_manifest(text);
        }
        for job in self.due.drain(..) {
            match job {
                // Remove the file on this thread: it is better to block once on the disk than to leave the file behind.
                DiskJob::Unlink { slot, id } if !has_thread => remove(&self.shared.dir, &disk_name(slot, id)),
                // Without a thread this job would never finish, so report a failure.
                DiskJob::Archive { .. } if !has_thread => {
                    queue.archived.push(false);
                    self.shared.notify();
                }
                job => {
                    if matches!(job, DiskJob::Write { .. }) {
                        queue.jobs.extend(manifest.take().map(|text| DiskJob::Manifest { text }));
                    }
                    queue.jobs.push_back(job);
                }
            }
        }
        drop(queue);
        self.shared.wake.notify_one();
    }

    /// Schedules the removal of a segment's file for the end of this turn.
    pub(crate) fn unlink(&mut self, slot: u32, id: u64) {
        self.files = self.files.saturating_sub(1);
        self.due.push(DiskJob::Unlink { slot, id });
    }

    /// Takes over the files and the manifest that an earlier holder of the session left.
    pub(crate) fn take_over(&mut self, files: usize) {
        self.files += files;
        self.has_manifest = true;
        self.due.push(DiskJob::UnlinkArchive);
    }

    /// Schedules the final manifest and the lease clock for the end of this turn.
    pub(crate) fn begin_archive(&mut self, manifest: String, clock: LeaseClock) {
        self.has_manifest = true;
        self.is_archived = true;
        self.archiving += 1;
        self.due.push(DiskJob::Archive { manifest, clock });
    }

    /// Cancels the archive, because the holder stays: removes the lease clock.
    pub(crate) fn cancel_archive(&mut self) {
        self.is_archived = false;
        self.due.push(DiskJob::UnlinkArchive);
    }

    /// The result of the last archive job, once no archive job is pending.
    pub(crate) fn take_archived(&mut self) -> Option<bool> {
        let done = std::mem::take(&mut self.shared.queue.lock().archived);
        self.archiving = self.archiving.saturating_sub(done.len());
        done.last().copied().filter(|_| self.archiving == 0)
    }

    /// Resets the eventfd and takes the result of a finished segment write. After a failure, writes pause until the
    /// retry time.
    pub(crate) fn take_outcome(&mut self, now_ns: u64) -> Option<SpillOutcome> {
        // EAGAIN is fine: nothing has finished.
        rustix::io::read(&self.shared.eventfd, &mut [0; 8]).ok();
        let mut outcome = self.shared.queue.lock().outcome.take()?;
        self.writing = None;
        self.buffer = std::mem::take(&mut outcome.bytes);
        match outcome.result {
            Ok(()) => self.files += 1,
            Err(_) => self.paused_until = Some(now_ns.saturating_add(RETRY_NS)),
        }
        Some(outcome)
    }

    /// Ends the pause if its time is over. Returns true if it ended; then blocked processes should be checked again.
    pub(crate) fn poll_pause_over(&mut self, now_ns: u64) -> bool {
        self.paused_until.take_if(|until| now_ns >= *until).is_some()
    }

    /// Ends the pause early: a file is about to be removed, so a full disk is worth a retry at once.
    pub(crate) fn end_pause(&mut self) {
        self.paused_until = None;
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.paused_until
    }

    /// Frees the write buffer if no write is in flight.
    pub(crate) fn trim(&mut self) {
        if self.writing.is_none() {
            self.buffer = Vec::new();
        }
    }

    /// Finishes all queued jobs and ends the thread.
    pub(crate) fn shut_down(&mut self) {
        self.shared.queue.lock().is_stopped = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread does not matter at this point.
            thread.join().ok();
        }
    }

    fn start_thread(&mut self) -> io::Result<()> {
        if self.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("exec-spill".into()).stack_size(STACK_BYTES);
            self.thread = Some(builder.spawn(move || shared.run())?);
        }
        Ok(())
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl SpillQueue {
    /// Appends a manifest after all jobs. Drops an older manifest that is still queued, unless a segment write behind
    /// it needs it.
    fn push_manifest(&mut self, text: String) {
        let is_write = |job: &DiskJob| matches!(job, DiskJob::Write { .. });
        let from = self.jobs.iter().rposition(is_write).map_or(0, |at| at + 1);
        let older = self.jobs.iter().skip(from).position(|job| matches!(job, DiskJob::Manifest { .. }));
        if let Some(at) = older {
            self.jobs.remove(from + at);
        }
        self.jobs.push_back(DiskJob::Manifest { text });
    }
}

impl SpillShared {
    /// Wakes the epoll thread, because a segment write or an archive job has finished.
    fn notify(&self) {
        // Cannot fail: the counter of an eventfd is full only near 2^64.
        rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes()).ok();
    }

    fn next(&self) -> Option<DiskJob> {
        let mut queue = self.queue.lock();
        loop {
            let job = queue.jobs.pop_front();
            (queue.is_busy, queue.removed_slot) = (job.is_some(), job.as_ref().and_then(DiskJob::removed_slot));
            if job.is_none() {
                self.idle.notify_all();
            }
            match job {
                Some(job) => return Some(job),
                None if queue.is_stopped => return None,
                None => self.wake.wait(&mut queue),
            }
        }
    }

    fn run(&self) {
        // Set if the last manifest write failed. The next segment write needs that manifest, so it fails with this
        // error.
        let mut manifest_error = None;
        while let Some(job) = self.next() {
            match job {
                DiskJob::Manifest { text } => manifest_error = manifest::write(&self.dir, &text).err(),
                DiskJob::UnlinkManifest => remove(&self.dir, manifest::MANIFEST_NAME),
                DiskJob::UnlinkArchive => remove(&self.dir, archive_file::ARCHIVE_NAME),
                DiskJob::Archive { manifest, clock } => {
                    let written = manifest::write(&self.dir, &manifest).and_then(|()| clock.write(&self.dir));
                    self.queue.lock().archived.push(written.is_ok());
                    self.notify();
                }
                DiskJob::Unlink { slot, id } => remove(&self.dir, &disk_name(slot, id)),
                DiskJob::Write { slot, id, bytes, floor } => {
                    let result = match manifest_error.take() {
                        Some(error) => Err(error),
                        None => write(&self.dir, &disk_name(slot, id), &bytes, floor),
                    };
                    self.queue.lock().outcome = Some(SpillOutcome { slot, id, result, bytes });
                    self.notify();
                }
            }
        }
    }
}

fn remove(dir: &OwnedFd, name: &str) {
    failpoint::step("unlink");
    // ENOENT is fine: the file is gone already. A file that cannot be removed stays until the end of the session.
    rustix::fs::unlinkat(dir, name, AtFlags::empty()).ok();
}

fn write(dir: &OwnedFd, name: &str, bytes: &[u8], floor: (u64, u64)) -> io::Result<()> {
    let space = rustix::fs::fstatvfs(dir)?;
    let (floor_bytes, floor_percent) = floor;
    let percent_bytes = space.f_blocks.saturating_mul(space.f_frsize) / 100 * floor_percent;
    let needed = floor_bytes.min(percent_bytes).saturating_add(bytes.len() as u64);
    if space.f_bavail.saturating_mul(space.f_frsize) < needed {
        return Err(rustix::io::Errno::NOSPC.into());
    }
    failpoint::step("create");
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    let written = write_all(&file, bytes);
    failpoint::step("written");
    if written.is_err() {
        remove(dir, name);
    }
    written
}

fn write_all(file: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        failpoint::step("write");
        let part = &rest[..rest.len().min(PART_BYTES)];
        match rustix::io::retry_on_intr(|| rustix::io::pwrite(file, part, at as u64))? {
            0 => return Err(rustix::io::Errno::NOSPC.into()),
            n => at += n,
        }
    }
    Ok(())
}
