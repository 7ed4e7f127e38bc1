//! The async runtime of the commands, made after the spawner was forked.
//! Must not know what runs on it.

use std::{io, thread};

use tokio::runtime::{Builder, Runtime};

/// One thread may be busy encoding while another reads; more than four only spread the same work.
const WORKERS: (usize, usize) = (2, 4);

/// Makes the runtime.
pub(crate) fn new() -> io::Result<Runtime> {
    let cores = thread::available_parallelism().map_or(WORKERS.0, usize::from);
    Builder::new_multi_thread()
        .worker_threads(cores.clamp(WORKERS.0, WORKERS.1))
        .thread_name("exec-server")
        .enable_all()
        .build()
}
