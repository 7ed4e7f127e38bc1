//! Tests of MCP servers on this machine and on an executor: launching, calling, restarting and ending them.
//!
//! This root has the helpers that the tests share. The tests use only the public interface of the library. The servers are the test-only
//! program of the examples, which shares no code with it.

mod calls;
mod crashes;
mod environments;
mod http;
mod lists;
mod misbehaving_servers;
mod other_host;
mod places;
mod reports;
mod shutdown;
mod stdio;

pub(crate) use places::{Kind, Place, bounded_remote, run};

use crate::prelude::*;
use exec_server_mcp::manager::{CallResult, Error, Manager, ToolCall};

/// Timeout for anything that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Makes a test of each function at each place.
macro_rules! at_both {
    ($($name:ident),+ $(,)?) => {
        mod local {
            $(#[test] fn $name() { crate::mcp::run(crate::mcp::Kind::Local, super::$name); })+
        }
        mod remote {
            $(#[test] fn $name() { crate::mcp::run(crate::mcp::Kind::Remote, super::$name); })+
        }
    };
}
pub(crate) use at_both;

/// Awaits a future with the timeout `SOON`.
pub(crate) async fn soon<T>(what: &str, happening: impl Future<Output = T>) -> T {
    testkit::within(SOON, what, happening).await
}

/// Polls until a condition holds.
pub(crate) async fn until(what: &str, level: impl AsyncFnMut() -> bool) {
    testkit::until(SOON, what, level).await;
}

/// Lets time pass, for tests of the time itself.
pub(crate) async fn pass(time: Duration) {
    tokio::time::timeout(time, std::future::pending::<()>()).await.ok();
}

/// Calls a tool of the server `t`.
pub(crate) async fn call(manager: &Manager, tool: &str, arguments: Value) -> Result<CallResult, Error> {
    soon(tool, manager.call(ToolCall::new("t", tool).arguments(arguments))).await
}

/// The structured content that a tool of the server `t` returns.
pub(crate) async fn data(manager: &Manager, tool: &str, arguments: Value) -> Value {
    let result = call(manager, tool, arguments).await.unwrap_or_else(|error| panic!("{tool}: {error}"));
    assert!(!result.is_error, "{tool}: {result:?}");
    result.structured_content.unwrap_or_default()
}
