//! Tests of the client library, at every place where processes run.
//!
//! This root has the helpers that the tests share. The tests use only the public interface of the client, so what they prove holds for
//! every program that uses it.
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

/// Makes a test of each function, embedded and on a server.
macro_rules! at_both_places {
    ($($name:ident)*) => {
        mod local { $( #[test] fn $name() { crate::run(crate::Kind::Local, super::$name); } )* }
        mod ws { $( #[test] fn $name() { crate::run(crate::Kind::Ws, super::$name); } )* }
    };
}

pub(crate) mod behaviours;
mod cut_links;
mod distant;
mod event_checks;
mod file_systems;
mod files;
mod http;
mod mcp_http;
mod other_host;
mod places;
mod prelude;
mod recovery;
mod sandbox;
mod sessions;
mod suite;
mod typed_requests;

pub(crate) use event_checks::{follow, output_until, spell, stories, tell};
pub(crate) use places::{Kind, Place, client_of, run};
pub(crate) use testkit::{Elsewhere, Proxy, assert_same, bounded, pattern};

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
    testkit::within(SOON, what, happening).await
}

/// Polls until a condition holds.
pub(crate) async fn until(what: &str, level: impl AsyncFnMut() -> bool) {
    testkit::until(SOON, what, level).await;
}
