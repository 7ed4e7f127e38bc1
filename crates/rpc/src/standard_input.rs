//! Standard input as a source of pieces that need no further copy.
//!
//! A pipe, terminal or socket is read by the task, without blocking. A file is read by the task if it is in memory, else by a thread of the
//! runtime's blocking pool.

use std::io;

use bytes::Bytes;
use rustix::{buffer::spare_capacity, io::retry_on_intr};
use tokio::{
    io::{AsyncReadExt as _, Interest},
    task::{self, JoinHandle},
};

use crate::{standard_output::is_instant, stdio::StdioDescriptor};

/// Bytes per read of a file: a few times the capacity of a pipe.
const FILE_BYTES: usize = 256 << 10;

/// Bytes per read of anything else: 64 KiB, the capacity of a pipe.
const PIPE_BYTES: usize = 64 << 10;

/// Fd 0.
pub struct StandardInput(ReadMethod);

enum ReadMethod {
    Polled {
        descriptor: StdioDescriptor,
        buf: Vec<u8>,
    },
    Direct,
    /// The read in progress, if there is one.
    OtherThread(Option<JoinHandle<io::Result<Bytes>>>),
}

impl StandardInput {
    /// Call it inside a Tokio runtime. The fd stays open and keeps its flags.
    #[must_use]
    pub fn stdin() -> Self {
        let fd = rustix::stdio::stdin();
        Self(match StdioDescriptor::open(fd, Interest::READABLE) {
            Ok(descriptor) => ReadMethod::Polled { descriptor, buf: vec![0; PIPE_BYTES] },
            Err(_) if is_instant(fd) => ReadMethod::Direct,
            Err(_) => ReadMethod::OtherThread(None),
        })
    }

    /// Returns the next bytes, none at the end. Cancel safe.
    pub async fn read(&mut self) -> io::Result<Bytes> {
        match &mut self.0 {
            ReadMethod::Polled { descriptor, buf } => {
                let count = descriptor.read(buf).await?;
                Ok(Bytes::copy_from_slice(&buf[..count]))
            }
            ReadMethod::Direct => {
                // The read does not wait, so without this a large file would starve other tasks.
                task::coop::consume_budget().await;
                read_file()
            }
            ReadMethod::OtherThread(reading) => {
                let read = reading.get_or_insert_with(|| task::spawn_blocking(read_file)).await;
                *reading = None;
                // Fails only if the runtime shuts down or the thread panics.
                read.map_err(io::Error::other)?
            }
        }
    }
}

fn read_file() -> io::Result<Bytes> {
    let mut piece = Vec::with_capacity(FILE_BYTES);
    retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), spare_capacity(&mut piece)))?;
    Ok(piece.into())
}
