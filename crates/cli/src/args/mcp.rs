//! The arguments of `mcp`.

mod bridge;
mod manage;
mod serve;

use clap::{Args, Subcommand};

pub(crate) use bridge::Bridge;
pub(crate) use manage::{Call, Configured, List, Status};
pub(crate) use serve::ServeMcp;

const MCP_HELP: &str = "\
Exit codes: see the help of each command, such as `exec-server mcp call --help`

Examples:
  exec-server mcp bridge --connect ssh://host -- mcp-server-git
  exec-server mcp list
  exec-server mcp call time get_current_time '{\"timezone\": \"UTC\"}'
  exec-server mcp serve --connect ssh://host";

/// Flags of `mcp`.
#[derive(Debug, Args)]
#[command(after_help = MCP_HELP)]
pub(crate) struct Mcp {
    #[command(subcommand)]
    pub(crate) command: McpCommand,
}

/// What to do with MCP servers.
#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Be an MCP server on standard streams whose process runs on the executor.
    Bridge(Bridge),
    /// List the servers of a configuration with their tools.
    List(List),
    /// Say how the servers of a configuration are, without starting one.
    Status(Status),
    /// Call a tool of a server.
    Call(Call),
    /// Offer the executor itself as an MCP server.
    Serve(ServeMcp),
}
