//! Tests of the client library, at every place where processes run.
//!
//! This root has the helpers that the tests share. The tests use only the public interface of the client, so what they prove holds for
//! every program that uses it.
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

#[path = "../common/mod.rs"]
mod common;

pub(crate) mod behaviours;
mod both;
mod cuts;
mod files;
mod http;
mod mcp_http;
mod other_host;
mod place;
mod recovery;
mod sandbox;
mod sessions;
mod suite;
mod told;
mod typed;

pub(crate) use common::{Elsewhere, Proxy, assert_same, bounded, pattern};
pub(crate) use place::{Kind, Place, client_of, run};
pub(crate) use told::{follow, output_until, spell, tell};

use std::time::Duration;

use exec_server_client::Start;

/// Timeout for anything that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A shell with a stdin pipe.
pub(crate) fn sh(script: impl AsRef<str>) -> Start {
    Start::new(["sh", "-c", script.as_ref()]).pipe_stdin(true)
}

/// Awaits a future with the timeout `SOON`.
pub(crate) async fn soon<T>(what: &str, happening: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, happening).await {
        Ok(done) => done,
        Err(_) => panic!("timed out waiting for: {what}"),
    }
}

/// Polls until a condition holds.
pub(crate) async fn until(what: &str, mut level: impl AsyncFnMut() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    soon(what, async {
        while !level().await {
            ticks.tick().await;
        }
    })
    .await;
}
