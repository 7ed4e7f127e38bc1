//! Channel numbers, which stand for processes in the binary frames of one connection.
//!
//! A channel is assigned when the pump starts to follow a process and is freed when it stops. The pump announces a
//! channel to the peer before its first use. There are never more channels than followed processes.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::process::Process;

/// The channel table of one connection.
#[derive(Default)]
pub(crate) struct Channels(Mutex<ChannelTable>);

#[derive(Default)]
struct ChannelTable {
    last: u32,
    open: HashMap<u32, Arc<Process>>,
}

impl Channels {
    /// Assigns a channel to a process. A number is reused only after all others were used.
    pub(super) fn open(&self, process: Arc<Process>) -> u32 {
        let mut table = self.0.lock();
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
        // Drop outside the lock: this may be the last reference to the process.
        let closed = self.0.lock().open.remove(&channel);
        drop(closed);
    }

    /// Called when the pump has ended, so that the table keeps no process alive.
    pub(super) fn close_all(&self) {
        let open = std::mem::take(&mut self.0.lock().open);
        drop(open);
    }

    /// The process of a channel that was announced to the peer.
    pub(crate) fn find(&self, channel: u32) -> Option<Arc<Process>> {
        self.0.lock().open.get(&channel).cloned()
    }
}
