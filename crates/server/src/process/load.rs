//! Loads spilled segments back into memory. Blocking, so it runs off the runtime's threads.

use std::{sync::Arc, thread, time::Duration};

use exec_server_log::{LoadedSegment, RecoverError};

use super::Process;
use crate::{holder_link::is_temporary, session::short_id};

/// Pause before the next read when the host is short of a resource.
const PAUSE: Duration = Duration::from_millis(100);

/// A pending load of a spilled segment. If it is dropped without running (its connection was cut), the next reader
/// starts another load.
pub(crate) struct SegmentLoad {
    process: Arc<Process>,
    segment: u64,
}

impl SegmentLoad {
    /// Reads the segment. Blocking: call it off the runtime's threads.
    pub(crate) fn run(self) {
        let Self { process, segment } = &self;
        let name = exec_server_log::disk_name(process.slot, *segment);
        let file = process.link().open_segment(&name).map_err(RecoverError::from);
        match file.and_then(|file| LoadedSegment::read(&file)) {
            Ok(loaded) => process.log().set_loaded(*segment, loaded),
            // A resource shortage does not mean that the file is lost. Readers try again when this load is dropped.
            Err(RecoverError::Os(error)) if is_temporary(&error) => {
                tracing::warn!(session = short_id(&process.session), process = process.id(), segment, %error, "cannot read spilled output now; trying again");
                thread::sleep(PAUSE);
            }
            Err(error) => {
                tracing::error!(session = short_id(&process.session), process = process.id(), segment, %error, "spilled output cannot be read; it is reported as a gap");
                process.log().chain.remove(*segment);
            }
        }
    }
}

impl Drop for SegmentLoad {
    fn drop(&mut self) {
        let mut log = self.process.log();
        log.loading.remove(&self.segment);
        log.wake();
    }
}

impl Process {
    /// Starts the load of a spilled segment, unless one is already under way.
    pub(crate) fn begin_load(self: &Arc<Self>, segment: u64) -> Option<SegmentLoad> {
        let is_new = self.log().loading.insert(segment);
        is_new.then(|| SegmentLoad { process: self.clone(), segment })
    }
}
