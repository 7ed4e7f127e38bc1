//! MCP servers on another machine: started there, spoken with from here, and kept through cut links and restarts.
//!
//! An MCP server on standard streams is a process like any other, so the promise of the executor is its promise too: no
//! message is lost or repeated, and nothing is left behind. [`config`] says which servers there are and where they run, [`env`]
//! which variables each gets, and [`names`] what a model calls their tools. [`launch`] starts one, [`transport`] speaks with
//! it, and [`manager`] keeps many of them. [`serve`] is the other way round: the executor itself, offered as an MCP server.

pub mod config;
pub mod env;
pub mod launch;
pub mod manager;
pub mod names;
pub mod serve;
pub mod transport;

/// The library whose clients take our transports, in the version that they are made for.
pub use rmcp;
pub use rmcp::model;
