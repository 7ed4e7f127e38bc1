//! Fuzz targets for all code that reads untrusted bytes, as functions that panic if a property does not hold.
//!
//! Each target is a module with a function `check(data)`. libFuzzer calls it with generated inputs (`fuzz/`), and the test `replay` calls
//! it with the committed corpus. The targets check more than the absence of panics: agreement with a naive model, round trips, and limits
//! on allocated memory. This crate is for tests only. No product crate depends on it.

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

/// A fuzz target: its name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets.
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
