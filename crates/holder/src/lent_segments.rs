//! Tracks which segments a controller may have mapped, and when their memory may be reused.
//!
//! Ensures that mapped memory is never overwritten. The memory of a segment is reused only after the controller has
//! returned the segment. If the controller disconnects first, the holder closes its own fd and mapping of the segment
//! instead. The kernel keeps the pages until the controller's last mapping is gone, so a slow reader still finds the
//! old bytes.

use std::collections::{HashSet, VecDeque};

use exec_server_log::{Segment, SegmentPool};

/// Maximum number of segments that have left their log and that the controller has not returned (8 MiB). Beyond it, the
/// oldest is freed and not reused.
const PARKED_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct LentSegments {
    /// Ids of the segments that were announced to the current controller and not returned.
    lent: HashSet<u64>,
    /// Ids of the segments that an earlier controller did not return before it disconnected. It may keep them mapped
    /// for an unlimited time, so their memory is never reused.
    unreturned: HashSet<u64>,
    /// Segments that have left their log but are still in `lent`.
    parked: VecDeque<Segment>,
}

impl LentSegments {
    /// Records that the segment was announced to the current controller.
    pub(crate) fn lend(&mut self, id: u64) {
        self.lent.insert(id);
    }

    /// Takes a segment that has left its log. If this freed memory that the controller may have mapped, returns the id
    /// of the last segment in that memory, so that the caller can inform the controller.
    pub(crate) fn dispose(&mut self, pool: &mut SegmentPool, segment: Segment) -> Option<u64> {
        let id = segment.id();
        if self.unreturned.remove(&id) {
            // An earlier controller may still have it mapped: free it by dropping `segment`. If the segment was also
            // announced to the current controller, that controller must be informed.
            return self.lent.remove(&id).then_some(id);
        }
        if !self.lent.contains(&id) {
            // The pool keeps more spare memory if the readers have more segments in use.
            return pool.recycle(segment, self.lent.len());
        }
        self.parked.push_back(segment);
        let overdue = if self.parked.len() > PARKED_MAX { self.parked.pop_front() } else { None };
        overdue.map(|segment| {
            self.lent.remove(&segment.id());
            segment.id()
        })
    }

    /// Handles `Return`: the current controller no longer reads this segment. The controller may keep its mapping, for
    /// a later segment in the same memory. Returns an id as `dispose` does.
    pub(crate) fn handle_return(&mut self, pool: &mut SegmentPool, id: u64) -> Option<u64> {
        self.lent.remove(&id);
        let at = self.parked.iter().position(|segment| segment.id() == id)?;
        pool.recycle(self.parked.remove(at)?, self.lent.len())
    }

    /// Handles the loss of the controller: segments that it may have mapped are never reused.
    pub(crate) fn handle_controller_loss(&mut self) {
        for segment in self.parked.drain(..) {
            // The parked segments are freed here. They must not enter `unreturned`: no log will dispose of them again.
            self.lent.remove(&segment.id());
        }
        self.unreturned.extend(self.lent.drain());
    }
}
