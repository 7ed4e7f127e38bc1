//! Runs MCP servers on this or another machine. An *executor* is the exec-server that runs their processes.
//!
//! An MCP server on stdio is an ordinary process of the executor. So the server and the connection to it survive cut
//! links and restarts of the executor, no message is lost or repeated, and no process is left running.
//! [`config`] reads which servers exist and where they run. [`mod@env`] computes their environment variables, and [`names`] the tool names
//! that a model sees. [`launch`] starts a server, [`transport`] talks to it over stdio, and [`http`] talks to a server over HTTP.
//! [`manager`] runs all servers of a configuration:
//!
//! ```no_run
//! use exec_server_client::{environment::choose, local::LocalConfig};
//! use exec_server_mcp::{
//!     config::Config,
//!     manager::{ToolCall, Hosts, Manager, Settings},
//! };
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::load("servers.toml".as_ref())?;
//! let hosts = Hosts::by_choice(LocalConfig::default(), choose(None)?, None, |asked| choose(Some(asked)));
//! let manager = Manager::new(Settings::new(config), hosts);
//! manager.start_all().await?;
//! let status = ToolCall::new("git", "git_status").arguments(serde_json::json!({ "repo_path": "/src" }));
//! println!("{:?}", manager.call(status).await?.content);
//! manager.shutdown().await;
//! # Ok(())
//! # }
//! ```
//! [`serve`] is the opposite direction: it offers the executor itself as an MCP server.

pub mod config;
pub mod env;
pub mod http;
pub mod launch;
pub mod manager;
pub mod names;
pub mod serve;
pub mod transport;

/// Re-exported because callers need the same rmcp version that our transports implement.
pub use rmcp;
pub use rmcp::model;
