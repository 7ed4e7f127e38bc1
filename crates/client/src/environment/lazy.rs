//! Opens a connection on first use. All callers share one attempt. After a failure or a loss, the next use begins a new attempt.
//!
//! ```text
//!           first use               done
//!  Idle ──────────────▶ Opening ──────────▶ Open ──lost, next use──▶ Opening
//!                        │   ▲
//!                 failed ▼   │ next use, unless the failure is final
//!                        Failed
//! ```
//! An attempt runs inside the futures of the callers that wait for it, so no task is left behind. If all of them are dropped, the attempt
//! is dropped, too, and the next caller begins a new one.

use std::sync::Arc;

use futures_util::{
    FutureExt as _,
    future::{Shared, WeakShared},
};
use parking_lot::Mutex;

use crate::{ConnectionState, error::Error, transport::BoxFuture};

/// A connection that can be opened and lost.
pub(super) trait Openable: Clone + Send + Sync + 'static {
    /// The current state.
    fn state(&self) -> ConnectionState;
}

/// The state of an environment's connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EnvironmentState {
    /// The environment is connected.
    Ready,
    /// The environment has not been used yet, or it is connecting or reconnecting.
    Pending,
    /// The last attempt failed, or the session is lost. The next use tries again, unless the failure is final.
    Disconnected {
        /// Why the attempt failed or the session was lost.
        error: Error,
    },
}

type OpenAttempt<T> = BoxFuture<'static, Result<T, Error>>;

/// See the module documentation.
pub(super) struct Lazy<T: Openable> {
    open: Box<dyn Fn() -> OpenAttempt<T> + Send + Sync>,
    /// Whether this failure of a first attempt would happen again on every attempt.
    is_final: fn(&Error) -> bool,
    /// Shared with the current attempt.
    state: Arc<Mutex<LazyState<T>>>,
}

struct LazyState<T: Openable> {
    slot: LazySlot<T>,
    /// Whether an attempt has succeeded before. After that, no failure is final.
    was_open: bool,
}

enum LazySlot<T: Openable> {
    Idle,
    /// The weak reference cannot be upgraded once no caller waits for the attempt.
    Opening(WeakShared<OpenAttempt<T>>),
    Open(T),
    Failed {
        error: Error,
        is_final: bool,
    },
}

impl<T: Openable> Lazy<T> {
    pub(super) fn new(open: impl Fn() -> OpenAttempt<T> + Send + Sync + 'static, is_final: fn(&Error) -> bool) -> Self {
        let state = LazyState { slot: LazySlot::Idle, was_open: false };
        Self { open: Box::new(open), is_final, state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the open value. Opens it first if it is not open or is lost.
    pub(super) async fn get(&self) -> Result<T, Error> {
        let attempt = {
            let mut state = self.state.lock();
            match &state.slot {
                LazySlot::Open(thing) if !matches!(thing.state(), ConnectionState::Lost { .. }) => {
                    return Ok(thing.clone());
                }
                LazySlot::Failed { error, is_final: true } => return Err(error.clone()),
                LazySlot::Opening(attempt) => match attempt.upgrade() {
                    Some(attempt) => attempt,
                    None => self.start_attempt(&mut state),
                },
                LazySlot::Idle | LazySlot::Open(_) | LazySlot::Failed { .. } => self.start_attempt(&mut state),
            }
        };
        attempt.await
    }

    /// The current state. Does not open anything.
    pub(super) fn status(&self) -> EnvironmentState {
        match &self.state.lock().slot {
            LazySlot::Idle | LazySlot::Opening(_) => EnvironmentState::Pending,
            LazySlot::Failed { error, .. } => EnvironmentState::Disconnected { error: error.clone() },
            LazySlot::Open(thing) => match thing.state() {
                ConnectionState::Connected | ConnectionState::Stalled { .. } => EnvironmentState::Ready,
                ConnectionState::Recovering { .. } => EnvironmentState::Pending,
                ConnectionState::Lost { error } => EnvironmentState::Disconnected { error },
            },
        }
    }

    fn start_attempt(&self, state: &mut LazyState<T>) -> Shared<OpenAttempt<T>> {
        let opening = (self.open)();
        let is_final = self.is_final;
        let shared = Arc::clone(&self.state);
        let attempt = async move {
            let result = opening.await;
            let mut state = shared.lock();
            state.slot = match &result {
                Ok(thing) => LazySlot::Open(thing.clone()),
                Err(error) => LazySlot::Failed { error: error.clone(), is_final: !state.was_open && is_final(error) },
            };
            state.was_open |= result.is_ok();
            result
        };
        let attempt: Shared<OpenAttempt<T>> = (Box::pin(attempt) as OpenAttempt<T>).shared();
        // Cannot be `None` here: the new attempt is not finished.
        state.slot = attempt.downgrade().map_or(LazySlot::Idle, LazySlot::Opening);
        attempt
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// The number of the attempt that created it, and whether it is lost.
    #[derive(Debug, Clone)]
    struct FakeConnection(u32, Arc<AtomicBool>);

    impl Openable for FakeConnection {
        fn state(&self) -> ConnectionState {
            let is_lost = self.1.load(Ordering::SeqCst);
            if is_lost { ConnectionState::Lost { error: failure() } } else { ConnectionState::Connected }
        }
    }

    /// Each attempt takes a permit, and fails while `is_down` is set.
    #[derive(Default)]
    struct FakeServer {
        attempts: AtomicU32,
        is_down: AtomicBool,
        lost: Arc<AtomicBool>,
    }

    fn failure() -> Error {
        let failure = crate::ConnectFailure::NotListening;
        Error::Connect { address: "there".to_owned(), failure, reason: "down".to_owned() }
    }

    fn lazy(server: &Arc<FakeServer>, gate: &Arc<Semaphore>, is_final: bool) -> Lazy<FakeConnection> {
        let (server, gate) = (Arc::clone(server), Arc::clone(gate));
        let open = move || -> OpenAttempt<FakeConnection> {
            let (server, gate) = (Arc::clone(&server), Arc::clone(&gate));
            let number = server.attempts.fetch_add(1, Ordering::SeqCst) + 1;
            Box::pin(async move {
                gate.acquire().await.expect("it stays open").forget();
                let thing = FakeConnection(number, Arc::clone(&server.lost));
                if server.is_down.load(Ordering::SeqCst) { Err(failure()) } else { Ok(thing) }
            })
        };
        Lazy::new(open, if is_final { |_| true } else { |_| false })
    }

    fn set_up(permits: usize, is_final: bool) -> (Arc<FakeServer>, Arc<Semaphore>, Lazy<FakeConnection>) {
        let (server, gate) = (Arc::new(FakeServer::default()), Arc::new(Semaphore::new(permits)));
        let lazy = lazy(&server, &gate, is_final);
        (server, gate, lazy)
    }

    #[tokio::test]
    async fn initial_connection_is_shared_by_all_waiters() {
        let (server, gate, lazy) = set_up(0, false);
        assert!(matches!(lazy.status(), EnvironmentState::Pending));
        assert_eq!(server.attempts.load(Ordering::SeqCst), 0, "`status` starts no attempt");
        let (mut first, mut second) = (Box::pin(lazy.get()), Box::pin(lazy.get()));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        assert!(matches!(lazy.status(), EnvironmentState::Pending));
        // The caller that began the attempt is dropped. The other one still gets the result.
        drop(first);
        gate.add_permits(1);
        assert_eq!(second.await.unwrap().0, 1);
        assert_eq!(lazy.get().await.unwrap().0, 1);
        assert!(matches!(lazy.status(), EnvironmentState::Ready));
    }

    #[tokio::test]
    async fn an_attempt_without_waiters_is_dropped() {
        let (server, gate, lazy) = set_up(0, false);
        assert!(lazy.get().now_or_never().is_none());
        gate.add_permits(1);
        assert_eq!(lazy.get().await.unwrap().0, 2);
        assert_eq!(server.attempts.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn retryable_startup_failure_does_not_burn_environment() {
        let (server, _gate, lazy) = set_up(8, false);
        server.is_down.store(true, Ordering::SeqCst);
        assert!(lazy.get().await.is_err());
        assert!(matches!(lazy.status(), EnvironmentState::Disconnected { .. }));
        server.is_down.store(false, Ordering::SeqCst);
        assert_eq!(lazy.get().await.unwrap().0, 2);
    }

    #[tokio::test]
    async fn terminal_startup_failure_is_remembered() {
        let (server, _gate, lazy) = set_up(8, true);
        server.is_down.store(true, Ordering::SeqCst);
        let first = lazy.get().await.unwrap_err().to_string();
        server.is_down.store(false, Ordering::SeqCst);
        assert_eq!(lazy.get().await.unwrap_err().to_string(), first);
        assert_eq!(server.attempts.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn failed_reconnect_does_not_burn_environment() {
        let (server, _gate, lazy) = set_up(8, true);
        assert_eq!(lazy.get().await.unwrap().0, 1);
        server.lost.store(true, Ordering::SeqCst);
        assert!(matches!(lazy.status(), EnvironmentState::Disconnected { .. }));
        server.is_down.store(true, Ordering::SeqCst);
        assert!(lazy.get().await.is_err());
        server.is_down.store(false, Ordering::SeqCst);
        server.lost.store(false, Ordering::SeqCst);
        assert_eq!(lazy.get().await.unwrap().0, 3);
        assert!(matches!(lazy.status(), EnvironmentState::Ready));
    }
}
