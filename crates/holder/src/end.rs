//! The end of a process: exit, close, kill, and the deadlines that lead to it.
//!
//! Owns the order at the end: what the streams held when the leader died is in the log before `Exited`, and `Closed` is
//! the last event. Both have room in every segment, and the tail has a reserve ([`output`](crate::output)), so that neither a quota nor a full disk delays them. It does not read streams itself and does not know the session.
//!
//! Failure paths: a kill that did not reach everybody is repeated by the clock; an event that finds no memory likewise, and a dead
//! leader that whoever traces it has not waited for. A leader that somebody else reaped is reported with code -1, not waited for.

use std::os::fd::BorrowedFd;

use exec_server_log::{Blocked, Cause, Exit, Hit, Stream};
use exec_server_process::{Child, Exited};
use rustix::io::Errno;

use crate::cgroup::Group;
use crate::context::Context;
use crate::denial;
use crate::grip;
use crate::poller::EventFlags;
use crate::process::{Phase, Process, Source, stream_fd};
use crate::wire::Status;

/// Above what a terminal can hold (64 KiB each way): reading ends earlier, when it is empty. A number is needed because
/// what a terminal holds cannot be asked for, and a flooding grandchild must not hold up `Exited` for ever.
const PTY_TAIL_BYTES: u64 = 256 * 1024;

/// When a kill is looked at again that found new processes to its last round, or others who held the streams.
const KILL_AGAIN_NS: u64 = 50_000_000;

/// When a dead leader is asked for again that somebody traces: it is ours only when its tracer has waited for it.
const REAP_AGAIN_NS: u64 = 50_000_000;

/// When a kill is repeated that the system refused.
const KILL_RETRY_NS: u64 = 1_000_000_000;

impl Process {
    /// The leader's exit descriptor is ready.
    pub(crate) fn handle_exit(&mut self, cx: &mut Context) {
        if self.phase == Phase::Running {
            self.phase = Phase::Draining;
            self.measure_tails();
        }
        self.unwatch_exit(cx);
        for index in 0..self.outputs.len() {
            self.read(index, cx);
        }
        self.settle(cx);
    }

    /// A stream has ended.
    pub(crate) fn end_stream(&mut self, index: usize, cx: &mut Context) {
        let (Some(output), Some(child)) = (self.outputs.get_mut(index), &mut self.child) else { return };
        (output.is_open, output.tail) = (false, 0);
        if let Some(fd) = stream_fd(child, output.stream) {
            // Before it is closed: the poller must not name a descriptor that another stream may get. A failure means
            // that it is out already.
            let token = Source::First.token(self.slot);
            cx.children.set(&mut output.interest, fd, token, EventFlags::empty()).ok();
        }
        match output.stream {
            Stream::Stdout => drop(child.take_stdout()),
            Stream::Stderr => drop(child.take_stderr()),
            // Kept until the close: a size may still be set.
            Stream::Pty => {}
        }
    }

    /// Whether the tail has been read and the exit can be told.
    pub(crate) fn is_drained(&self) -> bool {
        self.phase == Phase::Draining && self.outputs.iter().all(|output| output.tail == 0)
    }

    /// Takes every step of the end that is possible now, and watches what is left to watch.
    pub(crate) fn settle(&mut self, cx: &mut Context) {
        if self.is_drained() {
            self.finish_exit(cx);
        }
        if self.phase == Phase::Exited && self.outputs.iter().all(|output| !output.is_open) {
            self.finish_close(cx);
        }
        // When all is appended: whoever is told of the segment finds the exit and the close in it.
        self.announce(cx);
        if self.watch(cx).is_err() {
            self.retry_later(cx);
        }
    }

    /// Reaps the leader and appends `Exited`. Not bound by the cap: it is one small record.
    pub(crate) fn finish_exit(&mut self, cx: &mut Context) {
        let Some(child) = &mut self.child else { return };
        let exited = match child.try_wait() {
            Ok(Some(exited)) => exited,
            // Not by its descriptor, which is ready all the time.
            Ok(None) => return self.retry_in(REAP_AGAIN_NS, cx),
            Err(_) => Exited { code: -1, signal: None, user_ms: 0, system_ms: 0, max_rss_bytes: 0 },
        };
        let exit = self.exit_of(exited);
        let Ok(is_due) = self.writer.append_exited(&cx.control, &mut cx.pool, exit) else {
            return self.retry_later(cx);
        };
        self.phase = Phase::Exited;
        cx.is_roll_stale = true;
        cx.wake(is_due);
        self.close_input(cx);
        if let Some(child) = &mut self.child {
            child.release_slave();
        }
        if self.killed.is_some() {
            // Unless it closes before: somebody outside its tree holds the streams, and was meant too.
            self.timing.kill_at.get_or_insert(cx.now_ns.saturating_add(KILL_AGAIN_NS));
            cx.has_new_deadline = true;
        }
    }

    fn finish_close(&mut self, cx: &mut Context) {
        // Before the close is published: whoever sees that must not see a closed process that waits.
        cx.control.set_blocked(self.slot, Blocked::No);
        let Ok(is_due) = self.writer.append_closed(&cx.control, &mut cx.pool) else {
            return self.retry_later(cx);
        };
        self.phase = Phase::Closed;
        cx.is_roll_stale = true;
        self.paused = None;
        cx.wake(is_due);
        self.child = None;
        cx.left_groups.extend(self.group.take());
    }

    /// Ends the process as asked; the answer says what was found.
    pub(crate) fn terminate(&mut self, grace_ms: Option<u32>, cx: &mut Context) -> Status {
        let found = match self.phase {
            Phase::Running => Status::Ok,
            Phase::Draining | Phase::Exited if self.outputs.iter().any(|output| output.is_open) => Status::StreamsHeld,
            Phase::Draining | Phase::Exited | Phase::Closed => Status::NotRunning,
        };
        match grace_ms {
            Some(ms) if self.phase == Phase::Running => self.ask(ms, cx),
            _ => self.kill(Cause::Terminated, cx),
        }
        found
    }

    /// Signals the process group.
    pub(crate) fn signal(&mut self, signal: i32) -> Status {
        let Some(child) = self.child.as_ref().filter(|_| self.phase == Phase::Running) else {
            return Status::NotRunning;
        };
        match child.signal_group(signal) {
            Ok(()) => Status::Ok,
            Err(error) => match error.raw_os_error() {
                Some(errno) if errno == Errno::SRCH.raw_os_error() => Status::NotRunning,
                other => Status::Failed(other.unwrap_or(0)),
            },
        }
    }

    /// Has everything that belongs to the process killed at the end of this turn, together with all others that are due: what a kill
    /// costs is the walk over all processes of the host.
    pub(crate) fn kill(&mut self, cause: Cause, cx: &mut Context) {
        if self.phase == Phase::Running {
            self.killed.get_or_insert(cause);
        }
        // One that has closed left nothing that holds its streams; what runs on in its group lives until the session ends.
        self.is_kill_due = self.child.is_some();
        cx.has_kills |= self.is_kill_due;
    }

    /// The streams by which those are found that outlived the leader. A living tree is found without looking into every process.
    fn held_streams(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let is_wanted = self.phase != Phase::Running;
        let open = self.outputs.iter().filter(move |output| output.is_open && is_wanted);
        open.filter_map(|output| stream_fd(self.child.as_ref()?, output.stream))
    }

    /// Does what is due by now.
    pub(crate) fn handle_deadline(&mut self, cx: &mut Context) {
        let is_due = |at: u64| cx.now_ns >= at;
        if self.phase == Phase::Closed || !self.deadline_ns().is_some_and(is_due) {
            return;
        }
        let timing = &mut self.timing;
        let is_timeout = timing.timeout_at.take_if(|at| is_due(*at)).is_some();
        let is_heard = self.paused.is_none();
        let is_idle = timing.idle.take_if(|(_, at)| is_heard && is_due(*at)).is_some();
        let is_over = timing.kill_at.take_if(|at| is_due(*at)).is_some();
        let is_retry = timing.retry_at.take_if(|at| is_due(*at)).is_some();
        if is_timeout {
            self.kill(Cause::Timeout, cx);
        } else if is_idle {
            self.kill(Cause::IdleTimeout, cx);
        } else if is_over {
            self.kill(Cause::Terminated, cx);
        }
        if is_retry {
            self.reconsider(cx);
            self.settle(cx);
        }
    }

    /// SIGTERM now, the kill when the grace is over. Asking again changes nothing but can shorten the grace.
    fn ask(&mut self, grace_ms: u32, cx: &mut Context) {
        let at = cx.now_ns.saturating_add(u64::from(grace_ms) * 1_000_000);
        self.timing.kill_at = Some(self.timing.kill_at.map_or(at, |before| before.min(at)));
        cx.has_new_deadline = true;
        self.killed.get_or_insert(Cause::Terminated);
        if !std::mem::replace(&mut self.was_asked, true)
            && let Some(child) = &self.child
        {
            // A group that cannot be asked is killed when the grace is over.
            child.signal_group(libc::SIGTERM).ok();
        }
    }

    fn exit_of(&self, exited: Exited) -> Exit {
        let hit = self.group.as_ref().map_or_else(Hit::default, Group::hit);
        let was_killed = exited.signal.map(i32::from) == Some(libc::SIGKILL);
        let cause = match (self.killed, exited.signal) {
            (None, Some(_)) if was_killed && hit.memory => Cause::OutOfMemory,
            (Some(cause), Some(_)) => cause,
            (Some(cause), None) if self.was_asked => cause,
            (None, Some(_)) => Cause::Signal,
            (Some(_) | None, None) => Cause::Exit,
        };
        Exit {
            code: exited.code,
            signal: exited.signal,
            cause,
            user_ms: exited.user_ms,
            system_ms: exited.system_ms,
            max_rss_bytes: exited.max_rss_bytes,
            hit,
            is_denied: self.is_confined && denial::is_likely(&exited, || self.last_words()),
        }
    }

    /// What it wrote last, a stream at a time.
    fn last_words(&self) -> impl Iterator<Item = Vec<u8>> {
        self.outputs.iter().map(|output| self.writer.recent_output(output.stream))
    }

    /// Notes what each stream holds at the leader's death.
    fn measure_tails(&mut self) {
        let Some(child) = &self.child else { return };
        for output in self.outputs.iter_mut().filter(|output| output.is_open) {
            output.tail = match output.stream {
                Stream::Pty => PTY_TAIL_BYTES,
                Stream::Stdout | Stream::Stderr => {
                    stream_fd(child, output.stream).map_or(0, |fd| rustix::io::ioctl_fionread(fd).unwrap_or(0))
                }
            };
        }
    }

    fn unwatch_exit(&mut self, cx: &mut Context) {
        let fd = self.child.as_ref().map(Child::exit_fd);
        let token = Source::Exit.token(self.slot);
        if fd.is_some_and(|fd| cx.children.set(&mut self.exit_interest, fd, token, EventFlags::empty()).is_err()) {
            self.retry_later(cx);
        }
    }
}

/// Kills all processes that are due. A group dies in one step, with everybody who ever left the tree; where there is none, the
/// trees, and whoever else holds their streams.
pub(crate) fn kill_due<'a>(processes: impl Iterator<Item = &'a mut Process>, cx: &mut Context) {
    let mut due: Vec<&mut Process> = processes.filter(|process| process.is_kill_due).collect();
    // A leader that is dead may have streams in the hands of somebody who was given them, in another group: look for those, too.
    let is_done =
        |process: &&mut Process| process.group.as_ref().is_some_and(Group::kill) && process.phase == Phase::Running;
    let (grouped, walked): (Vec<&mut Process>, Vec<&mut Process>) = due.drain(..).partition(is_done);
    let killed = Child::kill_all(walked.iter().filter_map(|process| process.child.as_ref()));
    let held =
        if cx.is_exclusive { grip::kill_holders(walked.iter().flat_map(|process| process.held_streams())) } else { 0 };
    let again_at = match killed {
        // Whoever was found may have forked before it died: look again.
        Ok(killed) if killed.complete && held == 0 => None,
        Ok(_) => Some(cx.now_ns.saturating_add(KILL_AGAIN_NS)),
        Err(_) => Some(cx.now_ns.saturating_add(KILL_RETRY_NS)),
    };
    for process in walked {
        process.is_kill_due = false;
        process.timing.kill_at = again_at;
    }
    for process in grouped {
        process.is_kill_due = false;
        process.timing.kill_at = None;
    }
    cx.has_new_deadline = true;
}
