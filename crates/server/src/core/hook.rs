//! A callback before an event. Does nothing unless a simulation sets it.

use std::sync::Arc;

/// An optional callback; none by default.
#[derive(Clone, Default)]
pub struct Hook(Option<Arc<dyn Fn() + Send + Sync>>);

impl Hook {
    pub fn from_fn(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(call)))
    }

    pub(crate) fn call(&self) {
        if let Some(call) = &self.0 {
            call();
        }
    }
}
