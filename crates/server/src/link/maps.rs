//! Mappings of a holder's memory that outlive their segment: the holder uses the memory again for the next one. A mapping is most of
//! what a short process costs here, and a flood would touch each new one page by page.
//!
//! Must not know processes. The pages are the holder's, which bounds what it keeps free: a mapping goes when the holder says that it
//! has let go of the memory behind it.

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

/// Those that are kept, by the number of their memfd, the latest last.
#[derive(Default)]
pub(super) struct Maps(Mutex<VecDeque<(u64, Arc<Mapping>)>>);

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
        let at = kept.iter().position(|(other, _)| *other == memfd)?;
        kept.remove(at).map(|(_, mapping)| mapping)
    }

    fn keep(&self, memfd: u64, mapping: Arc<Mapping>) {
        let mut kept = lock(&self.0);
        kept.retain(|(other, _)| *other != memfd);
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((memfd, mapping));
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
