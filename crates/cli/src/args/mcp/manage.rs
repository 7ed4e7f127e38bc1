//! The words of `mcp list`, `mcp status` and `mcp call`.
//! Must not act on them.

use clap::Args;

use crate::args::client::Connect;

/// Flags of `mcp list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Flags of `mcp status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Flags of `mcp call`.
#[derive(Debug, Args)]
pub(crate) struct Call {
    #[command(flatten)]
    pub(crate) connect: Connect,
}
