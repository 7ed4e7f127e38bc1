//! The thread that writes the audit log: appends queued records, and continues after a crash, a full disk or a
//! rotation.
//!
//! ```text
//! up ──write fails──▶ down: queued records are counted as lost, a partial write is truncated;
//!  ▲                    │    retried twice a second and with every record
//!  └──── `audit.lost` ──┘
//! ```
//!
//! If the log's path no longer names the open file (it was rotated), the writer opens a new file, which begins with the
//! last hash of the old one. It does the same at startup if the file is missing and the anchor knows the last line.
//!
//! If a file lacks the last known line, it was cut or replaced. The chain still continues from the known line, so that
//! every verifier stops at this place.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use rustix::fs::FlockOperation;
use tokio::{sync::oneshot, time::Instant};

use super::{Anchor, AnchorMark, AuditError, AuditPolicy, AuditRecord, RecordedExit, chain};
use crate::wall_clock;

/// Most bytes of records that may wait for a slow disk. Further records are lost and counted.
const QUEUE_MAX_BYTES: usize = 8 << 20;

/// The longest sleep of the thread. Bounds how long a rotation goes unnoticed and how soon a full disk is retried.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// The longest time until written lines are synced and the anchor is updated. Without records that a caller waits for,
/// there are at most 10 syncs per second.
pub(super) const SYNC_EVERY: Duration = Duration::from_millis(100);

/// How many bytes at the end of an existing log are searched for the end of the chain and for process exits. Many times
/// the longest line.
const TAIL_BYTES: u64 = 8 << 20;

#[derive(Default)]
pub(super) struct RecordQueue {
    waiting: Vec<QueuedRecord>,
    bytes: usize,
    /// Records lost since the last line that was written.
    lost: u64,
    /// Records lost since the server started, for operators.
    lost_ever: u64,
    is_closed: bool,
}

struct QueuedRecord {
    time_ms: u64,
    record: AuditRecord,
    /// Receives true once the record is synced, false if it cannot be written.
    done: Option<oneshot::Sender<bool>>,
}

/// State shared by the writer thread and the `Audit` handles.
#[derive(Default)]
pub(super) struct WriterQueue {
    queue: Mutex<RecordQueue>,
    changed: Condvar,
}

impl WriterQueue {
    /// Queues a record without blocking. If the queue is full or closed, the record is lost, and dropping `done`
    /// reports it.
    pub(super) fn push(&self, mut record: AuditRecord, done: Option<oneshot::Sender<bool>>) {
        let bytes = record.truncate_texts();
        let mut queue = self.queue.lock();
        if queue.is_closed || queue.bytes + bytes > QUEUE_MAX_BYTES {
            queue.lost += 1;
            queue.lost_ever += 1;
            return;
        }
        queue.bytes += bytes;
        queue.waiting.push(QueuedRecord { time_ms: wall_clock::now_ms(), record, done });
        drop(queue);
        self.changed.notify_one();
    }

    /// Accepts no more records. The thread ends when it has written the queued ones.
    pub(super) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Takes the queued records, the number of lost ones, and whether the queue is closed. If no record is queued,
    /// waits at most `within` for one.
    fn take(&self, within: Duration) -> (Vec<QueuedRecord>, u64, bool) {
        let mut queue = self.queue.lock();
        if queue.waiting.is_empty() && !queue.is_closed {
            self.changed.wait_for(&mut queue, within);
        }
        queue.bytes = 0;
        (std::mem::take(&mut queue.waiting), std::mem::take(&mut queue.lost), queue.is_closed)
    }

    pub(super) fn lost_ever(&self) -> u64 {
        self.queue.lock().lost_ever
    }

    /// Counts records that the next written line must report as lost. `counted` of them are in `lost_ever` already.
    fn count_lost(&self, count: u64, counted: u64) {
        let mut queue = self.queue.lock();
        queue.lost += count;
        queue.lost_ever += count.saturating_sub(counted);
    }
}

pub(super) struct AuditWriter {
    path: PathBuf,
    mode: AuditPolicy,
    shared: Arc<WriterQueue>,
    log: LogFile,
    is_down: bool,
    /// Lines were written since the last sync.
    is_dirty: bool,
    synced: Instant,
    anchor: Option<StoredAnchor>,
    /// The log's path names no file that can be used, so the old file is continued. Logged only once.
    has_lost_name: bool,
}

/// The anchor of the log and its file.
struct StoredAnchor {
    path: PathBuf,
    /// `None` until the first line for it is synced.
    contents: Option<Anchor>,
    /// `contents` is newer than the file.
    is_stale: bool,
    is_failing: bool,
}

impl StoredAnchor {
    /// Reads the file. An unreadable anchor is replaced, and the log then records that its anchor is newer than the
    /// log.
    fn read(path: &Path) -> Self {
        let contents = Anchor::read(path).unwrap_or_else(|error| {
            tracing::error!(path = %path.display(), %error, "the audit log's anchor cannot be read; starting a new one");
            None
        });
        Self { path: path.to_owned(), contents, is_stale: false, is_failing: false }
    }

    /// Advances the anchor to the last synced line.
    fn advance(&mut self, log: &Path, durable: &mut LogFile) {
        let last = durable.end.clone();
        match (&mut self.contents, durable.begun.take()) {
            (Some(anchor), _) if anchor.last == last => {}
            (Some(anchor), _) => {
                anchor.last = last;
                self.is_stale = true;
            }
            (none, Some(first)) => {
                let log = std::path::absolute(log).unwrap_or_else(|_| log.to_owned());
                *none = Some(Anchor { log, first, last, parts: Vec::new() });
                self.is_stale = true;
            }
            (None, None) => {}
        }
        self.write();
    }

    fn end_part(&mut self) {
        if let Some(anchor) = &mut self.contents {
            anchor.end_part();
            self.is_stale = true;
        }
        self.write();
    }

    fn write(&mut self) {
        let Some(anchor) = self.contents.as_ref().filter(|_| self.is_stale) else { return };
        match anchor.write(&self.path) {
            Ok(()) => {
                self.is_stale = false;
                self.is_failing = false;
            }
            Err(error) => {
                if !self.is_failing {
                    let path = self.path.display();
                    tracing::error!(%path, %error, "the audit log's anchor cannot be written; the log continues without it");
                }
                self.is_failing = true;
            }
        }
    }
}

struct LogFile {
    file: File,
    id: (u64, u64),
    /// Size of the file up to the end of the last valid line.
    good_bytes: u64,
    end: AnchorMark,
    /// Declares the bytes after the last valid line. Written before the next record.
    torn: Option<AuditRecord>,
    /// The file does not end with a newline.
    is_open_ended: bool,
    /// Records about the log itself, to be written before the next record.
    notices: Vec<AuditRecord>,
    /// The line at which an anchor begins, once it is written.
    begun: Option<AnchorMark>,
}

impl AuditWriter {
    /// Opens the log and finds the end of its chain. Also returns the process exits near its end.
    pub(super) fn open(
        path: &Path,
        mode: AuditPolicy,
        anchor: Option<&Path>,
        shared: Arc<WriterQueue>,
    ) -> Result<(Self, Vec<RecordedExit>), AuditError> {
        let mut anchor = anchor.map(StoredAnchor::read);
        let contents = anchor.as_ref().and_then(|anchor| anchor.contents.as_ref());
        let last = contents.map(|contents| contents.last.clone());
        let (mut log, ended) = LogFile::open(path, last.as_ref())?;
        if let Some(anchor) = &mut anchor {
            let place = Some(anchor.path.display().to_string());
            for notice in &mut log.notices {
                notice.anchor.clone_from(&place);
            }
            match &anchor.contents {
                None => log.notices.push(AuditRecord { anchor: place, ..AuditRecord::of(super::BEGIN) }),
                // No valid line: the file is new, and the anchor's last line ended an older file.
                Some(_) if log.good_bytes == 0 => anchor.end_part(),
                Some(_) => {}
            }
        }
        let writer = Self {
            path: path.to_owned(),
            mode,
            shared,
            log,
            is_down: false,
            is_dirty: false,
            synced: Instant::now(),
            anchor,
            has_lost_name: false,
        };
        Ok((writer, ended))
    }

    pub(super) fn run(mut self) {
        loop {
            let within = if self.is_dirty { SYNC_EVERY } else { CHECK_EVERY };
            let (items, lost, is_closed) = self.shared.take(within);
            let is_last = is_closed && items.is_empty();
            self.follow_rotation();
            self.round(items, lost);
            if is_last {
                self.sync();
                return;
            }
        }
    }

    fn round(&mut self, items: Vec<QueuedRecord>, lost: u64) {
        if items.is_empty() && lost == 0 {
            return self.sync();
        }
        let must_sync = items.iter().any(|item| item.done.is_some());
        let before = self.log.end.seq;
        let written = self.log.append(&items, lost).and_then(|()| {
            self.is_dirty = true;
            if must_sync { self.log.file.sync_data() } else { Ok(()) }
        });
        match &written {
            Ok(()) if self.is_down => {
                tracing::warn!(path = %self.path.display(), lost, "the audit log can be written again");
            }
            Ok(()) => {}
            Err(error) => {
                // If the file could not be truncated, complete lines may have stayed in it. They are not lost.
                let kept = self.log.end.seq.saturating_sub(before);
                self.shared.count_lost((lost + items.len() as u64).saturating_sub(kept), lost);
                if !self.is_down {
                    tracing::error!(path = %self.path.display(), %error, mode = ?self.mode, "the audit log cannot be written");
                }
            }
        }
        self.is_down = written.is_err();
        for done in items.into_iter().filter_map(|item| item.done) {
            done.send(written.is_ok()).ok(); // An error means that the caller no longer waits.
        }
        if self.synced.elapsed() >= SYNC_EVERY {
            self.sync();
        }
    }

    /// Syncs the lines first and then advances the anchor, so that the anchor is never ahead of the log. A failed sync
    /// is repeated the next time.
    fn sync(&mut self) {
        if self.is_dirty && self.log.file.sync_data().is_ok() {
            self.is_dirty = false;
            self.synced = Instant::now();
            if let Some(anchor) = &mut self.anchor {
                anchor.advance(&self.path, &mut self.log);
            }
        }
    }

    /// Opens a new file if the log's path no longer names the open one, because a log rotation has renamed it.
    fn follow_rotation(&mut self) {
        let now = std::fs::symlink_metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()));
        if now.is_ok_and(|id| id == self.log.id) {
            self.has_lost_name = false;
            return;
        }
        match LogFile::open(&self.path, Some(&self.log.end)) {
            Ok((mut log, _)) => {
                self.sync();
                if let Some(anchor) = &mut self.anchor {
                    anchor.end_part();
                    let place = anchor.path.display().to_string();
                    log.notices.iter_mut().for_each(|notice| notice.anchor = Some(place.clone()));
                }
                // If the old file could not take the anchor's first line, write it to the new file.
                let unwritten = self.log.notices.drain(..).filter(|notice| notice.event == super::BEGIN);
                log.notices.extend(unwritten);
                self.log = log;
                self.has_lost_name = false;
            }
            Err(error) => {
                if !self.has_lost_name {
                    tracing::error!(%error, "cannot reopen the audit log; continuing with the old file");
                }
                self.has_lost_name = true;
            }
        }
    }
}

impl LogFile {
    /// Opens a log for appending, without following a symlink. If the last line is known, the chain continues from it.
    fn open(path: &Path, known: Option<&AnchorMark>) -> Result<(Self, Vec<RecordedExit>), AuditError> {
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(number) if number == rustix::io::Errno::LOOP.raw_os_error() => {
                AuditError::Link { path: path.to_owned() }
            }
            _ => AuditError::Io { path: path.to_owned(), source },
        };
        // O_NONBLOCK: opening a FIFO must not block. The FIFO is refused below.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600).custom_flags(flags.bits().cast_signed());
        let file = options.open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mode = metadata.mode() & 0o7777;
        if !metadata.is_file() {
            return Err(AuditError::NotAFile { path: path.to_owned() });
        }
        if mode & 0o022 != 0 {
            return Err(AuditError::Mode { path: path.to_owned(), mode });
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(AuditError::Owner { path: path.to_owned(), owner: metadata.uid() });
        }
        if metadata.nlink() > 1 {
            return Err(AuditError::HardLinks { path: path.to_owned(), links: metadata.nlink() });
        }
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            rustix::io::Errno::WOULDBLOCK => AuditError::InUse { path: path.to_owned() },
            other => failed(other.into()),
        })?;
        let end = known.cloned().unwrap_or_default();
        let id = (metadata.dev(), metadata.ino());
        let mut log =
            Self { file, id, good_bytes: 0, end, torn: None, is_open_ended: false, notices: Vec::new(), begun: None };
        let (ended, has_known) = log.recover(known).map_err(failed)?;
        match (known, has_known) {
            (None, _) | (Some(_), Some(true)) => {}
            (Some(_), None) => log.notices.push(AuditRecord::of(super::CONTINUE)),
            (Some(known), Some(false)) => {
                let reason = format!("the line with the number {} is not in the file", known.seq);
                tracing::error!(path = %path.display(), reason, "the audit log was cut or replaced");
                log.notices.push(AuditRecord { reason: Some(reason), ..AuditRecord::of(super::DAMAGED) });
            }
        }
        Ok((log, ended))
    }

    /// Finds the last valid line. The bytes after it are declared by the next line. If the file lacks the line `known`,
    /// the chain continues from `known`. Reads only the last [`TAIL_BYTES`] of the file. Returns the exits in this
    /// part, and whether the file has the known line or its successor: `None` if the part has no valid line, or if
    /// `known` is `None`.
    fn recover(&mut self, known: Option<&AnchorMark>) -> io::Result<(Vec<RecordedExit>, Option<bool>)> {
        let size = self.file.metadata()?.len();
        let from = size.saturating_sub(TAIL_BYTES);
        self.file.seek(SeekFrom::Start(from))?;
        let mut tail = Vec::new();
        (&self.file).take(TAIL_BYTES).read_to_end(&mut tail)?;
        let mut at = 0;
        let mut good = 0;
        let mut ended = Vec::new();
        let mut has_known = None;
        for piece in tail.split_inclusive(|byte| *byte == b'\n') {
            at += piece.len();
            // A crash may have cut off only the newline.
            if let Some(line) = chain::read(piece.strip_suffix(b"\n").unwrap_or(piece)) {
                good = at;
                if let Some(known) = known {
                    let is_known = line.seq == known.seq && line.hash == known.hash;
                    let is_next = line.prev == known.hash;
                    // In a large file, the known line may be before the part that was read.
                    let is_beyond = has_known.is_none() && from > 0 && line.seq > known.seq;
                    has_known = Some(has_known == Some(true) || is_known || is_next || is_beyond);
                }
                self.end = AnchorMark { seq: line.seq, hash: line.hash };
                if line.event == super::EXIT {
                    ended.push(RecordedExit { session: line.session, process: line.process, pid: line.pid });
                }
            }
        }
        if let Some(known) = known.filter(|_| has_known != Some(true)) {
            self.end = known.clone();
        }
        self.good_bytes = from + good as u64;
        let rest = &tail[good..];
        self.is_open_ended = !tail.is_empty() && !tail.ends_with(b"\n");
        // A crash leaves the beginning of a line, without a newline. A complete line that is invalid was tampered with.
        let event = if self.is_open_ended { super::TORN } else { super::DAMAGED };
        let piece = rest.strip_suffix(b"\n").unwrap_or(rest);
        self.torn = (!rest.is_empty()).then(|| AuditRecord {
            bytes: Some(piece.len() as u64),
            sha256: Some(chain::digest(piece)),
            ..AuditRecord::of(event)
        });
        Ok((ended, has_known))
    }

    /// Appends all records. After an error none of them stays in the file, unless the file cannot be truncated.
    fn append(&mut self, items: &[QueuedRecord], lost: u64) -> io::Result<()> {
        let mut end = self.end.clone();
        let mut out = Vec::new();
        if self.is_open_ended {
            out.push(b'\n');
        }
        let now = wall_clock::now_ms();
        if let Some(torn) = &self.torn {
            chain::write(&mut out, &mut end, now, torn);
        }
        let mut begun = None;
        for notice in &self.notices {
            chain::write(&mut out, &mut end, now, notice);
            if notice.event == super::BEGIN {
                begun = Some(end.clone());
            }
        }
        if lost > 0 {
            chain::write(&mut out, &mut end, now, &AuditRecord { count: Some(lost), ..AuditRecord::of(super::LOST) });
        }
        for item in items {
            chain::write(&mut out, &mut end, item.time_ms, &item.record);
        }
        let had_torn = self.torn.is_some();
        match self.file.write_all(&out) {
            Ok(()) => {
                // `good_bytes` does not include the torn bytes, so take the size of the file.
                self.good_bytes =
                    if had_torn { self.file.metadata()?.len() } else { self.good_bytes + out.len() as u64 };
                self.end = end;
                self.torn = None;
                self.is_open_ended = false;
                self.notices.clear();
                self.begun = begun.or(self.begun.take());
                Ok(())
            }
            Err(error) => {
                // The torn bytes of an earlier crash stay in the file, with their newline if they have one.
                let torn_bytes = self.torn.as_ref().and_then(|torn| torn.bytes).unwrap_or(0)
                    + u64::from(had_torn && !self.is_open_ended);
                // Truncate the partial write. If truncating is not allowed (append-only file), the next line declares
                // it, as after a crash.
                if self.file.set_len(self.good_bytes + torn_bytes).is_err() {
                    let known = self.end.clone();
                    self.recover(Some(&known))?;
                }
                Err(error)
            }
        }
    }
}
