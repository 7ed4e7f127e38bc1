//! What every place must do, one function a claim. It must not know which place it is.

pub(crate) mod asking;
pub(crate) mod ending;
pub(crate) mod events;
pub(crate) mod input;
pub(crate) mod sandboxed;
pub(crate) mod volume;
