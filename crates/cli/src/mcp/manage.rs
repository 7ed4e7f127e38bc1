//! `exec-server mcp list`, `mcp status` and `mcp call`.

use std::process::ExitCode;

use crate::{args, env_token};

/// Lists the servers.
pub(crate) fn list(_args: &args::List, _token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}

/// Says how they are.
pub(crate) fn status(_args: &args::Status, _token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}

/// Calls a tool.
pub(crate) fn call(_args: &args::Call, _token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
