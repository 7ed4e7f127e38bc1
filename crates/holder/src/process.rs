//! One process of the session, from its start until it is forgotten.
//!
//! This file has the record and its phases. Reading is in [`output`](crate::output), stdin in [`input`](crate::input),
//! exit and kill in [`process_end`](crate::process_end). A process does not depend on other processes.
//!
//! Terms: the *leader* is the child that the holder spawned, as opposed to the child's descendants. The *tail* is the
//! output that is still in the streams when the leader dies. The *slot* is the number of the process in the session.
//!
//! ```text
//!   Running ── leader dead ──▶ Draining ── tail read, reaped ──▶ Exited ── all streams ended ──▶ Closed
//! ```

use std::{
    ffi::CString,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use exec_server_log::{BlockReason, ExitCause, LogWriter, OutputStream, SEGMENT_BYTES, Segment, SegmentInfo};
use exec_server_process::{Child, Spawn, SpawnError, SpawnStage, StdinMode, StdioMode};

use crate::{
    ChildRestrictions,
    cgroup::ProcessCgroup,
    context::SessionContext,
    control::{AnnouncedSegment, FromHolder, OverflowPolicy, ProcessInfo, StartSpec, StartStage},
    input::ChildStdin,
    manifest::ManifestEntry,
    poller::{EventFlags, PollInterest},
    spawn_batch::PreparedStart,
};

/// The fd of a process that an epoll token stands for. A token is `slot << 8 | source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessFd {
    Exit = 0,
    /// Stdout, or the terminal in both directions.
    First = 1,
    /// Stderr.
    Second = 2,
    Stdin = 3,
}

pub(crate) struct Process {
    pub(crate) slot: u32,
    pub(crate) pid: u32,
    pub(crate) is_tty: bool,
    /// `None` once the process has closed.
    pub(crate) child: Option<Child>,
    /// The control group of the process, if the session has groups. Returned to the session when the process has
    /// closed.
    pub(crate) group: Option<ProcessCgroup>,
    pub(crate) phase: ProcessPhase,
    pub(crate) writer: LogWriter,
    /// Stdout and stderr. With a terminal, the first is the terminal and the second is never open.
    pub(crate) outputs: [ChildOutput; 2],
    pub(crate) input: ChildStdin,
    pub(crate) exit_interest: PollInterest,
    /// Why output is not read. `Some(No)` while a segment is being written to disk.
    pub(crate) paused: Option<BlockReason>,
    pub(crate) overflow: OverflowPolicy,
    /// All readers that follow the log have taken the events up to this one. 0: see `ToHolder::Followed`.
    pub(crate) followed_seq: u64,
    pub(crate) cap_bytes: u64,
    pub(crate) deadlines: ProcessDeadlines,
    /// Why the holder ended the process, if it did.
    pub(crate) killed: Option<ExitCause>,
    /// The process tree is to be killed at the end of this turn.
    pub(crate) is_kill_due: bool,
    /// The process runs in a sandbox, which may be why it fails.
    pub(crate) is_confined: bool,
    /// The holder has sent SIGTERM, so a normal exit also counts as caused by the holder.
    pub(crate) was_sigterm_sent: bool,
    /// The process belonged to an earlier holder of the session. Only its log is left.
    pub(crate) is_restored: bool,
    meta: Box<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessPhase {
    Running,
    /// The leader is dead. The output that its streams held at that moment is being read.
    Draining,
    /// `Exited` is in the log. Other processes may still hold the streams.
    Exited,
    /// The log is complete.
    Closed,
}

pub(crate) struct ChildOutput {
    pub(crate) stream: OutputStream,
    pub(crate) is_open: bool,
    /// Bytes that were in the stream when the leader died and must still be read before `Exited`.
    pub(crate) tail: u64,
    pub(crate) interest: PollInterest,
}

/// The deadlines of a process, in monotonic nanoseconds.
#[derive(Default)]
pub(crate) struct ProcessDeadlines {
    pub(crate) timeout_at: Option<u64>,
    /// The idle timeout and its deadline. The deadline does not count while the holder does not read the output.
    pub(crate) idle: Option<(u64, u64)>,
    /// The end of a grace period, or the next attempt of an incomplete kill.
    pub(crate) kill_at: Option<u64>,
    /// When to retry after a shortage, or after a leader could not be reaped.
    pub(crate) retry_at: Option<u64>,
}

/// Why a start failed, as reported to the server.
pub(crate) struct StartFailure {
    pub(crate) stage: StartStage,
    pub(crate) errno: i32,
    pub(crate) detail: Vec<u8>,
}

impl ProcessFd {
    pub(crate) fn token(self, slot: u32) -> u64 {
        u64::from(slot) << 8 | self as u64
    }

    pub(crate) fn from_token(token: u64) -> Option<(u32, Self)> {
        let source = match token & 0xff {
            0 => Self::Exit,
            1 => Self::First,
            2 => Self::Second,
            3 => Self::Stdin,
            _ => return None,
        };
        Some((u32::try_from(token >> 8).ok()?, source))
    }
}

impl Process {
    /// Creates the process of a new child. Resets the slot's shared state.
    pub(crate) fn new(slot: u32, child: Child, start: PreparedStart, cx: &mut SessionContext) -> io::Result<Self> {
        let PreparedStart { spec, group, is_confined } = start;
        cx.control.reset_slot(slot);
        let after = |ms: Option<u64>| ms.map(|ms| ms.saturating_mul(1_000_000));
        let idle = after(spec.idle_timeout_ms).map(|ns| (ns, cx.now_ns.saturating_add(ns)));
        let is_tty = child.pty().is_some();
        let pid = child.pid().as_raw_nonzero().get().unsigned_abs();
        let mut process = Self {
            is_tty,
            phase: ProcessPhase::Running,
            outputs: [
                ChildOutput::new(if is_tty { OutputStream::Pty } else { OutputStream::Stdout }, true),
                ChildOutput::new(OutputStream::Stderr, !is_tty),
            ],
            input: ChildStdin::new(child.stdin().is_some()),
            overflow: spec.overflow,
            cap_bytes: spec.cap_bytes,
            deadlines: ProcessDeadlines {
                timeout_at: after(spec.timeout_ms).map(|ns| cx.now_ns.saturating_add(ns)),
                idle,
                ..ProcessDeadlines::default()
            },
            is_confined,
            child: Some(child),
            group,
            ..Self::closed(slot, pid, LogWriter::new(slot), spec.meta)
        };
        cx.has_new_deadline |= process.deadline_ns().is_some();
        cx.is_manifest_stale = true;
        match process.watch_exit(cx).and_then(|()| process.watch(cx)) {
            Ok(()) => Ok(process),
            Err(error) => {
                // Dropping the child kills it. The control group is reused or removed once it is empty.
                cx.released_cgroups.extend(process.group.take());
                Err(error)
            }
        }
    }

    /// Restores a closed process of an earlier holder, with its whole log on disk.
    pub(crate) fn restore(entry: ManifestEntry, writer: LogWriter) -> Self {
        Self { is_restored: true, ..Self::closed(entry.slot, entry.pid, writer, entry.meta) }
    }

    /// A process without a child and without open streams.
    fn closed(slot: u32, pid: u32, writer: LogWriter, meta: Vec<u8>) -> Self {
        Self {
            slot,
            pid,
            is_tty: false,
            child: None,
            group: None,
            phase: ProcessPhase::Closed,
            writer,
            outputs: [ChildOutput::new(OutputStream::Stdout, false), ChildOutput::new(OutputStream::Stderr, false)],
            input: ChildStdin::new(false),
            exit_interest: PollInterest::default(),
            paused: None,
            overflow: OverflowPolicy::default(),
            followed_seq: 0,
            cap_bytes: SEGMENT_BYTES as u64,
            deadlines: ProcessDeadlines::default(),
            killed: None,
            is_kill_due: false,
            is_confined: false,
            was_sigterm_sent: false,
            is_restored: false,
            meta: meta.into_boxed_slice(),
        }
    }

    /// The record that a new controller gets.
    pub(crate) fn info(&self) -> ProcessInfo {
        ProcessInfo {
            slot: self.slot,
            pid: self.pid,
            tty: self.is_tty,
            stdin_open: self.phase == ProcessPhase::Running && self.input.is_open,
            running: self.is_unreaped(),
            cap_bytes: self.cap_bytes,
            overflow: self.overflow,
            meta: self.meta.to_vec(),
        }
    }

    /// The manifest entry of this process. The log position comes from shared memory, which the server can overwrite.
    /// That is safe because this holder bases no decision on it. Only a later server or holder reads it.
    pub(crate) fn manifest_entry(&self, cx: &SessionContext) -> ManifestEntry {
        ManifestEntry { slot: self.slot, pid: self.pid, status: cx.control.status(self.slot), meta: self.meta.to_vec() }
    }

    /// The opaque record of the process's start.
    pub(crate) fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// The pidfd of the leader, if the leader has not been reaped.
    pub(crate) fn pidfd(&self) -> Option<Arc<OwnedFd>> {
        self.child.as_ref().filter(|_| self.is_unreaped()).and_then(Child::shared_pidfd)
    }

    /// Whether the leader has not been reaped, so that its pid is not reused.
    pub(crate) fn is_unreaped(&self) -> bool {
        matches!(self.phase, ProcessPhase::Running | ProcessPhase::Draining)
    }

    /// How many segments this process may have in memory, at least one.
    pub(crate) fn cap_segments(&self) -> usize {
        let segments = self.cap_bytes.div_ceil(SEGMENT_BYTES as u64).max(1);
        usize::try_from(segments).unwrap_or(usize::MAX)
    }

    /// Announces new segments to the controller.
    pub(crate) fn announce(&mut self, cx: &mut SessionContext) {
        while let Some(info) = self.writer.take_fresh() {
            let fd = self.writer.segment(info.id).map(Segment::shared_fd);
            announce(self.slot, &info, fd, cx);
        }
    }

    /// Updates which events of the streams are watched.
    pub(crate) fn watch(&mut self, cx: &SessionContext) -> io::Result<()> {
        let Some(child) = &self.child else { return Ok(()) };
        let waits_for_child = self.input.waits_for_child();
        // After a shortage of memory or fds, nothing can be read before the retry, not even into the reserve. A watched
        // HUP would be reported continuously.
        let is_short = self.paused.is_some() && self.deadlines.retry_at.is_some();
        for (output, source) in self.outputs.iter_mut().zip([ProcessFd::First, ProcessFd::Second]) {
            let Some(fd) = stream_fd(child, output.stream).filter(|_| output.is_open) else { continue };
            let mut events = EventFlags::empty();
            // The tail is finite, so it is read into the reserve even while the output is paused.
            events.set(EventFlags::IN, self.paused.is_none() || (output.tail > 0 && !is_short));
            // HUP means that no writer is left, so the rest is finite, too. epoll reports HUP for every registered fd;
            // here the flag keeps the fd registered.
            events.set(EventFlags::HUP, self.paused.is_some() && !is_short);
            events.set(EventFlags::OUT, self.is_tty && waits_for_child);
            cx.children.set(&mut output.interest, fd, source.token(self.slot), events)?;
        }
        if let Some(fd) = child.stdin().filter(|_| !self.is_tty) {
            let events = if waits_for_child { EventFlags::OUT } else { EventFlags::empty() };
            cx.children.set(&mut self.input.interest, fd, ProcessFd::Stdin.token(self.slot), events)?;
        }
        Ok(())
    }

    /// Watches for the leader's exit while the leader runs. Afterwards, unregisters the exit fd, which stays ready.
    pub(crate) fn watch_exit(&mut self, cx: &SessionContext) -> io::Result<()> {
        let Some(child) = &self.child else { return Ok(()) };
        let events = if self.phase == ProcessPhase::Running { EventFlags::IN } else { EventFlags::empty() };
        cx.children.set(&mut self.exit_interest, child.exit_fd(), ProcessFd::Exit.token(self.slot), events)
    }

    /// The earliest deadline.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        if self.phase == ProcessPhase::Closed {
            return None;
        }
        let idle = self.deadlines.idle.filter(|_| self.paused.is_none()).map(|(_, at)| at);
        [self.deadlines.timeout_at, idle, self.deadlines.kill_at, self.deadlines.retry_at].into_iter().flatten().min()
    }

    /// Releases the log and its files.
    pub(crate) fn forget(self, cx: &mut SessionContext) {
        cx.released_cgroups.extend(self.group);
        cx.is_manifest_stale = true;
        for (info, memory) in self.writer.into_segments() {
            match memory {
                Some(segment) => cx.dispose(segment),
                None => cx.spill.unlink(self.slot, info.id),
            }
        }
    }
}

impl ChildOutput {
    fn new(stream: OutputStream, is_open: bool) -> Self {
        Self { stream, is_open, tail: 0, interest: PollInterest::default() }
    }
}

/// Announces one segment to the controller and records that it is lent.
pub(crate) fn announce(slot: u32, info: &SegmentInfo, fd: Option<Arc<OwnedFd>>, cx: &mut SessionContext) {
    if !cx.controller.is_connected() {
        return;
    }
    if fd.is_some() {
        cx.lent_segments.lend(info.id);
    }
    let message = FromHolder::Segment(AnnouncedSegment {
        slot,
        id: info.id,
        base_seq: info.base_seq,
        base_offset: info.base_offset,
        on_disk: fd.is_none(),
        sealed: info.sealed,
    });
    cx.send_with(&message, fd);
}

/// The holder's end of a stream.
pub(crate) fn stream_fd(child: &Child, stream: OutputStream) -> Option<BorrowedFd<'_>> {
    match stream {
        OutputStream::Stdout => child.stdout(),
        OutputStream::Stderr => child.stderr(),
        OutputStream::Pty => child.pty(),
    }
}

/// Translates a start request into a `Spawn`.
pub(crate) fn build_spawn(
    spec: &StartSpec,
    nofile: Option<(u64, u64)>,
    confine: &ChildRestrictions,
    die_with_holder: bool,
) -> Result<Spawn, SpawnError> {
    let text = |what, bytes: &[u8]| CString::new(bytes).map_err(|_nul| SpawnError::NulByte { what });
    let texts = |what, list: &[Vec<u8>]| list.iter().map(|item| text(what, item)).collect::<Result<Vec<_>, _>>();
    let mut spawn = Spawn::new(texts("argv", &spec.argv)?);
    spawn.arg0 = spec.arg0.as_deref().map(|arg0| text("arg0", arg0)).transpose()?;
    spawn.env = texts("env", &spec.env)?;
    spawn.cwd = text("cwd", &spec.cwd)?;
    let stdin = if spec.pipe_stdin { StdinMode::Open } else { StdinMode::Null };
    spawn.stdio = spec.tty.map_or(StdioMode::Pipe { stdin }, StdioMode::Pty);
    spawn.nofile = nofile;
    spawn.die_with_parent = die_with_holder;
    spawn.user = confine.user.clone();
    spawn.limits.clone_from(&confine.rlimits);
    Ok(spawn)
}

impl From<SpawnError> for StartFailure {
    fn from(error: SpawnError) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        let (stage, detail) = match error {
            SpawnError::EmptyArgv => (StartStage::Input, b"argv".to_vec()),
            SpawnError::NulByte { what } => (StartStage::Input, what.as_bytes().to_vec()),
            SpawnError::BadDescriptor { number } => (StartStage::Input, number.to_string().into_bytes()),
            SpawnError::Cwd { path, .. } => (StartStage::Cwd, path.into_bytes()),
            SpawnError::Exec { program, .. } => (StartStage::Exec, program.into_bytes()),
            SpawnError::Setup { stage: SpawnStage::Sandbox, .. } => (StartStage::Sandbox, Vec::new()),
            SpawnError::Resources { what, .. } => (StartStage::Resources, what.as_bytes().to_vec()),
            other => (StartStage::Resources, other.to_string().into_bytes()),
        };
        Self { stage, errno, detail }
    }
}

impl StartFailure {
    /// No slot or no fd is left for another process. Both are reported as EMFILE.
    pub(crate) fn exhausted(what: &str) -> Self {
        Self::io(what, &rustix::io::Errno::MFILE.into())
    }

    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        Self { stage: StartStage::Resources, errno, detail: what.as_bytes().to_vec() }
    }
}
