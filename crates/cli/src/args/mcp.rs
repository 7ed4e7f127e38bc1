//! The arguments of `mcp`.

mod bridge;
mod manage;
mod serve;

use clap::{Args, Subcommand};

pub(crate) use bridge::BridgeArgs;
pub(crate) use manage::{McpCallArgs, McpConfigArgs, McpListArgs, McpStatusArgs};
pub(crate) use serve::McpServeArgs;

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
pub(crate) struct McpArgs {
    #[command(subcommand)]
    pub(crate) command: McpCommand,
}

/// What to do with MCP servers.
#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Be an MCP server on standard streams whose process runs on the executor.
    Bridge(BridgeArgs),
    /// List the servers of a configuration with their tools.
    List(McpListArgs),
    /// Say how the servers of a configuration are, without starting one.
    Status(McpStatusArgs),
    /// Call a tool of a server.
    Call(McpCallArgs),
    /// Offer the executor itself as an MCP server.
    Serve(McpServeArgs),
}
