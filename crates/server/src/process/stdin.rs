//! The stdin operations of a process: they wait in a queue, and the holder executes one part at a time.
//!
//! Every operation is answered once: after its turn, when the holder is gone, or when the process is forgotten.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use exec_server_holder::control::{DIGESTS, ToHolder, WriteStatus};
use exec_server_protocol::process as wire;
use parking_lot::MutexGuard;

use super::Process;
use crate::{error::Failure, holder_link::ReplyWaiter, pump::Reply};

/// Bytes of one part of a stdin write. A part and its header fit into one message to the holder.
const WRITE_PART_BYTES: usize = 56 << 10;

#[derive(Default)]
pub(super) struct StdinQueue {
    queue: VecDeque<StdinOperation>,
    /// The holder is processing the front of the queue.
    busy: bool,
    /// The process is forgotten: its slot may belong to another process, so nothing more is sent.
    is_forgotten: bool,
}

/// A queued operation on a process's stdin.
///
/// In a write, `key` is the hash of the write id, if the client sent one, and `digest` is then the CRC of the data.
/// `done` bytes have been written. `is_cut`: the terminal cut a line that was too long.
pub(crate) enum StdinOperation {
    Write { key: Option<[u8; 16]>, digest: u32, data: Bytes, done: usize, is_cut: bool, reply: Reply },
    Close { reply: Reply },
}

impl StdinOperation {
    /// Answers with the status for the kind of the operation.
    fn answer(self, process: &str, write: wire::WriteStatus, close: wire::CloseStdinStatus) {
        match self {
            Self::Write { reply, .. } => reply.write(process, write, false),
            Self::Close { reply } => reply.result(&wire::CloseStdinResult { status: close }),
        }
    }
}

impl Process {
    /// Queues a stdin operation. It is answered after its turn.
    pub(crate) fn enqueue_stdin(self: &Arc<Self>, operation: StdinOperation) {
        let mut stdin = self.stdin.lock();
        stdin.queue.push_back(operation);
        self.send_next_stdin(stdin);
    }

    /// Hands the front of the queue to the holder, unless an operation is already under way. Takes the guard, because
    /// the whole queue must be answered without the lock if nothing can be handed over.
    fn send_next_stdin(self: &Arc<Self>, mut stdin: MutexGuard<'_, StdinQueue>) {
        if stdin.is_forgotten {
            let queue = std::mem::take(&mut stdin.queue);
            drop(stdin);
            for operation in queue {
                operation.answer(self.id(), wire::WriteStatus::UnknownProcess, wire::CloseStdinStatus::UnknownProcess);
            }
            return;
        }
        if stdin.busy {
            return;
        }
        let Some(front) = stdin.queue.front() else { return };
        let waiter = ReplyWaiter::Stdin(Arc::downgrade(self));
        let slot = self.slot;
        let link = self.link();
        let is_sent = match front {
            &StdinOperation::Write { key, digest, ref data, done, .. } => {
                let part = &data[done..data.len().min(done + WRITE_PART_BYTES)];
                let total = data.len() as u64;
                let offset = done as u64;
                let digest = link.supports(DIGESTS).then_some(digest);
                link.request(waiter, None, |req| ToHolder::Write { req, slot, key, digest, total, offset, data: part })
            }
            StdinOperation::Close { .. } => link.request(waiter, None, |req| ToHolder::CloseStdin { req, slot }),
        };
        stdin.busy = is_sent;
        drop(stdin);
        if !is_sent {
            self.fail_stdin();
        }
    }

    /// Answers everything that is queued, because no holder will execute it.
    pub(super) fn fail_stdin(&self) {
        let mut stdin = self.stdin.lock();
        // Includes the part that the holder had: no answer will come for it.
        stdin.busy = false;
        let lost = std::mem::take(&mut stdin.queue);
        drop(stdin);
        let link = self.link();
        for operation in lost {
            if link.is_archive() {
                operation.answer(self.id(), wire::WriteStatus::StdinClosed, wire::CloseStdinStatus::StdinClosed);
            } else {
                let (StdinOperation::Write { reply, .. } | StdinOperation::Close { reply }) = operation;
                reply.fail(&link.broken_failure());
            }
        }
    }

    /// Answers everything that is queued, because the process is forgotten. Nothing is sent to its slot from now on.
    pub(super) fn forget_stdin(self: &Arc<Self>) {
        let mut stdin = self.stdin.lock();
        stdin.is_forgotten = true;
        self.send_next_stdin(stdin);
    }

    /// Handles the holder's answer to a part: `done` bytes of the write have been written to the child's stdin.
    pub(crate) fn handle_written(self: &Arc<Self>, status: WriteStatus, done: u64) {
        let mut stdin = self.stdin.lock();
        stdin.busy = false;
        if let Some(StdinOperation::Write { data, done: so_far, is_cut, .. }) = stdin.queue.front_mut() {
            *is_cut |= status == WriteStatus::Cut;
            match status {
                WriteStatus::Accepted | WriteStatus::Cut => {
                    // The holder's number is not trusted to be within the data.
                    let done = usize::try_from(done).unwrap_or(usize::MAX).min(data.len());
                    self.metrics.stdin_bytes.add(done.saturating_sub(*so_far) as u64);
                    *so_far = done;
                }
                // The holder is still writing another part. Not expected: this server sends one part at a time, and the
                // holder itself queues it behind a part of the previous server. Send the part again.
                WriteStatus::Busy => return self.send_next_stdin(stdin),
                // The holder took no more, so no further part is sent.
                WriteStatus::StdinClosed | WriteStatus::UnknownProcess | WriteStatus::Mismatch => *so_far = data.len(),
            }
            if *so_far < data.len() {
                return self.send_next_stdin(stdin);
            }
        }
        if let Some(StdinOperation::Write { is_cut, reply, .. }) = stdin.queue.pop_front() {
            match status {
                WriteStatus::Accepted | WriteStatus::Cut => {
                    reply.write(self.id(), wire::WriteStatus::Accepted, is_cut);
                }
                WriteStatus::StdinClosed => reply.write(self.id(), wire::WriteStatus::StdinClosed, false),
                WriteStatus::UnknownProcess => reply.write(self.id(), wire::WriteStatus::UnknownProcess, false),
                // `Busy` was handled above.
                WriteStatus::Mismatch | WriteStatus::Busy => reply.fail(&Failure::WriteIdReused),
            }
        }
        self.send_next_stdin(stdin);
    }

    /// Handles the holder's answer to `CloseStdin`.
    pub(crate) fn handle_stdin_closed(self: &Arc<Self>, status: wire::CloseStdinStatus) {
        let mut stdin = self.stdin.lock();
        stdin.busy = false;
        if let Some(StdinOperation::Close { reply }) = stdin.queue.pop_front() {
            reply.result(&wire::CloseStdinResult { status });
        }
        self.send_next_stdin(stdin);
    }
}
