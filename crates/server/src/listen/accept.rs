//! Accepts connections for as long as the server lives, also when descriptors run out.
//! Must not know what a connection is for.

use std::{fs::File, future::Future, io, net::SocketAddr, time::Duration};

use futures_util::FutureExt as _;
use rustix::io::Errno;
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    time,
};

use super::unix::UnixSocket;
use crate::descriptors;

/// How long to leave the listener alone when no descriptor is free: long enough to cost no processor, short enough to be
/// healthy again within a second.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Connections closed in one round without a free descriptor; a peer is told at once instead of waiting in the kernel.
const CLOSED_AT_ONCE: usize = 64;

/// A socket that connections come from.
pub(super) trait Listener {
    /// What it gives.
    type Connection;

    /// Waits for the next connection; cancel safe.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

impl Listener for TcpListener {
    type Connection = (TcpStream, SocketAddr);

    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send {
        self.accept()
    }
}

impl Listener for UnixSocket {
    type Connection = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

/// One listener with the descriptor it gives up when there are no others.
pub(super) struct Acceptor<L> {
    listener: L,
    /// Closed to make room for one `accept` when the process has no descriptor left, then opened again.
    spare: Option<File>,
}

impl<L: Listener> Acceptor<L> {
    pub(super) fn new(listener: L) -> Self {
        Self { listener, spare: spare() }
    }

    /// The next connection. No error of one connection or of the process's limits ends it.
    pub(super) async fn next(&mut self) -> L::Connection {
        loop {
            // With few left it is as with none.
            let accepted = self.listener.accept().await.and_then(|connection| {
                if descriptors::allow_stranger() { Ok(connection) } else { Err(Errno::MFILE.into()) }
            });
            match accepted {
                Ok(connection) => return connection,
                Err(error) if is_exhausted(&error) => {
                    tracing::warn!(%error, "no descriptor for a connection; closing those that wait");
                    self.close_waiting();
                    time::sleep(BACK_OFF).await;
                }
                // The peer was gone before we came; the next one may be fine.
                Err(error) if is_of_the_peer(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "accept failed");
                    time::sleep(BACK_OFF).await;
                }
            }
        }
    }

    fn close_waiting(&mut self) {
        // Somebody else may have taken its number the last time.
        self.spare = self.spare.take().or_else(spare);
        for _ in 0..CLOSED_AT_ONCE {
            if self.spare.take().is_none() {
                return;
            }
            let accepted = self.listener.accept().now_or_never();
            let is_closed = matches!(accepted, Some(Ok(_)));
            drop(accepted);
            self.spare = spare();
            if !is_closed {
                return;
            }
        }
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

fn is_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].iter().any(|known| errno == Some(known.raw_os_error()))
}

fn is_of_the_peer(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::CONNABORTED, Errno::INTR, Errno::PROTO, Errno::CONNRESET, Errno::PERM]
        .iter()
        .any(|known| errno == Some(known.raw_os_error()))
}
