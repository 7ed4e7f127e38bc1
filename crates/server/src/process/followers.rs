//! Tracks the readers that follow a process, and tells the holder what all of them have taken.
//!
//! At its quota a process blocks until its output is taken, and normally only its owner takes. While the owner is
//! detached, following readers stand in for it: the holder may drop what all of them have taken. Later readers get a
//! counted gap. The holder decides when to drop (its module `output`); this module only tracks what was taken.
//!
//! Only a reader that began before everything still retained can free the oldest output. A reader that began later
//! (`attach` shows only the latest output) limits the others, like any slow reader, and frees nothing by itself.

use std::sync::{Arc, atomic::Ordering};

use exec_server_holder::control::{FOLLOWERS, ToHolder};

use super::{OWNER, Process};

/// A reader that takes output: the owner, a subscriber with `hold`, or a polling reader.
pub(super) struct OutputTaker {
    pub(super) key: u64,
    /// The reader began after this event.
    pub(super) from: u64,
    pub(super) seq: u64,
    /// Output that the reader has not taken is kept.
    pub(super) holds: bool,
}

/// A reader besides the owner. Dropping it removes the reader, even if the command that carried it was never executed.
pub(crate) struct OutputHold {
    process: Arc<Process>,
    pub(crate) key: u64,
}

impl Drop for OutputHold {
    fn drop(&mut self) {
        self.process.remove_taker(self.key);
    }
}

impl Process {
    /// Adds a reader whose untaken output is kept. It counts as having taken everything up to `from`, where it begins.
    pub(crate) fn hold(self: &Arc<Self>, from: u64) -> OutputHold {
        self.add_taker(from, from, true)
    }

    fn add_taker(self: &Arc<Self>, from: u64, seq: u64, holds: bool) -> OutputHold {
        let key = self.next_taker.fetch_add(1, Ordering::Relaxed);
        self.takers.lock().push(OutputTaker { key, from, seq, holds });
        self.report_followed();
        OutputHold { process: self.clone(), key }
    }

    fn remove_taker(&self, key: u64) {
        self.takers.lock().retain(|taker| taker.key != key);
        self.release_taken();
        self.report_followed();
    }

    /// Adds a polling reader that has taken everything after `from` up to `seq`. Nothing is kept for it. It counts
    /// while its read is pending.
    pub(crate) fn poll(self: &Arc<Self>, from: u64, seq: u64) -> OutputHold {
        self.add_taker(from, seq, false)
    }

    /// Tells the holder what the following readers have taken, if that has changed.
    pub(super) fn report_followed(&self) {
        if !self.link().supports(FOLLOWERS) || self.forgotten.get().is_some() {
            return;
        }
        // Held until the message is sent: otherwise a thread with an older value could send after one with a newer
        // value.
        let mut reported = self.followed.lock();
        let seq = self.followed_seq();
        if *reported != seq {
            *reported = seq;
            self.link().send(&ToHolder::Followed { slot: self.slot, seq });
        }
    }

    fn followed_seq(&self) -> u64 {
        let first_seq = self.chain().first().map_or_else(|| self.status().next_seq, |(seq, _)| seq);
        let takers = self.takers.lock();
        followed(takers.iter().filter(|taker| taker.key != OWNER), first_seq)
    }
}

/// The last event that all readers have taken, counted from the first retained event; 0 if none of them began at or before it.
fn followed<'a>(readers: impl Iterator<Item = &'a OutputTaker> + Clone, first_seq: u64) -> u64 {
    let has_all = readers.clone().any(|reader| reader.from < first_seq);
    readers.map(|reader| reader.seq).min().filter(|_| has_all).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(from: u64, seq: u64) -> OutputTaker {
        OutputTaker { key: 1, from, seq, holds: true }
    }

    #[test]
    fn slowest_reader_decides_and_one_must_have_begun_at_the_beginning() {
        let of = |readers: &[OutputTaker], first_seq| followed(readers.iter(), first_seq);
        assert_eq!(of(&[], 1), 0);
        assert_eq!(of(&[reader(0, 7)], 1), 7);
        assert_eq!(of(&[reader(0, 7), reader(0, 3)], 1), 3);
        assert_eq!(of(&[reader(5, 7)], 1), 0, "nobody has printed 1 to 5");
        assert_eq!(of(&[reader(5, 7)], 6), 7, "they are gone");
        assert_eq!(of(&[reader(0, 9), reader(5, 7)], 1), 7);
    }
}
