//! Listeners: what a server is told to listen on, the sockets themselves, and the loop that accepts.
//!
//! [`url`] reads the words, [`exposure`] refuses what would be open to the world, `tcp` and `unix` make sockets,
//! `accept` survives a lack of descriptors, and [`Server`] runs them all and ends them in order.
//! Must not know HTTP (that is the door's) nor the wire.

mod accept;
pub mod exposure;
mod serve;
mod tcp;
mod unix;
pub mod url;

pub use serve::{Bound, Ended, Server, ServerConfig};
pub use unix::UnixError;
pub use url::ListenUrl;

use std::{io, net::SocketAddr, path::PathBuf};

/// Why a listener could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A TCP address.
    #[error("listen on `{url}`")]
    Tcp {
        /// The listener.
        url: ListenUrl,
        /// What the system said.
        source: io::Error,
    },
    /// `wss://` without anything to secure it with.
    #[error("listen on `wss://{address}`: pass `--tls-cert` and `--tls-key`")]
    NoCertificate {
        /// The address.
        address: SocketAddr,
    },
    /// A Unix socket.
    #[error("listen on `unix://{}`", path.display())]
    Unix {
        /// The socket's path.
        path: PathBuf,
        /// What is wrong with it.
        source: UnixError,
    },
}
