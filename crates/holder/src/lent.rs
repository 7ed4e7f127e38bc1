//! Which memory a controller may have mapped, and when it may be used again.
//!
//! Owns the rule that lent memory is never overwritten: it is reused after the controller that has it returned it, and
//! freed instead (which leaves the mappings of others intact) where that controller is gone.

use std::collections::{HashSet, VecDeque};

use exec_server_log::{Pool, Segment};

/// Segments out of every log that wait for their return, 8 MiB at most; beyond it the oldest is freed, not reused.
const PARKED_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct Lent {
    /// Announced to the present controller and not returned.
    lent: HashSet<u64>,
    /// Announced to a controller that went without returning them; they may be mapped for ever.
    tainted: HashSet<u64>,
    parked: VecDeque<Segment>,
}

impl Lent {
    /// The present controller was given this segment.
    pub(crate) fn lend(&mut self, id: u64) {
        self.lent.insert(id);
    }

    /// A segment has left its log. Answers the id if its memory was freed and the controller should know.
    pub(crate) fn dispose(&mut self, pool: &mut Pool, segment: Segment) -> Option<u64> {
        let id = segment.id();
        if self.tainted.remove(&id) {
            return self.lent.remove(&id).then_some(id);
        }
        if !self.lent.contains(&id) {
            return pool.recycle(segment, self.lent.len());
        }
        self.parked.push_back(segment);
        let overdue = if self.parked.len() > PARKED_MAX { self.parked.pop_front() } else { None };
        overdue.map(|segment| {
            self.lent.remove(&segment.id());
            segment.id()
        })
    }

    /// The present controller has no mapping of this segment any more.
    pub(crate) fn handle_return(&mut self, pool: &mut Pool, id: u64) -> Option<u64> {
        self.lent.remove(&id);
        let at = self.parked.iter().position(|segment| segment.id() == id)?;
        pool.recycle(self.parked.remove(at)?, self.lent.len())
    }

    /// The present controller is gone: what it has is never reused.
    pub(crate) fn taint(&mut self) {
        for segment in self.parked.drain(..) {
            self.lent.remove(&segment.id());
        }
        self.tainted.extend(self.lent.drain());
    }
}
