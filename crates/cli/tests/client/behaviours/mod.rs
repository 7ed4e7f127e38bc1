//! The behaviours that every place must have, one function per claim. They do not depend on the kind of place.

pub(crate) mod ending;
pub(crate) mod events;
pub(crate) mod information;
pub(crate) mod input;
pub(crate) mod volume;
