//! Shared by xtask and the tools: the repository's paths and cargo, packages of the system, and processes of this machine.
//!
//! Small on purpose: `cargo xtask tidy` compiles it. Test harness and clients are in `exec-server-harness`.

#![expect(clippy::print_stdout, reason = "the tools print what they do")]
#![expect(clippy::disallowed_methods, reason = "the tools start programs as a user would")]

pub mod cargo;
pub mod packages;
pub mod processes;

use std::process::ExitCode;

/// The exit code of a program of ours; an error is printed after the name of the program.
pub fn exit_code(name: &str, outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("{name}: {error:#}");
        ExitCode::FAILURE
    })
}
