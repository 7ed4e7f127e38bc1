//! MCP servers on another machine: started there, spoken with from here, and kept through cut links and restarts.
//!
//! An MCP server on standard streams is a process like any other, so the promise of the executor is its promise too: no
//! message is lost or repeated, and nothing is left behind. [`config`] says which servers there are and where they run, [`mod@env`]
//! which variables each gets, and [`names`] what a model calls their tools. [`launch`] starts one, [`transport`] speaks with
//! it, [`http`] with one over HTTP, and [`manager`] keeps many of them:
//!
//! ```no_run
//! use exec_server_client::{environment::choose, local::LocalConfig};
//! use exec_server_mcp::{
//!     config::Config,
//!     manager::{Call, Hosts, Manager, Settings},
//! };
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::load("servers.toml".as_ref())?;
//! let hosts = Hosts::by_choice(LocalConfig::default(), choose(None)?, None, |asked| choose(Some(asked)));
//! let manager = Manager::new(Settings::new(config), hosts);
//! manager.start_all().await?;
//! let status = Call::new("git", "git_status").arguments(serde_json::json!({ "repo_path": "/src" }));
//! println!("{:?}", manager.call(status).await?.content);
//! manager.shutdown().await;
//! # Ok(())
//! # }
//! ```
//! [`serve`] is the other way round: the executor itself, offered as an MCP server.

pub mod config;
pub mod env;
pub mod http;
pub mod launch;
pub mod manager;
pub mod names;
pub mod serve;
pub mod transport;

/// The library whose clients take our transports, in the version that they are made for.
pub use rmcp;
pub use rmcp::model;
