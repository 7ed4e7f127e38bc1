//! TCP streams: the halves of a socket, the socket options, and the kernel's information about the peer.
//!
//! The halves and the probe share one socket.

use std::{
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};

use crate::{ByteStream, sys};

/// Unsent bytes that the kernel accepts in advance: 128 KiB. With more, answers would queue behind megabytes of output.
const NOTSENT_LOWAT: u32 = 128 * 1024;

/// Queries the kernel, or another source, about the peer of a connection. Does not keep a TCP connection open.
#[derive(Clone)]
pub struct TcpProbe(Arc<dyn Fn() -> Option<u32> + Send + Sync>);

impl TcpProbe {
    /// A probe for a transport that is not a socket of this host but has its own information about the peer, such as a
    /// tunnel or a simulated link.
    pub fn from_fn(last_ack_ms: impl Fn() -> Option<u32> + Send + Sync + 'static) -> Self {
        Self(Arc::new(last_ack_ms))
    }

    /// Milliseconds since the peer's TCP last acknowledged anything. `None` if the socket is closed.
    pub fn last_ack_ms(&self) -> Option<u32> {
        (self.0)()
    }
}

impl fmt::Debug for TcpProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpProbe").field("last_ack_ms", &self.last_ack_ms()).finish()
    }
}

impl From<TcpStream> for ByteStream {
    /// Splits the socket, sets `TCP_NODELAY` and limits how much the kernel queues (`TCP_NOTSENT_LOWAT`).
    ///
    /// If the kernel rejects an option, it is left unset: the options affect timing, not correctness.
    fn from(socket: TcpStream) -> Self {
        socket.set_nodelay(true).ok(); // Fails only on a dead socket, which the first read reports.
        sys::set_notsent_lowat(&socket, NOTSENT_LOWAT).ok(); // As above.
        let is_private = socket.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
        let socket = Arc::new(socket);
        let weak = Arc::downgrade(&socket);
        let probe = TcpProbe::from_fn(move || sys::last_ack_ms(&*weak.upgrade()?));
        let stream = ByteStream::new(TcpReadHalf(Arc::clone(&socket)), TcpWriteHalf(socket));
        Self { probe: Some(probe), is_private, ..stream }
    }
}

/// The reading half. Tokio's own halves hide the socket from [`TcpProbe`]; these share it. There is exactly one half
/// per direction, because each direction of the socket has only one waker.
struct TcpReadHalf(Arc<TcpStream>);

impl AsyncRead for TcpReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            let room = buf.remaining();
            let mut is_read = false;
            // A read that leaves room has emptied the socket. `WouldBlock` makes Tokio forget that the socket was readable,
            // which saves the next read, unless more has arrived since this closure was called.
            let tried = self.0.try_io(Interest::READABLE, || {
                let count = self.0.try_read_buf(buf)?;
                is_read = true;
                if (1..room).contains(&count) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match tried {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(_) if is_read => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// The writing half. Shuts down the write direction when dropped, so that the peer sees EOF even while the reading half
/// lives.
struct TcpWriteHalf(Arc<TcpStream>);

impl TcpWriteHalf {
    fn poll_with(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncWrite for TcpWriteHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |socket| socket.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs {
            [buf] => self.poll_write(cx, buf),
            _ => self.poll_with(cx, |socket| socket.try_write_vectored(bufs)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write)?;
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpWriteHalf {
    fn drop(&mut self) {
        rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write).ok(); // Fails if the peer is already gone.
    }
}
