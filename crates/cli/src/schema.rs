//! `exec-server schema`: prints the wire protocol as JSON Schema.

use std::process::ExitCode;

use crate::say;

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    say::line(exec_server_protocol::SCHEMA.trim_end());
    Ok(ExitCode::SUCCESS)
}
