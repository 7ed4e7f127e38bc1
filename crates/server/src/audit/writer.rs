//! The one thread that writes the audit log: takes what is queued, appends it, and goes on after a crash, a full disk and a rotation.
//!
//! ```text
//! up ──write fails──▶ down: what was queued is counted as lost, what got half into the file is taken back; tried again twice a second
//!  ▲                    │     and with every record
//!  └──── `audit.lost` ──┘
//! ```
//!
//! A file whose name leads elsewhere (it was renamed away) is left, and a new one begins with the old one's last hash.
//! Must not know what is recorded.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use rustix::fs::FlockOperation;
use tokio::sync::oneshot;

use super::{
    AuditError, Ended, Mode, Record,
    chain::{self, End},
};
use crate::{process::lock, wall_clock};

/// Bytes of records that may wait for a slow disk; what comes beyond them is lost and counted.
const QUEUE_MAX_BYTES: usize = 8 << 20;

/// How long the thread sleeps at most: until a rotation is noticed, a full disk tried again, written lines made durable.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How far back the end of an existing log is looked for, and the ends of processes in it; many times the longest line.
const TAIL_BYTES: u64 = 8 << 20;

/// What waits to be written.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Vec<Item>,
    bytes: usize,
    /// Records that did not get into the log since the last line that did.
    lost: u64,
    /// The same since the server began, for operators.
    lost_ever: u64,
    is_closed: bool,
}

struct Item {
    time_ms: u64,
    record: Record,
    /// Whoever acts only on what is safely recorded.
    done: Option<oneshot::Sender<bool>>,
}

/// What the thread and its clients share.
#[derive(Default)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    bell: Condvar,
}

impl Shared {
    /// Queues a record; never waits. Full means lost.
    pub(super) fn push(&self, mut record: Record, done: Option<oneshot::Sender<bool>>) {
        let bytes = record.bound();
        let mut queue = lock(&self.queue);
        if queue.is_closed || queue.bytes + bytes > QUEUE_MAX_BYTES {
            queue.lost += 1;
            queue.lost_ever += 1;
            return;
        }
        queue.bytes += bytes;
        queue.waiting.push(Item { time_ms: wall_clock::now_ms(), record, done });
        drop(queue);
        self.bell.notify_one();
    }

    /// No more records; the thread ends when it has written what is there.
    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.bell.notify_one();
    }

    fn take(&self) -> (Vec<Item>, u64, bool) {
        let mut queue = lock(&self.queue);
        if queue.waiting.is_empty() && !queue.is_closed {
            let woken = self.bell.wait_timeout(queue, LOOK_EVERY);
            queue = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        queue.bytes = 0;
        (std::mem::take(&mut queue.waiting), std::mem::take(&mut queue.lost), queue.is_closed)
    }

    /// How many records were lost since the server began.
    pub(super) fn lost_ever(&self) -> u64 {
        lock(&self.queue).lost_ever
    }

    /// So many are to be told by the next line that can be written; `known` of them were lost before.
    fn lose(&self, count: u64, known: u64) {
        let mut queue = lock(&self.queue);
        queue.lost += count;
        queue.lost_ever += count.saturating_sub(known);
    }
}

pub(super) struct Writer {
    path: PathBuf,
    mode: Mode,
    shared: Arc<Shared>,
    log: Log,
    is_down: bool,
    /// Written since the last sync.
    is_dirty: bool,
}

/// An open file and where its chain ends.
struct Log {
    file: File,
    id: (u64, u64),
    /// Up to here every line is whole.
    good_bytes: u64,
    end: End,
    /// What lies beyond, to be named by the next line.
    torn: Option<Record>,
    /// The piece has no newline yet.
    is_open_ended: bool,
    /// It goes on from another file, and its first line says so.
    continues: bool,
}

impl Writer {
    /// Opens the log and finds the end of its chain. Also returns the processes whose end it tells.
    pub(super) fn open(path: &Path, mode: Mode, shared: Arc<Shared>) -> Result<(Self, Vec<Ended>), AuditError> {
        let (log, ended) = Log::open(path, None)?;
        Ok((Self { path: path.to_owned(), mode, shared, log, is_down: false, is_dirty: false }, ended))
    }

    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        loop {
            let (items, lost, is_closed) = self.shared.take();
            let is_last = is_closed && items.is_empty();
            self.follow_rotation();
            self.round(items, lost);
            if is_last {
                self.sync();
                return;
            }
        }
    }

    fn round(&mut self, items: Vec<Item>, lost: u64) {
        if items.is_empty() && lost == 0 {
            return self.sync();
        }
        let must_last = items.iter().any(|item| item.done.is_some());
        let before = self.log.end.seq;
        let written = self.log.append(&items, lost).and_then(|()| {
            self.is_dirty = true;
            if must_last { self.log.file.sync_data() } else { Ok(()) }
        });
        match &written {
            Ok(()) if self.is_down => {
                tracing::warn!(path = %self.path.display(), lost, "the audit log can be written again");
            }
            Ok(()) => {}
            Err(error) => {
                // Whole lines may have stayed where the file cannot be cut.
                let kept = self.log.end.seq.saturating_sub(before);
                self.shared.lose((lost + items.len() as u64).saturating_sub(kept), lost);
                if !self.is_down {
                    tracing::error!(path = %self.path.display(), %error, mode = ?self.mode, "the audit log cannot be written");
                }
            }
        }
        self.is_down = written.is_err();
        for done in items.into_iter().filter_map(|item| item.done) {
            done.send(written.is_ok()).ok(); // Whoever asked has left.
        }
    }

    fn sync(&mut self) {
        if self.is_dirty && self.log.file.sync_data().is_ok() {
            self.is_dirty = false;
        }
    }

    /// The name leads to another file, or to none: whoever keeps logs has taken ours away.
    fn follow_rotation(&mut self) {
        let now = std::fs::metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()));
        if now.is_ok_and(|id| id == self.log.id) {
            return;
        }
        match Log::open(&self.path, Some(&self.log.end)) {
            Ok((log, _)) => {
                self.sync();
                self.log = log;
            }
            Err(error) if !self.is_down => tracing::error!(%error, "the audit log goes on in its old file"),
            Err(_) => {}
        }
    }
}

impl Log {
    /// Opens a log to go on with; an empty one goes on from `after`.
    fn open(path: &Path, after: Option<&End>) -> Result<(Self, Vec<Ended>), AuditError> {
        let failed = |source| AuditError::Io { path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mode = metadata.mode() & 0o7777;
        if !metadata.is_file() {
            return Err(AuditError::NotAFile { path: path.to_owned() });
        }
        if mode & 0o022 != 0 {
            return Err(AuditError::Mode { path: path.to_owned(), mode });
        }
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            rustix::io::Errno::WOULDBLOCK => AuditError::InUse { path: path.to_owned() },
            other => failed(other.into()),
        })?;
        let end = after.cloned().unwrap_or_default();
        let id = (metadata.dev(), metadata.ino());
        let mut log =
            Self { file, id, good_bytes: 0, end, torn: None, is_open_ended: false, continues: after.is_some() };
        let ended = log.recover().map_err(failed)?;
        Ok((log, ended))
    }

    /// Finds the last whole line. What lies behind it is named by the next one.
    fn recover(&mut self) -> io::Result<Vec<Ended>> {
        let size = self.file.metadata()?.len();
        let from = size.saturating_sub(TAIL_BYTES);
        self.file.seek(SeekFrom::Start(from))?;
        let mut tail = Vec::new();
        (&self.file).take(TAIL_BYTES).read_to_end(&mut tail)?;
        let (mut at, mut good, mut ended) = (0, 0, Vec::new());
        for piece in tail.split_inclusive(|byte| *byte == b'\n') {
            at += piece.len();
            // A crash may have cost a line its newline alone.
            if let Some(line) = chain::read(piece.strip_suffix(b"\n").unwrap_or(piece)) {
                good = at;
                self.end = End { seq: line.seq, hash: line.hash };
                if line.event == super::EXIT {
                    ended.push(Ended { session: line.session, process: line.process, pid: line.pid });
                }
            }
        }
        self.good_bytes = from + good as u64;
        let rest = &tail[good..];
        self.is_open_ended = !tail.is_empty() && !tail.ends_with(b"\n");
        // A crash leaves the beginning of a line. A whole line that is wrong was made so by somebody.
        let event = if self.is_open_ended { super::TORN } else { super::DAMAGED };
        let piece = rest.strip_suffix(b"\n").unwrap_or(rest);
        self.torn = (!rest.is_empty()).then(|| Record {
            bytes: Some(piece.len() as u64),
            sha256: Some(chain::digest(piece)),
            ..Record::of(event)
        });
        Ok(ended)
    }

    /// Appends records, all or none.
    fn append(&mut self, items: &[Item], lost: u64) -> io::Result<()> {
        let mut end = self.end.clone();
        let mut out = Vec::new();
        if self.is_open_ended {
            out.push(b'\n');
        }
        let now = wall_clock::now_ms();
        if let Some(torn) = &self.torn {
            chain::write(&mut out, &mut end, now, torn);
        }
        if self.continues {
            chain::write(&mut out, &mut end, now, &Record::of("audit.continue"));
        }
        if lost > 0 {
            chain::write(&mut out, &mut end, now, &Record { count: Some(lost), ..Record::of(super::LOST) });
        }
        for item in items {
            chain::write(&mut out, &mut end, item.time_ms, &item.record);
        }
        let had_torn = self.torn.is_some();
        match self.file.write_all(&out) {
            Ok(()) => {
                // Beside what was torn: that is counted by the size of the file.
                self.good_bytes =
                    if had_torn { self.file.metadata()?.len() } else { self.good_bytes + out.len() as u64 };
                (self.end, self.torn, self.is_open_ended, self.continues) = (end, None, false, false);
                Ok(())
            }
            Err(error) => {
                let torn_bytes = self.torn.as_ref().and_then(|torn| torn.bytes).unwrap_or(0)
                    + u64::from(had_torn && !self.is_open_ended);
                // What got in half goes again; where that is not allowed it is named later, like what a crash leaves.
                if self.file.set_len(self.good_bytes + torn_bytes).is_err() {
                    self.recover()?;
                }
                Err(error)
            }
        }
    }
}
