//! Binds TCP listeners. `exposure` has checked the address before, and admission authenticates the connections.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Backlog of connections in the kernel. A burst of clients after a restart must not be refused.
const BACKLOG: u32 = 1024;

pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of the previous server may be in TIME_WAIT. Without SO_REUSEADDR they would block the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
