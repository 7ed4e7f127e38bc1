//! Params and result of `session/end`.

/// Params of `session/end`, which are empty: it ends the session of this connection.
pub type EndParams = crate::Empty;

/// Result of `session/end`, sent when all processes of the session are gone.
pub type EndResult = crate::Empty;
