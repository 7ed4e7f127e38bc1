//! Helpers for the tests of the binary: a server that ends with its test, a JSON client, raw HTTP, and the leak check. They use no code of
//! the server: they talk to the real program over real sockets.
#![allow(dead_code, reason = "each test file uses its own part of the harness")]
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

mod client;
mod data;
mod elsewhere;
mod http;
mod leak;
mod middleman;
mod proxy;
pub(crate) mod pty;
mod server;
pub(crate) mod target;
mod tls;

#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use client::{Client, Ended, Heard, RpcError, decode_base64, encode_base64, start_params};
#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use data::{assert_same, pattern, random};
#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use elsewhere::Elsewhere;
#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use http::{Reply, exchange, http, http_unix};
#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use leak::{descendants, is_alive, marked, wait_gone};
#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use middleman::{Deed, Middleman, Side};
#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use proxy::Proxy;
#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use server::{Builder, TestServer, binary, refused};
#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use target::{Asked, Target};
#[allow(unused_imports, reason = "each test file uses its own part of the harness")]
pub(crate) use tls::{Authority, Identity, Shown, http_tls, secure};

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a test waits for anything that must happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// The time limit of one test, without setup and teardown: far above the slowest test on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Runs a test on a new runtime with the time limit `LIMIT`.
pub(crate) fn bounded<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("build a runtime");
    runtime.block_on(async { tokio::time::timeout(LIMIT, test).await.expect("the test ends in time") })
}

/// The program with the default action for SIGHUP. A test run under `nohup` would otherwise pass on that SIGHUP is ignored.
pub(crate) fn program() -> std::process::Command {
    let mut command = std::process::Command::new("env");
    command.arg("--default-signal=HUP").arg(binary());
    command
}

/// The test-only MCP server, an example of this package.
pub(crate) fn test_mcp_server() -> String {
    let test = std::env::current_exe().expect("our own path");
    let target = test.ancestors().nth(2).expect("tests lie two levels below their profile's folder");
    let path = target.join("examples/test_mcp_server");
    assert!(
        path.exists(),
        "`{}` is not there: `cargo test --workspace` builds it, as does `cargo build -p exec-server --examples`",
        path.display()
    );
    path.display().to_string()
}

/// Waits until `level` holds. Panics with `what` if it does not hold within the deadline.
pub(crate) fn wait_for(what: &str, mut level: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !level() {
        assert!(Instant::now() < end, "timed out waiting for: {what}");
        thread::park_timeout(Duration::from_millis(5));
    }
}
