//! Tells a service manager that waits for it (`Type=notify`) that the server is ready, and that it ends.
//! Must not know what either means.

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

/// Where the manager listens: a path, or an abstract name behind an `@`.
const NAME: &str = "NOTIFY_SOCKET";

/// A manager that is busy for longer than this is not waited for: clients are.
const PATIENCE: Duration = Duration::from_secs(1);

/// The server listens, and has taken over what was there.
pub(crate) fn ready() {
    tell("READY=1");
}

/// The server drains.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    // A server that a client has started in the background may have inherited the variable of some other service.
    let Some(place) = env::var_os(NAME).filter(|_| !args::is_detached()) else { return };
    if let Err(error) = send(&place, state) {
        tracing::warn!(state, %error, "the service manager could not be told");
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
