//! The TCP listener.
//! Must not decide who may connect: `exposure` was asked before, the door is asked after.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Connections the kernel may hold for us; a burst of clients after a restart must not be refused.
const BACKLOG: u32 = 1024;

/// Binds and listens.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of the server before us may linger in TIME_WAIT; the same port must be free for us at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
