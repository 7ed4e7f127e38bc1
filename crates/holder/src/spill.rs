//! The disk: segments written and removed by a thread of its own, so that the epoll thread never waits for a disk.
//!
//! Owns the thread, the one write in flight, and the rules of the disk (free-space floor, rest after a failure). It does
//! not know processes or policies: which segment goes to disk and what a full disk means is decided by `output`.
//!
//! ```text
//!   epoll thread ── Job::Write (one at a time), Job::Unlink ──▶ thread ── pwrite, unlink ──▶ DIR/SLOT-ID.seg
//!        ├───────── Job::Roll, or with a write ───────────────────▶ ├───── write, rename ──▶ DIR/processes
//!        ▲                                                        │
//!        └───────────────── Outcome, eventfd ─────────────────────┘
//! ```
//!
//! A segment is written only after the roll that names its process (see [`roll`]): what is on disk can be offered by the next server
//! also when this holder is killed. A roll that cannot be written fails the segment behind it. With the last file the roll goes, too: nobody
//! would keep it true, and a server would believe it. Without one it says that the holder is lost, which is so.
//!
//! All jobs are done in the order in which they were decided on. Files bear the number of a slot, not of a process: a slot is busy until the
//! files of its last process are gone, so that no roll names another process there before.
//!
//! Bounds: one write with its 1 MiB buffer; three rolls, with the write, before it and behind it; removals are bounded by the files that
//! exist, that is by the quota.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use exec_server_log::{SEGMENT_BYTES, Segment, disk_name, failpoint};
use rustix::event::EventfdFlags;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::archive::{self, Clock};
use crate::{Limits, roll};

/// How long no write is tried after the disk refused one.
const RETRY_NS: u64 = 1_000_000_000;

/// Stack of the thread: it calls nothing but the kernel. Larger costs address space only.
const STACK_BYTES: usize = 64 * 1024;

/// Most that one call writes: a whole segment. With steps at which a test ends the process, parts that end inside a record.
const PART_BYTES: usize = if cfg!(feature = "failpoints") { 150_001 } else { SEGMENT_BYTES };

pub(crate) struct Spill {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The slot whose segment is being written, until the outcome is taken.
    writing: Option<u32>,
    /// Decided on in this turn, handed over at its end.
    due: Vec<Job>,
    /// Files that are written and not given up.
    files: usize,
    /// A roll is there, or on its way.
    has_roll: bool,
    /// The roll stays without files, too: the holder is about to leave.
    is_archived: bool,
    /// Archives on their way.
    archiving: usize,
    /// Kept between writes while there are more to come.
    buffer: Vec<u8>,
    /// The disk refused; no write before this time.
    rests_until: Option<u64>,
    limits: Limits,
}

/// A finished write.
pub(crate) struct Outcome {
    pub(crate) slot: u32,
    pub(crate) id: u64,
    pub(crate) result: io::Result<()>,
    bytes: Vec<u8>,
}

struct Shared {
    dir: OwnedFd,
    eventfd: OwnedFd,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Told when nothing is left to do.
    idle: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    outcome: Option<Outcome>,
    /// Whether each archive that is done was written.
    archived: Vec<bool>,
    /// A job is being done.
    is_busy: bool,
    /// It removes a file of this slot.
    removes_of: Option<u32>,
    is_stopped: bool,
}

enum Job {
    /// With the roll that is to be there before, where the one on disk is an old one.
    Write {
        roll: Option<String>,
        slot: u32,
        id: u64,
        bytes: Vec<u8>,
        floor: (u64, u64),
    },
    Unlink {
        slot: u32,
        id: u64,
    },
    Roll {
        text: String,
    },
    UnlinkRoll,
    /// The last roll, and the clock of the session behind it.
    Archive {
        roll: String,
        clock: Clock,
    },
    UnlinkArchive,
}

impl Job {
    /// The slot that a file is removed of.
    fn removes_of(&self) -> Option<u32> {
        match self {
            Self::Unlink { slot, .. } => Some(*slot),
            Self::Write { .. } | Self::Roll { .. } | Self::UnlinkRoll | Self::Archive { .. } | Self::UnlinkArchive => {
                None
            }
        }
    }
}

impl Spill {
    pub(crate) fn new(dir: &OwnedFd, limits: Limits) -> io::Result<Self> {
        let shared = Shared {
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
            has_roll: false,
            is_archived: false,
            archiving: 0,
            buffer: Vec::new(),
            rests_until: None,
            limits,
        })
    }

    /// Readable when a write has finished.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.eventfd.as_fd()
    }

    /// Whether one more segment of a process that has `disk_segments` would exceed its quota.
    pub(crate) fn is_quota_full(&self, disk_segments: usize) -> bool {
        let after = (disk_segments as u64 + 1).saturating_mul(SEGMENT_BYTES as u64);
        after > self.limits.disk_quota_bytes
    }

    /// Whether the disk refused lately.
    pub(crate) fn is_resting(&self) -> bool {
        self.rests_until.is_some()
    }

    /// Whether a write can begin.
    pub(crate) fn is_idle(&self) -> bool {
        self.writing.is_none() && self.rests_until.is_none()
    }

    /// Blocks until every job is done. What became of a write is still to be taken.
    pub(crate) fn wait(&self) {
        let mut queue = self.shared.lock();
        while !queue.jobs.is_empty() || queue.is_busy {
            queue = self.shared.idle.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Begins to write a sealed segment, at the end of this turn. The caller has asked [`Spill::is_idle`].
    pub(crate) fn begin(&mut self, slot: u32, segment: &Segment, now_ns: u64) {
        if self.start_thread().is_err() {
            // No thread is as bad as no disk, and as passing.
            self.rests_until = Some(now_ns.saturating_add(RETRY_NS));
            return;
        }
        let mut bytes = std::mem::take(&mut self.buffer);
        segment.encode_for_disk(&mut bytes);
        let id = segment.id();
        let floor = (self.limits.free_floor_bytes, self.limits.free_floor_percent);
        self.writing = Some(slot);
        self.due.push(Job::Write { roll: None, slot, id, bytes, floor });
    }

    /// The slots of which files are being written or removed: no other process may have them yet.
    pub(crate) fn busy_slots(&self) -> BTreeSet<u32> {
        let mut busy: BTreeSet<u32> = self.due.iter().filter_map(Job::removes_of).chain(self.writing).collect();
        if self.thread.is_some() {
            let queue = self.shared.lock();
            busy.extend(queue.jobs.iter().filter_map(Job::removes_of).chain(queue.removes_of));
        }
        busy
    }

    /// Whether anything is on disk, or about to be.
    pub(crate) fn has_files(&self) -> bool {
        self.files > 0 || self.writing.is_some()
    }

    /// Whether a roll is to be handed over: there are files, and none that names their processes as they are now.
    pub(crate) fn needs_roll(&self, is_stale: bool) -> bool {
        self.has_files() && (is_stale || !self.has_roll)
    }

    /// Hands what this turn has decided on to the thread, with the roll of now: with the write, or else before the rest. What is forgotten is
    /// off the roll before its files go, so that no kill in between brings it back; nobody has its slot until they are gone.
    pub(crate) fn hand_over(&mut self, mut roll: Option<String>) {
        self.has_roll |= roll.is_some();
        if self.has_roll && !self.has_files() && !self.is_archived {
            self.has_roll = false;
            self.due.push(Job::UnlinkRoll);
        }
        if self.due.is_empty() && roll.is_none() {
            return;
        }
        let has_thread = self.start_thread().is_ok();
        let mut queue = self.shared.lock();
        let has_write = self.due.iter().any(|job| matches!(job, Job::Write { .. }));
        // Where there are files there was a thread.
        if let Some(text) = roll.take_if(|_| !has_write).filter(|_| has_thread) {
            queue.push_roll(text);
        }
        for mut job in self.due.drain(..) {
            match &mut job {
                // Rather wait for the disk once than leave the file for ever.
                Job::Unlink { slot, id } if !has_thread => {
                    remove(&self.shared.dir, &disk_name(*slot, *id));
                    continue;
                }
                Job::Write { roll: first, .. } => *first = roll.take(),
                // Without a thread nothing would ever answer. Only a holder without any file on disk comes here.
                Job::Archive { .. } if !has_thread => {
                    queue.archived.push(false);
                    // As with a write: the counter cannot be full.
                    rustix::io::write(&self.shared.eventfd, &1_u64.to_ne_bytes()).ok();
                    continue;
                }
                Job::Unlink { .. } | Job::Roll { .. } | Job::UnlinkRoll | Job::Archive { .. } | Job::UnlinkArchive => {}
            }
            queue.jobs.push_back(job);
        }
        drop(queue);
        self.shared.wake.notify_one();
    }

    /// Removes the file of a segment, at the end of this turn.
    pub(crate) fn unlink(&mut self, slot: u32, id: u64) {
        self.files = self.files.saturating_sub(1);
        self.due.push(Job::Unlink { slot, id });
    }

    /// Files that an earlier holder of the session left, named by its roll.
    pub(crate) fn take_over(&mut self, files: usize) {
        self.files += files;
        self.has_roll = true;
        self.due.push(Job::UnlinkArchive);
    }

    /// Writes the last roll and the session's clock, at the end of this turn.
    pub(crate) fn begin_archive(&mut self, roll: String, clock: Clock) {
        self.has_roll = true;
        self.is_archived = true;
        self.archiving += 1;
        self.due.push(Job::Archive { roll, clock });
    }

    /// The holder stays after all.
    pub(crate) fn end_archive(&mut self) {
        self.is_archived = false;
        self.due.push(Job::UnlinkArchive);
    }

    /// Whether the last archive that was begun is written, once it is decided.
    pub(crate) fn take_archived(&mut self) -> Option<bool> {
        let done = std::mem::take(&mut self.shared.lock().archived);
        self.archiving = self.archiving.saturating_sub(done.len());
        done.last().copied().filter(|_| self.archiving == 0)
    }

    /// The finished write, if there is one. A refusal makes the disk rest until the retry.
    pub(crate) fn take_outcome(&mut self, now_ns: u64) -> Option<Outcome> {
        // Empty is what a spurious look finds.
        rustix::io::read(&self.shared.eventfd, &mut [0; 8]).ok();
        let mut outcome = self.shared.lock().outcome.take()?;
        self.writing = None;
        self.buffer = std::mem::take(&mut outcome.bytes);
        match outcome.result {
            Ok(()) => self.files += 1,
            Err(_) => self.rests_until = Some(now_ns.saturating_add(RETRY_NS)),
        }
        Some(outcome)
    }

    /// Ends the rest when its time is over; true means that blocked processes should be looked at.
    pub(crate) fn poll_rested(&mut self, now_ns: u64) -> bool {
        let is_over = self.rests_until.is_some_and(|until| now_ns >= until);
        if is_over {
            self.rests_until = None;
        }
        is_over
    }

    /// A file is about to go: a disk that was full is worth another try at once.
    pub(crate) fn handle_space(&mut self) {
        self.rests_until = None;
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.rests_until
    }

    /// Gives the write buffer back when nothing more is to be written for now.
    pub(crate) fn trim(&mut self) {
        if self.writing.is_none() {
            self.buffer = Vec::new();
        }
    }

    /// Finishes what is queued and ends the thread.
    pub(crate) fn shut_down(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has nothing to add at the end.
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

impl Queue {
    /// A roll behind all jobs. One that waits already is not written any more, unless a segment behind it needs it.
    fn push_roll(&mut self, text: String) {
        let is_write = |job: &Job| matches!(job, Job::Write { .. });
        let from = self.jobs.iter().rposition(is_write).map_or(0, |at| at + 1);
        let older = self.jobs.iter().skip(from).position(|job| matches!(job, Job::Roll { .. }));
        if let Some(at) = older {
            self.jobs.remove(from + at);
        }
        self.jobs.push_back(Job::Roll { text });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is whole at every point where its holder could panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            let job = queue.jobs.pop_front();
            (queue.is_busy, queue.removes_of) = (job.is_some(), job.as_ref().and_then(Job::removes_of));
            if job.is_none() {
                self.idle.notify_all();
            }
            match job {
                Some(job) => return Some(job),
                None if queue.is_stopped => return None,
                None => queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn run(&self) {
        let mut without_roll = None;
        while let Some(job) = self.next() {
            match job {
                Job::Roll { text } => without_roll = roll::write(&self.dir, &text).err(),
                Job::UnlinkRoll => remove(&self.dir, roll::ROLL_NAME),
                Job::UnlinkArchive => remove(&self.dir, archive::ARCHIVE_NAME),
                Job::Archive { roll, clock } => {
                    let written = roll::write(&self.dir, &roll).and_then(|()| clock.write(&self.dir));
                    self.lock().archived.push(written.is_ok());
                    // The counter cannot be full: it is read once per write.
                    rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes()).ok();
                }
                Job::Unlink { slot, id } => remove(&self.dir, &disk_name(slot, id)),
                Job::Write { roll, slot, id, bytes, floor } => {
                    if let Some(text) = roll {
                        without_roll = roll::write(&self.dir, &text).err();
                    }
                    let result = match without_roll.take() {
                        Some(error) => Err(error),
                        None => write(&self.dir, &disk_name(slot, id), &bytes, floor),
                    };
                    self.lock().outcome = Some(Outcome { slot, id, result, bytes });
                    // The counter cannot be full: it is read once per write.
                    rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes()).ok();
                }
            }
        }
    }
}

fn remove(dir: &OwnedFd, name: &str) {
    failpoint::step("unlink");
    // Gone already is what is wanted; anything else is left to the end of the session.
    rustix::fs::unlinkat(dir, name, AtFlags::empty()).ok();
}

fn write(dir: &OwnedFd, name: &str, bytes: &[u8], floor: (u64, u64)) -> io::Result<()> {
    let space = rustix::fs::fstatvfs(dir)?;
    let percent = space.f_blocks.saturating_mul(space.f_frsize) / 100 * floor.1;
    let needed = floor.0.min(percent).saturating_add(bytes.len() as u64);
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
