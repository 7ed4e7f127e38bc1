//! The end of a process: exit, close, kill, and the deadlines that lead to them.
//!
//! Guarantees the order of the last events: output that the streams held when the leader died is in the log before
//! `Exited`, and `Closed` is the last event. Every segment keeps room for both events, and the tail of the output has a
//! reserve ([`output`](crate::output)), so neither a quota nor a full disk delays them.
//!
//! Failure paths:
//! - A kill that did not reach all processes is repeated after a delay.
//! - An event that cannot be appended for lack of memory is retried after a delay.
//! - A dead leader that is being traced is retried until its tracer has waited for it.
//! - A leader that other code has reaped is reported with code -1.

use std::os::fd::BorrowedFd;

use exec_server_log::{BlockReason, Exit, ExitCause, LimitsHit, OutputStream};
use exec_server_process::{Child, ChildExit};
use rustix::io::Errno;

use crate::{
    cgroup::ProcessCgroup,
    context::SessionContext,
    control::CommandStatus,
    denial,
    poller::EventFlags,
    process::{Process, ProcessFd, ProcessPhase, stream_fd},
    stream_holders,
};

/// Upper bound for the output read from a terminal after the leader's death: more than a terminal can hold (64 KiB each
/// way). Reading stops earlier, when the terminal is empty. A bound is needed because the kernel does not report how
/// much a terminal holds, and a grandchild that floods it must not delay `Exited` without limit.
const PTY_TAIL_BYTES: u64 = 256 * 1024;

/// Delay before a kill is repeated because its last walk still found new processes, or because other processes held the
/// streams.
const KILL_AGAIN_NS: u64 = 50_000_000;

/// Delay before a dead leader that is being traced is waited for again: its parent can reap it only after its tracer
/// has waited for it.
const REAP_AGAIN_NS: u64 = 50_000_000;

/// Delay before a kill that the kernel refused is repeated.
const KILL_RETRY_NS: u64 = 1_000_000_000;

impl Process {
    /// Handles the leader's exit, which its exit fd has reported.
    pub(crate) fn handle_exit(&mut self, cx: &mut SessionContext) {
        if self.phase == ProcessPhase::Running {
            self.phase = ProcessPhase::Draining;
            self.measure_tails();
        }
        if self.watch_exit(cx).is_err() {
            self.retry_later(cx);
        }
        for index in 0..self.outputs.len() {
            self.read(index, true, cx);
        }
        self.settle(cx);
    }

    /// Closes a stream that has ended.
    pub(crate) fn end_stream(&mut self, index: usize, cx: &mut SessionContext) {
        let (Some(output), Some(child)) = (self.outputs.get_mut(index), &mut self.child) else { return };
        output.is_open = false;
        output.tail = 0;
        if let Some(fd) = stream_fd(child, output.stream) {
            // Unregister the fd before it is closed, because another stream may get its number. The token does not
            // matter here. An error means that the fd is not registered.
            let token = ProcessFd::First.token(self.slot);
            cx.children.set(&mut output.interest, fd, token, EventFlags::empty()).ok();
        }
        match output.stream {
            OutputStream::Stdout => drop(child.take_stdout()),
            OutputStream::Stderr => drop(child.take_stderr()),
            // The terminal stays open until the process closes, so that it can still be resized.
            OutputStream::Pty => {}
        }
    }

    /// Whether the tail has been read, so that `Exited` can be appended.
    pub(crate) fn is_drained(&self) -> bool {
        self.phase == ProcessPhase::Draining && self.outputs.iter().all(|output| output.tail == 0)
    }

    /// Takes every step of the end that is possible now, and updates which events are watched.
    pub(crate) fn settle(&mut self, cx: &mut SessionContext) {
        if self.is_drained() {
            self.finish_exit(cx);
        }
        if self.phase == ProcessPhase::Exited && self.outputs.iter().all(|output| !output.is_open) {
            self.finish_close(cx);
        }
        // Announce the segment after the events are appended, so that the server finds `Exited` and `Closed` in it.
        self.announce(cx);
        if self.watch(cx).is_err() {
            self.retry_later(cx);
        }
    }

    /// Reaps the leader and appends `Exited`. The memory cap does not apply: the event is one small record.
    pub(crate) fn finish_exit(&mut self, cx: &mut SessionContext) {
        let Some(child) = &mut self.child else { return };
        let exited = match child.try_wait() {
            Ok(Some(exited)) => exited,
            // A tracer has not waited for the leader yet. The exit fd cannot report that wait: the fd is ready already.
            Ok(None) => return self.retry_in(REAP_AGAIN_NS, cx),
            // Other code has reaped the leader.
            Err(_) => ChildExit { code: -1, signal: None, user_ms: 0, system_ms: 0, max_rss_bytes: 0 },
        };
        let exit = self.build_exit(exited);
        let Ok(is_due) = self.writer.append_exited(&cx.control, &mut cx.pool, exit) else {
            return self.retry_later(cx);
        };
        self.phase = ProcessPhase::Exited;
        cx.is_manifest_stale = true;
        cx.request_wake(is_due);
        self.close_input(cx);
        if let Some(child) = &mut self.child {
            child.release_slave();
        }
        if self.killed.is_some() {
            // If the process has not closed at this deadline, a process outside its tree still holds the streams. The
            // kill must reach that process as well, so kill again.
            self.deadlines.kill_at.get_or_insert(cx.now_ns.saturating_add(KILL_AGAIN_NS));
            cx.has_new_deadline = true;
        }
    }

    fn finish_close(&mut self, cx: &mut SessionContext) {
        // Clear the reason before `Closed` is published, so that no reader sees a closed process that is still blocked.
        cx.control.set_blocked(self.slot, BlockReason::No);
        let Ok(is_due) = self.writer.append_closed(&cx.control, &mut cx.pool) else {
            return self.retry_later(cx);
        };
        self.phase = ProcessPhase::Closed;
        cx.is_manifest_stale = true;
        self.paused = None;
        cx.request_wake(is_due);
        self.child = None;
        cx.released_cgroups.extend(self.group.take());
    }

    /// Ends the process on request. Returns the state in which the request found it.
    pub(crate) fn terminate(&mut self, grace_ms: Option<u32>, cx: &mut SessionContext) -> CommandStatus {
        let found = match self.phase {
            ProcessPhase::Running => CommandStatus::Ok,
            ProcessPhase::Draining | ProcessPhase::Exited if self.outputs.iter().any(|output| output.is_open) => {
                CommandStatus::StreamsHeld
            }
            ProcessPhase::Draining | ProcessPhase::Exited | ProcessPhase::Closed => CommandStatus::NotRunning,
        };
        match grace_ms {
            Some(ms) if self.phase == ProcessPhase::Running => self.terminate_gracefully(ms, cx),
            _ => self.kill(ExitCause::Terminated, cx),
        }
        found
    }

    /// Sends a signal to the process group.
    pub(crate) fn signal(&mut self, signal: i32) -> CommandStatus {
        let Some(child) = self.child.as_ref().filter(|_| self.phase == ProcessPhase::Running) else {
            return CommandStatus::NotRunning;
        };
        match child.signal_group(signal) {
            Ok(()) => CommandStatus::Ok,
            Err(error) => match error.raw_os_error() {
                Some(errno) if errno == Errno::SRCH.raw_os_error() => CommandStatus::NotRunning,
                other => CommandStatus::Failed(other.unwrap_or(0)),
            },
        }
    }

    /// Schedules a kill of everything that belongs to the process. [`kill_due`] runs at the end of this turn, for all
    /// processes at once, because the expensive part is one walk over all processes of the host.
    pub(crate) fn kill(&mut self, cause: ExitCause, cx: &mut SessionContext) {
        if self.phase == ProcessPhase::Running {
            self.killed.get_or_insert(cause);
        }
        // A closed process has no child. Descendants that still run do not hold its streams, and live until the session
        // ends.
        self.is_kill_due = self.child.is_some();
        cx.has_kills |= self.is_kill_due;
    }

    /// The open streams of a dead leader, by which the processes that outlived it are found. Empty while the leader
    /// runs: its tree is found without a search through the fds of every process.
    fn held_streams(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let is_leader_dead = self.phase != ProcessPhase::Running;
        let held = self.outputs.iter().filter(move |output| output.is_open && is_leader_dead);
        held.filter_map(|output| stream_fd(self.child.as_ref()?, output.stream))
    }

    /// Acts on the deadlines that have passed.
    pub(crate) fn handle_deadline(&mut self, cx: &mut SessionContext) {
        let is_due = |at: u64| cx.now_ns >= at;
        if self.phase == ProcessPhase::Closed || !self.deadline_ns().is_some_and(is_due) {
            return;
        }
        let deadlines = &mut self.deadlines;
        let is_timeout = deadlines.timeout_at.take_if(|at| is_due(*at)).is_some();
        let is_output_read = self.paused.is_none();
        let is_idle = deadlines.idle.take_if(|(_, at)| is_output_read && is_due(*at)).is_some();
        let is_kill_due = deadlines.kill_at.take_if(|at| is_due(*at)).is_some();
        let is_retry = deadlines.retry_at.take_if(|at| is_due(*at)).is_some();
        if is_timeout {
            self.kill(ExitCause::Timeout, cx);
        } else if is_idle {
            self.kill(ExitCause::IdleTimeout, cx);
        } else if is_kill_due {
            self.kill(ExitCause::Terminated, cx);
        }
        if is_retry {
            self.reconsider(cx);
            self.settle(cx);
        }
    }

    /// Sends SIGTERM now, and kills when the grace period is over. A repeated request can only shorten the grace
    /// period.
    fn terminate_gracefully(&mut self, grace_ms: u32, cx: &mut SessionContext) {
        let at = cx.now_ns.saturating_add(u64::from(grace_ms) * 1_000_000);
        self.deadlines.kill_at = Some(self.deadlines.kill_at.map_or(at, |before| before.min(at)));
        cx.has_new_deadline = true;
        self.killed.get_or_insert(ExitCause::Terminated);
        if !std::mem::replace(&mut self.was_sigterm_sent, true)
            && let Some(child) = &self.child
        {
            // If SIGTERM cannot be sent, the kill at the end of the grace period still happens.
            child.signal_group(libc::SIGTERM).ok();
        }
    }

    fn build_exit(&self, exited: ChildExit) -> Exit {
        let hit = self.group.as_ref().map_or_else(LimitsHit::default, ProcessCgroup::limits_hit);
        let was_killed = exited.signal.map(i32::from) == Some(libc::SIGKILL);
        let cause = match (self.killed, exited.signal) {
            (None, Some(_)) if was_killed && hit.memory => ExitCause::OutOfMemory,
            (Some(cause), Some(_)) => cause,
            (Some(cause), None) if self.was_sigterm_sent => cause,
            (None, Some(_)) => ExitCause::Signal,
            (Some(_) | None, None) => ExitCause::Exit,
        };
        Exit {
            code: exited.code,
            signal: exited.signal,
            cause,
            user_ms: exited.user_ms,
            system_ms: exited.system_ms,
            max_rss_bytes: exited.max_rss_bytes,
            hit,
            is_denied: self.is_confined && denial::is_denial_likely(&exited, || self.last_output()),
        }
    }

    /// The last output of each stream.
    fn last_output(&self) -> impl Iterator<Item = Vec<u8>> {
        self.outputs.iter().map(|output| self.writer.recent_output(output.stream))
    }

    /// Records how many bytes each stream holds at the leader's death.
    fn measure_tails(&mut self) {
        let Some(child) = &self.child else { return };
        for output in self.outputs.iter_mut().filter(|output| output.is_open) {
            output.tail = match output.stream {
                OutputStream::Pty => PTY_TAIL_BYTES,
                OutputStream::Stdout | OutputStream::Stderr => {
                    stream_fd(child, output.stream).map_or(0, |fd| rustix::io::ioctl_fionread(fd).unwrap_or(0))
                }
            };
        }
    }
}

/// Kills all processes that are due. Where a process has a control group, one write kills everything in it, including
/// processes that left the tree. For the other processes, and for those whose leader is dead, kills the process trees.
/// An exclusive holder also kills every descendant that holds a stream of a dead leader.
pub(crate) fn kill_due<'a>(processes: impl Iterator<Item = &'a mut Process>, cx: &mut SessionContext) {
    let mut due: Vec<&mut Process> = processes.filter(|process| process.is_kill_due).collect();
    // Kill every control group. That is enough only while the leader runs: a dead leader's streams may be held by a
    // process of another group that was passed their fds.
    let was_enough = |process: &&mut Process| {
        process.group.as_ref().is_some_and(ProcessCgroup::kill) && process.phase == ProcessPhase::Running
    };
    let (grouped, walked): (Vec<&mut Process>, Vec<&mut Process>) = due.drain(..).partition(was_enough);
    let killed = Child::kill_all(walked.iter().filter_map(|process| process.child.as_ref()));
    let held = if cx.is_exclusive {
        stream_holders::kill_processes_holding(walked.iter().flat_map(|process| process.held_streams()))
    } else {
        0
    };
    let again_at = match killed {
        Ok(killed) if killed.complete && held == 0 => None,
        // A process that was found may have forked before it died, so look again later.
        Ok(_) => Some(cx.now_ns.saturating_add(KILL_AGAIN_NS)),
        Err(_) => Some(cx.now_ns.saturating_add(KILL_RETRY_NS)),
    };
    for process in walked {
        process.is_kill_due = false;
        process.deadlines.kill_at = again_at;
    }
    for process in grouped {
        process.is_kill_due = false;
        process.deadlines.kill_at = None;
    }
    cx.has_new_deadline = true;
}
