//! Readers that follow a process: what all of them have taken, as the holder is told. Must not know connections.
//!
//! A process at its quota waits until its output is taken, and only its owner takes. While no owner is attached, a reader that follows
//! stands in for it: what every such reader has taken may be dropped, and is a counted gap for whoever reads later. The holder
//! decides when (`output` there); here is only known what was taken.
//!
//! Only a reader that began before everything that is still retained can speak for the oldest of it. One that began later (`attach`
//! shows the latest output only) slows the others down, like any slow reader, and frees nothing by itself.

use std::sync::{Arc, atomic::Ordering};

use exec_server_holder::wire::{FOLLOWERS, ToHolder};

use super::{OWNER, Process, lock};

/// One who takes: the owner, a subscriber that holds, a reader that polls.
pub(super) struct Taker {
    pub(super) key: u64,
    /// It began behind this number.
    pub(super) from: u64,
    pub(super) seq: u64,
    /// What it has not taken is kept for it.
    pub(super) holds: bool,
}

/// A reader beside the owner. Dropping it lets go, also where the order that carried it was never obeyed.
pub(crate) struct Hold {
    process: Arc<Process>,
    pub(crate) key: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.process.remove_taker(self.key);
    }
}

impl Process {
    /// A further reader whose untaken bytes are kept. It has taken nothing but what lies up to `from`, where it began.
    pub(crate) fn hold(self: &Arc<Self>, from: u64) -> Hold {
        self.add_taker(from, from, true)
    }

    fn add_taker(self: &Arc<Self>, from: u64, seq: u64, holds: bool) -> Hold {
        let key = self.next_taker.fetch_add(1, Ordering::Relaxed);
        lock(&self.takers).push(Taker { key, from, seq, holds });
        self.tell_followed();
        Hold { process: self.clone(), key }
    }

    fn remove_taker(&self, key: u64) {
        lock(&self.takers).retain(|taker| taker.key != key);
        self.let_go();
        self.tell_followed();
    }

    /// A reader that polls: it has taken everything after `from` up to `seq`. Nothing is kept for it; it counts while its read is under way.
    pub(crate) fn poll(self: &Arc<Self>, from: u64, seq: u64) -> Hold {
        self.add_taker(from, seq, false)
    }

    /// Tells the holder what the readers that follow have taken, where that has changed.
    pub(super) fn tell_followed(&self) {
        if !self.link().takes(FOLLOWERS) || self.forgotten.get().is_some() {
            return;
        }
        // Held until it is sent: of two threads the one with the older news must not come second.
        let mut told = lock(&self.followed);
        let seq = self.followed_seq();
        if *told != seq {
            *told = seq;
            self.link().send(&ToHolder::Followed { slot: self.slot, seq });
        }
    }

    fn followed_seq(&self) -> u64 {
        let first_seq = self.chain().first().map_or_else(|| self.status().next_seq, |(seq, _)| seq);
        let takers = lock(&self.takers);
        followed(takers.iter().filter(|taker| taker.key != OWNER), first_seq)
    }
}

/// What all of the readers have taken, from the first retained number on; 0 where none of them began there.
fn followed<'a>(readers: impl Iterator<Item = &'a Taker> + Clone, first_seq: u64) -> u64 {
    let has_all = readers.clone().any(|reader| reader.from < first_seq);
    readers.map(|reader| reader.seq).min().filter(|_| has_all).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(from: u64, seq: u64) -> Taker {
        Taker { key: 1, from, seq, holds: true }
    }

    #[test]
    fn slowest_reader_decides_and_one_must_have_begun_at_the_beginning() {
        let of = |readers: &[Taker], first_seq| followed(readers.iter(), first_seq);
        assert_eq!(of(&[], 1), 0);
        assert_eq!(of(&[reader(0, 7)], 1), 7);
        assert_eq!(of(&[reader(0, 7), reader(0, 3)], 1), 3);
        assert_eq!(of(&[reader(5, 7)], 1), 0, "nobody has printed 1 to 5");
        assert_eq!(of(&[reader(5, 7)], 6), 7, "they are gone");
        assert_eq!(of(&[reader(0, 9), reader(5, 7)], 1), 7);
    }
}
