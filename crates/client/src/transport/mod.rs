//! Transports to a server. A [`Connect`] opens one connection at a time; the client calls it again for every reconnect.
//!
//! A [`Target`] is parsed from text, and a [`Dialer`] connects to it. There are two kinds of transport:
//!
//! - Sockets: `net` opens them, `tls` secures them, and `dialer` upgrades them to WebSocket and describes failures.
//! - Programs: `launch` and `ssh` define the command, `program` runs and ends it, and `stderr_tail` keeps the end of its stderr.
//!
//! This module does not depend on sessions or methods, and reads no environment variables.

use std::{future::Future, pin::Pin, time::Duration};

use exec_server_rpc::{ByteStream, Framing};

use crate::error::Error;

mod command_line;
mod dialer;
mod launch;
mod net;
mod program;
mod ssh;
mod stderr_tail;
mod target;
mod tls;
mod token;

pub use dialer::Dialer;
pub use launch::Launch;
pub use ssh::Ssh;
pub use target::{Target, TargetError};
pub use tls::Tls;
pub use token::{TOKEN_VARIABLE, Token, TokenError};

/// A boxed future, which makes the traits here usable as trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens connections to one server: the first one and every later one.
pub trait Connect: Send + Sync + 'static {
    /// Opens a connection. There is no timeout; the caller drops the future to cancel it.
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>>;

    /// The address for error messages and logs, without a token.
    fn address(&self) -> String;

    /// Whether the client may reconnect after the connection breaks.
    fn can_reconnect(&self) -> bool {
        true
    }

    /// Extra time for a person to act while the next connection is set up, for example to type a password. It is added
    /// to the timeout for the server's first answer.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// An open connection on which no message was sent yet.
pub struct Connection {
    /// The byte stream.
    pub stream: ByteStream,
    /// How messages are framed on the stream.
    pub framing: Framing,
    /// The carrier of the connection, such as a program. It ends with the connection.
    pub carrier: Option<Box<dyn Carrier>>,
}

/// Something that carries a connection and that ends when it is dropped.
pub trait Carrier: Send + Sync {
    /// Why the connection ended before the server answered, if the carrier knows more than the stream does.
    fn explain(&self) -> BoxFuture<'_, Option<Error>>;

    /// Ends the carrier as dropping does, and waits until it is gone. Drop the stream first.
    fn end(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("framing", &self.framing).finish_non_exhaustive()
    }
}
