//! Mappings of a holder's memory that outlive their segment: the holder uses the memory again for the next one. A mapping is most of
//! what a short process costs here, and for a flood each new one has to be touched page by page.
//!
//! Must not know processes. No more is kept than a holder keeps of free memory; a mapping goes when the holder says that it has let go
//! of the memory behind it.

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
};

use exec_server_holder::wire::SegmentInfo;
use exec_server_log::{Mapping, memfd_of};

use crate::process::lock;

/// As many as a holder keeps for its next segments.
const KEPT_MAX: usize = 32;

/// What they may hold together: as much as a holder keeps at most.
const KEPT_BYTES: usize = 16 << 20;

/// Those that are kept, the latest last.
#[derive(Default)]
pub(super) struct Maps(Mutex<VecDeque<Kept>>);

struct Kept {
    memfd: u64,
    /// What the segment held that was let go of.
    bytes: usize,
    mapping: Arc<Mapping>,
}

/// A mapping in the hands of a log.
pub(crate) struct Lent {
    memfd: u64,
    mapping: Arc<Mapping>,
    maps: Arc<Maps>,
}

impl Maps {
    /// The mapping of a segment that has begun.
    pub(super) fn map(self: &Arc<Self>, info: &SegmentInfo, fd: OwnedFd) -> io::Result<Arc<Lent>> {
        let memfd = memfd_of(info.id);
        let is_it = |mapping: &Arc<Mapping>| (mapping.id(), mapping.slot()) == (info.id, info.slot);
        let mapping = match self.take(memfd).filter(is_it) {
            Some(kept) => kept,
            None => Mapping::map(fd).map_err(io::Error::other)?,
        };
        Ok(Arc::new(Lent { memfd, mapping, maps: self.clone() }))
    }

    /// The holder will not use the memory of this segment again.
    pub(super) fn retire(&self, segment: u64) {
        drop(self.take(memfd_of(segment)));
    }

    fn take(&self, memfd: u64) -> Option<Arc<Mapping>> {
        let mut kept = lock(&self.0);
        let at = kept.iter().position(|kept| kept.memfd == memfd)?;
        kept.remove(at).map(|kept| kept.mapping)
    }

    fn keep(&self, memfd: u64, mapping: Arc<Mapping>) {
        let bytes = mapping.used_bytes();
        let mut kept = lock(&self.0);
        kept.retain(|kept| kept.memfd != memfd);
        kept.push_back(Kept { memfd, bytes, mapping });
        let mut held: usize = kept.iter().map(|kept| kept.bytes).sum();
        while kept.len() > KEPT_MAX || held > KEPT_BYTES {
            let Some(oldest) = kept.pop_front() else { break };
            held -= oldest.bytes;
        }
    }
}

impl AsRef<Mapping> for Lent {
    fn as_ref(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for Lent {
    /// The log has let go of it, before it gives the segment back.
    fn drop(&mut self) {
        self.maps.keep(self.memfd, self.mapping.clone());
    }
}
