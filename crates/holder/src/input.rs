//! A child's stdin: parts of writes, in order, each byte once.
//!
//! Owns the part in hand, the ledger and a close that waits behind them. It does not know how parts travel.
//!
//! One part is in hand at a time. Where the controller that sent it is gone the part still goes in, and its successor's
//! first part waits behind it; a retry then finds in the ledger how far the write came. So the bound is two parts.
//!
//! Failure paths: a child that closed its end, or died, ends everything that waits with `StdinClosed` and the count of
//! what went in; a write that is done in full is `Accepted` when it is tried again, even then.

use exec_server_process::CloseStdin;
use exec_server_session::{Begin, StdinLedger};
use rustix::io::Errno;

use crate::context::Context;
use crate::line::UnfinishedLine;
use crate::poller::Interest;
use crate::process::{Phase, Process};
use crate::wire::{FromHolder, Status, WriteStatus};

#[derive(Default)]
pub(crate) struct Input {
    /// Takes writes.
    pub(crate) is_open: bool,
    pub(crate) interest: Interest,
    /// Made by the first write with a key.
    ledger: Option<Box<StdinLedger>>,
    current: Option<Part>,
    next: Option<Part>,
    /// The line that a terminal has not got to the end of.
    line: UnfinishedLine,
    /// Close when nothing is in hand; whom to answer.
    closing: Option<Option<u32>>,
}

/// A part of a write.
pub(crate) struct Part {
    /// Whom to answer; nobody when that controller is gone.
    pub(crate) req: Option<u32>,
    pub(crate) key: Option<[u8; 16]>,
    /// Digest of the whole write; none from an older server.
    pub(crate) digest: Option<u32>,
    /// Length of the whole write.
    pub(crate) total: u64,
    /// Where in the whole write `data` begins.
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
    /// Bytes of `data` that went in.
    pub(crate) at: usize,
    /// The terminal dropped some of it.
    pub(crate) is_cut: bool,
}

impl Part {
    /// Bytes of the whole write that went in, once the part has begun.
    fn done(&self) -> u64 {
        self.offset.saturating_add(self.at as u64)
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.data.len() as u64)
    }
}

impl Input {
    /// Whether a write with a key was made, which may be repeated.
    pub(crate) fn has_ledger(&self) -> bool {
        self.ledger.is_some()
    }

    pub(crate) fn new(is_open: bool) -> Self {
        Self { is_open, ..Self::default() }
    }

    /// Whether something waits for the child to take more.
    pub(crate) fn wants_out(&self) -> bool {
        self.current.is_some() || self.closing.is_some()
    }

    /// The controller is gone: what it handed over goes on, what had not begun does not.
    pub(crate) fn orphan(&mut self) {
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
    /// Takes a part of a write.
    pub(crate) fn handle_write(&mut self, part: Part, cx: &mut Context) {
        let known = part.key.and_then(|key| self.input.ledger.as_ref()?.progress(key));
        let done = known.map_or(0, |known| known.done);
        let is_whole = part.key.is_none() || part.end() <= part.total;
        let status = match known {
            Some(known) if !known.is_same(part.total, part.digest) => WriteStatus::Mismatch,
            Some(known) if known.done >= part.end() => WriteStatus::Accepted,
            Some(_) | None if !is_whole => WriteStatus::Mismatch,
            Some(_) | None if !self.takes_input() => WriteStatus::StdinClosed,
            Some(_) | None => match &self.input.current {
                None => return self.begin(part, cx),
                Some(current) if current.req.is_none() && self.input.next.is_none() => {
                    self.input.next = Some(part);
                    return;
                }
                Some(_) => WriteStatus::Busy,
            },
        };
        answer(part.req, status, done, cx);
    }

    /// Closes stdin behind what is in hand.
    pub(crate) fn handle_close_stdin(&mut self, req: u32, cx: &mut Context) {
        if !self.takes_input() {
            return cx.done(Some(req), Status::StdinClosed);
        }
        self.input.closing = Some(Some(req));
        self.push(cx);
    }

    /// Gives the child what it takes.
    pub(crate) fn push(&mut self, cx: &mut Context) {
        while let Some(part) = self.input.current.take() {
            if let Some(waiting) = self.push_part(part, cx) {
                self.input.current = Some(waiting);
                return self.settle(cx);
            }
            if let Some(next) = self.input.next.take() {
                self.start(next, cx);
            }
        }
        if self.input.closing.is_some() {
            self.close_now(cx);
        }
        self.settle(cx);
    }

    /// Ends stdin for good, when the child is gone.
    pub(crate) fn close_input(&mut self, cx: &mut Context) {
        self.input.is_open = false;
        for part in [self.input.current.take(), self.input.next.take()].into_iter().flatten() {
            let done = self.done_of(&part);
            answer(part.req, WriteStatus::StdinClosed, done, cx);
        }
        if let Some(req) = self.input.closing.take() {
            cx.done(req, Status::Ok);
        }
        if let Some(stdin) = self.child.as_mut().and_then(exec_server_process::Child::take_stdin) {
            drop(stdin);
            self.input.interest = Interest::default();
        }
    }

    fn takes_input(&self) -> bool {
        self.input.is_open && self.input.closing.is_none() && self.phase == Phase::Running
    }

    fn begin(&mut self, part: Part, cx: &mut Context) {
        self.start(part, cx);
        self.push(cx);
    }

    /// Makes the part the one in hand, past what of it went in before.
    fn start(&mut self, mut part: Part, cx: &mut Context) {
        let done = match part.key.map(|key| self.input.ledger().begin(key, part.total, part.digest)) {
            None => part.offset,
            Some(Begin::New) => 0,
            Some(Begin::Continue { done }) => done,
            Some(Begin::Done) => part.total,
            Some(Begin::Mismatch { .. }) => return answer(part.req, WriteStatus::Mismatch, 0, cx),
        };
        match done.checked_sub(part.offset).map(|skip| usize::try_from(skip).unwrap_or(usize::MAX)) {
            Some(skip) => {
                part.at = skip.min(part.data.len());
                self.input.current = Some(part);
            }
            // It would leave a hole.
            None => answer(part.req, WriteStatus::Mismatch, done, cx),
        }
    }

    /// Writes until the part is in or the child takes no more; gives back a part that waits.
    fn push_part(&mut self, mut part: Part, cx: &mut Context) -> Option<Part> {
        while let Some(rest) = part.data.get(part.at..).filter(|rest| !rest.is_empty()) {
            let Some(fd) = self.child.as_ref().and_then(exec_server_process::Child::stdin) else {
                answer(part.req, WriteStatus::StdinClosed, part.done(), cx);
                return None;
            };
            // Of the moment of the write: the program may change it at any time.
            let modes = self.is_tty.then(|| rustix::termios::tcgetattr(fd).ok()).flatten();
            match rustix::io::write(fd, rest) {
                Ok(n) => {
                    if let Some(modes) = &modes {
                        part.is_cut |= self.input.line.add(modes, &rest[..n]);
                    }
                    part.at += n;
                    if let Some(key) = part.key {
                        // Recorded before anything else can happen. The key is there: the part has begun.
                        self.input.ledger().advance(key, n as u64).ok();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Some(part),
                Err(_) => {
                    answer(part.req, WriteStatus::StdinClosed, part.done(), cx);
                    self.close_input(cx);
                    return None;
                }
            }
        }
        let done = self.done_of(&part).max(part.done());
        // An older server does not know the word.
        let is_cut = part.is_cut && part.digest.is_some();
        answer(part.req, if is_cut { WriteStatus::Cut } else { WriteStatus::Accepted }, done, cx);
        None
    }

    fn close_now(&mut self, cx: &mut Context) {
        let Some(child) = &mut self.child else { return };
        let outcome = child.close_stdin();
        let status = match outcome {
            Ok(CloseStdin::Closed) => {
                self.input.is_open = false;
                self.input.interest = Interest::default();
                Status::Ok
            }
            // A terminal goes on: the character ends one read, not the stream.
            Ok(CloseStdin::EofSent) => Status::Ok,
            Ok(CloseStdin::RawMode) => Status::RawMode,
            Ok(CloseStdin::NotOpen) => Status::StdinClosed,
            // Tried again when the terminal takes more.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(error) => Status::Failed(error.raw_os_error().unwrap_or(0)),
        };
        if let Some(req) = self.input.closing.take() {
            cx.done(req, status);
        }
    }

    fn done_of(&self, part: &Part) -> u64 {
        let known = part.key.and_then(|key| self.input.ledger.as_ref()?.progress(key));
        known.map_or(part.done(), |known| known.done)
    }
}

fn answer(req: Option<u32>, status: WriteStatus, done: u64, cx: &mut Context) {
    if let Some(req) = req {
        cx.send(&FromHolder::Written { req, status, done });
    }
}
