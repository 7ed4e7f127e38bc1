//! Accepts connections as long as the server runs, also when the process is out of file descriptors.

use std::{fs::File, future::Future, io, net::SocketAddr, time::Duration};

use futures_util::FutureExt as _;
use rustix::io::Errno;
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    time,
};

use super::unix::UnixSocket;
use crate::descriptors;

/// How long to wait before the next accept when no fd is free. Long enough not to burn CPU, short enough to recover
/// within a second.
const BACK_OFF: Duration = Duration::from_millis(100);

/// How many waiting connections to close at once when no fd is free. A peer whose connection is closed can retry at
/// once; otherwise it would wait in the kernel's backlog.
const CLOSED_AT_ONCE: usize = 64;

/// A socket that accepts connections.
pub(super) trait Listener {
    type Connection;

    /// Waits for the next connection. Cancel safe.
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

/// A listener with a spare fd, which is freed when the process has no other fd left.
pub(super) struct Acceptor<L> {
    listener: L,
    /// Closed to make room for one `accept` when the process is out of fds, then opened again.
    spare: Option<File>,
}

impl<L: Listener> Acceptor<L> {
    pub(super) fn new(listener: L) -> Self {
        Self { listener, spare: spare() }
    }

    /// The next connection. Neither an error of a single connection nor a lack of resources ends the loop.
    pub(super) async fn next(&mut self) -> L::Connection {
        loop {
            // Few free fds count as none: they are for existing work. The new connection is then closed like those that
            // wait.
            let accepted = self.listener.accept().await.and_then(|connection| {
                if descriptors::allow_unauthenticated() { Ok(connection) } else { Err(Errno::MFILE.into()) }
            });
            match accepted {
                Ok(connection) => return connection,
                Err(error) if is_exhausted(&error) => {
                    tracing::warn!(%error, "no fd for a new connection; closing the waiting ones");
                    self.close_waiting();
                    time::sleep(BACK_OFF).await;
                }
                // The connection failed before the accept. Try the next one.
                Err(error) if is_peer_error(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "accept failed");
                    time::sleep(BACK_OFF).await;
                }
            }
        }
    }

    /// Accepts and closes connections from the backlog, each with the fd that the spare frees.
    fn close_waiting(&mut self) {
        // The spare may be missing: after the last round, another thread may have taken the freed fd.
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
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// Whether `accept` failed because of the connection that it would have returned.
fn is_peer_error(error: &io::Error) -> bool {
    use Errno as E;
    matches!(E::from_io_error(error), Some(E::CONNABORTED | E::INTR | E::PROTO | E::CONNRESET | E::PERM))
}
