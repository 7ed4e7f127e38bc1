//! Pure state of a session: who holds it and for how long ([`Lease`]), and which writes to a child's stdin have
//! already gone in ([`StdinLedger`]).
//!
//! Theory of operation: both are plain values. They read no clock, do no I/O and know no message; time is an argument
//! in monotonic nanoseconds, inputs are `handle_*` and `begin`/`advance`, and what is due is asked for with `poll_*`.
//! So the same rules run in the holder, in a simulation and in a property test against a naive model.

mod lease;
mod ledger;

pub use lease::{Attach, AttachError, Lease, State, Ttl};
pub use ledger::{Begin, Progress, REMEMBERED, StdinLedger, Unknown};
