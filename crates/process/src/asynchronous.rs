//! A child for a Tokio runtime: streams as `AsyncRead` and `AsyncWrite`, the exit as a future.
//!
//! This module only registers fds with the reactor. Spawning, signals and the reap are in [`Child`].

use std::{
    io,
    os::fd::OwnedFd,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd};

use crate::{Child, ChildExit};

/// One nonblocking stream of a child.
#[derive(Debug)]
pub struct AsyncStream {
    fd: AsyncFd<OwnedFd>,
}

/// A child whose exit can be awaited.
#[derive(Debug)]
pub struct AsyncChild {
    exit: AsyncFd<OwnedFd>,
    child: Child,
}

impl AsyncStream {
    /// Registers a nonblocking fd, such as those of [`Child`]. Call it inside a runtime.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: register(fd, Interest::READABLE | Interest::WRITABLE)? })
    }
}

impl AsyncChild {
    /// Registers the child's exit fd. Call it inside a runtime.
    pub fn new(child: Child) -> io::Result<Self> {
        let exit = child.exit_fd().try_clone_to_owned()?;
        Ok(Self { exit: register(exit, Interest::READABLE)?, child })
    }

    /// The child, for signals and resizing.
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// The child, for calls that change it, such as [`Child::close_stdin`].
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Takes the writing end of the stdin pipe.
    pub fn take_stdin(&mut self) -> io::Result<Option<AsyncStream>> {
        self.child.take_stdin().map(AsyncStream::new).transpose()
    }

    /// Takes the stdout pipe.
    pub fn take_stdout(&mut self) -> io::Result<Option<AsyncStream>> {
        self.child.take_stdout().map(AsyncStream::new).transpose()
    }

    /// Takes the stderr pipe.
    pub fn take_stderr(&mut self) -> io::Result<Option<AsyncStream>> {
        self.child.take_stderr().map(AsyncStream::new).transpose()
    }

    /// A stream on a duplicate of the terminal's fd. The child keeps its own fd, so it can still be resized.
    pub fn pty(&self) -> io::Result<Option<AsyncStream>> {
        let duplicate = self.child.pty().map(|fd| fd.try_clone_to_owned()).transpose()?;
        duplicate.map(AsyncStream::new).transpose()
    }

    /// Waits until the leader has ended and reaps it. Cancel safe: the child keeps the status.
    pub async fn wait(&mut self) -> io::Result<ChildExit> {
        loop {
            if let Some(exited) = self.child.try_wait()? {
                return Ok(exited);
            }
            self.exit.readable().await?.clear_ready();
        }
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let unfilled = buf.initialize_unfilled();
            match guard.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), unfilled)?)) {
                Ok(Ok(len)) => {
                    buf.advance(len);
                    return Poll::Ready(Ok(()));
                }
                // EIO: no process has the terminal open. This is the end of the stream.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            match guard.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Does nothing. Drop a pipe to close it. For a terminal, call [`Child::close_stdin`].
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open and keeps its number until it is dropped. Nothing here closes or replaces it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
