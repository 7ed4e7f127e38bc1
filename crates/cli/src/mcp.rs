//! `exec-server mcp`: runs MCP servers on an executor, and offers an executor as an MCP server. The commands `list`, `status` and `call`
//! are in the module `manage`; `bridge` and `serve` have a module each.

mod bridge;
mod manage;
mod serve;

use std::process::ExitCode;

use crate::{args::McpCommand, env_token};

pub(crate) fn run(command: &McpCommand, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    match command {
        McpCommand::Bridge(args) => bridge::run(args, token),
        McpCommand::List(args) => manage::list(args, token),
        McpCommand::Status(args) => manage::status(args, token),
        McpCommand::Call(args) => manage::call(args, token),
        McpCommand::Serve(args) => serve::run(args, token),
    }
}
