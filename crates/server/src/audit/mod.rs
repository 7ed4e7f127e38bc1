//! The audit log: who came, who was refused, what was started, signalled and ended. One JSON object a line, each with the hash of the line
//! before it; `exec-server audit verify` says whether a line was removed, changed or moved. Where the log began and how far it was written is kept
//! apart from it (`anchor`), so that a missing beginning, a missing end and a replaced file are seen as well.
//!
//! Never in it: tokens, stdin, output, contents of files, values of variables. Arguments of programs are in it, and people put secrets there.
//!
//! Recording never waits: a thread of its own writes (`writer`), from a queue that is bounded. What does not fit, or cannot be written, is lost
//! and counted, and the count is the first line once lines can be written again. In [`Mode::Strict`] a process is started, and an
//! HTTP request made, only when the line about it is on the disk; while it cannot be, both are refused, and all that is needed to see to running
//! processes goes on.
//!
//! Must not know connections or sessions: records are handed in.

mod anchor;
mod chain;
mod verify;
mod writer;

pub use anchor::{Anchor, Mark};
pub use verify::{Expected, Report, VerifyError, verify};

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use serde::Serialize;
use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};

use self::writer::{Shared, Writer};
use crate::process::{kept_argv, lock};

/// Events that verifier and writer know by name.
const TORN: &str = "audit.torn";
const DAMAGED: &str = "audit.damaged";
const LOST: &str = "audit.lost";
const EXIT: &str = "process.exit";
/// The first line of a log that has an anchor, and the first that an anchor knows in one that had none.
const BEGIN: &str = "audit.begin";
/// The first line of a file that goes on from another.
const CONTINUE: &str = "audit.continue";

/// Refusals at the door that are written in one second. They cost whoever causes them nothing; more are only counted, or a stranger could fill the disk.
const REFUSALS_MAX: u64 = 20;

/// Bytes of arguments in a line; the rest is left out, and the line says how many there were.
const ARGV_MAX_BYTES: usize = 32 << 10;

/// Bytes of any other text in a line.
const TEXT_MAX_BYTES: usize = 4 << 10;

/// What happens when the log cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The server goes on; what is lost is counted, and the log says so later.
    #[default]
    BestEffort,
    /// No process is started and no HTTP request made that is not on record.
    Strict,
}

/// Why there is no audit log.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The system refused.
    #[error("use audit log `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory or a device.
    #[error("audit log `{}` is not a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Others could write what they like.
    #[error("audit log `{}` has mode {mode:04o}; others must not be able to write it", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A link could lead the log into any file.
    #[error("audit log `{}` is a symbolic link; name the file itself", path.display())]
    Link {
        /// The path.
        path: PathBuf,
    },
    /// The file has a second name, by which it could be read or changed.
    #[error("audit log `{}` has {links} hard links; it must have one name", path.display())]
    HardLinks {
        /// The file.
        path: PathBuf,
        /// How many names it has.
        links: u64,
    },
    /// Its owner could change it.
    #[error("audit log `{}` belongs to uid {owner}; it must belong to the user of this server", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Two chains in one file would be none.
    #[error("audit log `{}` is written by another server", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// One line, without number, time and hashes. What does not apply is left out.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// What happened, such as `process.start`.
    pub event: &'static str,
    /// Who acted, or whom it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The connection it came by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The beginning of the session's id; the whole would let its reader resume it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The process's name in its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Its number on this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The method that was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<&'static str>,
    /// Program and arguments, as far as they fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// How many bytes the arguments had, where they did not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv_bytes: Option<u64>,
    /// Its working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Whether it has a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty: Option<bool>,
    /// How it is confined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<&'static str>,
    /// Where an HTTP request goes: scheme, host and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// A signal's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// The exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Why something was refused or changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The answer at the door.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How often, where a line stands for several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The size of a piece of a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Its SHA-256.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Where the log's anchor is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor: Option<String>,
}

impl Record {
    /// A record of an event, such as `process.start`.
    #[must_use]
    pub fn of(event: &'static str) -> Self {
        Self { event, ..Self::default() }
    }

    /// Sets program and arguments, as far as they fit.
    #[must_use]
    pub(crate) fn argv(mut self, argv: &[String]) -> Self {
        let (kept, bytes) = kept_argv(argv, ARGV_MAX_BYTES);
        self.argv = Some(kept);
        self.argv_bytes = bytes;
        self
    }

    /// Cuts every text to what a line holds of it, whoever made it up: a longer line could not be verified. Returns what it takes
    /// in memory.
    fn bound(&mut self) -> usize {
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

/// A process whose end an earlier server has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ended {
    session: Option<String>,
    process: Option<String>,
    pid: Option<u32>,
}

/// Where records go. Copies go to the same log; the default goes nowhere.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Inner>>);

struct Inner {
    mode: Mode,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Ends that are in the log already, for the adoption of processes.
    ended: Vec<Ended>,
    refusals: Mutex<Refusals>,
}

struct Refusals {
    since: Instant,
    written: u64,
    more: u64,
}

impl Audit {
    /// Opens a log, goes on with the chain that is in it or that its anchor knows, and starts the thread that writes. `anchor` is the file
    /// that keeps what is known of the log; see [`Anchor::path_in`].
    pub fn open(path: &Path, mode: Mode, anchor: Option<&Path>) -> Result<Self, AuditError> {
        let shared = Arc::new(Shared::default());
        let (writer, ended) = Writer::open(path, mode, anchor, shared.clone())?;
        let thread = thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run());
        let thread = thread.map_err(|source| AuditError::Io { path: path.to_owned(), source })?;
        let refusals = Refusals { since: Instant::now(), written: 0, more: 0 };
        let inner = Inner { mode, shared, thread: Mutex::new(Some(thread)), ended, refusals: Mutex::new(refusals) };
        Ok(Self(Some(Arc::new(inner))))
    }

    /// Records something; never waits.
    pub fn record(&self, record: Record) {
        if let Some(inner) = &self.0 {
            inner.shared.push(record, None);
        }
    }

    /// Whether nothing may start that is not on record.
    pub(crate) fn is_strict(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.mode == Mode::Strict)
    }

    /// Records something and waits until it is on the disk; false where it is not.
    pub(crate) async fn commit(&self, record: Record) -> bool {
        let Some(inner) = &self.0 else { return true };
        let (tx, rx) = oneshot::channel();
        inner.shared.push(record, Some(tx));
        rx.await.unwrap_or(false)
    }

    /// Somebody was refused at the door.
    pub(crate) fn refused(&self, peer: &impl fmt::Display, status: u16) {
        let Some(inner) = &self.0 else { return };
        let mut refusals = lock(&inner.refusals);
        if refusals.since.elapsed() >= Duration::from_secs(1) {
            (refusals.since, refusals.written) = (Instant::now(), 0);
        }
        if refusals.written >= REFUSALS_MAX {
            refusals.more += 1;
            return;
        }
        refusals.written += 1;
        let count = Some(std::mem::take(&mut refusals.more)).filter(|more| *more > 0).map(|more| more + 1);
        drop(refusals);
        let record = Record { peer: Some(peer.to_string()), status: Some(status), count, ..Record::of("door.refuse") };
        inner.shared.push(record, None);
    }

    /// Records that the log could not take since the server began.
    pub(crate) fn lost(&self) -> u64 {
        self.0.as_ref().map_or(0, |inner| inner.shared.lost_ever())
    }

    /// Whether the log tells the end of this process already.
    pub(crate) fn tells_end(&self, session: &str, process: &str, pid: u32) -> bool {
        let is_it = |ended: &Ended| {
            ended.session.as_deref() == Some(session)
                && ended.process.as_deref() == Some(process)
                && ended.pid == Some(pid)
        };
        self.0.as_ref().is_some_and(|inner| inner.ended.iter().any(is_it))
    }

    /// Writes what is queued and ends the thread. Blocking; what comes later is dropped.
    pub fn close(&self) {
        if let Some(inner) = &self.0 {
            inner.shared.close();
            if let Some(thread) = lock(&inner.thread).take() {
                thread.join().ok(); // It panicked: the log ends where it does.
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
