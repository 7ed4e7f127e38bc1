//! Mappings of a holder's memory that outlive their segment: the holder uses the memory again for the next one, and a mapping is most
//! of what a short process costs here.
//!
//! Must not know processes. What is kept is bounded, and goes when the holder says that it has let go of the memory.

use std::{collections::VecDeque, io, os::fd::OwnedFd, sync::Arc};

use exec_server_holder::wire::SegmentInfo;
use exec_server_log::{Mapping, memfd_of};

/// Enough for short processes that follow each other, of which one takes the memory that the one before has left. What is kept is memory that the
/// holder has itself (what it frees, it tells), but the kernel counts it for both.
const KEPT_MAX: usize = 4;

/// By the number of their memfd, the latest last.
#[derive(Default)]
pub(super) struct Maps(VecDeque<(u64, Arc<Mapping>)>);

impl Maps {
    /// The mapping of a segment that has begun.
    pub(super) fn map(&mut self, info: &SegmentInfo, fd: OwnedFd) -> io::Result<Arc<Mapping>> {
        let memfd = memfd_of(info.id);
        if let Some((_, kept)) = self.0.iter().find(|(kept, _)| *kept == memfd)
            && (kept.id(), kept.slot()) == (info.id, info.slot)
        {
            return Ok(kept.clone());
        }
        let mapping = Mapping::map(fd).map_err(io::Error::other)?;
        self.retire(info.id);
        if self.0.len() >= KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back((memfd, mapping.clone()));
        Ok(mapping)
    }

    /// The holder will not use the memory of this segment again.
    pub(super) fn retire(&mut self, segment: u64) {
        self.0.retain(|(memfd, _)| *memfd != memfd_of(segment));
    }
}
