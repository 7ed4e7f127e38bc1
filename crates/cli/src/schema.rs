//! `exec-server schema`: prints the wire protocol as JSON Schema.

use std::process::ExitCode;

use crate::print;

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    print::line(exec_server_protocol::SCHEMA.trim_end());
    Ok(ExitCode::SUCCESS)
}
