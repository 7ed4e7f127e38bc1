//! The client library, at every place where processes run.
//!
//! The root owns what these tests share. It must not know more of the client than its public interface: what holds here holds
//! for every program that uses it.
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

/// How long anything that must happen may take.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A shell with a standard input that can be written.
pub(crate) fn sh(script: impl AsRef<str>) -> Start {
    Start::new(["sh", "-c", script.as_ref()]).pipe_stdin(true)
}

/// Awaits what must happen soon.
pub(crate) async fn soon<T>(what: &str, happening: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, happening).await {
        Ok(done) => done,
        Err(_) => panic!("timed out waiting for: {what}"),
    }
}

/// Waits until a level holds that can only be asked for.
pub(crate) async fn until(what: &str, mut level: impl AsyncFnMut() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    soon(what, async {
        while !level().await {
            ticks.tick().await;
        }
    })
    .await;
}
