//! The flags of `run` that put a program into a sandbox.

use std::path::PathBuf;

use clap::Args;

/// Flags of `run` that confine the program.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxArgs {
    /// Confine the program: it can read system directories and its working directory, and write nowhere
    #[arg(long)]
    pub(crate) sandbox: bool,
    /// Let the confined program read and execute files in DIR; repeatable
    #[arg(long, value_name = "DIR", requires = "sandbox")]
    pub(crate) read: Vec<PathBuf>,
    /// Let the confined program also write in DIR; repeatable. `.` is the working directory
    #[arg(long, value_name = "DIR", requires = "sandbox")]
    pub(crate) write: Vec<PathBuf>,
    /// Let the confined program open no network connection
    #[arg(long, requires = "sandbox")]
    pub(crate) no_network: bool,
}
