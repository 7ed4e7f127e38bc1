//! Listeners: the addresses to listen on, the sockets, and the accept loop.
//!
//! [`url`] parses the addresses, [`exposure`] refuses unprotected ones, `unix` creates Unix sockets, `accept`
//! survives a lack of fds, and [`Server`] runs all listeners and shuts them down in order. HTTP is handled by
//! admission.

mod accept;
pub mod exposure;
mod serve;
mod unix;
pub mod url;

pub use serve::{Server, ServerConfig, ServerEnd};
pub use unix::UnixError;
pub use url::ListenUrl;

use std::{io, net::SocketAddr, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("listen on `{url}`")]
    Tcp { url: ListenUrl, source: io::Error },
    /// A `wss://` listener without a certificate.
    #[error("listen on `wss://{address}`: pass `--tls-cert` and `--tls-key`")]
    NoCertificate { address: SocketAddr },
    #[error("listen on `unix://{}`", path.display())]
    Unix { path: PathBuf, source: UnixError },
}
