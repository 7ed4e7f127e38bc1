//! The async runtime of the commands, made after the spawner was forked.
//! Must not know what runs on it.

use std::{future::Future, io, pin::Pin, thread};

use anyhow::Context as _;
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

/// Runs a command to its end on a runtime of its own.
pub(crate) fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    on(new(), command)
}

/// The same on this thread alone, beside those that wait for disks: what is carried from one place to another stays in one
/// processor's cache, and wakes no other thread on its way.
pub(crate) fn block_on_here<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    on(Builder::new_current_thread().enable_all().build(), command)
}

fn on<T>(runtime: io::Result<Runtime>, command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut done = None;
    until_end(runtime, Box::pin(async { done = Some(command.await) }))?;
    done.expect("the runtime was not left before the command ended")
}

/// One for all commands: a runtime that knows each command's type is compiled again for each, in several ways.
fn until_end(runtime: io::Result<Runtime>, command: Pin<Box<dyn Future<Output = ()> + '_>>) -> anyhow::Result<()> {
    let runtime = runtime.context("start the runtime")?;
    runtime.block_on(command);
    // Standard input may be read by a thread that nobody can interrupt.
    runtime.shutdown_background();
    Ok(())
}
