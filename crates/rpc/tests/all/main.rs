//! Integration tests of the crate: framing alone, framing against another WebSocket implementation, and the client.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic, in its helpers too")]

mod client;
mod framing;
mod interop;
mod limits;
mod slices;
mod upgrade;
