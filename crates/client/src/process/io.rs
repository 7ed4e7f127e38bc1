//! The streams of a process as `AsyncRead` and `AsyncWrite`, built on `Events` and on the stdin queue.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use exec_server_protocol::process as wire;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

use super::{
    ProcessShared,
    cursor::Events,
    event::Event,
    stdin_queue::{CloseReply, WriteReply},
};

/// The largest single write. Large enough that the overhead of its message does not matter.
const WRITE_BYTES: usize = 256 << 10;

/// Stdin of a process. A write returns when its bytes are queued. `flush` waits until all bytes are in the pipe or terminal of the process.
/// `shutdown` flushes and then closes stdin.
pub struct Stdin {
    shared: Arc<ProcessShared>,
    in_flight: VecDeque<oneshot::Receiver<WriteReply>>,
    closing: Option<oneshot::Receiver<CloseReply>>,
    is_closed: bool,
}

impl Stdin {
    pub(super) fn new(shared: Arc<ProcessShared>) -> Self {
        Self { shared, in_flight: VecDeque::new(), closing: None, is_closed: false }
    }

    /// Queues all of the bytes like `write_all`, without a copy. Cancel safe only if the bytes are at most 256 KiB.
    pub async fn write_bytes(&mut self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(WRITE_BYTES));
            poll_fn(|cx| self.poll_queue(cx, &piece)).await?;
        }
        Ok(())
    }

    /// Queues one piece when there is room.
    fn poll_queue(&mut self, cx: &mut Context<'_>, bytes: &Bytes) -> Poll<io::Result<()>> {
        if self.is_closed || self.closing.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // Report the error of an earlier write, but do not wait for the writes in flight.
        if let Poll::Ready(settled) = self.poll_settle(cx) {
            settled?;
        }
        let (written, must_start_sender) = ready!(self.shared.input.poll_write(cx, bytes));
        self.shared.start_sender(must_start_sender);
        self.in_flight.push_back(written);
        Poll::Ready(Ok(()))
    }

    /// Waits for the answers of all writes. Removes the writes that are answered so far, even if it returns `Pending`.
    fn poll_settle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(first) = self.in_flight.front_mut() {
            let written = ready!(Pin::new(first).poll(cx));
            self.in_flight.pop_front();
            let status = written.map_err(|_| io::ErrorKind::BrokenPipe)??;
            if status != wire::WriteStatus::Accepted {
                return Poll::Ready(Err(write_error(status)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stdin {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let bytes = Bytes::copy_from_slice(&buf[..buf.len().min(WRITE_BYTES)]);
        ready!(self.poll_queue(cx, &bytes))?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_settle(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_closed {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_settle(cx))?;
        if self.closing.is_none() {
            self.shared.require(|capabilities| capabilities.close_stdin, "close stdin")?;
            let (closed, must_start_sender) = self.shared.input.close();
            self.shared.start_sender(must_start_sender);
            self.closing = Some(closed);
        }
        // `closing` was set above or by an earlier call.
        let Some(closing) = &mut self.closing else { return Poll::Ready(Ok(())) };
        let closed = ready!(Pin::new(closing).poll(cx));
        self.closing = None;
        self.is_closed = true;
        // A stdin that was closed before, or whose process has ended, counts as closed.
        if closed.map_err(|_| io::ErrorKind::BrokenPipe)?? == wire::CloseStdinStatus::RawMode {
            let reason = "the terminal is in raw mode, in which no character means end of input";
            return Poll::Ready(Err(io::Error::other(reason)));
        }
        Poll::Ready(Ok(()))
    }
}

fn write_error(status: wire::WriteStatus) -> io::Error {
    match status {
        // Not an error; the caller handles this status.
        wire::WriteStatus::Accepted => io::ErrorKind::Other.into(),
        wire::WriteStatus::StdinClosed => {
            io::Error::new(io::ErrorKind::BrokenPipe, "the process has no standard input, or has closed it")
        }
        wire::WriteStatus::UnknownProcess => io::Error::new(io::ErrorKind::NotFound, "there is no such process"),
        wire::WriteStatus::Starting => io::Error::new(io::ErrorKind::WouldBlock, "the process is being started"),
    }
}

/// Output of a process as bytes. A gap is reported once, as an error of kind `InvalidData`. Reading continues after the gap.
pub struct Output {
    events: Events,
    streams: &'static [wire::Stream],
    rest: Bytes,
}

impl Output {
    pub(super) fn new(events: Events, streams: &'static [wire::Stream]) -> Self {
        Self { events, streams, rest: Bytes::new() }
    }
}

impl AsyncRead for Output {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(self.events.poll_next_event(cx)) {
                Some(Event::Output { stream, bytes, .. }) if self.streams.contains(&stream) => self.rest = bytes,
                Some(Event::Output { .. } | Event::Exited { .. }) => {}
                Some(Event::Gap { bytes, .. }) => {
                    let count = bytes.map_or_else(|| "some".to_owned(), |bytes| bytes.to_string());
                    let text = format!("{count} bytes of output are gone");
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
                }
                Some(Event::Failed(error)) => return Poll::Ready(Err(error.into())),
                Some(Event::Closed { .. }) | None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.rest.len().min(buf.remaining());
        buf.put_slice(&self.rest[..count]);
        self.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Debug for Stdin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stdin").field("in_flight", &self.in_flight.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("events", &self.events).finish_non_exhaustive()
    }
}
