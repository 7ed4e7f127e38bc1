//! The audit log: connections, refusals, and the starts, signals and exits of processes. One JSON object per line, each
//! with the hash of the previous line. `exec-server audit verify` detects lines that were removed, changed or moved.
//! The `anchor`, kept apart from the log, records where the log began and how far it was written. With it, a missing
//! end and a replaced file are detected as well.
//!
//! The log never contains tokens, stdin, output, file contents or values of environment variables. It does contain
//! program arguments, and users put secrets there.
//!
//! Recording never blocks: a separate thread (`writer`) writes from a bounded queue. Records that do not fit, or that
//! cannot be written, are lost and counted. The count is written before the next record.
//!
//! In [`AuditPolicy::Strict`], a process is started or an HTTP request made only after its line is synced to disk.
//! While the log cannot be written, both are refused. Everything needed to manage running processes still works.

mod anchor;
mod chain;
mod verify;
mod writer;

pub use anchor::{Anchor, AnchorMark};
pub use verify::{ExpectedLog, VerifyError, VerifyReport, verify};

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};

use self::writer::{AuditWriter, WriterQueue};
use crate::process::truncate_argv;

// Events that the verifier and the writer recognize by name.

/// Declares a partial line before it, which a crash left.
const TORN: &str = "audit.torn";
/// Declares that a line before it was changed, or that known lines are missing.
const DAMAGED: &str = "audit.damaged";
/// Says how many records were lost.
const LOST: &str = "audit.lost";
/// The end of a process. The writer looks for it at startup, so that no end is recorded twice.
const EXIT: &str = "process.exit";
/// Marks the line at which an anchor begins: the first line of the log, or the first after an existing log got an
/// anchor.
const BEGIN: &str = "audit.begin";
/// The first line of a file that continues another file.
const CONTINUE: &str = "audit.continue";

/// Most refusals by admission that are written per second. Refusals cost a client nothing, so without this bound anyone
/// could fill the disk. The rest are only counted.
const REFUSALS_MAX: u64 = 20;

/// Most bytes of arguments in a line. The rest is left out, and the line says how many bytes there were.
const ARGV_MAX_BYTES: usize = 32 << 10;

/// Most bytes of any other text in a line.
const TEXT_MAX_BYTES: usize = 4 << 10;

/// The behavior when the log cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditPolicy {
    /// The server continues. Lost records are counted, and the log reports the count later.
    #[default]
    BestEffort,
    /// Processes are started and HTTP requests made only if they are recorded.
    Strict,
}

/// Why the audit log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("audit log `{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The path names a FIFO or a device.
    #[error("audit log `{}` is not a file", path.display())]
    NotAFile { path: PathBuf },
    /// Other users could write to it.
    #[error("audit log `{}` has mode {mode:04o}; others must not be able to write it", path.display())]
    Mode { path: PathBuf, mode: u32 },
    /// A symbolic link could redirect the log to any file.
    #[error("audit log `{}` is a symbolic link; name the file itself", path.display())]
    Link { path: PathBuf },
    /// The file has another hard link, through which it could be read or changed.
    #[error("audit log `{}` has {links} hard links; it must have only one", path.display())]
    HardLinks { path: PathBuf, links: u64 },
    /// Another user owns the file and could change it.
    #[error("audit log `{}` belongs to uid {owner}; it must belong to the user of this server", path.display())]
    Owner { path: PathBuf, owner: u32 },
    /// Another server writes to it. Two servers would break each other's chain.
    #[error("audit log `{}` is in use by another server", path.display())]
    InUse { path: PathBuf },
}

/// One line without number, time and hashes. Fields that do not apply are left out.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    /// Names the event, such as `process.start`.
    pub event: &'static str,
    /// The principal that acted or that the event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The connection that caused the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// A prefix of the session's id. The full id would let a reader of the log resume the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The process's id in its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<&'static str>,
    /// Program and arguments, truncated to `ARGV_MAX_BYTES`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Size of all arguments, if they were truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty: Option<bool>,
    /// How the process is confined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<&'static str>,
    /// The target of an HTTP request: scheme, host and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The name of a signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why the process ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Why a request was refused or access changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The HTTP status that admission answered with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How many events this line stands for. Left out if it is one, except in `audit.lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The size of the partial or damaged line before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The SHA-256 of that line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The path of the log's anchor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor: Option<String>,
}

impl AuditRecord {
    #[must_use]
    pub fn of(event: &'static str) -> Self {
        Self { event, ..Self::default() }
    }

    /// Sets program and arguments, truncated to `ARGV_MAX_BYTES`.
    #[must_use]
    pub(crate) fn argv(mut self, argv: &[String]) -> Self {
        let (kept, bytes) = truncate_argv(argv, ARGV_MAX_BYTES);
        self.argv = Some(kept);
        self.argv_bytes = bytes;
        self
    }

    /// Truncates every text to `TEXT_MAX_BYTES`, because clients choose some of them and a longer line could not be
    /// verified. Returns the approximate size in memory.
    fn truncate_texts(&mut self) -> usize {
        let texts = [
            &mut self.principal,
            &mut self.peer,
            &mut self.session,
            &mut self.process,
            &mut self.cwd,
            &mut self.target,
            &mut self.signal,
            &mut self.cause,
            &mut self.reason,
            &mut self.anchor,
        ];
        // Rough costs of the record itself and, below, of each text.
        let mut size = 256;
        for text in texts.into_iter().flatten() {
            if text.len() > TEXT_MAX_BYTES {
                text.truncate(text.floor_char_boundary(TEXT_MAX_BYTES));
                text.shrink_to_fit();
            }
            size += text.len() + 8;
        }
        size + self.argv.iter().flatten().map(|arg| arg.len() + 8).sum::<usize>()
    }
}

/// A process whose exit an earlier server recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordedExit {
    session: Option<String>,
    process: Option<String>,
    pid: Option<u32>,
}

/// A handle to an audit log. Clones write to the same log; the default one discards all records.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<OpenAudit>>);

struct OpenAudit {
    mode: AuditPolicy,
    shared: Arc<WriterQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Exits near the end of the log when it was opened, so that adopted processes do not get a second exit record.
    ended: Vec<RecordedExit>,
    refusals: Mutex<RefusalRate>,
}

struct RefusalRate {
    /// When the current second began.
    since: Instant,
    /// Refusals that were written in the current second.
    written: u64,
    /// Refusals that were not written since the last one that was.
    suppressed: u64,
}

impl Audit {
    /// Opens a log and starts the writer thread. Continues the chain in the file, or from the line that the anchor
    /// knows. `anchor` is the path of the anchor's file; see [`Anchor::path_in`].
    pub fn open(path: &Path, mode: AuditPolicy, anchor: Option<&Path>) -> Result<Self, AuditError> {
        let shared = Arc::new(WriterQueue::default());
        let (writer, ended) = AuditWriter::open(path, mode, anchor, shared.clone())?;
        let thread = thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run());
        let thread = thread.map_err(|source| AuditError::Io { path: path.to_owned(), source })?;
        let refusals = RefusalRate { since: Instant::now(), written: 0, suppressed: 0 };
        let inner = OpenAudit { mode, shared, thread: Mutex::new(Some(thread)), ended, refusals: Mutex::new(refusals) };
        Ok(Self(Some(Arc::new(inner))))
    }

    /// Queues a record. Never blocks.
    pub fn record(&self, record: AuditRecord) {
        if let Some(inner) = &self.0 {
            inner.shared.push(record, None);
        }
    }

    /// Whether processes and HTTP requests must be recorded before they start.
    pub(crate) fn is_strict(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.mode == AuditPolicy::Strict)
    }

    /// Queues a record and waits until it is synced to disk. Returns false if it was lost.
    pub(crate) async fn commit(&self, record: AuditRecord) -> bool {
        let Some(inner) = &self.0 else { return true };
        let (tx, rx) = oneshot::channel();
        inner.shared.push(record, Some(tx));
        rx.await.unwrap_or(false)
    }

    /// Records that admission refused a connection. Beyond [`REFUSALS_MAX`] per second, refusals are only counted.
    pub(crate) fn refused(&self, peer: &impl fmt::Display, status: u16) {
        let Some(inner) = &self.0 else { return };
        let mut refusals = inner.refusals.lock();
        if refusals.since.elapsed() >= Duration::from_secs(1) {
            refusals.since = Instant::now();
            refusals.written = 0;
        }
        if refusals.written >= REFUSALS_MAX {
            refusals.suppressed += 1;
            return;
        }
        refusals.written += 1;
        let suppressed = std::mem::take(&mut refusals.suppressed);
        let count = (suppressed > 0).then_some(suppressed + 1);
        drop(refusals);
        let record =
            AuditRecord { peer: Some(peer.to_string()), status: Some(status), count, ..AuditRecord::of("door.refuse") };
        inner.shared.push(record, None);
    }

    /// The number of records lost since the server started.
    pub(crate) fn lost(&self) -> u64 {
        self.0.as_ref().map_or(0, |inner| inner.shared.lost_ever())
    }

    /// Whether the exit of this process was near the end of the log when the log was opened.
    pub(crate) fn has_exit(&self, session: &str, process: &str, pid: u32) -> bool {
        let is_this_exit = |ended: &RecordedExit| {
            ended.session.as_deref() == Some(session)
                && ended.process.as_deref() == Some(process)
                && ended.pid == Some(pid)
        };
        self.0.as_ref().is_some_and(|inner| inner.ended.iter().any(is_this_exit))
    }

    /// Writes the queued records and ends the thread. Blocks. Later records are dropped.
    pub fn close(&self) {
        if let Some(inner) = &self.0 {
            inner.shared.close();
            if let Some(thread) = inner.thread.lock().take() {
                thread.join().ok(); // An error means that the thread panicked. The log then ends early.
            }
        }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Audit").field(&self.0.as_ref().map(|inner| inner.mode)).finish()
    }
}

#[cfg(test)]
mod tests;
