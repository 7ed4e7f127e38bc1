//! A process whose holder is gone: what is still known of it, and the end that nobody wrote. Must not know who finds it.

use std::sync::Arc;

use exec_server_log::{Control, Recovered, Status};

use super::{Birth, Lost, Position, Process};
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
        match &self.board {
            Board::Shared(control) => control.status(self.slot),
            Board::Left { status, .. } => *status,
        }
    }

    /// Whether nobody knows how much the process wrote.
    pub(crate) fn is_uncounted(&self) -> bool {
        matches!(self.board, Board::Left { .. }) && self.lost.get().is_some()
    }

    /// Output bytes that can still be read.
    pub(crate) fn retained_bytes(&self) -> u64 {
        let end = match &self.board {
            Board::Shared(_) => self.status().written,
            Board::Left { end_offset, .. } => *end_offset,
        };
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
