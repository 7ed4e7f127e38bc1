//! A flag that cancels a running operation whose result is no longer needed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::ErrorKind;

/// Shared by an operation and by the callers that may cancel it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests cancellation. The operation ends at its next check, if one follows. A tree may then be copied or removed in part; no file is
    /// written in part.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns `ErrorKind::Cancelled` if the operation was cancelled.
    pub fn check(&self) -> Result<(), ErrorKind> {
        if self.is_cancelled() { Err(ErrorKind::Cancelled) } else { Ok(()) }
    }
}
