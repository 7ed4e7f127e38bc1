//! The processes of one MCP session, under short ids, and how far the output of each was read. The table is bounded. A process that is
//! being started counts too.

use std::collections::BTreeMap;

use exec_server_client::{Process, protocol::process::Stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ToolFailure;
use crate::serve::limits::PROCESSES;

/// The processes of one session.
#[derive(Debug, Default)]
pub(in crate::serve) struct ProcessTable(Mutex<ProcessTableState>);

#[derive(Debug, Default)]
struct ProcessTableState {
    /// The number of the process that was started last.
    last: u64,
    /// How many slots are reserved for processes that are being started.
    starting: usize,
    all: BTreeMap<u64, ProcessEntry>,
}

#[derive(Debug, Clone)]
pub(super) struct ProcessEntry {
    pub(super) process: Process,
    pub(super) command: String,
    pub(super) started: Instant,
    /// The sequence number of the last event that was read.
    pub(super) cursor: u64,
    /// How many output bytes come before `cursor`, read or lost.
    pub(super) position: u64,
    /// For each stream, the first bytes of a character whose end was not read yet at `cursor`.
    pub(super) incomplete: IncompleteChars,
}

/// Up to three bytes of each stream that begin a character.
pub(super) type IncompleteChars = Vec<(Stream, Vec<u8>)>;

impl ProcessTable {
    /// Reserves a slot, if one is free.
    pub(super) fn reserve(&self) -> Option<ProcessSlot<'_>> {
        let mut entries = self.0.lock();
        (entries.all.len() + entries.starting < PROCESSES).then(|| {
            entries.starting += 1;
            ProcessSlot(self)
        })
    }

    pub(super) fn remove(&self, number: u64) {
        self.0.lock().all.remove(&number);
    }

    pub(super) fn find(&self, id: &str) -> Result<(u64, ProcessEntry), ToolFailure> {
        let entries = self.0.lock();
        let number = id.strip_prefix('p').and_then(|number| number.parse().ok());
        if let Some(found) = number.and_then(|number| Some((number, entries.all.get(&number)?.clone()))) {
            return Ok(found);
        }
        let known: Vec<String> = entries.all.keys().map(|number| format!("p{number}")).collect();
        let known = match known.is_empty() {
            true => "it has started no process".to_owned(),
            false => format!("there are {}", known.join(", ")),
        };
        let id: String = id.chars().take(32).collect();
        Err(failure!("no process `{id}` in this session; {known}"))
    }

    /// Moves the position of a process to the end of a read.
    pub(super) fn advance(&self, number: u64, cursor: u64, position: u64, incomplete: IncompleteChars) {
        if let Some(entry) = self.0.lock().all.get_mut(&number) {
            // Of two concurrent reads, the one that got further counts.
            if cursor >= entry.cursor {
                entry.cursor = cursor;
                entry.position = position;
                entry.incomplete = incomplete;
            }
        }
    }

    pub(super) fn snapshot(&self) -> Vec<(u64, ProcessEntry)> {
        self.0.lock().all.iter().map(|(number, entry)| (*number, entry.clone())).collect()
    }
}

/// A slot reserved for a process that is being started. Dropping it ends the reservation.
pub(super) struct ProcessSlot<'a>(&'a ProcessTable);

impl ProcessSlot<'_> {
    /// Adds the started process and returns its number. Dropping `self` then ends the reservation, because the entry itself counts now.
    pub(super) fn fill(self, process: Process, command: String) -> u64 {
        let mut entries = self.0.0.lock();
        entries.last += 1;
        let number = entries.last;
        let entry =
            ProcessEntry { process, command, started: Instant::now(), cursor: 0, position: 0, incomplete: Vec::new() };
        entries.all.insert(number, entry);
        number
    }
}

impl Drop for ProcessSlot<'_> {
    fn drop(&mut self) {
        self.0.0.lock().starting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_slot_counts_and_is_freed_when_it_is_dropped_unfilled() {
        let table = ProcessTable::default();
        let slots: Vec<ProcessSlot<'_>> = std::iter::from_fn(|| table.reserve()).collect();
        assert_eq!(slots.len(), PROCESSES);
        drop(slots);
        assert!(table.reserve().is_some());
        assert_eq!(table.0.lock().starting, 0);
    }
}
