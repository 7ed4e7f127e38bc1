//! Params and result of `session/end`. It must not know leases.

/// Params of `session/end`: the session of the connection is meant.
pub type EndParams = crate::Empty;

/// Result of `session/end`, sent when every process of the session is gone.
pub type EndResult = crate::Empty;
