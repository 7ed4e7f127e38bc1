//! Tests with the real program: the protocol that it speaks, the promises that it keeps, its command line, and MCP servers behind it.
//!
//! One test program, because linking is slower than compiling. The tests of the client library are a program of their own: they identify the
//! server that is embedded in their process, so no other test may embed one.
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

mod commands;
mod mcp;
mod prelude;
mod promises;
mod wire;
