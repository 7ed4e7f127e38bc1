//! What a model client wrote to a process, and the promise R2 as a check: each write at most once, each accepted one exactly once, in order.

use crate::{
    child::{STDIN_TEXT, text},
    trace::Invariant,
    view::View,
};

/// What a pipe or a simulated terminal holds at most: accepted bytes are in the child or in there.
pub const PIPE_BYTES: u64 = 256 << 10;

/// A write as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where in the text for stdin it begins.
    pub start: u64,
    /// Its length.
    pub len: u64,
    /// The answer.
    pub status: Option<Accepted>,
    /// It has no id: it is never sent again.
    pub is_keyless: bool,
    /// The server that it was first sent to, by its number.
    pub server: u32,
}

/// What a write or a close was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It went in.
    Yes,
    /// Stdin was closed.
    No,
    /// It had no id and its answer was lost: nobody knows.
    Unknown,
}

impl View {
    /// The next write, made now.
    pub fn next_write(&mut self, len: u64, is_keyless: bool, server: u32) -> usize {
        let start = self.writes.last().map_or(0, |write| write.start + write.len);
        self.writes.push(Write { start, len, status: None, is_keyless, server });
        self.writes.len() - 1
    }

    /// Whether another write may follow: not behind one of which nobody will ever know.
    pub fn takes_writes(&self) -> bool {
        let is_open = self.plan.stdin && self.close_stdin.is_none() && !self.forgotten;
        is_open && !self.writes.iter().any(|write| write.is_keyless && write.status != Some(Accepted::Yes))
    }

    /// A link was cut: writes without an id that were not answered stay unknown.
    pub fn give_up_keyless(&mut self) {
        for write in self.writes.iter_mut().filter(|write| write.is_keyless && write.status.is_none()) {
            write.status = Some(Accepted::Unknown);
        }
    }

    /// Whether a write or a close was asked for and not answered.
    pub fn has_unanswered(&self) -> bool {
        self.writes.iter().any(|write| write.status.is_none()) || self.close_stdin == Some(None)
    }

    /// The bytes of a write.
    pub fn write_bytes(&self, index: usize) -> Vec<u8> {
        let write = self.writes[index];
        text(&self.name, STDIN_TEXT, write.start, usize::try_from(write.len).expect("writes are small"))
    }

    /// Holds what the child has read against what was written to it, after every step.
    pub fn check_stdin(&mut self) {
        let end = self.writes.last().map_or(0, |write| write.start + write.len);
        let (name, from) = (self.name.clone(), self.checked);
        let (len, matches) = self.records.with(&name, |record| {
            let new = &record.stdin[from..];
            (record.stdin.len(), text(&name, STDIN_TEXT, from as u64, new.len()) == new)
        });
        if !matches || len as u64 > end {
            self.wrong(
                Invariant::Stdin,
                format_args!("stdin between {from} and {len} is not what was written ({end} bytes)"),
            );
        }
        self.checked = len;
        let accepted = self.accepted_end();
        let is_dead = self.records.with(&name, |record| record.exit.is_some());
        if accepted > len as u64 + PIPE_BYTES && !is_dead {
            self.wrong(
                Invariant::Stdin,
                format_args!("{accepted} bytes were accepted, {len} read: more than a pipe holds"),
            );
        }
    }

    /// How far writes were accepted.
    pub(crate) fn accepted_end(&self) -> u64 {
        let accepted = self.writes.iter().filter(|write| write.status == Some(Accepted::Yes));
        accepted.map(|write| write.start + write.len).max().unwrap_or(0)
    }
}
