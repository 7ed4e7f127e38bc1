//! Runs the commands of the controller.
//!
//! Finds the process that a command names and calls it. Consecutive starts are collected and spawned together
//! ([`spawn_batch`](crate::spawn_batch)).
//!
//! Failure path: an invalid message, or one that is not allowed at this point, closes the controller's connection and
//! does not affect the session.

use std::{collections::btree_map::Entry, os::fd::OwnedFd};

use exec_server_process::TerminalSize;
use exec_server_sandbox::Kit;

use crate::{
    ChildSpawner,
    context::SessionContext,
    control::{CommandStatus, FromHolder, ToHolder, WriteStatus},
    holder::{Holder, ttl},
    input::WritePart,
    process::{Process, ProcessPhase},
    session_end::EndReason,
    spawn_batch::PendingStart,
};

impl<S: ChildSpawner> Holder<S> {
    /// Runs one command. Returns true for a command behind which there is usually no other: then looking for another
    /// would cost a system call for nothing.
    pub(crate) fn dispatch(&mut self, message: &[u8], fds: Vec<OwnedFd>) -> bool {
        let message = ToHolder::decode(message);
        if !matches!(message, Ok(ToHolder::Start { .. } | ToHolder::StartConfined { .. } | ToHolder::Withdraw { .. })) {
            self.spawn_pending();
        }
        let Ok(message) = message else {
            self.cx.controller.reject();
            return false;
        };
        // A server sends the next part of a write after the answer to this one.
        let comes_alone = matches!(message, ToHolder::Write { .. });
        match message {
            ToHolder::Hello { .. } => self.cx.controller.reject(),
            ToHolder::Attach => self.attach(),
            ToHolder::Detach { ttl_ms } => {
                self.lease.set_ttl(ttl(ttl_ms));
                self.lease.handle_detach(self.cx.controller.epoch(), self.cx.now_ns);
                self.handle_attachment();
            }
            ToHolder::SetTtl { ttl_ms } => self.lease.set_ttl(ttl(ttl_ms)),
            ToHolder::SetOrphanTtl { ttl_ms } => self.orphan_ttl = ttl(ttl_ms),
            ToHolder::Start { req, spec } => self.enqueue_start(PendingStart { req, spec, sandbox: None }),
            ToHolder::StartConfined { req, kit, spec } => match Kit::from_parts(kit, fds) {
                Some(kit) => self.enqueue_start(PendingStart { req, spec, sandbox: Some(kit) }),
                None => {
                    self.spawn_pending();
                    self.cx.controller.mark_lost();
                }
            },
            ToHolder::Withdraw { req } => self.handle_withdraw(req),
            ToHolder::Write { req, slot, key, digest, total, offset, data } => {
                let part =
                    WritePart { req: Some(req), key, digest, total, offset, data: data.to_vec(), at: 0, is_cut: false };
                self.write(slot, part);
            }
            ToHolder::CloseStdin { req, slot } => match self.processes.get_mut(&slot) {
                Some(process) => process.handle_close_stdin(req, &mut self.cx),
                None => self.cx.send_done(Some(req), CommandStatus::UnknownProcess),
            },
            ToHolder::Signal { req, slot, signal } => {
                self.run_on_process(req, slot, |process, _| process.signal(signal));
            }
            ToHolder::Resize { req, slot, rows, cols } => {
                self.run_on_process(req, slot, |process, _| resize(process, TerminalSize { rows, cols }));
            }
            ToHolder::Terminate { req, slot, grace_ms } => {
                self.run_on_process(req, slot, |process, cx| process.terminate(grace_ms, cx));
            }
            ToHolder::Cap { slot, bytes } => self.update_process(slot, |process, cx| {
                process.cap_bytes = bytes;
                process.reconsider(cx);
            }),
            ToHolder::Release { slot, segment } => {
                self.update_process(slot, |process, cx| process.handle_release(segment, cx));
            }
            ToHolder::Followed { slot, seq } => self.update_process(slot, |process, cx| {
                process.followed_seq = seq;
                process.reconsider(cx);
            }),
            ToHolder::Used { is_going_on: true } => self.lease.handle_used(),
            ToHolder::Used { is_going_on: false } => self.lease.handle_unused(self.cx.now_ns),
            ToHolder::Return { segment } => self.cx.handle_return(segment),
            ToHolder::Forget { req, slot } => self.forget(req, slot),
            ToHolder::End { req } => self.end(EndReason::Command { req }),
            ToHolder::AllowArchive => self.archiving.allow(),
            ToHolder::Leave => self.handle_leave(),
        }
        comes_alone
    }

    pub(crate) fn attach(&mut self) {
        let epoch = self.cx.controller.epoch();
        self.lease.handle_attach(epoch, self.cx.now_ns);
        self.handle_attachment();
    }

    fn write(&mut self, slot: u32, part: WritePart) {
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
        let status = match self.processes.entry(slot) {
            Entry::Vacant(_) => CommandStatus::UnknownProcess,
            Entry::Occupied(entry) if entry.get().phase == ProcessPhase::Closed => {
                entry.remove().forget(&mut self.cx);
                CommandStatus::Ok
            }
            Entry::Occupied(_) => CommandStatus::NotClosed,
        };
        self.cx.send_done(Some(req), status);
    }

    /// Runs a command of one process and answers it.
    fn run_on_process(
        &mut self,
        req: u32,
        slot: u32,
        command: impl FnOnce(&mut Process, &mut SessionContext) -> CommandStatus,
    ) {
        let process = self.processes.get_mut(&slot);
        let status = process.map_or(CommandStatus::UnknownProcess, |process| command(process, &mut self.cx));
        self.cx.send_done(Some(req), status);
    }

    /// Applies a command without an answer. A process that is gone needs no update.
    fn update_process(&mut self, slot: u32, update: impl FnOnce(&mut Process, &mut SessionContext)) {
        if let Some(process) = self.processes.get_mut(&slot) {
            update(process, &mut self.cx);
        }
    }
}

fn resize(process: &mut Process, size: TerminalSize) -> CommandStatus {
    match (&process.child, process.is_tty) {
        (_, false) => CommandStatus::NotATerminal,
        (None, true) => CommandStatus::NotRunning,
        (Some(child), true) => match child.resize(size) {
            Ok(()) => CommandStatus::Ok,
            Err(error) => CommandStatus::Failed(error.raw_os_error().unwrap_or(0)),
        },
    }
}
