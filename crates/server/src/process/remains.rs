//! A process whose holder is gone: what is still known of it, and the end that nobody wrote. Must not know who finds it.
//!
//! A holder that left a session to its files ([`Process::archive`]) wrote all of its logs and their ends; one that died may not have.

use std::sync::{Arc, PoisonError, RwLockReadGuard};

use exec_server_holder::roll::Enrolled;
use exec_server_log::{Control, Place, Recovered, Status};

use super::{Birth, Lost, Position, Process, lock};
use crate::link::Link;

/// Where the state of a process is read.
pub(super) enum Board {
    /// In the block that is shared with the holder.
    Shared(Arc<Control>),
    /// Nowhere any more: what was known when its holder was found dead, and how far its output can be read.
    Left { status: Status, end_offset: u64 },
}

impl Process {
    /// A process whose holder was found dead: what it spilled can be read, then comes a gap for what is known to be missing, then an
    /// end that says that it was lost. What the holder read after it last wrote down where the log stood, nobody can count.
    pub(crate) fn left(birth: Birth, link: Arc<Link>, known: Status, recovered: &Recovered) -> Self {
        let on_disk = (
            recovered.next_seq.saturating_add(recovered.torn_records),
            recovered.end_offset.saturating_add(recovered.torn_bytes),
        );
        let first_seq = recovered.segments.first().map_or(known.next_seq, |info| info.base_seq);
        let status = Status {
            next_seq: known.next_seq.max(on_disk.0).max(1),
            written: known.written.max(on_disk.1),
            first_seq,
            ..known
        };
        let taken = Position { seq: known.released_seq, offset: known.released_offset };
        let board = Board::Left { status, end_offset: recovered.end_offset };
        let process = Self::at(birth, link, board, taken);
        {
            let mut chain = process.chain();
            recovered.segments.iter().for_each(|info| chain.push_disk(*info));
            // Read after the last segment: the numbers and bytes that were in memory, as far as they are known.
            chain.forget_below(status.next_seq, status.written);
        }
        process.end_here(status);
        process
    }

    pub(super) fn published(&self) -> Status {
        match &*self.board() {
            Board::Shared(control) => control.status(self.slot),
            Board::Left { status, .. } => *status,
        }
    }

    /// Every assignment to it is one statement, so that it is whole whatever panicked.
    pub(super) fn board(&self) -> RwLockReadGuard<'_, Board> {
        self.board.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has closed and all that is retained of its log is on disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.status().closed_seq.is_some() && self.chain().segments().all(|segment| segment.place == Place::Disk)
    }

    /// The holder has left the session to its files: lets go of everything that was shared with it.
    pub(crate) fn archive(&self, link: Arc<Link>) {
        let status = self.published();
        let left = Board::Left { status, end_offset: status.written };
        *self.board.write().unwrap_or_else(PoisonError::into_inner) = left;
        *lock(&self.link) = link;
        *lock(&self.leader) = None;
        self.fail_inputs();
        self.wake();
    }

    /// Another holder looks after its files. Segments that it knows and that were taken meanwhile are given up.
    pub(crate) fn rejoin(&self, link: Arc<Link>, known: &Self) {
        let ours: Vec<u64> = self.chain().segments().map(|segment| segment.id).collect();
        let theirs: Vec<u64> = known.chain().segments().map(|segment| segment.id).collect();
        for taken in theirs.into_iter().filter(|id| !ours.contains(id)) {
            link.release(self.slot, taken);
        }
        *lock(&self.link) = link;
    }

    /// Its line in the roll, and the names of the files that belong to it.
    pub(crate) fn enrolled(&self) -> (Enrolled, Vec<String>) {
        let files = self.chain().segments().map(|segment| exec_server_log::disk_name(self.slot, segment.id)).collect();
        let meta = serde_json::to_vec(&self.meta).expect("a record of strings and numbers serializes");
        (Enrolled { slot: self.slot, pid: self.pid, status: self.status(), meta }, files)
    }

    /// Output was taken: what is retained begins at this number and offset, or nothing is. Where no holder counts it, it is counted here.
    pub(super) fn note_released(&self, first: Option<(u64, u64)>) {
        if let Board::Left { status, .. } = &mut *self.board.write().unwrap_or_else(PoisonError::into_inner) {
            let (seq, offset) = first.unwrap_or((status.next_seq, status.written));
            status.first_seq = seq;
            status.released_seq = status.released_seq.max(seq.saturating_sub(1));
            status.released_offset = status.released_offset.max(offset);
        }
    }

    /// Whether nobody knows how much the process wrote.
    pub(crate) fn is_uncounted(&self) -> bool {
        matches!(*self.board(), Board::Left { .. }) && self.lost.get().is_some()
    }

    /// Output bytes that can still be read.
    pub(crate) fn retained_bytes(&self) -> u64 {
        let left = match &*self.board() {
            Board::Shared(_) => None,
            Board::Left { end_offset, .. } => Some(*end_offset),
        };
        let end = left.unwrap_or_else(|| self.status().written);
        self.chain().retained_bytes(end)
    }

    /// Makes up the end that nobody wrote.
    pub(super) fn end_here(&self, status: Status) {
        if status.closed_seq.is_none() {
            let exited_seq = status.exited.is_none().then_some(status.next_seq);
            let closed_seq = status.next_seq + u64::from(exited_seq.is_some());
            self.lost.set(Lost { exited_seq, closed_seq }).ok(); // Set once: the link ends once.
        }
    }
}
