//! The writes of a model client to stdin, and the check of promise R2: each write arrives at most once, each accepted one exactly once, in
//! order.

use crate::{child::STDIN_TEXT, prelude::*};

/// The capacity of a pipe or simulated terminal. Accepted bytes were read by the child or are in there.
pub const PIPE_BYTES: u64 = 256 << 10;

/// A write, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The offset in the text for stdin.
    pub start: u64,
    pub len: u64,
    /// The result, once answered.
    pub status: Option<WriteOutcome>,
    /// The write has no id, so it is never sent again.
    pub is_keyless: bool,
    /// The number of the server to which the write was first sent.
    pub server: u32,
}

/// The result of a write or a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It was written.
    Yes,
    /// Stdin was closed.
    No,
    /// The result is unknown: the write had no id and its answer was lost, or its holder died.
    Unknown,
}

impl ProcessView {
    /// Records a new write and returns its index.
    pub fn next_write(&mut self, len: u64, is_keyless: bool, server: u32) -> usize {
        let start = self.writes.last().map_or(0, |write| write.start + write.len);
        self.writes.push(Write { start, len, status: None, is_keyless, server });
        self.writes.len() - 1
    }

    /// Whether another write may follow. Not after a write without an id whose result is unknown.
    pub fn takes_writes(&self) -> bool {
        let is_open = self.plan.stdin && self.close_stdin.is_none() && !self.forgotten;
        is_open && !self.writes.iter().any(|write| write.is_keyless && write.status != Some(WriteOutcome::Yes))
    }

    /// A link was cut: unanswered writes without an id stay unknown.
    pub fn give_up_keyless(&mut self) {
        for write in self.writes.iter_mut().filter(|write| write.is_keyless && write.status.is_none()) {
            write.status = Some(WriteOutcome::Unknown);
        }
    }

    /// Whether a write or a close was not answered yet.
    pub fn has_unanswered(&self) -> bool {
        self.writes.iter().any(|write| write.status.is_none()) || self.close_stdin == Some(None)
    }

    /// The bytes of a write.
    pub fn write_bytes(&self, index: usize) -> Vec<u8> {
        let write = self.writes[index];
        text(&self.name, STDIN_TEXT, write.start, usize::try_from(write.len).expect("writes are small"))
    }

    /// Compares what the child has read with what was written. Called after every step.
    pub fn check_stdin(&mut self) {
        let end = self.writes.last().map_or(0, |write| write.start + write.len);
        let (name, from) = (self.name.clone(), self.checked);
        let (len, matches) = self.records.with(&name, |record| {
            let new = &record.stdin[from..];
            (record.stdin.len(), text(&name, STDIN_TEXT, from as u64, new.len()) == new)
        });
        if !matches || len as u64 > end {
            violation!(self, Stdin, "stdin between {from} and {len} is not what was written ({end} bytes)");
        }
        self.checked = len;
        let accepted = self.accepted_end();
        let is_dead = self.records.with(&name, |record| record.exit.is_some());
        if accepted > len as u64 + PIPE_BYTES && !is_dead {
            violation!(self, Stdin, "{accepted} bytes were accepted, {len} read: more than a pipe holds");
        }
    }

    /// The end of the last accepted write.
    pub(crate) fn accepted_end(&self) -> u64 {
        let accepted = self.writes.iter().filter(|write| write.status == Some(WriteOutcome::Yes));
        accepted.map(|write| write.start + write.len).max().unwrap_or(0)
    }
}
