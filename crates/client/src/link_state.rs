//! The current link of a session, and a queue of callers that wait for the next one.
//!
//! Records whether a session is up, down or lost, and publishes this to the user as a [`ConnectionState`]. Wakes waiting callers in the
//! order in which they began to wait, so that interrupted calls are sent again in their original order. Does not depend on what is sent or
//! why a link ended.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::{error::Error, server_link::ServerLink, session::ConnectionState};

/// Whether a session has a link.
#[derive(Clone)]
pub(crate) enum LinkStatus {
    Up(Arc<ServerLink>),
    Down {
        reason: String,
        /// Whether another client has taken the session over, as far as this client knows.
        is_taken: bool,
    },
    /// Final: no other status follows.
    Lost(Error),
}

/// Publishes the status. When it is dropped, the session is lost, and [`LinkWaiter::after`] fails.
pub(crate) struct LinkState(Arc<SharedLinkState>);

struct SharedLinkState {
    status: Mutex<LinkStatus>,
    /// A `Notify` and not a watch channel, because it wakes waiters in order.
    changed: Notify,
    /// The status as the user sees it.
    published_tx: watch::Sender<ConnectionState>,
}

impl LinkState {
    pub(crate) fn new(link: Arc<ServerLink>) -> Self {
        Self(Arc::new(SharedLinkState {
            status: Mutex::new(LinkStatus::Up(link)),
            changed: Notify::new(),
            published_tx: watch::Sender::new(ConnectionState::Connected),
        }))
    }

    pub(crate) fn get(&self) -> LinkStatus {
        self.0.status.lock().clone()
    }

    /// Changes the status, unless the session is lost, which is final.
    pub(crate) fn set(&self, status: LinkStatus) {
        let state = match &status {
            LinkStatus::Up(_) => ConnectionState::Connected,
            LinkStatus::Down { reason, .. } => ConnectionState::Recovering { reason: reason.clone() },
            LinkStatus::Lost(error) => ConnectionState::Lost { error: error.clone() },
        };
        let mut current = self.0.status.lock();
        if matches!(*current, LinkStatus::Lost(_)) {
            return;
        }
        *current = status;
        // Publish under the lock: otherwise the user could see the states of two concurrent changes in the wrong order.
        self.0.published_tx.send_replace(state);
        drop(current);
        self.0.changed.notify_waiters();
    }

    /// Shows a state to the user without a change of the status. Does nothing if the session is lost, which is final.
    pub(crate) fn publish(&self, state: ConnectionState) {
        let status = self.0.status.lock();
        if !matches!(*status, LinkStatus::Lost(_)) {
            self.0.published_tx.send_replace(state);
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<ConnectionState> {
        self.0.published_tx.subscribe()
    }

    /// Access to the links of the session. With `fail_fast`, `LinkWaiter::after` fails at once while the link is down.
    pub(crate) fn waiter(&self, fail_fast: bool) -> LinkWaiter {
        LinkWaiter { shared: Arc::clone(&self.0), fail_fast }
    }
}

impl Drop for LinkState {
    fn drop(&mut self) {
        self.set(LinkStatus::Lost(Error::Disconnected { reason: None }));
    }
}

/// Access to the consecutive links of a session, for work that must not keep the session itself alive.
pub(crate) struct LinkWaiter {
    shared: Arc<SharedLinkState>,
    fail_fast: bool,
}

impl LinkWaiter {
    /// Waits for a link that is newer than the link with the number `epoch`. Fails if the session is lost or, with `fail_fast`, if the link is down.
    pub(crate) async fn after(&self, epoch: u64) -> Result<Arc<ServerLink>, Error> {
        let link = |status: &LinkStatus| match status {
            LinkStatus::Up(link) if link.epoch > epoch => Some(Ok(Arc::clone(link))),
            LinkStatus::Lost(error) => Some(Err(error.clone())),
            LinkStatus::Down { reason, .. } if self.fail_fast => {
                Some(Err(Error::Disconnected { reason: Some(reason.clone()) }))
            }
            LinkStatus::Up(_) | LinkStatus::Down { .. } => None,
        };
        self.wait_for(link).await
    }

    /// Waits until another client has taken the session over. Never returns if the session is lost instead.
    pub(crate) async fn wait_until_taken(&self) {
        self.wait_for(|status| matches!(status, LinkStatus::Down { is_taken: true, .. }).then_some(())).await;
    }

    /// Waits until `check` returns a value for the status.
    async fn wait_for<T>(&self, check: impl Fn(&LinkStatus) -> Option<T>) -> T {
        loop {
            // Register before reading the status, so that no change between the two is missed.
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = check(&self.shared.status.lock()) {
                return found;
            }
            changed.await;
        }
    }
}
