//! The link of the moment, and the line of those who wait for the next one.
//!
//! Owns whether a session is up, down or lost, and wakes whoever waits in the order in which they came: calls that a cut
//! interrupted go out again as they went out first. Does not know what is sent or why a link ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::{error::Error, link::Link};

/// How a session stands with its server.
#[derive(Clone)]
pub(crate) enum Status {
    Up(Arc<Link>),
    Down {
        reason: String,
    },
    /// Never left again.
    Lost(Error),
}

/// Where the status is said. Whoever waits learns of its end when it is dropped.
pub(crate) struct Standing(Arc<Shared>);

struct Shared {
    status: Mutex<Status>,
    /// Wakes in order, which a watch channel does not.
    changed: Notify,
}

impl Standing {
    pub(crate) fn new(status: Status) -> Self {
        Self(Arc::new(Shared { status: Mutex::new(status), changed: Notify::new() }))
    }

    pub(crate) fn get(&self) -> Status {
        self.0.status().clone()
    }

    /// False where the session was lost before, which nothing changes.
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

    /// `fail_fast`: a link that is down is not waited for.
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

/// The links of a session, one after the other, for work that must not keep the session itself.
pub(crate) struct Links {
    shared: Arc<Shared>,
    fail_fast: bool,
}

impl Links {
    /// Waits for a link that is younger than `after`; at once an error where none can come, or the caller does not wait.
    pub(crate) async fn after(&self, after: u64) -> Result<Arc<Link>, Error> {
        loop {
            // In line before the look, so that no change is missed between the two.
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
