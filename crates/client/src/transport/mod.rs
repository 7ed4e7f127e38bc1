//! Ways to a server: a [`Connect`] opens one connection at a time, and is asked again whenever the link must be mended.
//!
//! A [`Target`] is read from text, and a [`Dialer`] connects to it. Two kinds of way:
//!
//! - sockets: `net` opens them, `tls` secures them, `dialer` upgrades them to WebSocket and puts failures into words;
//! - programs: `launch` and `ssh` say which, `program` runs it and ends it, `tail` keeps its last words.
//!
//! Knows addresses, tokens, certificates and programs; it must not know sessions or methods. Reads no environment.

use std::{future::Future, pin::Pin, time::Duration};

use exec_server_rpc::{Framing, Stream};

use crate::error::Error;

mod dialer;
mod launch;
mod net;
mod program;
mod ssh;
mod tail;
mod target;
mod tls;
mod token;
mod words;

pub use dialer::Dialer;
pub use launch::Launch;
pub use ssh::Ssh;
pub use target::{Target, TargetError};
pub use tls::Tls;
pub use token::{TOKEN_VARIABLE, Token, TokenError};

/// A boxed future, so that the traits here can be objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens connections to one server, the first one and every later one.
pub trait Connect: Send + Sync + 'static {
    /// Opens a connection; the caller sets the deadline, by dropping the future.
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>>;

    /// Where to, for people; never with a token.
    fn address(&self) -> String;

    /// Whether a broken link may be mended by connecting again.
    fn is_mendable(&self) -> bool {
        true
    }

    /// How long a person may take on the next connection, to type a password for instance, before the server can
    /// answer its first request. It comes on top of the time that the server is given.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// An open connection on which nothing was said yet.
pub struct Connection {
    /// The bytes.
    pub stream: Stream,
    /// How messages are told apart on it.
    pub framing: Framing,
    /// What lives and ends with the connection, such as a program that carries it.
    pub carrier: Option<Box<dyn Carrier>>,
}

/// Something beneath a connection that ends with it when dropped.
pub trait Carrier: Send + Sync {
    /// Why the connection ended before the server answered, where the carrier knows better than the stream.
    fn explain(&self) -> BoxFuture<'_, Option<Error>>;

    /// Ends it as dropping does, and waits until it is gone. The stream should be dropped before.
    fn end(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("framing", &self.framing).finish_non_exhaustive()
    }
}
