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

/// The manager's socket: a path, or an abstract name after `@`.
const NAME: &str = "NOTIFY_SOCKET";

/// The longest wait for a busy manager; clients must not wait for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends a state of sd_notify(3).
pub(crate) fn send_state(state: &str) {
    // A server that a client started in the background may have inherited this variable from another service.
    let Some(place) = env::var_os(NAME).filter(|_| !args::is_detached()) else { return };
    if let Err(error) = send(&place, state) {
        tracing::warn!(state, %error, "cannot notify the service manager");
    }
}

fn send(place: &OsStr, state: &str) -> io::Result<()> {
    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
