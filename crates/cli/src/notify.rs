//! Tells the service manager (systemd `Type=notify`) that the server is ready or stopping.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use crate::args;

/// The variable with the manager's socket: a path, or an abstract name after `@`.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The longest wait for a busy manager. The wait delays the start and the end of serving.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends a state of sd_notify(3).
pub(crate) fn send_state(state: &str) {
    // A server that a client started in the background may have inherited this variable from another service.
    let Some(socket) = env::var_os(VARIABLE).filter(|_| !args::is_detached()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(state, %error, "cannot notify the service manager");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
