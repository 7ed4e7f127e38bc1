//! Pure state of a session: which connection holds it and when it expires ([`Lease`]), which writes to a child's stdin
//! were already applied ([`StdinLedger`]), and how much of a log its readers have taken ([`Retention`]).
//!
//! All are plain values that read no clock, do no I/O and handle no messages. Time is an argument, in monotonic
//! nanoseconds. Inputs are `handle_*`, `set_*` and `begin`/`advance`; `poll_*` reports what is due. So the same rules
//! run in the holder (lease, ledger) or server (retention), in the simulation, and in property tests against a naive
//! model.

mod lease;
mod ledger;
mod retention;

pub use lease::{Lease, LeaseState, Ttl};
pub use ledger::{LEDGER_KEYS_MAX, StdinLedger, UnknownWrite, WriteBegin, WriteProgress};
pub use retention::{FollowerId, FollowerKind, LogPosition, Retention};
