//! `exec-server schema`: the wire as JSON Schema.
//! Must not know any method; everything comes from `protocol`.

use std::process::ExitCode;

use crate::say;

/// Prints the schema.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    say::line(&serde_json::to_string_pretty(&exec_server_protocol::schema())?);
    Ok(ExitCode::SUCCESS)
}
