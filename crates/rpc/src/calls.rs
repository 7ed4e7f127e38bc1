//! Calls that wait for an answer: a bounded map from id to waiter, which is emptied in one step when the connection
//! ends.
//!
//! No call outlives the connection: `register` checks for the end under the same lock that `drain` takes. So a call is
//! either refused or woken.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::CloseReason;

/// Default maximum of calls in flight: 1024, as in the reference implementation. Each costs one table entry and one
/// waiting task.
pub(crate) const MAX_CALLS: usize = 1024;

/// Why a call could not be registered, or got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PendingError {
    #[error("too many calls in flight: `{limit}`")]
    Full { limit: usize },
    /// The connection ended. If the peer sent an answer, it is lost.
    #[error("connection ended before the answer")]
    Disconnected(#[source] Arc<CloseReason>),
}

/// The calls of one connection that wait for an answer of type `T`.
#[derive(Debug)]
pub(crate) struct PendingCalls<T> {
    state: Mutex<PendingCallsState<T>>,
    limit: usize,
}

#[derive(Debug)]
struct PendingCallsState<T> {
    next_id: i64,
    /// Ordered by id, so that the end of the connection wakes the calls in the order in which they were made.
    waiting: BTreeMap<i64, oneshot::Sender<T>>,
    /// Set by `drain`. Then `waiting` stays empty.
    closed: Option<Arc<CloseReason>>,
}

/// A registered call. Dropping it frees its place in the table. Its answer is then ignored.
#[derive(Debug)]
pub(crate) struct PendingCall<T> {
    pending: Arc<PendingCalls<T>>,
    id: i64,
    answer: oneshot::Receiver<T>,
}

impl<T> PendingCalls<T> {
    /// Creates an empty table for at most `limit` calls at once.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let state = PendingCallsState { next_id: 1, waiting: BTreeMap::new(), closed: None };
        Arc::new(Self { state: Mutex::new(state), limit })
    }

    /// Registers a call with a new id. Call this before sending the request, or the answer may arrive before its call.
    pub(crate) fn register(self: &Arc<Self>) -> Result<PendingCall<T>, PendingError> {
        self.register_within(self.limit)
    }

    /// Like [`register`](Self::register), with one extra place. Use it for a call that frees a resource of the peer.
    pub(crate) fn register_cleanup(self: &Arc<Self>) -> Result<PendingCall<T>, PendingError> {
        self.register_within(self.limit + 1)
    }

    fn register_within(self: &Arc<Self>, limit: usize) -> Result<PendingCall<T>, PendingError> {
        let mut state = self.state.lock();
        if let Some(closed) = &state.closed {
            return Err(PendingError::Disconnected(Arc::clone(closed)));
        }
        if state.waiting.len() >= limit {
            return Err(PendingError::Full { limit });
        }
        let id = state.next_id;
        state.next_id += 1;
        let (answer_tx, answer) = oneshot::channel();
        state.waiting.insert(id, answer_tx);
        Ok(PendingCall { pending: Arc::clone(self), id, answer })
    }

    /// Delivers an answer to its call. Returns false if no waiting call has this id.
    pub(crate) fn complete(&self, id: i64, answer: T) -> bool {
        let waiter = self.state.lock().waiting.remove(&id);
        waiter.is_some_and(|waiter| waiter.send(answer).is_ok())
    }

    /// Ends every waiting call and refuses all later ones. Only the first reason is kept.
    pub(crate) fn drain(&self, closed: Arc<CloseReason>) {
        let mut state = self.state.lock();
        state.closed.get_or_insert(closed);
        let waiting = std::mem::take(&mut state.waiting);
        // Dropping the senders wakes the calls, which then lock the state to read the reason. So unlock first.
        drop(state);
        drop(waiting);
    }

    /// Returns the number of waiting calls.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Returns the reason of the end, if the connection has ended.
    pub(crate) fn closed(&self) -> Option<Arc<CloseReason>> {
        self.state.lock().closed.clone()
    }
}

impl<T> PendingCall<T> {
    /// The id of the request to send.
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Waits for the answer. An answer that arrived before the end of the connection is returned even after the end.
    pub(crate) async fn answer(mut self) -> Result<T, PendingError> {
        match (&mut self.answer).await {
            Ok(answer) => Ok(answer),
            Err(_) => {
                let closed = self.pending.closed().expect("a waiter is dropped unanswered only by the drain");
                Err(PendingError::Disconnected(closed))
            }
        }
    }
}

impl<T> Drop for PendingCall<T> {
    fn drop(&mut self) {
        self.pending.state.lock().waiting.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_reach_their_calls_in_any_order() {
        let pending = PendingCalls::new(2);
        let (first, second) = (pending.register().unwrap(), pending.register().unwrap());
        assert!(matches!(pending.register(), Err(PendingError::Full { limit: 2 })));
        assert!(pending.complete(second.id(), "second"));
        assert!(pending.complete(first.id(), "first"));
        assert!(!pending.complete(7, "unknown id"));
        assert_eq!((first.answer().await.unwrap(), second.answer().await.unwrap()), ("first", "second"));
    }

    #[tokio::test]
    async fn the_end_wakes_waiting_calls_and_refuses_new_ones() {
        let pending = PendingCalls::new(8);
        let (answered, lost) = (pending.register().unwrap(), pending.register().unwrap());
        pending.complete(answered.id(), 1);
        pending.drain(Arc::new(CloseReason::InvalidUtf8));
        pending.drain(Arc::new(CloseReason::Eof));
        assert_eq!(answered.answer().await.unwrap(), 1);
        for error in [lost.answer().await.unwrap_err(), pending.register().unwrap_err()] {
            let PendingError::Disconnected(closed) = error else { panic!("{error:?}") };
            assert!(matches!(*closed, CloseReason::InvalidUtf8));
        }
    }

    #[test]
    fn rpc_client_bounds_in_flight_calls_and_preserves_cleanup() {
        let pending = PendingCalls::<()>::new(1);
        let regular = pending.register().unwrap();
        assert!(matches!(pending.register(), Err(PendingError::Full { limit: 1 })));
        let cleanup = pending.register_cleanup().unwrap();
        assert!(matches!(pending.register_cleanup(), Err(PendingError::Full { limit: 2 })));
        drop((regular, cleanup));
        assert!(pending.register().is_ok());
    }

    #[test]
    fn a_dropped_call_frees_its_place() {
        let pending = PendingCalls::<()>::new(1);
        drop(pending.register().unwrap());
        assert_eq!(pending.len(), 0);
        assert!(pending.register().is_ok());
    }
}
