//! Everything that reads bytes of others, as functions that panic when a property is broken.
//!
//! One module a target, each with `check(data)`: libFuzzer calls it with what it makes up (`fuzz/`), the test `replay` with the
//! committed corpus. The properties are more than "no panic": agreement with a naive model, a round trip, and a bound on what
//! was allocated. Test only; no product crate depends on it.

#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a target fails by panicking")]

pub mod base64;
pub mod disk_log;
pub mod holder_wire;
pub mod lines;
mod log_maker;
pub mod memory_log;
pub mod message;
mod model;
mod params;
pub mod path;
mod sliced;
pub mod websocket;
mod weight;

/// A target: its name, which is that of its corpus too, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("message", message::check),
    ("lines", lines::check),
    ("websocket", websocket::check),
    ("base64", base64::check),
    ("path", path::check),
    ("holder_wire", holder_wire::check),
    ("disk_log", disk_log::check),
    ("memory_log", memory_log::check),
];
