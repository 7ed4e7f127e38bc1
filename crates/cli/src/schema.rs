//! `exec-server schema`: the wire as JSON Schema.
//! Must not know any method; everything comes from `protocol`.

use std::process::ExitCode;

use crate::say;

/// Prints the schema.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    say::line(exec_server_protocol::SCHEMA.trim_end());
    Ok(ExitCode::SUCCESS)
}
