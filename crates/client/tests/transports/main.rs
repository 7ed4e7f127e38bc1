//! Every way to a server, against servers and programs that behave and that do not. Each wait here has an end.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic, in its helpers too")]

use std::{future::Future, time::Duration};

mod addresses;
mod programs;
mod ssh;
mod tls;
mod upgrade;

/// Longer than anything here takes, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Waits, but not for ever.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("done in time")
}
