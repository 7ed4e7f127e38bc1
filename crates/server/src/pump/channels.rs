//! The numbers that stand for processes in the binary frames of one connection. It must not know what a frame holds.
//!
//! A number is given when a process is followed and is free when it is not followed any more; the pump says it to the peer before it
//! uses it. So there are never more than processes that are followed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::process::{Process, lock};

/// The table of one connection.
#[derive(Default)]
pub(crate) struct Channels(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u32,
    open: HashMap<u32, Arc<Process>>,
}

impl Channels {
    /// A number for a process; none is used a second time before all others were.
    pub(super) fn open(&self, process: Arc<Process>) -> u32 {
        let mut table = lock(&self.0);
        loop {
            table.last = table.last.wrapping_add(1);
            let channel = table.last;
            if let std::collections::hash_map::Entry::Vacant(entry) = table.open.entry(channel) {
                entry.insert(process);
                return channel;
            }
        }
    }

    pub(super) fn close(&self, channel: u32) {
        // The process may be dropped with it, and not under the lock.
        let closed = lock(&self.0).open.remove(&channel);
        drop(closed);
    }

    /// The pump has ended: what is still named keeps no process.
    pub(super) fn close_all(&self) {
        let open = std::mem::take(&mut lock(&self.0).open);
        drop(open);
    }

    /// The process behind a number that the peer was told.
    pub(crate) fn find(&self, channel: u32) -> Option<Arc<Process>> {
        lock(&self.0).open.get(&channel).cloned()
    }
}
