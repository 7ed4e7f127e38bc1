//! Helpers for the tests of the binary: a server that ends with its test, a JSON client, proxies, raw HTTP, TLS, a terminal and the leak
//! check.
//!
//! The kit uses no code of the product: it talks to the real program over real sockets. Its functions panic, so that a test fails where it
//! calls them.
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

#[cfg(feature = "async")]
mod asynchronous;
mod client;
mod data;
mod elsewhere;
mod fifo;
mod http;
mod message_proxy;
mod params;
mod processes;
mod program;
mod proxy;
pub mod pty;
mod server;
mod shorthand;
pub mod target;
mod tls;

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

#[cfg(feature = "async")]
pub use asynchronous::{bounded, until, within};
pub use client::{
    Client, Ended, Heard, RpcError, assert_error, assert_members, chunk_bytes, decode_base64, decoded, encode_base64,
    pid_of,
};
pub use data::{assert_same, pattern, random};
pub use elsewhere::Elsewhere;
pub use exec_server_chaos::{FarLink, LinkCounters, LinkShape, Namespace, Way};
pub use fifo::{fifo, release};
pub use http::{Reply, exchange, http, http_unix};
pub use message_proxy::{MessageProxy, Side, Verdict};
pub use params::{cat, modern, piped, process, sh, start_params, tty, with, write_params};
pub use processes::{
    Stopped, descendants, is_alive, kill, marked, resident, send_signal, stop, wait_gone, wait_pid_gone,
};
pub use program::{Running, end_of, finish, finish_child, finish_with_input, read_until, signal, spawn, state, text};
pub use proxy::Proxy;
pub use pty::Terminal;
pub use server::{Builder, TestServer, binary, refused, test_mcp_server};
pub use shorthand::{assert_ends_with_its_reader, copy_env, inherit_all, kind_or_ok, mode_of, outcome, set_mode};
pub use target::{Asked, Target};
pub use tls::{Authority, Identity, Shown, http_tls, secure};

/// How long a test waits for anything that must happen.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The program with the default action for SIGHUP. A test run under `nohup` would otherwise pass on that SIGHUP is ignored.
pub fn program() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(binary());
    command
}

/// Waits until `level` holds. Panics with `what` if it does not hold within the deadline.
#[track_caller]
pub fn wait_for(what: &str, mut level: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !level() {
        assert!(Instant::now() < end, "timed out waiting for: {what}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// `IP:PORT` of a URL.
pub(crate) fn address_of(url: &str) -> &str {
    let rest = url.split_once("://").expect("a URL has a scheme").1;
    rest.split('/').next().expect("split gives at least one part")
}
