//! Pure state of a session: which connection holds it and for how long ([`Lease`]), and which writes to a child's stdin
//! were already applied ([`StdinLedger`]).
//!
//! Both are plain values that read no clock, do no I/O and handle no messages. Time is an argument, in monotonic
//! nanoseconds. Inputs are `handle_*` and `begin`/`advance`; `poll_*` reports what is due. So the same rules run in the
//! holder, in the simulation and in property tests against a naive model.

mod lease;
mod ledger;

pub use lease::{AttachError, AttachMode, Lease, LeaseState, Ttl};
pub use ledger::{LEDGER_KEYS_MAX, StdinLedger, UnknownWrite, WriteBegin, WriteProgress};
