//! Params and result of `session/end`.

/// Params of `session/end`. They are empty, because the method always ends the session of its connection.
pub type EndParams = crate::Empty;

/// Result of `session/end`, sent when all processes of the session are gone.
pub type EndResult = crate::Empty;
