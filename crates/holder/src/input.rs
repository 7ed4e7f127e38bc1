//! A child's stdin: accepts writes in parts, and passes each byte to the child once and in order.
//!
//! Owns the current part, the part that waits behind it, the ledger of keyed writes, and a close that waits for both
//! parts.
//!
//! One part is written at a time. If the controller that sent it disconnects, the part is still written, and the first
//! part from the next controller waits behind it. If that part repeats the write, the ledger then shows how much of the
//! write is done. So at most two parts are held.
//!
//! Failure path: if the child closes its stdin or dies, every waiting part is answered with `StdinClosed` and the
//! number of bytes written, and a waiting close with `Ok`. The retry of a keyed write that was completed is answered
//! with `Accepted` even then.

use exec_server_process::CloseStdinOutcome;
use exec_server_session::{StdinLedger, WriteBegin};
use rustix::io::Errno;

use crate::{
    context::SessionContext,
    control::{CommandStatus, FromHolder, WriteStatus},
    poller::PollInterest,
    process::{Process, ProcessPhase},
    unfinished_line::UnfinishedLine,
};

#[derive(Default)]
pub(crate) struct ChildStdin {
    /// Whether stdin accepts writes.
    pub(crate) is_open: bool,
    pub(crate) interest: PollInterest,
    /// Created by the first write with a key.
    ledger: Option<Box<StdinLedger>>,
    current: Option<WritePart>,
    next: Option<WritePart>,
    /// The line that the terminal has received so far, without its end.
    line: UnfinishedLine,
    /// A `CloseStdin` that waits until no part is left. The inner value is the request to answer, if its controller is
    /// still connected.
    closing: Option<Option<u32>>,
}

/// One part of a write.
pub(crate) struct WritePart {
    /// The request to answer. `None` if the controller that sent it has disconnected.
    pub(crate) req: Option<u32>,
    pub(crate) key: Option<[u8; 16]>,
    /// Digest of the whole write. `None` from a server of an older release.
    pub(crate) digest: Option<u32>,
    /// Length of the whole write.
    pub(crate) total: u64,
    /// Position of `data` in the whole write.
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
    /// How many bytes of `data` have been written to the child.
    pub(crate) at: usize,
    /// The terminal dropped some of the bytes.
    pub(crate) is_cut: bool,
}

impl WritePart {
    /// Bytes of the whole write that have been written to the child. Valid once `begin_part` has run.
    fn done(&self) -> u64 {
        self.offset.saturating_add(self.at as u64)
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.data.len() as u64)
    }
}

impl ChildStdin {
    /// Whether the process received a write with a key. A client may repeat such a write.
    pub(crate) fn has_ledger(&self) -> bool {
        self.ledger.is_some()
    }

    pub(crate) fn new(is_open: bool) -> Self {
        Self { is_open, ..Self::default() }
    }

    /// Whether a part or a close waits until the child accepts more input.
    pub(crate) fn waits_for_child(&self) -> bool {
        self.current.is_some() || self.closing.is_some()
    }

    /// Handles the loss of the controller: the current part and a pending close continue without an answer. A part that
    /// has not started is dropped.
    pub(crate) fn handle_controller_loss(&mut self) {
        self.next = None;
        if let Some(part) = &mut self.current {
            part.req = None;
        }
        if let Some(req) = &mut self.closing {
            *req = None;
        }
    }

    fn ledger(&mut self) -> &mut StdinLedger {
        self.ledger.get_or_insert_default()
    }
}

impl Process {
    /// Handles one part of a write.
    pub(crate) fn handle_write(&mut self, part: WritePart, cx: &mut SessionContext) {
        let known = part.key.and_then(|key| self.input.ledger.as_ref()?.progress(key));
        let done = known.map_or(0, |known| known.done);
        let is_within_total = part.key.is_none() || part.end() <= part.total;
        let status = match known {
            Some(known) if !known.is_same(part.total, part.digest) => WriteStatus::Mismatch,
            Some(known) if known.done >= part.end() => WriteStatus::Accepted,
            Some(_) | None if !is_within_total => WriteStatus::Mismatch,
            Some(_) | None if !self.accepts_input() => WriteStatus::StdinClosed,
            Some(_) | None => match &self.input.current {
                None => {
                    self.begin_part(part, cx);
                    return self.write_pending(cx);
                }
                Some(current) if current.req.is_none() && self.input.next.is_none() => {
                    self.input.next = Some(part);
                    return;
                }
                Some(_) => WriteStatus::Busy,
            },
        };
        send_written(part.req, status, done, cx);
    }

    /// Closes stdin after the current part and a part that waits behind it.
    pub(crate) fn handle_close_stdin(&mut self, req: u32, cx: &mut SessionContext) {
        if !self.accepts_input() {
            return cx.send_done(Some(req), CommandStatus::StdinClosed);
        }
        self.input.closing = Some(Some(req));
        self.write_pending(cx);
    }

    /// Writes as much as the child accepts.
    pub(crate) fn write_pending(&mut self, cx: &mut SessionContext) {
        while let Some(part) = self.input.current.take() {
            if let Some(waiting) = self.write_part(part, cx) {
                self.input.current = Some(waiting);
                return self.settle(cx);
            }
            if let Some(next) = self.input.next.take() {
                self.begin_part(next, cx);
            }
        }
        if self.input.closing.is_some() {
            self.close_after_writes(cx);
        }
        self.settle(cx);
    }

    /// Closes stdin because the child has exited or closed its end, and answers everything that waits.
    pub(crate) fn close_input(&mut self, cx: &mut SessionContext) {
        self.input.is_open = false;
        for part in [self.input.current.take(), self.input.next.take()].into_iter().flatten() {
            let done = self.bytes_done(&part);
            send_written(part.req, WriteStatus::StdinClosed, done, cx);
        }
        if let Some(req) = self.input.closing.take() {
            cx.send_done(req, CommandStatus::Ok);
        }
        if let Some(stdin) = self.child.as_mut().and_then(exec_server_process::Child::take_stdin) {
            drop(stdin);
            // The close has removed the fd from epoll.
            self.input.interest = PollInterest::default();
        }
    }

    fn accepts_input(&self) -> bool {
        self.input.is_open && self.input.closing.is_none() && self.phase == ProcessPhase::Running
    }

    /// Makes the part the current one, and skips the bytes that an earlier attempt has written.
    fn begin_part(&mut self, mut part: WritePart, cx: &mut SessionContext) {
        let done = match part.key.map(|key| self.input.ledger().begin(key, part.total, part.digest)) {
            None => part.offset,
            Some(WriteBegin::New) => 0,
            Some(WriteBegin::Continue { done }) => done,
            Some(WriteBegin::Done) => part.total,
            Some(WriteBegin::Mismatch { .. }) => return send_written(part.req, WriteStatus::Mismatch, 0, cx),
        };
        match done.checked_sub(part.offset).map(|skip| usize::try_from(skip).unwrap_or(usize::MAX)) {
            Some(skip) => {
                part.at = skip.min(part.data.len());
                self.input.current = Some(part);
            }
            // The part starts beyond `done`, so it would leave a gap.
            None => send_written(part.req, WriteStatus::Mismatch, done, cx),
        }
    }

    /// Writes until the part is done or the child accepts no more. Returns a part that must wait.
    fn write_part(&mut self, mut part: WritePart, cx: &mut SessionContext) -> Option<WritePart> {
        while let Some(rest) = part.data.get(part.at..).filter(|rest| !rest.is_empty()) {
            let Some(fd) = self.child.as_ref().and_then(exec_server_process::Child::stdin) else {
                send_written(part.req, WriteStatus::StdinClosed, part.done(), cx);
                return None;
            };
            // Read the terminal's modes right before the write, because the program may change them at any time.
            let modes = self.is_tty.then(|| rustix::termios::tcgetattr(fd).ok()).flatten();
            match rustix::io::write(fd, rest) {
                Ok(n) => {
                    if let Some(modes) = &modes {
                        part.is_cut |= self.input.line.add(modes, &rest[..n]);
                    }
                    part.at += n;
                    if let Some(key) = part.key {
                        // Record the progress before anything else can happen. The ledger has the key since
                        // `begin_part`.
                        self.input.ledger().advance(key, n as u64).ok();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Some(part),
                Err(_) => {
                    send_written(part.req, WriteStatus::StdinClosed, part.done(), cx);
                    self.close_input(cx);
                    return None;
                }
            }
        }
        let done = self.bytes_done(&part).max(part.done());
        // Servers that send no digest do not know the status `Cut`.
        let is_cut = part.is_cut && part.digest.is_some();
        send_written(part.req, if is_cut { WriteStatus::Cut } else { WriteStatus::Accepted }, done, cx);
        None
    }

    fn close_after_writes(&mut self, cx: &mut SessionContext) {
        let Some(child) = &mut self.child else { return };
        let outcome = child.close_stdin();
        let status = match outcome {
            Ok(CloseStdinOutcome::Closed) => {
                self.input.is_open = false;
                // The close has removed the fd from epoll.
                self.input.interest = PollInterest::default();
                CommandStatus::Ok
            }
            // The terminal stays open: the EOF character ends one read, not the stream.
            Ok(CloseStdinOutcome::EofSent) => CommandStatus::Ok,
            Ok(CloseStdinOutcome::RawMode) => CommandStatus::RawMode,
            Ok(CloseStdinOutcome::NotOpen) => CommandStatus::StdinClosed,
            // Retried when the terminal accepts more input.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(error) => CommandStatus::Failed(error.raw_os_error().unwrap_or(0)),
        };
        if let Some(req) = self.input.closing.take() {
            cx.send_done(req, status);
        }
    }

    fn bytes_done(&self, part: &WritePart) -> u64 {
        let known = part.key.and_then(|key| self.input.ledger.as_ref()?.progress(key));
        known.map_or(part.done(), |known| known.done)
    }
}

fn send_written(req: Option<u32>, status: WriteStatus, done: u64, cx: &mut SessionContext) {
    if let Some(req) = req {
        cx.send(&FromHolder::Written { req, status, done });
    }
}
