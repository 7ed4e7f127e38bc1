//! `exec-server mcp serve`.

use std::process::ExitCode;

use crate::{args, env_token};

/// Does it.
pub(crate) fn run(_args: &args::ServeMcp, _token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
