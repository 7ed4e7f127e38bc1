//! Tests of every transport, against servers and programs that behave well or badly. Each wait has a deadline.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic, in its helpers too")]

use std::{future::Future, time::Duration};

mod addresses;
mod programs;
mod ssh;
mod tls;
mod upgrade;

/// Longer than any step takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until the deadline at most.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("done in time")
}
