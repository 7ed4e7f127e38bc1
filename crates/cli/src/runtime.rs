//! The async runtime of the commands. It is created after the spawner was forked.

use std::{future::Future, io, pin::Pin, thread};

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

/// More than four threads only spread the same work.
const WORKERS_MAX: usize = 4;

/// Freed memory that the allocator keeps: several times the output that is on its way through a command. It bounds what a command holds
/// after a burst.
const KEPT_BYTES: u32 = 16 << 20;

pub(crate) fn new() -> io::Result<Runtime> {
    // Use half of the cores: holders and children need the others, and a request that stays on one thread saves a wake-up at every hop.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, WORKERS_MAX))
        .thread_name("exec-server")
        .enable_all()
        .build()
}

/// Runs a command to its end on a new multi-threaded runtime.
pub(crate) fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    run_on(new(), command)
}

/// Like `block_on`, but on the current thread; only the blocking pool adds threads. Copied bytes then stay in the cache of one core and
/// wake no other thread.
pub(crate) fn block_on_here<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    exec_server_rpc::keep_freed_memory(KEPT_BYTES);
    run_on(Builder::new_current_thread().enable_all().build(), command)
}

fn run_on<T>(runtime: io::Result<Runtime>, command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut done = None;
    run_to_end(runtime, Box::pin(async { done = Some(command.await) }))?;
    done.expect("the runtime runs the command to its end")
}

/// Takes a boxed future, so that the runtime is compiled once and not again for the type of each command.
fn run_to_end(runtime: io::Result<Runtime>, command: Pin<Box<dyn Future<Output = ()> + '_>>) -> anyhow::Result<()> {
    let runtime = runtime.context("start the runtime")?;
    runtime.block_on(command);
    // A blocking thread may be stuck in a read of stdin, which cannot be interrupted.
    runtime.shutdown_background();
    Ok(())
}
