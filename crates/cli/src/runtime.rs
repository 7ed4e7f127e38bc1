//! The async runtime of the commands, made after the spawner was forked.
//! Must not know what runs on it.

use std::{io, thread};

use tokio::runtime::{Builder, Runtime};

/// At most: more than four threads only spread the same work.
const WORKERS_MAX: usize = 4;

/// Makes the runtime.
pub(crate) fn new() -> io::Result<Runtime> {
    // Half of the cores: holders and children run beside us, and a request that stays on one thread saves a wake-up at every hop.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, WORKERS_MAX))
        .thread_name("exec-server")
        .enable_all()
        .build()
}
