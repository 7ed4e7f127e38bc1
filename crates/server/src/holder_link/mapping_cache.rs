//! Caches mappings of a holder's memory beyond the life of a segment, because the holder reuses the memory for later
//! segments. Creating a mapping is the largest cost of a short process in the server. With heavy output, every new
//! mapping would also fault in page by page.
//!
//! The pages belong to the holder, which bounds its free memory. The server drops a mapping when the holder reports
//! that it has freed the memory (`Retired`).

use std::{collections::VecDeque, io, os::fd::OwnedFd, sync::Arc};

use exec_server_holder::control::AnnouncedSegment;
use exec_server_log::{MappedSegment, memfd_of};
use parking_lot::Mutex;

/// Maximum number of cached mappings: as many free segments as a holder keeps at most.
const KEPT_MAX: usize = 32;

/// The cached mappings by the number of their memfd, newest last.
#[derive(Default)]
pub(super) struct MappingCache(Mutex<VecDeque<(u64, Arc<MappedSegment>)>>);

/// A mapping that a log uses. Dropping it returns the mapping to the cache.
pub(crate) struct LentMapping {
    memfd: u64,
    mapping: Arc<MappedSegment>,
    mappings: Arc<MappingCache>,
}

impl MappingCache {
    /// Maps a new segment, from the cache if possible.
    pub(super) fn map(self: &Arc<Self>, info: &AnnouncedSegment, fd: OwnedFd) -> io::Result<Arc<LentMapping>> {
        let memfd = memfd_of(info.id);
        // The header in the mapped memory must show the announced segment. Otherwise map the fd that came with it.
        let shows_segment = |mapping: &Arc<MappedSegment>| (mapping.id(), mapping.slot()) == (info.id, info.slot);
        let mapping = match self.take(memfd).filter(shows_segment) {
            Some(kept) => kept,
            None => MappedSegment::map(fd).map_err(io::Error::other)?,
        };
        Ok(Arc::new(LentMapping { memfd, mapping, mappings: self.clone() }))
    }

    /// Drops a mapping whose memory the holder will not use again.
    pub(super) fn retire(&self, segment: u64) {
        drop(self.take(memfd_of(segment)));
    }

    fn take(&self, memfd: u64) -> Option<Arc<MappedSegment>> {
        let mut kept = self.0.lock();
        let at = kept.iter().position(|(other, _)| *other == memfd)?;
        kept.remove(at).map(|(_, mapping)| mapping)
    }

    fn put_back(&self, memfd: u64, mapping: Arc<MappedSegment>) {
        let mut kept = self.0.lock();
        kept.retain(|(other, _)| *other != memfd);
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((memfd, mapping));
    }
}

impl AsRef<MappedSegment> for LentMapping {
    fn as_ref(&self) -> &MappedSegment {
        &self.mapping
    }
}

impl Drop for LentMapping {
    /// Puts the mapping into the cache. The log drops it before it returns the segment to the holder.
    fn drop(&mut self) {
        self.mappings.put_back(self.memfd, self.mapping.clone());
    }
}
