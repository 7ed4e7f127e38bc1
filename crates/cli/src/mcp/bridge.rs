//! `exec-server mcp bridge`.

use std::process::ExitCode;

use crate::{args, env_token};

/// Does it.
pub(crate) fn run(_args: &args::Bridge, _token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
