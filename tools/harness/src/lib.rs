//! What faults, benchmark and interop share: a real server, foreign clients, a program with an oracle under `run`, an sshd.
//!
//! Shares no code with the product, so that a check cannot contain the mistake that it looks for.

#![expect(clippy::disallowed_methods, reason = "starts the server as a user would, and measures wall time")]

pub mod environment;
pub mod file_tree;
pub mod mcp_client;
pub mod records;
pub mod relay;
pub mod remote_host;
pub mod server;
pub mod wire;

pub use exec_server_chaos::Random;
