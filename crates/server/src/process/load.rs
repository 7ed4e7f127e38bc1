//! Spilled output on its way back into memory. Blocks, so it runs off the runtime's threads; must not know who reads.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    thread,
    time::Duration,
};

use exec_server_log::{Loaded, RecoverError};

use super::{Process, lock};
use crate::{link::passes, session::short};

/// Spilled segments of one process kept in memory at once, 1 MiB each: a few readers at different places, and no more.
const LOADED_SEGMENTS: usize = 2;

/// How long a host that is short of something is left alone before its disk is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// Spilled segments on their way into memory, and those that are there, oldest first.
#[derive(Default)]
pub(super) struct Loads {
    under_way: BTreeSet<u64>,
    loaded: VecDeque<u64>,
}

/// A spilled segment on its way into memory. Dropped without having run (its connection was cut), it leaves the task to the next reader.
pub(crate) struct Load {
    process: Arc<Process>,
    segment: u64,
}

impl Load {
    /// Reads the segment. Blocking: call it off the runtime's threads.
    pub(crate) fn run(self) {
        let Self { process, segment } = &self;
        let name = exec_server_log::disk_name(process.slot, *segment);
        let file = process.link().open_segment(&name).map_err(RecoverError::from);
        match file.and_then(|file| Loaded::read(&file)) {
            // False: the segment was taken while it was read.
            Ok(loaded) => drop(process.chain().set_loaded(*segment, loaded)),
            // The next reader tries again: a host that is short of something just now has not lost the file.
            Err(RecoverError::Os(error)) if passes(&error) => {
                tracing::warn!(session = short(&process.session), process = process.id(), segment, %error, "spilled output cannot be read now");
                thread::sleep(PAUSE);
                return;
            }
            Err(error) => {
                tracing::error!(session = short(&process.session), process = process.id(), segment, %error, "spilled output cannot be read; it is reported as a gap");
                process.chain().remove(*segment);
            }
        }
        let mut loads = lock(&process.loads);
        loads.loaded.push_back(*segment);
        if loads.loaded.len() > LOADED_SEGMENTS
            && let Some(oldest) = loads.loaded.pop_front()
        {
            process.chain().unload(oldest);
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        lock(&self.process.loads).under_way.remove(&self.segment);
        self.process.wake();
    }
}

impl Process {
    /// Drops what was loaded where nothing reads: ended processes that are kept must not keep memory.
    pub(crate) fn unload_idle(&self) {
        let mut loads = lock(&self.loads);
        if loads.loaded.is_empty() || !loads.under_way.is_empty() || !lock(&self.watches).is_empty() {
            return;
        }
        let mut chain = self.chain();
        loads.loaded.drain(..).for_each(|segment| chain.unload(segment));
    }

    /// The task of reading a spilled segment, unless somebody has it already.
    pub(crate) fn begin_load(self: &Arc<Self>, segment: u64) -> Option<Load> {
        let is_new = lock(&self.loads).under_way.insert(segment);
        is_new.then(|| Load { process: self.clone(), segment })
    }
}
