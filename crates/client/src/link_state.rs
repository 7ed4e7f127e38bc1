//! The current link of a session, and a queue of callers that wait for the next one.
//!
//! Records whether a session is up, down or lost. Wakes waiting callers in the order in which they came, so that interrupted calls are sent
//! again in their first order. Does not depend on what is sent or why a link ended.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{error::Error, server_link::ServerLink};

/// Whether a session has a link.
#[derive(Clone)]
pub(crate) enum LinkStatus {
    Up(Arc<ServerLink>),
    Down {
        reason: String,
    },
    /// Final: no other status follows.
    Lost(Error),
}

/// Publishes the status. When it is dropped, waiting callers see the session as lost.
pub(crate) struct LinkState(Arc<SharedLinkState>);

struct SharedLinkState {
    status: Mutex<LinkStatus>,
    /// A `Notify` and not a watch channel, because it wakes waiters in order.
    changed: Notify,
}

impl LinkState {
    pub(crate) fn new(status: LinkStatus) -> Self {
        Self(Arc::new(SharedLinkState { status: Mutex::new(status), changed: Notify::new() }))
    }

    pub(crate) fn get(&self) -> LinkStatus {
        self.0.status.lock().clone()
    }

    /// Changes the status. Returns false if the session is already lost, which is final.
    pub(crate) fn set(&self, status: LinkStatus) -> bool {
        let mut current = self.0.status.lock();
        if matches!(*current, LinkStatus::Lost(_)) {
            return false;
        }
        *current = status;
        drop(current);
        self.0.changed.notify_waiters();
        true
    }

    /// With `fail_fast`, `LinkWaiter::after` fails at once while the link is down.
    pub(crate) fn waiter(&self, fail_fast: bool) -> LinkWaiter {
        LinkWaiter { shared: Arc::clone(&self.0), fail_fast }
    }
}

impl Drop for LinkState {
    fn drop(&mut self) {
        self.set(LinkStatus::Lost(Error::Disconnected { reason: None }));
    }
}

impl SharedLinkState {}

/// Access to the consecutive links of a session, for work that must not keep the session itself alive.
pub(crate) struct LinkWaiter {
    shared: Arc<SharedLinkState>,
    fail_fast: bool,
}

impl LinkWaiter {
    /// Waits for a link with an epoch above `after`. Fails at once if the session is lost, or if it is down and the caller does not wait.
    pub(crate) async fn after(&self, after: u64) -> Result<Arc<ServerLink>, Error> {
        loop {
            // Register before reading the status, so that no change between the two is missed.
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            match &*self.shared.status.lock() {
                LinkStatus::Up(link) if link.epoch > after => return Ok(Arc::clone(link)),
                LinkStatus::Lost(error) => return Err(error.clone()),
                LinkStatus::Down { reason } if self.fail_fast => {
                    return Err(Error::Disconnected { reason: Some(reason.clone()) });
                }
                LinkStatus::Up(_) | LinkStatus::Down { .. } => {}
            }
            changed.await;
        }
    }
}
