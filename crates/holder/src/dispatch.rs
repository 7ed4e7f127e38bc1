//! What each command of the controller does.
//!
//! Owns the way from a message to the process it means, and the start of a process. It does not know sockets.
//!
//! Failure paths: a message that is none, or one that has no place here, costs the controller its connection and the
//! session nothing.

use std::os::fd::OwnedFd;

use exec_server_log::SLOTS;
use exec_server_process::Size;
use exec_server_sandbox::Kit;
use exec_server_session::Attach;
use rustix::process::Resource;

use crate::Spawner;
use crate::ending::Reason;
use crate::holder::{Holder, ttl};
use crate::input::Part;
use crate::process::{self, Phase, Process, StartFailure};
use crate::wire::{FromHolder, StartSpec, Status, ToHolder, WriteStatus};

/// Descriptors that must be free for a start: three pipes with both ends, the pidfd, two groups, a segment, and enough to live on:
/// what is left must do for a new controller, the disk and the reading of `/proc`. Less where the limit itself is small.
const FREE_FDS: u64 = 64;

impl<S: Spawner> Holder<S> {
    /// Obeys one message.
    pub(crate) fn dispatch(&mut self, message: &[u8], fds: Vec<OwnedFd>) {
        let Ok(message) = ToHolder::decode(message) else { return self.cx.controller.refuse() };
        match message {
            ToHolder::Hello { .. } => self.cx.controller.refuse(),
            ToHolder::Attach => self.attach(),
            ToHolder::Detach { ttl_ms } => {
                self.lease.set_ttl(ttl(ttl_ms));
                self.lease.handle_detach(self.cx.controller.epoch(), self.cx.now_ns);
                self.handle_attachment();
            }
            ToHolder::SetTtl { ttl_ms } => self.lease.set_ttl(ttl(ttl_ms)),
            ToHolder::Start { req, spec } => self.start(req, spec, None),
            ToHolder::StartConfined { req, kit, spec } => match Kit::from_parts(kit, fds) {
                Some(kit) => self.start(req, spec, Some(kit)),
                None => self.cx.controller.lose(),
            },
            ToHolder::Write { req, slot, key, total, offset, data } => {
                let part = Part { req: Some(req), key, total, offset, data: data.to_vec(), at: 0 };
                self.write(slot, part);
            }
            ToHolder::CloseStdin { req, slot } => match self.processes.get_mut(&slot) {
                Some(process) => process.handle_close_stdin(req, &mut self.cx),
                None => self.cx.done(Some(req), Status::UnknownProcess),
            },
            ToHolder::Signal { req, slot, signal } => self.act(req, slot, |process| process.signal(signal)),
            ToHolder::Resize { req, slot, rows, cols } => {
                self.act(req, slot, |process| resize(process, Size { rows, cols }));
            }
            ToHolder::Terminate { req, slot, grace_ms } => {
                let status = match self.processes.get_mut(&slot) {
                    Some(process) => process.terminate(grace_ms, &mut self.cx),
                    None => Status::UnknownProcess,
                };
                self.cx.done(Some(req), status);
            }
            ToHolder::Cap { slot, bytes } => {
                if let Some(process) = self.processes.get_mut(&slot) {
                    process.cap_bytes = bytes;
                    process.reconsider(&mut self.cx);
                }
            }
            ToHolder::Release { slot, segment } => {
                if let Some(process) = self.processes.get_mut(&slot) {
                    process.handle_release(segment, &mut self.cx);
                }
            }
            ToHolder::Return { segment } => self.cx.handle_return(segment),
            ToHolder::Forget { req, slot } => self.forget(req, slot),
            ToHolder::End { req } => self.end(Reason::Command { req }),
        }
    }

    pub(crate) fn attach(&mut self) {
        let epoch = self.cx.controller.epoch();
        // Refused only where the session has expired, which this turn will find out too.
        self.lease.handle_attach(epoch, Attach::TakeOver, self.cx.now_ns).ok();
        self.handle_attachment();
    }

    fn start(&mut self, req: u32, spec: StartSpec, sandbox: Option<Kit>) {
        match self.spawn(spec, sandbox) {
            Ok(process) => {
                let started = FromHolder::Started { req, slot: process.slot, pid: process.pid };
                self.cx.send_with(&started, process.pidfd());
                self.processes.insert(process.slot, process);
            }
            Err(StartFailure { stage, errno, detail }) => {
                self.cx.send(&FromHolder::StartFailed { req, stage, errno, detail });
            }
        }
    }

    fn spawn(&mut self, spec: StartSpec, sandbox: Option<Kit>) -> Result<Process, StartFailure> {
        // The lowest: the control block costs a page per 32 slots in use.
        let slot = (0..SLOTS).find(|slot| !self.processes.contains_key(slot));
        let slot = slot.ok_or_else(|| StartFailure::exhausted("slots"))?;
        if !has_free_fds(&self.cx) {
            return Err(StartFailure::exhausted("descriptors"));
        }
        let mut spawn = process::describe(&spec, self.nofile, &self.confine, self.cx.is_exclusive)?;
        let is_confined = sandbox.is_some();
        spawn.sandbox = sandbox;
        spawn.ignored = self.ignored;
        let group = self.cx.groups.take().map_err(|error| StartFailure::io("control group", &error))?;
        let child = match group.as_ref().map(|group| group.let_in(&mut spawn)).transpose() {
            Ok(_) => self.spawner.spawn(spawn).map_err(StartFailure::from),
            Err(error) => Err(StartFailure::io("control group", &error)),
        };
        match child {
            Ok(child) => Process::new(slot, child, (group, is_confined), spec, &mut self.cx)
                .map_err(|error| StartFailure::io("epoll", &error)),
            Err(failure) => {
                self.cx.left_groups.extend(group);
                Err(failure)
            }
        }
    }

    fn write(&mut self, slot: u32, part: Part) {
        match self.processes.get_mut(&slot) {
            Some(process) => process.handle_write(part, &mut self.cx),
            None => {
                if let Some(req) = part.req {
                    let status = WriteStatus::UnknownProcess;
                    self.cx.send(&FromHolder::Written { req, status, done: 0 });
                }
            }
        }
    }

    fn forget(&mut self, req: u32, slot: u32) {
        let status = match self.processes.get(&slot).map(|process| process.phase) {
            None => Status::UnknownProcess,
            Some(Phase::Closed) => Status::Ok,
            Some(Phase::Running | Phase::Draining | Phase::Exited) => Status::NotClosed,
        };
        if status == Status::Ok
            && let Some(process) = self.processes.remove(&slot)
        {
            process.forget(&mut self.cx);
        }
        self.cx.done(Some(req), status);
    }

    fn act(&mut self, req: u32, slot: u32, act: impl FnOnce(&mut Process) -> Status) {
        let status = self.processes.get_mut(&slot).map_or(Status::UnknownProcess, act);
        self.cx.done(Some(req), status);
    }
}

fn resize(process: &mut Process, size: Size) -> Status {
    match (&process.child, process.is_tty) {
        (_, false) => Status::NotATerminal,
        (None, true) => Status::NotRunning,
        (Some(child), true) => match child.resize(size) {
            Ok(()) => Status::Ok,
            Err(error) => Status::Failed(error.raw_os_error().unwrap_or(0)),
        },
    }
}

/// Whether enough descriptors are left. The lowest free number tells: the kernel gives out the lowest first.
fn has_free_fds(cx: &crate::context::Context) -> bool {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = rustix::io::fcntl_dupfd_cloexec(&cx.eventfd, 0).map(|fd| {
        use std::os::fd::AsRawFd;
        u64::from(fd.as_raw_fd().unsigned_abs())
    });
    lowest.is_ok_and(|lowest| lowest.saturating_add(FREE_FDS.min(limit / 4)) <= limit)
}
