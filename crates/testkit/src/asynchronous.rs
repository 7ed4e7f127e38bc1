//! Time limits for tests that run on Tokio.

use std::time::Duration;

/// The time limit of one test, without setup and teardown: far above the slowest test on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a test on a new runtime with a time limit.
pub fn bounded<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("build a runtime");
    runtime.block_on(async { tokio::time::timeout(LIMIT, test).await.expect("the test ends in time") })
}

/// Awaits a future with a timeout.
pub async fn within<T>(limit: Duration, what: &str, happening: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, happening).await {
        Ok(done) => done,
        Err(_) => panic!("timed out waiting for: {what}"),
    }
}

/// Polls until a condition holds.
pub async fn until(limit: Duration, what: &str, mut level: impl AsyncFnMut() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    within(limit, what, async {
        while !level().await {
            ticks.tick().await;
        }
    })
    .await;
}
