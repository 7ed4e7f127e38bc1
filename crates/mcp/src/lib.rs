//! MCP servers on another machine: started there, spoken with from here, and kept through cut links and restarts.
//!
//! An MCP server on standard streams is a process like any other, so the promise of the executor is its promise too: no
//! message is lost or repeated, and nothing is left behind. [`config`] says which servers there are and where they run.

pub mod config;
pub mod http;
