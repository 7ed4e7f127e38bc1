//! The current link of a session, and a queue of callers that wait for the next one.
//!
//! Records whether a session is up, down or lost. Wakes waiting callers in the order in which they came, so that interrupted calls are sent
//! again in their first order. Does not depend on what is sent or why a link ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::{error::Error, link::Link};

/// Whether a session has a link.
#[derive(Clone)]
pub(crate) enum Status {
    Up(Arc<Link>),
    Down {
        reason: String,
    },
    /// Final: no other status follows.
    Lost(Error),
}

/// Publishes the status. When it is dropped, waiting callers see the session as lost.
pub(crate) struct Standing(Arc<Shared>);

struct Shared {
    status: Mutex<Status>,
    /// A `Notify` and not a watch channel, because it wakes waiters in order.
    changed: Notify,
}

impl Standing {
    pub(crate) fn new(status: Status) -> Self {
        Self(Arc::new(Shared { status: Mutex::new(status), changed: Notify::new() }))
    }

    pub(crate) fn get(&self) -> Status {
        self.0.status().clone()
    }

    /// Changes the status. Returns false if the session is already lost, which is final.
    pub(crate) fn set(&self, status: Status) -> bool {
        let mut current = self.0.status();
        if matches!(*current, Status::Lost(_)) {
            return false;
        }
        *current = status;
        drop(current);
        self.0.changed.notify_waiters();
        true
    }

    /// With `fail_fast`, `Links::after` fails at once while the link is down.
    pub(crate) fn links(&self, fail_fast: bool) -> Links {
        Links { shared: Arc::clone(&self.0), fail_fast }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.set(Status::Lost(Error::Disconnected { reason: None }));
    }
}

impl Shared {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Access to the consecutive links of a session, for work that must not keep the session itself alive.
pub(crate) struct Links {
    shared: Arc<Shared>,
    fail_fast: bool,
}

impl Links {
    /// Waits for a link with an epoch above `after`. Fails at once if the session is lost, or if it is down and the caller does not wait.
    pub(crate) async fn after(&self, after: u64) -> Result<Arc<Link>, Error> {
        loop {
            // Register before reading the status, so that no change between the two is missed.
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            match &*self.shared.status() {
                Status::Up(link) if link.epoch > after => return Ok(Arc::clone(link)),
                Status::Lost(error) => return Err(error.clone()),
                Status::Down { reason } if self.fail_fast => {
                    return Err(Error::Disconnected { reason: Some(reason.clone()) });
                }
                Status::Up(_) | Status::Down { .. } => {}
            }
            changed.await;
        }
    }
}
