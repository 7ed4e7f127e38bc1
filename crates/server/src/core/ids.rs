//! Generates the ids of new sessions: from the system's randomness, or from a test that needs repeatable ids.

use std::sync::Arc;

/// Generates session ids. An id is a capability, so anything but the default is only for tests and simulations.
#[derive(Clone)]
pub struct SessionIds(Arc<dyn Fn() -> String + Send + Sync>);

impl SessionIds {
    /// Generates ids with `make`. They must be unique for the life of a state directory.
    pub fn from_fn(make: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    pub(crate) fn make(&self) -> Arc<str> {
        (self.0)().into()
    }
}

impl Default for SessionIds {
    /// Version 4 UUIDs: 122 random bits each.
    fn default() -> Self {
        Self::from_fn(|| uuid::Uuid::new_v4().to_string())
    }
}
