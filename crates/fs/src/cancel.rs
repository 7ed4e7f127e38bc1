//! A word to an operation under way that nobody waits for it any more.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::Trouble;

/// Shared by an operation and whoever may call it off. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// One that nobody has called off yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls the operation off. It ends at the next place where that leaves nothing half done.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was called off.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error if it was called off.
    pub fn check(&self) -> Result<(), Trouble> {
        if self.is_cancelled() { Err(Trouble::Cancelled) } else { Ok(()) }
    }
}
